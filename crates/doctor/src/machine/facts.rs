//! The input of the checks: a machine's files, variables and cards; and the form of a finding.

use plimsoll_base::Bytes;
use plimsoll_memory::host::Host;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// Both names under which PyTorch reads its allocator's settings.
pub(super) const ALLOCATOR_VARIABLES: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    Fine,
    /// Unreadable, or absent on this machine.
    Unknown,
    /// Matters to some runs.
    Note,
    /// Would end or spoil a run.
    Problem,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Fine => "fine",
            State::Unknown => "unknown",
            State::Note => "note",
            State::Problem => "problem",
        }
    }
}

/// A finding; the slug names the page that explains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub slug: &'static str,
    pub state: State,
    pub finding: String,
}

/// A finding without its slug.
pub(super) type Finding = (State, String);

impl Check {
    pub(super) fn of(slug: &'static str, (state, finding): Finding) -> Check {
        Check { slug, state, finding }
    }

    /// Returns the object of `--json`; `why` and `remedies` come from the page.
    pub fn to_json(&self, why: &str, remedies: &[String]) -> Value {
        json!({ "slug": self.slug, "state": self.state.name(), "finding": self.finding, "why": why, "remedies": remedies })
    }
}

#[derive(Clone, Debug)]
pub struct Machine {
    /// The root directory of all files; `/` is this machine.
    pub root: PathBuf,
    pub variables: Vec<(String, String)>,
    pub run_dir: PathBuf,
    pub temp_dir: PathBuf,
    pub gpu: GpuFacts,
    /// `None` if it was not probed.
    pub workers: Option<WorkerFacts>,
}

impl Machine {
    /// Returns this machine, for a run that writes below `run_dir`.
    pub fn this(run_dir: PathBuf, gpu: GpuFacts, workers: WorkerFacts) -> Machine {
        let text = |(key, value): (std::ffi::OsString, std::ffi::OsString)| {
            (key.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
        };
        Machine {
            root: PathBuf::from("/"),
            variables: std::env::vars_os().map(text).collect(),
            run_dir,
            temp_dir: std::env::temp_dir(),
            gpu,
            workers: Some(workers),
        }
    }

    pub(super) fn host(&self) -> Host {
        Host::below(&self.root)
    }

    /// Returns true for the running machine, where system calls tell more than files.
    pub(super) fn is_this(&self) -> bool {
        self.root == Path::new("/")
    }

    pub(super) fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    /// Reads a file of one line, trimmed.
    pub(super) fn word(&self, path: &str) -> Option<String> {
        Some(self.read(path)?.trim().to_string())
    }

    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Lists the names in a folder below the root, sorted.
    pub(super) fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Returns true if the environment turns on PyTorch's expandable segments.
    pub(super) fn has_expandable_segments(&self) -> bool {
        ALLOCATOR_VARIABLES.iter().any(|name| {
            self.variable(name)
                .is_some_and(|value| value.to_ascii_lowercase().contains("expandable_segments:true"))
        })
    }
}

/// A card, described without opening a context on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Card {
    pub name: String,
    pub total: Bytes,
    pub free: Option<Bytes>,
}

/// Facts about cards, from the caller: this crate opens none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuFacts {
    /// The cards visible to this process.
    pub cards: Vec<Card>,
    pub driver: Option<String>,
    /// The driver's error, if there is none.
    pub missing: Option<String>,
    /// Libraries that could not be opened, with the reason.
    pub libraries_missing: Vec<String>,
    pub hand_over: HandOver,
}

/// Features of the kernel, from the caller: this crate starts no workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerFacts {
    /// Seccomp filters.
    pub filters: bool,
    /// Filters that another process answers.
    pub answers: bool,
    /// The version of Landlock; 0 without it.
    pub landlock: i64,
    /// True if memory groups for workers can probably be made.
    pub groups: bool,
    /// True if a worker may get its own `/dev/shm`.
    pub mounts: bool,
}

/// The result of probing whether a card's memory can be passed to another process.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum HandOver {
    #[default]
    NoCard,
    /// The card could not be opened, for this reason.
    NotTried(String),
    /// Tried in the two ways of frameworks; an error is the refusal's message.
    Tried {
        /// Plain memory by a handle, as CUDA IPC does.
        plain: Result<(), String>,
        /// Mapped memory, PyTorch's expandable segments, by a file descriptor.
        mapped: Result<(), String>,
    },
}
