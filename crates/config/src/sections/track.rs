//! `[track]`.

use crate::values::{ByteSize, TrackMode, Tracker};
use plimsoll_base::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Trackers of experiments that get the numbers of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Track {
    /// `wandb`, `trackio`, `mlflow`, `tensorboard`: each through its own Python client, in a process next to the run; none if empty.
    pub to: Vec<Tracker>,
    /// The project of W&B and Trackio, the experiment of MLflow.
    pub project: String,
    /// The name of the run there; the last part of the run directory if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `offline` sends nothing: everything is written into `track.dir`.
    pub mode: TrackMode,
    /// Where trackers write their files; the folder `track` of the run directory if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// The address of MLflow's server; MLFLOW_TRACKING_URI if absent, and without both a database in `track.dir`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// The Python interpreter that has the clients; `python3` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// Longest time for one look at the run's log, in milliseconds, and for the trackers to finish after the run.
    pub timeout_ms: u64,
    /// Limit on the memory of that process.
    pub worker_memory: ByteSize,
}

impl Track {
    /// Returns what the process of the trackers may hold; nothing without one.
    pub fn memory(&self) -> Bytes {
        if self.to.is_empty() { Bytes(0) } else { self.worker_memory.0 }
    }
}

impl Default for Track {
    fn default() -> Track {
        Track {
            to: Vec::new(),
            project: "plimsoll".into(),
            name: None,
            mode: TrackMode::Online,
            dir: None,
            uri: None,
            python: None,
            timeout_ms: 60_000,
            worker_memory: ByteSize(Bytes::mib(1024)),
        }
    }
}
