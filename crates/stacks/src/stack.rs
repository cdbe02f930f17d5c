//! A stack is one row: how its launch files are found and read, its options, their counterparts, and its memory's
//! rules.

use crate::import::draft::Import;
use crate::launch::source::Source;
use crate::options::{Change, Options};
use crate::plan::ledger::Ledger;
use crate::plan::limits::{Limits, Version};
use crate::plan::model::ModelOf;
use crate::plan::verdict::{Comparison, Peak};
use crate::setting::Setting;
use crate::table::Table;
use plimsoll_base::Result;
use std::fmt;

/// A stack's rules: rows of a run as its settings start it.
pub(crate) type Rules = fn(&Options, Version, &Limits, &ModelOf<'_>) -> Result<Ledger>;

pub struct Stack {
    /// The name on the command line, and of its package in a pin.
    pub name: &'static str,
    /// What its files hold, for an error that found none of it.
    pub(crate) looked_for: &'static str,
    /// Finds the settings in a file's text; empty if it is no file of this stack.
    pub(crate) read: fn(&Source<'_>) -> Vec<Setting>,
    /// Which trainer settings are for, if they say.
    pub(crate) trainer: fn(&[Setting]) -> Option<String>,
    /// The trainers whose memory its rules know.
    pub(crate) planned: &'static [&'static str],
    pub(crate) table: &'static Table,
    /// How a run file is made of its settings, if one is.
    pub(crate) import: Option<&'static Import>,
    /// The version that is assumed where nothing names one, and why that one.
    pub(crate) newest: fn(&Options) -> (&'static str, &'static str),
    pub(crate) rules: Rules,
    /// Changes that are tried as remedies, the cheapest first.
    pub(crate) changes: &'static [Change],
    /// Numbers that others reported of runs like this one.
    pub(crate) comparisons: fn(&Ledger, &[Peak]) -> Vec<Comparison>,
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Stack {
    /// Returns what `import` reads, for its help; `None` if no run file can be made of this stack's files.
    pub fn imported_file(&self) -> Option<&'static str> {
        self.import.map(|import| import.file)
    }

    /// Returns what the stack is called in comments and pages; `None` if it is not imported.
    pub fn title(&self) -> Option<&'static str> {
        self.import.map(|import| import.title)
    }

    pub fn options(&self) -> impl Iterator<Item = &'static str> {
        self.table.names()
    }
}
