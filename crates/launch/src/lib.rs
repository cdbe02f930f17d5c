//! The files to submit for a run on several hosts: one module per launcher, each a pure function from a job to files.
//!
//! It owns launchers' requirements and quoting. It reads no run file, and does not plan, write, start or schedule.

mod command;
mod env;
pub mod k8s;
mod name;
mod patch;
mod patch_values;
pub mod ray;
mod sh;
pub mod slurm;
pub mod ssh;
mod yaml;

pub use env::EnvVar;
pub use name::{NAME_CHARS_MAX, label_of};

use plimsoll_base::{Bytes, Error, Result};

/// Most restarts that a launcher may be asked for.
pub const RESTARTS_MAX: u32 = 1000;

/// The run to start, and what each host provides.
#[derive(Clone, Debug)]
pub struct Job {
    /// A DNS label: letters, digits and `-`.
    pub name: String,
    /// Path of the binary on the hosts.
    pub program: String,
    /// Path of the run file on the hosts, from `workdir`.
    pub run: String,
    /// Further arguments of `train`.
    pub args: Vec<String>,
    /// Working directory on each host.
    pub workdir: String,
    /// Variables of the run's processes.
    pub env: Vec<EnvVar>,
    /// Lines of a shell before the command on each host, from `workdir`.
    pub before: String,
    pub hosts: u32,
    pub ranks_per_host: u32,
    /// Restarts after the first start.
    pub restarts: u32,
    /// Port of host 0; `None` if the launcher derives one from its job id.
    pub port: Option<u16>,
    pub host: HostNeeds,
}

/// Planned needs of one host, for all of its ranks together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostNeeds {
    pub memory: Bytes,
    pub shm: Bytes,
    /// Open files of the process that has the most.
    pub open_files: u64,
    /// Cards, one per rank; 0 on CPUs.
    pub cards: u32,
    pub cpus: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub name: String,
    pub text: String,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Script,
    Data,
    /// Readable only by its owner.
    Secret,
}

impl Kind {
    pub fn mode(self) -> u32 {
        match self {
            Kind::Script => 0o755,
            Kind::Data => 0o644,
            Kind::Secret => 0o600,
        }
    }
}

/// Memory of the launcher's own processes on a host: a shell, `train --ranks`, Slurm's step daemon.
const LAUNCHER_HOLDS: Bytes = Bytes::mib(256);
/// Requested memory is a multiple of this, so that small changes of the plan do not change what is submitted.
const MEMORY_STEP: u64 = 256 << 20;
/// The plan bounds what it knows from above, to within a percent; as much again for what only the kernel counts.
const MARGIN_PERCENT: u64 = 2;

impl Job {
    pub fn ranks(&self) -> u32 {
        self.hosts * self.ranks_per_host
    }

    /// Returns the memory to request on each host: planned, a margin, the launcher's, and `more` of its own.
    pub fn memory_asked(&self, more: Bytes) -> Bytes {
        let planned = self.host.memory.0 + self.host.memory.0 * MARGIN_PERCENT / 100;
        let all = planned + self.host.shm.0 + LAUNCHER_HOLDS.0 + more.0;
        Bytes(all.next_multiple_of(MEMORY_STEP))
    }

    /// Refuses what cannot be written into a script or a manifest.
    ///
    /// Errors: `launch-word`.
    pub fn check(&self) -> Result<()> {
        name::check(&self.name)?;
        let words = [&self.program, &self.run, &self.workdir].into_iter().chain(&self.args);
        for word in words {
            if word.is_empty() || word.chars().any(char::is_control) {
                let message =
                    format!("{word:?} is empty or has control characters, which no launcher passes on");
                return Err(Error::usage("launch-word", message)
                    .hint("give it another name, or set the key in the run file"));
            }
        }
        let is_text = |c: char| c == '\n' || c == '\t' || !c.is_control();
        if !self.before.chars().all(is_text) {
            let message = "the lines of --before have control characters besides tabs";
            return Err(Error::usage("launch-word", message).hint("write them with an editor, without CR"));
        }
        self.env.iter().try_for_each(EnvVar::check)
    }

    /// Returns the lines before the command, each with its end.
    fn lines_before(&self) -> String {
        let lines = self.before.trim_end();
        if lines.is_empty() { String::new() } else { format!("{lines}\n") }
    }

    /// Returns lines of a shell that export the variables.
    fn exports(&self) -> String {
        let line = |EnvVar { name, value }: &EnvVar| format!("export {name}={}\n", sh::quoted(value));
        self.env.iter().map(line).collect()
    }

    /// Returns a one-line description for the top of each file.
    fn headline(&self, launcher: &str) -> String {
        let count = |number: u32, what: &str| match number {
            1 => format!("1 {what}"),
            _ => format!("{number} {what}s"),
        };
        let on = match self.host.cards {
            0 => "processors",
            _ => "cards",
        };
        let (hosts, ranks) = (count(self.hosts, "host"), count(self.ranks_per_host, "rank"));
        format!("Written by `plimsoll launch {launcher}`: {hosts}, {ranks} each, on {on}.")
    }
}

#[cfg(test)]
mod tests;
