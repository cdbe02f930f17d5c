//! What the planner knows of a run before it chooses anything, and what follows from that.

use crate::facts::Facts;
use crate::work::response_tokens;
use plimsoll_base::DType;
use plimsoll_config::{GradientWire, RunSpec};
use plimsoll_device::DriverMemory;
use plimsoll_devices::{DeviceRow, Rates};
use plimsoll_memory::Limits;
use plimsoll_reward::RewardMemory;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Steps with updates.
    Train,
    /// Responses only: a command that does not train.
    Sample,
}

#[derive(Clone, Copy)]
pub(crate) struct Planner<'a> {
    pub(crate) facts: &'a Facts,
    pub(crate) row: &'static DeviceRow,
    pub(crate) threads: usize,
    pub(crate) limits: &'a Limits,
    pub(crate) rates: &'a Rates,
    /// Rates of one of several ranks, which share the host's cores.
    pub(crate) of_rank: &'a Rates,
    pub(crate) purpose: Purpose,
    pub(crate) rewards: RewardMemory,
    /// Memory of a card's driver and libraries, with adapters apart and merged, and the origin of the numbers.
    pub(crate) held: ([DriverMemory; 2], &'a str),
}

impl Planner<'_> {
    /// Returns whether each micro-batch's gradient is formed by itself; states then stay with the sums.
    pub(crate) fn is_chained(&self, run: &RunSpec) -> bool {
        self.facts.share.ranks > 1 || partial_of(run).is_some() || fold_of(run) > 1
    }

    /// Returns the samples of one engine request: of a rollout, or of a slice of an evaluation.
    pub(crate) fn samples(&self, run: &RunSpec) -> usize {
        if run.trains_scores() {
            return 1; // Nothing is sampled.
        }
        let rollout = run.prompts_under_way() as usize * run.rollout.group_size as usize;
        let step = if run.samples() { rollout } else { 0 };
        // The samples of one prompt stay together.
        let samples = run.eval.samples.max(1) as usize;
        let eval = self.facts.eval_prompts.saturating_mul(samples).min(samples.max(256));
        step.max(eval).max(1).saturating_mul(run.branches_max())
    }

    /// Returns the rows of a step's forward passes.
    pub(crate) fn step_rows(&self, run: &RunSpec) -> usize {
        let prompts = run.rollout.prompts_per_step as usize;
        prompts * self.facts.prompt_tokens
            + run.sequences_per_step() as usize * response_tokens(run, self.facts)
    }
}

/// Returns the dtype to which the run file rounds each micro-batch's gradient.
pub(crate) fn partial_of(run: &RunSpec) -> Option<DType> {
    let training = run.trains.training()?;
    (training.train.gradient_wire == GradientWire::Bf16).then_some(DType::Bf16)
}

/// Returns how many parts of a step's gradient are summed apart.
pub(crate) fn fold_of(run: &RunSpec) -> usize {
    run.trains.training().map_or(1, |training| training.train.fold as usize)
}
