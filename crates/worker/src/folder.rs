//! A worker's folder: counts what is in it, and removes it whatever a program made of it.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Deepest nesting that is counted; more counts as too many files.
const DEPTH_MAX: usize = 64;
/// Bytes of a block in `st_blocks`.
const BLOCK_BYTES: u64 = 512;
/// Passes over a folder that changes while it is removed.
const PASSES_MAX: usize = 8;

/// Limits of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub bytes: u64,
    pub files: u64,
}

/// Contents of a folder on the disk: holes in files do not count, and hard links count once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FolderUsage {
    pub bytes: u64,
    pub files: u64,
    /// Inodes counted; a folder is on one file system.
    seen: BTreeSet<u64>,
}

impl FolderUsage {
    /// Counts what is in `folder`, stopping soon after `room` is exceeded.
    pub(crate) fn count(folder: &Path, room: Room) -> FolderUsage {
        let mut held = FolderUsage::default();
        if let Ok(folder) = open(rustix::fs::CWD, folder) {
            held.add_folder(folder.as_fd(), room, 0);
        }
        held
    }

    /// Adds files removed from `folder` but still on the disk, because processes have them open or mapped.
    pub(crate) fn add_removed(&mut self, folder: &Path, pids: &[u32]) {
        let is_removed = |path: &str| Path::new(path).starts_with(folder) && path.ends_with(" (deleted)");
        for pid in pids {
            for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
                let path = fs::read_link(entry.path()).unwrap_or_default();
                if let (true, Ok(file)) = (is_removed(&path.to_string_lossy()), fs::metadata(entry.path())) {
                    self.add_file(file.ino(), file.blocks() * BLOCK_BYTES);
                }
            }
            for line in fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default().lines() {
                let mut words = line.splitn(6, ' ');
                let range = words.next().and_then(|range| range.split_once('-'));
                let (Some((from, to)), Some(inode)) = (range, words.nth(3)) else { continue };
                let address = |text: &str| u64::from_str_radix(text, 16).unwrap_or(0);
                if is_removed(words.next().unwrap_or_default().trim_start()) {
                    self.add_file(inode.parse().unwrap_or(0), address(to).saturating_sub(address(from)));
                }
            }
        }
    }

    /// Returns true if this is more than `room`.
    pub(crate) fn exceeds(&self, room: Room) -> bool {
        self.bytes > room.bytes || self.files > room.files
    }

    fn add_file(&mut self, inode: u64, bytes: u64) {
        if self.seen.insert(inode) {
            self.bytes = self.bytes.saturating_add(bytes);
        }
    }

    fn add_folder(&mut self, folder: BorrowedFd<'_>, room: Room, depth: usize) {
        if depth > DEPTH_MAX {
            // No program needs such a folder, and removing it takes long.
            self.files = u64::MAX;
        }
        for (name, kind) in entries(folder) {
            if self.exceeds(room) {
                return;
            }
            self.files += 1;
            if let Ok(stat) = rustix::fs::statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
                self.add_file(stat.st_ino, stat.st_blocks as u64 * BLOCK_BYTES);
            }
            if kind == FileType::Directory
                && let Ok(below) = open(folder, name.as_c_str())
            {
                self.add_folder(below.as_fd(), room, depth + 1);
            }
        }
    }
}

/// Makes an empty folder for temporary files that only this user may read.
pub fn make() -> std::io::Result<PathBuf> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    // The real path, because that is how the kernel names the files in it.
    let parent = fs::canonicalize(std::env::temp_dir())?;
    let path = parent.join(format!("plimsoll-worker-{}-{number}", std::process::id()));
    // An earlier process with this id may have left one.
    remove(&path);
    fs::DirBuilder::new().mode(0o700).create(&path)?;
    Ok(path)
}

/// Removes `folder` and everything in it. Nested folders are first moved up, so that neither depth nor path length
/// matters; modes that forbid it are changed, where this process is the owner. Files of other users stay.
pub fn remove(folder: &Path) {
    for _ in 0..PASSES_MAX {
        let Ok(top) = open(rustix::fs::CWD, folder) else { return };
        empty(top.as_fd());
        if fs::remove_dir(folder).is_ok() {
            return;
        }
    }
}

