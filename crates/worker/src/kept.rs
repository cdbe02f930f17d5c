//! A keeper, as the process that started it sees it: one program at a time, and how it ended.

use crate::groups::{GroupHome, GroupKill, WorkerGroup};
use crate::job::{Job, JobEnd, Order, Report};
use crate::keeper::KEEPER;
use crate::message::{self, MESSAGE_BYTES_MAX};
use crate::procs;
use plimsoll_base::Bytes;
use plimsoll_memory::host::Host;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io::Error;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Longest report: the system's message on why a program did not start.
const REPORT_BYTES_MAX: usize = 4 << 10;
/// Time for a keeper to start a program.
const START_TIME: Duration = Duration::from_secs(60);
/// Time for a keeper to end a program, or itself; longer than it waits for what it kills.
const END_TIME: Duration = Duration::from_secs(8);
/// Time between two checks of a keeper that is ending.
const END_TICK: Duration = Duration::from_millis(1);

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Sets the binary with the verb `KEEPER`, usually this process's own. Only the first call counts.
pub fn keep_with(program: PathBuf) {
    let _ = PROGRAM.set(program);
}

/// A running keeper. Dropping it ends its program and everything that started.
#[derive(Debug)]
pub(crate) struct Keeper {
    child: Child,
    /// `None` once it was asked to end.
    socket: Option<OwnedFd>,
    group: Option<WorkerGroup>,
    /// Kernel kills in the group before the current program.
    kills_before: u64,
    /// First process of the current or last program.
    root: Option<u32>,
    is_busy: bool,
    end: JobEnd,
}

