//! The supervisor of a run: starts the trainer as its child, forwards signals, keeps its last words, and reports how it
//! ended. It holds no model and no thread; one poll loop waits for everything. The crate `run` judges the end, and in a
//! run of several ranks supplies the other supervisors (`Others`).

use crate::oom_scores::{OomScore, Raise};
use crate::ring::Ring;
use crate::status::{StatusPage, VARIABLE};
use plimsoll_base::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal};
use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Bytes kept of stderr.
const LAST_WORDS_BYTES: usize = 8 << 10;
/// Lines of stderr quoted.
const LAST_WORDS_LINES: usize = 20;
/// Bytes moved per system call.
const CHUNK_BYTES: usize = 16 << 10;
/// Longest sleep: finds an ended child even if its signal was lost.
const POLL_SECONDS: i64 = 1;
/// Longest sleep with other ranks, which must learn of a trainer's death at once.
const POLL_NANOSECONDS_OF_RANKS: i64 = 100_000_000;
/// Flag of a process that has begun to exit. Source: PF_EXITING, linux `include/linux/sched.h`.
const EXITING: u64 = 0x4;
/// Time for a trainer to end once the run is over; then it is killed.
const ENDING_MAX: Duration = Duration::from_secs(10);
/// Time stopped before it is reported: a shell continues the processes of a job one by one.
const STOPPED_TIME: Duration = Duration::from_secs(2);
/// Out-of-memory points of the trainer above its supervisor's: at equal size it dies first. A point is 0.1 % of memory.
const TRAINER_OOM_POINTS: i32 = 10;
/// The supervisor is never chosen, even if a container kills all its processes together.
const NEVER_KILLED: i32 = -1000;
const OOM_SCORE_ADJ: &std::ffi::CStr = c"/proc/self/oom_score_adj";

/// A descriptor that becomes readable when the supervisor gets a signal.
#[derive(Clone, Copy, Debug)]
pub struct SignalPipe<'a> {
    pub signal: i32,
    /// Holds one byte per signal; non-blocking.
    pub pipe: BorrowedFd<'a>,
}

#[derive(Clone, Debug)]
pub struct Ended {
    pub pid: u32,
    pub status: ExitStatus,
    /// The last signal forwarded to it.
    pub forwarded: Option<i32>,
    /// True if it was ended because another rank's run was over.
    pub is_for_others: bool,
    /// Its last note on the status page.
    pub note: Option<String>,
    /// Last lines of its stderr, without cursor movements.
    pub last_words: Vec<String>,
}

/// Says what a supervisor observes of a running trainer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A signal has stopped it; `note` is its last note on the status page.
    Stopped { pid: u32, note: Option<String> },
    /// It was continued, after being stopped for this time.
    Continued { pid: u32, stopped: Duration },
    /// A process raised the out-of-memory score of the trainer or the supervisor.
    Raised(Raise),
}

/// State of a trainer, for the supervisors of other ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trainer {
    pub pid: u32,
    /// Its state in /proc, for example `R`, or `T` if stopped by a signal; `-` once it is gone.
    pub state: char,
    /// Its last note on the status page.
    pub note: Option<String>,
}

/// An order from the supervisors of other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Send the trainer this signal: a user sent it to another rank.
    Signal(i32),
    /// End the trainer, because the run is over.
    End,
}

/// The supervisors of a run's other ranks.
pub trait Others {
    /// Returns a descriptor that is readable when there is an order.
    fn bell(&self) -> BorrowedFd<'_>;

    /// Records a signal that this supervisor got.
    fn asked(&self, signal: i32);

    /// Records the state of the trainer. Returns orders for it.
    fn look(&self, trainer: Trainer) -> Vec<Order>;

    /// Records, once and before reaping, that the trainer dies of an outside signal. Its driver may take seconds more.
    fn dies(&self, ended: &Ended);
}

