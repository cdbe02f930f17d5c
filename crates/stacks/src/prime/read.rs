//! Reads TOML into dotted keys with their lines; the tables of an array have their number: `source.0.name`.

use crate::setting::{Setting, TRAINER};
use std::collections::BTreeMap;
use toml::Value;

pub(super) fn read(text: &str) -> Vec<Setting> {
    let Ok(table) = text.parse::<toml::Table>() else { return Vec::new() };
    let has = |names: &[&str]| names.iter().any(|name| table.get(*name).is_some_and(Value::is_table));
    let trainer = match () {
        () if has(&["orchestrator", "trainer"]) => "rl",
        () if has(&["data"]) && has(&["optim", "model", "deployment"]) => "sft",
        () => return Vec::new(),
    };
    let lines = lines(text);
    let mut given = vec![Setting::new(TRAINER, trainer, 0)];
    flatten("", &Value::Table(table), &lines, &mut given);
    environments(&mut given);
    let adapter =
        given.iter().find(|one| one.key.contains("model.lora.") && !one.key.starts_with("orchestrator."));
    let adapter = adapter.map(|one| Setting::new("lora.is_given", "True", one.line));
    given.into_iter().chain(adapter).collect()
}

/// Replaces the settings of environments, which are packages, by their names and the number of the others.
fn environments(given: &mut Vec<Setting>) {
    let is_of_source = |one: &Setting| {
        one.key.contains(".source.") && (one.key.contains(".env.") || one.key.ends_with(".name"))
    };
    let is_name =
        |one: &&Setting| one.key.starts_with("orchestrator.train.") && one.key.ends_with(".env.taskset.id");
    let names: Vec<Setting> = given.iter().filter(is_name).cloned().collect();
    let others = given.iter().filter(|one| is_of_source(one)).count() - names.len();
    given.retain(|one| !is_of_source(one));
    if let Some(first) = names.first() {
        let all: Vec<&str> = names.iter().map(|one| one.value.as_str()).collect();
        given.push(Setting::new("taskset_ids", format!("[{}]", all.join(", ")), first.line));
    }
    if others > 0 {
        given.push(Setting::new("settings_of_environments", others.to_string(), 0));
    }
}

fn flatten(path: &str, value: &Value, lines: &BTreeMap<String, usize>, into: &mut Vec<Setting>) {
    let inner = |name: &str| if path.is_empty() { name.to_string() } else { format!("{path}.{name}") };
    let text = match value {
        Value::Table(table) => {
            // A section without keys asks for its defaults: `[trainer.model.lora]`.
            if table.is_empty() && path.ends_with(".lora") {
                into.push(Setting::new(inner("rank"), "16", line_of(path, lines)));
            }
            return table.iter().for_each(|(name, value)| flatten(&inner(name), value, lines, into));
        }
        Value::Array(items) if items.iter().any(Value::is_table) => {
            let numbered = items.iter().enumerate();
            return numbered.for_each(|(index, item)| flatten(&inner(&index.to_string()), item, lines, into));
        }
        Value::Array(items) => format!("[{}]", items.iter().map(plain).collect::<Vec<_>>().join(", ")),
        value => plain(value),
    };
    into.push(Setting::new(path, text, line_of(path, lines)));
}

/// Returns the line of a key, or of the table in its line that has it.
fn line_of(path: &str, lines: &BTreeMap<String, usize>) -> usize {
    let mut path = path;
    loop {
        match (lines.get(path), path.rsplit_once('.')) {
            (Some(line), _) => return *line,
            (None, Some((outer, _))) => path = outer,
            (None, None) => return 0,
        }
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

/// Returns the line of each key and section that begins a line.
fn lines(text: &str) -> BTreeMap<String, usize> {
    let (mut found, mut section, mut counts) =
        (BTreeMap::new(), String::new(), BTreeMap::<String, usize>::new());
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix("[[").and_then(|rest| rest.split("]]").next()) {
            let name = numbered(name.trim(), &counts);
            let count = counts.entry(name.clone()).or_default();
            section = format!("{name}.{count}");
            *count += 1;
            found.insert(section.clone(), index + 1);
        } else if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            section = numbered(name.trim(), &counts);
            found.insert(section.clone(), index + 1);
        } else if let Some((key, _)) = line.split_once('=') {
            let key = key.trim();
            let path = if section.is_empty() { key.to_string() } else { format!("{section}.{key}") };
            found.entry(path).or_insert(index + 1);
        }
    }
    found
}

/// Returns a section's path with the number of the last table of each array in it.
fn numbered(name: &str, counts: &BTreeMap<String, usize>) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    let mut path = String::new();
    for (index, part) in parts.iter().enumerate() {
        path = if path.is_empty() { (*part).to_string() } else { format!("{path}.{part}") };
        if let Some(count) = counts.get(&path).filter(|_| index + 1 < parts.len()) {
            path = format!("{path}.{}", count - 1);
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_arrays_have_numbers_and_lines() {
        let text = "max_steps = 4\n[orchestrator]\nbatch_size = 8\n[[orchestrator.train.source]]\nname = \"a\"\n[orchestrator.train.source.env.taskset]\nid = \"b\"\n[[orchestrator.train.source]]\nname = \"c\"\n[trainer.model.lora]\n";
        let given = read(text);
        let place =
            |key: &str| given.iter().find(|one| one.key == key).map(|one| (one.value.as_str(), one.line));
        assert_eq!(place("orchestrator.batch_size"), Some(("8", 3)));
        assert_eq!(place("taskset_ids"), Some(("[b]", 7)));
        assert_eq!(place("settings_of_environments"), Some(("2", 0)));
        assert_eq!(place("trainer.model.lora.rank"), Some(("16", 10)));
        assert!(read("[package]\nname = \"x\"\n").is_empty() && read("a: b\n").is_empty());
    }
}
