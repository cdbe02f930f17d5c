//! Describes a worker: program, environment and limits.

use crate::child::Bounds;
use crate::interpreter::default_python;
use crate::job::Job;
use crate::sandbox::{self, Author, Gpu, Network, Rules};
use crate::words::Words;
use plimsoll_base::{Bytes, Error, Result, slugs};
use std::path::PathBuf;
use std::time::Duration;

/// The program to start.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The reward's name, for messages.
    pub name: String,
    /// Path, or a name to look up in PATH.
    pub program: String,
    pub args: Vec<String>,
    /// Variables added to the environment.
    pub env: Vec<(String, String)>,
    /// Limit on the address space of each process (RLIMIT_AS), and on the memory of all together.
    pub memory: Bytes,
    /// True if the limit is on private memory (RLIMIT_DATA): many threads reserve more address space.
    pub is_private: bool,
    /// True if a memory group must enforce the limit where one can be made; otherwise the keeper counts.
    pub memory_groups: bool,
    pub network: Network,
    /// For a program that a model wrote: its working directory, and with Landlock the only place where it may write;
    /// removed when it has ended. `None` for the user's own code, which works here and writes anywhere.
    pub folder: Option<PathBuf>,
    /// Largest file it may write (RLIMIT_FSIZE), if limited.
    pub file: Option<Bytes>,
    /// Where its stderr goes in addition to messages.
    pub words: Option<Words>,
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
    /// Returns the launch of an embedded script that serves `args` under a name for messages, and first reports whether
    /// they could be loaded. `python`: the interpreter; `None` for `default_python`.
    pub(crate) fn of_python(
        python: Option<&str>,
        script: &str,
        (name, args): (&str, &[&str]),
        memory: Bytes,
        network: Network,
        ready: fn(&str, &str) -> Result<()>,
    ) -> Launch {
        Launch {
            name: name.into(),
            program: python.map_or_else(default_python, String::from),
            args: ["-c", script].iter().chain(args).map(|arg| arg.to_string()).collect(),
            env: vec![("PYTHONUNBUFFERED".into(), "1".into()), ("PYTHONIOENCODING".into(), "utf-8".into())],
            memory,
            is_private: false,
            memory_groups: true,
            network,
            folder: None,
            file: None,
            words: None,
            ready: Some(ready),
        }
    }

    /// Returns the order for a keeper. Errors: `reward-sandbox-missing`.
    pub(crate) fn job(&self) -> Result<Job> {
        self.check_filters()?;
        // Hides GPUs, as the filter does (`sandbox.rs`). One thread each: thread pools take address space and cores.
        let fixed = [("CUDA_VISIBLE_DEVICES", ""), ("OMP_NUM_THREADS", "1"), ("OPENBLAS_NUM_THREADS", "1")];
        let fixed = fixed.map(|(name, value)| (name.to_string(), value.to_string()));
        let author = if self.folder.is_some() { Author::Model } else { Author::User };
        let rules = Rules { author, network: self.network, gpu: Gpu::Deny };
        Ok(Job {
            program: self.program.clone(),
            args: self.args.clone(),
            env: fixed.into_iter().chain(self.env.iter().cloned()).collect(),
            bounds: Bounds {
                rules,
                memory: self.memory.0,
                is_private: self.is_private,
                file: self.file.map(|bytes| bytes.0),
                folder: self.folder.clone(),
            },
        })
    }

    pub(crate) fn not_started(&self, words: &dyn std::fmt::Display) -> Error {
        let message = format!("reward `{}`: starting `{}`: {words}", self.name, self.program);
        Error::new(slugs::REWARD_WORKER_NOT_STARTED, message)
            .hint("check that the program is installed and in PATH; for Python set `python` in the [[reward]] table")
    }

    /// Refuses a worker without network access on a kernel without filters, which can block nothing.
    fn check_filters(&self) -> Result<()> {
        if sandbox::is_supported() || self.network == Network::Allow {
            return Ok(());
        }
        let message = format!(
            "reward `{}`: this kernel has no seccomp filters, so a worker cannot be kept off the network",
            self.name
        );
        Err(Error::new(slugs::REWARD_SANDBOX_MISSING, message)
            .hint("set network = \"allow\" in the [[reward]] table if the code may reach the network"))
    }
}
