//! Deserialization of the tree into the table of types: serde's errors become named errors that point at the line.

use super::aliases;
use super::provenance::{Origin, Source};
use super::tree::{Node, Table, Value};
use plimsoll_base::{Error, shown, shown_number};
use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, Expected, IntoDeserializer, Unexpected, Visitor,
};
use std::fmt;

/// Reads `root` into `T`.
///
/// Errors: `unknown-key`, `missing-key`, `bad-type`, `bad-value`, each at its place.
pub(super) fn read<T: DeserializeOwned>(root: &Table, source: &Source) -> plimsoll_base::Result<T> {
    let reader = Reader::Table { table: root, path: String::new() };
    T::deserialize(reader).map_err(|failure| failure.into_error(source))
}

/// An error of serde, and its place.
#[derive(Debug)]
struct Failure {
    what: What,
    at: Option<(String, Origin)>,
}

#[derive(Debug)]
enum What {
    UnknownKey { key: String, known: &'static [&'static str] },
    Missing { key: &'static str },
    Type { got: String, expected: String },
    Value { got: String, expected: String },
    UnknownName { got: String, known: &'static [&'static str] },
    Other(String),
}

impl Failure {
    fn new(what: What) -> Failure {
        Failure { what, at: None }
    }

    /// Sets the place, unless an inner one is already set.
    fn at(mut self, path: &str, origin: &Origin) -> Failure {
        self.at.get_or_insert_with(|| (path.to_string(), origin.clone()));
        self
    }

    fn into_error(self, source: &Source) -> Error {
        let (path, origin) = self.at.unwrap_or_default();
        match self.what {
            What::UnknownKey { key, known } => unknown_key(source, &origin, &path, &key, known),
            What::Missing { key } => missing_key(source, &origin, &join(&path, key)),
            What::Type { got, expected } => source
                .error("bad-type", &origin, &format!("`{path}` is {got}; it takes {expected}"))
                .hint(match (got.as_str(), expected.as_str()) {
                    ("a table", "a list") => format!("write [[{path}]], with two brackets"),
                    _ => format!("write `{}` as {expected}", last(&path)),
                }),
            What::Value { got, expected } => {
                // Serde's words quote the value and the names.
                let known: Vec<&str> = expected.split('"').skip(1).step_by(2).collect();
                let value = got.split('"').nth(1).unwrap_or_default();
                let hint = aliases::value_hint(&path, value, &known);
                source
                    .error("bad-value", &origin, &format!("`{path}` is {got}; it takes {expected}"))
                    .hint(hint.unwrap_or_else(|| format!("set `{path}` to {expected}")))
            }
            What::UnknownName { got, known } => {
                let error = source
                    .error(
                        "bad-value",
                        &origin,
                        &format!("`{path}` is \"{got}\", which is none of its names"),
                    )
                    .fact(format!("`{path}` takes {}", known.join(", ")));
                if let Some(hint) = aliases::value_hint(&path, &got, known) {
                    return error.hint(hint);
                }
                match nearest(&got, known.iter().copied()) {
                    Some(name) => error.hint(format!("did you mean \"{name}\"?")),
                    None => error.hint(format!("set `{path}` to one of these names")),
                }
            }
            What::Other(words) => source.error("bad-value", &origin, &format!("`{path}`: {words}")),
        }
    }
}

