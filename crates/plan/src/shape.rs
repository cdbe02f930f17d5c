//! The shape of a run: every number that its memory depends on. `regions` turns them into the rows of the plan.

use crate::hosts::Hosts;
use crate::lora::{CriticAdapter, Lora};
use crate::role_name::PerRole;
use crate::sight::SightShape;
use crate::teacher::TeacherShape;
use crate::{
    facts::HostFacts,
    step_arrays::{StepPart, aligned_bytes},
};
use plimsoll_arch::{Compute, LayerEncodings, ModelSpec, Quantization};
use plimsoll_base::{Bytes, DType};
use plimsoll_config::{Auto, Exchange};
use plimsoll_device::DriverMemory;
use plimsoll_devices::{self as devices, DeviceRow};
use plimsoll_files::Head;
use plimsoll_model::{Recompute, Target};
use plimsoll_reward::RewardMemory;
use plimsoll_rollout::{EngineLimits, OnFull};
use plimsoll_textenv::EpisodeMemory;
use plimsoll_train::{Cut, PackLimits, Packing, Share, StateDTypes};
use serde::Serialize;

/// The arrays that are stored elsewhere and streamed through the arena: in host memory, page-locked if the device is a
/// card; with several ranks, weights are sharded over all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Offload {
    pub optimizer: bool,
    /// Weights of the reference model, if there is one.
    pub reference: bool,
    /// Weights of the model that several ranks train.
    pub weights: bool,
}

