//! What a target is, and what targets share: words of JSON, and files of this repository as their corpus.

use crate::mutate::Shape;
use plimsoll_base::Result;

/// A parser and its language.
pub struct Target {
    pub name: &'static str,
    /// What it reads, for the table.
    pub reads: &'static str,
    pub shape: Shape,
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
