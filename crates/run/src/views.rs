//! Where ranks above 0 write output to discard, because rank 0 writes the same: each in its own temporary folder, or,
//! for a resumed run, next to its checkpoints, to which it needs hard links.
//!
//! A rank locks its folder while it lives. A killed rank's folder is removed by the next rank there, which can lock it.

use crate::replace::VIEWS;
use crate::run_dir::unwritable;
use plimsoll_base::{Error, Result, open_folder};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Files of a run directory that a view has, apart from checkpoints.
pub(crate) const FILES: [&str; 4] = ["run.toml", "plan.json", "events.jsonl", "summary.json"];
/// Prefix of the name of a rank's folder.
const PREFIX: &str = "plimsoll-rank-";
/// Attempts to make a folder before another run's start removes it.
const ATTEMPTS: usize = 16;
/// Folders of killed ranks removed by one start.
const SWEPT_MAX: usize = 1024;

/// A rank's own run directory, and the run's.
#[derive(Debug)]
pub(crate) struct View {
    folder: tempfile::TempDir,
    /// Locked while open.
    _lock: File,
    own: PathBuf,
    of: PathBuf,
    /// Folder of all views of the run, if it is in the run directory.
    all: Option<PathBuf>,
}

impl View {
    /// Makes a view; of the run in `of` if it resumes. `sent`: where that is, if this host does not see it.
    ///
    /// Errors: `run-dir-unwritable`.
    pub(crate) fn make(of: &Path, resumes: bool, sent: Option<&Path>) -> Result<View> {
        let all = (resumes && sent.is_none()).then(|| of.join(VIEWS));
        let place = all.clone().unwrap_or_else(std::env::temp_dir);
        let made = fs::create_dir_all(&place).and_then(|()| folder_in(&place));
        let (lock, folder) =
            made.map_err(
                |err| if all.is_some() { unwritable(&place, &err) } else { no_temporary(&place, &err) },
            )?;
        let own = folder.path().join("run");
        if resumes {
            see(sent.unwrap_or(of), &own).map_err(|err| unwritable(&own, &err))?;
        }
        Ok(View { folder, _lock: lock, own, of: of.to_path_buf(), all })
    }

    /// Returns the run directory that this rank uses.
    pub(crate) fn dir(&self) -> &Path {
        &self.own
    }

    /// Returns this rank's error as rank 0 would report it: users only know the run's directory.
    pub(crate) fn of_the_run(&self, error: Error) -> Error {
        let (own, of) = (self.own.display().to_string(), self.of.display().to_string());
        let plain = |text: String| text.replace(&own, &of);
        Error {
            message: plain(error.message),
            facts: error.facts.into_iter().map(plain).collect(),
            hints: error.hints.into_iter().map(plain).collect(),
            ..error
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.folder.path());
        // The last view removes it; for earlier ones it is not empty.
        let _ = self.all.as_ref().map(fs::remove_dir);
    }
}

/// Makes a temporary folder, removed on drop; a killed rank's goes at the next start of any run.
///
/// Errors: `run-dir-unwritable`.
pub(crate) fn temporary() -> Result<(File, tempfile::TempDir)> {
    let place = std::env::temp_dir();
    folder_in(&place).map_err(|err| no_temporary(&place, &err))
}

/// Returns the error for an unwritable folder of temporary files.
fn no_temporary(place: &Path, err: &std::io::Error) -> Error {
    Error::io("run-dir-unwritable", place, err)
        .fact("ranks other than 0 keep what they write in the folder for temporary files")
        .hint("set TMPDIR to a writable folder, for all ranks")
}

/// Removes views left by killed ranks in the run directory `of`, if it is one.
pub(crate) fn sweep(of: &Path) {
    let views = of.join(VIEWS);
    sweep_folder(&views);
    let _ = fs::remove_dir(views);
}

/// Removes views left by killed ranks in the folder for temporary files.
pub(crate) fn sweep_temporary() {
    sweep_folder(&std::env::temp_dir());
}

