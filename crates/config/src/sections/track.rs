//! `[track]`.

use crate::key::{FREELY, such};
use crate::values::{ByteSize, TrackMode, Tracker};
use plimsoll_base::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Below it no client starts.
const WORKER_MEMORY_MIN: Bytes = Bytes::mib(256);

section! {
    /// Trackers of experiments that get the numbers of the run.
    Track "track" {
        /// `wandb`, `trackio`, `mlflow`, `tensorboard`: each through its own Python client, in a process next to the
        /// run; none if empty.
        to: Vec<Tracker> = Vec::new() => [FREELY],
        /// The project of W&B and Trackio, the experiment of MLflow.
        project: String = "plimsoll".into() => [FREELY],
        /// The name of the run there; the last part of the run directory if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String> = None => [FREELY],
        /// `offline` sends nothing: everything is written into `track.dir`.
        mode: TrackMode = TrackMode::Online => [FREELY],
        /// Where trackers write their files; the folder `track` of the run directory if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        dir: Option<String> = None => [FREELY],
        /// The address of MLflow's server; MLFLOW_TRACKING_URI if absent, and without both a database in `track.dir`.
        #[serde(skip_serializing_if = "Option::is_none")]
        uri: Option<String> = None => [FREELY],
        /// The Python interpreter that has the clients; if absent that of the virtual
        /// environment in which `plimsoll` lies, or of `$VIRTUAL_ENV`, else `python3`.
        #[serde(skip_serializing_if = "Option::is_none")]
        python: Option<String> = None => [FREELY],
        /// Longest time for one look at the run's log, in milliseconds, and for the trackers to finish after the run.
        timeout_ms: u64 = 60_000 => [such("milliseconds above 0", |time| time > 0.0), FREELY],
        /// Limit on the memory of that process.
        worker_memory: ByteSize = ByteSize(Bytes::mib(1024)) => [
            such("256MiB or more", |bytes| bytes >= WORKER_MEMORY_MIN.0 as f64), FREELY,
        ],
    }
}

impl Track {
    /// Returns what the process of the trackers may hold; nothing without one.
    pub fn memory(&self) -> Bytes {
        if self.to.is_empty() { Bytes(0) } else { self.worker_memory.0 }
    }
}
