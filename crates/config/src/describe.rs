//! What there is to say about one key of the run file, for people.

use super::key::{Key, Resumes};
use super::schema::definition;
use super::sections::{row, rows};
use serde::Serialize;
use serde_json::Value;

/// One key of the run file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyPage {
    /// For example `rollout.group_size`.
    pub key: String,
    /// What it means.
    pub meaning: String,
    /// Its default as JSON; none of a key that must be given, or that follows from others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
    pub is_required: bool,
    /// The numbers that it takes, if not all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub takes: Option<String>,
    pub resumes: Resumes,
    /// What other stacks call it, as it may be written here.
    pub other_names: Vec<String>,
}

/// Returns what there is to say about a key of a section, or about the key that a name of another stack becomes.
pub fn describe(asked: &str) -> Option<KeyPage> {
    let key = row(asked).or_else(|| rows().find(|key| key.other_names().any(|name| name == asked)))?;
    let (section, name) = key.parts();
    let schema = super::json_schema();
    let table = section
        .split('.')
        .try_fold(&schema, |table, name| definition(&schema, &table["properties"][name]))?;
    let property = &table["properties"][name];
    Some(KeyPage {
        key: key.path.to_string(),
        meaning: property["description"]
            .as_str()
            .unwrap_or_default()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" "),
        default: property.get("default").filter(|value| !key.is_required() && !value.is_null()).cloned(),
        is_required: key.is_required(),
        takes: key.takes().map(|numbers| numbers.words()),
        resumes: key.resumes(),
        other_names: key.other_names().collect(),
    })
}

impl KeyPage {
    /// Formats it for people.
    pub fn text(&self) -> String {
        let default = match &self.default {
            _ if self.is_required => "none: it must be given".to_string(),
            Some(value) => value.to_string(),
            None => "absent".to_string(),
        };
        let resumes = match self.resumes {
            Resumes::Never => "stays as the run began",
            Resumes::Freely => "may change: no bit depends on it",
            Resumes::Replanned => "may change with --replan, and with it the order of sums",
            Resumes::Stored => "stays as the checkpoint has it",
        };
        let names = (!self.other_names.is_empty()).then(|| self.other_names.join(", "));
        let rows = [
            ("default", Some(default)),
            ("takes", self.takes.clone()),
            ("on resume", Some(resumes.to_string())),
            ("also read as", names),
        ];
        let lines = rows.into_iter().filter_map(|(name, value)| Some(format!("  {name:<13} {}\n", value?)));
        format!("{}\n\n{}\n\n{}", self.key, self.meaning, lines.collect::<String>())
    }
}

impl Key {
    fn other_names(&self) -> impl Iterator<Item = String> {
        let section = self.parts().0;
        self.names().map(move |name| match name.contains('.') {
            true => name.to_string(),
            false => format!("{section}.{name}"),
        })
    }
}
