//! How a worker is started: program, environment and the limits set between fork and exec.

use crate::sandbox::{self, Gpu, Network};
use plimsoll_base::{Bytes, Error, Result, slugs};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// What to start.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Who asks, for messages: the reward's name.
    pub name: String,
    /// Program, looked up in PATH.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables added to the environment.
    pub env: Vec<(String, String)>,
    /// Limit on the address space (RLIMIT_AS).
    pub memory: Bytes,
    /// Whether it may reach a network.
    pub network: Network,
    /// Where it runs, and the only place where it may write (where the kernel has Landlock); here and anywhere if none.
    pub folder: Option<PathBuf>,
    /// The largest file that it may write (RLIMIT_FSIZE), if that is bounded.
    pub file: Option<Bytes>,
    /// Reads the line that the worker says before its first request, if it says one: (name, line).
    pub ready: Option<fn(&str, &str) -> Result<()>>,
}

/// What bounds a pool of workers.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Processes.
    pub workers: u32,
    /// Time for one request.
    pub timeout: Duration,
    /// Time from start to `ready`.
    pub start_timeout: Duration,
    /// Times that one request may be repeated after a death or a timeout.
    pub retries: u32,
}

impl Launch {
    /// A script of ours that serves what a file of the user's calls by a name, and says first whether it could load it.
    /// `python`: the interpreter, `python3` if none.
    pub(crate) fn of_python(
        python: Option<&str>,
        script: &str,
        (file, name): (&Path, &str),
        memory: Bytes,
        network: Network,
        ready: fn(&str, &str) -> Result<()>,
    ) -> Launch {
        Launch {
            name: name.into(),
            program: python.unwrap_or("python3").into(),
            args: vec!["-c".into(), script.into(), file.to_string_lossy().into_owned(), name.into()],
            env: vec![("PYTHONUNBUFFERED".into(), "1".into()), ("PYTHONIOENCODING".into(), "utf-8".into())],
            memory,
            network,
            folder: None,
            file: None,
            ready: Some(ready),
        }
    }

    /// Starts the process; one that cannot be started is `reward-worker-not-started`.
    pub(crate) fn spawn(&self) -> Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // No GPU by accident, and by intent neither (`sandbox.rs`); one thread each, so that thread pools neither eat the address space nor the trainer's cores.
        command.env("CUDA_VISIBLE_DEVICES", "").env("OMP_NUM_THREADS", "1").env("OPENBLAS_NUM_THREADS", "1");
        // What the worker may start in turn is no trainer of ours.
        command.env_remove(crate::status::VARIABLE);
        command.envs(self.env.iter().map(|(key, value)| (key, value)));
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        let filters = self.filters()?;
        // Open until the child has started, which inherits the descriptor and closes it as it becomes the program.
        let rules = self.folder.as_deref().and_then(sandbox::writes_in);
        let rules_fd = rules.as_ref().map(AsRawFd::as_raw_fd);
        let (memory, file, parent) = (self.memory, self.file, rustix::process::getpid());
        // SAFETY: `limit_child` makes system calls only; it neither allocates nor takes a lock, as the gap between
        // fork and exec demands.
        unsafe { command.pre_exec(move || limit_child(memory, file, rules_fd, filters, parent)) };
        command.spawn().map_err(|err| {
            Error::new(slugs::REWARD_WORKER_NOT_STARTED, format!("reward `{}`: starting `{}`: {err}", self.name, self.program))
                .hint("check that the program is installed and in PATH; for Python set `python` in the [[reward]] table")
        })
    }

    /// The filter to set. A kernel without filters can refuse nothing, so a worker that must not reach a network does
    /// not start there.
    fn filters(&self) -> Result<Option<Network>> {
        match (sandbox::is_there(), self.network) {
            (true, network) => Ok(Some(network)),
            (false, Network::Allow) => Ok(None),
            (false, Network::Deny) => Err(Error::new(
                slugs::REWARD_SANDBOX_MISSING,
                format!(
                    "reward `{}`: this kernel has no seccomp filters, so a worker cannot be kept off the network",
                    self.name
                ),
            )
            .hint("set network = \"allow\" in the [[reward]] table if the code may reach the network")),
        }
    }
}

fn limit_child(
    memory: Bytes,
    file: Option<Bytes>,
    rules: Option<i32>,
    filters: Option<Network>,
    parent: rustix::process::Pid,
) -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, Signal};
    rustix::process::setsid()?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the signal was armed; then nobody would ever send it.
    if rustix::process::getppid() != Some(parent) {
        return Err(std::io::Error::from(rustix::io::Errno::SRCH));
    }
    let bytes = Some(memory.0);
    rustix::process::setrlimit(Resource::As, Rlimit { current: bytes, maximum: bytes })?;
    // A core file of a worker is of no use and may be gigabytes.
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    if let Some(file) = file {
        let bytes = Some(file.0);
        rustix::process::setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum: bytes })?;
    }
    rules.map_or(Ok(()), sandbox::confine)?;
    // Last, so that it cannot refuse what stands above.
    filters.map_or(Ok(()), |network| sandbox::enter(network, Gpu::Deny))
}
