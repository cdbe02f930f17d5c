//! Reads a launch file's surroundings: `env.NAME` (variables that it sets), `version.PACKAGE` (versions that it pins)
//! and `machine.KEY` (`gpus`, `host_memory`, `shm`, of a container or a scheduler job).

use super::config;
use super::shell::{self, word::Word};
use crate::setting::Setting;

pub(crate) fn surroundings(text: &str) -> Vec<Setting> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let (trimmed, at) = (line.trim(), index + 1);
        if let Some(rest) = trimmed.strip_prefix("#SBATCH ") {
            found.extend(scheduler(rest).map(|(key, value)| Setting::new(key, value, at)));
        } else if let Some(comment) = trimmed.strip_prefix('#') {
            found.extend(pins(comment, at));
        } else if let Some((name, value)) = python_variable(trimmed) {
            found.push(Setting::new(format!("env.{name}"), value, at));
        }
    }
    let script = shell::script(text);
    for (name, value, line) in &script.variables {
        // Environment variables are in capitals.
        if !name.chars().any(|c| c.is_ascii_lowercase()) {
            found.push(Setting::new(format!("env.{name}"), value, *line));
        }
    }
    for words in &script.commands {
        let is = |name: &str| words.iter().take(4).any(|word| word.text == name);
        if is("pip") && is("install") {
            found.extend(words.iter().flat_map(|word| pins(&word.text, word.line)));
        }
        if (is("docker") || is("podman")) && is("run") {
            found.extend(container(words));
        }
        for word in words.iter().filter(|word| word.text.contains("env_vars")) {
            let json = word.text.split_once('=').map_or(word.text.as_str(), |(_, json)| json);
            let variable = |one: Setting| {
                let name = one.key.strip_prefix("env_vars.")?;
                Some(Setting::new(format!("env.{name}"), one.value, word.line))
            };
            found.extend(config::json(json).unwrap_or_default().into_iter().filter_map(variable));
        }
    }
    found
}

/// Finds `NAME==VERSION` in a text.
fn pins(text: &str, line: usize) -> impl Iterator<Item = Setting> {
    text.split([' ', '"', '\'', ',', '[', ']']).filter_map(move |word| {
        let (name, version) = word.split_once("==")?;
        let is_name =
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        let name = name.to_ascii_lowercase().replace('-', "_");
        (is_name && version.starts_with(|c: char| c.is_ascii_digit()))
            .then(|| Setting::new(format!("version.{name}"), version, line))
    })
}

/// Reads `os.environ["NAME"] = "value"`.
fn python_variable(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix("os.environ[")?;
    let (name, rest) = rest.split_once(']')?;
    let value = rest.trim().strip_prefix('=')?.trim();
    // Expressions are not evaluated.
    let quote = value.chars().next().filter(|c| ['"', '\''].contains(c))?;
    let value = value[1..].split(quote).next()?;
    Some((name.trim_matches(['"', '\'']), value))
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

fn container(words: &[Word]) -> impl Iterator<Item = Setting> {
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
        // `--gpus all` and `--gpus device=...` have no number.
        let value = value.filter(|value| value.starts_with(|c: char| c.is_ascii_digit()))?;
        Some(Setting::new(key, value, word.line))
    })
}
