//! A program and its tests in two workers that never meet: this process passes lines of the tests to the program and
//! its answers back, in turns, until the tests reach a verdict. Only the two scripts know what the lines mean.

use crate::launch::Launch;
use crate::once::{ProgramFolder, Ran, Runner};
use crate::pool::Stop;
use crate::process::{PipeState, Process};
use plimsoll_base::Result;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::time::{Duration, Instant};

/// Beginnings of a verdict, and of the reply to tests that must run in the program's own process.
const VERDICTS: [&str; 2] = ["{\"holds\":", "{\"inside\":"];
/// Tells the tests that the program has ended.
const GONE: &[u8] = b"{\"gone\": true}\n";
/// Time for tests to confirm that their program is gone.
const GONE_TIME: Duration = Duration::from_secs(5);
/// How soon a stop is noticed.
const STOP_POLL: Duration = Duration::from_millis(50);

/// The worker in which tests run, one set after another; started with the first.
pub struct Judge {
    launch: Launch,
    tester: Option<Tester>,
}

/// The tests' process and its folder.
struct Tester {
    process: Process,
    _folder: ProgramFolder,
}

/// The result of testing a program.
#[derive(Clone, Debug)]
pub struct Judged {
    /// Last line of the tests, a verdict; `None` if they or the program did not get that far.
    pub verdict: Option<String>,
    /// How the program ended; `None` if it was not started.
    pub program: Option<Ran>,
}

/// Why a line got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Silence {
    Late,
    Ended,
    /// More than one line, or a line over the limit.
    TooLong,
}

impl Judge {
    /// Makes a judge. `launch` starts the interpreter with its script; its folder is made here.
    pub fn new(launch: Launch) -> Judge {
        Judge { launch, tester: None }
    }

    fn start(&self) -> Result<Tester> {
        let folder = ProgramFolder::make().map_err(|err| self.launch.not_started(&err))?;
        let launch = Launch { folder: Some(folder.path().to_path_buf()), ..self.launch.clone() };
        Ok(Tester { process: Process::start(&launch)?, _folder: folder })
    }

    /// Runs tests against a program. `tests`: the line that the tests' script reads.
    ///
    /// Errors: those of starting a worker.
    pub fn judge(
        &mut self,
        runner: &mut Runner,
        program: &Launch,
        tests: &str,
        timeout: Duration,
        line_bytes_max: usize,
        stop: &Stop,
    ) -> Result<Judged> {
        let deadline = Instant::now() + timeout;
        let mut tester = match self.tester.take() {
            Some(tester) => tester,
            None => self.start()?,
        };
        let line = format!("{tests}\n");
        let mut asked = exchange(&mut tester.process, line.as_bytes(), line_bytes_max, deadline, stop);
        if asked == Err(Silence::Ended) {
            // It died since its last verdict, for example from tests that exhausted its memory.
            tester = self.start()?;
            asked = exchange(&mut tester.process, line.as_bytes(), line_bytes_max, deadline, stop);
        }
        let is_verdict = |line: &str| VERDICTS.iter().any(|start| line.starts_with(start));
        let mut running: Option<Process> = None;
        let mut is_ready = false;
        let verdict = loop {
            let question = match asked {
                Ok(line) if is_verdict(&line) => {
                    is_ready = true;
                    break Some(line);
                }
                Ok(line) => line + "\n",
                Err(_) => break None,
            };
            let program = match &mut running {
                Some(program) => program,
                none => none.insert(runner.begin(program)?),
            };
            let answer = exchange(program, question.as_bytes(), line_bytes_max, deadline, stop);
            let Ok(answer) = answer else {
                // Tells the tests, so that they are ready for the next program.
                let until = Instant::now() + GONE_TIME;
                let said = exchange(&mut tester.process, GONE, line_bytes_max, until, stop);
                is_ready = said.is_ok_and(|line| is_verdict(&line));
                break None;
            };
            let answer = answer + "\n";
            asked = exchange(&mut tester.process, answer.as_bytes(), line_bytes_max, deadline, stop);
        };
        let late = Instant::now() >= deadline;
        // Tests that are not ready for the next program are dropped.
        self.tester = is_ready.then_some(tester);
        let program = running.map(|program| runner.end(program, late));
        Ok(Judged { verdict, program })
    }
}

/// Sends a line and waits for one.
fn exchange(
    process: &mut Process,
    line: &[u8],
    bytes_max: usize,
    deadline: Instant,
    stop: &Stop,
) -> std::result::Result<String, Silence> {
    process.bound_reply(bytes_max);
    let mut sent = 0;
    loop {
        process.listen();
        let flow = process.read();
        if let Some(mut lines) = process.take_lines(1) {
            return if process.unread() == 0 && sent == line.len() {
                Ok(lines.remove(0))
            } else {
                Err(Silence::TooLong)
            };
        }
        let mut written = PipeState::Later;
        if sent < line.len() {
            let (more, flow) = process.write(&line[sent..]);
            (sent, written) = (sent + more, flow);
        }
        match (flow, written) {
            (PipeState::TooLong, _) => return Err(Silence::TooLong),
            (PipeState::Closed, _) | (_, PipeState::Closed) => return Err(Silence::Ended),
            _ if Instant::now() >= deadline || stop.is_set() => return Err(Silence::Late),
            _ => wait(process, sent < line.len(), deadline),
        }
    }
}

/// Sleeps until a pipe is ready, the program has ended, the deadline passes, or a stop must be checked.
fn wait(process: &Process, is_sending: bool, deadline: Instant) {
    let input = process.open_input().filter(|_| is_sending);
    let readable = [Some(process.output()), process.errors()].into_iter().flatten();
    let mut fds: Vec<PollFd<'_>> = readable.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    fds.extend(input.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::OUT)));
    let next = deadline.saturating_duration_since(Instant::now()).min(STOP_POLL);
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(next.subsec_nanos()) };
    // An interrupted poll is fine: the caller checks every pipe anyway.
    let _ = rustix::event::poll(&mut fds, Some(&timeout));
}
