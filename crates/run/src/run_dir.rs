//! The run directory: one live run owns it, every file in it is complete or absent, and its event log only grows.
//!
//! `run.toml`, `plan.json`, `events.jsonl`, `samples/`, `checkpoints/step-N/` with `latest` and `best`, `ranks.json`
//! with several ranks, `summary.json` and `curves.svg` at the end, `crash.json` after a failure. It refuses a directory
//! in use, one used by another run unless resumed, and a symbolic link in place of a file. It knows no tensors.

use crate::checkpoint::Store;
use crate::linked::RANKS_FILE;
use crate::replace::{CHECKPOINTS, FILES, FOLDERS as OWN_FOLDERS, has_room, make_room};
use plimsoll_base::{Error, Result, read_small_text};
use plimsoll_files::{check_folder, write_atomic};
use serde::Serialize;
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Opens a file without following it if it has become a link since it was checked.
const NO_LINK: i32 = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
/// Longest run file of an earlier process; written by hand they are under 1 MiB.
const TEXT_BYTES_MAX: u64 = 16 << 20;
const LOCK: &str = "lock";
const FOLDERS: [&str; 2] = ["samples", CHECKPOINTS];
/// Longest wait for the directory of a killed run: a trainer frees its memory only after its supervisor is gone.
const LEAVING_MAX: Duration = Duration::from_secs(10);
const LEAVING_LOOK: Duration = Duration::from_millis(10);

/// A run directory that this process holds.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    events: EventLog,
    /// True if this process made the directory.
    made: bool,
    /// True if an earlier process of the same run made its contents.
    taken_up: bool,
    /// Locked while open.
    _lock: File,
}

impl RunDir {
    /// Makes `path` the directory of this run, with `run.toml` and `plan.json`. `overwrite` removes an earlier run's
    /// files; those of a run that made no step are always removed.
    ///
    /// Errors: `run-dir-locked`, `run-dir-not-empty`, `run-dir-unwritable`, `disk-full`; none leaves a new file.
    pub fn create(path: &Path, run_file: &str, plan: &Value, overwrite: bool) -> Result<RunDir> {
        let made = !path.exists();
        fs::create_dir_all(path).map_err(|err| unwritable(path, &err))?;
        refuse_links(path)?;
        let was_locked = path.join(LOCK).exists();
        let lock = lock(path).inspect_err(|_| remove_if(made, path))?;
        if let Some(name) = first_entry(path)?
            && !make_room(path, LOCK, overwrite).map_err(|(file, err)| unwritable(&file, &err))?
        {
            // The directory belongs to something else and stays unchanged.
            if !was_locked {
                let _ = fs::remove_file(path.join(LOCK));
            }
            return Err(not_empty(path, &name));
        }
        fill(path, run_file, plan)
            .map(|events| RunDir { path: path.to_path_buf(), events, made, taken_up: false, _lock: lock })
            .inspect_err(|_| empty(path, made))
    }

    /// Checks that `create` can make `path` a new run's directory, before models and data are read. Changes nothing.
    ///
    /// Errors: see `create`.
    pub fn check(path: &Path, overwrite: bool) -> Result<()> {
        check_folder(path).map_err(|err| unwritable(path, &err))?;
        if !path.exists() {
            return Ok(());
        }
        refuse_links(path)?;
        let _lock = path.join(LOCK).exists().then(|| lock(path)).transpose()?;
        match first_entry(path)? {
            Some(name) if !has_room(path, LOCK, overwrite) => Err(not_empty(path, &name)),
            _ => Ok(()),
        }
    }