fn unknown_key(
    source: &Source,
    origin: &Origin,
    section: &str,
    key: &str,
    known: &'static [&'static str],
) -> Error {
    let path = join(section, key);
    let file = source.kind.name;
    let error = source.error("unknown-key", origin, &format!("`{path}` is not a key of {file}"));
    let place = if section.is_empty() { "the top level".to_string() } else { format!("[{section}]") };
    let error = error.fact(format!("keys of {place}: {}", known.join(", ")));
    // A file of another kind, such as a collector's, has none of these keys.
    let is_run_file = (source.kind.keys)().iter().any(|key| key == "train.steps");
    if let Some(hint) = aliases::hint(section, key).filter(|_| is_run_file) {
        return error.hint(hint);
    }
    if let Some(name) = nearest(key, known.iter().copied()) {
        return error.hint(format!("did you mean `{}`?", join(section, name)));
    }
    if let Some(name) = shortened(key, known.iter().copied()) {
        return error.hint(format!("did you mean `{}`?", join(section, name)));
    }
    match elsewhere(key, &(source.kind.keys)()) {
        Some(other) if last(&other) == key => error.hint(format!("`{key}` belongs elsewhere: `{other}`")),
        Some(other) => error.hint(format!("did you mean `{other}`?")),
        None => error.hint(format!("remove `{key}`")),
    }
}

pub(super) fn missing_key(source: &Source, origin: &Origin, path: &str) -> Error {
    let example = match path {
        "method" => "method = \"grpo\"",
        "model" => "model = \"builtin:nano\"",
        "train" => "a section [train] with `steps = 60` and `learning_rate = 1e-5`",
        "train.steps" => "steps = 60",
        "train.learning_rate" => "learning_rate = 1e-5",
        "data.prompts" => "prompts = \"builtin:addition\" or a JSONL file",
        "reward" => "[[reward]] with `kind = \"exact\"`",
        "data.prompt_tokens_max" => "prompt_tokens_max = 512",
        "env" => "env = \"CartPole-v1\"",
        "num_envs" => "num_envs = 64",
        "frames_per_batch" => "frames_per_batch = 8192",
        "preemptive_threshold" => "preemptive_threshold = 0.8",
        "episode_frames_max" => "episode_frames_max = 1000",
        "replay.capacity" => "capacity = 1048576",
        _ => "the key",
    };
    let place = match path.rsplit_once('.') {
        Some((section, _)) if path.starts_with("reward.") => format!(" to the reward `{section}`"),
        Some((section, _)) => format!(" under [{section}]"),
        None => String::new(),
    };
    // A section is no value of `--set`.
    let is_section = super::sections::rows().any(|key| key.parts().0 == path);
    let set = if is_section { String::new() } else { format!("; `--set {path}=VALUE` does it too") };
    source
        .error("missing-key", origin, &format!("`{path}` is missing"))
        .hint(format!("add {example}{place}{set}"))
}

/// Returns the name that `word` was most likely meant to be.
pub(super) fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_ascii_lowercase().replace('-', "_");
    names
        .map(|name| (strsim::damerau_levenshtein(&lower, &name.replace('-', "_")), name))
        .min()
        // Up to a third of the letters may be wrong.
        .filter(|&(distance, name)| distance <= (name.len() / 3).max(1))
        .map(|(_, name)| name)
}

/// Returns the one name that `word` shortens: by the first letters of its words (`lr`), by its beginning (`temp`), or
/// by some of its words (`max_tokens`).
fn shortened<'a>(word: &str, names: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    const BEGINNING_MIN: usize = 3;
    let word = word.to_ascii_lowercase().replace('-', "_");
    let only = |fits: &dyn Fn(&str) -> bool| {
        let mut found = names.clone().filter(|name| fits(name));
        found.next().filter(|_| found.next().is_none())
    };
    let initials = |name: &str| name.split('_').filter_map(|part| part.chars().next()).collect::<String>();
    let has_all = |name: &str| word.split('_').all(|part| name.split('_').any(|own| own == part));
    only(&|name| name.contains('_') && initials(name) == word)
        .or_else(|| only(&|name| word.len() >= BEGINNING_MIN && name.starts_with(&word)))
        .or_else(|| only(&|name| word.contains('_') && has_all(name)))
}

