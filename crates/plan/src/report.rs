//! What a plan reports: what `"auto"` became, whether the run fits, and which changes would make it fit.

use crate::cost::StepCost;
use crate::shape::{Offload, RunShape};
use plimsoll_base::{Bytes, DType};
use plimsoll_memory::Plan;
use plimsoll_model::Recompute;
use plimsoll_train::OptimizerDType;
use serde::Serialize;

/// What the planner settled on; recorded in `plan.json`, because gradients depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Resolved {
    /// Token limit of a forward pass in training.
    pub micro_batch_tokens: usize,
    /// What the backward pass computes again.
    pub recompute: Recompute,
    /// Storage of optimizer states.
    pub optimizer_dtype: OptimizerDType,
    /// Storage of gradients.
    pub grad_dtype: DType,
    /// Sequences in flight.
    pub sequences_max: usize,
    /// KV blocks of a layer.
    pub kv_blocks: usize,
    /// Rows of a rollout pass.
    pub rollout_rows: usize,
    /// Longest prompt.
    pub prompt_tokens_max: usize,
    /// Threads.
    pub threads: usize,
    /// The most that the buffers between files and weights take.
    pub staging: Bytes,
    /// What lies in the device's host memory.
    pub offload: Offload,
}

/// A setting that the planner weighed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// The knobs.
    #[serde(flatten)]
    pub resolved: Resolved,
    /// Predicted seconds of a step.
    pub predicted: StepCost,
    /// Their sum.
    pub predicted_step_s: f64,
    /// Peak of the host pool.
    pub host_peak_bytes: Bytes,
}

/// What `"auto"` became, and what it would have become next.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AutoReport {
    /// The fastest setting that fits; the smallest where none does.
    pub chosen: Setting,
    /// The next one that fits, if the run file leaves a choice.
    pub runner_up: Option<Setting>,
    /// Where the predictions' rates come from.
    pub rates: String,
    /// What was given up to fit, where that changes what is computed.
    pub gave_up: Option<String>,
}

/// A plan with its verdict.
#[derive(Clone, Debug)]
pub struct PlanReport {
    /// All regions and limits.
    pub plan: Plan,
    /// The numbers behind them.
    pub shape: RunShape,
    /// What `"auto"` became.
    pub resolved: Resolved,
    /// How it was chosen.
    pub auto: AutoReport,
    /// True if every pool's peak is within its limit.
    pub fits: bool,
    /// Verified changes, when it does not fit.
    pub hints: Vec<Hint>,
    /// Where the rows of what a card's driver and libraries hold are from; empty on the CPU.
    pub held_source: String,
}

/// The smallest limits under which a run fits, every `"auto"` at its smallest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SmallestLimits {
    /// Host memory of all processes of the run and of the kernel for them, in whole pages.
    pub min_host_bytes: Bytes,
    /// Device memory; 0 on the CPU.
    pub min_device_bytes: Bytes,
}

/// A change of the run file that makes it fit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hint {
    /// What `--set` takes; none where the run file cannot do it.
    pub set: Option<String>,
    /// What it does, and what it costs.
    pub why: String,
    /// Predicted time of a step beside the run as written, less 1: 0.12 is 12 % slower. None for a larger limit.
    pub lost_speed: Option<f64>,
    /// True if it changes what is computed, not only how.
    pub changes_result: bool,
}
