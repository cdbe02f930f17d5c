//! A stack is one row: how to find and read its launch files, its options and their counterparts, and its memory rules.

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

/// A stack's rules: they make rows of a run's settings.
pub(crate) type Rules = fn(&Options, Version, &Limits, &ModelOf<'_>) -> Result<Ledger>;

pub struct Stack {
    /// The name on the command line, and of its package in a pin.
    pub name: &'static str,
    /// The contents of its files, for an error that found none.
    pub(crate) looked_for: &'static str,
    /// Returns true for a file that shows whose it is, for an error about another stack's.
    pub(crate) is_of: fn(&Source<'_>) -> bool,
    /// Finds the settings in a file's text; empty for files of other stacks.
    pub(crate) read: fn(&Source<'_>) -> Result<Vec<Setting>>,
    /// Returns the settings' trainer, if they name one.
    pub(crate) trainer: fn(&[Setting]) -> Option<String>,
    pub(crate) table: &'static Table,
    /// The conversion of its settings to a run file, if there is one.
    pub(crate) import: Option<&'static Import>,
    /// The memory of its runs, if rules are known.
    pub(crate) planned: Option<Planned>,
}

/// Holds what plans a stack's runs.
pub(crate) struct Planned {
    /// Trainers whose memory has rules.
    pub trainers: &'static [&'static str],
    /// The default version, and the reason for it.
    pub newest: fn(&Options) -> (&'static str, &'static str),
    pub rules: Rules,
    /// Changes to try as remedies, the cheapest first.
    pub changes: &'static [Change],
    /// Numbers that others reported of similar runs.
    pub comparisons: fn(&Ledger, &[Peak]) -> Vec<Comparison>,
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Stack {
    /// Returns the kind of file that `import` reads, for its help; `None` if the stack is not imported.
    pub fn imported_file(&self) -> Option<&'static str> {
        self.import.map(|import| import.file)
    }

    /// Returns the stack's name in comments and pages; `None` if it is not imported.
    pub fn title(&self) -> Option<&'static str> {
        self.import.map(|import| import.title)
    }

    /// Returns true if rules for the memory of its runs are known.
    pub fn is_planned(&self) -> bool {
        self.planned.is_some()
    }

    pub fn options(&self) -> impl Iterator<Item = &'static str> {
        self.table.names()
    }
}
