//! Makes room for a new run in an earlier run's directory: on request, or if the earlier run made no step.

use crate::linked::RANKS_FILE;
use crate::track::FOLDER;
use plimsoll_base::open_regular;
use std::fs;
use std::io;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// Files that a run writes into its directory.
pub(crate) const FILES: [&str; 11] = [
    "run.toml",
    "plan.json",
    "events.jsonl",
    "summary.json",
    "crash.json",
    "curves.svg",
    "agent.json",
    "agents.log",
    "rewards.log",
    "schedule.jsonl",
    RANKS_FILE,
];
/// Folder of the views of a resumed run for ranks above 0; removed when they end.
pub(crate) const VIEWS: &str = ".ranks";
/// Marks a directory as a run's.
const RUN_FILE: &str = "run.toml";
pub(crate) const CHECKPOINTS: &str = "checkpoints";
/// Folders of a run directory.
pub(crate) const FOLDERS: [&str; 4] = ["samples", CHECKPOINTS, FOLDER, VIEWS];

/// Removes an earlier run's files from `path`, whose lock this process holds. Returns false and removes nothing if
/// there are other files, there was no run, or a run made steps and `overwrite` is false.
///
/// Errors: the file that cannot be removed, and the reason.
pub(crate) fn make_room(path: &Path, lock: &str, overwrite: bool) -> Result<bool, (PathBuf, io::Error)> {
    if !has_room(path, lock, overwrite) {
        return Ok(false);
    }
    let names = names(path, lock);
    // The run file goes last: a half-removed directory is still a run's.
    for folder in FOLDERS.map(|name| path.join(name)).iter().filter(|folder| folder.exists()) {
        fs::remove_dir_all(folder).map_err(|err| (folder.clone(), err))?;
    }
    let (last, first): (Vec<&String>, Vec<&String>) = names.iter().partition(|name| *name == RUN_FILE);
    for file in first.into_iter().chain(last).filter(|name| !FOLDERS.contains(&name.as_str())) {
        let file = path.join(file);
        fs::remove_file(&file).map_err(|err| (file, err))?;
    }
    Ok(true)
}

/// Returns true if `path` holds only an earlier run's files, which a new run may replace.
pub(crate) fn has_room(path: &Path, lock: &str, overwrite: bool) -> bool {
    let names = names(path, lock);
    let is_own = |name: &String| {
        let is_part = name.starts_with('.') && name.ends_with(".part");
        let is_folder = path.join(name).symlink_metadata().is_ok_and(|meta| meta.is_dir());
        if FOLDERS.contains(&name.as_str()) {
            is_folder
        } else {
            !is_folder && (is_part || FILES.contains(&name.as_str()))
        }
    };
    let is_run = names.iter().any(|name| name == RUN_FILE) && names.iter().all(is_own);
    is_run && (overwrite || made_no_step(path))
}

/// Returns the names in `path` except the lock's.
fn names(path: &Path, lock: &str) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name != lock).collect()
}

/// Returns true if the earlier run has no checkpoint and reported no step: nothing in it is worth keeping.
fn made_no_step(path: &Path) -> bool {
    let has_checkpoint =
        fs::read_dir(path.join("checkpoints")).is_ok_and(|mut entries| entries.next().is_some());
    let Ok(events) = open_regular(&path.join("events.jsonl")) else { return false };
    let is_step = |line: std::io::Result<String>| line.is_ok_and(|line| line.contains("\"event\":\"step\""));
    !has_checkpoint && !BufReader::new(events).lines().any(is_step)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with these files and folders.
    fn folder(names: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in names {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            if name.ends_with('/') {
                fs::create_dir_all(path).unwrap()
            } else {
                fs::write(path, text).unwrap()
            }
        }
        folder
    }

    /// A pipe without a writer in place of the events was waited for, for ever.
    #[test]
    fn r_a_pipe_in_a_run_directory_was_waited_for() {
        let folder = folder(&[("run.toml", "")]);
        let pipe = folder.path().join("events.jsonl");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(!made_no_step(folder.path()), "it may hold anything");
        assert!(crate::report::Curves::read(&pipe).is_err());
    }

    #[test]
    fn only_a_runs_own_files_go_and_only_where_nothing_is_lost_or_on_request() {
        let begun = [
            ("lock", ""),
            ("run.toml", ""),
            ("plan.json", ""),
            ("crash.json", ""),
            ("ranks.json", ""),
            ("samples/", ""),
            ("checkpoints/", ""),
        ];
        let with = |more: &[(&'static str, &'static str)]| [&begun[..], more].concat();
        let step = ("events.jsonl", "{\"event\":\"started\"}\n{\"event\":\"step\",\"step\":1}\n");
        let no_step = ("events.jsonl", "{\"event\":\"started\"}\n");
        for (names, overwrite, goes) in [
            (with(&[no_step]), false, true),
            (with(&[step]), false, false),
            (with(&[step]), true, true),
            (with(&[no_step, ("checkpoints/step-000003/model.safetensors", "")]), false, false),
            (with(&[no_step, ("checkpoints/step-000003/model.safetensors", "")]), true, true),
            (with(&[no_step, ("thesis.tex", "")]), true, false),
            // Of ranks that were killed.
            (with(&[no_step, (".ranks/plimsoll-rank-a/run/plan.json", "")]), false, true),
            (vec![("lock", ""), ("model.safetensors", "")], true, false),
            (vec![("lock", ""), ("samples/", "")], true, false),
        ] {
            let folder = folder(&names);
            assert_eq!(make_room(folder.path(), "lock", overwrite).unwrap(), goes, "{names:?} {overwrite}");
            let left = fs::read_dir(folder.path()).unwrap().count();
            assert_eq!(left == 1, goes, "{names:?} {overwrite}: {left} entries are left");
        }
    }
}
