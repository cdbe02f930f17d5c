//! What a run is doing, noted where its supervisor can read it after a death: a page of JSON, written at phase edges.

use plimsoll_memory::host::Rss;
use plimsoll_worker::StatusNote;
use serde::Serialize;
use std::path::PathBuf;

/// What a run is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Doing {
    /// Opening, planning, binding.
    #[default]
    Start,
    /// Sampling.
    Rollout,
    /// Grading.
    Reward,
    /// Reference log-probs.
    Score,
    /// Values of the critic, then its forward, backward and optimizer.
    Critic,
    /// Forward, backward, optimizer of the actor.
    Update,
    /// Scoring held-out prompts.
    Eval,
    /// Writing a checkpoint.
    Save,
    /// Between two steps.
    Idle,
}

impl Doing {
    /// All of them.
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

    /// Lower-case name.
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

/// The page's content.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Status {
    /// The run directory, once it is made.
    pub dir: Option<PathBuf>,
    /// What began last.
    pub phase: Doing,
    /// The step under way, or the last one.
    pub step: u32,
    /// Steps of the run.
    pub steps: u32,
    /// Resident memory of the trainer when that began.
    pub rss: Rss,
    /// Resident memory of the worker processes, once a step.
    pub workers_bytes: u64,
    /// The load line.
    pub planned_bytes: u64,
    /// The limit that the plan was made for.
    pub limit_bytes: u64,
    /// Where that limit was read.
    pub limit_source: String,
}

/// Writes the status where a supervisor reads it; without one it writes nowhere.
#[derive(Debug, Default)]
pub struct StatusWriter {
    note: Option<StatusNote>,
    /// What is written next.
    pub status: Status,
}

impl StatusWriter {
    /// For this process's supervisor, if it has one.
    pub fn new() -> StatusWriter {
        StatusWriter { note: StatusNote::inherited(), status: Status::default() }
    }

    /// Shows the status.
    pub fn write(&mut self) {
        if let Some(note) = &mut self.note {
            note.write(&serde_json::to_string(&self.status).expect("plain data has a JSON form"));
        }
    }
}
