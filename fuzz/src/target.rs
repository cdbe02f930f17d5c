//! What a target is, and what targets share: words of JSON, and files of this repository as their corpus.

use crate::mutate::Shape;
use plimsoll_base::Result;
use std::time::Duration;

/// The memory and time that one process may take to read a target's inputs.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Processor time of all threads for one input.
    pub input_time: Duration,
    /// Resident memory, whatever was read.
    pub peak_bytes: u64,
}

impl Bounds {
    /// For files, which are read once.
    pub const FILE: Bounds = Bounds { input_time: Duration::from_secs(60), peak_bytes: 512 << 20 };
    /// For words of a model, of which a run grades thousands a step: most take less than a millisecond, the slowest 0.1
    /// s.
    pub const WORDS: Bounds = Bounds { input_time: Duration::from_secs(1), peak_bytes: 64 << 20 };
}

/// A parser and its language.
pub struct Target {
    pub name: &'static str,
    /// The files that it reads, for the table.
    pub reads: &'static str,
    pub shape: Shape,
    pub bounds: Bounds,
    /// Words and signs of its language.
    pub pieces: &'static [&'static str],
    pub open: fn() -> Box<dyn Subject>,
}

/// A parser that is ready to read.
pub trait Subject {
    fn corpus(&self) -> &[Vec<u8>];
    /// Reads one input as the program reads a file.
    fn read(&mut self, input: &[u8]) -> Result<()>;
}

/// Signs of JSON and some values.
pub(crate) const JSON_PIECES: [&str; 30] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1e308",
    "1e-400",
    "18446744073709551616",
    "\"type\":",
    "{\"type\": ",
    "\"content\":",
    "\"\"",
    "\"\\ud800\"",
    "\"\\u0000\"",
    "[[",
    "]]",
    "{\"a\":",
    "}}",
    "é",
    "\u{feff}",
    "\n",
    " ",
];

/// The text of an input, as a file is read that must be text.
pub(crate) fn text(input: &[u8]) -> String {
    String::from_utf8_lossy(input).into_owned()
}

/// The files below `folder` of the repository whose names end so, in the order of their names.
pub(crate) fn files(folder: &str, ends: &[&str]) -> Vec<Vec<u8>> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
    let entries = std::fs::read_dir(&folder).expect("the repository has its files");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("it can be listed").path()).collect();
    paths.sort();
    let is_one = |path: &std::path::PathBuf| ends.iter().any(|end| path.to_string_lossy().ends_with(end));
    paths.into_iter().filter(is_one).map(|path| std::fs::read(path).expect("it can be read")).collect()
}
