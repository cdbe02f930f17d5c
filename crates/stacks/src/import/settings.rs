//! The settings of another stack's file as plain text with their lines, for whoever judges them without making a run file
//! of them: what the trainer is started with, and what the file says of its surroundings.
//!
//! Beside the stack's own keys there are `env.NAME` (environment variables that the file sets), `version.PACKAGE` (where it
//! pins one) and `machine.KEY` (`gpus`, `host_memory`, `shm`, where it starts a container or asks a scheduler).

use super::draft::Given;
use super::read::{self, Word};
use super::{KEYS_MAX, Stack, nothing_found, read_text, too_large};
use plimsoll_base::Result;
use std::path::Path;

/// One setting, as the file writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The stack's key, or one with a prefix of ours.
    pub key: String,
    /// Its value without quotes; several words are a list `a, b`.
    pub value: String,
    /// Where it stands, from 1; 0 where that is not known.
    pub line: usize,
    /// Why the value cannot be taken as it stands, if so.
    pub unreadable: Option<&'static str>,
}

/// Which file is read, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A stack that `import` knows too.
    Of(Stack),
    /// A script that makes a TorchRL collector, or the YAML of one.
    TorchRl,
}

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

/// Reads the settings of the file at `path`, up to 1 MiB.
///
/// Errors, exit code 2: `import-unreadable`, `import-nothing-found`.
pub fn settings(reader: Reader, path: &Path) -> Result<Vec<Setting>> {
    let text = read_text(path)?;
    let given = match reader {
        Reader::Of(stack) => (stack.table().read)(&text),
        Reader::TorchRl => torchrl(&text),
    };
    if given.len() > KEYS_MAX {
        return Err(too_large(path, &format!("has {} keys, more than {KEYS_MAX}", given.len())));
    }
    if given.is_empty() {
        let (name, looked_for) = match reader {
            Reader::Of(stack) => (stack.name(), stack.looked_for()),
            Reader::TorchRl => (
                "torchrl",
                "a call of a collector such as `MultiSyncDataCollector(...)`, or YAML with a section `collector`",
            ),
        };
        return Err(nothing_found(path, name, looked_for)
            .hint("plimsoll doctor --help shows which file each stack takes"));
    }
    let plain =
        |one: Given| Setting { key: one.key, value: one.value, line: one.line, unreadable: one.unreadable };
    Ok(surroundings(&text).into_iter().chain(given.into_iter().map(plain)).collect())
}

