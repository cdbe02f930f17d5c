//! The activity of a run, for its supervisor to read after a death: JSON written at phase boundaries.

use plimsoll_memory::host::Rss;
use plimsoll_worker::StatusNote;
use serde::Serialize;
use std::path::PathBuf;

plimsoll_base::names! {
    #[derive(Default)]
    Doing {
        /// Opening, planning, binding.
        #[default]
        Start = "start",
        Rollout = "rollout",
        Reward = "reward",
        /// Reference log-probs.
        Score = "score",
        /// Values of the critic, then its forward, backward and optimizer.
        Critic = "critic",
        /// Forward, backward and optimizer of the actor.
        Update = "update",
        Eval = "eval",
        Save = "save",
        /// Between two steps.
        Idle = "idle",
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Status {
    pub dir: Option<PathBuf>,
    /// The phase that began last.
    pub phase: Doing,
    /// The step in progress, or the last one.
    pub step: u32,
    pub steps: u32,
    /// The thing that the rank needs of another, once it waits for that; else empty.
    pub waits_for: String,
    /// Resident memory of the trainer when `phase` began.
    pub rss: Rss,
    /// Resident memory of the worker processes, read once per step.
    pub workers_bytes: u64,
    pub planned_bytes: u64,
    pub limit_bytes: u64,
    pub limit_source: String,
}

/// Writes the status for a supervisor; without one it writes nothing.
#[derive(Debug, Default)]
pub struct StatusWriter {
    note: Option<StatusNote>,
    /// The content of the next `write`.
    pub status: Status,
}

impl StatusWriter {
    pub fn new() -> StatusWriter {
        StatusWriter { note: StatusNote::inherited(), status: Status::default() }
    }

    pub fn write(&mut self) {
        if let Some(note) = &mut self.note {
            note.write(&serde_json::to_string(&self.status).expect("plain data has a JSON form"));
        }
    }
}
