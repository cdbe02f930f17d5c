//! The run directory: one live run owns it, every file in it is whole or absent, and its event log only grows.
//!
//! `run.toml`, `plan.json`, `events.jsonl`, `samples/`, `checkpoints/step-N/` with `latest`, `summary.json`, and
//! `crash.json` after a failure. It refuses a directory that another run used or uses. It knows no tensors.

use crate::runfile::RunFile;
use plimsoll_base::{Error, Result};
use plimsoll_files::{fsync_dir, write_atomic};
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

const LOCK: &str = "lock";

/// A run directory that this process holds.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    events: EventLog,
    /// True if the directory was not there before.
    made: bool,
    /// Locked as long as it is open.
    _lock: File,
}

impl RunDir {
    /// Makes `path` the directory of this run, with `run.toml` and `plan.json`.
    ///
    /// Errors: `run-dir-locked`, `run-dir-not-empty`, `run-dir-unwritable`, `disk-full`; none leaves a new file behind.
    pub fn create(path: &Path, resolved: &RunFile, plan: &Value) -> Result<RunDir> {
        let made = !path.exists();
        fs::create_dir_all(path).map_err(|err| unwritable(path, &err))?;
        let was_locked = path.join(LOCK).exists();
        let lock = lock(path).inspect_err(|_| remove_if(made, path))?;
        if let Some(name) = first_entry(path)? {
            // The directory is somebody's: it stays as it was.
            if !was_locked {
                let _ = fs::remove_file(path.join(LOCK));
            }
            return Err(not_empty(path, &name));
        }
        fill(path, resolved, plan)
            .map(|events| RunDir { path: path.to_path_buf(), events, made, _lock: lock })
            .inspect_err(|_| empty(path, made))
    }

    /// Takes back what `create` made, for a run that ends before it begins.
    pub fn discard(&self) {
        empty(&self.path, self.made);
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The event log.
    pub fn events(&mut self) -> &mut EventLog {
        &mut self.events
    }

    /// Writes `samples/step-000010.jsonl`, one row a line.
    pub fn write_samples(&self, step: u32, rows: &[Value]) -> Result<()> {
        self.write_samples_named(&step_name(step), rows)
    }

    /// Writes `samples/NAME.jsonl`, one row a line.
    pub fn write_samples_named(&self, name: &str, rows: &[Value]) -> Result<()> {
        let mut text = String::new();
        for row in rows {
            text.push_str(&row.to_string());
            text.push('\n');
        }
        write_atomic(&self.path.join("samples").join(format!("{name}.jsonl")), text.as_bytes())
    }

    /// Writes `summary.json`.
    pub fn write_summary(&self, summary: &Value) -> Result<()> {
        write_json(&self.path.join("summary.json"), summary)
    }

    /// Writes `crash.json`: the error that ended the run at `step`, and what was measured last.
    pub fn write_crash(&self, error: &Error, step: u32, readings: &Value) -> Result<()> {
        let crash = json!({
            "slug": error.slug,
            "message": error.message,
            "facts": error.facts,
            "hints": error.hints,
            "exit": error.exit as i32,
            "step": step,
            "readings": readings,
        });
        write_json(&self.path.join("crash.json"), &crash)
    }

    /// An empty folder under a temporary name, to be filled and then given to `finish_checkpoint`.
    pub fn begin_checkpoint(&self, step: u32) -> Result<PathBuf> {
        let part = self.checkpoints().join(format!(".{}.part", step_name(step)));
        if part.exists() {
            fs::remove_dir_all(&part).map_err(|err| unwritable(&part, &err))?;
        }
        fs::create_dir(&part).map_err(|err| unwritable(&part, &err))?;
        Ok(part)
    }

    /// Renames the folder of `begin_checkpoint` to `checkpoints/step-000010`, points `latest` at it, and removes the
    /// oldest beyond `keep`. The files in it must be synced already.
    pub fn finish_checkpoint(&self, step: u32, keep: u32) -> Result<PathBuf> {
        let folder = self.checkpoints();
        let (part, whole) = (folder.join(format!(".{}.part", step_name(step))), folder.join(step_name(step)));
        fsync_dir(&part)?;
        if whole.exists() {
            fs::remove_dir_all(&whole).map_err(|err| unwritable(&whole, &err))?;
        }
        fs::rename(&part, &whole).map_err(|err| unwritable(&whole, &err))?;
        fsync_dir(&folder)?;
        point_latest(&folder, &step_name(step))?;
        prune(&folder, keep.max(1) as usize)?;
        Ok(whole)
    }

    /// Removes the folder of a checkpoint that could not be written.
    pub fn abandon_checkpoint(&self, step: u32) {
        let _ = fs::remove_dir_all(self.checkpoints().join(format!(".{}.part", step_name(step))));
    }

    fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }
}