    /// Opens the directory of an earlier process of this run; `None` if no run got as far as `plan.json`.
    ///
    /// Errors: `run-dir-locked`, `run-dir-not-empty`, `run-dir-unwritable`, `symlink-refused`.
    pub fn take_up(path: &Path) -> Result<Option<RunDir>> {
        if !path.exists() {
            return Ok(None);
        }
        let was_locked = path.join(LOCK).symlink_metadata().is_ok();
        refuse_links(path)?;
        let lock = lock(path)?;
        if !path.join("run.toml").exists() || !path.join("plan.json").exists() {
            return match foreign_entry(path, was_locked)? {
                // The process was killed inside `create`: there is no run yet.
                None => {
                    for folder in [path.to_path_buf(), path.join("samples")] {
                        remove_parts(&folder)?;
                    }
                    empty(path, false);
                    Ok(None)
                }
                Some(name) => {
                    if !was_locked {
                        let _ = fs::remove_file(path.join(LOCK));
                    }
                    Err(not_a_run(path, &name))
                }
            };
        }
        check_folders(path)?;
        for folder in [path.to_path_buf(), path.join("samples")] {
            remove_parts(&folder)?;
        }
        let events = EventLog::open(path.join("events.jsonl"), OpenOptions::new().create(true))?;
        Ok(Some(RunDir { path: path.to_path_buf(), events, made: false, taken_up: true, _lock: lock }))
    }

    /// Returns the text of a small file in the directory.
    ///
    /// Errors: `run-dir-damaged`.
    pub fn read_text(&self, name: &str) -> Result<String> {
        let path = self.path.join(name);
        read_small_text(&path, TEXT_BYTES_MAX).map_err(|err| damaged(&path, &err.to_string()))
    }

    /// Prepares the directory for a resumed run: cuts the log to `events_bytes` and writes the new files.
    ///
    /// Errors: `run-dir-damaged` if the log is shorter; `run-dir-unwritable`, `disk-full`.
    pub fn go_on(&mut self, run_file: &str, plan: &Value, events_bytes: u64) -> Result<()> {
        for name in FOLDERS {
            let folder = self.path.join(name);
            fs::create_dir_all(&folder).map_err(|err| unwritable(&folder, &err))?;
        }
        self.events.rewind(events_bytes)?;
        write_atomic(&self.path.join("run.toml"), run_file.as_bytes())?;
        write_json(&self.path.join("plan.json"), plan)?;
        for name in ["summary.json", "crash.json", RANKS_FILE] {
            let _ = fs::remove_file(self.path.join(name));
        }
        Ok(())
    }

