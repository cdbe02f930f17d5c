//! The report of a plan: the values for `"auto"`, whether the run fits, and which changes would make it fit.

use crate::cost::StepCost;
use crate::evaluations::Evaluations;
use crate::shape::{Offload, RunShape};
use plimsoll_base::{Bytes, DType};
use plimsoll_config::{
    Auto, ByteSize, ModelDtype, Offload as RunOffload, OptimizerDtype as RunOptimizer,
    Recompute as RunRecompute, RunFile,
};
use plimsoll_memory::Plan;
use plimsoll_model::Recompute;
use plimsoll_train::OptimizerDType;
use serde::Serialize;

/// The planner's decisions; recorded in `plan.json`, because gradients depend on them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Resolved {
    /// Token limit of a forward pass in training.
    pub micro_batch_tokens: usize,
    pub recompute: Recompute,
    pub optimizer_dtype: OptimizerDType,
    pub grad_dtype: DType,
    pub sequences_max: usize,
    /// KV blocks per layer.
    pub kv_blocks: usize,
    pub rollout_rows: usize,
    pub prompt_tokens_max: usize,
    pub threads: usize,
    /// Maximum bytes of the buffers between files and weights.
    pub staging: Bytes,
    pub offload: Offload,
    /// Whether adapters are merged into a copy of the weights; none if the run file decides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    #[serde(flatten)]
    pub resolved: Resolved,
    pub predicted: StepCost,
    /// Sum of `predicted`.
    pub predicted_step_s: f64,
    pub host_peak_bytes: Bytes,
}

/// The setting chosen for `"auto"`, and the runner-up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AutoReport {
    /// The fastest setting that fits; the smallest if none does.
    pub chosen: Setting,
    /// The next one that fits, if the run file leaves a choice.
    pub runner_up: Option<Setting>,
    /// Source of the predictions' rates.
    pub rates: String,
    /// The setting that was given up to fit, if that changes the result.
    pub gave_up: Option<String>,
}

#[derive(Clone, Debug)]
pub struct PlanReport {
    pub plan: Plan,
    /// The numbers that decide the regions.
    pub shape: RunShape,
    pub resolved: Resolved,
    pub auto: AutoReport,
    pub fits: bool,
    /// Verified changes, if the run does not fit.
    pub hints: Vec<Hint>,
    /// Steps of the run; 0 for commands that do not train.
    pub steps: u32,
    pub evaluations: Evaluations,
    /// Assumptions where facts are unknown, for people.
    pub assumed: Vec<String>,
    /// Checks of `train` that the plan left out, for people.
    pub not_checked: Vec<String>,
    /// Columns and fields of rows that nothing reads, next to those that are read, for people.
    pub unread: Vec<String>,
    /// Files that are not there though one of nearly that name is, for people.
    pub misspelt: Vec<String>,
    /// Settings that `train` accepts but the user probably does not intend.
    pub warnings: Vec<String>,
    /// Source of the rows for a card's driver and libraries; empty on the CPU.
    pub held_source: String,
}

/// The smallest limits under which a run fits, with every `"auto"` at its smallest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SmallestLimits {
    /// Host memory of all processes of the run and of the kernel for them, in whole pages.
    pub min_host_bytes: Bytes,
    pub min_device_bytes: Bytes,
}

/// A change of the run file that makes it fit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hint {
    /// The argument of `--set`; none if the run file cannot make the change.
    pub set: Option<String>,
    pub why: String,
    /// Predicted seconds of a step with the change; none for a larger limit.
    pub predicted_step_s: Option<f64>,
    /// Predicted step time relative to the unchanged run on a machine where it fits, minus 1: 0.12 is 12 % slower.
    pub lost_speed: Option<f64>,
    /// True if the change affects the result, not only how it is computed.
    pub changes_result: bool,
}

impl Resolved {
    /// Returns the run file with the planner's value for every `"auto"`.
    pub fn write_into(&self, run: &RunFile) -> RunFile {
        let mut run = run.clone();
        run.train.micro_batch_tokens = Auto::Value(self.micro_batch_tokens as u32);
        run.train.recompute = Auto::Value(match self.recompute {
            Recompute::None => RunRecompute::None,
            Recompute::Cheap => RunRecompute::Cheap,
            Recompute::Layer => RunRecompute::Layer,
            Recompute::Offload => RunRecompute::Offload,
        });
        run.train.optimizer_dtype = Auto::Value(match self.optimizer_dtype {
            OptimizerDType::F32 => RunOptimizer::F32,
            OptimizerDType::Bf16 => RunOptimizer::Bf16,
            OptimizerDType::Int8 => RunOptimizer::Int8,
        });
        let bf16 = self.grad_dtype == DType::Bf16;
        run.train.grad_dtype = Auto::Value(if bf16 { ModelDtype::Bf16 } else { ModelDtype::F32 });
        run.rollout.sequences_max = Auto::Value(self.sequences_max as u32);
        run.rollout.kv_blocks = Auto::Value(self.kv_blocks as u32);
        run.memory.staging = Auto::Value(ByteSize(self.staging));
        let offload = [
            (self.offload.optimizer, RunOffload::Optimizer),
            (self.offload.reference && !self.offload.weights, RunOffload::Reference),
        ];
        run.memory.offload =
            Auto::Value(offload.into_iter().filter_map(|(lies, what)| lies.then_some(what)).collect());
        if self.offload.weights {
            run.run.zero_stage = Auto::Value(3);
        }
        run.run.threads = Auto::Value(self.threads as u32);
        if let Some((lora, merge)) = run.lora.as_mut().zip(self.merge) {
            lora.merge = Auto::Value(merge);
        }
        run
    }
}
