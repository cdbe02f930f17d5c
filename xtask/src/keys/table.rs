//! The table: small runs, and for each run file key a value that must change something in one of them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

const TABLE: &str = include_str!("table.toml");

/// A small run in which keys are tried.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Base {
    /// Run file, from the root of the repository.
    pub run: String,
    /// Settings of all its runs.
    #[serde(default)]
    pub set: Vec<String>,
    /// True if it needs the interpreter PLIMSOLL_TEST_PYTHON, which has gymnasium.
    #[serde(default)]
    pub gymnasium: bool,
    #[serde(default)]
    pub keys: BTreeMap<String, Trial>,
}

/// A value, and where its effect must show. Exactly one of `plan`, `bits`, `output` and `ends` is set, as TOML.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// Numbers or rows of the plan differ.
    pub plan: Option<String>,
    /// Weights, optimizer states or samples differ.
    pub bits: Option<String>,
    /// Events, the summary or files of the run directory differ.
    pub output: Option<String>,
    /// The run ends with the error `slug`.
    pub ends: Option<String>,
    pub slug: Option<String>,
    /// Settings of both the base and the changed run for this trial.
    #[serde(default)]
    pub with: Vec<String>,
    /// Further bases for the same trial: a key may matter to one trainer only.
    #[serde(default)]
    pub also: Vec<String>,
    /// Why a range check is all that the key can do.
    pub why: Option<String>,
}

/// Where an effect must show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Plan,
    Bits,
    Output,
    Ends(String),
}

impl Seen {
    pub fn name(&self) -> &str {
        match self {
            Seen::Plan => "plan",
            Seen::Bits => "bits",
            Seen::Output => "output",
            Seen::Ends(slug) => slug,
        }
    }
}

/// A row: a key, the base it is tried in, and the value.
#[derive(Clone, Debug)]
pub struct Row {
    pub key: String,
    pub base: String,
    pub value: String,
    pub seen: Seen,
    pub with: Vec<String>,
    #[cfg_attr(not(test), expect(dead_code, reason = "a test reads it"))]
    pub why: Option<String>,
}

/// The content of the table.
#[derive(Debug)]
pub struct Table {
    /// Files that runs read, by name.
    pub files: BTreeMap<String, String>,
    /// Runs made first, whose directories others read; by name.
    pub before: BTreeMap<String, Base>,
    pub bases: BTreeMap<String, Base>,
    /// Keys that cannot be tried here, with the reason.
    pub untried: BTreeMap<String, String>,
    pub rows: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    files: BTreeMap<String, String>,
    #[serde(default)]
    untried: BTreeMap<String, String>,
    before: BTreeMap<String, Base>,
    base: BTreeMap<String, Base>,
}

impl Table {
    /// Reads this repository's table. Errors, as text: an invalid row.
    pub fn read() -> Result<Table, String> {
        Table::parse(TABLE)
    }

    fn parse(text: &str) -> Result<Table, String> {
        let text: Text = toml::from_str(text).map_err(|err| err.to_string())?;
        let mut rows = Vec::new();
        for (base, of) in &text.base {
            for (key, trial) in &of.keys {
                for base in std::iter::once(base).chain(&trial.also) {
                    let is_known = text.base.contains_key(base);
                    let row = row(base, key, trial).filter(|_| is_known);
                    rows.push(row.ok_or_else(|| format!("{base}: {key}: {trial:?}"))?);
                }
            }
        }
        // Rows with the same base and `with` are adjacent: their base runs once.
        rows.sort_by(|a: &Row, b: &Row| (&a.base, &a.with).cmp(&(&b.base, &b.with)));
        Ok(Table { files: text.files, before: text.before, bases: text.base, untried: text.untried, rows })
    }

    /// Returns the program's keys without a row, and the rows' keys that the program lacks.
    pub fn strangers(&self, keys: &[String]) -> (Vec<String>, Vec<String>) {
        let known: BTreeSet<&str> = keys.iter().map(String::as_str).collect();
        let rows = self.rows.iter().map(|row| &row.key);
        let tried: BTreeSet<&str> = rows.chain(self.untried.keys()).map(String::as_str).collect();
        let texts = |names: BTreeSet<&str>| names.into_iter().map(str::to_string).collect();
        (texts(&known - &tried), texts(&tried - &known))
    }
}

fn row(base: &str, key: &str, trial: &Trial) -> Option<Row> {
    let ends = trial.slug.clone().map_or(Seen::Ends(String::new()), Seen::Ends);
    let values = [
        (&trial.plan, Seen::Plan),
        (&trial.bits, Seen::Bits),
        (&trial.output, Seen::Output),
        (&trial.ends, ends),
    ];
    let mut given = values.into_iter().filter_map(|(value, seen)| Some((value.clone()?, seen)));
    let (value, seen) = given.next()?;
    let is_whole = given.next().is_none() && matches!(seen, Seen::Ends(_)) == trial.slug.is_some();
    is_whole.then(|| Row {
        key: key.into(),
        base: base.into(),
        value,
        seen,
        with: trial.with.clone(),
        why: trial.why.clone(),
    })
}

/// Returns the key's name for `--set`: the first reward is the one changed.
pub fn set_name(key: &str) -> String {
    match key.strip_prefix("reward.") {
        Some(rest) => format!("reward.0.{rest}"),
        None => key.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_and_every_refusal_is_one_of_an_effect() {
        let table = Table::read().expect("it is understood");
        assert!(table.rows.len() > 100);
        for row in &table.rows {
            // That a value is checked is no effect: `train.adam_epsilon` was checked while it was ignored.
            let is_checked_only = matches!(&row.seen, Seen::Ends(slug) if slug.starts_with("bad-"));
            assert_eq!(is_checked_only, row.why.is_some(), "{row:?}");
        }
    }

    #[test]
    fn keys_without_a_row_and_rows_without_a_key_are_named() {
        let text =
            "[files]\n[before]\n[base.a]\nrun = \"r\"\n[base.a.keys]\n\"train.x\" = { bits = \"1\" }\n";
        let table = Table::parse(text).expect("it is understood");
        let keys = ["train.x", "train.y"].map(str::to_string);
        assert_eq!(table.strangers(&keys), (vec!["train.y".into()], vec![]));
        assert_eq!(table.strangers(&keys[1..]).1, ["train.x"]);
        for bad in
            ["{ }", "{ bits = \"1\", plan = \"1\" }", "{ ends = \"1\" }", "{ bits = \"1\", slug = \"s\" }"]
        {
            assert!(Table::parse(&text.replace("{ bits = \"1\" }", bad)).is_err(), "{bad}");
        }
        assert_eq!(set_name("reward.weight"), "reward.0.weight");
    }
}