impl Keeper {
    /// Starts a keeper for programs of `memory` each; if `groups`, in a memory group where one can be made.
    pub(crate) fn start(memory: Bytes, groups: bool) -> std::io::Result<Keeper> {
        let program =
            PROGRAM.get().ok_or_else(|| Error::other("no binary with the verb `keeper` is named"))?;
        // If the binary was replaced, this process still has the old one.
        let replaced = PathBuf::from("/proc/self/exe");
        let program = if program.is_file() { program } else { &replaced };
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (socket, theirs) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
        let group = groups.then(home).flatten().and_then(|home| home.make(memory).ok());
        let paths = group.as_ref().map(WorkerGroup::arguments).unwrap_or_default();
        let mut command = Command::new(program);
        command.arg(KEEPER).arg(std::process::id().to_string()).args(paths);
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null());
        // The worker's processes are not trainers of this supervisor.
        command.env_remove(crate::status::VARIABLE);
        let child = command.spawn()?;
        let (kills_before, end) = (0, JobEnd::default());
        Ok(Keeper { child, socket: Some(socket), group, kills_before, root: None, is_busy: false, end })
    }

    /// Starts a program with these pipes as its standard input, output and error. Returns its process id.
    ///
    /// Errors: the program cannot be started, with the system's message.
    pub(crate) fn run(&mut self, job: Job, pipes: [BorrowedFd<'_>; 3]) -> std::io::Result<u32> {
        assert!(!self.is_busy, "a keeper runs one program at a time");
        let lost = || Error::other("its keeper has ended");
        let order = serde_json::to_vec(&Order::Run(job)).expect("a job has a JSON text");
        if order.len() > MESSAGE_BYTES_MAX {
            return Err(Error::other(format!(
                "arguments of {} bytes, above {MESSAGE_BYTES_MAX}",
                order.len()
            )));
        }
        self.kills_before = self.kills();
        let socket = self.socket.as_ref().ok_or_else(lost)?;
        message::send_with_all(socket.as_fd(), &order, &pipes)?;
        let deadline = Instant::now() + START_TIME;
        while Instant::now() < deadline {
            self.socket.iter().for_each(|socket| wait(socket.as_fd(), deadline));
            match self.hear() {
                Some(Report::Started(root)) => {
                    (self.root, self.is_busy) = (Some(root), true);
                    return Ok(root);
                }
                Some(Report::Refused(words)) => return Err(Error::other(words)),
                Some(Report::Ended(_)) => return Err(lost()),
                None => {}
            }
        }
        Err(Error::other(format!("its keeper did not start it within {} s", START_TIME.as_secs())))
    }

    /// Returns how the program ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<JobEnd> {
        while self.is_busy {
            match self.hear()? {
                Report::Ended(end) => (self.end, self.is_busy) = (end, false),
                Report::Started(_) | Report::Refused(_) => {}
            }
        }
        Some(self.end)
    }

    /// Ends the program with everything it started. Returns how it ended.
    pub(crate) fn end(&mut self) -> JobEnd {
        let order = serde_json::to_vec(&Order::End).expect("an order has a JSON text");
        if let (true, Some(socket)) = (self.is_busy, &self.socket) {
            // Fails if the keeper has ended, which the wait shows.
            let _ = message::send(socket.as_fd(), &order);
        }
        self.wait_until(Instant::now() + END_TIME).unwrap_or_else(|| {
            self.lose();
            self.end
        })
    }

    /// Waits for the program to end, at most until `deadline`.
    pub(crate) fn wait_until(&mut self, deadline: Instant) -> Option<JobEnd> {
        loop {
            let ended = self.ended();
            let Some(socket) = self.socket.as_ref().filter(|_| ended.is_none() && Instant::now() < deadline)
            else {
                return ended;
            };
            wait(socket.as_fd(), deadline);
        }
    }

    /// Returns a descriptor that is readable when there is a report.
    pub(crate) fn reports(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Returns true if it can run another program.
    pub(crate) fn is_free(&self) -> bool {
        !self.is_busy && self.socket.is_some()
    }

    /// Returns the kernel's counts if it killed processes of this program for lack of memory.
    pub(crate) fn killed_in_group(&self) -> Option<GroupKill> {
        self.group.as_ref().filter(|_| self.kills() > self.kills_before)?.killed()
    }

    fn kills(&self) -> u64 {
        self.group.as_ref().and_then(WorkerGroup::kills).unwrap_or(0)
    }

    /// Receives a report. A keeper that sends anything else, or nothing more, is lost: its program has ended.
    fn hear(&mut self) -> Option<Report> {
        let mut buffer = [0u8; REPORT_BYTES_MAX];
        let socket = self.socket.as_ref()?;
        let report = match message::receive(socket.as_fd(), &mut buffer) {
            message::Received::Later => return None,
            message::Received::Message(length) => serde_json::from_slice(&buffer[..length]).ok(),
            message::Received::Closed => None,
        };
        Some(report.unwrap_or_else(|| {
            self.lose();
            Report::Ended(JobEnd::default())
        }))
    }

    /// Gives up the keeper and kills its processes.
    fn lose(&mut self) {
        self.socket = None;
        let below = procs::below(&[self.child.id()]).into_iter().map(|(_, pid)| pid);
        procs::kill_all(below);
        let _ = self.child.kill();
        // A killed process ends at once; this only collects it.
        let _ = self.child.wait();
        // If another process killed the keeper, its worker died with it, but the worker's children may live.
        if let Some(root) = self.root {
            procs::kill_all(procs::of_sessions(&[root]).into_iter().map(|(_, pid)| pid));
        }
        self.is_busy = false;
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if self.socket.take().is_none() {
            return;
        }
        // A keeper whose socket is closed ends its program and then itself.
        let until = Instant::now() + END_TIME;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(END_TICK);
        }
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            self.lose();
        }
    }
}

/// Returns the place for memory groups, found once.
fn home() -> Option<&'static GroupHome> {
    static HOME: OnceLock<Option<GroupHome>> = OnceLock::new();
    HOME.get_or_init(|| GroupHome::find(&Host::this())).as_ref()
}

/// Sleeps until there is a report, at most until `deadline`.
fn wait(socket: BorrowedFd<'_>, deadline: Instant) {
    let left = deadline.saturating_duration_since(Instant::now());
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    // An interrupted poll found nothing.
    let _ = rustix::event::poll(&mut fds, Some(&timeout));
}
