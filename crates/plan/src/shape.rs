//! The shape of a run: every number that its memory depends on. `regions` turns them into the rows of the plan.
use crate::facts::HostFacts;
use crate::step_arrays::StepArrays;
use plimsoll_base::{DType, ModelSpec};
use plimsoll_cuda::{self as cuda};
use plimsoll_files::Head;
use plimsoll_model::{Recompute, Target};
use plimsoll_reward::RewardMemory;
use plimsoll_rollout::{EngineLimits, OnFull};
use plimsoll_textenv::EpisodeMemory;
use plimsoll_train::{PackLimits, Packing, StateDTypes};
use serde::Serialize;

/// What lies in the device's host memory, page-locked where the device is a card, and passes through the arena in parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Offload {
    /// Optimizer states.
    pub optimizer: bool,
    /// Weights of the reference model, if there is one.
    pub reference: bool,
}

impl Offload {
    /// `optimizer and reference`, for people.
    pub const fn words(self) -> &'static str {
        match (self.optimizer, self.reference) {
            (false, false) => "nothing",
            (true, false) => "optimizer",
            (false, true) => "reference",
            (true, true) => "optimizer and reference",
        }
    }
}

/// What a run does with its model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Training {
    /// Storage of weights, gradients and states.
    pub dtypes: StateDTypes,
    /// Limits of a micro-batch.
    pub pack: PackLimits,
    /// How the update's sequences become micro-batches.
    pub packing: Packing,
    /// What the backward pass computes again.
    pub recompute: Recompute,
    /// True if a reference model is scored.
    pub reference: bool,
    /// The shape of the critic, if there is one. Its dtypes, limits and recompute are the actor's.
    pub critic: Option<ModelSpec>,
    /// The shape of the reward model that scores responses, if there is one. Its dtype and limits are the actor's.
    pub reward: Option<ModelSpec>,
    /// What lies in the device's host memory.
    pub offload: Offload,
    /// Sequences of one step.
    pub sequences: usize,
    /// Longest response of one step.
    pub response_tokens: usize,
    /// Further steps that one rollout serves.
    pub policy_lag: usize,
    /// True if what a rollout kept has a buffer of its own.
    pub holds_samples: bool,
    /// True if token losses are weighted by the age of their samples.
    pub corrects: bool,
}

impl Training {
    /// Sequences of one rollout.
    pub fn rollout_sequences(&self) -> usize {
        self.sequences * (1 + self.policy_lag)
    }

    /// Sequences of the buffer of what a rollout kept; 0 without one.
    pub fn held_sequences(&self) -> usize {
        if self.holds_samples { self.rollout_sequences() } else { 0 }
    }

    /// True if log-probs are computed beside the update: of a reference, or of the actor for older samples.
    pub fn scores(&self) -> bool {
        self.reference || self.policy_lag > 0
    }

    /// Per-token arrays beside those that every step has.
    pub fn arrays(&self) -> StepArrays {
        StepArrays { critic: self.critic.is_some(), correction: self.corrects }
    }
}

/// Everything that a run's memory depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunShape {
    /// The model.
    pub spec: ModelSpec,
    /// What its head gives: a reward model that is trained gives a score, and nothing is sampled from it.
    pub head: Head,
    /// Storage of its weights.
    pub weights: DType,
    /// The device.
    pub target: Target,
    /// Limits of the rollout engine.
    pub engine: EngineLimits,
    /// What it does when its blocks run out.
    pub on_full: OnFull,
    /// True if sampling cuts the vocabulary.
    pub truncates: bool,
    /// Longest sequence: rows of the rotary table.
    pub positions: usize,
    /// Training, if any.
    pub training: Option<Training>,
    /// What the rewards take of the host.
    pub rewards: RewardMemory,
    /// What episodes of an environment take of it.
    pub episodes: EpisodeMemory,
    /// Host memory outside the arena.
    pub host: HostFacts,
    /// What a card's driver and libraries hold beside the arena; nothing on the CPU.
    pub held: cuda::Held,
}
