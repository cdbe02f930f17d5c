//! The process between this program and other people's code: owns its processes, answers for them, and ends them.
//!
//! The signal at a parent's death reaches children but not grandchildren. So the keeper stays: it adopts orphans of the
//! worker, ends when the worker or its own parent has ended, and first kills everything below itself, in any session.
//! It does not hold the worker's pipes, and releases this program's pages once the worker runs: it costs a megabyte.
//!
//! Two verbs make a process a keeper. `env-worker` keeps one interpreter and ends as it did (`enter.rs`). `keeper` runs
//! the programs it is sent, one after the other, and reports how each ended.

use crate::budget::Over;
use crate::groups::Joined;
use crate::inherited;
use crate::job::{Job, JobEnd, Order, Report};
use crate::message::{self, MESSAGE_BYTES_MAX};
use crate::sandbox::Author;
use crate::tree::{Tree, TreeEnd};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::mm::Advice;
use rustix::process::{Pid, Signal};
use std::ffi::{OsString, c_void};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

/// The verb with which a binary becomes the keeper of programs.
pub const KEEPER: &str = "keeper";

/// Begins the stderr line of a keeper that ends its interpreter for exceeding a limit.
pub const OVER_WORDS: &str = "plimsoll: the worker holds";

/// How soon the parent's end is noticed if the pipe does not show it.
const TICK: Duration = Duration::from_millis(200);
/// Time before a closed pipe counts as the end of the parent.
const CLOSED_TICK: Duration = Duration::from_millis(1);
/// Shells add this to a signal's number in exit codes.
const SIGNALLED: i32 = 128;

/// Becomes a keeper that runs the programs sent to stdin. `arguments`: the process's own, after the verb.
pub fn become_keeper(arguments: &[OsString]) -> ExitCode {
    let [parent, group, own] = arguments else { return not_by_hand() };
    let Some(parent) = parent.to_str().and_then(|pid| pid.parse::<i32>().ok()) else { return not_by_hand() };
    inherited::close();
    let ready = stay(parent).and_then(|()| {
        let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
        // Programs must not inherit the socket.
        rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
        Ok(socket)
    });
    let Ok(socket) = ready else { return not_by_hand() };
    let group = (!group.is_empty()).then(|| Joined::join(Path::new(group), Path::new(own)).ok()).flatten();
    serve(&socket, group.is_some());
    // The parent removes the group; without a parent, this process does.
    if let Some(group) = group.filter(|_| rustix::process::getppid() != Pid::from_raw(parent)) {
        group.leave();
    }
    ExitCode::SUCCESS
}

fn not_by_hand() -> ExitCode {
    eprintln!("plimsoll {KEEPER} is started by plimsoll itself");
    ExitCode::from(2)
}

