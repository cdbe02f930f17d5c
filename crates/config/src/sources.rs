//! Where prompts come from: one place, or several with weights; and the sets that a run is evaluated on.

use super::provenance::Provenance;
use super::sections::{Data, RunFile};
use super::values::Expecting;
use plimsoll_base::{Error, Result};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

/// Sets of one list; a longer one is a mistake, and each set is a place in memory.
const SETS_MAX: usize = 64;
/// Letters of a name, which becomes part of a file's name.
const NAME_BYTES_MAX: usize = 64;
/// What `data.eval` says for no evaluation.
const NO_EVAL: &str = "none";

/// One data set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DataSet {
    /// A JSONL or Parquet file, or `builtin:TASK`.
    pub path: String,
    /// What it is called in metrics and file names; the file's name without its ending, or the task's, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its share of the prompts, against the weights of the other sets [1.0].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
}

/// A string is one data set; a list has several, each a string or a table.
#[derive(Clone, Debug, PartialEq)]
pub struct DataSets {
    sets: Vec<DataSet>,
    /// True for a string.
    is_one: bool,
}

impl DataSet {
    /// Its weight.
    pub fn weight(&self) -> f64 {
        self.weight.unwrap_or(1.0)
    }

    /// True for a task of this program.
    pub fn is_builtin(&self) -> bool {
        self.path.starts_with("builtin:")
    }

    fn name(&self) -> String {
        let stem = || match self.path.strip_prefix("builtin:") {
            Some(task) => task.to_string(),
            None => Path::new(&self.path).file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        };
        self.name.clone().unwrap_or_else(stem)
    }
}

impl DataSets {
    /// One set.
    pub fn one(path: impl Into<String>) -> DataSets {
        DataSets { sets: vec![DataSet { path: path.into(), ..DataSet::default() }], is_one: true }
    }

    /// The sets, at least one of a checked run file.
    pub fn sets(&self) -> &[DataSet] {
        &self.sets
    }

    /// True if the run file gives a string.
    pub fn is_one(&self) -> bool {
        self.is_one
    }

    /// Each set under its name: that of a lone one is its path.
    pub fn named(&self) -> impl Iterator<Item = (String, &DataSet)> {
        self.sets.iter().map(|set| (if self.is_one { set.path.clone() } else { set.name() }, set))
    }
}

impl Data {
    /// What a run or a verb is evaluated on, under its name: `data.eval`, else the test sets of the built-in tasks in
    /// `data.prompts`.
    pub fn eval_sets(&self) -> Vec<(String, String)> {
        let of = |sets: &DataSets, wanted: &dyn Fn(&DataSet) -> bool| {
            let sets = sets.named().filter(|(_, set)| wanted(set));
            sets.map(|(name, set)| (name, set.path.clone())).collect()
        };
        match (&self.eval, &self.prompts) {
            _ if self.asks_no_eval() => Vec::new(),
            (Some(eval), _) => of(eval, &|_| true),
            (None, Some(prompts)) => of(prompts, &DataSet::is_builtin),
            (None, None) => Vec::new(),
        }
    }

    /// True if `data.eval` says that there is no evaluation.
    pub fn asks_no_eval(&self) -> bool {
        self.eval.as_ref().is_some_and(|eval| eval.is_one && eval.sets[0].path == NO_EVAL)
    }

    /// Paths of all data files.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        let sets = [&self.prompts, &self.eval].into_iter().flatten().flat_map(|sets| sets.sets.iter());
        sets.filter(|set| !set.is_builtin() && set.path != NO_EVAL).map(|set| set.path.as_str())
    }
}

impl RunFile {
    /// What the run is evaluated on, under its name; a test set of its own only with a reward or pairs to measure by.
    pub fn eval_sets(&self) -> Vec<(String, String)> {
        if let Some(environment) = self.environment.as_ref().filter(|_| !self.data.asks_no_eval()) {
            // Its episodes of evaluation are a set under its name.
            return vec![(environment.env.clone(), environment.env.clone())];
        }
        let measures = self.method.has_pairs() || !self.reward.is_empty();
        match (&self.data.eval, measures) {
            (None, false) => Vec::new(),
            _ => self.data.eval_sets(),
        }
    }
}

