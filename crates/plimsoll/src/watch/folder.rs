//! Finds the runs below a folder: directories that hold `events.jsonl`. It follows no link, looks into no run and into
//! no hidden directory, and stops at bounds, so that `plimsoll watch /` ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Folders between the given one and a run, and the run itself.
pub const DEPTH_MAX: usize = 4;
/// Entries of folders that are looked at.
const ENTRIES_MAX: usize = 20_000;

/// Returns true if the directory is one of a run.
pub fn is_run(dir: &Path) -> bool {
    fs::symlink_metadata(dir.join("events.jsonl")).is_ok_and(|meta| meta.is_file())
}

/// Returns the directories of runs below `folder`, in the order of their paths.
pub fn runs_below(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut entries) = (Vec::new(), 0);
    let mut folders = vec![(folder.to_path_buf(), 1)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten().take(ENTRIES_MAX - entries) {
            entries += 1;
            let is_shown = !entry.file_name().as_encoded_bytes().starts_with(b".");
            if !is_shown || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if is_run(&entry.path()) {
                found.push(entry.path());
            } else if depth < DEPTH_MAX {
                folders.push((entry.path(), depth + 1));
            }
        }
    }
    found.sort();
    found
}

/// Keeps the `most` runs whose logs were written last, in the order of their paths.
pub fn latest(runs: Vec<PathBuf>, most: usize) -> Vec<PathBuf> {
    let written = |run: &PathBuf| fs::metadata(run.join("events.jsonl")).and_then(|meta| meta.modified());
    let mut dated: Vec<(SystemTime, PathBuf)> =
        runs.into_iter().map(|run| (written(&run).unwrap_or(SystemTime::UNIX_EPOCH), run)).collect();
    dated.sort_by(|a, b| b.cmp(a));
    dated.truncate(most);
    let mut kept: Vec<PathBuf> = dated.into_iter().map(|(_, run)| run).collect();
    kept.sort();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(folder: &Path, name: &str) {
        fs::create_dir_all(folder.join(name)).unwrap();
        fs::write(folder.join(name).join("events.jsonl"), "").unwrap();
    }

    #[test]
    fn runs_are_found_below_folders_but_not_in_runs_links_or_far_down() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in ["b", "a/x/y/z", "a/x/y/z/inside", "a/x/w", "far/1/2/3/4", ".hidden/c"] {
            run(folder.path(), name);
        }
        run(other.path(), "elsewhere");
        std::os::unix::fs::symlink(other.path(), folder.path().join("link")).unwrap();
        fs::create_dir_all(folder.path().join("no-file/events.jsonl")).unwrap();
        let found = runs_below(folder.path());
        let expect = ["a/x/w", "a/x/y/z", "b"].map(|name| folder.path().join(name));
        assert_eq!(found, expect);
        assert!(runs_below(&folder.path().join("none")).is_empty());
    }

    #[test]
    fn of_too_many_runs_the_latest_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        for (name, seconds) in [("a", 30), ("b", 10), ("c", 20)] {
            run(folder.path(), name);
            let file = fs::File::options().write(true).open(folder.path().join(name).join("events.jsonl"));
            let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            file.unwrap().set_modified(at).unwrap();
        }
        let kept = latest(runs_below(folder.path()), 2);
        assert_eq!(kept, ["a", "c"].map(|name| folder.path().join(name)));
    }
}
