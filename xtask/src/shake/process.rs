//! One process of a test program: its output goes to a file, and its time and its output have a limit.

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A program that writes more is killed: its disk would be full before its time is up.
const OUTPUT_BYTES_MAX: u64 = 1 << 30;

/// Time between two looks at a process.
const LOOK: Duration = Duration::from_millis(10);

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    Code(i32),
    Signal(i32),
    /// It was killed after its time.
    Timeout(Duration),
    /// It was killed after `OUTPUT_BYTES_MAX`.
    TooLong,
    /// It was killed because this command is to end.
    Interrupted,
}

impl End {
    /// Returns the words for an end that no test is to blame for.
    pub fn words(self) -> String {
        match self {
            End::Code(code) => format!("exit code {code}"),
            End::Signal(number) => format!("died: signal {number}"),
            End::Timeout(after) => format!("killed after {} s", after.as_secs()),
            End::TooLong => format!("killed after {} MiB of output", OUTPUT_BYTES_MAX >> 20),
            End::Interrupted => "killed: interrupted".into(),
        }
    }
}

/// Runs a process to its end; appends what it writes to the file `output`.
pub fn run(
    command: &mut Command,
    output: &Path,
    timeout: Duration,
    interrupt: &AtomicBool,
) -> io::Result<End> {
    let file = OpenOptions::new().create(true).append(true).open(output)?;
    // A group of its own, so that all that it started can be killed with it.
    command.process_group(0).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file.try_clone()?);
    let mut child = command.spawn()?;
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            let end = end(status);
            if let End::Signal(_) = end {
                kill_group(&child);
            }
            return Ok(end);
        }
        if let Some(reason) = reason(started, timeout, &file, interrupt) {
            kill(&mut child)?;
            return Ok(reason);
        }
        thread::sleep(LOOK);
    }
}

/// Returns why a running process must end.
fn reason(started: Instant, timeout: Duration, file: &File, interrupt: &AtomicBool) -> Option<End> {
    if interrupt.load(Ordering::Relaxed) {
        Some(End::Interrupted)
    } else if started.elapsed() >= timeout {
        Some(End::Timeout(timeout))
    } else if file.metadata().is_ok_and(|metadata| metadata.len() > OUTPUT_BYTES_MAX) {
        Some(End::TooLong)
    } else {
        None
    }
}

fn end(status: ExitStatus) -> End {
    status.code().map_or_else(|| End::Signal(status.signal().unwrap_or_default()), End::Code)
}

/// Kills a process, its group, and its descendants in other groups.
fn kill(child: &mut Child) -> io::Result<()> {
    let below = descendants(child.id(), &parents());
    kill_group(child);
    for pid in below.into_iter().filter_map(pid) {
        let _ = kill_process(pid, Signal::KILL);
    }
    child.wait().map(|_| ())
}

fn kill_group(child: &Child) {
    if let Some(group) = pid(child.id()) {
        // None is left if all ended by themselves.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

fn pid(number: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(number).ok()?)
}

/// Returns the parent of every process.
fn parents() -> BTreeMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // A name may contain spaces and parentheses; its last one ends it.
        let (_, rest) = stat.rsplit_once(')')?;
        Some((pid, rest.split_whitespace().nth(1)?.parse().ok()?))
    })
    .collect()
}

/// Returns the processes below `above`.
fn descendants(above: u32, parents: &BTreeMap<u32, u32>) -> Vec<u32> {
    let mut found = vec![above];
    let mut next = 0;
    while let Some(&above) = found.get(next) {
        found.extend(
            parents.iter().filter(|(pid, parent)| **parent == above && **pid != above).map(|(pid, _)| pid),
        );
        next += 1;
    }
    found.remove(0);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a line of the shell; returns its end and its output.
    fn shell(name: &str, line: &str, timeout_ms: u64, interrupt: bool) -> (End, String) {
        let output = std::env::temp_dir().join(format!("plimsoll-shake-{name}-{}", std::process::id()));
        let mut command = Command::new("sh");
        let interrupt = AtomicBool::new(interrupt);
        let end = run(command.args(["-c", line]), &output, Duration::from_millis(timeout_ms), &interrupt);
        let text = fs::read_to_string(&output).expect("it was written");
        fs::remove_file(&output).expect("it is there");
        (end.expect("sh is there"), text)
    }

    #[test]
    fn ends_are_told_apart() {
        assert_eq!(
            shell("code", "echo a; echo b >&2; exit 3", 60_000, false),
            (End::Code(3), "a\nb\n".into())
        );
        assert_eq!(shell("signal", "kill -9 $$", 60_000, false).0, End::Signal(9));
        assert_eq!(shell("interrupt", "sleep 60", 60_000, true).0, End::Interrupted);
    }

    #[test]
    fn what_a_program_started_ends_with_it() {
        // The second has a group of its own, as a supervisor's child may.
        let line = "sleep 61 & echo $!; setsid sleep 62 & echo $!; wait";
        let (end, text) = shell("timeout", line, 500, false);
        assert_eq!(end, End::Timeout(Duration::from_millis(500)));
        for pid in text.lines() {
            // Killed processes stay in the list until their new parent has waited for them.
            let is_alive = || {
                let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z"))
            };
            let end = Instant::now() + Duration::from_secs(20);
            while is_alive() && Instant::now() < end {
                thread::sleep(LOOK);
            }
            assert!(!is_alive(), "{pid} of {text}");
        }
    }

    #[test]
    fn descendants_are_found_at_any_depth() {
        let parents = BTreeMap::from([(1, 0), (5, 1), (6, 5), (7, 6), (8, 1)]);
        assert_eq!(descendants(5, &parents), [6, 7]);
        assert_eq!(descendants(8, &parents), [0u32; 0]);
    }
}
