//! One worker: an interpreter with its keeper, spoken with over a socket of whole messages.
//!
//! It is started from the verb `env-worker`, says its words to a ring that keeps their end, and is killed with every
//! process that it started. What the messages mean is not known here.

use crate::enter::Confined;
use crate::groups::{GroupKill, WorkerGroup};
use crate::procs;
use crate::ring::Ring;
use crate::sandbox::Gpu;
use plimsoll_base::{Error, Result};
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Bytes of standard error that are kept.
pub const LAST_WORDS_BYTES: usize = 64 << 10;
/// Longest message; the kernel's default for a socket is larger.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Bytes moved a system call.
const CHUNK_BYTES: usize = 16 << 10;
/// How long processes that are killed may take to be gone, before their keeper is killed too.
const KILL_TIME: Duration = Duration::from_secs(2);
/// Between two looks at what is left of them.
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
    /// The interpreter, once it has said who it is.
    interpreter: Option<u32>,
    group: Option<WorkerGroup>,
    is_grouped: bool,
}

/// What a socket gave.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// A message of so many bytes.
    Message(usize),
    /// None now.
    Later,
    /// The other end is gone.
    Closed,
}

impl Session {
    /// Starts `program`, our binary, as the keeper of a worker, in a memory group if one is given.
    ///
    /// `env`: variables beside those that every worker gets. Errors: `env-worker-not-started`.
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
        // What it prints belongs to its words, not to our standard output.
        command.stdout(Stdio::from(words.try_clone().map_err(|err| not_started(&err))?));
        command.stderr(Stdio::from(words));
        if confined.gpu == Gpu::Deny {
            let hidden = ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"];
            command.envs(hidden.map(|name| (name, ""))).env("JAX_PLATFORMS", "cpu");
        }
        let threads = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"];
        command.envs(threads.map(|name| (name, "1"))).env("PYTHONFAULTHANDLER", "1");
        command.env("PYTHONUNBUFFERED", "1").env("PYTHONIOENCODING", "utf-8:backslashreplace");
        // What the worker may start in turn is no trainer of ours.
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

    /// The keeper's process id: every process of the worker descends from it.
    pub fn keeper(&self) -> u32 {
        self.child.id()
    }

    /// The interpreter's process id; the keeper's until that is known.
    pub fn pid(&self) -> u32 {
        self.interpreter.unwrap_or(self.child.id())
    }

    /// Notes which process the interpreter says it is. It is believed if it is below the keeper.
    pub fn introduce(&mut self, pid: u32) {
        self.interpreter = Some(pid).filter(|&pid| self.is_ours(pid));
        self.is_grouped = self.group.as_ref().is_some_and(|group| group.processes().contains(&pid));
    }

    /// Whether the interpreter is in the worker's group, so that the kernel holds it and all that it starts.
    pub fn is_grouped(&self) -> bool {
        self.is_grouped
    }

    /// Whether the interpreter lives, as far as is known.
    pub fn is_alive(&mut self) -> bool {
        self.ended().is_none() && self.interpreter.is_none_or(|pid| self.is_ours(pid))
    }

    fn is_ours(&self, pid: u32) -> bool {
        procs::below(&[self.keeper()]).contains(&(self.keeper(), pid))
    }

    /// What the kernel says if it killed processes of the worker for lack of memory, where it has a group.
    pub fn killed_in_group(&self) -> Option<GroupKill> {
        self.group.as_ref()?.killed()
    }

