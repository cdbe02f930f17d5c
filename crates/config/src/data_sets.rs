//! Data sets as a run file names them: one, or a list with weights.

use super::values::Expecting;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::path::Path;

/// Largest number of sets in a list; each takes memory.
pub(super) const SETS_MAX: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Serialize, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DataSet {
    /// A JSONL or Parquet file, `hf:org/name/SUBSET/SPLIT`, or `builtin:TASK`.
    pub path: String,
    /// Its name in metrics and file names; the file's name without its ending, or the task's, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its share of the prompts, against the weights of the other sets [1.0].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
}

/// One data set as a string, or a list of several, each a string or a table.
#[derive(Clone, Debug, PartialEq)]
pub struct DataSets {
    pub(super) sets: Vec<DataSet>,
    /// True if it was given as a string.
    pub(super) is_one: bool,
}

impl DataSet {
    pub fn weight(&self) -> f64 {
        self.weight.unwrap_or(1.0)
    }

    /// True for a built-in task.
    pub fn is_builtin(&self) -> bool {
        self.path.starts_with("builtin:")
    }

    /// True for a data set of the hub.
    pub fn is_hub(&self) -> bool {
        self.path.starts_with("hf:")
    }

    fn name(&self) -> String {
        let stem = || match self.path.strip_prefix("builtin:") {
            Some(task) => task.to_string(),
            None if self.is_hub() => {
                let name = self.path.split('/').nth(1).unwrap_or_default();
                name.split('@').next().unwrap_or_default().to_string()
            }
            None => Path::new(&self.path).file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        };
        self.name.clone().unwrap_or_else(stem)
    }
}

impl DataSets {
    pub fn one(path: impl Into<String>) -> DataSets {
        DataSets { sets: vec![DataSet { path: path.into(), ..DataSet::default() }], is_one: true }
    }

    /// Returns the sets, at least one in a checked run file.
    pub fn sets(&self) -> &[DataSet] {
        &self.sets
    }

    /// Returns the sets, for names that become files.
    pub fn each_mut(&mut self) -> impl Iterator<Item = &mut DataSet> {
        self.sets.iter_mut()
    }

    /// True if the run file gives a string.
    pub fn is_one(&self) -> bool {
        self.is_one
    }

    /// Returns each set with its name; the name of a single one is its path.
    pub fn named(&self) -> impl Iterator<Item = (String, &DataSet)> {
        let of_one = |set: &DataSet| set.name.clone().unwrap_or_else(|| set.path.clone());
        self.sets.iter().map(move |set| (if self.is_one { of_one(set) } else { set.name() }, set))
    }
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
        if self.is_one {
            serializer.serialize_str(&self.sets[0].path)
        } else {
            self.sets.serialize(serializer)
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
