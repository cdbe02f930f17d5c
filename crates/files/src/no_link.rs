//! Opens files and makes folders for writing where others may write too, as in run directories and shared caches. A
//! link at a name that can be guessed would lead a write anywhere, so none is followed; each is refused or replaced.

use crate::stream::write_error;
use plimsoll_base::{Error, Result};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path};

/// Neither follows a link nor waits for the reader of a pipe.
const NO_LINK: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits() as i32;

/// Creates a file under a temporary name, and removes what was there. `is_private`: readable by its owner alone.
///
/// Errors: those of the system.
pub fn create_part(part: &Path, is_private: bool) -> std::io::Result<File> {
    match std::fs::remove_file(part) {
        Err(err) if err.kind() != ErrorKind::NotFound => return Err(err),
        _ => {}
    }
    let mode = if is_private { 0o600 } else { 0o666 };
    OpenOptions::new().write(true).create_new(true).mode(mode).open(part)
}

/// Opens a file to append to it, or makes it. A link at its name is an error.
///
/// Errors: those of the system.
pub fn append_to(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).custom_flags(NO_LINK).open(path)
}

/// Opens a file that processes of this program share, such as a lock, to read it and append to it, or makes it.
///
/// Errors: `symlink-refused` for a link, a file that has another name too, and anything but a file; `disk-full`,
/// `write-failed`.
pub(crate) fn open_shared(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    let opened = options.read(true).append(true).create(true).custom_flags(NO_LINK).open(path);
    // The error of a link differs between systems: what is there says it.
    if path.symlink_metadata().is_ok_and(|meta| meta.is_symlink()) {
        return Err(refused(path, "a symbolic link in place of a file"));
    }
    let file = opened.map_err(|err| write_error(path, &err))?;
    let meta = file.metadata().map_err(|err| write_error(path, &err))?;
    match (meta.is_file(), meta.nlink()) {
        (true, ..=1) => Ok(file),
        (true, _) => Err(refused(path, "a hard link to another file in place of a file")),
        (false, _) => Err(refused(path, "something else in place of a file")),
    }
}

/// Makes the folder `below` in `top`, and those between them.
///
/// Errors: `symlink-refused` for a link in place of one of them; `disk-full`, `write-failed`.
pub(crate) fn make_folders(top: &Path, below: &Path) -> Result<()> {
    std::fs::create_dir_all(top).map_err(|err| write_error(top, &err))?;
    let mut folder = top.to_path_buf();
    for part in below.components() {
        debug_assert!(matches!(part, Component::Normal(_)), "{}", below.display());
        folder.push(part);
        match std::fs::create_dir(&folder) {
            Err(err) if err.kind() != ErrorKind::AlreadyExists => return Err(write_error(&folder, &err)),
            _ => {}
        }
        if folder.symlink_metadata().is_ok_and(|meta| meta.is_symlink()) {
            return Err(refused(&folder, "a symbolic link in place of a folder"));
        }
    }
    Ok(())
}

fn refused(path: &Path, what: &str) -> Error {
    Error::new("symlink-refused", format!("{}: {what}", path.display())).hint(
        "remove it; if others may write into this folder, take a cache of your own: HF_HOME for the hub's",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// A link at a temporary name was followed, and its target overwritten.
    #[test]
    fn r_a_link_at_a_temporary_name_was_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, part) = (dir.path().join("victim"), dir.path().join(".x.part"));
        std::fs::write(&victim, "kept").unwrap();
        for is_private in [false, true] {
            symlink(&victim, &part).unwrap();
            create_part(&part, is_private).unwrap().write_all(b"new").unwrap();
            assert_eq!(std::fs::read_to_string(&victim).unwrap(), "kept");
            let meta = part.symlink_metadata().unwrap();
            assert!(meta.is_file() && (meta.permissions().mode() & 0o077 == 0 || !is_private));
            std::fs::remove_file(&part).unwrap();
        }
        symlink(&victim, &part).unwrap();
        assert!(append_to(&part).is_err());
        std::fs::remove_file(&part).unwrap();
        append_to(&part).unwrap().write_all(b"1").unwrap();
        append_to(&part).unwrap().write_all(b"2").unwrap();
        assert_eq!(std::fs::read_to_string(&part).unwrap(), "12");
        // A file that holds a secret is private even where one that all may read was there.
        std::fs::set_permissions(&victim, PermissionsExt::from_mode(0o644)).unwrap();
        crate::writer::write_private(&victim, b"secret").unwrap();
        assert_eq!(victim.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_shared_file_is_this_programs_own_and_folders_are_no_links() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("victim"), "kept").unwrap();
        symlink(at("victim"), at("link")).unwrap();
        symlink(at("nothing"), at("dangling")).unwrap();
        std::fs::hard_link(at("victim"), at("hard")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap();
        assert!(made.success());
        for (name, words) in [
            ("link", "symbolic link"),
            ("dangling", "symbolic link"),
            ("hard", "hard link"),
            ("pipe", "something else"),
        ] {
            let error = open_shared(&at(name)).unwrap_err();
            assert!(error.slug == "symlink-refused" && error.message.contains(words), "{name}: {error}");
        }
        assert!(!at("nothing").exists());
        for _ in 0..2 {
            open_shared(&at("own")).unwrap();
            make_folders(&at("a/b"), Path::new("c/d")).unwrap();
        }
        std::fs::create_dir(at("outside")).unwrap();
        symlink(at("outside"), at("a/link")).unwrap();
        let error = make_folders(&at("a"), Path::new("link/x")).unwrap_err();
        assert!(error.slug == "symlink-refused" && !at("outside/x").exists(), "{error}");
    }
}
