//! The methods by name, and the table of those that sample: what each one does with rewards, advantages and tokens unless
//! the run file says otherwise.

use crate::advantage::Whiten;
use crate::aggregation::AggregationKind;
use crate::policy_loss::{PolicyLoss, PolicyLossKind};
use crate::shaping::GroupShaping;

plimsoll_base::names! {
    /// What a run trains with.
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    Method {
        /// GRPO (arXiv 2402.03300), with the token mean that DAPO introduced.
        Grpo = "grpo",
        /// Dr.GRPO (arXiv 2503.20783): no standard deviation, no length normalisation.
        DrGrpo = "dr_grpo",
        /// Leave-one-out baseline (arXiv 2402.14740).
        Rloo = "rloo",
        /// REINFORCE, whitened over the batch.
        Reinforce = "reinforce",
        /// REINFORCE++-baseline (arXiv 2501.03262).
        ReinforceBaseline = "reinforce_baseline",
        /// Sequence ratios (arXiv 2507.18071).
        Gspo = "gspo",
        /// Clipped, detached ratios (arXiv 2506.13585).
        Cispo = "cispo",
        /// Soft gates instead of clips (arXiv 2511.20347).
        Sapo = "sapo",
        /// PPO with a critic (arXiv 1707.06347).
        Ppo = "ppo",
        /// Supervised: no rollout, no reward.
        Sft = "sft",
        /// Preferences without a reward model (arXiv 2305.18290).
        Dpo = "dpo",
        /// A reward model from preferences.
        RewardModel = "reward_model",
    }
}

/// How shaped rewards become advantages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdvantageKind {
    /// GAE over the critic's values.
    Gae,
    /// Discounted returns; `gamma_free` says whether gamma may differ from 1.
    Returns {
        /// False: gamma is forced to 1.
        gamma_free: bool,
    },
}

/// A row of the table: the defaults of a method that samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MethodSpec {
    /// Which method.
    pub method: Method,
    /// Group baseline.
    pub shaping: GroupShaping,
    /// Rewards to advantages.
    pub advantage: AdvantageKind,
    /// Whitening over the batch.
    pub whiten: Whiten,
    /// Policy loss with its default clips.
    pub loss: PolicyLoss,
    /// Default aggregation.
    pub aggregation: AggregationKind,
    /// Whether it trains a critic.
    pub needs_critic: bool,
}

const RETURNS: AdvantageKind = AdvantageKind::Returns { gamma_free: false };
const GROUP_NORM: GroupShaping = GroupShaping::GroupNorm { eps: 1e-4 };
const PPO_CLIP: PolicyLoss = PolicyLoss::Ppo { clip_low: 0.2, clip_high: 0.2, dual_clip: None };

const GRPO: MethodSpec = MethodSpec {
    method: Method::Grpo,
    shaping: GROUP_NORM,
    advantage: RETURNS,
    whiten: Whiten::Off,
    loss: PPO_CLIP,
    aggregation: AggregationKind::TokenMean,
    needs_critic: false,
};

/// The table of the methods that sample, in the order of `Method`; what a row does not name it shares with GRPO.
pub const METHODS: [MethodSpec; 9] = [
    GRPO,
    MethodSpec {
        method: Method::DrGrpo,
        shaping: GroupShaping::MeanBaseline,
        aggregation: AggregationKind::SeqMeanTokenSumNorm,
        ..GRPO
    },
    MethodSpec { method: Method::Rloo, shaping: GroupShaping::Rloo, ..GRPO },
    MethodSpec {
        method: Method::Reinforce,
        shaping: GroupShaping::None,
        advantage: AdvantageKind::Returns { gamma_free: true },
        whiten: Whiten::Full,
        loss: PolicyLoss::Reinforce,
        ..GRPO
    },
    MethodSpec {
        method: Method::ReinforceBaseline,
        shaping: GroupShaping::MeanBaseline,
        whiten: Whiten::Full,
        ..GRPO
    },
    MethodSpec {
        method: Method::Gspo,
        loss: PolicyLoss::Gspo { clip_low: 3e-4, clip_high: 4e-4 },
        aggregation: AggregationKind::SeqMeanTokenMean,
        ..GRPO
    },
    MethodSpec { method: Method::Cispo, loss: PolicyLoss::Cispo { clip_low: 0.0, clip_high: 5.0 }, ..GRPO },
    MethodSpec {
        method: Method::Sapo,
        loss: PolicyLoss::Sapo { tau_positive: 1.0, tau_negative: 1.05 },
        aggregation: AggregationKind::SeqMeanTokenMean,
        ..GRPO
    },
    MethodSpec {
        method: Method::Ppo,
        shaping: GroupShaping::None,
        advantage: AdvantageKind::Gae,
        whiten: Whiten::Full,
        needs_critic: true,
        ..GRPO
    },
];

