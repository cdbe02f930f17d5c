//! What a case leaves, as named values by column: files as digests, JSON leaf by leaf.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::readings;
use crate::{soak::leaves::leaves, tree::files_below};

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Plan,
    Weights,
    Samples,
    Events,
    Checkpoints,
    Summary,
}

impl Kind {
    pub const ALL: [Kind; 6] =
        [Kind::Plan, Kind::Weights, Kind::Samples, Kind::Events, Kind::Checkpoints, Kind::Summary];

    pub fn name(self) -> &'static str {
        ["plan", "weights", "samples", "events", "checkpoints", "summary"][self as usize]
    }
}

/// Values by name: a path in the case's folder, plus the key of a JSON leaf.
#[derive(Default, PartialEq)]
pub struct Artefacts([BTreeMap<String, String>; 6]);

impl Artefacts {
    pub fn of(&self, kind: Kind) -> &BTreeMap<String, String> {
        &self.0[kind as usize]
    }

    pub fn insert(&mut self, kind: Kind, name: &str, value: String) {
        self.0[kind as usize].insert(name.to_string(), value);
    }

    /// Removes values whose names contain one of these.
    pub fn without<'t>(mut self, texts: impl Iterator<Item = &'t str>) -> Artefacts {
        for text in texts {
            self.0.iter_mut().for_each(|values| values.retain(|name, _| !name.contains(text)));
        }
        self
    }

    /// Returns the SHA-256 over the names and values of a column; `None` if it is empty.
    pub fn digest(&self, kind: Kind) -> Option<String> {
        let text: String = self.of(kind).iter().map(|(name, value)| format!("{name}\0{value}\0")).collect();
        (!text.is_empty()).then(|| sha256(text.as_bytes()))
    }

    /// Adds a command's output: the leaves of its JSON lines, or its text without comment lines.
    pub fn add_output(&mut self, kind: Kind, name: &str, text: &str) {
        for (index, line) in text.lines().filter(|line| !line.trim_start().starts_with('#')).enumerate() {
            let name = format!("{name} line {}", index + 1);
            match leaves(line).filter(|_| line.starts_with('{')) {
                Some(leaves) => self.add_leaves(kind, &name, leaves),
                None => self.insert(kind, &name, line.to_string()),
            }
        }
    }

    /// Adds every file that a run leaves below `folder`.
    pub fn add_folder(&mut self, folder: &Path) -> Result<(), String> {
        let paths = files_below(folder).map_err(|err| format!("{}: {err}", folder.display()))?;
        for path in &paths {
            self.add_file(folder, path).map_err(|err| format!("{path}: {err}"))?;
        }
        // The newest checkpoint of each run: names sort by step.
        let is_weights =
            |path: &&String| path.contains("/checkpoints/step-") && path.ends_with("/model.safetensors");
        let newest: BTreeMap<Option<&str>, &String> =
            paths.iter().filter(is_weights).map(|path| (path.split("/checkpoints/").next(), path)).collect();
        for path in newest.values() {
            let digest = self.of(Kind::Checkpoints).get(*path).expect("it is a checkpoint's").clone();
            self.insert(Kind::Weights, path, digest);
        }
        Ok(())
    }

    fn add_file(&mut self, folder: &Path, path: &str) -> Result<(), String> {
        let Some(kind) = kind_of(path) else { return Ok(()) };
        let full = folder.join(path);
        if full.is_symlink() {
            let target = fs::read_link(&full).map_err(|err| err.to_string())?;
            self.insert(kind, path, target.display().to_string());
            return Ok(());
        }
        let bytes = fs::read(&full).map_err(|err| err.to_string())?;
        let text = || String::from_utf8(bytes.clone()).map_err(|err| err.to_string());
        let not_json = || "not JSON".to_string();
        match path.rsplit('/').next().unwrap_or(path) {
            "events.jsonl" => self.add_events(path, &text()?),
            "plan.json" => self.add_plan(path, &text()?),
            "state.json" | "manifest.json" | "summary.json" => {
                leaves(&text()?).map(|leaves| self.add_leaves(kind, path, leaves)).ok_or_else(not_json)
            }
            _ => {
                self.insert(kind, path, sha256(&bytes));
                Ok(())
            }
        }
    }

    fn add_leaves(&mut self, kind: Kind, name: &str, leaves: Vec<(String, String)>) {
        for (key, value) in leaves.into_iter().filter(|(key, _)| !readings::is_reading(name, key)) {
            self.insert(kind, &format!("{name} {key}"), value);
        }
    }

    fn add_events(&mut self, path: &str, text: &str) -> Result<(), String> {
        let mut index = 0;
        for line in text.lines() {
            let leaves = leaves(line).ok_or_else(|| format!("not JSON: {line}"))?;
            let name =
                leaves.iter().find(|(key, _)| key == "event").map_or("", |(_, name)| name.trim_matches('"'));
            if !readings::is_reading_event(name) {
                index += 1;
                let name = format!("{path} {index} {name}");
                self.add_leaves(Kind::Events, &name, leaves);
            }
        }
        Ok(())
    }

    /// Adds a plan without the rows of the binary, both in its list and in the host pool's totals.
    pub fn add_plan(&mut self, path: &str, text: &str) -> Result<(), String> {
        let mut leaves = leaves(text).ok_or("not JSON")?;
        let mut bytes_of_binary = 0;
        for (row, _) in readings::PLAN_ROWS {
            let row = format!("\"{row}\"");
            let Some(start) = leaves.iter().find(|(key, name)| *name == row && key.ends_with("].name"))
            else {
                continue;
            };
            let start = start.0.trim_end_matches("name").to_string();
            let bytes = leaves.iter().find(|(key, _)| *key == format!("{start}bytes"));
            bytes_of_binary +=
                bytes.and_then(|(_, text)| text.parse::<i64>().ok()).ok_or("a row without bytes")?;
            leaves.retain(|(key, _)| !key.starts_with(&start));
        }
        for (key, value) in &mut leaves {
            if key.starts_with("pools.host.")
                && let Ok(bytes) = value.parse::<i64>()
            {
                *value = (bytes - bytes_of_binary).to_string();
            }
        }
        self.add_leaves(Kind::Plan, path, leaves);
        Ok(())
    }
}

