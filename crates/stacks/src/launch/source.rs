//! A launch file as its stack reads it, and its name of the home folder.

pub(crate) struct Source<'a> {
    /// As given.
    pub path: &'a str,
    pub text: &'a str,
}

/// The home directory in scripts. It is not expanded: the training machine may not be the importing one.
pub(crate) const HOME: &str = "$HOME";
