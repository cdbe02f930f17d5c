//! YAML and JSON as flat settings: a nested key is `outer.inner`.

use super::shell::word::VARIABLE;
use crate::setting::{Setting, unquote};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Longest path of a key: each line in a section repeats the section's path.
const PATH_BYTES_MAX: usize = 512;

/// Why a line cannot be read: it has no key, and may belong to the value of a key before it.
pub(crate) const NOT_YAML: &str = "not read as YAML";

/// Returns the path of `key` in the section `outer`; `None` if it is too long.
fn path_of(outer: &str, key: &str) -> Option<String> {
    let path = if outer.is_empty() { key.to_string() } else { format!("{outer}.{key}") };
    (path.len() <= PATH_BYTES_MAX).then_some(path)
}

/// Reads `key: value`, lists in brackets or with dashes; a nested key is `outer.inner`, one of a list `outer.0.inner`.
pub(crate) fn yaml(text: &str) -> Vec<Setting> {
    let mut given: Vec<Setting> = Vec::new();
    let mut outer: Vec<(usize, String)> = Vec::new();
    // The number of tables in each list.
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let (content, line) = (strip_comment(line), index + 1);
        let (indent, content) = (content.len() - content.trim_start().len(), content.trim());
        if content.is_empty() || content == "---" {
            continue;
        }
        if let Some(item) = content.strip_prefix("- ") {
            if let Some((key, value)) = entry(item) {
                // A list may be as far in as its key.
                let is_inside = |(depth, path): &(usize, String)| {
                    *depth > indent || (*depth == indent && path.ends_with(|c: char| c.is_ascii_digit()))
                };
                while outer.last().is_some_and(is_inside) {
                    outer.pop();
                }
                let section = outer.last().map_or(String::new(), |(_, path)| path.clone());
                let count = counts.entry(section.clone()).or_default();
                let path = path_of(&section, &count.to_string());
                *count += 1;
                if let Some((path, key)) = path.and_then(|path| Some((path.clone(), path_of(&path, key)?))) {
                    outer.push((indent, path));
                    given.push(Setting::new(key.clone(), value, line));
                    if value.is_empty() {
                        outer.push((indent + 2, key));
                    }
                }
                continue;
            }
            if let Some(last) = given.last_mut() {
                last.value += if last.value.is_empty() { "" } else { ", " };
                last.value += unquote(item.trim());
            }
            continue;
        }
        while outer.last().is_some_and(|(depth, _)| *depth >= indent) {
            outer.pop();
        }
        let section = outer.last().map_or("", |(_, path)| path);
        let found = content
            .split_once(':')
            .and_then(|(key, value)| Some((path_of(section, unquote(key.trim()))?, unquote(value.trim()))));
        let Some((path, value)) = found else {
            let unreadable = Some(NOT_YAML);
            given.push(Setting { unreadable, ..Setting::new(content, "", line) });
            continue;
        };
        given.push(Setting::new(path.clone(), value, line));
        if value.is_empty() {
            // A section or a list: its own line is dropped if sections follow.
            outer.push((indent, path));
        }
    }
    let sections: Vec<String> = given.iter().map(|one| format!("{}.", one.key)).collect();
    let is_section = |index: usize| {
        given[index].value.is_empty()
            && given.get(index + 1).is_some_and(|next| next.key.starts_with(&sections[index]))
    };
    let keep: Vec<bool> = (0..given.len()).map(|index| !is_section(index)).collect();
    given.into_iter().zip(keep).filter_map(|(one, keep)| keep.then_some(one)).collect()
}

/// Returns key and value of an item that is a table: `- path: a/b`.
fn entry(item: &str) -> Option<(&str, &str)> {
    let (key, value) = item.split_once(':')?;
    let is_key = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (is_key && (value.is_empty() || value.starts_with(' '))).then(|| (key, unquote(value.trim())))
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
