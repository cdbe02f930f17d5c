//! Keeps what a reproduction's folder remembers between two calls (`state.json`), and the results that the repository
//! keeps.

use plimsoll_base::{Error, Result, read_small_text};
use plimsoll_files::write_atomic;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Largest file of results or of a folder's state.
const BYTES_MAX: u64 = 16 << 20;

/// Holds what was done in a folder.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FolderState {
    /// sha256 of the reproduction's own files when it began.
    pub files: BTreeMap<String, String>,
    /// sha256 of its data.
    pub data: BTreeMap<String, String>,
    /// Run files of the stages that ended.
    pub done: BTreeSet<String>,
    /// Settings that were other than those of the files in any call.
    pub differs: BTreeSet<String>,
}

impl FolderState {
    /// Reads the state in a file; a new one if it is not there.
    ///
    /// Errors: `reproduction-changed` for a file that is no state.
    pub fn read(path: &Path) -> Result<FolderState> {
        if !path.exists() {
            return Ok(FolderState::default());
        }
        let text = read_small_text(path, BYTES_MAX).map_err(|err| err.to_string());
        let read = text.and_then(|text| serde_json::from_str(&text).map_err(|err| err.to_string()));
        read.map_err(|why| {
            Error::new("reproduction-changed", format!("{}: {why}", path.display()))
                .hint("give --out another folder, or remove this one to begin again")
        })
    }

    /// Requires that the reproduction's own files are those that it began with, and remembers them.
    ///
    /// Errors: `reproduction-changed`.
    pub fn keep_files(&mut self, files: BTreeMap<String, String>) -> Result<()> {
        let changed = self.files.iter().find(|(name, hash)| files.get(*name) != Some(hash));
        if let Some((name, _)) = changed {
            let message = format!("{name} is another file than the one that this folder began with");
            return Err(Error::new("reproduction-changed", message)
                .fact("its stages would be runs of two reproductions")
                .hint("give --out another folder, or remove this one to begin again"));
        }
        self.files = files;
        Ok(())
    }

    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).expect("names and texts have a JSON form");
        write_atomic(path, text.as_bytes())
    }
}

/// Holds what a reproduction came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReproductionResult {
    pub name: String,
    pub reproduced: bool,
    pub metric: String,
    pub value: f64,
    pub published: f64,
    pub tolerance: f64,
    /// `YYYY-MM-DD`.
    pub date: String,
    pub machine: String,
    /// The time of training, evaluations included.
    pub seconds: f64,
    /// Settings other than those of the files.
    #[serde(default)]
    pub differs: BTreeSet<String>,
    /// Evaluations of the last stage: step and score.
    #[serde(default)]
    pub curve: Vec<(u32, f64)>,
}

/// Puts a result into the list in the file at `path`, in place of an earlier one of its name.
///
/// Errors: `write-failed`, `reproduction-changed` for a file that is no such list.
pub fn keep(path: &Path, result: &ReproductionResult) -> Result<()> {
    let text = if path.exists() { read_small_text(path, BYTES_MAX) } else { Ok("[]".into()) };
    let text =
        text.map_err(|err| Error::io("write-failed", path, &err).hint("give --record another file"))?;
    let mut all: Vec<ReproductionResult> = serde_json::from_str(&text).map_err(|err| {
        Error::new("reproduction-changed", format!("{}: {err}", path.display()))
            .hint("give --record a file that it wrote, or a new one")
    })?;
    all.retain(|other| other.name != result.name);
    all.push(result.clone());
    all.sort_by(|a, b| a.name.cmp(&b.name));
    let text = serde_json::to_string_pretty(&all).expect("numbers and texts have a JSON form");
    write_atomic(path, (text + "\n").as_bytes())
}
