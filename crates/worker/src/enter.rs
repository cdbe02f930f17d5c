//! The hidden verb `env-worker`: how a process limits itself before it starts the user's interpreter.
//!
//! The parent spawns this program without code between fork and exec, which would be unsafe in a process with threads.
//! Here, with one thread, it opens a session, joins its memory group, starts the interpreter under its limits
//! (`child.rs`) on a script in a memfd, and stays as its keeper (`keeper.rs`).

use crate::child::Bounds;
use crate::groups::Joined;
use crate::sandbox::{Author, Gpu, Network, Rules};
use crate::tree::Tree;
use crate::{inherited, keeper};
use plimsoll_base::Bytes;
use rustix::fs::MemfdFlags;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// The verb with which a binary becomes a worker.
pub const ENV_WORKER: &str = "env-worker";

/// Loads a user's file; every script begins with it.
const LOAD: &str = include_str!("load.py");
/// The descriptor of the socket between script and parent.
const SOCKET: i32 = 3;
/// Exit code of a process that could not start its program, as in shells.
const NOT_STARTED: u8 = 126;

/// The program and the limits of a worker.
#[derive(Clone, Debug)]
pub struct Confined {
    pub python: PathBuf,
    /// Limit on private memory (RLIMIT_DATA), which Python reports as MemoryError.
    pub memory: Bytes,
    /// Network access of the worker.
    pub network: Network,
    /// GPU access of the worker.
    pub gpu: Gpu,
}

impl Confined {
    /// Returns the limits. On a kernel without filters the parent's scans replace them.
    fn bounds(&self) -> Bounds {
        let rules = Rules { author: Author::User, network: self.network, gpu: self.gpu };
        Bounds { rules, memory: self.memory.0, is_private: true, file: None, folder: None }
    }

    /// Returns the arguments of the binary, verb first, for a child of process `parent` in the group at these paths.
    pub(crate) fn arguments(&self, parent: u32, group: Option<[PathBuf; 2]>) -> Vec<OsString> {
        let network = if self.network == Network::Allow { "network" } else { "" };
        let gpu = if self.gpu == Gpu::Allow { "gpu" } else { "" };
        let words = [ENV_WORKER, &parent.to_string(), &self.memory.0.to_string(), network, gpu];
        let paths = group.unwrap_or_default().into_iter().chain([self.python.clone()]);
        words.iter().map(OsString::from).chain(paths.map(OsString::from)).collect()
    }
}

struct Place {
    confined: Confined,
    parent: i32,
    /// The worker's memory group, and the one to return to.
    group: Option<[PathBuf; 2]>,
}

impl Place {
    /// Parses the output of `arguments` after the verb.
    fn read(arguments: &[OsString]) -> Option<Place> {
        let [parent, memory, network, gpu, group, own, python] = arguments else { return None };
        let number = |text: &OsString| text.to_str()?.parse::<u64>().ok();
        let confined = Confined {
            python: python.into(),
            memory: Bytes(number(memory)?),
            network: if network.is_empty() { Network::Deny } else { Network::Allow },
            gpu: if gpu.is_empty() { Gpu::Deny } else { Gpu::Allow },
        };
        let group = (!group.is_empty()).then(|| [group.into(), own.into()]);
        Some(Place { confined, parent: i32::try_from(number(parent)?).ok()?, group })
    }

    /// Joins the worker's group. The other limits hold even if this fails.
    fn join(&self) -> Option<Joined> {
        let [dir, own] = self.group.as_ref()?;
        let joined = Joined::join(dir, own);
        joined.inspect_err(|err| eprintln!("plimsoll {ENV_WORKER}: joining {}: {err}", dir.display())).ok()
    }

    fn not_started(&self, err: &std::io::Error) -> ExitCode {
        eprintln!("plimsoll {ENV_WORKER}: {}: {err}", self.confined.python.display());
        ExitCode::from(NOT_STARTED)
    }
}

/// Becomes the keeper of a worker that runs `script`. `arguments`: the process's own, after the verb.
pub fn become_env_worker(arguments: &[OsString], script: &str) -> ExitCode {
    let Some(place) = Place::read(arguments) else { return not_by_hand() };
    inherited::close();
    let group = place.join();
    let started =
        keeper::stay(place.parent).and_then(|()| prepare(&place.confined, script)).and_then(|ready| {
            // The interpreter has its own copies of the socket and the script. Its parent reads its memory.
            Tree::start(ready.command, place.confined.bounds(), true)
        });
    match started {
        Ok(tree) => keeper::keep(tree, place.parent, group),
        Err(err) => place.not_started(&err),
    }
}

fn not_by_hand() -> ExitCode {
    eprintln!("plimsoll {ENV_WORKER} is started by plimsoll itself");
    ExitCode::from(2)
}

/// The interpreter's command with the descriptors it inherits.
struct Ready {
    command: Command,
    _socket: OwnedFd,
    _script: OwnedFd,
}

/// Prepares the descriptors that a worker inherits.
fn prepare(confined: &Confined, script: &str) -> std::io::Result<Ready> {
    // The socket arrived as stdin, because a spawn can pass that.
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), SOCKET)?;
    if socket.as_raw_fd() != SOCKET {
        return Err(std::io::Error::other(format!("descriptor {SOCKET} is taken")));
    }
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::empty())?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    let memfd = rustix::fs::memfd_create("plimsoll-env-worker.py", MemfdFlags::empty())?;
    for mut rest in [LOAD.as_bytes(), script.as_bytes()] {
        while !rest.is_empty() {
            let written = rustix::io::write(&memfd, rest)?;
            rest = &rest[written..];
        }
    }
    let mut command = Command::new(&confined.python);
    command.arg(format!("/proc/self/fd/{}", memfd.as_raw_fd())).arg(SOCKET.to_string());
    Ok(Ready { command, _socket: socket, _script: memfd })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_read_back_as_they_were_written() {
        for (network, gpu, group) in [
            (Network::Deny, Gpu::Allow, None),
            (Network::Allow, Gpu::Deny, Some(["/a group".into(), "/own".into()])),
        ] {
            let confined = Confined { python: "/a b/python".into(), memory: Bytes::mib(7), network, gpu };
            let arguments = confined.arguments(12, group.clone());
            assert_eq!(arguments[0], ENV_WORKER);
            let place = Place::read(&arguments[1..]).expect("they are ours");
            let read = place.confined;
            assert_eq!((read.python, read.memory.0, read.network, read.gpu), {
                let Confined { python, memory, network, gpu } = confined;
                (python, memory.0, network, gpu)
            });
            assert_eq!((place.parent, place.group), (12, group));
            assert!(Place::read(&arguments).is_none());
        }
    }
}
