//! YAML and JSON as flat settings: a nested key is `outer.inner`.

use super::shell::word::VARIABLE;
use super::source::Source;
use crate::setting::Setting;
use plimsoll_base::{Error, Result, Yaml, YamlFault, YamlValue, yaml_documents};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Longest path of a key: each line in a section repeats the section's path.
const PATH_BYTES_MAX: usize = 512;

/// Why a line cannot be read: it has no key that is a short word.
pub(crate) const NOT_YAML: &str = "not read as YAML";

/// Returns the path of `key` in the section `outer`; `None` if it is too long.
fn path_of(outer: &str, key: &str) -> Option<String> {
    let path = if outer.is_empty() { key.to_string() } else { format!("{outer}.{key}") };
    (path.len() <= PATH_BYTES_MAX).then_some(path)
}

/// Reads `key: value`, lists in brackets or with dashes; a nested key is `outer.inner`, one of a list `outer.0.inner`.
/// A file that is not YAML has no settings, unless its name ends as that of YAML does.
///
/// Errors: `import-unreadable`, with the line.
pub(crate) fn yaml(source: &Source<'_>) -> Result<Vec<Setting>> {
    let documents = match yaml_documents(source.text) {
        Ok(documents) => documents,
        Err(_) if !is_yaml(source.path) => return Ok(Vec::new()),
        Err(YamlFault { line, what }) => {
            let message = format!("{} is not YAML that is read here: line {line}: {what}", source.path);
            return Err(Error::usage("import-unreadable", message)
                .hint("mend the line: where half of a file is read, a job of other settings comes out"));
        }
    };
    let mut flat = Flat { lines: source.text.lines().collect(), given: Vec::new() };
    for document in documents {
        match document.value {
            YamlValue::Map(entries) => flat.section("", entries),
            // A file of words, or a list, has no keys.
            _ => flat.unread(document.line),
        }
    }
    Ok(flat.given)
}

fn is_yaml(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    [".yaml", ".yml"].iter().any(|ending| path.ends_with(ending))
}

/// The settings of a file of YAML as they are found.
struct Flat<'t> {
    lines: Vec<&'t str>,
    given: Vec<Setting>,
}

impl Flat<'_> {
    fn section(&mut self, outer: &str, entries: Vec<(Yaml<'_>, Yaml<'_>)>) {
        for (key, value) in entries {
            let line = key.line;
            let path = match key.value {
                YamlValue::Word { text, .. } => path_of(outer, &text),
                _ => None,
            };
            match path {
                Some(path) => self.entry(path, line, value),
                None => self.unread(line),
            }
        }
    }

    fn entry(&mut self, path: String, line: usize, value: Yaml<'_>) {
        match (value.in_brackets, value.value) {
            (Some(text), _) => self.given.push(Setting::new(path, on_one_line(text), line)),
            (None, YamlValue::Word { text, .. }) => self.given.push(Setting::new(path, text, line)),
            (None, YamlValue::Map(entries)) => self.section(&path, entries),
            (None, YamlValue::List(items)) => self.list(&path, line, items),
        }
    }

    /// Takes the words of a list together, and each of its tables as a section with a number.
    fn list(&mut self, path: &str, line: usize, items: Vec<Yaml<'_>>) {
        let (mut words, mut tables) = (Vec::new(), 0);
        for item in items {
            match (item.in_brackets, item.value) {
                (_, YamlValue::Map(entries)) => {
                    match path_of(path, &tables.to_string()) {
                        Some(path) => self.section(&path, entries),
                        None => self.unread(item.line),
                    }
                    tables += 1;
                }
                (None, YamlValue::Word { text, .. }) => words.push(text),
                (Some(text), _) => words.push(on_one_line(text)),
                (None, YamlValue::List(_)) => self.unread(item.line),
            }
        }
        if !words.is_empty() {
            self.given.push(Setting::new(path, words.join(", "), line));
        }
    }

    fn unread(&mut self, line: usize) {
        let content = self.lines.get(line.saturating_sub(1)).map_or("", |line| strip_comment(line).trim());
        self.given.push(Setting { unreadable: Some(NOT_YAML), ..Setting::new(content, "", line) });
    }
}

