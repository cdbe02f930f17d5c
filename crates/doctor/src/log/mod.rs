//! Reads the logs of a run that died as a stream, puts them on one timeline and names the first cause.
//!
//! `input` opens files, folders and archives; `scan` finds the lines that matter at the speed of the disk; `judge`
//! reads numbers and tracebacks where words do not decide; `timeline` orders the events of all files and names the
//! cause. Signatures are data: `data/signatures/`, with examples in `data/examples/`.

mod bars;
mod choice;
mod collective;
mod colours;
mod command;
mod counters;
mod data;
mod diagnosis;
mod event;
mod finish;
mod general;
mod input;
mod intents;
mod judge;
mod junk;
mod last_counter;
mod last_words;
mod levels;
mod limits;
mod literals;
mod memo;
mod possibilities;
mod progress;
mod ranks;
mod readings;
mod record;
mod roster;
mod scan;
pub mod self_test;
mod signatures;
mod state;
mod text;
mod time;
mod timeline;
mod unpack;
mod utf16;
mod waiting;

pub use diagnosis::{Diagnosis, Evidence, Follow};
pub use input::Input;
pub use limits::Limits;

use limits::Budget;
use plimsoll_base::Result;
use scan::{Found, Scanner};
use signatures::Signatures;

/// Most memory for reading logs of any size: the window, the events and the signatures. Tested by `bounded_memory`.
pub const LOG_BYTES_MAX: u64 = 64 << 20;

/// Reads `inputs`, as far as `limits` allow, and names the first cause.
///
/// Errors: `log-missing`, `log-unreadable` for an input that cannot be opened, or is no file.
pub fn diagnose(inputs: Vec<Input>, limits: Limits) -> Result<Diagnosis> {
    Ok(timeline::judge(Signatures::embedded(), scan(inputs, limits)?))
}

/// Finds the lines of `inputs` that matter.
fn scan(inputs: Vec<Input>, limits: Limits) -> Result<Found> {
    let mut scanner = Scanner::new(Signatures::embedded());
    let mut budget = Budget::new(limits);
    let mut sources = input::expand(inputs, limits)?;
    // Opening a pipe waits for it.
    while budget.spent().is_none()
        && let Some(source) = sources.next()
    {
        scanner.read(source, &mut budget);
    }
    if sources.len() > 0 {
        let count = sources.len();
        scanner.found.parts.push(format!("{count} files were not begun, because a limit was reached"));
    }
    Ok(scanner.found)
}

/// Returns the names of all known frameworks.
pub fn frameworks() -> impl Iterator<Item = &'static str> {
    Signatures::embedded().frameworks.iter().map(String::as_str)
}

/// Returns the slugs of all classes. Each has a page.
pub fn classes() -> impl Iterator<Item = &'static str> {
    Signatures::embedded().slugs()
}
