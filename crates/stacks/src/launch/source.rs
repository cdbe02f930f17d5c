//! A launch file as its stack reads it, and how it names the home folder.

pub(crate) struct Source<'a> {
    /// As it was given.
    pub path: &'a str,
    pub text: &'a str,
}

/// The user's home as scripts write it. It is not filled in: the machine that trains may be another one than the machine that imports.
pub(crate) const HOME: &str = "$HOME";