/// Runs this program again with `args` and `env` as the trainer, and waits for its end.
///
/// `forward`: signals to forward; `child_ended` becomes readable on SIGCHLD. The trainer shares stdin and stdout; its
/// stderr comes through a pipe. It dies with the supervisor. `report` gets observations; `others`: other ranks.
pub fn supervise(
    args: &[OsString],
    env: &[(String, String)],
    forward: &[SignalPipe<'_>],
    child_ended: SignalPipe<'_>,
    report: &mut dyn FnMut(&Seen),
    others: Option<&dyn Others>,
) -> Result<Ended> {
    let page = StatusPage::new().ok();
    let mut child = start(args, env, page.as_ref())?;
    let mut stderr = child.stderr.take().expect("it was asked for as a pipe");
    let flags = rustix::fs::fcntl_getfl(&stderr).unwrap_or(OFlags::empty());
    rustix::fs::fcntl_setfl(&stderr, flags | OFlags::NONBLOCK).map_err(|err| not_started(&err.into()))?;
    let pid = Pid::from_child(&child);
    let mut words = Ring::new(LAST_WORDS_BYTES);
    let (mut requests, mut open, mut pause) =
        (Requests { pid, forwarded: None, ending: None }, true, Pause::default());
    let ended = |status, requests: &Requests, words: &Ring| Ended {
        pid: pid.as_raw_nonzero().get() as u32,
        status,
        forwarded: requests.forwarded,
        is_for_others: requests.ending.is_some(),
        note: page.as_ref().and_then(StatusPage::read),
        last_words: plain_lines(words),
    };
    let mut scores = [std::process::id(), pid.as_raw_nonzero().get() as u32].map(OomScore::of);
    let mut is_dying = false;
    let status = loop {
        wait(forward, child_ended, open.then_some(&stderr), others);
        open = open && pump(&mut stderr, &mut words);
        for one in forward.iter().filter(|one| one.came()) {
            requests.pass_on(one.signal);
            others.iter().for_each(|others| others.asked(one.signal));
        }
        child_ended.came();
        let Stat { state, fate } = Stat::of(pid);
        let seen = pause.look(state == 'T', Instant::now(), pid, || page.as_ref()?.read());
        let raises = scores.iter_mut().filter_map(OomScore::look).map(Seen::Raised);
        seen.into_iter().chain(raises).for_each(|seen| report(&seen));
        if let Some(others) = others {
            let note = page.as_ref().and_then(StatusPage::read);
            let trainer = Trainer { pid: pid.as_raw_nonzero().get() as u32, state, note };
            others.look(trainer).into_iter().for_each(|order| requests.take(order));
            requests.end_if_due();
        }
        if let Some(status) = child.try_wait().map_err(|err| not_started(&err))? {
            break status;
        }
        if let (Some(others), Some(status), false) = (others, fate, is_dying || requests.has_sent_any()) {
            is_dying = true;
            others.dies(&ended(status, &requests, &words));
        }
    };
    // Its last words are still in the pipe.
    pump(&mut stderr, &mut words);
    Ok(ended(status, &requests, &words))
}

impl Ended {
    /// Returns the signal that killed it.
    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }
}

impl SignalPipe<'_> {
    /// Empties the pipe. Returns true if the signal arrived.
    pub fn came(&self) -> bool {
        let mut bytes = [0u8; 64];
        let mut came = false;
        while rustix::io::read(self.pipe, &mut bytes).is_ok_and(|length| length > 0) {
            came = true;
        }
        came
    }
}

/// Requests made to the trainer.
struct Requests {
    pid: Pid,
    forwarded: Option<i32>,
    /// When it was asked to end because the run was over.
    ending: Option<Instant>,
}

impl Requests {
    fn pass_on(&mut self, signal: i32) {
        self.forwarded = Some(signal);
        if let Some(signal) = Signal::from_named_raw(signal) {
            self.send(signal);
            // A stopped process does not see the request until it continues.
            self.send(Signal::CONT);
        }
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Signal(signal) => self.pass_on(signal),
            Order::End => {
                self.ending.get_or_insert_with(Instant::now);
                self.send(Signal::TERM);
                self.send(Signal::CONT);
            }
        }
    }

    /// Returns true if it may die of a signal sent from here.
    fn has_sent_any(&self) -> bool {
        self.forwarded.is_some() || self.ending.is_some()
    }

    fn end_if_due(&self) {
        if self.ending.is_some_and(|at| at.elapsed() >= ENDING_MAX) {
            self.send(Signal::KILL);
        }
    }

    /// Sends a signal. The child is not reaped yet, so its pid cannot be reused. A dead child needs no signal.
    fn send(&self, signal: Signal) {
        let _ = rustix::process::kill_process(self.pid, signal);
    }
}

/// Time for which the trainer has been stopped.
#[derive(Default)]
struct Pause {
    since: Option<Instant>,
    is_reported: bool,
}

impl Pause {
    /// Returns news, given whether the trainer is stopped `now`.
    fn look(
        &mut self,
        is_stopped: bool,
        now: Instant,
        pid: Pid,
        note: impl FnOnce() -> Option<String>,
    ) -> Option<Seen> {
        let pid = pid.as_raw_nonzero().get() as u32;
        if !is_stopped {
            let Pause { since, is_reported } = std::mem::take(self);
            return is_reported.then(|| Seen::Continued { pid, stopped: now - since.unwrap_or(now) });
        }
        let since = *self.since.get_or_insert(now);
        let is_new = !self.is_reported && now - since >= STOPPED_TIME;
        self.is_reported |= is_new;
        is_new.then(|| Seen::Stopped { pid, note: note() })
    }
}

/// State of a process in /proc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    /// `T` if stopped by a signal; `t` if held by a debugger.
    state: char,
    /// Exit status of a process that a signal has begun to end.
    fate: Option<ExitStatus>,
}

