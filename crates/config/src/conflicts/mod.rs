//! Settings that do not go together: one table of pairs, with why and what to set instead. A run file in which both
//! settings of a row are so is refused; `plimsoll explain conflicts` and the page of the docs print the rows.
//!
//! What one value may be is in the row of its key, and what depends on the numbers of two keys is checked where the
//! numbers are.

#[macro_use]
mod setting;

mod distill;
mod environment;
mod loss;
mod method;
mod rollout;
mod shared;
mod train;

use super::provenance::Provenance;
use super::sections::RunFile;
use plimsoll_base::Result;
use serde::Serialize;
use setting::{Case, Conflict};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The rows in the order in which they are looked at: those that say most of a run come first.
const TABLES: [&[Conflict]; 8] = [
    environment::OF_POLICIES,
    environment::ROWS,
    method::ROWS,
    train::ROWS,
    loss::ROWS,
    distill::ROWS,
    rollout::ROWS,
    loss::CREDIT,
];

/// A row for people and programs.
#[derive(Clone, Debug, Serialize)]
pub struct ConflictPage {
    /// The setting that an error points at, and the one that it does not go with.
    pub setting: String,
    pub with: String,
    pub why: String,
    pub hint: String,
    /// The name of the error.
    pub slug: &'static str,
    /// Values that make both so in a small run file.
    pub example: Vec<&'static str>,
}

impl ConflictPage {
    fn of(row: &Conflict) -> ConflictPage {
        let is_one = !row.setting.key.contains('*');
        ConflictPage {
            setting: row.setting.name.into(),
            with: row.with.name.into(),
            why: row.why.into(),
            hint: row.hint.replace("{key}", if is_one { row.setting.key } else { "it" }),
            slug: row.slug,
            example: [row.setting.example, row.with.example].concat(),
        }
    }
}

fn rows() -> impl Iterator<Item = &'static Conflict> {
    TABLES.into_iter().flatten()
}

/// Refuses a run file in which two settings do not go together.
///
/// Errors: those of the rows.
pub(super) fn check(run: &RunFile, at: &Provenance) -> Result<()> {
    let case = Case { run, at };
    rows().find_map(|row| row.error(&case)).map_or(Ok(()), Err)
}

/// Returns the setting of a run that does not go with groups of several steps, and why.
pub fn hindrance_to_carry(run: &RunFile) -> Option<(String, &'static str)> {
    let (at, carry) = (Provenance::default(), shared::CARRY.name);
    let (case, tree) = (Case { run, at: &at }, toml::Value::try_from(run).ok()?);
    rows().filter(|row| row.setting.name == carry).find_map(|row| {
        let key = row.with.key_in(&case)?;
        Some((row.with.text(&tree, &key), row.why))
    })
}

/// Returns every row of the table, by the section of the key that an error points at.
pub fn conflicts() -> Vec<(String, Vec<ConflictPage>)> {
    let mut sections = BTreeMap::<String, Vec<ConflictPage>>::new();
    for row in rows() {
        let section = row.setting.key.split('.').next().filter(|name| *name != "*");
        let section = section.unwrap_or("several sections");
        sections.entry(section.to_string()).or_default().push(ConflictPage::of(row));
    }
    sections.into_iter().collect()
}

/// Returns the table as the page of the docs has it, below its introduction.
pub fn conflicts_in_markdown() -> String {
    let mut text = String::new();
    for (section, rows) in conflicts() {
        let _ = write!(
            text,
            "\n## {section}\n\n| setting | does not go with | why | instead |\n|---|---|---|---|\n"
        );
        for row in rows {
            let _ = writeln!(text, "| {} | {} | {} | {} |", row.setting, row.with, row.why, row.hint);
        }
    }
    text
}

#[cfg(test)]
mod tests;