/// Returns the text of a collection in brackets without its line breaks and what indents its lines.
fn on_one_line(text: &str) -> String {
    text.lines().map(|line| strip_comment(line).trim()).collect::<Vec<_>>().join(" ")
}

pub(crate) fn json(text: &str) -> Option<Vec<Setting>> {
    let value: Value = serde_json::from_str(text).ok()?;
    let mut given = Vec::new();
    flatten("", value.as_object()?, &mut given);
    Some(given)
}

fn flatten(path: &str, object: &Map<String, Value>, given: &mut Vec<Setting>) {
    for (key, value) in object {
        let Some(key) = path_of(path, key) else {
            let unreadable = Some("its name is too long");
            given.push(Setting { unreadable, ..Setting::new(key.clone(), "", 0) });
            continue;
        };
        let value = match value {
            Value::Object(inner) => {
                flatten(&key, inner, given);
                continue;
            }
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        given.push(Setting::new(key, value, 0));
    }
}

/// Most bytes of all expanded references in a file: each use of a long value adds its length.
const FILLED_BYTES_MAX: usize = 16 << 20;
/// Deepest chain of references.
const DEPTH_MAX: usize = 8;

/// Expands `${path.of.another}`, `${oc.select:path.of.another,default}` and `${oc.env:NAME,default}` as OmegaConf does.
/// A reference to no value of the file is kept as written, and listed.
pub(crate) fn interpolate(mut given: Vec<Setting>) -> Vec<Setting> {
    let values: BTreeMap<String, String> =
        given.iter().map(|one| (one.key.clone(), one.value.clone())).collect();
    let mut left = FILLED_BYTES_MAX;
    for one in given.iter_mut().filter(|one| one.value.contains("${")) {
        match filled(&one.value, &values, &mut left, 0) {
            Some(value) => one.value = value,
            None => one.unreadable = Some(VARIABLE),
        }
    }
    given
}

/// Returns `text` with references expanded, adding at most `left` bytes.
fn filled(text: &str, values: &BTreeMap<String, String>, left: &mut usize, depth: usize) -> Option<String> {
    let (mut whole, mut rest) = (String::new(), text);
    // Once it is used up nothing more is expanded.
    *left = left.saturating_sub(text.len());
    while let Some((before, after)) = rest.split_once("${").filter(|_| *left > 0) {
        if depth == DEPTH_MAX {
            return None;
        }
        let close = closing_brace(after)?;
        whole += before;
        whole += &referenced(&after[..close], values, left, depth)?;
        rest = &after[close + 1..];
    }
    (*left > 0).then(|| whole + rest)
}

fn referenced(
    inside: &str,
    values: &BTreeMap<String, String>,
    left: &mut usize,
    depth: usize,
) -> Option<String> {
    let (resolver, rest) = inside.split_once(':').unwrap_or(("", inside));
    let (name, default) = match resolver {
        "" => (rest, None),
        _ => rest.split_once(',').map_or((rest, None), |(name, default)| (name, Some(default.trim()))),
    };
    let value = match resolver {
        "" | "oc.select" => values.get(name.trim()).cloned(),
        "oc.env" if name.trim() == "HOME" => Some(super::source::HOME.into()),
        "oc.env" => None,
        _ => return None,
    };
    filled(&value.or(default.map(str::to_string))?, values, left, depth + 1)
}

/// Returns where the brace that is open before `text` closes.
fn closing_brace(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.char_indices().find_map(|(index, c)| match c {
        '{' => {
            depth += 1;
            None
        }
        '}' if depth == 0 => Some(index),
        '}' => {
            depth -= 1;
            None
        }
        _ => None,
    })
}

/// Returns the text without a `#` comment outside quotes, at the start or after a space.
pub(super) fn strip_comment(line: &str) -> &str {
    let (mut quote, mut before) = (None, ' ');
    for (index, c) in line.char_indices() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            // An apostrophe within a word is no quote.
            (None, '\'' | '"') if !before.is_alphanumeric() => quote = Some(c),
            (None, '#') if before.is_whitespace() => return &line[..index],
            _ => {}
        }
        before = c;
    }
    line
}
