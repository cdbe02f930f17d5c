//! Named errors: each has a slug, a message with what, where and numbers, and hints.
//!
//! One type for all crates, because the edge that prints it needs the same four parts from each of them.
//! Each slug has a page `docs/errors/<slug>.md`; `cargo xtask tidy` checks both directions.

use crate::shown::{cut_line, shown_path};
use std::borrow::Cow;
use std::fmt;

/// `Result` with a named error.
pub type Result<T> = std::result::Result<T, Error>;

/// The exit code of the process that reports an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 1: a named error.
    Named = 1,
    /// 2: usage or run file.
    Usage = 2,
    /// 3: the run does not fit.
    DoesNotFit = 3,
    /// 4: the trainer was killed.
    Killed = 4,
    /// 5: another rank ended the run.
    OtherRank = 5,
    /// 130: SIGINT.
    Interrupted = 130,
    /// 143: SIGTERM.
    Terminated = 143,
}

/// A named failure.
#[derive(Debug, Clone, PartialEq)]
pub struct Error {
    /// Stable name, kebab-case; `plimsoll explain <slug>` prints its page.
    pub slug: &'static str,
    /// The event and its place, with numbers; lower case, one line, cut if it is very long.
    pub message: String,
    /// More facts, one per line.
    pub facts: Vec<String>,
    /// Remedies, one per line.
    pub hints: Vec<String>,
    /// Exit code of a process that ends with this error.
    pub exit: Exit,
}

impl Error {
    /// Makes a named error with exit code 1.
    pub fn new(slug: &'static str, message: impl Into<String>) -> Error {
        Error {
            slug,
            message: cut_line(message.into()),
            facts: Vec::new(),
            hints: Vec::new(),
            exit: Exit::Named,
        }
    }

    /// Makes an error of usage or of the run file, with exit code 2.
    pub fn usage(slug: &'static str, message: impl Into<String>) -> Error {
        Error { exit: Exit::Usage, ..Error::new(slug, message) }
    }

    /// Makes the error of a run that does not fit, with exit code 3.
    pub fn does_not_fit(slug: &'static str, message: impl Into<String>) -> Error {
        Error { exit: Exit::DoesNotFit, ..Error::new(slug, message) }
    }

    /// Makes an input or output error on `path`, with the system's message.
    pub fn io(slug: &'static str, path: &std::path::Path, err: &std::io::Error) -> Error {
        Error::new(slug, format!("{}: {err}", shown_path(path)))
    }

    /// Adds a fact.
    pub fn fact(mut self, fact: impl Into<String>) -> Error {
        self.facts.push(cut_line(fact.into()));
        self
    }

    /// Adds a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        self.hints.push(cut_line(hint.into()));
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}", self.slug, continued(&self.message))?;
        for fact in &self.facts {
            write!(f, "\n  {}", continued(fact))?;
        }
        for hint in &self.hints {
            write!(f, "\nhint: {}", continued(hint))?;
        }
        Ok(())
    }
}

/// Indents continuation lines, so values from outside that begin a line with `hint:` are not taken for a hint.
fn continued(text: &str) -> Cow<'_, str> {
    let begins = |line: &str| ["hint:", "error[", "warning["].iter().any(|start| line.starts_with(start));
    if text.lines().skip(1).any(begins) {
        let line = |line: &str| if begins(line) { format!("  {line}") } else { line.to_string() };
        let first = text.lines().take(1).map(str::to_string);
        Cow::Owned(first.chain(text.lines().skip(1).map(line)).collect::<Vec<_>>().join("\n"))
    } else {
        Cow::Borrowed(text)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r_a_quoted_value_could_forge_a_hint() {
        let error = Error::new("io-error", "bad\nhint: run rm\n| x").fact("a\nerror[x]: y").hint("b");
        assert_eq!(
            error.to_string(),
            "error[io-error]: bad\n  hint: run rm\n| x\n  a\n  error[x]: y\nhint: b"
        );
    }
}
