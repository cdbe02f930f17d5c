//! The window: a file in memory that all ranks of a host share. Rank 0's supervisor makes it, so that it lives as long as the
//! run; trainers size and map it. Its first four bytes are the flag by which supervisors end trainers.

use plimsoll_base::{Error, Result};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of a new window: the flag's page.
const WINDOW_BYTES: u64 = 4096;

/// The end that keeps the window alive.
#[derive(Debug)]
pub(crate) struct Window {
    file: File,
}

impl Window {
    /// Errors: `ranks-window`.
    pub(crate) fn new() -> Result<Window> {
        let made = memfd_create("plimsoll-window", MemfdFlags::CLOEXEC)
            .and_then(|fd| ftruncate(&fd, WINDOW_BYTES).map(|()| fd));
        let fd = made.map_err(|err| {
            Error::new("ranks-window", format!("memory that all ranks share: {err}"))
                .hint("check the limits on memory and open files: ulimit -n, and the container's limit")
        })?;
        Ok(Window { file: File::from(fd) })
    }

    /// Returns the path by which other processes of this user open it.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }
}

/// Sets the flag of the window at `path`. Best effort: trainers are ended by signals as well.
pub(crate) fn abort(path: &Path) {
    if let Ok(file) = OpenOptions::new().write(true).open(path) {
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
        let place = Place { rank: 1, ranks: 2, window: window.path() };
        assert!(!place.is_over());
        abort(&window.path());
        assert_eq!((flag(), place.is_over()), (1, true));
        drop(window);
        assert!(place.is_over(), "rank 0 is gone");
        abort(Path::new("/no/such/window"));
    }
}