/// Returns the key among `keys` that is called `word`, in whole or by its last name, or that `word` shortens: one of
/// [train] before others, because several sections have a `learning_rate`.
pub(super) fn elsewhere(word: &str, keys: &[String]) -> Option<String> {
    let is_named = |key: &&String| *key == word || last(key) == word;
    let of_train = || keys.iter().filter(|key| key.starts_with("train."));
    if let Some(key) = of_train().find(is_named).or_else(|| keys.iter().find(is_named)) {
        return Some(key.clone());
    }
    let name = shortened(word, of_train().map(|key| last(key)))
        .or_else(|| shortened(word, keys.iter().map(|key| last(key))))?;
    of_train().chain(keys).find(|key| last(key) == name).cloned()
}

fn join(section: &str, key: &str) -> String {
    if section.is_empty() { key.to_string() } else { format!("{section}.{key}") }
}

fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// Converts serde's description of a field's type to the words of run files.
fn expected_words(expected: &dyn Expected) -> String {
    let words = expected.to_string();
    match words.as_str() {
        "u32" => "a whole number from 0 to 4294967295".into(),
        "u64" | "usize" => "a whole number that is not negative".into(),
        "f64" | "f32" => "a number".into(),
        "a boolean" => "true or false".into(),
        "a sequence" => "a list".into(),
        "an array of length 2" => "a list of 2 numbers".into(),
        "an array of length 3" => "a list of 3 numbers".into(),
        _ if words.starts_with("struct ") => "a table".into(),
        _ => words,
    }
}

fn unexpected_words(got: Unexpected<'_>) -> String {
    match got {
        Unexpected::Str(text) => format!("the string \"{}\"", shown(text)),
        Unexpected::Signed(number) => format!("the whole number {number}"),
        Unexpected::Unsigned(number) => format!("the whole number {number}"),
        Unexpected::Float(number) => format!("the number {}", shown_number(number)),
        Unexpected::Bool(value) => format!("{value}"),
        Unexpected::Map => "a table".into(),
        Unexpected::Seq => "a list".into(),
        other => other.to_string(),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.what)
    }
}

impl std::error::Error for Failure {}

impl de::Error for Failure {
    fn custom<T: fmt::Display>(words: T) -> Failure {
        Failure::new(What::Other(words.to_string()))
    }

    fn invalid_type(got: Unexpected<'_>, expected: &dyn Expected) -> Failure {
        Failure::new(What::Type { got: unexpected_words(got), expected: expected_words(expected) })
    }

    fn invalid_value(got: Unexpected<'_>, expected: &dyn Expected) -> Failure {
        Failure::new(What::Value { got: unexpected_words(got), expected: expected_words(expected) })
    }

    fn invalid_length(len: usize, expected: &dyn Expected) -> Failure {
        Failure::new(What::Value { got: format!("a list of {len}"), expected: expected_words(expected) })
    }

    fn unknown_variant(got: &str, known: &'static [&'static str]) -> Failure {
        Failure::new(What::UnknownName { got: got.to_string(), known })
    }

    fn unknown_field(key: &str, known: &'static [&'static str]) -> Failure {
        Failure::new(What::UnknownKey { key: key.to_string(), known })
    }

    fn missing_field(key: &'static str) -> Failure {
        Failure::new(What::Missing { key })
    }
}

/// One value as serde reads it.
enum Reader<'a> {
    Table {
        table: &'a Table,
        path: String,
    },
    /// Anything below the root.
    Node {
        node: &'a Node,
        path: String,
    },
}

