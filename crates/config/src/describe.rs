//! What there is to say about one key of the run file, for people.

use super::key::{Key, Resumes};
use super::schema::definition;
use super::sections::{resumes, row, rows};
use serde::Serialize;
use serde_json::Value;

/// One key of the run file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyPage {
    /// For example `rollout.group_size`.
    pub key: String,
    pub meaning: String,
    /// Its default as JSON; none of a key that must be given, or that follows from others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
    pub is_required: bool,
    /// The numbers that it takes, if not all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub takes: Option<String>,
    /// None of a key of an environment file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumes: Option<Resumes>,
    /// Its names in other stacks, as they may be written here.
    pub other_names: Vec<String>,
}

/// Returns what there is to say about a key of a run file or of an environment file, or about the key that a name of
/// another stack becomes.
pub fn describe(asked: &str) -> Option<KeyPage> {
    let schema = super::json_schema();
    let Some(key) = row(asked).or_else(|| rows().find(|key| key.other_names().any(|name| name == asked)))
    else {
        let of_run = of_schema(&schema, asked)
            .filter(|_| !asked.contains('.'))
            .map(|page| KeyPage { resumes: Some(resumes(asked)), ..page });
        return of_run.or_else(|| of_schema(&super::env_file::env_json_schema(), asked));
    };
    Some(KeyPage {
        is_required: key.is_required(),
        takes: key.takes().map(|numbers| numbers.words()),
        resumes: Some(key.resumes()),
        other_names: key.other_names().collect(),
        ..of_schema(&schema, key.path)?
    })
}

/// Returns what there is to say about each key of a section of the run file, in its order; none of another name.
pub fn describe_section(section: &str) -> Vec<KeyPage> {
    let of_section = |key: &String| key.rsplit_once('.').is_some_and(|(of, _)| of == section);
    super::keys().into_iter().filter(of_section).filter_map(|key| describe(&key)).collect()
}

/// Returns what a schema says of a key; nothing of a section.
fn of_schema(schema: &Value, path: &str) -> Option<KeyPage> {
    let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
    let mut sections = section.split('.').filter(|name| !name.is_empty());
    let table = sections.try_fold(schema, |table, name| definition(schema, &table["properties"][name]))?;
    let property = table["properties"].get(name)?;
    let is_section = |of: &Value| of.get("properties").is_some();
    if definition(schema, property).is_some_and(is_section) {
        return None;
    }
    let is_required = table["required"].as_array().is_some_and(|keys| keys.iter().any(|key| key == name));
    let meaning = property["description"].as_str().unwrap_or_default();
    Some(KeyPage {
        key: path.to_string(),
        meaning: meaning.split_whitespace().collect::<Vec<_>>().join(" "),
        default: property.get("default").filter(|value| !value.is_null()).cloned(),
        is_required,
        takes: None,
        resumes: None,
        other_names: Vec::new(),
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
        let resumes = self.resumes.map(|resumes| match resumes {
            Resumes::Never => "stays as the run began",
            Resumes::Freely => "may change: no bit depends on it",
            Resumes::Replanned => "may change with --replan, and with it the order of sums",
            Resumes::Stored => "stays as the checkpoint has it",
        });
        let names = (!self.other_names.is_empty()).then(|| self.other_names.join(", "));
        let rows = [
            ("default", Some(default)),
            ("takes", self.takes.clone()),
            ("on resume", resumes.map(str::to_string)),
            ("also read as", names),
        ];
        let lines = rows.into_iter().filter_map(|(name, value)| Some(format!("  {name:<13} {}\n", value?)));
        format!("{}\n\n{}\n\n{}", self.key, self.meaning, lines.collect::<String>())
    }
}

impl Key {
    fn other_names(&self) -> impl Iterator<Item = String> {
        let section = self.parts().0;
        self.names()
            .map(move |name| if name.contains('.') { name.to_string() } else { format!("{section}.{name}") })
    }
}