/// Opens a session and becomes the reaper of orphans. Errors: the parent has already died.
pub(crate) fn stay(parent: i32) -> std::io::Result<()> {
    rustix::process::setsid()?;
    if rustix::process::getppid() != Pid::from_raw(parent) {
        return Err(rustix::io::Errno::SRCH.into());
    }
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Runs the programs it is sent until the socket closes. `is_held`: a group enforces the memory limit.
fn serve(socket: &OwnedFd, is_held: bool) {
    let mut buffer = vec![0u8; MESSAGE_BYTES_MAX];
    let mut running: Option<Tree> = None;
    loop {
        sleep(socket.as_fd(), PollFlags::IN, running.as_ref(), Duration::MAX);
        match message::receive_with_descriptors(socket.as_fd(), &mut buffer) {
            Ok((0, _)) => break,
            Ok((length, pipes)) => match serde_json::from_slice(&buffer[..length]) {
                Ok(Order::Run(job)) if running.is_none() => running = run(socket, job, pipes, is_held),
                Ok(Order::End) => {
                    running.take().into_iter().for_each(|tree| say(socket, &ended(tree.finish(), None)));
                }
                Ok(Order::Run(_)) | Err(_) => break,
            },
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
        let Some(tree) = &mut running else { continue };
        let over = if tree.attend() { None } else { tree.look() };
        if tree.has_ended() || over.is_some() {
            running.take().into_iter().for_each(|tree| say(socket, &ended(tree.finish(), over)));
        }
    }
    running.take().map(Tree::finish);
}

/// Variables that a model's program has: those by which it and its libraries are found, and its language.
const OF_PROGRAMS: [&str; 6] = ["PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH"];

fn run(socket: &OwnedFd, job: Job, pipes: Vec<OwnedFd>, is_held: bool) -> Option<Tree> {
    let lives_long = job.bounds.rules.author == Author::User;
    let started =
        <[OwnedFd; 3]>::try_from(pipes).map_err(|_| std::io::Error::other("three pipes are missing"));
    let started = started.and_then(|[input, output, errors]| {
        let mut command = Command::new(&job.program);
        command.args(&job.args);
        if !lives_long {
            // Keys of hubs, trackers and judges are no business of a program that a model wrote.
            command.env_clear();
            command.envs(OF_PROGRAMS.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        }
        command.envs(job.env);
        command.stdin(Stdio::from(input)).stdout(Stdio::from(output)).stderr(Stdio::from(errors));
        command.current_dir(job.bounds.folder.as_deref().unwrap_or(Path::new(".")));
        Tree::start(command, job.bounds, is_held)
    });
    match started {
        Ok(tree) => {
            say(socket, &Report::Started(tree.root()));
            if lives_long {
                forget_pages(&std::fs::read_to_string("/proc/self/smaps").unwrap_or_default());
            }
            Some(tree)
        }
        Err(error) => {
            say(socket, &Report::Refused(error.to_string()));
            None
        }
    }
}

fn ended(end: TreeEnd, over: Option<Over>) -> Report {
    let code = end.status.and_then(|status| status.exit_status());
    let signal = end.status.and_then(|status| status.terminating_signal());
    Report::Ended(JobEnd { code, signal, over, was_full: end.was_full })
}

/// Sends a report. If that fails, the socket is closed, which the next receive shows.
fn say(socket: &OwnedFd, report: &Report) {
    let text = serde_json::to_vec(report).expect("a report has a JSON text");
    let _ = message::send(socket.as_fd(), &text);
}

/// Keeps one interpreter: waits until it or `parent` has ended, kills the rest, and ends as the interpreter did.
pub(crate) fn keep(mut tree: Tree, parent: i32, group: Option<Joined>) -> ExitCode {
    let parent = Pid::from_raw(parent);
    forget_pages(&std::fs::read_to_string("/proc/self/smaps").unwrap_or_default());
    while !tree.attend() && rustix::process::getppid() == parent {
        if let Some(over) = tree.look() {
            eprintln!("{OVER_WORDS} {over}");
            break;
        }
        if sleep(rustix::stdio::stderr(), PollFlags::empty(), Some(&tree), TICK) {
            // The pipe closes a moment before its reader ends; sleep, in case the reader lives on.
            std::thread::sleep(CLOSED_TICK);
        }
    }
    let end = tree.finish();
    // The parent removes the group; without a parent, this process does.
    if let Some(group) = group.filter(|_| rustix::process::getppid() != parent) {
        group.leave();
    }
    end_as(end)
}

/// Sleeps until `fd` is ready or closed (then true), the worker needs attention, or `most` has passed.
fn sleep(fd: BorrowedFd<'_>, asked: PollFlags, tree: Option<&Tree>, most: Duration) -> bool {
    let mut fds = vec![PollFd::from_borrowed_fd(fd, asked)];
    fds.extend(tree.into_iter().flat_map(Tree::wakes));
    let most = tree.map_or(most, |tree| tree.wait().min(most));
    let timeout =
        Timespec { tv_sec: most.as_secs().min(3600) as i64, tv_nsec: i64::from(most.subsec_nanos()) };
    // An interrupted poll found nothing.
    let _ = rustix::event::poll(&mut fds, Some(&timeout));
    !fds[0].revents().is_empty()
}

/// Releases file pages that were never written here, as /proc/self/smaps lists them. Later uses read the file again.
fn forget_pages(smaps: &str) {
    for (range, is_clean) in clean_ranges(smaps) {
        if is_clean {
            // SAFETY: the range has only unwritten file pages (none anonymous), is not writable, and stays mapped until
            // this process ends, so later reads see the same bytes.
            let _ = unsafe {
                rustix::mm::madvise(range.start as *mut c_void, range.len(), Advice::LinuxDontNeed)
            };
        }
    }
}

/// Returns the read-only file mappings, each with whether all its pages equal the file's.
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

fn end_as(end: TreeEnd) -> ExitCode {
    let status = end.status;
    let exits = (
        status.and_then(|status| status.exit_status()),
        status.and_then(|status| status.terminating_signal()),
    );
    let code = match exits {
        (Some(code), _) => code,
        (None, Some(signal)) => {
            if let Some(signal) = Signal::from_named_raw(signal) {
                // Twice, because the first fault signal only runs a handler that removes itself.
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
