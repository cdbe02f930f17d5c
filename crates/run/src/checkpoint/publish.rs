//! The published part of a checkpoint: the model's files and the run file without secrets, but no states or samples.

use super::verbs::{self, Listed};
use super::{MANIFEST, Manifest, RUN_FILE, STATE};
use crate::shareable::{each_text, shareable};
use plimsoll_base::{Error, Result, read_small_text, without_secrets};
use plimsoll_files::{ADAPTER_CONFIG, FileRecord, record_of};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// Most files of a folder without a manifest; a model has a few dozen.
const FILES_MAX: usize = 1000;
/// Largest run file to publish.
const RUN_FILE_BYTES_MAX: u64 = 1 << 20;

/// A complete model, with facts about its run.
#[derive(Debug)]
pub struct Published {
    pub folder: PathBuf,
    /// Files of the model by name, in order.
    pub files: Vec<(String, FileRecord)>,
    /// Steps done; `None` for a folder without a manifest.
    pub step: Option<u32>,
    /// The model that the run began with.
    pub source: Option<String>,
    pub is_adapter: bool,
    /// The directory of the run, if the checkpoint is in one.
    pub run: Option<PathBuf>,
    /// The run file without secrets, as text and as a value; null without one.
    pub run_file: Option<String>,
    pub settings: Value,
}

/// Reads and verifies a run's newest checkpoint, the one at `path`, or a folder that `checkpoint export` made.
///
/// Errors: `checkpoint-missing`, `checkpoint-damaged`, `checkpoint-newer`.
pub fn published(path: &Path) -> Result<Published> {
    let has = |name: &str| path.join(name).is_file();
    if !has(MANIFEST) && (has("config.json") || has(ADAPTER_CONFIG)) {
        return of_folder(path);
    }
    let Listed { path: folder, .. } = verbs::newest(path)?;
    let manifest = Manifest::read(&folder)?;
    manifest.verify(&folder)?;
    let run = folder.parent().and_then(Path::parent).filter(|run| run.join("run.toml").is_file());
    let text = read_text(&folder.join(RUN_FILE)).map(|text| shared(&text));
    let files: Vec<(String, FileRecord)> =
        manifest.files.into_iter().filter(|(name, _)| !name.starts_with(STATE)).collect();
    Ok(Published {
        is_adapter: files.iter().any(|(name, _)| name == ADAPTER_CONFIG),
        files,
        step: Some(manifest.step),
        source: Some(without_secrets(&manifest.source)),
        run: run.map(Path::to_path_buf),
        settings: text.as_ref().map_or(Value::Null, |(_, value)| value.clone()),
        run_file: text.map(|(text, _)| text),
        folder,
    })
}

fn of_folder(path: &Path) -> Result<Published> {
    let unreadable = |err: &std::io::Error| Error::io("checkpoint-missing", path, err);
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(|err| unreadable(&err))?.take(FILES_MAX) {
        let entry = entry.map_err(|err| unreadable(&err))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // A link could lead anywhere.
        if !name.starts_with('.') && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            files.push((name, record_of(&entry.path()).map_err(|err| unreadable(&err))?));
        }
    }
    files.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(Published {
        folder: path.to_path_buf(),
        is_adapter: path.join(ADAPTER_CONFIG).is_file(),
        files,
        step: None,
        source: None,
        run: None,
        run_file: None,
        settings: Value::Null,
    })
}

fn read_text(path: &Path) -> Option<String> {
    read_small_text(path, RUN_FILE_BYTES_MAX).ok()
}

/// Returns a run file without secrets and with `~` for the home folder in paths: as text, and as a value.
fn shared(run_file: &str) -> (String, Value) {
    let Some(mut table) = shareable(run_file) else { return (String::new(), Value::Null) };
    let home = std::env::var("HOME").ok().filter(|home| home.len() > 1);
    each_text(&mut table, &|text| *text = below_home(text, home.as_deref()));
    (table.to_string(), json!(table))
}

fn below_home(text: &str, home: Option<&str>) -> String {
    home.map_or_else(|| text.to_string(), |home| text.replace(&format!("{home}/"), "~/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_file_is_published_without_secrets_and_without_the_home_folder() {
        let (text, value) = shared("model = \"m\"\napi_key = \"k1\"\n[track]\nproject = \"k2\"\n");
        assert!(!text.contains("k1") && !text.contains("k2") && value["model"] == "m", "{text}");
        assert_eq!(below_home("/home/me/data/x.jsonl", Some("/home/me")), "~/data/x.jsonl");
        assert_eq!(shared("not = = toml"), (String::new(), Value::Null));
    }
}
