//! The checkpoint commands that need no device: list, verify, export.

use super::{Finding, Manifest, RunState, STATE, Store};
use plimsoll_base::{Bytes, Error, Result, open_regular};
use plimsoll_files::{check_output_folder, fsync_dir, output_error, rename_new};
use plimsoll_memory::host::free_disk_above;
use serde::Serialize;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// A checkpoint, as its manifest and counters describe it.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// Steps done; `None` if the manifest is unreadable.
    pub step: Option<u32>,
    pub path: PathBuf,
    pub bytes: u64,
    /// True if a run can be resumed from it.
    pub resumable: bool,
    pub latest: bool,
    /// True if it has the highest evaluation so far.
    pub best: bool,
    pub eval: Option<f64>,
    /// Error message about its damage.
    pub damage: Option<String>,
    /// Files that differ from what was written; filled by `verify`.
    pub damaged_files: Vec<Finding>,
}

impl Listed {
    /// Returns a line for each damaged file: its path, bytes and sums.
    pub fn damaged_lines(&self) -> Vec<String> {
        let line = |found: &Finding| format!("{}: {}", self.path.join(&found.file).display(), found.what);
        match (&self.damage, &self.damaged_files[..]) {
            // The manifest itself, which the message names.
            (Some(damage), []) => vec![damage.clone()],
            (_, files) => files.iter().map(line).collect(),
        }
    }
}

/// Lists the checkpoints of a run, ascending, or the one at `path`. Reads only manifests.
///
/// Errors: `checkpoint-missing`.
pub fn list(path: &Path) -> Result<Vec<Listed>> {
    let (folders, latest) = checkpoints(path)?;
    let mut listed: Vec<Listed> =
        folders.into_iter().map(|folder| entry(folder, latest.as_deref())).collect();
    // The newest checkpoint knows the best one.
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

/// Copies the newest checkpoint of a run, or the one at `path`, as a plain Hugging Face folder, or a peft folder for an
/// adapter. It gets its name only when complete; the target is checked before the checkpoint is read.
///
/// Errors: `checkpoint-missing`, `checkpoint-damaged`, `checkpoint-newer`, `export-exists`, `output-unwritable`,
/// `disk-full`, `write-failed`.
pub fn export(path: &Path, to: &Path) -> Result<Listed> {
    let entry = newest(path)?;
    check_target(to)?;
    let manifest = Manifest::read(&entry.path)?;
    let is_model = |file: &&String| !file.starts_with(STATE);
    let needed =
        manifest.files.iter().filter(|(file, _)| is_model(file)).map(|(_, record)| record.bytes).sum();
    check_room(to, Bytes(needed))?;
    manifest.verify(&entry.path)?;
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

/// Checks that the target is free and can be made.
///
/// Errors: `export-exists`, `output-unwritable`.
pub(super) fn check_target(to: &Path) -> Result<()> {
    if to.symlink_metadata().is_ok() {
        return Err(Error::usage("export-exists", format!("{} already exists", to.display()))
            .hint("choose another name, or remove it"));
    }
    if to.file_name().is_none() {
        return Err(Error::usage("export-exists", format!("{} is not a valid name", to.display()))
            .hint("give a name that does not exist yet"));
    }
    check_output_folder(above(to))
}

/// Checks that the disk of `to` has room for an export.
///
/// Errors: `disk-full`.
pub(super) fn check_room(to: &Path, needed: Bytes) -> Result<()> {
    match free_disk_above(to) {
        Some((free, place)) if free < needed => {
            let (to, place) = (to.display(), place.display());
            let message = format!("{to}: the export needs {needed}, {free} are free on the disk of {place}");
            Err(Error::new("disk-full", message).hint("free some space, or choose a place on another disk"))
        }
        _ => Ok(()),
    }
}

/// Makes the folder `to`: `fill` writes it under a temporary name, and it is renamed when complete.
pub(super) fn fill_folder<T>(to: &Path, fill: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    finish(to, |part| {
        fs::create_dir(part).map_err(|err| output_error(to, &err))?;
        fill(part).inspect_err(|_| drop(fs::remove_dir_all(part)))
    })
}

/// Makes the file `to`, like `fill_folder`. `fill` leaves nothing if it fails.
pub(super) fn fill_file<T>(to: &Path, fill: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    finish(to, fill)
}

/// Calls `fill` with a name next to `to`, then renames the result to `to`, unless that exists by then.
fn finish<T>(to: &Path, fill: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let name = to.file_name().expect("a target that was checked").to_string_lossy();
    let part = above(to).join(format!(".{name}.{}.part", std::process::id()));
    let failed = |err: io::Error| output_error(to, &err);
    fs::create_dir_all(above(to)).map_err(failed)?;
    let made = fill(&part)?;
    rename_new(&part, to).map_err(failed).inspect_err(|_| {
        let _ = fs::remove_dir_all(&part);
        let _ = fs::remove_file(&part);
    })?;
    fsync_dir(above(to))?;
    Ok(made)
}

fn above(to: &Path) -> &Path {
    to.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn copy(from: &Path, to: &Path, file: &str) -> io::Result<()> {
    let (mut source, mut target) = (open_regular(&from.join(file))?, File::create_new(to.join(file))?);
    io::copy(&mut source, &mut target)?;
    target.sync_all()
}

/// Returns the checkpoint folders that `path` denotes, and the one that `latest` points at.
fn checkpoints(path: &Path) -> Result<(Vec<PathBuf>, Option<PathBuf>)> {
    let missing = || {
        Error::new("checkpoint-missing", format!("{}: there is no checkpoint", path.display()))
            .hint("give a run directory or one of its checkpoints/step-N")
    };
    if path.join(super::MANIFEST).exists() {
        let folder = path.canonicalize().map_err(|_| missing())?;
        let latest = folder.parent().and_then(|of| of.join("latest").canonicalize().ok());
        return Ok((vec![folder], latest));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_without_room_names_both_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("not/there/yet.gguf");
        check_room(&to, Bytes(1)).unwrap();
        let error = check_room(&to, Bytes(u64::MAX)).unwrap_err();
        assert_eq!(error.slug, "disk-full");
        assert!(
            error.message.contains("yet.gguf: the export needs 1") && error.message.contains(" are free on "),
            "{error}"
        );
    }

    #[test]
    fn what_was_made_meanwhile_is_kept_and_a_failure_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let names = || fs::read_dir(folder.path()).unwrap().count();
        let to = folder.path().join("m.gguf");
        let failed = || Error::new("write-failed", "no");
        assert_eq!(
            fill_folder(&to, |part| fs::write(part.join("x"), "y")
                .map_err(|_| failed())
                .and(Err::<(), _>(failed())))
            .unwrap_err()
            .slug,
            "write-failed"
        );
        assert_eq!(names(), 0);
        let error = fill_file(&to, |part| {
            fs::write(&to, "theirs").and_then(|()| fs::write(part, "ours")).map_err(|_| failed())
        });
        assert_eq!(error.unwrap_err().slug, "output-unwritable");
        assert_eq!((fs::read_to_string(&to).unwrap().as_str(), names()), ("theirs", 1));
    }
}
