//! A page that the trainer writes and its supervisor reads: what the trainer was doing when it died.
//!
//! The page is a memfd, replaced by one system call within one page, which a kill cannot tear.

use rustix::fs::MemfdFlags;
use rustix::process::{Pid, getppid};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Bytes of the page; longer notes are not written.
pub const STATUS_BYTES: usize = 4096;

/// Set for the trainer: the supervisor's pid and the page's descriptor.
pub(crate) const VARIABLE: &str = "PLIMSOLL_SUPERVISED";

pub(crate) struct StatusPage {
    fd: OwnedFd,
}

impl StatusPage {
    /// Makes an empty page. It is in no folder and ends with both processes.
    pub(crate) fn new() -> io::Result<StatusPage> {
        let fd = rustix::fs::memfd_create("plimsoll-status", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&fd, STATUS_BYTES as u64)?;
        Ok(StatusPage { fd })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the value of `VARIABLE` if there is no page.
    pub(crate) fn none() -> String {
        format!("{}:0", std::process::id())
    }

    /// Returns the value of `VARIABLE`.
    pub(crate) fn variable(&self) -> String {
        format!("{}:{}", std::process::id(), self.fd.as_raw_fd())
    }

    /// Returns the last note.
    pub(crate) fn read(&self) -> Option<String> {
        let mut page = [0; STATUS_BYTES];
        let length = rustix::io::pread(&self.fd, &mut page, 0).ok()?;
        let text = page[..length].split(|&byte| byte == 0).next()?;
        String::from_utf8(text.to_vec()).ok().filter(|text| !text.is_empty())
    }
}

#[derive(Debug)]
pub struct StatusNote {
    file: File,
    page: Box<[u8; STATUS_BYTES]>,
}

impl StatusNote {
    /// Opens the page of this process's supervisor; `None` without one.
    pub fn inherited() -> Option<StatusNote> {
        let (_, number) = supervised_by().filter(|&(_, number)| number > 2)?;
        let file = OpenOptions::new().write(true).open(format!("/proc/self/fd/{number}")).ok()?;
        // SAFETY: the descriptor is open: it was just reopened by its number, and nothing closes it.
        let inherited = unsafe { BorrowedFd::borrow_raw(number) };
        // Workers should not inherit it. If they do, only a descriptor is wasted.
        let _ = rustix::io::fcntl_setfd(inherited, rustix::io::FdFlags::CLOEXEC);
        Some(StatusNote { file, page: Box::new([0; STATUS_BYTES]) })
    }

    /// Replaces the note. Best effort: the run does not depend on it.
    pub fn write(&mut self, text: &str) {
        if text.len() >= STATUS_BYTES {
            return;
        }
        self.page[..text.len()].copy_from_slice(text.as_bytes());
        self.page[text.len()..].fill(0);
        let _ = self.file.write_all_at(&self.page[..], 0);
    }
}

/// Returns the pid of this process's supervisor, if it has one.
pub fn supervisor_pid() -> Option<u32> {
    supervised_by().map(|(pid, _)| pid)
}

/// Returns the pid that the user started and signals go to: the supervisor's, else this process's.
pub fn run_pid() -> u32 {
    supervisor_pid().unwrap_or_else(std::process::id)
}

/// Returns (pid, descriptor). A variable inherited from a process other than the parent is ignored.
fn supervised_by() -> Option<(u32, i32)> {
    let value = std::env::var(VARIABLE).ok()?;
    let (pid, number) = value.split_once(':')?;
    let (pid, number) = (pid.parse::<i32>().ok()?, number.parse::<i32>().ok()?);
    (getppid() == Pid::from_raw(pid)).then_some((pid as u32, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_whole_and_replaced() {
        let page = StatusPage::new().unwrap();
        assert_eq!(page.read(), None);
        let file =
            OpenOptions::new().write(true).open(format!("/proc/self/fd/{}", page.fd.as_raw_fd())).unwrap();
        let mut note = StatusNote { file, page: Box::new([0; STATUS_BYTES]) };
        note.write("a longer note");
        note.write("short");
        assert_eq!(page.read().as_deref(), Some("short"));
        note.write(&"x".repeat(STATUS_BYTES));
        assert_eq!(page.read().as_deref(), Some("short"));
    }

    #[test]
    fn a_process_without_a_supervisor_has_no_page() {
        assert!(StatusNote::inherited().is_none());
        assert_eq!(run_pid(), std::process::id());
    }
}
