//! The window: a file in memory that all ranks of a host share. The supervisor of its first rank creates it, so it
//! lives as long as the run there; trainers size and map it. Its first four bytes are the flag that ends trainers.

use plimsoll_base::{Error, Result};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of a new window: the flag's page.
const WINDOW_BYTES: u64 = 4096;
/// The name that the system shows of a window.
const NAME: &str = "plimsoll-window";

/// A handle that keeps the window alive.
#[derive(Debug)]
pub(crate) struct Window {
    file: File,
}

impl Window {
    /// Creates the window. Errors: `ranks-window`.
    pub(crate) fn new() -> Result<Window> {
        memory_file(NAME, WINDOW_BYTES).map(|file| Window { file })
    }

    /// Returns the path by which other processes of this user open it.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }
}

/// Creates a file in memory of `bytes` bytes, which other processes of this user may open.
///
/// Errors: `ranks-window`.
pub(crate) fn memory_file(name: &str, bytes: u64) -> Result<File> {
    let made = memfd_create(name, MemfdFlags::CLOEXEC).and_then(|fd| ftruncate(&fd, bytes).map(|()| fd));
    made.map(File::from).map_err(|err| {
        Error::new("ranks-window", format!("memory that ranks share: {err}"))
            .hint("check the limits on memory and open files: ulimit -n, and the container's limit")
    })
}

/// Says what a window is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    ReadAndWrite,
}

/// Opens the window at a path, which a peer may have sent: `/proc/PID/fd/NUMBER` of a supervisor's window, and nothing
/// else, which is not opened at all.
///
/// Errors: those of the system; `InvalidInput` for a path to anything else.
pub(crate) fn open_window(path: &Path, access: Access) -> io::Result<File> {
    if is_window(path)? {
        OpenOptions::new().read(access != Access::Write).write(access != Access::Read).open(path)
    } else {
        Err(io::Error::new(ErrorKind::InvalidInput, "it is no memory that ranks share"))
    }
}

/// Returns true if a path is `/proc/PID/fd/NUMBER` of a window, false if it is anything else.
///
/// Errors: those of the system, as for a process that has ended.
fn is_window(path: &Path) -> io::Result<bool> {
    if !is_descriptor(path) {
        return Ok(false);
    }
    let shown = format!("/memfd:{NAME} (deleted)");
    std::fs::read_link(path).map(|link| link.as_os_str() == shown.as_str())
}

/// Returns true if a path, which a peer sent, may be that of a window: it is, or its supervisor has ended already.
pub(crate) fn may_be_window(path: &Path) -> bool {
    is_window(path).unwrap_or_else(|err| err.kind() == ErrorKind::NotFound)
}

fn is_descriptor(path: &Path) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Option<Vec<&str>> = path.to_str().map(|path| path.split('/').collect());
    parts.is_some_and(|parts| match parts[..] {
        ["", "proc", pid, "fd", number] => is_number(pid) && is_number(number),
        _ => false,
    })
}

/// Sets the flag of the window at `path`. Best effort: trainers are ended by signals as well.
pub(crate) fn abort(path: &Path) {
    if let Ok(file) = open_window(path, Access::Write) {
        let _ = file.write_all_at(&1u32.to_le_bytes(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;

    #[test]
    fn the_flag_is_seen_by_all_who_open_the_window() {
        let window = Window::new().expect("memory");
        let other = File::open(window.path()).expect("a path");
        let flag = || {
            let mut bytes = [9; 4];
            other.read_exact_at(&mut bytes, 0).expect("a page");
            u32::from_le_bytes(bytes)
        };
        assert_eq!((flag(), other.metadata().expect("a file").len()), (0, WINDOW_BYTES));
        let place = Place::on_one_host(1, 2, window.path());
        assert!(!place.is_over());
        abort(&window.path());
        assert_eq!((flag(), place.is_over()), (1, true));
        drop(window);
        assert!(place.is_over(), "its supervisor is gone");
        abort(Path::new("/no/such/window"));
    }
}
