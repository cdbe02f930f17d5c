//! Starts a worker: program, environment and the limits set between fork and exec.

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
    /// The reward's name, for messages.
    pub name: String,
    /// Looked up in PATH.
    pub program: String,
    pub args: Vec<String>,
    /// Added to the environment.
    pub env: Vec<(String, String)>,
    /// Limit on the address space (RLIMIT_AS).
    pub memory: Bytes,
    pub network: Network,
    /// Its working directory, and with Landlock the only place where it may write; `None` for this one, unrestricted.
    pub folder: Option<PathBuf>,
    /// The largest file that it may write (RLIMIT_FSIZE), if limited.
    pub file: Option<Bytes>,
    /// Checks the line that the worker sends before its first request, if it sends one: (name, line).
    pub ready: Option<fn(&str, &str) -> Result<()>>,
}

/// The limits of a pool of workers.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub workers: u32,
    /// Time for one request.
    pub timeout: Duration,
    pub start_timeout: Duration,
    /// Retries of one request after a death or a timeout.
    pub retries: u32,
}

impl Launch {
    /// Returns an embedded script that serves an item of a user's file, and first reports whether it could be loaded.
    /// `python`: the interpreter; `None` for `python3`.
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

    /// Starts the process. Errors: `reward-worker-not-started`.
    pub(crate) fn spawn(&self) -> Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // No GPU, also by the filter (`sandbox.rs`). One thread each, so that thread pools use up neither address space nor cores.
        command.env("CUDA_VISIBLE_DEVICES", "").env("OMP_NUM_THREADS", "1").env("OPENBLAS_NUM_THREADS", "1");
        // Processes of the worker are not trainers under this supervisor.
        command.env_remove(crate::status::VARIABLE);
        command.envs(self.env.iter().map(|(key, value)| (key, value)));
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        let filters = self.filters()?;
        // Open until the child has started, which inherits the descriptor and closes it at exec.
        let rules = self.folder.as_deref().and_then(sandbox::writes_in);
        let rules_fd = rules.as_ref().map(AsRawFd::as_raw_fd);
        let (memory, file, parent) = (self.memory, self.file, rustix::process::getpid());
        // SAFETY: `limit_child` only makes system calls; it neither allocates nor takes a lock, as required between
        // fork and exec.
        unsafe { command.pre_exec(move || limit_child(memory, file, rules_fd, filters, parent)) };
        command.spawn().map_err(|err| {
            Error::new(slugs::REWARD_WORKER_NOT_STARTED, format!("reward `{}`: starting `{}`: {err}", self.name, self.program))
                .hint("check that the program is installed and in PATH; for Python set `python` in the [[reward]] table")
        })
    }

    /// Returns the filter to set. A kernel without filters can block nothing, so a worker without network access does
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
    // The parent may have died before the signal was armed; then it would never be sent.
    if rustix::process::getppid() != Some(parent) {
        return Err(std::io::Error::from(rustix::io::Errno::SRCH));
    }
    let bytes = Some(memory.0);
    rustix::process::setrlimit(Resource::As, Rlimit { current: bytes, maximum: bytes })?;
    // A worker's core file is useless and may be gigabytes.
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    if let Some(file) = file {
        let bytes = Some(file.0);
        rustix::process::setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum: bytes })?;
    }
    rules.map_or(Ok(()), sandbox::confine)?;
    // Last, so that it cannot refuse the calls above.
    filters.map_or(Ok(()), |network| sandbox::enter(network, Gpu::Deny))
}