impl Reader<'_> {
    /// The value as text: a string, or what was typed where a string is expected but TOML read a number.
    fn text(&self) -> Option<&str> {
        match self {
            Reader::Node { node: Node { value: Value::Text(text), .. }, .. } => Some(text),
            Reader::Node { node: Node { value: Value::Table(_) | Value::Array(_), .. }, .. } => None,
            Reader::Node { node, .. } => node.origin.raw_text(),
            Reader::Table { .. } => None,
        }
    }

    fn unexpected(&self) -> Unexpected<'_> {
        match self {
            Reader::Table { .. } => Unexpected::Map,
            Reader::Node { node, .. } => match &node.value {
                Value::Text(text) => Unexpected::Str(text),
                Value::Integer(number) => Unexpected::Signed(*number),
                Value::Float(number) => Unexpected::Float(*number),
                Value::Boolean(value) => Unexpected::Bool(*value),
                Value::DateTime(_) => Unexpected::Other("a date"),
                Value::Array(_) => Unexpected::Seq,
                Value::Table(_) => Unexpected::Map,
            },
        }
    }
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Failure;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match self {
            Reader::Table { table, path } => visitor.visit_map(Entries { table, path, next: 0 }),
            Reader::Node { node, path } => match &node.value {
                Value::Text(text) => visitor.visit_str(text),
                Value::Integer(number) => visitor.visit_i64(*number),
                Value::Float(number) => visitor.visit_f64(*number),
                Value::Boolean(value) => visitor.visit_bool(*value),
                Value::DateTime(_) => Err(de::Error::invalid_type(Unexpected::Other("a date"), &visitor)),
                Value::Array(items) => {
                    let mut access = Items { items, path, next: 0 };
                    let value = visitor.visit_seq(&mut access)?;
                    // Serde's fixed-size arrays stop reading when they are full.
                    if access.next == items.len() {
                        Ok(value)
                    } else {
                        Err(de::Error::invalid_length(items.len(), &"a list of 2 numbers"))
                    }
                }
                Value::Table(table) => visitor.visit_map(Entries { table, path, next: 0 }),
            },
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_some(self)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match self.text() {
            Some(text) => visitor.visit_str(text),
            None => self.deserialize_any(visitor),
        }
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match self {
            Reader::Node { node: Node { value: Value::Integer(number), .. }, .. } => {
                visitor.visit_f64(*number as f64)
            }
            other => other.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        match self.text() {
            Some(text) => {
                let name: StrDeserializer<'_, Failure> = text.into_deserializer();
                visitor.visit_enum(name)
            }
            None => {
                let expected = format!("one of the names {}", names.join(", "));
                Err(Failure::new(What::Type { got: unexpected_words(self.unexpected()), expected }))
            }
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 char str bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

struct Entries<'a> {
    table: &'a Table,
    path: String,
    next: usize,
}

impl<'de> de::MapAccess<'de> for Entries<'_> {
    type Error = Failure;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Failure> {
        let Some((key, node)) = self.table.0.get(self.next) else { return Ok(None) };
        let name: StrDeserializer<'_, Failure> = key.as_str().into_deserializer();
        seed.deserialize(name).map(Some).map_err(|failure| failure.at(&self.path, &node.origin))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Failure> {
        let (key, node) = &self.table.0[self.next];
        self.next += 1;
        let path = join(&self.path, key);
        seed.deserialize(Reader::Node { node, path: path.clone() })
            .map_err(|failure| failure.at(&path, &node.origin))
    }
}

struct Items<'a> {
    items: &'a [Node],
    path: String,
    next: usize,
}

impl<'de> de::SeqAccess<'de> for Items<'_> {
    type Error = Failure;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Failure> {
        let Some(node) = self.items.get(self.next) else { return Ok(None) };
        let path = format!("{}.{}", self.path, self.next);
        self.next += 1;
        let reader = Reader::Node { node, path: path.clone() };
        seed.deserialize(reader).map(Some).map_err(|failure| failure.at(&path, &node.origin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_by_what_people_shorten_them_to() {
        let keys = [
            "loss.lambda",
            "critic.learning_rate",
            "train.learning_rate",
            "train.weight_decay",
            "rollout.max_new_tokens",
        ];
        let keys = keys.map(str::to_string);
        for (word, key) in [
            ("lr", Some("train.learning_rate")),
            ("wd", Some("train.weight_decay")),
            ("loss.lambda", Some("loss.lambda")),
            ("lambda", Some("loss.lambda")),
            ("max_tokens", Some("rollout.max_new_tokens")),
            ("weight", Some("train.weight_decay")),
            ("l", None),
            ("tokens", None),
        ] {
            assert_eq!(elsewhere(word, &keys).as_deref(), key, "{word}");
        }
    }
}
