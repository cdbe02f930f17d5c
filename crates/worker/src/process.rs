//! One worker process: its pipes, its last words, and how it ended.

use crate::budget::Over;
use crate::job::JobEnd;
use crate::kept::Keeper;
use crate::launch::Launch;
use crate::ring::Ring;
use crate::words::{Unfinished, Words};
use plimsoll_base::{Bytes, Error, Result, slugs};
use plimsoll_memory::host::{OomEvidence, OomWatch};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Bytes kept of stderr for messages.
const STDERR_BYTES_MAX: usize = 8 << 10;
/// Most bytes of a reply beyond its request's: a score takes about 25, so more is a runaway.
const REPLY_BYTES_OVER: usize = 1 << 20;
/// Time from the end of a worker's output to its own end.
const CLOSED_TIME: Duration = Duration::from_millis(200);
const SIGKILL: i32 = 9;
/// Bytes moved per system call.
const CHUNK_BYTES: usize = 64 << 10;

/// A running worker and its keeper. Dropping it ends both, with everything the worker started.
pub(crate) struct Process {
    keeper: Keeper,
    pid: u32,
    /// `None` once closed.
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: OwnedFd,
    stderr_open: bool,
    replies: Vec<u8>,
    /// Longest reply to the request under way.
    reply_bytes_max: usize,
    /// Line feeds in `replies`, counted on arrival.
    whole_lines: usize,
    last_words: Ring,
    words: Option<Words>,
    unfinished: Unfinished,
    name: String,
    /// File name of the program, truncated as the kernel does.
    program: String,
    memory: Bytes,
}

/// The result of reading or writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PipeState {
    /// The pipe would block now.
    Later,
    /// The other end is closed.
    Closed,
    /// More bytes than a reply may have.
    TooLong,
}

impl Process {
    pub(crate) fn start(launch: &Launch) -> Result<Process> {
        let keeper =
            Keeper::start(launch.memory, launch.memory_groups).map_err(|err| launch.not_started(&err))?;
        Process::start_in(keeper, launch)
    }

    /// Starts a worker in a free keeper.
    pub(crate) fn start_in(mut keeper: Keeper, launch: &Launch) -> Result<Process> {
        let job = launch.job()?;
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
        let pipes = pipe().and_then(|input| Ok((input, pipe()?, pipe()?)));
        let ((input, stdin), (stdout, output), (stderr, errors)) =
            pipes.map_err(|err| launch.not_started(&format!("its pipes: {err}")))?;
        for end in [&stdin, &stdout, &stderr] {
            rustix::io::ioctl_fionbio(end, true).map_err(|err| launch.not_started(&err))?;
        }
        let theirs = [input.as_fd(), output.as_fd(), errors.as_fd()];
        let pid = keeper.run(job, theirs).map_err(|err| launch.not_started(&err))?;
        Ok(Process {
            keeper,
            pid,
            stdin: Some(stdin),
            stdout,
            stderr,
            stderr_open: true,
            replies: Vec::new(),
            reply_bytes_max: REPLY_BYTES_OVER,
            whole_lines: 0,
            last_words: Ring::new(STDERR_BYTES_MAX),
            words: launch.words.clone(),
            unfinished: Unfinished::default(),
            name: launch.name.clone(),
            program: launch.program.rsplit('/').next().unwrap_or_default().chars().take(15).collect(),
            memory: launch.memory,
        })
    }

    /// Returns the keeper of a worker that has ended.
    pub(crate) fn into_keeper(self) -> Keeper {
        self.keeper
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns stdin while it is open.
    pub(crate) fn open_input(&self) -> Option<BorrowedFd<'_>> {
        self.stdin.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn close_input(&mut self) {
        self.stdin = None;
    }

    /// Returns a descriptor that is readable when the keeper has a report.
    pub(crate) fn reports(&self) -> Option<BorrowedFd<'_>> {
        self.keeper.reports()
    }

