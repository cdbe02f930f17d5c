//! The hidden verb `env-worker`: what a process does to itself before it becomes the user's interpreter.
//!
//! The parent spawns this program without code between fork and exec, which a process with threads could not run safely.
//! Here, alone and with one thread, it opens a session, ties its life to the parent's, limits its memory, shuts the
//! GPU out, and is replaced by the interpreter on a script in a memfd. It comes back only if it could not.

use crate::sandbox::{self, Gpu, Network};
use plimsoll_base::Bytes;
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Resource, Rlimit, Signal};
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// The verb by which our binary becomes a worker.
pub const ENV_WORKER: &str = "env-worker";

/// Number of the descriptor on which the script speaks with its parent.
const SOCKET: i32 = 3;
/// Workers are killed for lack of memory before whoever started them.
const OOM_POINTS: i32 = 500;
/// Exit code of a process that did not become its program, as shells have it.
const NOT_STARTED: u8 = 126;

/// What a worker is to become, and within which limits.
#[derive(Clone, Debug)]
pub struct Confined {
    /// The interpreter.
    pub python: PathBuf,
    /// Limit on its private memory (RLIMIT_DATA), which Python sees as MemoryError.
    pub memory: Bytes,
    /// Whether it may reach a network.
    pub network: Network,
    /// Whether it may reach a GPU.
    pub gpu: Gpu,
}

impl Confined {
    /// The arguments of our binary, verb first, for a child of process `parent`.
    pub(crate) fn arguments(&self, parent: u32) -> Vec<OsString> {
        let network = if self.network == Network::Allow { "network" } else { "" };
        let gpu = if self.gpu == Gpu::Allow { "gpu" } else { "" };
        let words = [ENV_WORKER, &parent.to_string(), &self.memory.0.to_string(), network, gpu];
        words.iter().map(OsString::from).chain([self.python.clone().into()]).collect()
    }

    /// Reads what `arguments` wrote behind the verb: (limits, parent).
    fn read(arguments: &[OsString]) -> Option<(Confined, i32)> {
        let [parent, memory, network, gpu, python] = arguments else { return None };
        let number = |text: &OsString| text.to_str()?.parse::<u64>().ok();
        let confined = Confined {
            python: python.into(),
            memory: Bytes(number(memory)?),
            network: if network.is_empty() { Network::Deny } else { Network::Allow },
            gpu: if gpu.is_empty() { Gpu::Deny } else { Gpu::Allow },
        };
        Some((confined, i32::try_from(number(parent)?).ok()?))
    }
}

/// Becomes a worker that runs `script`. `arguments` are those of the process behind the verb. Returns only if it
/// could not, with the exit code and after saying why on standard error.
pub fn become_env_worker(arguments: &[OsString], script: &str) -> ExitCode {
    let Some((confined, parent)) = Confined::read(arguments) else {
        eprintln!("plimsoll {ENV_WORKER} is started by plimsoll itself");
        return ExitCode::from(2);
    };
    let outcome = prepare(&confined, parent, script).map(|script| {
        let mut python = Command::new(&confined.python);
        python.arg(format!("/proc/self/fd/{}", script.as_raw_fd())).arg(SOCKET.to_string()).exec()
    });
    // `exec` comes back with what kept it.
    let err = outcome.unwrap_or_else(|err| err);
    eprintln!("plimsoll {ENV_WORKER}: {}: {err}", confined.python.display());
    ExitCode::from(NOT_STARTED)
}

/// Everything but the exec itself; returns the script's memfd, open for the program to come.
fn prepare(confined: &Confined, parent: i32, script: &str) -> std::io::Result<OwnedFd> {
    rustix::process::setsid()?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the signal was armed; then nobody would ever send it.
    if rustix::process::getppid() != Pid::from_raw(parent) {
        return Err(rustix::io::Errno::SRCH.into());
    }
    let bytes = Some(confined.memory.0);
    rustix::process::setrlimit(Resource::Data, Rlimit { current: bytes, maximum: bytes })?;
    // A core file of a worker is of no use and may be gigabytes.
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    raise_oom_score();
    // The socket came as standard input, for that is what a spawn can hand over.
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), SOCKET)?;
    if socket.as_raw_fd() != SOCKET {
        return Err(std::io::Error::other(format!("descriptor {SOCKET} is taken")));
    }
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::empty())?;
    std::mem::forget(socket);
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    let memfd = rustix::fs::memfd_create("plimsoll-env-worker.py", MemfdFlags::empty())?;
    let mut rest = script.as_bytes();
    while !rest.is_empty() {
        let written = rustix::io::write(&memfd, rest)?;
        rest = &rest[written..];
    }
    // Last, so that it cannot refuse what stands above. A kernel without filters is told by the parent's scans.
    if (confined.network, confined.gpu) != (Network::Allow, Gpu::Allow) && sandbox::is_there() {
        sandbox::enter(confined.network, confined.gpu)?;
    }
    Ok(memfd)
}

/// Best effort: where it cannot be set, the kernel chooses by size alone.
fn raise_oom_score() {
    const PATH: &str = "/proc/self/oom_score_adj";
    let own: i32 = std::fs::read_to_string(PATH).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let _ = std::fs::write(PATH, (own + OOM_POINTS).min(1000).to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_read_back_as_they_were_written() {
        for (network, gpu) in [(Network::Deny, Gpu::Allow), (Network::Allow, Gpu::Deny)] {
            let confined = Confined { python: "/a b/python".into(), memory: Bytes::mib(7), network, gpu };
            let arguments = confined.arguments(12);
            assert_eq!(arguments[0], ENV_WORKER);
            let (read, parent) = Confined::read(&arguments[1..]).expect("they are ours");
            assert_eq!((read.python, read.memory.0, read.network, read.gpu, parent), {
                let Confined { python, memory, network, gpu } = confined;
                (python, memory.0, network, gpu, 12)
            });
            assert!(Confined::read(&arguments).is_none());
        }
    }
}