    /// Removes what `create` made, if a run ends before it begins. A resumed directory stays.
    pub fn discard(&self) {
        if !self.taken_up {
            empty(&self.path, self.made);
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn events(&mut self) -> &mut EventLog {
        &mut self.events
    }

    /// Writes `samples/step-000010.jsonl`, one row per line.
    pub fn write_samples<T: Serialize>(&self, step: u32, rows: &[T]) -> Result<()> {
        self.write_samples_named(&step_name(step), rows)
    }

    /// Writes `samples/NAME.jsonl`, one row per line.
    pub fn write_samples_named<T: Serialize>(&self, name: &str, rows: &[T]) -> Result<()> {
        let mut text = String::new();
        for row in rows {
            text.push_str(&serde_json::to_string(row).expect("rows are plain data"));
            text.push('\n');
        }
        write_atomic(&self.path.join("samples").join(format!("{name}.jsonl")), text.as_bytes())
    }

    /// Writes a small copy of an image to `samples/FILE`, unless it is there.
    pub fn write_thumbnail(&self, file: &str, png: &[u8]) -> Result<()> {
        let path = self.path.join("samples").join(file);
        if fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file()) {
            Ok(())
        } else {
            write_atomic(&path, png)
        }
    }

    /// Writes a text file at a path within the directory.
    pub(crate) fn write_text(&self, name: &str, text: &str) -> Result<()> {
        write_atomic(&self.path.join(name), text.as_bytes())
    }

    /// Rewrites `plan.json` with what has been measured since.
    pub fn write_plan(&self, plan: &Value) -> Result<()> {
        write_json(&self.path.join("plan.json"), plan)
    }

    pub(crate) fn write_summary(&self, summary: &Value) -> Result<()> {
        write_json(&self.path.join("summary.json"), summary)
    }

    /// Writes `crash.json`: the error that ended the run at `step`, and the last measurements.
    pub(crate) fn write_crash(&self, error: &Error, step: u32, readings: &Value) -> Result<()> {
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

    pub fn store(&self) -> Store {
        Store::of_run(&self.path)
    }
}

/// Describes why `train` would refuse its directory without a flag; changes nothing.
pub fn obstacle(path: &Path) -> Option<String> {
    let shown = path.display();
    if !path.exists() {
        let above = path.ancestors().skip(1).find(|above| above.exists())?;
        return (!above.is_dir())
            .then(|| format!("{shown} cannot be made: {} is not a folder", above.display()));
    }
    match first_entry(path) {
        Err(_) => Some(format!("{shown} is not a folder that can be read: set run.dir to another place")),
        Ok(None) => None,
        Ok(Some(_)) if has_room(path, LOCK, false) => None,
        Ok(Some(_)) if has_room(path, LOCK, true) => Some(format!(
            "{shown} holds an earlier run: `train` goes on with it under --resume, and replaces it under --overwrite"
        )),
        Ok(Some(name)) => Some(format!(
            "{shown} holds {name}, which is no run's, and `train` refuses it: set run.dir to another place"
        )),
    }
}

/// `events.jsonl`: one JSON object per line, append-only.
#[derive(Debug)]
pub struct EventLog {
    path: PathBuf,
    file: File,
    length_bytes: u64,
}

impl EventLog {
    /// Opens the log; `how` says whether the file may, must or must not exist.
    fn open(path: PathBuf, how: &mut OpenOptions) -> Result<EventLog> {
        let file =
            how.append(true).custom_flags(NO_LINK).open(&path).map_err(|err| unwritable(&path, &err))?;
        let length_bytes = file.metadata().map_err(|err| unwritable(&path, &err))?.len();
        Ok(EventLog { path, file, length_bytes })
    }

    /// Syncs the log to disk and returns its length.
    pub fn sync(&self) -> Result<u64> {
        self.file.sync_all().map_err(|err| unwritable(&self.path, &err))?;
        Ok(self.length_bytes)
    }

    /// Cuts the log back to an earlier length.
    fn rewind(&mut self, bytes: u64) -> Result<()> {
        if bytes > self.length_bytes {
            let what = format!("{} bytes, the checkpoint was made at {bytes}", self.length_bytes);
            return Err(damaged(&self.path, &what));
        }
        self.file.set_len(bytes).map_err(|err| unwritable(&self.path, &err))?;
        self.length_bytes = bytes;
        Ok(())
    }

    /// Appends `event` as one line, in one write. After an error the file ends with the previous line.
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

/// Returns a name such as `step-000010`.
pub(crate) fn step_name(step: u32) -> String {
    format!("step-{step:06}")
}

fn fill(path: &Path, run_file: &str, plan: &Value) -> Result<EventLog> {
    for name in FOLDERS {
        fs::create_dir(path.join(name)).map_err(|err| unwritable(path, &err))?;
    }
    write_json(&path.join("plan.json"), plan)?;
    let events = EventLog::open(path.join("events.jsonl"), OpenOptions::new().create_new(true))?;
    // Written last: a directory with this file and `plan.json` belongs to a run.
    write_atomic(&path.join("run.toml"), run_file.as_bytes())?;
    Ok(events)
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value).expect("a JSON value has a JSON text");
    text.push('\n');
    write_atomic(path, text.as_bytes())
}

/// Refuses links and pipes at the names that a run writes, in every command: a link would lead it out of its directory,
/// and a pipe would block it.
fn refuse_links(path: &Path) -> Result<()> {
    for folder in OWN_FOLDERS.map(|name| path.join(name)) {
        if folder.symlink_metadata().is_ok_and(|meta| meta.is_symlink()) {
            let message = format!("{}: a symbolic link in place of a folder", folder.display());
            return Err(Error::new("symlink-refused", message)
                .hint("put the folder itself in its place, or start in another directory")
                .hint("for a larger disk, set run.dir to a directory on it, or mount it in this place"));
        }
    }
    for name in FILES.into_iter().chain([LOCK]) {
        let file = path.join(name);
        let Ok(meta) = file.symlink_metadata() else { continue };
        if meta.is_symlink() {
            let message = format!("{}: a symbolic link in place of a file", file.display());
            return Err(Error::new("symlink-refused", message)
                .hint("put the file itself in its place, or start in another directory"));
        }
        if !meta.is_file() {
            return Err(damaged(&file, "it is not a regular file"));
        }
    }
    Ok(())
}

/// Refuses unreadable folders: they may have content, and checkpoints may be on an unmounted disk.
fn check_folders(path: &Path) -> Result<()> {
    for folder in FOLDERS.map(|name| path.join(name)) {
        if folder.symlink_metadata().is_ok() {
            fs::read_dir(&folder).map_err(|err| {
                damaged(&folder, &err.to_string()).hint("mount its disk, or make it readable")
            })?;
        }
    }
    Ok(())
}

/// Removes temporary names of unfinished files.
fn remove_parts(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') && name.ends_with(".part") {
            fs::remove_file(entry.path()).map_err(|err| unwritable(&entry.path(), &err))?;
        }
    }
    Ok(())
}