    pub(crate) fn output(&self) -> BorrowedFd<'_> {
        self.stdout.as_fd()
    }

    /// Returns stderr while it is open.
    pub(crate) fn errors(&self) -> Option<BorrowedFd<'_>> {
        self.stderr_open.then(|| self.stderr.as_fd())
    }

    /// Writes as much of `bytes` as the pipe accepts. Returns the number of bytes written.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> (usize, PipeState) {
        let mut sent = 0;
        let Some(stdin) = &self.stdin else { return (0, PipeState::Closed) };
        while sent < bytes.len() {
            match rustix::io::write(stdin, &bytes[sent..]) {
                Ok(0) => return (sent, PipeState::Closed),
                Ok(n) => sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return (sent, PipeState::Later),
                Err(_) => return (sent, PipeState::Closed),
            }
        }
        (sent, PipeState::Later)
    }

    /// Sets the longest reply to a request of this size, and returns it.
    pub(crate) fn expect_reply_to(&mut self, request_bytes: usize) -> usize {
        self.reply_bytes_max = request_bytes + REPLY_BYTES_OVER;
        self.reply_bytes_max
    }

    /// Sets the longest reply.
    pub(crate) fn bound_reply(&mut self, bytes: usize) {
        self.reply_bytes_max = bytes;
    }

    /// Takes all bytes read so far.
    pub(crate) fn take_output(&mut self) -> Vec<u8> {
        self.whole_lines = 0;
        std::mem::take(&mut self.replies)
    }

    /// Returns how it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<JobEnd> {
        self.keeper.ended()
    }

    /// Returns the limit it exceeded, if that ended it.
    pub(crate) fn over(&self, end: JobEnd) -> Option<Over> {
        let by_kernel = || self.keeper.killed_in_group().filter(|kill| kill.by_own_limit);
        end.over.or_else(|| by_kernel().map(|_| Over::Memory(0, self.memory.0)))
    }

    /// Returns the error of a worker that continues after the kernel killed processes of it: it cannot be relied on.
    pub(crate) fn killed_in_part(&mut self) -> Option<Error> {
        let kill = self.keeper.killed_in_group().filter(|kill| kill.by_own_limit)?;
        let over = Over::Memory(0, self.memory.0);
        Some(self.over_budget(&format!("held {over}, and was ended")).fact(kill.fact))
    }

    /// Returns true if a process was refused because it had too many.
    pub(crate) fn was_full(&mut self) -> bool {
        self.ended().is_some_and(|end| end.was_full)
    }

    /// Returns the last lines of its stderr.
    pub(crate) fn last_lines(&self, lines: usize) -> Vec<String> {
        self.last_words.last_lines(lines)
    }

    pub(crate) fn read(&mut self) -> PipeState {
        let mut chunk = [0u8; CHUNK_BYTES];
        loop {
            match rustix::io::read(&self.stdout, &mut chunk) {
                Ok(0) => return PipeState::Closed,
                Ok(n) => {
                    self.whole_lines += chunk[..n].iter().filter(|&&byte| byte == b'\n').count();
                    if self.replies.capacity() < self.replies.len() + n {
                        // By a quarter, not by as much again: a reply may be as long as it may be.
                        self.replies.reserve_exact(n.max(self.replies.len() / 4));
                    }
                    self.replies.extend_from_slice(&chunk[..n]);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return PipeState::Later,
                Err(_) => return PipeState::Closed,
            }
            if self.replies.len() > self.reply_bytes_max {
                return PipeState::TooLong;
            }
        }
    }

    /// Reads a bounded part of stderr, so that a flood of output cannot hold the caller.
    pub(crate) fn listen(&mut self) {
        let mut chunk = [0u8; CHUNK_BYTES];
        for _ in 0..16 {
            match rustix::io::read(&self.stderr, &mut chunk) {
                Ok(0) => {
                    self.stderr_open = false;
                    return;
                }
                Ok(n) => {
                    self.last_words.push(&chunk[..n]);
                    if let Some(words) = &self.words {
                        words.hear(&self.name, &mut self.unfinished, &chunk[..n]);
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Returns how many bytes were read but not taken.
    pub(crate) fn unread(&self) -> usize {
        self.replies.len()
    }

    /// Reads the end of its stderr.
    pub(crate) fn listen_to_end(&mut self) {
        self.listen();
        if let Some(words) = &self.words {
            words.end_line(&self.name, &mut self.unfinished);
        }
    }

    /// Takes `count` whole lines, if there are that many.
    pub(crate) fn take_lines(&mut self, count: usize) -> Option<Vec<String>> {
        if self.whole_lines < count {
            return None;
        }
        self.whole_lines -= count;
        let mut ends = self.replies.iter().enumerate().filter(|&(_, &byte)| byte == b'\n').map(|(at, _)| at);
        let end = ends.nth(count.checked_sub(1)?)?;
        let lines = self.replies[..end].split(|&byte| byte == b'\n');
        let lines = lines.map(|line| String::from_utf8_lossy(line).into_owned()).collect();
        self.replies.drain(..=end);
        self.replies.shrink_to(CHUNK_BYTES);
        Some(lines)
    }

    /// Ends the worker with everything it started. Returns how it ended.
    pub(crate) fn kill(&mut self) -> JobEnd {
        self.keeper.end()
    }

    /// Returns why a worker died, after its output closed. `oom` was begun before that.
    pub(crate) fn death(&mut self, oom: &mut OomWatch) -> Error {
        let end = self.keeper.wait_until(Instant::now() + CLOSED_TIME);
        let had_ended = end.is_some();
        let end = end.unwrap_or_else(|| self.kill());
        self.listen_to_end();
        if let Some(over) = self.over(end) {
            return self.over_budget(&format!("held {over}, and was ended"));
        }
        if end.signal == Some(SIGKILL)
            && let Some(error) = self.oom_kill(&oom.evidence())
        {
            return error;
        }
        let how = match (end.code, end.signal) {
            _ if !had_ended => "closed its output".into(),
            (Some(code), _) => format!("ended with exit code {code}"),
            (_, Some(signal)) => format!("was killed by signal {signal}"),
            _ => "ended with its keeper".into(),
        };
        let starved =
            ["MemoryError", "Cannot allocate memory", "bad_alloc", "out of memory", "memory allocation of"]
                .iter()
                .any(|words| self.last_words.contains(words));
        if starved {
            return self.out_of_memory(&how);
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

    /// Returns the error of a worker that the kernel killed, if it did. A worker cannot exceed its own limit, so the
    /// cause is a shared limit that does not cover all processes, or another process.
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

    /// Returns the error of a worker that reached its address space limit; `how` says how that showed.
    pub(crate) fn out_of_memory(&mut self, how: &str) -> Error {
        self.over_budget(&format!("ran out of its {} of address space and {how}", self.memory))
    }

    fn over_budget(&mut self, what: &str) -> Error {
        self.listen();
        let message = format!("reward `{}`: worker {} {what}", self.name, self.pid());
        self.with_last_words(Error::new(slugs::REWARD_WORKER_OVER_BUDGET, message))
            .hint("raise `worker_memory` in the [[reward]] table, or lower `workers`")
    }

    /// Kills a worker that did not answer in time. Returns its error.
    pub(crate) fn timeout(&mut self, limit: Duration, doing: &str) -> Error {
        self.kill();
        self.listen_to_end();
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
}
