//! What trains the adapters of a server's tenants: passes over one adapter at a time, next to responses that are drawn.

use crate::axes::Knobs;
use crate::facts::TenantPasses;
use crate::hosts::Hosts;
use crate::planner::Planner;
use crate::shape::{Offload, Training};
use plimsoll_arch::Caches;
use plimsoll_base::{Bytes, DType};
use plimsoll_config::Auto;
use plimsoll_train::{Cut, Heads, OptimizerDType, PackLimits, Packing, Share, StateDTypes, Summing};

impl TenantPasses {
    /// Returns the limits of a micro-batch of sequences and of beginnings that they share, of any length.
    pub(crate) fn pack(&self, caches: Caches) -> PackLimits {
        let TenantPasses { tokens, sequences } = *self;
        PackLimits { micro_batch_tokens: tokens, prompt_tokens: tokens, segments: sequences, caches }
    }
}

impl Planner<'_> {
    /// Returns the training of adapters that come and go: no arrays of steps, no reference, one rank.
    pub(crate) fn tenants_training(&self, weights: DType, pack: PackLimits, knobs: &Knobs) -> Training {
        let (optimizer, grads) = (OptimizerDType::F32, DType::F32);
        Training {
            dtypes: StateDTypes { weights, grads, summing: Summing::default(), optimizer },
            pack,
            packing: Packing { heads: Heads::Targets, whole_groups: false },
            share: Share::WHOLE,
            hosts: Hosts::one(1),
            trainers: Hosts::one(1),
            exchange: Auto::Auto,
            cut: Cut::multiple(1),
            recompute: knobs.recompute,
            reference: false,
            scripted: false,
            critic: None,
            critic_adapter: None,
            teacher: None,
            offload: Offload::default(),
            prompts: 1,
            sequences: 1,
            response_tokens: 1,
            policy_lag: 0,
            ahead: 0,
            carried: 0,
            holds_samples: false,
            corrects: false,
            chooses_tokens: false,
            scores_sharply: false,
            balance_coef: 0.0,
            muon: None,
            trackers: Bytes(0),
            estimator: Bytes(0),
        }
    }
}
