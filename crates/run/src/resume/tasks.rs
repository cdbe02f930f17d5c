//! The contents of a folder of tasks as one hash, so that a resumed run has the tasks that it began with.

use plimsoll_base::{Error, Result};
use plimsoll_files::{digest, record_of};
use std::fmt::Write;
use std::path::Path;

/// Most files of a folder of tasks.
const FILES_MAX: usize = 1 << 18;

/// Returns the SHA-256 of the names and the contents of all files below a folder; links count by what they name.
///
/// Errors: `data-missing`.
pub(super) fn digest_of_tasks(folder: &str) -> Result<String> {
    let mut lines = String::new();
    let (mut left, mut count) = (vec![Path::new(folder).to_path_buf()], 0);
    let failed = |path: &Path, error: &std::io::Error| Error::io("data-missing", path, error);
    while let Some(place) = left.pop() {
        let mut entries = std::fs::read_dir(&place)
            .and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>())
            .map_err(|error| failed(&place, &error))?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        count += entries.len();
        if count > FILES_MAX {
            let message = format!("{folder}: a folder of tasks with more than {FILES_MAX} files");
            return Err(Error::usage("data-missing", message).hint("name the folder with the tasks alone"));
        }
        for entry in entries {
            let path = entry.path();
            let kind = entry.file_type().map_err(|error| failed(&path, &error))?;
            let what = if kind.is_dir() {
                left.push(path);
                continue;
            } else if kind.is_symlink() {
                let target = std::fs::read_link(&path).map_err(|error| failed(&path, &error))?;
                target.display().to_string()
            } else {
                record_of(&path).map_err(|error| failed(&path, &error))?.sha256
            };
            let name = path.strip_prefix(folder).unwrap_or(&path).display().to_string();
            writeln!(lines, "{name}\t{what}").expect("a text takes any text");
        }
    }
    Ok(digest(lines.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_of_a_task_changes_the_hash_and_its_place_on_disk_does_not() {
        let make = |reward: &str| {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(folder.path().join("a/tests")).unwrap();
            std::fs::write(folder.path().join("a/task.toml"), "").unwrap();
            std::fs::write(folder.path().join("a/tests/test.sh"), reward).unwrap();
            std::os::unix::fs::symlink("task.toml", folder.path().join("a/link")).unwrap();
            digest_of_tasks(folder.path().to_str().unwrap()).unwrap()
        };
        assert_eq!(make("echo 1"), make("echo 1"));
        assert_ne!(make("echo 1"), make("echo 0"));
        assert_eq!(digest_of_tasks("/nowhere").unwrap_err().slug, "data-missing");
    }
}
