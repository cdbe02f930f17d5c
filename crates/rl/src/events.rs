//! What a run tells whoever watches it. The same events go to `events.jsonl`; a watcher never changes a run.

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
