//! How far a run has come: what its summary is made of and what a checkpoint carries from one process to the next.

use crate::checkpoint::{Best, exact, exact_map, exact_option};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the summary is made of. Every number survives a checkpoint with its bits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Steps done.
    pub step: u32,
    /// The step that was saved last.
    pub saved_step: Option<u32>,
    /// Evaluation before the first step.
    #[serde(with = "exact_option")]
    pub eval_before: Option<f64>,
    /// Evaluation after the last step.
    #[serde(with = "exact_option")]
    pub eval_after: Option<f64>,
    /// pass@k before the first step, by k; empty without an evaluation.
    #[serde(with = "exact_map", default)]
    pub pass_at_k_before: BTreeMap<u32, f64>,
    /// The same after the last step.
    #[serde(with = "exact_map", default)]
    pub pass_at_k_after: BTreeMap<u32, f64>,
    /// True when the evaluation after the last step is done, or there is none to do.
    pub evaluated_at_end: bool,
    /// The last evaluation.
    #[serde(with = "exact_option")]
    pub last_eval: Option<f64>,
    /// Step of the last evaluation.
    pub last_eval_step: Option<u32>,
    /// The checkpoint with the highest evaluation.
    pub best: Option<Best>,
    /// Mean reward of the first step.
    #[serde(with = "exact_option")]
    pub reward_first: Option<f64>,
    /// Mean reward of the last step.
    #[serde(with = "exact_option")]
    pub reward_last: Option<f64>,
    /// Largest difference between a rollout's and the trainer's log-probability.
    #[serde(with = "exact")]
    pub mismatch_max: f64,
    /// Response tokens.
    pub rollout_tokens: u64,
    /// Rows of training passes.
    pub update_tokens: u64,
    /// Seconds of rollouts.
    #[serde(with = "exact")]
    pub rollout_s: f64,
    /// Seconds of updates.
    #[serde(with = "exact")]
    pub update_s: f64,
    /// Operations, as the work is defined.
    #[serde(with = "exact")]
    pub flops: f64,
    /// Seconds of steps.
    #[serde(with = "exact")]
    pub step_s: f64,
    /// Seconds of the processes that this one goes on from. Wall clocks are never read: they may go backwards.
    #[serde(with = "exact")]
    pub seconds_before: f64,
    /// Optimizer updates at the end of the last step.
    pub updates: u64,
}
