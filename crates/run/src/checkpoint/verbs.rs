//! The checkpoint commands that need no device: list, verify, export.

use super::{Finding, Manifest, RunState, STATE, Store};
use plimsoll_base::{Error, Result};
use plimsoll_files::{check_output_folder, fsync_dir, output_error};
use serde::Serialize;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// A checkpoint, as its manifest and its counters describe it.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// Steps done; none if the manifest is unreadable.
    pub step: Option<u32>,
    pub path: PathBuf,
    pub bytes: u64,
    /// True if a run can be resumed from it.
    pub resumable: bool,
    pub latest: bool,
    /// True if it has the highest evaluation so far.
    pub best: bool,
    pub eval: Option<f64>,
    /// The error message of its damage.
    pub damage: Option<String>,
    /// The files that are not what was written, after `verify`.
    pub damaged_files: Vec<Finding>,
}

impl Listed {
    /// Returns a line for each damaged file: its path, its bytes and its sums.
    pub fn damaged_lines(&self) -> Vec<String> {
        let line = |found: &Finding| format!("{}: {}", self.path.join(&found.file).display(), found.what);
        match (&self.damage, &self.damaged_files[..]) {
            // The manifest itself, which the message names.
            (Some(damage), []) => vec![damage.clone()],
            (_, files) => files.iter().map(line).collect(),
        }
    }
}

/// Lists the checkpoints of a run, ascending, or the one at `path`. Reads manifests, not files.
///
/// Errors: `checkpoint-missing`.
pub fn list(path: &Path) -> Result<Vec<Listed>> {
    let (folders, latest) = checkpoints(path)?;
    let mut listed: Vec<Listed> =
        folders.into_iter().map(|folder| entry(folder, latest.as_deref())).collect();
    // The newest checkpoint knows which one is the best.
    let newest = listed.iter().rev().find(|entry| entry.damage.is_none() && entry.resumable);
    let best = newest.and_then(|entry| RunState::read(&entry.path).ok()?.progress.best);
    for entry in &mut listed {
        entry.best = best.is_some_and(|best| entry.step == Some(best.step));
    }
    Ok(listed)
}

/// Reads every file of the checkpoints of a run, or of the one at `path`, and finds the bytes that differ.
///
/// Errors: `checkpoint-missing`. Damage to a checkpoint is reported in its entry.
pub fn verify(path: &Path) -> Result<Vec<Listed>> {
    let mut listed = list(path)?;
    for entry in listed.iter_mut().filter(|entry| entry.damage.is_none()) {
        match Manifest::read(&entry.path) {
            Err(error) => entry.damage = Some(words(&error)),
            Ok(manifest) => entry.damaged_files = manifest.findings(&entry.path),
        }
        if !entry.damaged_files.is_empty() {
            let names: Vec<&str> = entry.damaged_files.iter().map(|found| found.file.as_str()).collect();
            entry.damage = Some(format!("checkpoint-damaged: {}", names.join(", ")));
        }
    }
    Ok(listed)
}

/// Copies the newest checkpoint of a run, or the one at `path`, as a plain Hugging Face folder, or as peft's folder of an adapter. It
/// gets its name when it is complete; the place is checked before the checkpoint is read.
///
/// Errors: `checkpoint-missing`, `checkpoint-damaged`, `checkpoint-newer`, `export-exists`, `output-unwritable`,
/// `disk-full`, `write-failed`.
pub fn export(path: &Path, to: &Path) -> Result<Listed> {
    let entry = newest(path)?;
    check_target(to)?;
    let manifest = Manifest::read(&entry.path)?;
    manifest.verify(&entry.path)?;
    let is_model = |file: &&String| !file.starts_with(STATE);
    fill_folder(to, |part| {
        let copied =
            manifest.files.keys().filter(is_model).try_for_each(|file| copy(&entry.path, part, file));
        copied.map_err(|err| output_error(to, &err))
    })?;
    Ok(entry)
}

