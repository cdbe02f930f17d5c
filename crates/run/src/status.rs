//! What a run is doing, recorded where its supervisor can read it after a death: one page of JSON, written at phase
//! boundaries.

use plimsoll_memory::host::Rss;
use plimsoll_worker::StatusNote;
use serde::Serialize;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Doing {
    /// Opening, planning, binding.
    #[default]
    Start,
    Rollout,
    Reward,
    /// Reference log-probs.
    Score,
    /// Values of the critic, then its forward, backward and optimizer.
    Critic,
    /// Forward, backward and optimizer of the actor.
    Update,
    Eval,
    Save,
    /// Between two steps.
    Idle,
}

impl Doing {
    pub const ALL: [Doing; 9] = [
        Doing::Start,
        Doing::Rollout,
        Doing::Reward,
        Doing::Score,
        Doing::Critic,
        Doing::Update,
        Doing::Eval,
        Doing::Save,
        Doing::Idle,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Doing::Start => "start",
            Doing::Rollout => "rollout",
            Doing::Reward => "reward",
            Doing::Score => "score",
            Doing::Critic => "critic",
            Doing::Update => "update",
            Doing::Eval => "eval",
            Doing::Save => "save",
            Doing::Idle => "idle",
        }
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
    /// Resident memory of the trainer when `phase` began.
    pub rss: Rss,
    /// Resident memory of the worker processes, read once per step.
    pub workers_bytes: u64,
    pub planned_bytes: u64,
    pub limit_bytes: u64,
    pub limit_source: String,
}

/// Writes the status where a supervisor reads it; without a supervisor it writes nothing.
#[derive(Debug, Default)]
pub struct StatusWriter {
    note: Option<StatusNote>,
    /// The status that the next `write` writes.
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
