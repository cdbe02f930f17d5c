//! Bad input, from outside: each case ends with its exit code, its name and a hint, without a panic, without a word on
//! stdout and with nothing half-written.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../files/tests/common/mod.rs"]
mod made;

mod cuda;
mod folder;
mod models;
mod places;
mod runs;