/// Returns the newest checkpoint of a run, or the one at `path`.
///
/// Errors: `checkpoint-missing`.
pub(super) fn newest(path: &Path) -> Result<Listed> {
    let mut listed = list(path)?;
    let newest = listed.iter().rposition(|entry| entry.latest).unwrap_or(listed.len() - 1);
    Ok(listed.swap_remove(newest))
}

/// Requires that a folder can be made.
///
/// Errors: `export-exists`, `output-unwritable`.
pub(super) fn check_target(to: &Path) -> Result<()> {
    if to.symlink_metadata().is_ok() {
        return Err(Error::usage("export-exists", format!("{} already exists", to.display()))
            .hint("choose another folder, or remove it"));
    }
    if to.file_name().is_none() {
        return Err(Error::usage("export-exists", format!("{} is not a valid folder name", to.display()))
            .hint("give a folder that does not exist yet"));
    }
    check_output_folder(above(to))
}

/// Makes the folder `to`: `fill` writes into one of another name, which gets its own when all is there. No partial folder is left.
pub(super) fn fill_folder(to: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let name = to.file_name().expect("a target that was checked").to_string_lossy();
    let part = above(to).join(format!(".{name}.{}.part", std::process::id()));
    let failed = |err: io::Error| output_error(to, &err);
    let finished = fs::create_dir_all(above(to))
        .and_then(|()| fs::create_dir(&part))
        .map_err(failed)
        .and_then(|()| fill(&part))
        .and_then(|()| fs::rename(&part, to).map_err(failed));
    if finished.is_err() {
        let _ = fs::remove_dir_all(&part);
    }
    finished.and_then(|()| fsync_dir(above(to)))
}

fn above(to: &Path) -> &Path {
    to.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn copy(from: &Path, to: &Path, file: &str) -> io::Result<()> {
    let (mut source, mut target) = (File::open(from.join(file))?, File::create_new(to.join(file))?);
    io::copy(&mut source, &mut target)?;
    target.sync_all()
}

/// Returns the folders that `path` means, and the one that `latest` points at.
fn checkpoints(path: &Path) -> Result<(Vec<PathBuf>, Option<PathBuf>)> {
    let missing = || {
        Error::new("checkpoint-missing", format!("{}: there is no checkpoint", path.display()))
            .hint("give a run directory or one of its checkpoints/step-N")
    };
    if path.join(super::MANIFEST).exists() {
        let folder = path.canonicalize().map_err(|_| missing())?;
        return Ok((vec![folder.clone()], Some(folder)));
    }
    let in_run = Store::of_run(path);
    let store = if in_run.steps().is_empty() {
        let above = path.file_name().filter(|name| *name == "checkpoints").and(path.parent());
        Store::of_run(above.ok_or_else(missing)?)
    } else {
        in_run
    };
    let folders: Vec<PathBuf> = store.steps().into_iter().map(|step| store.path(step)).collect();
    if folders.is_empty() {
        return Err(missing());
    }
    let latest = fs::read_link(store.folder().join("latest")).ok();
    Ok((folders, latest.map(|name| store.folder().join(name))))
}

fn entry(path: PathBuf, latest: Option<&Path>) -> Listed {
    let latest = latest == Some(&path);
    let blank = Listed {
        step: None,
        path,
        bytes: 0,
        resumable: false,
        latest,
        best: false,
        eval: None,
        damage: None,
        damaged_files: Vec::new(),
    };
    match Manifest::read(&blank.path) {
        Err(error) => Listed { damage: Some(words(&error)), ..blank },
        Ok(manifest) => {
            let state = if manifest.resumable { RunState::read(&blank.path).ok() } else { None };
            let progress = state.map(|state| state.progress);
            let eval = progress.filter(|p| p.last_eval_step == Some(p.step)).and_then(|p| p.last_eval);
            let (step, bytes, resumable) = (Some(manifest.step), manifest.bytes(), manifest.resumable);
            Listed { step, bytes, resumable, eval, ..blank }
        }
    }
}

fn words(error: &Error) -> String {
    format!("{}: {}", error.slug, error.message)
}
