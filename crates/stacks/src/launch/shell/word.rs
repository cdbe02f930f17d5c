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
    /// The line of the branch that decides it, if it is one that is not known; else 0.
    pub branch: usize,
}

impl Word {
    /// Takes over why a part of it is not fully known.
    pub fn doubt(&mut self, part: &Word) {
        if self.open.is_none() {
            (self.open, self.branch) = (part.open, part.branch);
        }
    }
}
