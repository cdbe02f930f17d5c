//! SIGINT, SIGTERM and SIGHUP stop a run after its step, a second one at once. Supervisors forward them from pipes.

use crate::{output, terminal};
use plimsoll_base::{Error, Exit, Result};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Stack of the thread that waits for signals: it sleeps, stores a number, exits.
const STACK_BYTES: usize = 64 << 10;
/// A terminal, a service manager and the supervisor may each send one request; within this time they count as one.
const ONE_REQUEST: Duration = Duration::from_secs(1);

/// Handles the signals from now on. The result will hold the first one's number. Prints `words` at once.
pub fn install(words: Option<&'static str>) -> Result<Arc<AtomicI32>> {
    let asked = Arc::new(AtomicI32::new(0));
    let mut signals = Signals::new(wanted()).map_err(|err| refused(&err))?;
    let stop = asked.clone();
    let wait = move || {
        let mut first: Option<Instant> = None;
        for signal in signals.forever() {
            match first {
                None => {
                    first = Some(Instant::now());
                    stop.store(signal, Ordering::SeqCst);
                    if let Some(words) = words {
                        terminal::clear_line();
                        output::note(false, words);
                    }
                }
                Some(first) if first.elapsed() < ONE_REQUEST => {}
                // The user does not want to wait for the step. Every file of the run is complete at any moment.
                Some(_) => {
                    std::process::exit(
                        if signal == SIGINT { Exit::Interrupted } else { Exit::Terminated } as i32
                    )
                }
            }
        }
    };
    let thread = thread::Builder::new().name("signals".into()).stack_size(STACK_BYTES);
    thread.spawn(wait).map(|_| asked).map_err(|err| refused(&err))
}

/// A signal, and the end of a pipe that receives a byte for each one.
pub struct Pipe {
    pub signal: i32,
    pub read: UnixStream,
}

/// Opens pipes for the signals that a supervisor forwards, and one for SIGCHLD.
pub fn pipes() -> Result<(Vec<Pipe>, Pipe)> {
    let open = |signal: i32| -> std::io::Result<Pipe> {
        let (read, write) = UnixStream::pair()?;
        read.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(signal, write)?;
        Ok(Pipe { signal, read })
    };
    let forward: std::io::Result<Vec<Pipe>> = wanted().into_iter().map(open).collect();
    Ok((forward.map_err(|err| refused(&err))?, open(SIGCHLD).map_err(|err| refused(&err))?))
}

impl Pipe {
    pub fn as_signal(&self) -> plimsoll_run::supervise::SignalPipe<'_> {
        plimsoll_run::supervise::SignalPipe { signal: self.signal, pipe: self.read.as_fd() }
    }
}

/// Waits for a child process to its end, and forwards what would stop this one. Returns its exit code.
///
/// A terminal sends its signals to both; the child takes two within a second for one.
pub fn wait_for(child: &mut Child) -> Result<u8> {
    let mut signals = Signals::new(wanted()).map_err(|err| refused(&err))?;
    let (handle, pid) = (signals.handle(), Pid::from_child(child));
    let forward = move || {
        for signal in signals.forever() {
            // Ignored: it has just ended.
            let _ = Signal::from_named_raw(signal).map(|signal| kill_process(pid, signal));
        }
    };
    let thread = thread::Builder::new().name("signals".into()).stack_size(STACK_BYTES);
    let thread = thread.spawn(forward).map_err(|err| refused(&err))?;
    let status = child.wait();
    handle.close();
    // It never panics, and its end is what was asked for.
    let _ = thread.join();
    let status = status.map_err(|err| refused(&err))?;
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default()) as u8)
}

/// Keeps SIGHUP ignored if it already is: with `nohup` the run outlives its terminal.
fn wanted() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let is_ignored = |signal: i32| ignored >> (signal - 1) & 1 == 1;
    let mut wanted = vec![SIGINT, SIGTERM];
    wanted.extend((!is_ignored(SIGHUP)).then_some(SIGHUP));
    wanted
}

fn refused(err: &std::io::Error) -> Error {
    Error::new("io-error", format!("SIGINT and SIGTERM cannot be taken: {err}"))
        .hint("check the limits on open files and on threads: ulimit -n, ulimit -u")
}
