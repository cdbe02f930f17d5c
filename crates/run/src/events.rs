//! The events of a run, as shown to an observer and written to `events.jsonl`. An observer may ask for a checkpoint
//! or for the end; it never changes a step.

use crate::{scores::PairScore, status::Doing};
use plimsoll_base::Error;
use plimsoll_memory::trend::Verdict;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    Started(Started),
    /// An earlier process of the run ended after `step`; this one resumes it.
    Resumed {
        step: u32,
        notes: Vec<String>,
    },
    /// A line for people, which is not logged.
    Note {
        text: String,
    },
    /// Columns of a data set that nothing reads, next to those that are read, for people.
    Rows {
        text: String,
    },
    Eval(EvalResult),
    Step(StepResult),
    Memory(MemoryEvent),
    /// Whether memory grows over the steps.
    Trend(TrendEvent),
    Warning(WarningEvent),
    Saved {
        step: u32,
        path: PathBuf,
    },
    Finished {
        summary: serde_json::Value,
    },
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Started {
    /// For example `grpo on builtin:nano, 1.0 M parameters, bf16`.
    pub what: String,
    pub steps: u32,
    pub dir: PathBuf,
    /// The load line: the planned peak of host memory, of all processes of the run and of the kernel for them.
    pub planned_bytes: u64,
    /// Its parts: `trainer`, `supervisor`, `workers`, `kernel`.
    pub planned_parts: BTreeMap<String, u64>,
    /// The limit that the plan was made for.
    pub limit_bytes: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct EvalResult {
    /// Steps done before it; 0 before the first.
    pub step: u32,
    pub set: String,
    /// Null if no response has a score.
    pub score: Option<f64>,
    pub pass_at_k: BTreeMap<u32, f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pairs: Option<PairScore>,
    pub num_samples: usize,
    pub num_empty: usize,
    pub num_cut: usize,
    pub seconds: f64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct StepResult {
    pub step: u32,
    pub steps: u32,
    /// Mean reward of the step's samples; `None` for supervised steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Response tokens per second of rollout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second_rollout: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second_update: Option<f64>,
    /// Environment frames per second, over rollouts and updates together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames_per_second: Option<f64>,
    /// Resident memory of the trainer.
    pub rss_bytes: u64,
    /// Resident memory of the trainer, its supervisor and its workers together.
    pub held_bytes: u64,
    /// The load line, as when the run started.
    pub planned_bytes: u64,
    pub seconds: f64,
    /// Predicted seconds to the end of the run.
    pub seconds_left: f64,
    pub metrics: BTreeMap<String, f64>,
    /// Seconds of the step that each rank waited for others; empty in a run of one rank.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranks_waited: Vec<f64>,
}

/// Memory over one step: one reading at the end of each part, and the other processes of the run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MemoryEvent {
    pub step: u32,
    pub parts: Vec<PartMemory>,
    pub workers_bytes: u64,
    pub workers_planned_bytes: u64,
    pub supervisor_bytes: u64,
    pub supervisor_planned_bytes: u64,
}

/// Memory of the trainer at the end of a part of a step.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PartMemory {
    pub phase: Doing,
    pub planned_bytes: u64,
    pub rss_bytes: u64,
    pub anon_bytes: u64,
    pub file_bytes: u64,
    pub shmem_bytes: u64,
    /// Planned bytes of the arena's regions that this part may use.
    pub arena_planned_bytes: u64,
    /// Highest bound address of the arena, minus its base.
    pub arena_bytes: u64,
    /// Planned device memory; 0 on the CPU.
    pub device_planned_bytes: u64,
    /// Device memory that the run holds, according to the driver; 0 on the CPU.
    pub device_bytes: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct TrendEvent {
    /// The last step whose reading is included.
    pub step: u32,
    /// `anon`, `file`, `shmem`, `workers`.
    pub kinds: BTreeMap<String, Verdict>,
}

/// A warning, which never ends the run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WarningEvent {
    pub slug: String,
    pub message: String,
    pub facts: Vec<String>,
    pub step: u32,
}

impl WarningEvent {
    /// Returns `error` as a warning.
    pub fn of(error: &Error, step: u32) -> WarningEvent {
        let facts = error.facts.clone();
        WarningEvent { slug: error.slug.to_string(), message: error.message.clone(), facts, step }
    }
}

/// Receives the events of a run.
pub trait Observer {
    /// Called after each event, between steps; the run waits for it.
    fn on_event(&mut self, event: &Event);

    /// Returns what the observer wants after the step that it saw last, once.
    fn asks(&mut self) -> ObserverRequest {
        ObserverRequest::Nothing
    }
}

/// Says what an observer wants after a step. All ranks do it after the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObserverRequest {
    #[default]
    Nothing,
    Save,
    /// A checkpoint, and the end.
    Stop,
}

pub struct Silent;

impl Observer for Silent {
    fn on_event(&mut self, _: &Event) {}
}