impl Stat {
    fn of(pid: Pid) -> Stat {
        let text = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        Stat::parse(&text)
    }

    /// Parses fields after the name: 3 state, 9 flags, 52 exit code, if this user may see it. Source: proc_pid_stat(5).
    fn parse(text: &str) -> Stat {
        let fields: Vec<&str> =
            text.rsplit_once(')').map_or(Vec::new(), |(_, rest)| rest.split_whitespace().collect());
        let number =
            |field: usize| fields.get(field - 3).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        let status = ExitStatus::from_raw(number(52) as i32);
        let has_begun = number(9) & EXITING != 0 && status.signal().is_some();
        let state = fields.first().and_then(|text| text.chars().next()).unwrap_or('-');
        Stat { state, fate: has_begun.then_some(status) }
    }
}

fn start(args: &[OsString], env: &[(String, String)], page: Option<&StatusPage>) -> Result<Child> {
    let own_points =
        fs::read_to_string("/proc/self/oom_score_adj").ok().and_then(|text| text.trim().parse().ok());
    let own_points: i32 = own_points.unwrap_or(0);
    let trainer_points = (own_points + TRAINER_OOM_POINTS).min(1000).to_string();
    // Needs a privilege that a container may lack; the trainer is larger anyway.
    let _ = fs::write("/proc/self/oom_score_adj", NEVER_KILLED.to_string());
    // By path, because the kernel names a process after its file; a replaced file is missing.
    let program = std::env::current_exe().ok().filter(|path| path.is_file());
    let mut command = Command::new(program.unwrap_or_else(|| "/proc/self/exe".into()));
    command.args(args).stderr(Stdio::piped());
    command.envs(env.iter().map(|(key, value)| (key, value)));
    // Without a page it still learns its parent's pid; descriptor 0 is never a page.
    command.env(VARIABLE, page.map_or_else(StatusPage::none, StatusPage::variable));
    let keep = page.map(|page| page.fd().as_raw_fd());
    let parent = rustix::process::getpid();
    // SAFETY: `become_trainer` only makes system calls: no allocation and no lock between fork and exec.
    unsafe { command.pre_exec(move || become_trainer(parent, keep, trainer_points.as_bytes())) };
    command.spawn().map_err(|err| not_started(&err))
}

/// Runs in the child before exec: it dies with its parent, keeps the page, and is the first OOM victim.
fn become_trainer(parent: Pid, keep: Option<i32>, oom_points: &[u8]) -> std::io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the signal was armed; then it would never arrive.
    if rustix::process::getppid() != Some(parent) {
        return Err(std::io::Error::from(rustix::io::Errno::SRCH));
    }
    if let Some(number) = keep {
        // SAFETY: the descriptor is open: the parent holds the page open until the child has ended.
        let page = unsafe { BorrowedFd::borrow_raw(number) };
        rustix::io::fcntl_setfd(page, rustix::io::FdFlags::empty())?;
    }
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open(OOM_SCORE_ADJ, flags, rustix::fs::Mode::empty()) {
        // If it cannot be set, the kernel chooses by size alone.
        let _ = rustix::io::write(&file, oom_points);
    }
    Ok(())
}

/// Returns the columns of a terminal; `None` if it is not one or does not report them.
pub fn terminal_columns(terminal: &fs::File) -> Option<u16> {
    rustix::termios::tcgetwinsize(terminal).ok().map(|size| size.ws_col).filter(|&columns| columns > 0)
}

