//! The origin of each value, and messages that point at it.

use plimsoll_base::{Error, without_secrets};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Where a value came from.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Origin {
    /// The run file; line and column of the key, counted from 1.
    File { line: usize, column: usize },
    /// An environment variable, with its name and value.
    Environment { name: String, text: String },
    /// A `--set`, with key and value as written.
    Set { key: String, text: String },
    /// The table of types.
    #[default]
    Default,
    /// A default that depends on the method.
    Method,
    /// Chosen by the planner.
    Resolved { why: String },
}

impl Origin {
    /// Returns the text of a value that was not written as TOML: from the environment or the command line.
    pub(super) fn raw_text(&self) -> Option<&str> {
        match self {
            Origin::Environment { text, .. } | Origin::Set { text, .. } => Some(text),
            _ => None,
        }
    }
}

/// A kind of file, for messages about its keys.
#[derive(Debug)]
pub(super) struct FileKind {
    /// For example `a run file`.
    pub name: &'static str,
    /// Returns every key as `section.key`.
    pub keys: fn() -> Vec<String>,
}

impl Default for &'static FileKind {
    fn default() -> Self {
        &FileKind { name: "a file", keys: Vec::new }
    }
}

/// A file as text, for messages that show a line of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Source {
    /// The path as given; empty when there is no file.
    pub path: String,
    pub text: String,
    pub kind: &'static FileKind,
}

/// Bytes between two marks of `Positions`.
const MARK_BYTES: usize = 64;

/// Lines and columns of a text, found without reading it from its beginning: a run file has one origin a value.
pub(super) struct Positions<'t> {
    text: &'t [u8],
    /// Line and column at every `MARK_BYTES`th byte.
    marks: Vec<(usize, usize)>,
}

impl<'t> Positions<'t> {
    pub fn of(text: &'t str) -> Positions<'t> {
        let (text, mut place) = (text.as_bytes(), (1, 1));
        let mut marks = Vec::with_capacity(text.len() / MARK_BYTES + 1);
        marks.push(place);
        for piece in text.chunks_exact(MARK_BYTES) {
            place = Self::after(place, piece);
            marks.push(place);
        }
        Positions { text, marks }
    }

    /// Returns line and column of a byte offset, counted from 1.
    pub fn at(&self, offset: usize) -> (usize, usize) {
        let offset = offset.min(self.text.len());
        let mark = offset / MARK_BYTES;
        Self::after(self.marks[mark], &self.text[mark * MARK_BYTES..offset])
    }

    fn after(place: (usize, usize), text: &[u8]) -> (usize, usize) {
        text.iter().fold(place, |(line, column), byte| match byte {
            b'\n' => (line + 1, 1),
            // The further bytes of a character.
            0x80..=0xbf => (line, column),
            _ => (line, column + 1),
        })
    }
}

impl Source {
    /// Returns a usage error about the value at `origin`: `runs/x.toml:12:3: message`, with the line as a fact.
    pub fn error(&self, slug: &'static str, origin: &Origin, message: &str) -> Error {
        match origin {
            Origin::File { line, column } => {
                let error = Error::usage(slug, format!("{}:{line}:{column}: {message}", self.path));
                match self.text.lines().nth(line - 1) {
                    Some(text) => error.fact(format!("{line} | {}", without_users(text.trim_end()))),
                    None => error,
                }
            }
            Origin::Environment { name, text } => Error::usage(slug, format!("environment: {message}"))
                .fact(format!("{name}={}", without_users(text))),
            Origin::Set { key, text } => Error::usage(slug, format!("--set: {message}"))
                .fact(format!("--set {key}={}", without_users(text))),
            _ if self.path.is_empty() => Error::usage(slug, message),
            _ => Error::usage(slug, format!("{}: {message}", self.path)),
        }
    }
}

/// Returns text whose addresses have no users, passwords and queries; other text as it is.
pub(super) fn without_users(text: &str) -> Cow<'_, str> {
    if text.contains("://") { without_secrets(text).into() } else { text.into() }
}

/// The origin of every key that has a value.
#[derive(Clone, Debug, Default)]
pub struct Provenance {
    pub(super) source: Source,
    pub(super) origins: BTreeMap<String, Origin>,
}

impl Provenance {
    /// Returns the origin of `rollout.group_size` or `reward.0.kind`; the default if it is not set.
    pub fn of(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }

    /// Records that the planner chose the value of `key`.
    pub fn resolve(&mut self, key: impl Into<String>, why: impl Into<String>) {
        self.origins.insert(key.into(), Origin::Resolved { why: why.into() });
    }

    /// Describes the origin: `runs/x.toml:12`, `environment PLIMSOLL__SEED`, `--set`, `default`, `default of the
    /// method`, `auto: ...`.
    pub fn describe(&self, key: &str) -> String {
        match self.of(key) {
            Origin::File { line, .. } => format!("{}:{line}", self.source.path),
            Origin::Environment { name, .. } => format!("environment {name}"),
            Origin::Set { .. } => "--set".into(),
            Origin::Default => "default".into(),
            Origin::Method => "default of the method".into(),
            Origin::Resolved { why } => format!("auto: {why}"),
        }
    }

    /// Returns a usage error about the value of `key`, pointing at the place where it was set.
    pub fn error(&self, slug: &'static str, key: &str, message: &str) -> Error {
        self.source.error(slug, self.of(key), message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_that_of_a_count_from_the_beginning() {
        let text = "a = \"ä€😀\"\n\n[b]\n".repeat(40) + "last";
        let positions = Positions::of(&text);
        for (offset, _) in text.char_indices().chain([(text.len(), ' '), (text.len() + 9, ' ')]) {
            let before = &text[..offset.min(text.len())];
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap().chars().count() + 1;
            assert_eq!(positions.at(offset), (line, column), "{offset}");
        }
    }
}
