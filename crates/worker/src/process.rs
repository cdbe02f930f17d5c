//! One worker process: its pipes, its last words, and how it ended.

use crate::launch::Launch;
use crate::ring::Ring;
use plimsoll_base::{Bytes, Error, Result, slugs};
use plimsoll_memory::host::{OomEvidence, OomWatch};
use rustix::fs::OFlags;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, ExitStatus};
use std::time::{Duration, Instant};

/// Bytes kept of stderr for messages.
const STDERR_BYTES_MAX: usize = 8 << 10;
/// How much longer than its request a reply may be: a score takes about 25 bytes, so more is a runaway.
const REPLY_BYTES_OVER: usize = 1 << 20;
const SIGKILL: i32 = 9;
/// Bytes moved per system call.
const CHUNK_BYTES: usize = 64 << 10;

/// A running worker. Dropping it kills its process group.
pub(crate) struct Process {
    child: Child,
    /// `None` once closed.
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    stderr: ChildStderr,
    stderr_open: bool,
    replies: Vec<u8>,
    /// Longest reply to the request under way.
    reply_bytes_max: usize,
    /// Line feeds in `replies`, counted on arrival.
    whole_lines: usize,
    last_words: Ring,
    name: String,
    /// The program's file name, as the kernel cuts it.
    program: String,
    memory: Bytes,
}

/// The result of reading or writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// The pipe would block now.
    Later,
    /// The other end is closed.
    Closed,
    /// More was written than a reply may hold.
    TooLong,
}

impl Process {
    pub(crate) fn start(launch: &Launch) -> Result<Process> {
        let mut child = launch.spawn()?;
        let (stdin, stdout, stderr) = match (child.stdin.take(), child.stdout.take(), child.stderr.take()) {
            (Some(stdin), Some(stdout), Some(stderr)) => (stdin, stdout, stderr),
            _ => unreachable!("all three streams were asked for as pipes"),
        };
        for fd in [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()] {
            let set = rustix::fs::fcntl_getfl(fd)
                .and_then(|flags| rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK));
            set.map_err(|err| {
                Error::new(
                    slugs::REWARD_WORKER_NOT_STARTED,
                    format!("reward `{}`: its pipes: {err}", launch.name),
                )
            })?;
        }
        Ok(Process {
            child,
            stdin: Some(stdin),
            stdout,
            stderr,
            stderr_open: true,
            replies: Vec::new(),
            reply_bytes_max: REPLY_BYTES_OVER,
            whole_lines: 0,
            last_words: Ring::new(STDERR_BYTES_MAX),
            name: launch.name.clone(),
            program: launch.program.rsplit('/').next().unwrap_or_default().chars().take(15).collect(),
            memory: launch.memory,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns stdin while it is open.
    pub(crate) fn open_input(&self) -> Option<BorrowedFd<'_>> {
        self.stdin.as_ref().map(AsFd::as_fd)
    }

    /// Returns stdout.
    pub(crate) fn close_input(&mut self) {
        self.stdin = None;
    }

    pub(crate) fn output(&self) -> BorrowedFd<'_> {
        self.stdout.as_fd()
    }