/// Checks the sets of `key`; those of an evaluation have no weights.
pub(super) fn check(sets: &DataSets, key: &str, weighted: bool, at: &Provenance) -> Result<()> {
    let bad = |key: &str, what: String, hint: &str| {
        Err(at.error("bad-value", key, &format!("`{key}` {what}")).hint(hint))
    };
    if sets.sets.is_empty() {
        return bad(key, "is an empty list".into(), "name a data set, or remove it");
    }
    if sets.sets.len() > SETS_MAX {
        return bad(
            key,
            format!("has {} sets; it takes {SETS_MAX}", sets.sets.len()),
            "join some of the files",
        );
    }
    let mut names = BTreeSet::new();
    for (index, (name, set)) in sets.named().enumerate() {
        let place = if sets.is_one { key.to_string() } else { format!("{key}.{index}") };
        if set.path.is_empty() {
            return bad(&place, "is empty".into(), "give it a value, or remove it");
        }
        if sets.is_one {
            continue;
        }
        let weight = format!("{place}.weight");
        match set.weight {
            Some(_) if !weighted => {
                let message = format!("`{weight}` is set, but an evaluation samples every prompt of a set");
                return Err(at.error("contradictory-keys", &weight, &message).hint("remove it"));
            }
            Some(value) if !(value > 0.0 && value.is_finite()) => {
                let takes = "a finite number above 0";
                return bad(
                    &weight,
                    format!("is {value}; it takes {takes}"),
                    "remove a set that is not wanted",
                );
            }
            _ => {}
        }
        check_name(&name, &place, at)?;
        if !names.insert(name.clone()) {
            let message = format!("`{key}` has two sets with the name `{name}`");
            return Err(at
                .error("data-same-name", &place, &message)
                .hint(format!("give one of them another: {{ path = \"{}\", name = \"...\" }}", set.path)));
        }
    }
    Ok(())
}

/// A name becomes part of a metric's and of a file's name.
fn check_name(name: &str, place: &str, at: &Provenance) -> Result<()> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.starts_with('.') && name.chars().all(fits) {
        return Ok(());
    }
    let key = format!("{place}.name");
    let message =
        format!("`{key}` is `{name}`; it takes up to {NAME_BYTES_MAX} letters, digits, `.`, `_` and `-`");
    Err(at.error("bad-value", &key, &message).hint("give the set a name: { path = \"...\", name = \"...\" }"))
}

impl From<&str> for DataSets {
    fn from(path: &str) -> DataSets {
        DataSets::one(path)
    }
}

impl Expecting for DataSets {
    const EXPECTING: &'static str = "a data set or a list of them";
}

impl Serialize for DataSets {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self.is_one {
            true => serializer.serialize_str(&self.sets[0].path),
            false => self.sets.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for DataSets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(SetsVisitor)
    }
}

struct SetsVisitor;

impl<'de> Visitor<'de> for SetsVisitor {
    type Value = DataSets;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(DataSets::EXPECTING)
    }

    fn visit_str<E: de::Error>(self, path: &str) -> std::result::Result<DataSets, E> {
        Ok(DataSets::one(path))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<DataSets, A::Error> {
        let mut sets = Vec::new();
        while let Some(Entry(set)) = list.next_element()? {
            sets.push(set);
        }
        Ok(DataSets { sets, is_one: false })
    }
}

/// An element of a list: a table, or a path alone.
struct Entry(DataSet);

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(EntryVisitor)
    }
}

struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a path, or a table with `path`")
    }

    fn visit_str<E: de::Error>(self, path: &str) -> std::result::Result<Entry, E> {
        Ok(Entry(DataSet { path: path.into(), ..DataSet::default() }))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> std::result::Result<Entry, A::Error> {
        DataSet::deserialize(MapAccessDeserializer::new(map)).map(Entry)
    }
}

impl JsonSchema for DataSets {
    fn schema_name() -> Cow<'static, str> {
        "DataSets".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let table = generator.subschema_for::<DataSet>();
        json_schema!({ "anyOf": [
            { "type": "string" },
            { "type": "array", "minItems": 1, "maxItems": SETS_MAX, "items": { "anyOf": [{ "type": "string" }, table] } },
        ] })
    }
}

/// The error of a list whose filter or order needs rows of a file.
pub fn no_rows_to_filter(name: &str, column: &str) -> Error {
    Error::new("data-column-missing", format!("{name}: a task has no column `{column}`"))
        .hint("remove data.pass_rate_column, or give prompts as a file")
}