fn sweep_folder(place: &Path) {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let is_one = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(PREFIX);
    let Ok(own) = fs::metadata("/proc/self") else { return };
    for entry in entries.filter(is_one).take(SWEPT_MAX) {
        let path = entry.path();
        let is_ours = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir() && meta.uid() == own.uid());
        // Folders of other users or live ranks stay. Best effort: the run does not depend on it.
        if is_ours && let Ok(_lock) = lock(&path) {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// Makes and locks a folder. If another run's start takes it for a dead rank's before that, makes another.
fn folder_in(place: &Path) -> std::io::Result<(File, tempfile::TempDir)> {
    for _ in 0..ATTEMPTS {
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(place)?;
        if let Ok(lock) = lock(folder.path())
            && folder.path().is_dir()
        {
            return Ok((lock, folder));
        }
    }
    Err(std::io::Error::other("other runs remove what this one makes"))
}

/// Locks a folder, or fails at once if another process has it.
fn lock(folder: &Path) -> std::io::Result<File> {
    let file = open_folder(folder)?;
    file.try_lock()?;
    Ok(file)
}

/// Makes this rank's own run directory from the run's. Checkpoint files are hard links.
fn see(of: &Path, own: &Path) -> std::io::Result<()> {
    fs::create_dir_all(own.join("samples"))?;
    fs::create_dir_all(own.join("checkpoints"))?;
    for name in FILES {
        if of.join(name).exists() {
            fs::copy(of.join(name), own.join(name))?;
        }
    }
    for entry in fs::read_dir(of.join("checkpoints")).into_iter().flatten() {
        let entry = entry?;
        let is_step = entry.file_name().to_str().is_some_and(|name| name.starts_with("step-"));
        if is_step && entry.file_type()?.is_dir() {
            link_all(&entry.path(), &own.join("checkpoints").join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn link_all(of: &Path, own: &Path) -> std::io::Result<()> {
    fs::create_dir_all(own)?;
    for entry in fs::read_dir(of)? {
        let entry = entry?;
        let to = own.join(entry.file_name());
        match entry.file_type()? {
            kind if kind.is_dir() => link_all(&entry.path(), &to)?,
            kind if kind.is_file() => fs::hard_link(entry.path(), to)?,
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_or_read_only_folder_of_temporary_files_is_named_with_its_variable() {
        let error = no_temporary(Path::new("/tmp"), &std::io::Error::from_raw_os_error(30)).to_string();
        assert!(error.contains("/tmp: Read-only") && error.contains("set TMPDIR"), "{error}");
        assert!(!error.contains("run.dir"), "{error}");
    }

    #[test]
    fn what_a_killed_rank_left_goes_and_what_a_living_one_holds_stays() {
        let run = tempfile::tempdir().expect("a folder");
        let of = run.path();
        fs::create_dir_all(of.join("checkpoints/step-000002")).expect("a folder");
        fs::write(of.join("checkpoints/step-000002/model.safetensors"), "x").expect("a file");
        let left = of.join(VIEWS).join(format!("{PREFIX}dead/run"));
        fs::create_dir_all(&left).expect("a folder");
        let [other, link] = ["theirs".into(), format!("{PREFIX}link")].map(|name| of.join(VIEWS).join(name));
        fs::create_dir(&other).expect("a folder");
        std::os::unix::fs::symlink(of.join("checkpoints"), &link).expect("a link");
        let view = View::make(of, true, None).expect("a view");
        sweep(of);
        assert!(!left.exists() && other.exists() && link.symlink_metadata().is_ok());
        assert!(view.dir().join("checkpoints/step-000002/model.safetensors").is_file());
        assert!(of.join("checkpoints/step-000002").exists(), "not through a link");
        fs::remove_dir(other).and_then(|()| fs::remove_file(link)).expect("they are ours");
        drop(view);
        assert!(!of.join(VIEWS).exists());
    }

    #[test]
    fn an_error_names_the_directory_that_the_user_knows() {
        let run = tempfile::tempdir().expect("a folder");
        let view = View::make(run.path(), false, None).expect("a view");
        let file = view.dir().join("checkpoints/step-1/model.safetensors");
        let error = Error::new("checkpoint-damaged", format!("{}: bytes differ", file.display()))
            .fact(format!("in {}", view.dir().display()))
            .hint(format!("look at {}", file.display()));
        let theirs = view.of_the_run(error);
        let of = run.path().display();
        assert_eq!(theirs.message, format!("{of}/checkpoints/step-1/model.safetensors: bytes differ"));
        assert_eq!((&theirs.facts[0], theirs.slug), (&format!("in {of}"), "checkpoint-damaged"));
        assert_eq!(theirs.hints[0], format!("look at {of}/checkpoints/step-1/model.safetensors"));
    }
}
