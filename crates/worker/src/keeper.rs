//! The process between this program and an interpreter: it owns all processes that the interpreter starts, and ends them.
//!
//! The signal at a parent's death reaches children but not grandchildren. So the keeper stays: it adopts orphans of the
//! worker, ends when the interpreter or its own parent has ended, and before that kills everything below itself,
//! including processes in other sessions. It ends as the interpreter did, so that its parent sees
//! that end. It does not hold the worker's socket, and releases this program's pages once the interpreter runs: it costs
//! a megabyte.

use crate::groups::Joined;
use crate::procs;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::mm::Advice;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions, WaitStatus};
use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// How soon orphans are collected, and the parent's end is noticed if its pipe does not show it.
const TICK: Duration = Duration::from_millis(200);
/// As `TICK`, on kernels without process descriptors.
const SHORT_TICK: Duration = Duration::from_millis(20);
/// How long killed processes may take to end; one that waits for a disk is left to the kernel.
const KILL_TIME: Duration = Duration::from_secs(5);
/// Between two checks of what is left.
const KILL_TICK: Duration = Duration::from_millis(1);
/// What shells add to a signal's number in exit codes.
const SIGNALLED: i32 = 128;

/// Adopts orphans from now on.
pub(crate) fn adopt() -> std::io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Opens a session that dies with `parent`, with limited private memory. Only makes system calls: it may run between fork
/// and exec.
pub(crate) fn bind(parent: Option<Pid>, memory: u64) -> std::io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the signal was armed; then it would never be sent.
    if rustix::process::getppid() != parent {
        return Err(rustix::io::Errno::SRCH.into());
    }
    let bytes = Some(memory);
    rustix::process::setrlimit(Resource::Data, Rlimit { current: bytes, maximum: bytes })?;
    Ok(())
}

/// Starts the interpreter, bound to this process.
pub(crate) fn start(mut python: Command, memory: u64) -> std::io::Result<Pid> {
    let keeper = rustix::process::getpid();
    // SAFETY: `bind` neither allocates nor takes a lock, as required between fork and exec.
    unsafe { python.pre_exec(move || bind(Some(keeper), memory)) };
    let child = python.spawn()?;
    Ok(Pid::from_child(&child))
}

/// Waits until the interpreter or `parent` has ended, kills what is left, and ends as the interpreter did.
pub(crate) fn keep(python: Pid, parent: i32, group: Option<Joined>) -> ExitCode {
    let handle = rustix::process::pidfd_open(python, PidfdFlags::empty()).ok();
    let mut end = None;
    let parent = Pid::from_raw(parent);
    forget_pages(&std::fs::read_to_string("/proc/self/smaps").unwrap_or_default());
    while end.is_none() && rustix::process::getppid() == parent {
        wait(handle.as_ref());
        reap(python, &mut end);
    }
    // The worker first, because it may be starting others.
    if end.is_none() {
        let _ = rustix::process::kill_process(python, Signal::KILL);
    }
    let until = Instant::now() + KILL_TIME;
    while reap(python, &mut end) && Instant::now() < until {
        let own = std::process::id();
        procs::kill_all(procs::below(&[own]).into_iter().map(|(_, pid)| pid).filter(|&pid| pid != own));
        std::thread::sleep(KILL_TICK);
    }
    // The parent removes the group; without a parent, this process does.
    if let Some(group) = group.filter(|_| rustix::process::getppid() != parent) {
        group.leave();
    }
    end_as(end)
}

/// Releases mapped file pages that were never written here, by the text of /proc/self/smaps. A page that is needed
/// again is read from the file.
fn forget_pages(smaps: &str) {
    for (range, is_clean) in clean_ranges(smaps) {
        if is_clean {
            // SAFETY: the range only has unwritten pages of a file (none is anonymous), is not writable, and stays mapped until
            // this process ends, so later reads see the same bytes.
            let _ = unsafe {
                rustix::mm::madvise(range.start as *mut c_void, range.len(), Advice::LinuxDontNeed)
            };
        }
    }
}

/// Returns the read-only mappings of files, and whether none of their pages differs from the file.
fn clean_ranges(smaps: &str) -> Vec<(Range<usize>, bool)> {
    let mut found: Vec<(Range<usize>, bool)> = Vec::new();
    let mut is_open = false;
    for line in smaps.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if let [range, permissions, _, _, inode, ..] = words[..]
            && let Some((from, to)) = range.split_once('-')
        {
            let [from, to] = [from, to].map(|number| usize::from_str_radix(number, 16));
            is_open = inode != "0" && matches!(permissions, "r-xp" | "r--p");
            if let (true, Ok(from), Ok(to)) = (is_open, from, to) {
                found.push((from..to, false));
            }
        } else if let (true, ["Anonymous:", kib, ..], Some(last)) = (is_open, &words[..], found.last_mut()) {
            last.1 = *kib == "0";
        }
    }
    found
}

/// Sleeps until the interpreter ends, the reader of stderr is gone, or a tick has passed.
fn wait(handle: Option<&OwnedFd>) {
    let words = rustix::stdio::stderr();
    let mut fds = vec![PollFd::from_borrowed_fd(words, PollFlags::empty())];
    fds.extend(handle.map(|handle| PollFd::new(handle, PollFlags::IN)));
    let tick = if handle.is_some() { TICK } else { SHORT_TICK };
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(tick.subsec_nanos()) };
    // An interrupted poll found nothing.
    let _ = rustix::event::poll(&mut fds, Some(&timeout));
    if !fds[0].revents().is_empty() {
        // The pipe closes a moment before its reader ends; sleep, in case the reader lives on.
        std::thread::sleep(KILL_TICK);
    }
}

/// Collects children that have ended. Returns false once there are none at all.
fn reap(python: Pid, end: &mut Option<WaitStatus>) -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == python => *end = Some(status),
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

fn end_as(end: Option<WaitStatus>) -> ExitCode {
    let code = match (end.and_then(|end| end.exit_status()), end.and_then(|end| end.terminating_signal())) {
        (Some(code), _) => code,
        (None, Some(signal)) => {
            if let Some(signal) = Signal::from_named_raw(signal) {
                // Twice, because the first signal of a fault only runs a handler that removes itself.
                for _ in 0..2 {
                    let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
                }
            }
            SIGNALLED + signal
        }
        (None, None) => SIGNALLED,
    };
    ExitCode::from(code as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_file_holds_is_let_go() {
        let smaps = "1000-3000 r-xp 00000000 fe:00 77 /bin/a b\nRss: 8 kB\nAnonymous: 0 kB\n\
                     3000-4000 r--p 00002000 fe:00 77 /bin/a b\nAnonymous: 4 kB\n\
                     4000-5000 rw-p 00003000 fe:00 77 /bin/a b\nAnonymous: 0 kB\n\
                     5000-6000 r--p 00000000 00:00 0\nAnonymous: 0 kB\n\
                     6000-7000 r--p 00000000 fe:00 78\n";
        let expect = [(0x1000..0x3000, true), (0x3000..0x4000, false), (0x6000..0x7000, false)];
        assert_eq!(clean_ranges(smaps), expect);
    }

    #[test]
    fn a_program_goes_on_without_its_pages() {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        assert!(clean_ranges(&smaps).iter().any(|(_, is_clean)| *is_clean), "{smaps}");
        let text = "a constant that is read from the file again";
        let before: u64 = text.bytes().map(u64::from).sum();
        forget_pages(&smaps);
        assert_eq!(text.bytes().map(u64::from).sum::<u64>(), before);
    }
}
