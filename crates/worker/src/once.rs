//! One program, started for one input and gone after it: how programs that a model wrote are run.

use crate::launch::Launch;
use crate::pool::Stop;
use crate::process::{Flow, Process};
use plimsoll_base::Result;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::time::{Duration, Instant};

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// By itself, with an exit code.
    Code(i32),
    /// By a signal: a crash, or the limit on file sizes.
    Signal(i32),
    /// Killed because it did not end in time.
    Late,
    /// Killed because it wrote too much.
    TooLong,
}

/// The result of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    pub end: RunEnd,
    /// Its stdout.
    pub output: Vec<u8>,
    /// The last lines of its stderr.
    pub last_words: Vec<String>,
}

/// Runs a program to its end with `input` as its stdin.
///
/// `output_bytes_max`: more output ends the program. Errors: those of starting it; its failures are results.
pub fn run_once(
    launch: &Launch,
    input: &[u8],
    timeout: Duration,
    output_bytes_max: usize,
    stop: &Stop,
) -> Result<Ran> {
    let mut process = Process::start(launch)?;
    process.bound_reply(output_bytes_max);
    let deadline = Instant::now() + timeout;
    let mut sent = 0;
    let end = loop {
        process.listen();
        let flow = process.read();
        if sent < input.len() {
            let (now, written) = process.write(&input[sent..]);
            // A program need not read its input, which may be closed while it still writes.
            sent = if written == Flow::Closed { input.len() } else { sent + now };
        }
        if sent == input.len() {
            process.close_input();
        }
        match flow {
            Flow::Closed => break ended(&mut process, deadline),
            Flow::TooLong => break RunEnd::TooLong,
            Flow::Later if Instant::now() >= deadline || stop.is_set() => break RunEnd::Late,
            Flow::Later => wait(&process, deadline),
        }
    };
    process.kill();
    process.listen();
    Ok(Ran { end, output: process.take_output(), last_words: process.last_lines(4) })
}

/// Output closes before the process ends, possibly long before.
fn ended(process: &mut Process, deadline: Instant) -> RunEnd {
    use std::os::unix::process::ExitStatusExt;
    loop {
        match process.status() {
            Some(status) => {
                return status.code().map_or(RunEnd::Signal(status.signal().unwrap_or(0)), RunEnd::Code);
            }
            None if Instant::now() >= deadline => return RunEnd::Late,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Sleeps until a pipe is ready, the deadline is reached, or 50 ms have passed.
fn wait(process: &Process, deadline: Instant) {
    let mut fds = vec![PollFd::from_borrowed_fd(process.output(), PollFlags::IN)];
    fds.extend(process.errors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    fds.extend(process.open_input().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::OUT)));
    let next = deadline.saturating_duration_since(Instant::now()).min(Duration::from_millis(50));
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(next.subsec_nanos()) };
    // An interrupted poll is fine: the caller checks every pipe anyway.
    let _ = rustix::event::poll(&mut fds, Some(&timeout));
}