impl Method {
    /// Returns its row of the table; none for a method that samples nothing.
    pub fn spec(self) -> Option<&'static MethodSpec> {
        METHODS.get(self as usize)
    }

    /// True for the methods that sample responses and score them.
    pub fn has_rollout(self) -> bool {
        self.spec().is_some()
    }

    /// True for the methods that learn from pairs of a chosen and a rejected answer.
    pub const fn has_pairs(self) -> bool {
        matches!(self, Method::Dpo | Method::RewardModel)
    }

    /// True for the methods whose advantage compares the samples of one prompt.
    pub fn compares_group(self) -> bool {
        self.spec().is_some_and(|spec| spec.shaping != GroupShaping::None)
    }
}

impl PolicyLossKind {
    /// Returns the loss with the clips of the method that introduced it.
    pub const fn loss(self) -> PolicyLoss {
        let method = match self {
            PolicyLossKind::Ppo => Method::Ppo,
            PolicyLossKind::Gspo => Method::Gspo,
            PolicyLossKind::Cispo => Method::Cispo,
            PolicyLossKind::Sapo => Method::Sapo,
            PolicyLossKind::Reinforce => Method::Reinforce,
        };
        METHODS[method as usize].loss
    }
}

impl PolicyLoss {
    /// The same loss with other clips; `None` keeps the default. SAPO and REINFORCE have none.
    pub fn with_clips(self, low: Option<f64>, high: Option<f64>) -> PolicyLoss {
        let pick = |a: f64, b: f64| (low.unwrap_or(a), high.unwrap_or(b));
        match self {
            PolicyLoss::Ppo { clip_low, clip_high, dual_clip } => {
                let (clip_low, clip_high) = pick(clip_low, clip_high);
                PolicyLoss::Ppo { clip_low, clip_high, dual_clip }
            }
            PolicyLoss::Gspo { clip_low, clip_high } => {
                let (clip_low, clip_high) = pick(clip_low, clip_high);
                PolicyLoss::Gspo { clip_low, clip_high }
            }
            PolicyLoss::Cispo { clip_low, clip_high } => {
                let (clip_low, clip_high) = pick(clip_low, clip_high);
                PolicyLoss::Cispo { clip_low, clip_high }
            }
            PolicyLoss::Sapo { .. } | PolicyLoss::Reinforce => self,
        }
    }

    /// The same loss with a dual clip; only PPO has one.
    pub fn with_dual_clip(self, dual_clip: Option<f64>) -> PolicyLoss {
        match self {
            PolicyLoss::Ppo { clip_low, clip_high, .. } => PolicyLoss::Ppo { clip_low, clip_high, dual_clip },
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_the_order_of_the_enum() {
        for (spec, method) in METHODS.iter().zip(Method::ALL) {
            assert_eq!(spec.method, method);
            assert_eq!(method.spec(), Some(spec));
        }
        for method in [Method::Sft, Method::Dpo, Method::RewardModel] {
            assert_eq!(method.spec(), None);
        }
    }

    #[test]
    fn names_are_those_of_serde() {
        for method in Method::ALL {
            assert_eq!(serde_json::to_value(method).expect("a unit variant"), method.name());
        }
    }

    #[test]
    fn a_loss_by_name_is_that_of_its_method() {
        for kind in PolicyLossKind::ALL {
            assert_eq!(kind.loss().kind(), kind);
        }
    }

    #[test]
    fn clips_of_the_run_file_replace_defaults() {
        let dapo = PolicyLossKind::Ppo.loss().with_clips(None, Some(0.28)).with_dual_clip(Some(3.0));
        assert_eq!(dapo, PolicyLoss::Ppo { clip_low: 0.2, clip_high: 0.28, dual_clip: Some(3.0) });
        let sapo = PolicyLossKind::Sapo.loss();
        assert_eq!(sapo.with_clips(Some(0.1), None), sapo);
    }
}
