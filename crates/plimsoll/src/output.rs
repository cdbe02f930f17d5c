//! Stdout, which carries data only. If its reader is gone the program ends quietly; other failures are named.

use plimsoll_base::{Error, Result};
use serde_json::Value;
use std::io::{self, ErrorKind, Write};

/// Stdout, buffered by line.
pub struct Out;

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        quiet_on_broken_pipe(io::stdout().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        quiet_on_broken_pipe(io::stdout().flush())
    }
}

/// Prints `text` and flushes.
pub fn text(text: &str) -> Result<()> {
    Out.write_all(text.as_bytes()).and_then(|()| Out.flush()).map_err(|err| failed(&err))
}

/// Prints one JSON object on one line.
pub fn json(value: &Value) -> Result<()> {
    text(&format!("{value}\n"))
}

/// Prints a note on stderr, unless `quiet`.
pub fn note(quiet: bool, words: &str) {
    if !quiet {
        // Ignored, because stderr may be closed.
        let _ = writeln!(io::stderr(), "{words}");
    }
}

fn quiet_on_broken_pipe<T>(result: io::Result<T>) -> io::Result<T> {
    if let Err(err) = &result
        && err.kind() == ErrorKind::BrokenPipe
    {
        // As in `plimsoll ... | head`.
        std::process::exit(0);
    }
    result
}

fn failed(err: &io::Error) -> Error {
    match err.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            Error::new("disk-full", format!("writing to stdout: {err}"))
                .hint("make room, or send the output elsewhere")
        }
        _ => Error::new("io-error", format!("writing to stdout: {err}")).hint("check where stdout goes"),
    }
}