fn damaged(path: &Path, what: &str) -> Error {
    Error::new("run-dir-damaged", format!("{}: {what}", path.display()))
        .hint("restore the file, or start from the weights in another directory: model = \"RUN_DIR/checkpoints/latest\"")
}

fn lock(path: &Path) -> Result<File> {
    let lock_path = path.join(LOCK);
    let mut options = OpenOptions::new();
    let mut file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(NO_LINK)
        .open(&lock_path)
        .map_err(|err| unwritable(&lock_path, &err))?;
    let until = Instant::now() + LEAVING_MAX;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) => {
                let pid = holder(&mut file);
                if !is_gone(&pid) || Instant::now() > until {
                    return Err(locked(path, &pid));
                }
                std::thread::sleep(LEAVING_LOOK);
            }
            Err(TryLockError::Error(err)) => return Err(unwritable(&lock_path, &err)),
        }
    }
    let written = file
        .set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", plimsoll_worker::run_pid()));
    written.map_err(|err| unwritable(&lock_path, &err))?;
    Ok(file)
}

/// Returns the holder named in the lock file.
fn holder(file: &mut File) -> String {
    let mut pid = String::new();
    let _ = file.rewind().and_then(|()| file.read_to_string(&mut pid));
    pid.trim().to_string()
}

/// Returns true if the process that the user started is dead while its trainer is still exiting.
fn is_gone(pid: &str) -> bool {
    pid.parse::<u32>().is_ok() && Path::new("/proc/self").exists() && !Path::new("/proc").join(pid).exists()
}

fn locked(path: &Path, pid: &str) -> Error {
    // One that has just begun has not written its number yet.
    let (holder, stop) = match pid {
        "" => (String::new(), String::new()),
        pid => (format!(", pid {pid}"), format!(" or stop it: kill {pid}")),
    };
    Error::new("run-dir-locked", format!("{} is held by a live run{holder}", path.display()))
        .hint(format!("wait for it{stop}"))
        .hint(format!("choose another directory: --set run.dir={}", next_free(path).display()))
}

fn first_entry(path: &Path) -> Result<Option<String>> {
    let entries = fs::read_dir(path).map_err(|err| unwritable(path, &err))?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names.filter(|name| name != LOCK).min())
}

/// Returns an entry that no run killed at its start leaves: it makes its lock first, `run.toml` last.
fn foreign_entry(path: &Path, was_locked: bool) -> Result<Option<String>> {
    let entries = fs::read_dir(path).map_err(|err| unwritable(path, &err))?;
    let is_ours = |name: &str, bytes: u64| match name {
        LOCK => true,
        "plan.json" | "samples" | "checkpoints" => was_locked,
        "events.jsonl" => was_locked && bytes == 0,
        name => was_locked && name.starts_with('.') && name.ends_with(".part"),
    };
    let found = entries.flatten().map(|entry| {
        let bytes = entry.metadata().map_or(0, |meta| meta.len());
        (entry.file_name().to_string_lossy().into_owned(), bytes)
    });
    Ok(found.filter(|(name, bytes)| !is_ours(name, *bytes)).map(|(name, _)| name).min())
}

/// Returns the error for a directory without `run.toml` or `plan.json`, from which no run can go on.
fn not_a_run(path: &Path, name: &str) -> Error {
    let missing = ["run.toml", "plan.json"].into_iter().find(|name| !path.join(name).exists());
    if path.join(CHECKPOINTS).exists() {
        let missing = missing.unwrap_or("run.toml");
        let message = format!("{} holds checkpoints, and {missing} is missing", path.display());
        return Error::new("run-dir-damaged", message)
            .hint("restore the file, or start from the weights in another directory: model = \"RUN_DIR/checkpoints/latest\"");
    }
    let other = format!("choose another directory: --set run.dir={}", next_free(path).display());
    Error::usage("run-dir-not-empty", format!("{} holds {name}, and no run", path.display())).hint(other)
}

