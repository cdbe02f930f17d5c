//! What one submits to start a run on several hosts: one module a launcher, each a pure function from a job to files.
//!
//! It owns what a launcher is asked for and how a word is quoted for it. It reads no run file, plans nothing, writes nothing and
//! starts nothing, and it schedules nothing: that is the launcher's work.

mod command;
pub mod k8s;
mod name;
pub mod ray;
mod sh;
pub mod slurm;
pub mod ssh;
mod yaml;

pub use name::{NAME_CHARS_MAX, label_of};

use plimsoll_base::{Bytes, Error, Result};

/// Starts after the first one that a launcher may be asked for.
pub const RESTARTS_MAX: u32 = 1000;

/// What is to be started, and what each host gives it.
#[derive(Clone, Debug)]
pub struct Job {
    /// A label of DNS: letters, digits and `-`.
    pub name: String,
    /// The binary, as the hosts find it.
    pub program: String,
    /// The run file, as the hosts find it from `workdir`.
    pub run: String,
    /// Further arguments of `train`.
    pub args: Vec<String>,
    /// Where the run starts on each host.
    pub workdir: String,
    pub hosts: u32,
    pub ranks_per_host: u32,
    /// Starts after the first one.
    pub restarts: u32,
    /// Where host 0 listens; `None` where the launcher's own number of the job gives one.
    pub port: Option<u16>,
    pub host: HostNeeds,
}

/// What the plan says that one host holds, for all of its ranks together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostNeeds {
    pub memory: Bytes,
    /// /dev/shm.
    pub shm: Bytes,
    /// Descriptors of the process that opens the most.
    pub open_files: u64,
    /// Cards, one a rank; 0 on CPUs.
    pub cards: u32,
    pub cpus: u32,
}

/// A file to write.
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
    /// Only its owner may read it.
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

/// What the launcher's own processes on a host take next to the run: a shell, `train --ranks`, Slurm's step daemon.
const LAUNCHER_HOLDS: Bytes = Bytes::mib(256);
/// Memory is asked for in steps of this, so that a small change of the plan does not change what is submitted.
const MEMORY_STEP: u64 = 256 << 20;
/// The plan is an upper bound of what it knows, measured within a percent: as much again for what the kernel counts otherwise.
const MARGIN_PERCENT: u64 = 2;

impl Job {
    pub fn ranks(&self) -> u32 {
        self.hosts * self.ranks_per_host
    }

    /// Returns the memory to ask for on each host: what is planned, a margin, what the launcher holds and `more` of its own.
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
        Ok(())
    }

    /// Returns one line on what was written, for the top of each file.
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
