//! The processes of one worker, as its keeper sees them: started, counted, answered, and ended together.
//!
//! The keeper adopts orphans, so all processes of the worker stay below it, whatever session they open.

use crate::broker::SyscallBroker;
use crate::budget::{Budget, Over, PROGRAM_PROCESSES_MAX};
use crate::child::Bounds;
use crate::folder;
use crate::message;
use crate::procs;
use crate::sandbox::Author;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Time for killed processes to end; one that waits for a disk is left to the kernel.
const KILL_TIME: Duration = Duration::from_secs(5);
/// Time between two checks for remaining processes.
const KILL_TICK: Duration = Duration::from_millis(1);
/// Longest sleep of the keeper on kernels without process descriptors.
const SHORT_TICK: Duration = Duration::from_millis(20);
/// Time for processes that only tidy up after the first, such as Python's tracker of shared memory.
const TIDY_TIME: Duration = Duration::from_millis(100);

pub(crate) struct Tree {
    root: Pid,
    /// Readable once `root` has ended; `None` on kernels without process descriptors.
    handle: Option<OwnedFd>,
    end: Option<WaitStatus>,
    /// Answers its questions; `None` if its filter asks none.
    desk: Option<SyscallBroker>,
    budget: Budget,
    author: Author,
    folder: Option<PathBuf>,
}

/// How a worker ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeEnd {
    /// `None` if its first process could not be collected.
    pub status: Option<WaitStatus>,
    /// True if a process was refused because it had too many.
    pub was_full: bool,
}

impl Tree {
    /// Starts `command` below this process, under `bounds`. A folder for its temporary files is removed with it; a
    /// model's program has one already. `is_held`: something else enforces the memory limit of all processes together.
    pub(crate) fn start(mut command: Command, bounds: Bounds, is_held: bool) -> std::io::Result<Tree> {
        let (own, author, memory) = (rustix::process::getpid(), bounds.rules.author, bounds.memory);
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (questions, theirs) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
        let place = bounds.folder.clone();
        // If no folder can be made, temporary files go where they would without a worker.
        let folder = place.clone().or_else(|| folder::make().ok());
        command.envs(folder.iter().map(|folder| ("TMPDIR", folder)));
        // SAFETY: a keeper has one thread, so that between fork and exec memory and locks are as in any process.
        unsafe { command.pre_exec(move || bounds.enter(Some(own), Some(&theirs), &[])) };
        let child =
            command.spawn().inspect_err(|_| folder.iter().for_each(|folder| folder::remove(folder)))?;
        let root = Pid::from_child(&child);
        // Its end of the pair closes with the command, so there is an answer either way.
        drop(command);
        let most = (author == Author::Model).then_some(PROGRAM_PROCESSES_MAX);
        let desk = message::receive_descriptor(questions.as_fd())
            .map(|listener| SyscallBroker::new(listener, place, most, memory));
        let handle = rustix::process::pidfd_open(root, PidfdFlags::empty()).ok();
        let budget = Budget::new(author, folder.clone(), memory, is_held);
        Ok(Tree { root, handle, end: None, desk, budget, author, folder })
    }

    pub(crate) fn root(&self) -> u32 {
        self.root.as_raw_nonzero().get() as u32
    }

    /// Returns descriptors that wake the keeper.
    pub(crate) fn wakes(&self) -> impl Iterator<Item = PollFd<'_>> {
        let ended = self.handle.as_ref().map(AsFd::as_fd);
        let asked = self.desk.as_ref().map(AsFd::as_fd);
        ended.into_iter().chain(asked).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
    }

    /// Returns how long the keeper may sleep.
    pub(crate) fn wait(&self) -> Duration {
        let most = if self.handle.is_some() { Duration::MAX } else { SHORT_TICK };
        self.budget.wait().min(most)
    }

    /// Answers its questions and reaps its dead. Returns true if its first process has ended.
    pub(crate) fn attend(&mut self) -> bool {
        if let Some(desk) = &mut self.desk {
            desk.attend();
        }
        self.reap();
        self.has_ended()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Returns the limit it exceeds, if it is time to check.
    pub(crate) fn look(&mut self) -> Option<Over> {
        self.budget.look()
    }

    /// Ends every process and removes what they left.
    pub(crate) fn finish(mut self) -> TreeEnd {
        // The first process first, because it may be starting others.
        if self.end.is_none() {
            let _ = rustix::process::kill_process(self.root, Signal::KILL);
        } else if self.author == Author::User {
            self.let_tidy();
        }
        let until = Instant::now() + KILL_TIME;
        // Its questions get no more answers, so a program that forks without end waits.
        while self.reap() && Instant::now() < until {
            procs::kill_all(procs::descendants());
            if self.reap() {
                std::thread::sleep(KILL_TICK);
            }
        }
        self.folder.iter().for_each(|folder| folder::remove(folder));
        TreeEnd { status: self.end, was_full: self.desk.is_some_and(|desk| desk.was_full) }
    }

    fn let_tidy(&mut self) {
        let until = Instant::now() + TIDY_TIME;
        while self.reap() && Instant::now() < until {
            if let Some(desk) = &mut self.desk {
                desk.attend();
            }
            std::thread::sleep(KILL_TICK);
        }
    }

    /// Reaps children that have ended. Returns false once there are none left.
    fn reap(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.root => self.end = Some(status),
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }
}
