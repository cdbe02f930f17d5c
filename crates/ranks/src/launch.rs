//! `train --ranks N`: starts the ranks of this host as processes of this program, forwards signals, shows their output,
//! and ends when they have ended. The ranks find each other as under any launcher.
//!
//! Nothing outlives it: a rank dies with it, as a trainer dies with its supervisor.

use crate::environment::{LAUNCH_VARIABLE, Launcher, Starts};
use crate::lines::Lines;
use crate::notice::{Board, NOTICE_VARIABLE};
use crate::secret::{self, TOKEN_VARIABLE};
use crate::token::random_secret;
use plimsoll_base::{Error, Exit, Result, visible};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const TURN_MS: i64 = 250;
const CHUNK_BYTES: usize = 16 << 10;
/// Time for ranks to end by themselves after one has failed; their supervisors take at most 12 seconds.
const GRACE: Duration = Duration::from_secs(14);
/// They are sent SIGTERM then, and killed after this time.
const KILL_AFTER: Duration = Duration::from_secs(12);

/// The ranks to start, and the descriptors that report signals.
pub struct Start<'a> {
    pub starts: &'a Starts,
    /// The job's secret that the user gave all hosts.
    pub secret: Option<&'a str>,
    /// Arguments of this program for each rank.
    pub args: &'a [OsString],
    pub env: &'a [(String, String)],
    /// Signals to forward, each with a descriptor that becomes readable when it arrives.
    pub forward: &'a [(i32, BorrowedFd<'a>)],
    /// Readable when a child has ended.
    pub child_ended: BorrowedFd<'a>,
}

/// Starts the ranks and waits for their ends. Returns the code of the first that failed for its own reason, else 0.
///
/// Errors: `rank-not-started`, `ranks-window`; `ranks-token` if several hosts have no secret, or a short one.
pub fn launch(start: &Start<'_>) -> Result<u8> {
    let at = Joining::of(start)?;
    let Starts { first, count, ranks, .. } = *start.starts;
    let lines = Lines::of_ranks(first as usize, count as usize);
    let mut running = Running { ranks: Vec::new(), first, lines, ends: Vec::new(), board: Board::new()? };
    for rank in first..first + count {
        // Those already started die with their handles; see `Drop`.
        running.ranks.push(one(start, rank, ranks, &at, &running.board)?);
    }
    running.wait_for_all(start);
    Ok(exit_code(&running.ends))
}

/// How the ranks find each other, and what keeps strangers out.
struct Joining {
    address: String,
    port: u16,
    secret: String,
}

impl Joining {
    fn of(start: &Start<'_>) -> Result<Joining> {
        let Starts { hosts, address, port, id, .. } = start.starts;
        if *hosts == 1 {
            let secret = random_secret().map_err(|err| not_started("the kernel's random numbers", &err))?;
            // Free for now; a rank 0 that finds it taken tries the next ones, and the others find it by the token.
            let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
            let port = free.map_err(|err| not_started("a port of 127.0.0.1", &err))?.port();
            return Ok(Joining { address: address.clone(), port, secret });
        }
        let secret = format!("{}:{id}", secret::of_hosts(start.starts, start.secret)?);
        Ok(Joining { address: address.clone(), port: *port, secret })
    }
}

/// Makes a rank die with the `train --ranks` that started it. Each rank calls it when it begins.
///
/// Errors: `rank-not-started` if that process is gone.
pub fn die_with_launcher(launcher: Launcher) -> Result<()> {
    let Launcher::Plimsoll(pid) = launcher else { return Ok(()) };
    let armed = set_parent_process_death_signal(Some(Signal::KILL));
    armed.map_err(|err| not_started("a signal for the launcher's end", &err.into()))?;
    // The launcher may have died before the signal was armed; then it would never arrive.
    if getppid() == Pid::from_raw(pid as i32) {
        Ok(())
    } else {
        Err(Error::new("rank-not-started", "the process that started this rank is gone")
            .hint("start the same command again"))
    }
}

