//! Finds axolotl's settings in its YAML: sections become dotted keys, and the data sets one list.

use crate::import::data;
use crate::launch::config;
use crate::launch::source::Source;
use crate::setting::{Setting, TRAINER, flag};
use plimsoll_base::Result;

/// Returns true for a file with the keys that every file of axolotl has.
pub(super) fn is_of(text: &str) -> bool {
    let has = |key: &str| text.lines().any(|line| line.starts_with(key));
    has("base_model:") && (has("datasets:") || has("pretraining_dataset:"))
}

/// Errors: `import-unreadable`.
pub(super) fn read(source: &Source<'_>) -> Result<Vec<Setting>> {
    let given = config::yaml(source)?;
    if !given.iter().any(|one| one.key == "base_model") {
        return Ok(Vec::new());
    }
    let (sets, others): (Vec<Setting>, Vec<Setting>) =
        given.into_iter().partition(|one| set_of(&one.key).is_some());
    let of_trainer = |one: &Setting| TRAINERS.contains(&one.key.as_str());
    let line = others.iter().find(|one| of_trainer(one) && !one.value.is_empty()).map_or(0, |one| one.line);
    let mut found = vec![Setting::new(TRAINER, trainer(&others), line)];
    found.extend(others.into_iter().filter(|one| !one.value.is_empty() && !of_trainer(one)).map(plain));
    if found.iter().any(|one| one.key == "lora_target_linear" && flag(&one.value) == Some(true)) {
        found.push(Setting::new("lora_target_modules", "all-linear", line_of(&found, "lora_target_linear")));
    }
    // A list of data sets, whose keys have numbers.
    if let Some(first) = found.iter().find(|one| one.key.starts_with("pretraining_dataset.")) {
        let one = Setting::new("pretraining_dataset", first.value.clone(), first.line);
        found.retain(|one| !one.key.starts_with("pretraining_dataset."));
        found.push(one);
    }
    for (section, key) in [("datasets", "train"), ("test_datasets", "test")] {
        found.extend(data_sets(section, key == "train", &sets));
    }
    Ok(found)
}

fn line_of(given: &[Setting], key: &str) -> usize {
    given.iter().find(|one| one.key == key).map_or(0, |one| one.line)
}

/// Returns the section, the number and the key of `datasets.0.path`.
fn set_of(key: &str) -> Option<(&str, &str, &str)> {
    let (section, rest) = key.split_once('.')?;
    let (index, name) = rest.split_once('.')?;
    let is_index = index.chars().all(|c| c.is_ascii_digit());
    (matches!(section, "datasets" | "test_datasets") && is_index).then_some((section, index, name))
}

/// Keys that say which trainer the file is for.
const TRAINERS: [&str; 3] = ["rl", "reward_model", "process_reward_model"];

/// Names the trainer: what `rl` says, a reward model, or fine-tuning.
fn trainer(given: &[Setting]) -> String {
    let value = |key: &str| given.iter().rev().find(|one| one.key == key).map(|one| one.value.clone());
    let is_on = |key: &str| value(key).is_some_and(|text| flag(&text) == Some(true) && !text.is_empty());
    match value("rl").filter(|name| !matches!(name.as_str(), "" | "null" | "~" | "false")) {
        Some(name) => name,
        None if is_on("reward_model") => "reward_model".into(),
        None if is_on("process_reward_model") => "process_reward_model".into(),
        None => "sft".into(),
    }
}

/// Replaces axolotl's words for a switch that is on.
fn plain(one: Setting) -> Setting {
    let is_on = match one.key.as_str() {
        "bf16" | "bfloat16" => matches!(one.value.as_str(), "auto" | "full"),
        "gradient_checkpointing" => matches!(one.value.as_str(), "offload" | "offload_disk" | "unsloth"),
        _ => false,
    };
    if is_on { Setting { value: "True".into(), ..one } } else { one }
}

/// Returns the data sets of a section as one list, their types as another, and what else they say.
fn data_sets(section: &str, is_learnt: bool, given: &[Setting]) -> Vec<Setting> {
    let own: Vec<(&str, &str, &Setting)> = given
        .iter()
        .filter_map(|one| set_of(&one.key).map(|(of, index, name)| (of, index, name, one)))
        .filter(|(of, ..)| *of == section)
        .map(|(_, index, name, one)| (index, name, one))
        .collect();
    let mut indices: Vec<&str> = own.iter().map(|(index, ..)| *index).collect();
    indices.dedup();
    let mut names = Vec::new();
    for index in &indices {
        let value = |name: &str| {
            let found = own.iter().find(|(at, key, _)| at == index && *key == name);
            found.map(|(.., one)| one.value.as_str()).filter(|value| !value.is_empty())
        };
        let Some(path) = value("path") else { continue };
        let split = value("split").and_then(data::split_of);
        let files = value("data_files").map(|file| match path {
            "json" | "parquet" => file.to_string(),
            path => format!("hf:{path}/{file}"),
        });
        let here = files.or_else(|| data::hub_name(path, value("name"), split, is_learnt));
        names.push(format!("\"{}\"", here.unwrap_or_else(|| path.to_string())));
    }
    let Some((.., first)) = own.first() else { return Vec::new() };
    let key = if is_learnt { "datasets" } else { "test_datasets" };
    let mut found = vec![Setting::new(key, format!("[{}]", names.join(", ")), first.line)];
    if is_learnt {
        let types = own.iter().filter(|(_, name, _)| *name == "type").map(|(.., one)| one.value.clone());
        let types: Vec<String> = types.collect();
        let line = own.iter().find(|(_, name, _)| *name == "type").map_or(first.line, |(.., one)| one.line);
        found.push(Setting::new("datasets.type", types.join(", "), line));
        let read = ["path", "name", "split", "type", "data_files", "ds_type"];
        let more = own.iter().filter(|(_, name, one)| !read.contains(name) && !one.value.is_empty());
        found
            .extend(more.map(|(_, name, one)| Setting { key: format!("datasets.{name}"), ..(*one).clone() }));
    }
    found
}