/// Returns the names whose values differ or that one side lacks, with both values, in order.
pub fn differences(old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> Vec<String> {
    let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
    names.sort();
    names.dedup();
    let word = |value: Option<&String>| {
        value.map_or("absent".into(), |value| value.chars().take(60).collect::<String>())
    };
    names
        .into_iter()
        .filter(|name| old.get(*name) != new.get(*name))
        .map(|name| format!("{name}: {} -> {}", word(old.get(name)), word(new.get(name))))
        .collect()
}

/// Returns the column of a file; `None` for locks, caches and inputs.
fn kind_of(path: &str) -> Option<Kind> {
    let name = path.rsplit('/').next().unwrap_or(path);
    match name {
        "lock" => None,
        "events.jsonl" => Some(Kind::Events),
        _ if path.contains("/checkpoints/") => Some(Kind::Checkpoints),
        _ if path.contains("/samples/") => Some(Kind::Samples),
        "plan.json" | "run.toml" => Some(Kind::Plan),
        "summary.json" | "curves.svg" => Some(Kind::Summary),
        _ => Some(Kind::Samples),
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run directory of a few files.
    fn run(folder: &Path) {
        let write = |path: &str, text: &str| {
            let path = folder.join("run").join(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        write("lock", "17");
        write(
            "events.jsonl",
            "{\"event\":\"step\",\"reward\":0.5,\"seconds\":1.0}\n{\"event\":\"trend\",\"step\":1}\n",
        );
        write(
            "plan.json",
            "{\"pools\":{\"host\":{\"peak_bytes\":30}},\"regions\":[{\"name\":\"process.image\",\"bytes\":20},{\"name\":\"a\",\"bytes\":10}]}",
        );
        write("samples/step-000001.jsonl", "{}");
        write("checkpoints/step-000001/model.safetensors", "one");
        write("checkpoints/step-000002/model.safetensors", "two");
        write("checkpoints/step-000002/state/state.json", "{\"seed\":1,\"build\":\"x\"}");
        write("summary.json", "{\"steps\":2,\"seconds\":3}");
    }

    fn read(folder: &Path) -> Artefacts {
        let mut artefacts = Artefacts::default();
        artefacts.add_folder(folder).expect("it is readable");
        artefacts
    }

    /// One byte of any artefact is a difference in its own column; clocks are none.
    #[test]
    fn one_byte_is_noticed() {
        let folder = std::env::temp_dir().join(format!("plimsoll-same-bits-test-{}", std::process::id()));
        let cases: [(&str, &str, &str, &[Kind]); 9] = [
            ("samples/step-000001.jsonl", "{}", "[]", &[Kind::Samples]),
            ("checkpoints/step-000001/model.safetensors", "one", "onf", &[Kind::Checkpoints]),
            ("checkpoints/step-000002/model.safetensors", "two", "twp", &[Kind::Weights, Kind::Checkpoints]),
            ("checkpoints/step-000002/state/state.json", "1", "2", &[Kind::Checkpoints]),
            ("checkpoints/step-000002/state/state.json", "x", "y", &[]),
            ("events.jsonl", "0.5", "0.6", &[Kind::Events]),
            ("events.jsonl", "1.0", "1.5", &[]),
            ("summary.json", "2", "4", &[Kind::Summary]),
            ("lock", "17", "18", &[]),
        ];
        for (path, from, to, expect) in cases {
            run(&folder);
            let whole = read(&folder);
            let path = folder.join("run").join(path);
            let text = fs::read_to_string(&path).expect("it is there").replacen(from, to, 1);
            fs::write(&path, text).expect("it is written");
            let changed = read(&folder);
            let found: Vec<Kind> =
                Kind::ALL.into_iter().filter(|&kind| whole.of(kind) != changed.of(kind)).collect();
            assert_eq!(found, expect, "{}: {from} -> {to}", path.display());
        }
        let _ = fs::remove_dir_all(&folder);
    }

    #[test]
    fn a_plan_is_compared_without_the_binary() {
        let plan = |image: u32, kernel: u32, other: u32| {
            let total = image + kernel + other;
            let text = format!(
                "{{\"pools\":{{\"host\":{{\"peak_bytes\":{total}}}}},\"regions\":[{{\"name\":\"a\",\"bytes\":{other}}},\
                 {{\"name\":\"process.image\",\"bytes\":{image}}},{{\"name\":\"kernel.memory\",\"bytes\":{kernel}}}]}}"
            );
            let mut artefacts = Artefacts::default();
            artefacts.add_plan("plan.json", &text).expect("it is a plan");
            artefacts
        };
        assert!(plan(20, 3, 10) == plan(22, 4, 10));
        assert!(plan(20, 3, 10) != plan(20, 3, 11));
        assert_eq!(plan(20, 3, 10).of(Kind::Plan)["plan.json pools.host.peak_bytes"], "10");
    }

    #[test]
    fn differences_name_both_values() {
        let map =
            |items: &[(&str, &str)]| items.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let found = differences(&map(&[("a", "1"), ("b", "2")]), &map(&[("b", "3"), ("c", "4")]));
        assert_eq!(found, ["a: 1 -> absent", "b: 2 -> 3", "c: absent -> 4"]);
    }

    #[test]
    fn printed_comments_are_left_out() {
        let mut artefacts = Artefacts::default();
        artefacts.add_output(Kind::Summary, "out", "# a\nx = 1\n{\"a\":1,\"seconds\":2}\n");
        let found: Vec<(&str, &str)> =
            artefacts.of(Kind::Summary).iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(found, [("out line 1", "x = 1"), ("out line 2 a", "1")]);
    }
}
