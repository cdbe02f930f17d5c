//! One worker: an interpreter with its keeper, connected by a socket of whole messages.
//!
//! The verb `env-worker` starts it; a ring keeps the end of its stderr, and all its processes are killed together.

use crate::enter::Confined;
use crate::groups::{GroupKill, WorkerGroup};
use crate::procs;
use crate::ring::Ring;
use crate::sandbox::Gpu;
use plimsoll_base::{Error, Result};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Bytes kept of stderr.
pub const LAST_WORDS_BYTES: usize = 64 << 10;
/// Bytes moved per system call.
const CHUNK_BYTES: usize = 16 << 10;
/// Time for killed processes to end before their keeper is killed too.
const KILL_TIME: Duration = Duration::from_secs(2);
/// Time between two checks for remaining processes.
const KILL_TICK: Duration = Duration::from_millis(1);

/// A running worker. Dropping it kills all of its processes.
#[derive(Debug)]
pub struct Session {
    child: Child,
    socket: OwnedFd,
    errors: OwnedFd,
    errors_open: bool,
    words: Ring,
    status: Option<ExitStatus>,
    /// Process id of the interpreter, once it has sent it.
    interpreter: Option<u32>,
    group: Option<WorkerGroup>,
    is_grouped: bool,
}

impl Session {
    /// Starts `program`, a binary with the verb, as the keeper of a worker, in `group` if given.
    ///
    /// `env`: variables in addition to those of every worker. Errors: `env-worker-not-started`.
    pub fn start(
        program: &Path,
        confined: &Confined,
        env: &[(String, String)],
        group: Option<WorkerGroup>,
    ) -> Result<Session> {
        let not_started = |err: &dyn std::fmt::Display| {
            Error::new("env-worker-not-started", format!("{}: {err}", program.display()))
                .hint("check the limits on processes and open files: `ulimit -u`, `ulimit -n`, and `pids.max` of the container")
        };
        let flags = SocketFlags::CLOEXEC;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (socket, theirs) = pair.map_err(|err| not_started(&err))?;
        let (errors, words) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|err| not_started(&err))?;
        rustix::io::ioctl_fionbio(&errors, true).map_err(|err| not_started(&err))?;
        let mut command = Command::new(program);
        let arguments = confined.arguments(std::process::id(), group.as_ref().map(WorkerGroup::arguments));
        command.args(arguments).stdin(Stdio::from(theirs));
        // Its stdout goes to its stderr, not to this program's stdout.
        command.stdout(Stdio::from(words.try_clone().map_err(|err| not_started(&err))?));
        command.stderr(Stdio::from(words));
        if confined.gpu == Gpu::Deny {
            let hidden = ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"];
            command.envs(hidden.map(|name| (name, ""))).env("JAX_PLATFORMS", "cpu");
        }
        let threads = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"];
        command.envs(threads.map(|name| (name, "1"))).env("PYTHONFAULTHANDLER", "1");
        command.env("PYTHONUNBUFFERED", "1").env("PYTHONIOENCODING", "utf-8:backslashreplace");
        // The worker's processes are not trainers of this supervisor.
        command.env_remove(crate::status::VARIABLE).envs(env.iter().map(|(key, value)| (key, value)));
        let child = command.spawn().map_err(|err| not_started(&err))?;
        let words = Ring::new(LAST_WORDS_BYTES);
        Ok(Session {
            child,
            socket,
            errors,
            errors_open: true,
            words,
            status: None,
            interpreter: None,
            group,
            is_grouped: false,
        })
    }

    /// Returns the keeper's process id, the ancestor of every process of the worker.
    pub fn keeper(&self) -> u32 {
        self.child.id()
    }

    /// Returns the interpreter's process id; the keeper's until that is known.
    pub fn pid(&self) -> u32 {
        self.interpreter.unwrap_or(self.child.id())
    }

    /// Records the process id that the interpreter sent, if it is below the keeper.
    pub fn introduce(&mut self, pid: u32) {
        self.interpreter = Some(pid).filter(|&pid| self.is_ours(pid));
        self.is_grouped = self.group.as_ref().is_some_and(|group| group.processes().contains(&pid));
    }

    /// Returns true if the interpreter is in the worker's group, so that the kernel limits it and its children.
    pub fn is_grouped(&self) -> bool {
        self.is_grouped
    }

    pub fn is_alive(&mut self) -> bool {
        self.ended().is_none() && self.interpreter.is_none_or(|pid| self.is_ours(pid))
    }

    fn is_ours(&self, pid: u32) -> bool {
        procs::below(&[self.keeper()]).contains(&(self.keeper(), pid))
    }

    /// Returns the kernel's counts if it killed processes in the worker's group for lack of memory.
    pub fn killed_in_group(&self) -> Option<GroupKill> {
        self.group.as_ref()?.killed()
    }

    /// Returns the parent's end of the socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Duplicates the parent's end, for a thread that sends while another watches.
    pub fn socket_clone(&self) -> std::io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// Returns stderr while it is open.
    pub fn errors(&self) -> Option<BorrowedFd<'_>> {
        self.errors_open.then(|| self.errors.as_fd())
    }

    /// Keeps the end of stderr; reads a bounded part per call.
    pub fn listen(&mut self) {
        let mut chunk = [0u8; CHUNK_BYTES];
        for _ in 0..16 {
            match rustix::io::read(&self.errors, &mut chunk) {
                Ok(0) => {
                    self.errors_open = false;
                    return;
                }
                Ok(length) => self.words.push(&chunk[..length]),
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Returns the last lines of its stderr.
    pub fn last_words(&self, lines: usize) -> Vec<String> {
        self.words.last_lines(lines)
    }

    /// Returns how it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Asks for the stacks of its threads, which Python's fault handler writes to stderr.
    pub fn ask_for_stack(&self) {
        // Below the keeper the pid is still the interpreter's, not reused.
        let interpreter = self.interpreter.filter(|&pid| self.is_ours(pid));
        if let Some(pid) = interpreter.and_then(|pid| Pid::from_raw(pid as i32)) {
            let _ = rustix::process::kill_process(pid, Signal::USR1);
        }
    }

    /// Kills every process of the worker and waits for its keeper.
    pub fn kill(&mut self) -> Option<ExitStatus> {
        let (keeper, until) = (self.keeper(), Instant::now() + KILL_TIME);
        // A keeper without processes cleans up and ends; one that started none, or a lone interpreter, is killed below.
        let mut keeps = self.interpreter.is_some_and(|interpreter| interpreter != keeper);
        // The keeper last: while it lives it adopts orphans and counts their time.
        while self.ended().is_none() && Instant::now() < until {
            let below = procs::below(&[keeper]).into_iter().map(|(_, pid)| pid).filter(|&pid| pid != keeper);
            let below: Vec<u32> = below.collect();
            if below.is_empty() && !keeps {
                break;
            }
            keeps |= self.interpreter.is_none();
            procs::kill_all(below);
            std::thread::sleep(KILL_TICK);
        }
        if self.ended().is_none() {
            let _ = self.child.kill();
            // A killed process ends at once; this only collects it.
            self.status = self.child.wait().ok();
        }
        // If another process killed the keeper, its worker died with it, but the worker's children may live.
        if let Some(interpreter) = self.interpreter {
            procs::kill_all(procs::of_sessions(&[interpreter]).into_iter().map(|(_, pid)| pid));
        }
        // The group's other processes die with it.
        self.group = None;
        self.status
    }

    /// Waits for it to end, at most until `deadline`.
    pub fn wait_until(&mut self, deadline: Instant) -> Option<ExitStatus> {
        while self.ended().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.status
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Describes an exit status: `ended with exit code 1`, `was killed by signal 9`.
pub fn ending(status: Option<ExitStatus>) -> String {
    match status.map(|status| (status.code(), status.signal())) {
        Some((Some(code), _)) => format!("ended with exit code {code}"),
        Some((_, Some(signal))) => format!("was killed by signal {signal}"),
        _ => "closed its socket".into(),
    }
}
