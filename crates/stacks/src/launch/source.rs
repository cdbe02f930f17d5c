//! A launch file as its stack reads it, and the one thing of the user's surroundings that is filled in: the home folder.

pub(crate) struct Source<'a> {
    /// As it was given.
    pub path: &'a str,
    pub text: &'a str,
}

/// The user's home, which scripts write as `$HOME` and `~`.
pub(crate) fn home() -> Option<String> {
    std::env::var("HOME").ok().filter(|home| !home.is_empty())
}