/// Collectors and parallel environments: `collector` names the class, keyword arguments follow, and what a name stands for
/// is filled in from lines `name = literal`.
fn torchrl(text: &str) -> Vec<Given> {
    let mut found: Vec<Given> = Vec::new();
    for name in COLLECTORS {
        // `SyncDataCollector(` is the end of longer names, which are calls of their own.
        let is_whole = |at: usize| !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let Some(at) = text.match_indices(&format!("{name}(")).map(|(at, _)| at).find(|&at| is_whole(at))
        else {
            continue;
        };
        let line = text[..at].matches('\n').count() + 1;
        let key = if name == "ParallelEnv" { "parallel_env" } else { "collector" };
        found.push(Given { key: key.into(), value: name.into(), unreadable: None, line });
        let prefix = if name == "ParallelEnv" { "parallel_env." } else { "" };
        let end = (at + 16_384).min(text.len());
        let end = (at..=end).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(at);
        let arguments = read::calls(&text[at..end], &[name]).into_iter();
        found.extend(arguments.map(|one| Given {
            key: format!("{prefix}{}", one.key),
            line: if one.line == 0 { 0 } else { one.line + line - 1 },
            ..one
        }));
    }
    if found.is_empty() {
        let yaml = read::yaml(text);
        let is_one = yaml.iter().any(|one| one.key.starts_with("collector."));
        return if is_one { read::interpolate(yaml) } else { Vec::new() };
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
        let is_literal = read::number(value).is_some() || value.starts_with(['"', '\'']);
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

/// What a file says beside its trainer's settings.
fn surroundings(text: &str) -> Vec<Setting> {
    let plain = |key: String, value: &str, line| Setting { key, value: value.into(), line, unreadable: None };
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let (trimmed, at) = (line.trim(), index + 1);
        if let Some(rest) = trimmed.strip_prefix("#SBATCH ") {
            found.extend(scheduler(rest).map(|(key, value)| plain(key.into(), value, at)));
        } else if let Some(comment) = trimmed.strip_prefix('#') {
            found.extend(pins(comment).map(|(name, version)| plain(format!("version.{name}"), version, at)));
        } else if let Some((name, value)) = python_variable(trimmed) {
            found.push(plain(format!("env.{name}"), value, at));
        }
    }
    let script = read::script(text);
    for (name, value, line) in &script.variables {
        // A variable of a program is written in capitals.
        if !name.chars().any(|c| c.is_ascii_lowercase()) {
            found.push(plain(format!("env.{name}"), value, *line));
        }
    }
    for words in &script.commands {
        let is = |name: &str| words.iter().take(4).any(|word| word.text == name);
        if is("pip") && is("install") {
            let words = words.iter().flat_map(|word| pins(&word.text).map(move |pin| (pin, word.line)));
            found
                .extend(words.map(|((name, version), line)| plain(format!("version.{name}"), version, line)));
        }
        if (is("docker") || is("podman")) && is("run") {
            found.extend(container(words).map(|(key, value, line)| plain(key.into(), &value, line)));
        }
        for word in words.iter().filter(|word| word.text.contains("env_vars")) {
            let json = word.text.split_once('=').map_or(word.text.as_str(), |(_, json)| json);
            found.extend(
                read::json(json)
                    .unwrap_or_default()
                    .into_iter()
                    .filter_map(|one| Some((one.key.strip_prefix("env_vars.")?.to_string(), one.value)))
                    .map(|(name, value)| plain(format!("env.{name}"), &value, word.line)),
            );
        }
    }
    found
}

/// `NAME==VERSION` in a text.
fn pins(text: &str) -> impl Iterator<Item = (String, &str)> {
    text.split([' ', '"', '\'', ',', '[', ']']).filter_map(|word| {
        let (name, version) = word.split_once("==")?;
        let is_name =
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        (is_name && version.starts_with(|c: char| c.is_ascii_digit()))
            .then(|| (name.to_ascii_lowercase().replace('-', "_"), version))
    })
}

/// `os.environ["NAME"] = "value"`.
fn python_variable(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix("os.environ[")?;
    let (name, rest) = rest.split_once(']')?;
    let value = rest.trim().strip_prefix('=')?.trim();
    Some((name.trim_matches(['"', '\'']), value.trim_matches(['"', '\''])))
}

fn scheduler(rest: &str) -> Option<(&'static str, &str)> {
    let (flag, value) = rest.trim().split_once(['=', ' '])?;
    match flag {
        "--mem" => Some(("machine.host_memory", value.trim())),
        "--gpus-per-node" => Some(("machine.gpus", value.rsplit(':').next()?.trim())),
        "--gres" => Some(("machine.gpus", value.strip_prefix("gpu")?.rsplit(':').next()?.trim())),
        _ => None,
    }
}

fn container(words: &[Word]) -> impl Iterator<Item = (&'static str, String, usize)> {
    words.iter().enumerate().filter_map(|(index, word)| {
        let next = || words.get(index + 1).map(|next| next.text.clone());
        let (flag, value) = match word.text.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_string())),
            None => (word.text.as_str(), next()),
        };
        let key = match flag {
            "-m" | "--memory" => "machine.host_memory",
            "--shm-size" => "machine.shm",
            "--gpus" => "machine.gpus",
            _ => return None,
        };
        // `--gpus all` and `--gpus device=...` give no number.
        let value = value.filter(|value| value.starts_with(|c: char| c.is_ascii_digit()))?;
        Some((key, value, word.line))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(reader: Reader, text: &str, expect: &[(&str, &str, usize)]) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x");
        std::fs::write(&path, text).expect("a file");
        let found = settings(reader, &path).unwrap_or_else(|err| panic!("{err}"));
        let found: Vec<(&str, &str, usize)> =
            found.iter().map(|one| (one.key.as_str(), one.value.as_str(), one.line)).collect();
        assert_eq!(found, expect, "{text}");
    }

    #[test]
    fn a_script_with_its_surroundings() {
        check(
            Reader::Of(Stack::OpenRlhf),
            "#SBATCH --mem=500G\n#SBATCH --gres=gpu:a100:8\npip install openrlhf==0.8.1 vllm\n\
             export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\nlr=1\n\
             docker run --gpus 8 -m 400g --shm-size=10g image\n\
             ray job submit --runtime-env-json='{\"env_vars\": {\"A\": \"1\"}}' -- python3 -m openrlhf.cli.train_ppo_ray \\\n  --bf16 \\\n  --max_len 8\n",
            &[
                ("machine.host_memory", "500G", 1),
                ("machine.gpus", "8", 2),
                ("env.PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", 4),
                ("version.openrlhf", "0.8.1", 3),
                ("machine.gpus", "8", 6),
                ("machine.host_memory", "400g", 6),
                ("machine.shm", "10g", 6),
                ("env.A", "1", 7),
                ("bf16", "", 8),
                ("max_len", "8", 9),
            ],
        );
    }

    #[test]
    fn a_collector_with_names_filled_in() {
        check(
            Reader::TorchRl,
            "# torchrl==0.4.0\nimport os\nos.environ[\"X\"] = \"y\"\nworkers = 64\n\ncollector = MultiSyncDataCollector(\n    create_env_fn=[make] * workers,\n    frames_per_batch=1000,\n    device=\"cpu\",\n)\n",
            &[
                ("version.torchrl", "0.4.0", 1),
                ("env.X", "y", 3),
                ("collector", "MultiSyncDataCollector", 6),
                ("create_env_fn", "[make] * 64", 7),
                ("frames_per_batch", "1000", 8),
                ("device", "cpu", 9),
            ],
        );
    }
}