/// `events.jsonl`: one JSON object a line, only ever longer.
#[derive(Debug)]
pub struct EventLog {
    path: PathBuf,
    file: File,
    length_bytes: u64,
}

impl EventLog {
    fn open(path: PathBuf) -> Result<EventLog> {
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(&path)
            .map_err(|err| unwritable(&path, &err))?;
        Ok(EventLog { path, file, length_bytes: 0 })
    }

    /// Appends `event` as one line, in one write. On an error the file ends with the line before.
    pub fn write(&mut self, event: &Value) -> Result<()> {
        let mut line = event.to_string();
        line.push('\n');
        if let Err(err) = self.file.write_all(line.as_bytes()) {
            let _ = self.file.set_len(self.length_bytes);
            return Err(unwritable(&self.path, &err));
        }
        self.length_bytes += line.len() as u64;
        Ok(())
    }
}

/// `step-000010`.
pub fn step_name(step: u32) -> String {
    format!("step-{step:06}")
}

fn fill(path: &Path, resolved: &RunFile, plan: &Value) -> Result<EventLog> {
    for name in ["samples", "checkpoints"] {
        fs::create_dir(path.join(name)).map_err(|err| unwritable(path, &err))?;
    }
    write_atomic(&path.join("run.toml"), resolved.to_toml().as_bytes())?;
    write_json(&path.join("plan.json"), plan)?;
    EventLog::open(path.join("events.jsonl"))
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value).expect("a JSON value has a JSON text");
    text.push('\n');
    write_atomic(path, text.as_bytes())
}

fn lock(path: &Path) -> Result<File> {
    let lock_path = path.join(LOCK);
    let mut options = OpenOptions::new();
    let mut file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&lock_path)
        .map_err(|err| unwritable(&lock_path, &err))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(locked(path, &mut file)),
        Err(TryLockError::Error(err)) => return Err(unwritable(&lock_path, &err)),
    }
    let written = file.set_len(0).and_then(|()| writeln!(file, "{}", plimsoll_worker::run_pid()));
    written.map_err(|err| unwritable(&lock_path, &err))?;
    Ok(file)
}

fn locked(path: &Path, file: &mut File) -> Error {
    let mut pid = String::new();
    let _ = file.read_to_string(&mut pid);
    let pid = if pid.trim().is_empty() { "unknown" } else { pid.trim() };
    Error::new("run-dir-locked", format!("{} is held by a live run, pid {pid}", path.display()))
        .hint(format!("wait for it or stop it: kill {pid}"))
        .hint(format!("choose another directory: --set run.dir={}", next_free(path).display()))
}

fn first_entry(path: &Path) -> Result<Option<String>> {
    let entries = fs::read_dir(path).map_err(|err| unwritable(path, &err))?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names.filter(|name| name != LOCK).min())
}

fn not_empty(path: &Path, name: &str) -> Error {
    Error::usage("run-dir-not-empty", format!("{} is not empty: it holds {name}", path.display()))
        .hint(format!("choose another directory: --set run.dir={}", next_free(path).display()))
        .hint("remove the directory if its run is not needed any more")
}

/// `path-2`, or the first such name that is free.
fn next_free(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let candidates = (2..1000).map(|number| path.with_file_name(format!("{name}-{number}")));
    candidates
        .into_iter()
        .find(|path| !path.exists())
        .unwrap_or_else(|| path.with_file_name(format!("{name}-new")))
}

fn unwritable(path: &Path, err: &std::io::Error) -> Error {
    match err.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            Error::io("disk-full", path, err).hint("make room, or choose another directory on a larger disk")
        }
        _ => Error::io("run-dir-unwritable", path, err)
            .hint("choose a directory that you may write: --set run.dir=PATH"),
    }
}

