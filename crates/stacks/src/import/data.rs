//! Writes `data.prompts` and `data.eval`: files as they are, hub data sets by name.

use super::draft::{Draft, Taken, quoted};
use crate::setting::{list, number};
use crate::table::why;

/// A stack's settings for training and evaluation data.
pub(crate) struct Of {
    pub prompts: &'static str,
    pub eval: &'static str,
    /// The weights of several sets.
    pub weights: Option<&'static str>,
    /// The configuration of a hub data set.
    pub subset: Option<&'static str>,
    /// The splits of `prompts` and `eval`.
    pub splits: [Option<&'static str>; 2],
}

/// A data set of a list.
struct Set {
    path: String,
    /// The text after `@` if it is not a weight: a folder of the data set.
    folder: Option<String>,
    weight: Option<f64>,
}

/// Reads `path`, `path@0.3` (a weight) and `path@folder`.
fn data_set(file: &str) -> Set {
    let (path, after) = match file.rsplit_once('@') {
        // In a hub name it is a revision.
        Some(parts) if !file.starts_with("hf:") => parts,
        _ => (file, ""),
    };
    match number(after) {
        _ if after.is_empty() => Set { path: file.to_string(), folder: None, weight: None },
        Some(weight) => Set { path: path.to_string(), folder: None, weight: Some(weight) },
        None => Set { path: path.to_string(), folder: Some(after.to_string()), weight: None },
    }
}

/// Writes `data.prompts` and `data.eval`: Parquet, JSON lines and hub data sets; other files as JSON lines to be made.
pub(crate) fn data(draft: &mut Draft, of: &Of) {
    let subset = of.subset.and_then(|name| draft.take_text(name));
    let splits = of.splits.map(|name| name.and_then(|name| draft.take_text(name)));
    let mut has_hub = [false, false];
    for (at, (name, key)) in [(of.prompts, "data.prompts"), (of.eval, "data.eval")].into_iter().enumerate() {
        let Some(taken) = draft.take(name) else { continue };
        let mut sets: Vec<Set> = list(&taken.value).iter().map(|file| data_set(file)).collect();
        let is_learnt = key == "data.prompts";
        if let Some(weights) = of.weights.filter(|_| is_learnt) {
            shares(draft, weights, &mut sets);
        }
        let split = splits[at].as_ref().and_then(|taken| split_of(&taken.value));
        let mut is_as_there = true;
        for set in &mut sets {
            let part = set.folder.as_deref().or(subset.as_ref().map(|taken| taken.value.as_str()));
            let (path, is_same) = match hub_name(&set.path, part, split, is_learnt) {
                Some(name) => {
                    has_hub[at] = true;
                    (name, true)
                }
                None => file_path(set),
            };
            is_as_there &= is_same;
            set.path = path;
        }
        let (count, has_weights) = (sets.len(), sets.iter().any(|set| set.weight.is_some()));
        match sets.as_slice() {
            [] => continue,
            [set] => draft.set_text(key, &set.path, &taken.from),
            sets => draft.set_toml(key, data_list(sets, is_learnt), &taken.from),
        }
        let mut how = Vec::new();
        if count > 1 && is_learnt && !has_weights {
            how.push("the files take turns here: a `weight` for each, such as its number of rows, makes shares of them");
        }
        if !is_as_there {
            how.push("write it as JSON lines: a row a line, the answer in a column of its own");
        }
        if !how.is_empty() {
            draft.change(&taken, &how.join("; "));
        }
    }
    if draft.get("data.prompts").is_none() {
        draft.miss("data.prompts", of.prompts, "the path of a JSONL or Parquet file, or hf:org/name");
    }
    remarks(draft, subset, splits, has_hub);
}

/// Lists subsets and splits without a hub data set, and parts of splits.
fn remarks(draft: &mut Draft, subset: Option<Taken>, splits: [Option<Taken>; 2], has_hub: [bool; 2]) {
    if let Some(taken) = subset.filter(|_| has_hub == [false, false]) {
        draft.leave(&taken, why::PART);
    }
    for (taken, has_hub) in splits.into_iter().zip(has_hub) {
        let Some(taken) = taken else { continue };
        match split_of(&taken.value) {
            _ if !has_hub => draft.leave(&taken, why::PART),
            None => draft.leave(&taken, "several splits: name each of them in a list"),
            Some(whole) if whole != taken.value => draft.change(&taken, "the whole split here"),
            Some(_) => {}
        }
    }
}

/// Returns the split in `train[:1000]`; `None` for `train+test`.
pub(crate) fn split_of(text: &str) -> Option<&str> {
    let whole = text.split('[').next().unwrap_or_default();
    is_name(whole).then_some(whole)
}

/// Sets the weight of each set from the setting `name`.
fn shares(draft: &mut Draft, name: &str, sets: &mut [Set]) {
    let Some(taken) = draft.take_text(name) else { return };
    let values: Vec<f64> = list(&taken.value).iter().filter_map(|text| number(text)).collect();
    if values.len() != sets.len() || values.iter().any(|value| *value <= 0.0) {
        let why = format!("it is not one number above 0 for each of the {} files", sets.len());
        return draft.leave(&taken, &why);
    }
    sets.iter_mut().zip(values).for_each(|(set, value)| set.weight = Some(value));
}

/// Returns the name here of a hub data set; `None` if `text` is a file, or a path that `org/name` cannot be.
///
/// `text` is `org/name`, `hf://datasets/org/name/FILE`, the address of a file below `/datasets/`, or a name as it is
/// here. A hub file needs no subset or split. A subset without a split gets `train` if `is_learnt`, else `test`.
pub(crate) fn hub_name(
    text: &str,
    subset: Option<&str>,
    split: Option<&str>,
    is_learnt: bool,
) -> Option<String> {
    if text.starts_with("hf:") && !text.starts_with("hf://") {
        return Some(text.to_string());
    }
    if let Some(rest) = text.strip_prefix("hf://datasets/") {
        return Some(format!("hf:{rest}"));
    }
    if let Some((_, rest)) =
        text.strip_prefix("https://").and_then(|address| address.split_once("/datasets/"))
    {
        let (repo, file) = rest.split_once("/resolve/").or(rest.split_once("/blob/"))?;
        let (revision, file) = file.split_once('/')?;
        let at = if revision == "main" { String::new() } else { format!("@{revision}") };
        return Some(format!("hf:{repo}{at}/{file}"));
    }
    let (org, name) = text.split_once('/')?;
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    if !is_name(org) || !is_name(name) || FILE_ENDINGS.contains(&ending) {
        return None;
    }
    // The hub library's name for data without a configuration.
    let subset = subset.filter(|subset| *subset != "default" && is_name(subset));
    let other = if is_learnt { "train" } else { "test" };
    let split = split.or(subset.map(|_| other));
    let parts = ["hf:", org, "/", name].concat();
    Some([subset, split].into_iter().flatten().fold(parts, |name, part| format!("{name}/{part}")))
}

/// Extensions of data files, which no `org/name` has.
const FILE_ENDINGS: [&str; 10] =
    ["jsonl", "json", "parquet", "csv", "tsv", "txt", "arrow", "gz", "zst", "yaml"];

/// Returns true for one part of a hub name.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('.')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// Returns the path of a file here, and true if it is the original one.
fn file_path(set: &Set) -> (String, bool) {
    let file = match &set.folder {
        Some(folder) => format!("{}/{folder}", set.path),
        None => set.path.clone(),
    };
    let (stem, ending) = file.rsplit_once('.').unwrap_or((&file, ""));
    let path = match ending {
        "jsonl" | "parquet" => file.clone(),
        "json" => format!("{stem}.jsonl"),
        _ => format!("{}.jsonl", file.rsplit('/').next().unwrap_or("data")),
    };
    let is_same = path == file;
    (path, is_same)
}

/// Returns several sets as a list, each under its own name: `train` of two folders is `gsm8k-train` and `math-train`.
fn data_list(sets: &[Set], weighted: bool) -> String {
    let paths: Vec<&str> = sets.iter().map(|set| set.path.as_str()).collect();
    let plain = |text: &str| -> String {
        text.chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '.' { c } else { '-' })
            .collect()
    };
    let stem = |path: &str| {
        // A hub data set is named after itself, for any split.
        let file = match path.strip_prefix("hf:") {
            Some(name) => name.split(['/', '@']).nth(1).unwrap_or(name),
            None => path.rsplit('/').next().unwrap_or(path),
        };
        plain(file.rsplit_once('.').map_or(file, |(stem, _)| stem))
    };
    let mut names: Vec<String> = Vec::with_capacity(paths.len());
    for (i, &path) in paths.iter().enumerate() {
        let folder = path.rsplit('/').nth(1).unwrap_or_default();
        let is_shared = paths.iter().filter(|other| stem(other) == stem(path)).count() > 1;
        let name = if is_shared { format!("{}-{}", plain(folder), stem(path)) } else { stem(path) };
        let name = name.trim_start_matches(['.', '-']).to_string();
        names.push(if names.contains(&name) || name.is_empty() { format!("set-{}", i + 1) } else { name });
    }
    let table = |(set, name): (&Set, &String)| {
        let weight = set.weight.filter(|_| weighted).map(|weight| format!(", weight = {weight:?}"));
        let weight = weight.unwrap_or_default();
        format!("{{ path = {}, name = {}{weight} }}", quoted(&set.path), quoted(name))
    };
    format!("[{}]", sets.iter().zip(&names).map(table).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_hub() {
        for (text, subset, split, expect) in [
            ("openai/gsm8k", Some("main"), Some("train"), Some("hf:openai/gsm8k/main/train")),
            ("openai/gsm8k", Some("main"), None, Some("hf:openai/gsm8k/main/train")),
            ("o/n", None, Some("valid"), Some("hf:o/n/valid")),
            ("o/n-v0.1", Some("default"), None, Some("hf:o/n-v0.1")),
            ("hf:o/n@e53/x.parquet", Some("main"), Some("train"), Some("hf:o/n@e53/x.parquet")),
            ("hf://datasets/o/n/data/x.parquet", None, None, Some("hf:o/n/data/x.parquet")),
            ("https://hub.example/datasets/o/n/resolve/main/x.jsonl", None, None, Some("hf:o/n/x.jsonl")),
            ("https://hub.example/datasets/o/n/blob/v1/x.jsonl", None, None, Some("hf:o/n@v1/x.jsonl")),
            ("data/train.json", None, Some("train"), None),
            ("./data/train", None, None, None),
            ("/data/train", None, None, None),
            ("data", None, None, None),
            ("a/b/c", None, None, None),
            ("~/data", None, None, None),
        ] {
            assert_eq!(hub_name(text, subset, split, true).as_deref(), expect, "{text}");
        }
        assert_eq!(hub_name("o/n", Some("main"), None, false).as_deref(), Some("hf:o/n/main/test"));
        assert_eq!((split_of("train[:90%]"), split_of("train+test")), (Some("train"), None));
    }
}