/// Empties `top`: moves every folder below into it, and removes files, then the folders.
fn empty(top: BorrowedFd<'_>) {
    let mut moved = 0u64;
    // Each folder is moved once, then waits in the list.
    let mut next: Vec<CString> = unlink_files(top);
    while let Some(name) = next.pop() {
        let Ok(folder) = open(top, name.as_c_str()) else { continue };
        for inner in unlink_files(folder.as_fd()) {
            // Moving a folder changes it.
            let _ = rustix::fs::chmodat(&folder, &inner, Mode::RWXU, AtFlags::empty());
            let fresh = CString::new(format!(".plimsoll-{}-{moved}", std::process::id()));
            let fresh = fresh.expect("digits have no zero byte");
            moved += 1;
            if rustix::fs::renameat(&folder, &inner, top, &fresh).is_ok() {
                next.push(fresh);
            }
        }
        let _ = rustix::fs::unlinkat(top, &name, AtFlags::REMOVEDIR);
    }
}

/// Removes files; returns the folders.
fn unlink_files(folder: BorrowedFd<'_>) -> Vec<CString> {
    let mut folders = Vec::new();
    for (name, kind) in entries(folder) {
        if kind == FileType::Directory {
            folders.push(name);
        } else {
            // Files that remain are tried again in the next pass.
            let _ = rustix::fs::unlinkat(folder, &name, AtFlags::empty());
        }
    }
    folders
}

/// Opens a folder, after making it readable if needed.
fn open<P: rustix::path::Arg + Copy>(at: impl AsFd + Copy, path: P) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(at, path, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(at, path, Mode::RWXU, AtFlags::empty())?;
            rustix::fs::openat(at, path, flags, Mode::empty())
        }
        opened => opened,
    }
}

/// Lists a folder, without `.` and `..`.
fn entries(folder: BorrowedFd<'_>) -> Vec<(CString, FileType)> {
    let Ok(list) = Dir::read_from(folder) else { return Vec::new() };
    let found = list.flatten().filter(|entry| !matches!(entry.file_name().to_bytes(), b"." | b".."));
    found
        .map(|entry| {
            let name = entry.file_name().to_owned();
            let kind = match entry.file_type() {
                // Some file systems do not report the kind.
                FileType::Unknown => rustix::fs::statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                kind => kind,
            };
            (name, kind)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const ROOM: Room = Room { bytes: 1 << 20, files: 100 };

    #[test]
    fn bytes_on_the_disk_and_names_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        assert!(!FolderUsage::count(folder.path(), ROOM).exceeds(ROOM));
        fs::create_dir(at("in")).unwrap();
        let mut file = fs::File::create(at("in/a")).unwrap();
        file.write_all(&vec![1; 600 << 10]).unwrap();
        file.sync_all().unwrap();
        fs::hard_link(at("in/a"), at("b")).unwrap();
        let hole = fs::File::create(at("hole")).unwrap();
        hole.set_len(1 << 30).unwrap();
        let held = FolderUsage::count(folder.path(), ROOM);
        assert_eq!(held.files, 4);
        assert!((600 << 10..700 << 10).contains(&held.bytes) && !held.exceeds(ROOM), "{held:?}");
        // What is removed and still open is on the disk.
        let mut removed = fs::File::create(at("gone")).unwrap();
        removed.write_all(&vec![1; 600 << 10]).unwrap();
        removed.sync_all().unwrap();
        fs::remove_file(at("gone")).unwrap();
        let mut held = FolderUsage::count(folder.path(), ROOM);
        assert!(!held.exceeds(ROOM), "{held:?}");
        held.add_removed(folder.path(), &[std::process::id()]);
        assert!(held.exceeds(ROOM), "{held:?}");
        drop(removed);
        for number in 0..100 {
            fs::write(at(&format!("{number}")), "").unwrap();
        }
        assert!(FolderUsage::count(folder.path(), ROOM).exceeds(ROOM));
    }

    #[test]
    fn a_folder_is_removed_however_deep_and_closed_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().join("top");
        fs::create_dir(&top).unwrap();
        let mut at = open(rustix::fs::CWD, &top).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = open(at.as_fd(), "d").unwrap();
            rustix::fs::openat(&at, "f", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
        }
        drop(at);
        assert!(FolderUsage::count(&top, Room { bytes: u64::MAX, files: u64::MAX - 1 }).files == u64::MAX);
        fs::create_dir(top.join("closed")).unwrap();
        fs::write(top.join("closed/f"), "").unwrap();
        rustix::fs::chmod(top.join("closed"), Mode::empty()).unwrap();
        remove(&top);
        assert!(!top.exists());
        // There is nothing to do for what is gone already.
        remove(&top);
    }
}
