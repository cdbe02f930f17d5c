//! YAML and JSON as flat settings: a nested key is `outer.inner`.

use super::shell::VARIABLE;
use crate::setting::{Setting, unquote};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// `key: value`, lists in brackets or with dashes; a nested key is `outer.inner`.
pub(crate) fn yaml(text: &str) -> Vec<Setting> {
    let mut given: Vec<Setting> = Vec::new();
    let mut outer: Vec<(usize, String)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let (content, line) = (strip_comment(line), index + 1);
        let (indent, content) = (content.len() - content.trim_start().len(), content.trim());
        if content.is_empty() || content == "---" {
            continue;
        }
        if let Some(item) = content.strip_prefix("- ") {
            if let Some(last) = given.last_mut() {
                last.value += if last.value.is_empty() { "" } else { ", " };
                last.value += unquote(item.trim());
            }
            continue;
        }
        let Some((key, value)) = content.split_once(':') else {
            let unreadable = Some("not read as YAML");
            given.push(Setting { unreadable, ..Setting::new(content, "", line) });
            continue;
        };
        while outer.last().is_some_and(|(depth, _)| *depth >= indent) {
            outer.pop();
        }
        let path: Vec<&str> =
            outer.iter().map(|(_, name)| name.as_str()).chain([unquote(key.trim())]).collect();
        let value = unquote(value.trim());
        given.push(Setting::new(path.join("."), value, line));
        if value.is_empty() {
            // A section, or a list: its own line goes if sections follow.
            outer.push((indent, unquote(key.trim()).into()));
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

/// A JSON object; nested keys are `outer.inner`.
pub(crate) fn json(text: &str) -> Option<Vec<Setting>> {
    let value: Value = serde_json::from_str(text).ok()?;
    let mut given = Vec::new();
    flatten("", value.as_object()?, &mut given);
    Some(given)
}

fn flatten(path: &str, object: &Map<String, Value>, given: &mut Vec<Setting>) {
    for (key, value) in object {
        let key = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
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

/// Fills in `${path.of.another}` and `${oc.select:path.of.another,default}` where they are a whole value, as OmegaConf
/// does; what names no value of the file stays as it is written, and is listed.
pub(crate) fn interpolate(mut given: Vec<Setting>) -> Vec<Setting> {
    let values: BTreeMap<String, String> =
        given.iter().map(|one| (one.key.clone(), one.value.clone())).collect();
    for one in given.iter_mut().filter(|one| one.value.contains("${")) {
        match resolved(&one.value, &values) {
            Some(value) => one.value = value,
            None => one.unreadable = Some(VARIABLE),
        }
    }
    given
}

/// Resolves the references in `text`, a few levels deep.
fn resolved(text: &str, values: &BTreeMap<String, String>) -> Option<String> {
    let mut text = text.to_string();
    for _ in 0..8 {
        if !text.contains("${") {
            return Some(text);
        }
        let inside = text.strip_prefix("${")?.strip_suffix('}')?;
        let (path, default) = match inside.strip_prefix("oc.select:") {
            Some(select) => select.split_once(',').map_or((select, None), |(path, rest)| (path, Some(rest))),
            None => (inside, None),
        };
        text = values.get(path.trim()).cloned().or(default.map(|text| text.trim().to_string()))?;
    }
    None
}

/// The text without a `#` comment outside quotes, at the start or after a space.
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