/// Removes what `fill` and `lock` made.
fn empty(path: &Path, made: bool) {
    for name in ["run.toml", "plan.json", "events.jsonl", LOCK] {
        let _ = fs::remove_file(path.join(name));
    }
    for name in ["samples", "checkpoints"] {
        let _ = fs::remove_dir(path.join(name));
    }
    remove_if(made, path);
}

fn remove_if(made: bool, path: &Path) {
    if made {
        let _ = fs::remove_file(path.join(LOCK));
        let _ = fs::remove_dir(path);
    }
}

/// A link under a temporary name, renamed, so that `latest` always names a whole checkpoint.
fn point_latest(folder: &Path, name: &str) -> Result<()> {
    let (part, latest) = (folder.join(".latest.part"), folder.join("latest"));
    let _ = fs::remove_file(&part);
    std::os::unix::fs::symlink(name, &part)
        .and_then(|()| fs::rename(&part, &latest))
        .map_err(|err| unwritable(&latest, &err))?;
    fsync_dir(folder)
}

fn prune(folder: &Path, keep: usize) -> Result<()> {
    let entries = fs::read_dir(folder).map_err(|err| unwritable(folder, &err))?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut steps: Vec<String> = names.filter(|name| name.starts_with("step-")).collect();
    // Six digits sort as numbers; runs of a million steps and more sort by length first.
    steps.sort_by_key(|name| (name.len(), name.clone()));
    for name in steps.iter().rev().skip(keep) {
        let old = folder.join(name);
        fs::remove_dir_all(&old).map_err(|err| unwritable(&old, &err))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_file() -> RunFile {
        let text = "method = \"sft\"\nmodel = \"m\"\n[train]\nsteps = 1\nlearning_rate = 0.1\n";
        toml::from_str(text).expect("a run file")
    }

    #[test]
    fn a_new_directory_has_its_files_and_is_held() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        let mut dir = RunDir::create(&path, &run_file(), &json!({"fits": true})).unwrap();
        dir.events().write(&json!({"step": 1})).unwrap();
        dir.events().write(&json!({"step": 2})).unwrap();
        assert_eq!(fs::read_to_string(path.join("events.jsonl")).unwrap(), "{\"step\":1}\n{\"step\":2}\n");
        dir.write_samples(10, &[json!({"a": 1})]).unwrap();
        assert_eq!(fs::read_to_string(path.join("samples/step-000010.jsonl")).unwrap(), "{\"a\":1}\n");
        dir.write_summary(&json!({"steps": 1})).unwrap();
        dir.write_crash(&Error::new("write-failed", "y"), 3, &Value::Null).unwrap();
        let resolved: RunFile = toml::from_str(&fs::read_to_string(path.join("run.toml")).unwrap()).unwrap();
        assert_eq!(resolved, run_file());

        let error = RunDir::create(&path, &run_file(), &Value::Null).unwrap_err();
        assert_eq!(error.slug, "run-dir-locked");
        assert!(error.message.contains(&std::process::id().to_string()), "{error}");
        drop(dir);
        let error = RunDir::create(&path, &run_file(), &Value::Null).unwrap_err();
        assert_eq!(error.slug, "run-dir-not-empty");
        assert!(error.to_string().contains("a/b-2"), "{error}");
    }

    #[test]
    fn latest_names_the_last_whole_checkpoint_and_old_ones_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        let dir = RunDir::create(&path, &run_file(), &Value::Null).unwrap();
        for step in [5, 10, 15] {
            let part = dir.begin_checkpoint(step).unwrap();
            fs::write(part.join("w"), step.to_string()).unwrap();
            dir.finish_checkpoint(step, 2).unwrap();
        }
        let part = dir.begin_checkpoint(20).unwrap();
        fs::write(part.join("w"), "torn").unwrap();
        assert_eq!(fs::read_to_string(path.join("checkpoints/latest/w")).unwrap(), "15");
        dir.abandon_checkpoint(20);
        let mut names: Vec<String> = fs::read_dir(path.join("checkpoints"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        assert_eq!(names, ["latest", "step-000010", "step-000015"]);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named_and_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "x").unwrap();
        for path in [file.clone(), file.join("below"), PathBuf::from("/proc/plimsoll")] {
            let error = RunDir::create(&path, &run_file(), &Value::Null).unwrap_err();
            assert_eq!(error.slug, "run-dir-unwritable", "{error}");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "x");
    }
}
