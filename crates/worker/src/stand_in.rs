//! Changes of modes and times that a keeper makes on behalf of a model's program, only in the program's folder.
//!
//! The path is read once from the memory of the program, which waits. The file it names is opened here, judged by its
//! location, and changed through the same descriptor, so nothing can be swapped in between.

use crate::calls::*;
use crate::notify::{Answer, Question};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Longest path that the kernel accepts.
const PATH_BYTES_MAX: usize = 4096;
/// Paths are read in pieces that cross no page, because the next page may not be mapped.
const PAGE_BYTES: u64 = 4096;
/// `AT_FDCWD`: a path is relative to the working directory.
const WORKING_DIRECTORY: i32 = -100;
const NO_FOLLOW: u64 = 0x100;
/// Mode bits that a program may set; the others make set-user-id programs.
const MODE_BITS: u32 = 0o777;
/// Mode that the keeper needs to remove a folder.
const OWNER_ALL: u32 = 0o700;

/// Executes the call of a question if its file is in `folder`. `still_waits`: returns true while the caller waits.
pub(crate) fn change(question: &Question, folder: &Path, still_waits: impl Fn() -> bool) -> Answer {
    let done = target(question).and_then(|target| {
        let place = format!("/proc/self/fd/{}", target.as_raw_fd());
        let path = std::fs::read_link(&place).map_err(|_| Errno::PERM)?;
        if !still_waits() || !path.starts_with(folder) {
            return Err(Errno::PERM);
        }
        apply(question, &place, &target)
    });
    done.map_or_else(|error| Answer::Fail(error.raw_os_error()), |()| Answer::Value(0))
}

fn apply(question: &Question, place: &str, target: &OwnedFd) -> Result<(), Errno> {
    let [_, second, third, ..] = question.arguments;
    if question.number as u32 == UTIMENSAT {
        let times = match third {
            0 => now(),
            at => times(question.thread, at)?,
        };
        return rustix::fs::utimensat(CWD, place, &times, AtFlags::empty());
    }
    let bits = if matches!(question.number as u32, CHMOD | FCHMOD) { second } else { third };
    let is_folder = rustix::fs::fstat(target)?.st_mode & 0o170_000 == 0o040_000;
    let kept = if is_folder { OWNER_ALL } else { 0 };
    let mode = Mode::from_raw_mode(bits as u32 & MODE_BITS | kept);
    rustix::fs::chmodat(CWD, place, mode, AtFlags::empty())
}

/// Opens the file that a call names, neither for reading nor for writing.
fn target(question: &Question) -> Result<OwnedFd, Errno> {
    let [first, second, _, flags, ..] = question.arguments;
    let (folder, path, flags) = match question.number as u32 {
        FCHMOD => (first as i32, 0, 0),
        CHMOD => (WORKING_DIRECTORY, first, 0),
        FCHMODAT => (first as i32, second, 0),
        // The two calls with flags: `FCHMODAT2` and `UTIMENSAT`.
        _ => (first as i32, second, flags),
    };
    let of_caller = |name: &str| format!("/proc/{}/{name}", question.thread);
    let open = OFlags::PATH | OFlags::CLOEXEC;
    if path == 0 {
        return rustix::fs::open(of_caller(&format!("fd/{folder}")), open, Mode::empty());
    }
    let path = text(question.thread, path)?;
    let base = match folder {
        WORKING_DIRECTORY => of_caller("cwd"),
        number => of_caller(&format!("fd/{number}")),
    };
    let base = rustix::fs::open(base, open, Mode::empty())?;
    let follow = if flags & NO_FOLLOW != 0 { OFlags::NOFOLLOW } else { OFlags::empty() };
    rustix::fs::openat(base, path, open | follow, Mode::empty())
}

/// Reads a string from the memory of a thread, up to its zero byte.
fn text(thread: u32, at: u64) -> Result<CString, Errno> {
    let memory = memory(thread)?;
    let mut bytes = Vec::new();
    while bytes.len() < PATH_BYTES_MAX {
        let next = at.checked_add(bytes.len() as u64).ok_or(Errno::FAULT)?;
        let mut piece = vec![0u8; (PAGE_BYTES - next % PAGE_BYTES) as usize];
        memory.read_exact_at(&mut piece, next).map_err(|_| Errno::FAULT)?;
        match piece.iter().position(|&byte| byte == 0) {
            Some(end) => {
                bytes.extend_from_slice(&piece[..end]);
                return CString::new(bytes).map_err(|_| Errno::INVAL);
            }
            None => bytes.extend(piece),
        }
    }
    Err(Errno::NAMETOOLONG)
}

/// Reads two times, each seconds and nanoseconds.
fn times(thread: u32, at: u64) -> Result<Timestamps, Errno> {
    let mut bytes = [0u8; 32];
    memory(thread)?.read_exact_at(&mut bytes, at).map_err(|_| Errno::FAULT)?;
    let word = |index: usize| {
        let bytes = bytes[index * 8..index * 8 + 8].try_into().expect("eight bytes");
        i64::from_ne_bytes(bytes)
    };
    let time = |index: usize| Timespec { tv_sec: word(index), tv_nsec: word(index + 1) };
    Ok(Timestamps { last_access: time(0), last_modification: time(2) })
}

fn memory(thread: u32) -> Result<File, Errno> {
    File::open(format!("/proc/{thread}/mem")).map_err(|_| Errno::PERM)
}

/// Returns times that mean the present.
fn now() -> Timestamps {
    let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    Timestamps { last_access: now, last_modification: now }
}
