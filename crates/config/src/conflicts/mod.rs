//! Settings that do not go together: one table of pairs, with why and what to set instead. A run file in which both
//! settings of a row are so is refused; `plimsoll explain conflicts` and the page of the docs print the rows.
//!
//! What one value may be is in the row of its key, and what depends on the numbers of two keys is checked where the
//! numbers are.

mod distill;
mod environment;
mod loss;
mod method;
mod rollout;
mod train;

use super::provenance::{Origin, Provenance, without_users};
use super::sections::{RunFile, Trains};
use plimsoll_base::{Error, Result, shown};
use plimsoll_textenv::Kind;
use serde::Serialize;
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

/// Two settings that do not go together.
#[derive(Clone, Copy)]
pub(super) struct Conflict {
    /// The setting that an error points at.
    setting: Setting,
    with: Setting,
    /// A clause about the second setting, or about both.
    why: &'static str,
    /// What to set instead; `{key}` is the key of the first setting.
    hint: &'static str,
    slug: &'static str,
}

/// Something that a run file may ask for.
#[derive(Clone, Copy)]
pub(super) struct Setting {
    /// The key or section that says it; `loss.*` for one of several.
    key: &'static str,
    /// Its name in the table.
    name: &'static str,
    holds: Holds,
    /// What makes it so in a small run file, as after `--set`; `-section` is removed.
    example: &'static [&'static str],
}

/// How to find out whether a setting is so.
#[derive(Clone, Copy)]
enum Holds {
    When(fn(&RunFile) -> bool),
    /// Returns the key that says it.
    Which(fn(&Case) -> Option<String>),
}

/// A run file that is looked at.
pub(super) struct Case<'r> {
    run: &'r RunFile,
    at: &'r Provenance,
}

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

const fn when(
    key: &'static str,
    name: &'static str,
    holds: fn(&RunFile) -> bool,
    example: &'static [&'static str],
) -> Setting {
    Setting { key, name, holds: Holds::When(holds), example }
}

const fn which(
    key: &'static str,
    name: &'static str,
    holds: fn(&Case) -> Option<String>,
    example: &'static [&'static str],
) -> Setting {
    Setting { key, name, holds: Holds::Which(holds), example }
}

const fn no(setting: Setting, with: Setting, why: &'static str, hint: &'static str) -> Conflict {
    Conflict { setting, with, why, hint, slug: "contradictory-keys" }
}

impl Conflict {
    const fn slug(self, slug: &'static str) -> Conflict {
        Conflict { slug, ..self }
    }

    /// Returns the error of a run file in which both settings are so.
    fn error(&self, case: &Case) -> Option<Error> {
        let (key, with) = (self.setting.key_in(case)?, self.with.key_in(case)?);
        let tree = toml::Value::try_from(case.run).expect("every value of a run file has a form in TOML");
        let (setting, with) = (self.setting.text(&tree, &key), self.with.text(&tree, &with));
        let message = format!("{setting} with {with}, {}", self.why);
        Some(case.at.error(self.slug, &key, &message).hint(self.hint.replace("{key}", &key)))
    }

    fn page(&self) -> ConflictPage {
        let is_one = !self.setting.key.contains('*');
        ConflictPage {
            setting: self.setting.name.into(),
            with: self.with.name.into(),
            why: self.why.into(),
            hint: self.hint.replace("{key}", if is_one { self.setting.key } else { "it" }),
            slug: self.slug,
            example: [self.setting.example, self.with.example].concat(),
        }
    }
}

impl Setting {
    fn key_in(&self, case: &Case) -> Option<String> {
        match self.holds {
            Holds::When(holds) => holds(case.run).then(|| self.key.to_string()),
            Holds::Which(find) => find(case),
        }
    }

    /// Returns the setting with its value of this run; its name where the value is a list, or a default that no file
    /// has.
    fn text(&self, tree: &toml::Value, key: &str) -> String {
        let step = |value: &'_ toml::Value, name: &str| match value {
            toml::Value::Array(items) => items.get(name.parse::<usize>().ok()?).cloned(),
            other => other.get(name).cloned(),
        };
        match key.split('.').try_fold(tree.clone(), |value, name| step(&value, name)) {
            Some(toml::Value::Table(_)) => format!("[{key}]"),
            Some(toml::Value::String(text)) => format!("{key} = \"{}\"", without_users(&shown(&text))),
            Some(toml::Value::Array(_)) if key == self.key => self.name.to_string(),
            None if key == self.key => self.name.to_string(),
            Some(toml::Value::Array(_)) | None => key.to_string(),
            Some(value) => format!("{key} = {value}"),
        }
    }
}

impl Case<'_> {
    /// True if a value of the key, or of a key in the section, was given.
    fn is_given(&self, key: &str) -> bool {
        let within =
            |name: &str| name == key || name.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'));
        self.at.origins.iter().any(|(name, origin)| within(name) && *origin != Origin::Method)
    }

    /// Returns the first of these keys that was given.
    fn given<K: Into<String>>(&self, keys: impl IntoIterator<Item = K>) -> Option<String> {
        keys.into_iter().map(K::into).find(|key| self.is_given(key))
    }
}

/// Returns the first of these keys for which its condition is true.
fn first<const N: usize>(keys: [(&str, bool); N]) -> Option<String> {
    keys.into_iter().find(|(_, is_so)| *is_so).map(|(key, _)| key.to_string())
}

/// True if a small network acts in environments.
fn is_policy(run: &RunFile) -> bool {
    run.trains() == Trains::Policy
}

/// True if a language model samples what it learns from.
fn samples(run: &RunFile) -> bool {
    run.method.spec().sampling.is_some() && !is_policy(run)
}

/// True if a language model plays episodes.
fn plays(run: &RunFile) -> bool {
    run.environment.is_some() && !is_policy(run)
}

/// True if a language model plays in such an environment.
fn plays_in(run: &RunFile, is_so: fn(&Kind) -> bool) -> bool {
    let kind = run.environment.as_ref().filter(|_| plays(run)).map(|of| Kind::parse(&of.env));
    kind.and_then(Result::ok).is_some_and(|kind| is_so(&kind))
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
    let (at, carry) = (Provenance::default(), rollout::CARRY.name);
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
        sections.entry(section.to_string()).or_default().push(row.page());
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