fn not_started(what: &str, err: &std::io::Error) -> Error {
    Error::new("rank-not-started", format!("{what}: {err}"))
        .hint("check the limits on processes, memory and open files: ulimit -u, ulimit -v, ulimit -n")
}

struct Rank {
    child: Child,
    stderr: Option<ChildStderr>,
    status: Option<ExitStatus>,
}

fn one(start: &Start<'_>, rank: u32, ranks: u32, at: &Joining, board: &Board) -> Result<Rank> {
    let program = std::env::current_exe().ok().filter(|path| path.is_file());
    let mut command = Command::new(program.unwrap_or_else(|| "/proc/self/exe".into()));
    command.args(start.args).envs(start.env.iter().map(|(key, value)| (key, value)));
    let (Starts { first, count, .. }, pid) = (start.starts, std::process::id());
    let Joining { address, port, secret } = at;
    command.env(LAUNCH_VARIABLE, format!("{rank}/{ranks}:{first}/{count}:{port}:{pid}:{address}"));
    command.env(TOKEN_VARIABLE, secret).env(NOTICE_VARIABLE, board.path()).stderr(Stdio::piped());
    if rank > 0 {
        // Only rank 0 prints the summary.
        command.stdin(Stdio::null()).stdout(Stdio::null());
    }
    let failed = |err: std::io::Error| not_started(&format!("rank {rank} of {ranks}"), &err);
    let mut child = command.spawn().map_err(failed)?;
    let stderr = child.stderr.take().expect("it was asked for as a pipe");
    let flags = rustix::fs::fcntl_getfl(&stderr).unwrap_or(OFlags::empty());
    let rank = Rank { child, stderr: Some(stderr), status: None };
    let set = rank.stderr.as_ref().map(|stderr| rustix::fs::fcntl_setfl(stderr, flags | OFlags::NONBLOCK));
    set.unwrap_or(Ok(())).map_err(|err| failed(err.into()))?;
    Ok(rank)
}

struct Running {
    ranks: Vec<Rank>,
    /// Number of the first rank.
    first: u32,
    lines: Lines,
    /// Exit codes of the ranks that ended, in order of their ends.
    ends: Vec<u8>,
    /// Tells ranks that have not met that one has ended.
    board: Board,
}

impl Running {
    fn wait_for_all(&mut self, start: &Start<'_>) {
        let (mut failed, mut asked): (Option<Instant>, Option<Instant>) = (None, None);
        let mut is_killed = false;
        loop {
            self.sleep(start);
            for &(signal, pipe) in start.forward {
                if drain(pipe) {
                    self.signal(signal);
                }
            }
            drain(start.child_ended);
            self.pump();
            let now = Instant::now();
            let before = self.ends.len();
            if self.reap() && failed.is_none() {
                failed = Some(now);
            }
            if self.ends.len() > before {
                // A stopped rank must learn that the run is over.
                self.signal(Signal::CONT.as_raw());
            }
            self.pump();
            if self.ranks.iter().all(|rank| rank.status.is_some()) {
                break;
            }
            print(&self.lines.show(now, false));
            let is_after = |at: Option<Instant>, time| at.is_some_and(|at| now - at >= time);
            if asked.is_none() && is_after(failed, GRACE) {
                asked = Some(now);
                self.signal(Signal::TERM.as_raw());
            }
            if !is_killed && is_after(asked, KILL_AFTER) {
                is_killed = true;
                self.signal(Signal::KILL.as_raw());
            }
        }
        print(&self.lines.show(Instant::now(), true));
    }

