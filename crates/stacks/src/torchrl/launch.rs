//! Scripts that make a TorchRL collector, and the YAML of one.

use crate::launch::{KEYS_MAX, config, python};
use crate::setting::{Setting, number};

/// Calls whose arguments are settings of a collector; the environments' name says which argument counts.
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

/// Collectors and parallel environments: `collector` names the class, keyword arguments follow, and what a name means
/// is filled in from lines `name = literal`.
pub(super) fn read(text: &str) -> Vec<Setting> {
    let mut found: Vec<Setting> = Vec::new();
    for name in COLLECTORS {
        // `SyncDataCollector(` is the end of longer names, which are calls of their own.
        let is_whole = |at: usize| !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let Some(at) = text.match_indices(&format!("{name}(")).map(|(at, _)| at).find(|&at| is_whole(at))
        else {
            continue;
        };
        let line = text[..at].matches('\n').count() + 1;
        let key = if name == "ParallelEnv" { "parallel_env" } else { "collector" };
        found.push(Setting::new(key, name, line));
        let prefix = if name == "ParallelEnv" { "parallel_env." } else { "" };
        let end = (at + 16_384).min(text.len());
        let end = (at..=end).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(at);
        let arguments = python::calls(&text[at..end], &[name]).into_iter();
        found.extend(arguments.map(|one| Setting {
            key: format!("{prefix}{}", one.key),
            line: if one.line == 0 { 0 } else { one.line + line - 1 },
            ..one
        }));
    }
    if found.is_empty() {
        let yaml = config::yaml(text);
        let is_one = yaml.iter().any(|one| one.key.starts_with("collector."));
        return if is_one { config::interpolate(yaml) } else { Vec::new() };
    }
    let literals = assignments(text);
    for one in found.iter_mut().filter(|one| one.unreadable.is_some()) {
        for (name, value) in &literals {
            one.value = replace_word(&one.value, name, value);
        }
    }
    found
}

/// `name = 64` and `name = "cuda:0"` at the start of a line.
fn assignments(text: &str) -> Vec<(String, String)> {
    let one = |line: &str| {
        let (name, value) = line.split_once('=')?;
        let (name, value) = (name.trim(), value.split('#').next().unwrap_or_default().trim());
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let is_literal = number(value).is_some() || value.starts_with(['"', '\'']);
        (is_name && is_literal && value.len() < 256).then(|| (name.to_string(), value.to_string()))
    };
    text.lines().filter_map(one).take(KEYS_MAX).collect()
}

fn replace_word(text: &str, word: &str, by: &str) -> String {
    let (mut result, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(word) {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let whole = !rest[..at].ends_with(is_part) && !rest[at + word.len()..].starts_with(is_part);
        result += &rest[..at];
        result += if whole { by } else { word };
        rest = &rest[at + word.len()..];
    }
    result + rest
}
