//! Checks the places that a command writes to at its end before its work begins, so a wrong path costs no time.

use crate::writer::part_path;
use plimsoll_base::{Error, Result};
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Requires that a file can be written at `path`, whose folder must exist. An existing file stays as it is.
///
/// Errors: `output-unwritable`, `disk-full`.
pub fn check_output_file(path: &Path) -> Result<()> {
    let is_folder = path.is_dir() || path.file_name().is_none();
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let checked = if is_folder { Err(ErrorKind::IsADirectory.into()) } else { probe(folder) };
    checked.map_err(|err| output_error(path, &err))
}

/// Requires that files can be written into the folder `path`, or that it can be created.
///
/// Errors: `output-unwritable`, `disk-full`.
pub fn check_output_folder(path: &Path) -> Result<()> {
    check_folder(path).map_err(|err| output_error(path, &err))
}

/// Requires that files can be written below `path`, which need not exist. Returns the system's error.
pub fn check_folder(path: &Path) -> io::Result<()> {
    let exists = |place: &&Path| place.symlink_metadata().is_ok();
    let place = path.ancestors().find(exists).unwrap_or(Path::new("."));
    if place.is_dir() { probe(place) } else { Err(ErrorKind::NotADirectory.into()) }
}

/// Creates a file in `folder` and removes it: permissions do not show read-only file systems, quotas or root.
fn probe(folder: &Path) -> io::Result<()> {
    let part = part_path(folder, "check");
    File::create_new(&part)?;
    fs::remove_file(&part)
}

/// Renames a file or a folder to an unused name. Looks it up first on file systems without `RENAME_NOREPLACE`.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) if to.symlink_metadata().is_ok() => {
            Err(ErrorKind::AlreadyExists.into())
        }
        Err(Errno::INVAL | Errno::NOSYS) => fs::rename(from, to),
        done => Ok(done?),
    }
}

/// Returns the error for an output that cannot be written: `disk-full` if the system says so, else `output-unwritable`.
pub fn output_error(path: &Path, err: &io::Error) -> Error {
    match err.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            Error::io("disk-full", path, err).hint("make room, or choose another directory on a larger disk")
        }
        _ => Error::io("output-unwritable", path, err)
            .hint("give a path in a folder that exists and can be written"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_places_are_named_and_right_ones_stay_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "kept").unwrap();
        for wrong in
            [at("no/such/file"), at("file/below"), dir.path().to_path_buf(), "/".into(), "/proc/x".into()]
        {
            let error = check_output_file(&wrong).unwrap_err();
            assert_eq!(error.slug, "output-unwritable", "{}", wrong.display());
        }
        for wrong in [at("file"), at("file/below"), "/proc/plimsoll".into()] {
            assert_eq!(
                check_output_folder(&wrong).unwrap_err().slug,
                "output-unwritable",
                "{}",
                wrong.display()
            );
        }
        check_output_file(&at("file")).unwrap();
        check_output_file(&at("new")).unwrap();
        check_output_folder(dir.path()).unwrap();
        check_output_folder(&at("a/b")).unwrap();
        check_output_folder(Path::new("no-such-folder/below")).unwrap();
        assert_eq!(fs::read_to_string(at("file")).unwrap(), "kept");
        let mut names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["file"]);
    }
}
