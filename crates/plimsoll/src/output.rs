//! Stdout, for data only, and notes on stderr. A closed stdout ends the program quietly; other failures are named.
//!
//! Outside text is made safe for terminals here: words always, JSON by its escapes, exact `data` on terminals only.

use plimsoll_base::{Error, Result, visible, visible_json};
use serde_json::Value;
use std::borrow::Cow;
use std::io::{self, ErrorKind, IsTerminal, Write};

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

/// Prints text for the user and flushes.
pub fn text(words: &str) -> Result<()> {
    print(&visible(words))
}

/// Prints data that stays unchanged in a file or pipe: a model's response, a run file, a script.
pub fn data(data: &str) -> Result<()> {
    print(&data_for(io::stdout().is_terminal(), data))
}

fn data_for(is_terminal: bool, data: &str) -> Cow<'_, str> {
    if is_terminal { visible(data) } else { Cow::Borrowed(data) }
}

fn print(text: &str) -> Result<()> {
    Out.write_all(text.as_bytes()).and_then(|()| Out.flush()).map_err(|err| failed(&err))
}

/// Prints one JSON object on one line.
pub fn json(value: &Value) -> Result<()> {
    print(&format!("{}\n", json_text(value)))
}

/// Returns a value as one-line JSON.
pub fn json_text(value: &impl ToString) -> String {
    visible_json(&value.to_string()).into_owned()
}

/// Prints `value` if JSON was asked for, else its `words`.
pub fn either(as_json: bool, value: &Value, words: impl FnOnce(&Value) -> String) -> Result<()> {
    if as_json { json(value) } else { text(&words(value)) }
}

/// Prints a note on stderr, unless `quiet`.
pub fn note(quiet: bool, words: &str) {
    if !quiet {
        // Ignored: stderr may be closed.
        let _ = writeln!(io::stderr(), "{}", visible(words));
    }
}

fn quiet_on_broken_pipe<T>(result: io::Result<T>) -> io::Result<T> {
    if let Err(err) = &result
        && err.kind() == ErrorKind::BrokenPipe
    {
        // For example in `plimsoll ... | head`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_keeps_its_bytes_but_on_a_terminal() {
        for (is_terminal, expect) in [(false, "a\x1b[2J\u{202e}\n"), (true, "a\\u{1b}[2J\\u{202e}\n")] {
            assert_eq!(data_for(is_terminal, "a\x1b[2J\u{202e}\n"), expect);
        }
        assert_eq!(json_text(&serde_json::json!(["\u{9b}"])), "[\"\\u009b\"]");
    }
}