/// Sleeps until a signal or output arrives, or a second has passed.
fn wait(
    forward: &[SignalPipe<'_>],
    child_ended: SignalPipe<'_>,
    stderr: Option<&ChildStderr>,
    others: Option<&dyn Others>,
) {
    let pipes = forward.iter().chain([&child_ended]).map(|one| one.pipe);
    let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let rest = stderr.map(|stderr| stderr.as_fd()).into_iter().chain(others.map(|others| others.bell()));
    let mut fds: Vec<PollFd<'_>> = pipes.chain(rest).map(readable).collect();
    let limit = match others {
        None => Timespec { tv_sec: POLL_SECONDS, tv_nsec: 0 },
        Some(_) => Timespec { tv_sec: 0, tv_nsec: POLL_NANOSECONDS_OF_RANKS },
    };
    // An interrupted poll is fine: the caller checks everything anyway.
    let _ = rustix::event::poll(&mut fds, Some(&limit));
}

/// Forwards stderr and keeps its end. Returns false once it is closed.
fn pump(stderr: &mut ChildStderr, words: &mut Ring) -> bool {
    let mut chunk = [0u8; CHUNK_BYTES];
    loop {
        match stderr.read(&mut chunk) {
            Ok(0) => return false,
            Ok(length) => {
                words.push(&chunk[..length]);
                // The terminal may be gone; the run continues.
                let _ = std::io::stderr().write_all(&chunk[..length]);
            }
            Err(err) if err.kind() == ErrorKind::Interrupted => {}
            Err(err) => return err.kind() == ErrorKind::WouldBlock,
        }
    }
}

/// Returns the last lines without escape sequences; of a redrawn line, the last drawing.
fn plain_lines(words: &Ring) -> Vec<String> {
    let lines = words.last_lines(LAST_WORDS_LINES).into_iter();
    lines.map(|line| plain(&line)).filter(|line| !line.trim().is_empty()).collect()
}

fn plain(line: &str) -> String {
    let drawn = line.rsplit('\r').find(|part| !plain_part(part).trim().is_empty()).unwrap_or_default();
    plain_part(drawn)
}

/// Removes `ESC [ ... letter`.
fn plain_part(text: &str) -> String {
    let (mut out, mut chars) = (String::with_capacity(text.len()), text.chars());
    while let Some(c) = chars.next() {
        if c == '\x1b' {
            chars.by_ref().skip_while(|&c| c == '[').find(char::is_ascii_alphabetic);
        } else if !c.is_control() {
            out.push(c);
        }
    }
    out
}

fn not_started(err: &std::io::Error) -> Error {
    Error::new("trainer-not-started", format!("the trainer process: {err}"))
        .hint("check the limits on processes and memory: ulimit -u, ulimit -v, and pids.max of the container")
        .hint("--no-supervisor trains in one process")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_reported_once_and_so_is_its_end() {
        let (start, pid) = (Instant::now(), rustix::process::getpid());
        let number = std::process::id();
        let mut pause = Pause::default();
        let mut look = |is_stopped: bool, ms: u64| {
            pause.look(is_stopped, start + Duration::from_millis(ms), pid, || Some("note".into()))
        };
        let stopped = Seen::Stopped { pid: number, note: Some("note".into()) };
        // Shorter than a shell needs to continue a job.
        assert_eq!([look(true, 0), look(true, 1900), look(false, 1950)], [None, None, None]);
        assert_eq!([look(true, 3000), look(true, 5000), look(true, 9000)], [None, Some(stopped), None]);
        let continued = Seen::Continued { pid: number, stopped: Duration::from_secs(7) };
        assert_eq!([look(false, 10_000), look(false, 11_000)], [Some(continued), None]);
        assert_ne!(Stat::of(pid).state, 'T');
    }

    #[test]
    fn a_process_that_a_signal_has_begun_to_end_is_seen_before_it_has_ended() {
        let stat = |name: &str, state: char, flags: u64, exit_code: i32| {
            let between = "1 ".repeat(42);
            Stat::parse(&format!("7 ({name}) {state} 1 1 1 0 -1 {flags} {between}{exit_code}\n"))
        };
        let killed = Some(ExitStatus::from_raw(9));
        for (stat, state, fate) in [
            (stat("plimsoll", 'R', 0x0040_0000, 0), 'R', None),
            (stat("plimsoll", 'D', 0x0040_0004, 9), 'D', killed),
            (stat("a) R 1 (b", 'Z', 0x4, 9), 'Z', killed),
            // With a core file.
            (stat("plimsoll", 'D', 0x4, 0x86), 'D', Some(ExitStatus::from_raw(0x86))),
            // A stop, or a debugger; an end of its own, with exit code 1 and 0.
            (stat("plimsoll", 'T', 0, 19), 'T', None),
            (stat("plimsoll", 'D', 0x4, 1 << 8), 'D', None),
            (stat("plimsoll", 'D', 0x4, 0), 'D', None),
            (Stat::parse(""), '-', None),
        ] {
            assert_eq!(stat, Stat { state, fate });
        }
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep is everywhere");
        let pid = Pid::from_child(&child);
        assert_eq!(Stat::of(pid).fate, None);
        child.kill().expect("it is ours");
        let until = Instant::now() + Duration::from_secs(30);
        // It is not waited for, so it stays, with the code, which is there before it is a zombie.
        let ended = Stat { state: 'Z', fate: killed };
        while Stat::of(pid) != ended && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(Stat::of(pid), ended);
        child.wait().expect("it is ours");
    }

    #[test]
    fn last_words_are_plain_text() {
        for (line, expect) in [
            ("plain", "plain"),
            ("\x1b[1;31merror[internal]\x1b[0m: x", "error[internal]: x"),
            ("\r\x1b[2K1/9 reward 0.1\r\x1b[2K2/9 reward 0.2", "2/9 reward 0.2"),
            ("3/9 reward\r\x1b[2K", "3/9 reward"),
            ("\x1b", ""),
        ] {
            assert_eq!(plain(line), expect, "{line:?}");
        }
    }
}
