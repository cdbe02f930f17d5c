//! Checks of this machine: what would end a training run here. Each reading takes a root directory, so that tests can
//! show a machine of their own making; what cannot be read is said and is never a fault.
//!
//! A check has a slug whose page says why it matters and what to do. It changes nothing and needs no privilege; the only
//! system calls beside reading are probes on this process itself.

mod environment;
mod gpu;
mod kernel;
mod limits;
mod memory;
mod packages;
mod storage;

pub use gpu::{Card, GpuFacts, HandOver};

use plimsoll_memory::host::Host;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// How a finding stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Fine.
    Fine,
    /// It could not be read, or there is nothing of the kind here.
    Unknown,
    /// It matters to some runs.
    Note,
    /// It would end or spoil a run.
    Bites,
}

impl State {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            State::Fine => "fine",
            State::Unknown => "unknown",
            State::Note => "note",
            State::Bites => "bites",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Names the page.
    pub slug: &'static str,
    /// How it stands.
    pub state: State,
    /// What was found, with numbers.
    pub finding: String,
}

impl Check {
    fn new(slug: &'static str, state: State, finding: impl Into<String>) -> Check {
        Check { slug, state, finding: finding.into() }
    }

    /// The object of `--json`; `why` and `remedies` are the page's.
    pub fn to_json(&self, why: &str, remedies: &[String]) -> Value {
        json!({ "slug": self.slug, "state": self.state.name(), "finding": self.finding, "why": why, "remedies": remedies })
    }
}

/// A machine as it is looked at.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Everything is read below it; `/` is this machine.
    pub root: PathBuf,
    /// Environment variables.
    pub variables: Vec<(String, String)>,
    /// Where a run would write.
    pub run_dir: PathBuf,
    /// Where temporary files go.
    pub temp_dir: PathBuf,
    /// What the binary knows of cards.
    pub gpu: GpuFacts,
}

impl Machine {
    /// This machine, for a run that writes below `run_dir`.
    pub fn this(run_dir: PathBuf, gpu: GpuFacts) -> Machine {
        let text = |(key, value): (std::ffi::OsString, std::ffi::OsString)| {
            (key.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
        };
        Machine {
            root: PathBuf::from("/"),
            variables: std::env::vars_os().map(text).collect(),
            run_dir,
            temp_dir: std::env::temp_dir(),
            gpu,
        }
    }

    /// Every check, in the order in which they are shown.
    pub fn checks(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        checks.extend(kernel::checks(self));
        checks.extend(memory::checks(self));
        checks.extend(limits::checks(self));
        checks.extend(storage::checks(self));
        checks.extend(gpu::checks(self));
        checks.extend(environment::checks(self));
        checks.push(packages::check(self));
        checks
    }

    fn host(&self) -> Host {
        Host::below(&self.root)
    }

    /// True for the machine that we run on, where system calls say more than files.
    fn is_this(&self) -> bool {
        self.root == Path::new("/")
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    /// The trimmed text of a file of one line.
    fn word(&self, path: &str) -> Option<String> {
        Some(self.read(path)?.trim().to_string())
    }

    fn variable(&self, name: &str) -> Option<&str> {
        self.variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The names in a folder below the root.
    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// PyTorch is told to use expandable segments.
    fn has_expandable_segments(&self) -> bool {
        environment::ALLOCATOR_VARIABLES.iter().any(|name| {
            self.variable(name)
                .is_some_and(|value| value.to_ascii_lowercase().contains("expandable_segments:true"))
        })
    }
}