fn not_empty(path: &Path, name: &str) -> Error {
    Error::usage("run-dir-not-empty", format!("{} is not empty: it holds {name}", path.display()))
        .hint(format!("choose another directory: --set run.dir={}", next_free(path).display()))
        .hint("continue the run that is in it: --resume")
        .hint("replace the run that is in it: --overwrite")
}

/// Returns `path-2`, or the first such name that is free.
fn next_free(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let candidates = (2..1000).map(|number| path.with_file_name(format!("{name}-{number}")));
    candidates
        .into_iter()
        .find(|path| !path.exists())
        .unwrap_or_else(|| path.with_file_name(format!("{name}-new")))
}

/// Returns the error for a full disk or an unwritable path.
pub fn unwritable(path: &Path, err: &std::io::Error) -> Error {
    match err.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            Error::io("disk-full", path, err).hint("make room, or choose another directory on a larger disk")
        }
        _ => {
            Error::io("run-dir-unwritable", path, err).hint("choose a writable directory: --set run.dir=PATH")
        }
    }
}

fn empty(path: &Path, made: bool) {
    for name in ["run.toml", "plan.json", "events.jsonl", LOCK] {
        let _ = fs::remove_file(path.join(name));
    }
    for name in FOLDERS {
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

#[cfg(test)]
mod tests {
    use super::*;

    const RUN_FILE: &str = "method = \"grpo\"\n";

    #[test]
    fn a_new_directory_has_its_files_and_is_held() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        let mut dir = RunDir::create(&path, RUN_FILE, &json!({"fits": true}), false).unwrap();
        dir.events().write(&json!({"step": 1})).unwrap();
        dir.events().write(&json!({"event": "step"})).unwrap();
        assert_eq!(
            fs::read_to_string(path.join("events.jsonl")).unwrap(),
            "{\"step\":1}\n{\"event\":\"step\"}\n"
        );
        dir.write_samples(10, &[json!({"a": 1})]).unwrap();
        assert_eq!(fs::read_to_string(path.join("samples/step-000010.jsonl")).unwrap(), "{\"a\":1}\n");
        dir.write_summary(&json!({"steps": 1})).unwrap();
        dir.write_crash(&Error::new("write-failed", "y"), 3, &Value::Null).unwrap();
        assert_eq!(fs::read_to_string(path.join("run.toml")).unwrap(), RUN_FILE);

        let error = RunDir::create(&path, RUN_FILE, &Value::Null, false).unwrap_err();
        assert_eq!(error.slug, "run-dir-locked");
        assert!(error.message.contains(&std::process::id().to_string()), "{error}");
        drop(dir);
        let error = RunDir::create(&path, RUN_FILE, &Value::Null, false).unwrap_err();
        assert_eq!(error.slug, "run-dir-not-empty");
        assert!(error.to_string().contains("a/b-2"), "{error}");
    }

    #[test]
    fn a_directory_whose_run_was_killed_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        drop(RunDir::create(&path, RUN_FILE, &Value::Null, false).unwrap());
        // Its process is dead, and its child still holds the lock. No process has such a number.
        fs::write(path.join(LOCK), "4294967295\n").unwrap();
        let held = File::open(path.join(LOCK)).unwrap();
        held.try_lock().unwrap();
        let leaving = std::thread::spawn(move || {
            std::thread::sleep(10 * LEAVING_LOOK);
            drop(held);
        });
        let dir = RunDir::take_up(&path).unwrap().expect("the earlier run's");
        leaving.join().unwrap();
        let text = fs::read_to_string(path.join(LOCK)).unwrap();
        assert_eq!(text, format!("{}\n", plimsoll_worker::run_pid()));
        drop(dir);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named_and_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "x").unwrap();
        for path in [file.clone(), file.join("below"), PathBuf::from("/proc/plimsoll")] {
            for error in [
                RunDir::check(&path, false).unwrap_err(),
                RunDir::create(&path, RUN_FILE, &Value::Null, false).unwrap_err(),
            ] {
                assert_eq!(error.slug, "run-dir-unwritable", "{error}");
            }
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "x");
    }
}
