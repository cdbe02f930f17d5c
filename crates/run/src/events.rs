//! What a run tells whoever watches it. The same events go to `events.jsonl`; a watcher never changes a run.

use crate::scores::PairScore;
use crate::status::Doing;
use plimsoll_base::Error;
use plimsoll_memory::trend::Verdict;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// One thing that happened in a run.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// The plan is bound and the first step begins.
    Started(Started),
    /// An earlier process of the run ended after `step`; this one goes on.
    Resumed {
        /// Steps done.
        step: u32,
        /// What the user should know.
        notes: Vec<String>,
    },
    /// Words for people. It stands in no log.
    Note {
        /// One line.
        text: String,
    },
    /// An evaluation is done.
    Eval(EvalResult),
    /// A step is done.
    Step(StepResult),
    /// Memory over a step, planned and measured.
    Memory(MemoryEvent),
    /// Whether memory grows over the steps.
    Trend(TrendEvent),
    /// Something that does not end the run.
    Warning(WarningEvent),
    /// A checkpoint is complete.
    Saved {
        /// Step whose weights it holds.
        step: u32,
        /// Where it is.
        path: PathBuf,
    },
    /// The run is over.
    Finished {
        /// What `summary.json` says.
        summary: serde_json::Value,
    },
}

/// What is known before the first step.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Started {
    /// For example `grpo on builtin:nano, 1.0 M parameters, bf16`.
    pub what: String,
    /// Steps of the run.
    pub steps: u32,
    /// Where it writes.
    pub dir: PathBuf,
    /// The load line: planned peak of the process.
    pub planned_bytes: u64,
    /// The limit that the plan was made for.
    pub limit_bytes: u64,
}

/// An evaluation.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EvalResult {
    /// Steps done before it; 0 is before the first.
    pub step: u32,
    /// What was evaluated on.
    pub set: String,
    /// Mean of `eval.metric`.
    pub score: f64,
    /// pass@k by k.
    pub pass_at_k: BTreeMap<u32, f64>,
    /// Over held-out pairs, where the run has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pairs: Option<PairScore>,
    /// Responses scored.
    pub num_samples: usize,
    /// How long it took.
    pub seconds: f64,
}

/// A step.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StepResult {
    /// Counted from 1.
    pub step: u32,
    /// Steps of the run.
    pub steps: u32,
    /// Mean reward of the step's samples; none for supervised steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Loss of the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Score of the last evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Response tokens a second of rollout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second_rollout: Option<f64>,
    /// Tokens a second of the update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second_update: Option<f64>,
    /// Frames of environments a second, rollouts and updates together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames_per_second: Option<f64>,
    /// Resident memory now.
    pub rss_bytes: u64,
    /// The load line.
    pub planned_bytes: u64,
    /// How long the step took.
    pub seconds: f64,
    /// Predicted time to the end.
    pub seconds_left: f64,
    /// Every metric under its name.
    pub metrics: BTreeMap<String, f64>,
}

/// Memory over one step: one entry a part, read at its end, and the other processes of the run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MemoryEvent {
    /// Counted from 1.
    pub step: u32,
    /// In order.
    pub parts: Vec<PartMemory>,
    /// Resident memory of the worker processes.
    pub workers_bytes: u64,
    /// Their row.
    pub workers_planned_bytes: u64,
    /// Resident memory of the supervisor.
    pub supervisor_bytes: u64,
    /// Its row.
    pub supervisor_planned_bytes: u64,
}

/// The trainer's memory at the end of a part of a step.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PartMemory {
    /// What was done.
    pub phase: Doing,
    /// Planned resident memory.
    pub planned_bytes: u64,
    /// Resident memory.
    pub rss_bytes: u64,
    /// Its anonymous pages.
    pub anon_bytes: u64,
    /// Its pages of files.
    pub file_bytes: u64,
    /// Its shared memory.
    pub shmem_bytes: u64,
    /// Regions of the arena that this part may use.
    pub arena_planned_bytes: u64,
    /// The arena's highest address bound, less its base.
    pub arena_bytes: u64,
    /// Planned device memory; 0 on the CPU.
    pub device_planned_bytes: u64,
    /// What the run holds of the card, by the driver; 0 on the CPU.
    pub device_bytes: u64,
}

/// Growth of each kind of memory, tested over the steps so far.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TrendEvent {
    /// The last step that was read.
    pub step: u32,
    /// `anon`, `file`, `shmem`, `workers`.
    pub kinds: BTreeMap<String, Verdict>,
}

/// A warning under its slug.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WarningEvent {
    /// Its page: `plimsoll explain SLUG`.
    pub slug: String,
    /// What, with numbers.
    pub message: String,
    /// Further facts.
    pub facts: Vec<String>,
    /// The step that was done.
    pub step: u32,
}

impl WarningEvent {
    /// The warning that `error` would be, were it one.
    pub fn of(error: &Error, step: u32) -> WarningEvent {
        let facts = error.facts.clone();
        WarningEvent { slug: error.slug.to_string(), message: error.message.clone(), facts, step }
    }
}

/// Whoever watches a run.
pub trait Observer {
    /// Called after each event, between steps; it must not block.
    fn on_event(&mut self, event: &Event);
}

/// Watches nothing.
pub struct Silent;

impl Observer for Silent {
    fn on_event(&mut self, _: &Event) {}
}