    /// Returns stderr while it is open.
    pub(crate) fn errors(&self) -> Option<BorrowedFd<'_>> {
        self.stderr_open.then(|| self.stderr.as_fd())
    }

    /// Writes as much of `bytes` as the pipe takes. Returns the number of bytes written.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> (usize, Flow) {
        let mut sent = 0;
        let Some(stdin) = &mut self.stdin else { return (0, Flow::Closed) };
        while sent < bytes.len() {
            match stdin.write(&bytes[sent..]) {
                Ok(0) => return (sent, Flow::Closed),
                Ok(n) => sent += n,
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                Err(err) if err.kind() == ErrorKind::WouldBlock => return (sent, Flow::Later),
                Err(_) => return (sent, Flow::Closed),
            }
        }
        (sent, Flow::Later)
    }

    /// Bounds the reply to a request of this many bytes. Returns the bound.
    pub(crate) fn expect_reply_to(&mut self, request_bytes: usize) -> usize {
        self.reply_bytes_max = request_bytes + REPLY_BYTES_OVER;
        self.reply_bytes_max
    }

    /// Bounds the bytes to read.
    pub(crate) fn bound_reply(&mut self, bytes: usize) {
        self.reply_bytes_max = bytes;
    }

    /// Takes all bytes read.
    pub(crate) fn take_output(&mut self) -> Vec<u8> {
        self.whole_lines = 0;
        std::mem::take(&mut self.replies)
    }

    /// Returns how it ended, if it has.
    pub(crate) fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Returns the last lines of its stderr.
    pub(crate) fn last_lines(&self, lines: usize) -> Vec<String> {
        self.last_words.last_lines(lines)
    }

    /// Reads stdout up to now.
    pub(crate) fn read(&mut self) -> Flow {
        let mut chunk = [0u8; CHUNK_BYTES];
        loop {
            match self.stdout.read(&mut chunk) {
                Ok(0) => return Flow::Closed,
                Ok(n) => {
                    self.whole_lines += chunk[..n].iter().filter(|&&byte| byte == b'\n').count();
                    self.replies.extend_from_slice(&chunk[..n]);
                }
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                Err(err) if err.kind() == ErrorKind::WouldBlock => return Flow::Later,
                Err(_) => return Flow::Closed,
            }
            if self.replies.len() > self.reply_bytes_max {
                return Flow::TooLong;
            }
        }
    }

    /// Reads a bounded part of stderr, so that a flood of output cannot hold the caller.
    pub(crate) fn listen(&mut self) {
        let mut chunk = [0u8; CHUNK_BYTES];
        for _ in 0..16 {
            match self.stderr.read(&mut chunk) {
                Ok(0) => {
                    self.stderr_open = false;
                    return;
                }
                Ok(n) => self.last_words.push(&chunk[..n]),
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Takes `count` whole lines, if there are as many.
    pub(crate) fn take_lines(&mut self, count: usize) -> Option<Vec<String>> {
        if self.whole_lines < count {
            return None;
        }
        self.whole_lines -= count;
        let mut ends = self.replies.iter().enumerate().filter(|&(_, &byte)| byte == b'\n').map(|(at, _)| at);
        let end = ends.nth(count.checked_sub(1)?)?;
        let taken: Vec<u8> = self.replies.drain(..=end).collect();
        let text = String::from_utf8_lossy(&taken[..end]).into_owned();
        Some(text.split('\n').map(str::to_string).collect())
    }

    /// Kills the worker and its group, and waits for it.
    pub(crate) fn kill(&mut self) -> Option<ExitStatus> {
        if let Ok(Some(status)) = self.child.try_wait() {
            self.kill_group();
            return Some(status);
        }
        self.kill_group();
        // A killed process ends at once; this only collects it.
        self.child.wait().ok()
    }

    fn kill_group(&self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            // The group is the session that the child opened. Killing an empty group fails, which is fine.
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
    }

    /// Returns why a worker died, after its output closed. `oom` was begun before the worker died.
    pub(crate) fn death(&mut self, oom: &mut OomWatch) -> Error {
        let status = self.wait_briefly().or_else(|| self.kill());
        self.listen();
        if status.is_some_and(|status| status.signal() == Some(SIGKILL))
            && let Some(error) = self.oom_kill(&oom.evidence())
        {
            return error;
        }
        let how = match status {
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("ended with exit code {code}"),
                (_, Some(signal)) => format!("was killed by signal {signal}"),
                _ => "ended".into(),
            },
            None => "closed its output".into(),
        };
        let starved =
            ["MemoryError", "Cannot allocate memory", "bad_alloc", "out of memory", "memory allocation of"]
                .iter()
                .any(|words| self.last_words.contains(words));
        if starved {
            return self.over_budget(&how);
        }
        let error = Error::new(
            slugs::REWARD_WORKER_CRASHED,
            format!("reward `{}`: worker {} {how}", self.name, self.pid()),
        );
        self.with_last_words(error).hint(format!(
            "run the reward alone to see why; a crash in native code may also be the memory limit (worker_memory, now {})",
            self.memory
        ))
    }

    /// Returns the error of a worker that the kernel killed, if it did. A worker cannot exceed its own limit, so the cause
    /// is a shared limit that does not cover all processes, or another process.
    fn oom_kill(&self, seen: &OomEvidence) -> Option<Error> {
        let line = seen.line_about(self.pid(), &self.program);
        if line.is_none() && seen.group_kills().is_none_or(|kills| kills == 0) {
            return None;
        }
        let by_container = line.map_or(seen.hit_group().is_some(), |line| line.container);
        let reason = match (by_container, seen.hit_group().and_then(|group| group.limit)) {
            (true, Some(limit)) => format!("the container's limit of {limit} was reached"),
            (true, None) => "the container's limit was reached".into(),
            (false, _) => "the machine ran out of memory".into(),
        };
        let (name, pid, budget) = (&self.name, self.pid(), self.memory);
        let message = format!(
            "reward `{name}`: {reason} and the kernel killed worker {pid}, which was within its {budget}"
        );
        let error = line.iter().fold(Error::new(slugs::REWARD_WORKER_OOM_KILLED, message), |error, line| {
            let held = line.anon.map_or(String::new(), |anon| format!("it held {anon}; "));
            error.fact(format!("{held}kernel: {}", line.text))
        });
        Some(
            error
                .hint("`plimsoll plan RUN` shows the limit, who else uses it, and what trainer and workers may come to hold")
                .hint("raise the container's limit, or lower `worker_memory` or `workers` in the [[reward]] table"),
        )
    }

    /// Returns the error of a worker that exceeded its memory limit.
    pub(crate) fn over_budget(&mut self, how: &str) -> Error {
        self.listen();
        let error = Error::new(
            slugs::REWARD_WORKER_OVER_BUDGET,
            format!(
                "reward `{}`: worker {} ran out of its {} of address space and {how}",
                self.name,
                self.pid(),
                self.memory
            ),
        );
        self.with_last_words(error).hint("raise `worker_memory` in the [[reward]] table, or lower `workers`")
    }

    /// Kills a worker that did not answer in time. Returns its error.
    pub(crate) fn timeout(&mut self, limit: Duration, doing: &str) -> Error {
        self.kill();
        self.listen();
        let error = Error::new(
            slugs::REWARD_WORKER_TIMEOUT,
            format!(
                "reward `{}`: worker {} {doing} longer than {} ms and was killed",
                self.name,
                self.pid(),
                limit.as_millis()
            ),
        );
        self.with_last_words(error).hint(
            "raise `timeout_ms` in the [[reward]] table, add `workers`, or make the function return in time",
        )
    }

    fn with_last_words(&self, error: Error) -> Error {
        self.last_words
            .last_lines(8)
            .into_iter()
            .fold(error, |error, line| error.fact(format!("stderr: {line}")))
    }

    /// Waits at most 200 ms for the exit status: output closes a moment before the process is a zombie.
    fn wait_briefly(&mut self) -> Option<ExitStatus> {
        let until = Instant::now() + Duration::from_millis(200);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
                _ => return None,
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