    fn sleep(&self, start: &Start<'_>) {
        let pipes = start.forward.iter().map(|(_, pipe)| *pipe).chain([start.child_ended]);
        let outputs = self.ranks.iter().filter_map(|rank| Some(rank.stderr.as_ref()?.as_fd()));
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds: Vec<PollFd<'_>> = pipes.chain(outputs).map(readable).collect();
        // An interrupted poll is fine: everything is checked anyway.
        let _ = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: TURN_MS * 1_000_000 }));
    }

    /// Reads the output of the ranks. Rank 0's bytes pass unchanged.
    fn pump(&mut self) {
        let mut chunk = [0; CHUNK_BYTES];
        for (number, rank) in self.ranks.iter_mut().enumerate() {
            let Some(stderr) = &mut rank.stderr else { continue };
            loop {
                match stderr.read(&mut chunk) {
                    Ok(0) => {
                        rank.stderr = None;
                        break;
                    }
                    Ok(length) => {
                        if number == 0 && self.first == 0 {
                            // The terminal may be gone; the run continues.
                            let _ = std::io::stderr().write_all(&chunk[..length]);
                        }
                        self.lines.push(number, &chunk[..length], Instant::now());
                    }
                    Err(err) if err.kind() == ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
        }
    }

    /// Records ranks that have ended. Returns true if one of them failed.
    fn reap(&mut self) -> bool {
        let mut has_failed = false;
        let running = self.ranks.iter_mut().enumerate().filter(|(_, rank)| rank.status.is_none());
        let first = self.first as usize;
        for (number, rank) in running {
            if let Ok(Some(status)) = rank.child.try_wait() {
                rank.status = Some(status);
                let code = status.code().map_or(Exit::Killed as u8, |code| code as u8);
                let (number, pid) = (first + number, rank.child.id());
                let why = match status.signal() {
                    Some(signal) => format!("was killed by signal {signal}"),
                    None => format!("ended with exit code {code}"),
                };
                if status.signal().is_some() {
                    print(&[format!("rank {number}: its supervisor, pid {pid}, {why}")]);
                }
                self.board.write(&format!("rank {number}, its supervisor with pid {pid}, {why}"));
                has_failed |= !is_well(code);
                self.ends.push(code);
            }
        }
        has_failed
    }

    fn signal(&self, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        for rank in self.ranks.iter().filter(|rank| rank.status.is_none()) {
            // It is not reaped yet, so its pid cannot be reused.
            let _ = kill_process(Pid::from_child(&rank.child), signal);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(Signal::KILL.as_raw());
        for rank in self.ranks.iter_mut().filter(|rank| rank.status.is_none()) {
            let _ = rank.child.wait();
        }
    }
}

/// Returns true for the exit code of a rank that finished, or ended as the user asked.
fn is_well(code: u8) -> bool {
    [0, Exit::Interrupted as u8, Exit::Terminated as u8].contains(&code)
}

/// Returns the first code of a rank that failed for its own reason; without one, the first that is not 0.
fn exit_code(ends: &[u8]) -> u8 {
    let own = ends.iter().find(|&&code| !is_well(code) && code != Exit::OtherRank as u8);
    own.or_else(|| ends.iter().find(|&&code| code != 0)).copied().unwrap_or(0)
}

fn print(lines: &[String]) {
    for line in lines {
        let _ = writeln!(std::io::stderr(), "{}", visible(line));
    }
}

/// Empties a signal's pipe. Returns true if the signal arrived.
fn drain(pipe: BorrowedFd<'_>) -> bool {
    let mut bytes = [0u8; 64];
    let mut came = false;
    while rustix::io::read(pipe, &mut bytes).is_ok_and(|length| length > 0) {
        came = true;
    }
    came
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_that_of_the_rank_that_failed_first() {
        for (ends, expect) in [
            (&[0, 0][..], 0),
            (&[5, 4, 5], 4),
            (&[5, 1, 4], 1),
            (&[0, 3, 5], 3),
            (&[143, 143], 143),
            (&[130, 1], 1),
            (&[5, 5], 5),
            (&[143, 0], 143),
        ] {
            assert_eq!(exit_code(ends), expect, "{ends:?}");
        }
    }

    #[test]
    fn a_rank_without_its_launcher_does_not_begin() {
        assert_eq!(die_with_launcher(Launcher::Torchrun), Ok(()));
        // No process has this number.
        let gone = die_with_launcher(Launcher::Plimsoll(i32::MAX as u32)).expect_err("it is gone");
        assert_eq!(gone.slug, "rank-not-started");
        set_parent_process_death_signal(None).expect("as it was");
    }
}
