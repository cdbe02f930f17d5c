//! Scripts with a TorchRL collector, and its YAML.

use crate::launch::python::{self, Outline};
use crate::launch::shell::word::VALUE_BYTES_MAX;
use crate::launch::source::Source;
use crate::launch::{KEYS_MAX, config};
use crate::setting::{Setting, number};
use plimsoll_base::Result;
use std::collections::BTreeMap;

/// Calls whose arguments are settings of a collector, or those of its parallel environment.
const COLLECTORS: [&str; 8] = [
    "SyncDataCollector",
    "MultiSyncDataCollector",
    "MultiaSyncDataCollector",
    "aSyncDataCollector",
    "MultiSyncCollector",
    "MultiAsyncCollector",
    "AsyncCollector",
    "ParallelEnv",
];

/// Reads the arguments of collectors and parallel environments, with names replaced from lines `name = literal`.
///
/// Errors: `import-unreadable`.
pub(super) fn read(source: &Source<'_>) -> Result<Vec<Setting>> {
    let text = source.text;
    let outline = Outline::of(text);
    let mut found: Vec<Setting> = Vec::new();
    for name in COLLECTORS {
        let Some(call) = outline.calls(name).into_iter().next() else { continue };
        let prefix = if name == "ParallelEnv" { "parallel_env." } else { "" };
        let key = if name == "ParallelEnv" { "parallel_env" } else { "collector" };
        found.push(Setting::new(key, name, outline.line(call.at)));
        let arguments = python::arguments(&outline, &call).into_iter();
        found.extend(arguments.map(|one| Setting { key: format!("{prefix}{}", one.key), ..one }));
    }
    if found.is_empty() {
        let yaml = config::yaml(source)?;
        let is_one = yaml.iter().any(|one| one.key.starts_with("collector."));
        return Ok(if is_one { config::interpolate(yaml) } else { Vec::new() });
    }
    let literals = assignments(text);
    for one in found.iter_mut().filter(|one| one.unreadable.is_some()) {
        one.value = replace_names(&one.value, &literals);
    }
    Ok(found)
}

/// Reads `name = 64` and `name = "cuda:0"` at the start of a line.
fn assignments(text: &str) -> BTreeMap<String, String> {
    let one = |line: &str| {
        let (name, value) = line.split_once('=')?;
        let (name, value) = (name.trim(), value.split('#').next().unwrap_or_default().trim());
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let is_literal = number(value).is_some() || value.starts_with(['"', '\'']);
        (is_name && is_literal && value.len() < 256).then(|| (name.to_string(), value.to_string()))
    };
    text.lines().filter_map(one).take(KEYS_MAX).collect()
}

/// Replaces each name in `text` by its value, if it has one.
fn replace_names(text: &str, values: &BTreeMap<String, String>) -> String {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let (mut result, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(is_part) {
        result += &rest[..at];
        let length = rest[at..].find(|c| !is_part(c)).unwrap_or(rest.len() - at);
        let word = &rest[at..at + length];
        let value = values.get(word).filter(|_| result.len() <= VALUE_BYTES_MAX);
        result += value.map_or(word, String::as_str);
        rest = &rest[at + length..];
    }
    result + rest
}
