//! A word of a command, and whether it is known.

/// Longest expanded value: variables may contain each other, and must not grow without end.
pub(crate) const VALUE_BYTES_MAX: usize = 1 << 16;
/// Most words of an array that grows.
pub(super) const WORDS_MAX: usize = 4096;
pub(crate) const VARIABLE: &str = "holds a variable that the file does not set";
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Word {
    pub text: String,
    /// Why it is not fully known, if so.
    pub open: Option<&'static str>,
    /// Its line, from 1.
    pub line: usize,
}
