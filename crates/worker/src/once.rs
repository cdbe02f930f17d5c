//! Programs started for one input and gone after it: how programs that a model wrote are run.

use crate::budget::Over;
use crate::folder;
use crate::kept::Keeper;
use crate::launch::Launch;
use crate::pool::Stop;
use crate::process::{PipeState, Process};
use plimsoll_base::Result;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const SIGKILL: i32 = 9;

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// It exited with this code.
    Code(i32),
    /// It was killed by this signal: a crash, or the limit on file sizes.
    Signal(i32),
    /// Killed because it did not end in time.
    Late,
    /// Killed because it wrote too much.
    TooLong,
    /// Killed because its processes together exceeded a limit.
    Over(Over),
}

/// The result of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    pub end: RunEnd,
    /// True if a process was refused because it had too many.
    pub was_full: bool,
    pub output: Vec<u8>,
    /// The last lines of its stderr.
    pub last_words: Vec<String>,
}

/// A folder for one program, removed when dropped.
#[derive(Debug)]
pub struct ProgramFolder(PathBuf);

impl ProgramFolder {
    pub fn make() -> std::io::Result<ProgramFolder> {
        folder::make().map(ProgramFolder)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ProgramFolder {
    fn drop(&mut self) {
        // The keeper has removed it, unless it was lost or never started the program.
        folder::remove(&self.0);
    }
}

/// Runs programs one after the other, in one keeper.
#[derive(Debug, Default)]
pub struct Runner {
    keeper: Option<Keeper>,
}

impl Runner {
    /// Runs a program to its end with `input` as its stdin, and ends everything it started.
    ///
    /// `output_bytes_max`: more output ends the program. Errors: those of starting it; its own failures are results.
    pub fn run(
        &mut self,
        launch: &Launch,
        input: &[u8],
        timeout: Duration,
        output_bytes_max: usize,
        stop: &Stop,
    ) -> Result<Ran> {
        let mut process = self.begin(launch)?;
        process.bound_reply(output_bytes_max);
        let early = drive(&mut process, input, Instant::now() + timeout, stop);
        Ok(self.ended(process, early))
    }

    /// Starts a program. The caller moves its input and output, then passes it to `end`.
    pub(crate) fn begin(&mut self, launch: &Launch) -> Result<Process> {
        match self.keeper.take().filter(Keeper::is_free) {
            Some(keeper) => Process::start_in(keeper, launch),
            None => Process::start(launch),
        }
    }

    /// Ends a program with everything it started. `is_late`: it took too long.
    pub(crate) fn end(&mut self, process: Process, is_late: bool) -> Ran {
        self.ended(process, is_late.then_some(RunEnd::Late))
    }

    fn ended(&mut self, mut process: Process, early: Option<RunEnd>) -> Ran {
        let end = process.kill();
        process.listen();
        // Output written just before its end.
        let more = process.read();
        let over = process.over(end).map(RunEnd::Over);
        let late = early.or_else(|| (more == PipeState::TooLong).then_some(RunEnd::TooLong));
        let end = over.or(late).unwrap_or_else(|| match (end.code, end.signal) {
            (Some(code), _) => RunEnd::Code(code),
            (None, signal) => RunEnd::Signal(signal.unwrap_or(SIGKILL)),
        });
        let (output, last_words) = (process.take_output(), process.last_lines(4));
        let was_full = process.was_full();
        self.keeper = Some(process.into_keeper());
        Ran { end, was_full, output, last_words }
    }
}

/// Moves input and output until the program has ended. Returns why it must be ended, if it has not.
fn drive(process: &mut Process, input: &[u8], deadline: Instant, stop: &Stop) -> Option<RunEnd> {
    let mut sent = 0;
    loop {
        process.listen();
        let flow = process.read();
        if sent < input.len() {
            let (now, written) = process.write(&input[sent..]);
            // A program need not read its input, which may be closed while it still writes.
            sent = if written == PipeState::Closed { input.len() } else { sent + now };
        }
        if sent == input.len() {
            process.close_input();
        }
        match flow {
            PipeState::TooLong => return Some(RunEnd::TooLong),
            _ if process.ended().is_some() => return None,
            _ if Instant::now() >= deadline || stop.is_set() => return Some(RunEnd::Late),
            PipeState::Closed | PipeState::Later => wait(process, flow, deadline),
        }
    }
}

/// Sleeps until a pipe is ready, the program has ended, the deadline passes, or 50 ms have passed.
fn wait(process: &Process, flow: PipeState, deadline: Instant) {
    // Output closes before the process ends, possibly long before.
    let output = (flow == PipeState::Later).then(|| process.output());
    let input = process.open_input().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::OUT));
    let readable = [output, process.errors(), process.reports()].into_iter().flatten();
    let mut fds: Vec<PollFd<'_>> = readable.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    fds.extend(input);
    let next = deadline.saturating_duration_since(Instant::now()).min(Duration::from_millis(50));
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(next.subsec_nanos()) };
    // An interrupted poll is fine: the caller checks every pipe anyway.
    let _ = rustix::event::poll(&mut fds, Some(&timeout));
}
