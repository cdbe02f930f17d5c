//! A launch file as its stack reads it, the user's choices of what in it counts, and its name of the home folder.

use super::notebook::Notebook;
use crate::setting::Setting;

#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub path: &'a str,
    pub text: &'a str,
    pub choice: Choice<'a>,
    /// The notebook whose cells the text is.
    pub notebook: Option<&'a Notebook>,
}

impl Source<'_> {
    /// Returns the place of a line, from 1: `line 4`, or `cell 3 line 4` in a notebook.
    pub fn place(&self, line: usize) -> String {
        let one = Setting::new("", "", line);
        self.notebook.map_or(one.clone(), |notebook| notebook.place(one)).place()
    }
}

/// Which trainer of a file counts, and which of the commands at the top of a script, from 1.
#[derive(Clone, Copy, Default)]
pub(crate) struct Choice<'a> {
    pub trainer: Option<&'a str>,
    pub command: Option<usize>,
}

/// The home directory in scripts. It is not expanded: the training machine may not be the importing one.
pub(crate) const HOME: &str = "$HOME";
