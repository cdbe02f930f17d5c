//! Bad input: each case ends with its exit code, its name and a hint, without a panic, without a word on stdout and with
//! nothing half-written.

mod cuda;
mod folder;
mod models;
mod places;
mod runs;