    /// Our end of the socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// A second descriptor of our end, for a thread that speaks while another watches.
    pub fn socket_clone(&self) -> std::io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// Its standard error while it is open.
    pub fn errors(&self) -> Option<BorrowedFd<'_>> {
        self.errors_open.then(|| self.errors.as_fd())
    }

    /// Keeps what standard error holds, a bounded part a call.
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

    /// The last lines of its standard error.
    pub fn last_words(&self, lines: usize) -> Vec<String> {
        self.words.last_lines(lines)
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Asks it for the stack of its threads, which Python's fault handler writes to standard error.
    pub fn ask_for_stack(&self) {
        // What is below the keeper is surely still the interpreter, and not another process of its number.
        let interpreter = self.interpreter.filter(|&pid| self.is_ours(pid));
        if let Some(pid) = interpreter.and_then(|pid| Pid::from_raw(pid as i32)) {
            let _ = rustix::process::kill_process(pid, Signal::USR1);
        }
    }

    /// Kills every process of the worker and waits for its keeper.
    pub fn kill(&mut self) -> Option<ExitStatus> {
        let (keeper, until) = (self.keeper(), Instant::now() + KILL_TIME);
        // The keeper last: while it lives it takes up what loses its parent, and counts what they used.
        while self.ended().is_none() && Instant::now() < until {
            let below = procs::below(&[keeper]).into_iter().map(|(_, pid)| pid).filter(|&pid| pid != keeper);
            let below: Vec<u32> = below.collect();
            // Without a keeper the interpreter is in its place, and dies below.
            if below.is_empty() {
                break;
            }
            procs::kill_all(below);
            std::thread::sleep(KILL_TICK);
        }
        if self.ended().is_none() {
            let _ = self.child.kill();
            // A killed process ends at once; its parent only has to collect it.
            self.status = self.child.wait().ok();
        }
        // If somebody else killed the keeper, its worker died with it, and what that had started may live.
        if let Some(interpreter) = self.interpreter {
            procs::kill_all(procs::of_sessions(&[interpreter]).into_iter().map(|(_, pid)| pid));
        }
        // Whatever is left of its group dies with it.
        self.group = None;
        self.status
    }

    /// Waits for it to end by itself, at most until `deadline`.
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

/// An end in words: `exit code 1`, `signal 9`.
pub fn ending(status: Option<ExitStatus>) -> String {
    match status.map(|status| (status.code(), status.signal())) {
        Some((Some(code), _)) => format!("ended with exit code {code}"),
        Some((_, Some(signal))) => format!("was killed by signal {signal}"),
        _ => "closed its socket".into(),
    }
}

/// Sends one message. Errors: the other end is gone, or takes none now.
pub fn send(socket: BorrowedFd<'_>, message: &[u8]) -> std::io::Result<()> {
    // Without a signal if nobody reads any more: a dead worker is a value, not an end.
    rustix::net::send(socket, message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// Sends one message and a descriptor with it.
pub fn send_with(socket: BorrowedFd<'_>, message: &[u8], fd: BorrowedFd<'_>) -> std::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(message)], &mut control, flags)?;
    Ok(())
}

/// Takes one message if there is one; a longer one than `buffer` counts as closed, for its rest is lost.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Received {
    receive_with(socket, buffer, RecvFlags::DONTWAIT)
}

/// The same, after waiting for one as long as `limit_waits` said.
pub fn receive_waiting(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Received {
    receive_with(socket, buffer, RecvFlags::empty())
}

/// Limits the time that `receive_waiting` waits.
pub fn limit_waits(socket: BorrowedFd<'_>, limit: Duration) -> std::io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_timeout(socket, Timeout::Recv, Some(limit))?)
}

fn receive_with(socket: BorrowedFd<'_>, buffer: &mut [u8], flags: RecvFlags) -> Received {
    loop {
        match rustix::net::recv(socket, &mut *buffer, flags | RecvFlags::TRUNC) {
            Ok((_, 0)) => return Received::Closed,
            Ok((_, length)) if length > buffer.len() => return Received::Closed,
            Ok((_, length)) => return Received::Message(length),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Received::Later,
            Err(_) => return Received::Closed,
        }
    }
}

/// The interpreter that `python` names: an executable, a name in PATH, or the folder of a virtual environment. Without
/// one that of `$VIRTUAL_ENV`, else `python3` of PATH.
///
/// Errors: `env-python-missing`, with where it was looked for.
pub fn find_python(python: Option<&str>) -> Result<PathBuf> {
    let active = std::env::var("VIRTUAL_ENV").ok().filter(|folder| !folder.is_empty());
    let wanted = match (python, &active) {
        (Some(python), _) => python,
        (None, Some(folder)) => folder,
        (None, None) => "python3",
    };
    let path = Path::new(wanted);
    let candidates: Vec<PathBuf> = if path.is_dir() {
        ["bin/python", "bin/python3"].iter().map(|name| path.join(name)).collect()
    } else if wanted.contains('/') {
        vec![path.to_path_buf()]
    } else {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&folders).map(|folder| folder.join(wanted)).collect()
    };
    if let Some(found) = candidates.iter().find(|path| is_executable(path)) {
        return Ok(std::path::absolute(found).unwrap_or_else(|_| found.clone()));
    }
    let source = match (python, &active) {
        (Some(_), _) => "`python` names it",
        (None, Some(_)) => "$VIRTUAL_ENV names it",
        (None, None) => "nothing names another",
    };
    let error = Error::usage("env-python-missing", format!("no interpreter `{wanted}` ({source})"));
    let places =
        candidates.iter().take(12).map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    Err(error
        .fact(format!("looked for {}", if places.is_empty() { "it in an empty PATH".into() } else { places }))
        .hint("set `python` to an interpreter or to the folder of a virtual environment, or activate one"))
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}