impl Offload {
    /// Formats it for people: `optimizer and reference`.
    pub const fn words(self) -> &'static str {
        match (self.optimizer, self.reference, self.weights) {
            (_, true, true) => "reference and weights",
            (_, false, true) => "weights",
            (false, false, _) => "nothing",
            (true, false, _) => "optimizer",
            (false, true, _) => "reference",
            (true, true, _) => "optimizer and reference",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Training {
    pub dtypes: StateDTypes,
    pub pack: PackLimits,
    pub packing: Packing,
    /// This rank's share of gradients and states.
    pub share: Share,
    pub hosts: Hosts,
    /// The hosts of the ranks that train, which `share` counts.
    pub trainers: Hosts,
    /// How cards of different hosts exchange.
    pub exchange: Auto<Exchange>,
    pub cut: Cut,
    pub recompute: Recompute,
    /// True if a reference model is scored.
    pub reference: bool,
    /// Shape of the critic, if there is one. Its dtypes, limits and recompute are the actor's.
    pub critic: Option<ModelSpec>,
    /// The adapter that the critic trains, if not all of its weights.
    pub critic_adapter: Option<CriticAdapter>,
    /// The teacher, if there is one.
    pub teacher: Option<TeacherShape>,
    pub offload: Offload,
    /// Prompts of a step; those that agents send are its sequences' own.
    pub prompts: usize,
    pub sequences: usize,
    /// Longest response of a step.
    pub response_tokens: usize,
    /// Number of further steps that use the same rollout.
    pub policy_lag: usize,
    /// Number of rollouts that wait for the steps that train on them.
    pub ahead: usize,
    /// Sequences under way beyond those of a step, which go on in the next one.
    pub carried: usize,
    /// True if the samples kept from a rollout have a separate buffer.
    pub holds_samples: bool,
    /// True if token losses are weighted by the age of their samples.
    pub corrects: bool,
    /// True if tokens are chosen by their covariance.
    pub chooses_tokens: bool,
    /// True if samples are scored at half the temperature too.
    pub scores_sharply: bool,
    /// True if a script makes the steps, and may score what it likes.
    pub scripted: bool,
    /// Coefficient of the actor's load balancing loss (MoE models only).
    pub balance_coef: f64,
    /// Muon's iterations for the matrices of the actor's layers; none where AdamW updates all weights.
    pub muon: Option<u32>,
    /// Maximum bytes of the tracker process; 0 without one.
    pub trackers: Bytes,
    /// Maximum bytes of the process of a function that estimates advantages; 0 without one.
    pub estimator: Bytes,
}

impl Training {
    /// Returns the number of ranks that only sample.
    pub(crate) fn rollout_ranks(&self) -> usize {
        self.hosts.ranks - self.trainers.ranks
    }

    pub(crate) fn rollout_sequences(&self) -> usize {
        self.sequences * (1 + self.policy_lag)
    }

    /// Returns the sequences in the buffer of kept samples; 0 without one.
    pub fn held_sequences(&self) -> usize {
        if self.holds_samples { self.rollout_sequences() } else { 0 }
    }

    /// True if log-probs are computed apart from the update: the reference's, or for older samples or held-out pairs.
    pub fn scores(&self) -> bool {
        let corrects_older = (self.carried > 0 || self.ahead > 0) && self.corrects;
        let teaches_itself = self.teacher.as_ref().is_some_and(|teacher| teacher.has_own_weights);
        let again = self.policy_lag > 0 || teaches_itself || self.scores_sharply || corrects_older;
        self.reference || self.scripted || again || self.packing.whole_groups
    }

    /// Returns the bytes of responses in the tokens of a teacher that may have others; 0 without one.
    pub(crate) fn aligned_bytes(&self) -> u64 {
        if self.teacher.as_ref().is_some_and(|teacher| teacher.aligns_text) {
            aligned_bytes(self.sequences, self.response_tokens)
        } else {
            0
        }
    }

    /// Returns the parts of a step that have arrays over its tokens and that not every step has.
    pub fn parts(&self) -> Vec<StepPart> {
        let own = [
            (self.critic.is_some(), StepPart::Values),
            (self.corrects, StepPart::Correction),
            (self.chooses_tokens, StepPart::Covariance),
            (self.scores_sharply, StepPart::Sharp),
        ];
        let mut parts: Vec<StepPart> =
            own.into_iter().filter(|(is_planned, _)| *is_planned).map(|(_, part)| part).collect();
        if let Some(teacher) = &self.teacher {
            let head_rows = self.pack.pass_of(self.packing.heads).head_rows;
            parts.extend(teacher.parts(head_rows, self.dtypes.weights));
        }
        parts
    }
}

/// Reward models other than the run's own: they score whole responses, in training and evaluation alike, and are never
/// trained. Their dtype is the actor's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scoring {
    pub pack: PackLimits,
    pub models: PerRole<ModelSpec>,
    /// Adapters of the models that are an adapter on frozen weights.
    pub adapters: PerRole<Lora>,
}

/// Every number that a run's memory depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunShape {
    pub spec: ModelSpec,
    /// Output of the head: a reward model in training outputs a score, and is not sampled from.
    pub head: Head,
    pub weights: DType,
    /// The adapters that are trained or sampled with.
    pub lora: Option<Lora>,
    /// Encodings of the models that are GGUF files, as in `Facts`.
    pub encodings: PerRole<LayerEncodings>,
    /// True if the run's own model stays in the blocks of its file where nothing trains it.
    pub keeps_blocks: bool,
    /// True if the run's own model computes its products with numbers of eight bits.
    pub fp8: bool,
    pub target: Target,
    pub engine: EngineLimits,
    /// The engine's way out when its blocks run out.
    pub on_full: OnFull,
    pub truncates: bool,
    /// Longest sequence: rows of the rotary table.
    pub positions: usize,
    pub training: Option<Training>,
    /// The reward models among the rewards; none without one.
    pub scoring: Option<Scoring>,
    pub rewards: RewardMemory,
    pub episodes: EpisodeMemory,
    pub host: HostFacts,
    /// Memory of the device's driver and libraries outside the arena.
    pub held: DriverMemory,
    /// True if no product uses a library.
    pub are_own: bool,
    /// Passes that a device records to run them ahead.
    pub recorded: usize,
    /// The images of its prompts; none without images.
    pub sight: Option<SightShape>,
}

impl RunShape {
    /// Returns how the run's own model is quantized in a role that neither trains nor adapts it.
    pub(crate) fn own_quantize(&self) -> Option<Quantization> {
        (self.keeps_blocks && self.lora.is_none()).then_some(Quantization::Gguf)
    }

    /// Returns what the products of the run's own model are computed with.
    pub fn compute(&self) -> Compute {
        if self.fp8 { Compute::Fp8 } else { Compute::Full }
    }

    pub fn row(&self) -> &'static DeviceRow {
        devices::of(self.target.kind)
    }
}
