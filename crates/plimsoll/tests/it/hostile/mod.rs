//! Bad input: each case ends with its exit code, name and hint; no panic, no word on stdout, nothing half-written.

mod cuda;
mod folder;
mod models;
mod places;
mod runs;
