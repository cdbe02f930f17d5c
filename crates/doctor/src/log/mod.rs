//! Reads the logs of a run that died as a stream, puts them on one timeline and names the first cause.
//!
//! `input` opens files, folders and archives; `scan` finds the lines that matter at the speed of the disk; `judge` reads
//! numbers and tracebacks where words do not decide; `timeline` orders the events of all files and names the cause.
//! Signatures are data: `data/signatures.toml`.

mod diagnosis;
mod event;
mod input;
mod judge;
mod readings;
mod scan;
pub mod self_test;
mod signatures;
mod state;
mod text;
mod time;
mod timeline;

pub use diagnosis::{Diagnosis, Evidence, Follow};
pub use input::Input;

use plimsoll_base::Result;
use scan::Scanner;
use signatures::Signatures;

/// The most memory that reading logs takes, whatever their size: the window, the events and the automaton.
/// `bounded_memory` in the tests compares the process with it.
pub const LOG_BYTES_MAX: u64 = 64 << 20;

/// Reads `inputs` and names the first cause.
///
/// Errors: `log-missing`, `log-unreadable` for an input that cannot be opened at all.
pub fn diagnose(inputs: Vec<Input>) -> Result<Diagnosis> {
    let signatures = Signatures::embedded();
    let mut scanner = Scanner::new(signatures);
    for source in input::expand(inputs)? {
        scanner.read(source)?;
    }
    Ok(timeline::judge(signatures, scanner.found))
}

/// Returns the slugs of all classes. Each has a page.
pub fn classes() -> impl Iterator<Item = &'static str> {
    Signatures::embedded().slugs()
}
