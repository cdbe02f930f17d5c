//! The table of methods: what each needs of a run, and its defaults for rewards, advantages and tokens if it samples.

use crate::advantage::Whiten;
use crate::aggregation::AggregationKind;
use crate::covariance::CovarianceKind;
use crate::policy_loss::{PolicyLoss, PolicyLossKind};
use crate::shaping::GroupShaping;

plimsoll_base::names! {
    /// The training method of a run.
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
        /// Sequence ratios whose losses grow with their lengths (LUSPO, TRL 1.16's `luspo`).
        Luspo = "luspo",
        /// The geometric mean of clipped token ratios (arXiv 2507.20673).
        Gmpo = "gmpo",
        /// A trust region by total variation instead of ratios (arXiv 2602.04879).
        DppoTv = "dppo_tv",
        /// A trust region by binary divergence (arXiv 2602.04879).
        DppoKl = "dppo_kl",
        /// A smooth weight of whole sequences (VESPO, TRL 1.16's `vespo`).
        Vespo = "vespo",
        /// A baseline that weighs samples by their lengths (arXiv 2505.23585).
        Opo = "opo",
        /// A plain policy gradient, larger where fewer samples have a reward (arXiv 2504.02546).
        Gpg = "gpg",
        /// Only the best sample of a group learns, by its lead (verl 0.9's `grpo_passk`).
        PassK = "pass_k",
        /// Each reward compared within its group by itself (arXiv 2601.05242).
        Gdpo = "gdpo",
        /// Returns less the reward of the greedy answer (ReMax).
        Remax = "remax",
        /// A baseline of each token, where samples count by how much their gradients vary (verl 0.9's
        /// `optimal_token_baseline`).
        OptimalToken = "optimal_token",
        /// GRPO in which some tokens of high covariance do not learn (arXiv 2505.22617).
        ClipCov = "clip_cov",
        /// GRPO that holds the tokens of the highest covariance instead of clipping ratios (arXiv 2505.22617).
        KlCov = "kl_cov",
        /// PPO with a critic (arXiv 1707.06347).
        Ppo = "ppo",
        /// A teacher's log-probs of what the student samples (MiniLLM arXiv 2306.08543).
        Distill = "distill",
        /// Supervised: no rollout, no reward.
        Sft = "sft",
        /// Preferences without a reward model (arXiv 2305.18290).
        Dpo = "dpo",
        /// Preferences by mean log-probs and a margin, without a reference (arXiv 2405.14734).
        Simpo = "simpo",
        /// Preferences and the likelihood of the chosen, without a reference (arXiv 2401.08417).
        Cpo = "cpo",
        /// Preferences by odds next to supervised learning, without a reference (arXiv 2403.07691).
        Orpo = "orpo",
        /// Single answers with labels, compared with a KL of the batch (KTO).
        Kto = "kto",
        /// A reward model from preferences.
        RewardModel = "reward_model",
    }
}

/// How shaped rewards become advantages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdvantageKind {
    /// GAE over the critic's values.
    Gae,
    /// Discounted returns; gamma may differ from 1 if `gamma_free`.
    Returns {
        /// False: gamma is forced to 1.
        gamma_free: bool,
    },
}

impl AdvantageKind {
    /// True if the discount may differ from 1.
    pub const fn discounts(self) -> bool {
        matches!(self, AdvantageKind::Gae | AdvantageKind::Returns { gamma_free: true })
    }
}

/// The data of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LearnsFrom {
    /// Responses that the policy samples, and their rewards.
    Samples,
    /// Completions of the data.
    Completions,
    /// Pairs of a chosen and a rejected answer.
    Pairs,
    /// Single answers, each desirable or not.
    Labels,
}

impl LearnsFrom {
    /// True for answers that were judged, in pairs or by labels.
    pub const fn is_judged(self) -> bool {
        matches!(self, LearnsFrom::Pairs | LearnsFrom::Labels)
    }
}

/// When a run keeps its initial weights as a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// Never.
    No,
    /// With a KL coefficient other than 0.
    WithKl,
    /// Always.
    Yes,
}

/// Holds what a method needs of a run: data, roles and heads follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The data of a step.
    pub learns_from: LearnsFrom,
    /// True if a critic is trained next to the actor.
    pub critic: bool,
    /// True if a teacher scores the samples.
    pub teacher: bool,
    /// When there is a reference.
    pub reference: Reference,
    /// True if the trained model outputs a score and no tokens.
    pub scores: bool,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MethodSpec {
    /// The method.
    pub method: Method,
    /// Data, roles and heads that it needs.
    pub needs: Needs,
    /// How it learns from samples; `None` if it does not sample.
    pub sampling: Option<SamplingSpec>,
}

/// The defaults of a method that samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingSpec {
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
    /// The usual restraint on tokens of high covariance.
    pub covariance: Option<CovarianceKind>,
}

impl SamplingSpec {
    /// Returns the loss of this kind with its default clips: the row's own, or those of the method that introduced it.
    pub fn loss_of(&self, kind: PolicyLossKind) -> PolicyLoss {
        if self.loss.kind() == kind { self.loss } else { kind.loss() }
    }
}

const RETURNS: AdvantageKind = AdvantageKind::Returns { gamma_free: false };
const GROUP_NORM: GroupShaping = GroupShaping::GroupNorm { eps: 1e-4 };
const PPO_CLIP: PolicyLoss = PolicyLoss::Ppo { clip_low: 0.2, clip_high: 0.2, dual_clip: None };
/// No ratio is as large: log-ratios are cut at 20.
const NEVER: f64 = 1e9;

const GRPO: SamplingSpec = SamplingSpec {
    shaping: GROUP_NORM,
    advantage: RETURNS,
    whiten: Whiten::Off,
    loss: PPO_CLIP,
    aggregation: AggregationKind::TokenMean,
    covariance: None,
};

const SAMPLES: Needs = Needs {
    learns_from: LearnsFrom::Samples,
    critic: false,
    teacher: false,
    reference: Reference::WithKl,
    scores: false,
};
const PAIRS: Needs = Needs { learns_from: LearnsFrom::Pairs, reference: Reference::No, ..SAMPLES };

const fn sampling(method: Method, sampling: SamplingSpec) -> MethodSpec {
    MethodSpec { method, needs: SAMPLES, sampling: Some(sampling) }
}

const fn data(method: Method, needs: Needs) -> MethodSpec {
    MethodSpec { method, needs, sampling: None }
}

/// The table, in the order of `Method`; settings that a row does not name are GRPO's.
pub const METHODS: [MethodSpec; Method::ALL.len()] = [
    sampling(Method::Grpo, GRPO),
    sampling(
        Method::DrGrpo,
        SamplingSpec {
            shaping: GroupShaping::MeanBaseline,
            aggregation: AggregationKind::SeqMeanTokenSumNorm,
            ..GRPO
        },
    ),
    sampling(Method::Rloo, SamplingSpec { shaping: GroupShaping::Rloo, ..GRPO }),
    sampling(
        Method::Reinforce,
        SamplingSpec {
            shaping: GroupShaping::None,
            advantage: AdvantageKind::Returns { gamma_free: true },
            whiten: Whiten::Full,
            loss: PolicyLoss::Reinforce,
            ..GRPO
        },
    ),
    sampling(
        Method::ReinforceBaseline,
        SamplingSpec { shaping: GroupShaping::MeanBaseline, whiten: Whiten::Full, ..GRPO },
    ),
    sampling(
        Method::Gspo,
        SamplingSpec {
            loss: PolicyLoss::Gspo { clip_low: 3e-4, clip_high: 4e-4 },
            aggregation: AggregationKind::SeqMeanTokenMean,
            ..GRPO
        },
    ),
    sampling(
        Method::Cispo,
        SamplingSpec { loss: PolicyLoss::Cispo { clip_low: 0.0, clip_high: 5.0 }, ..GRPO },
    ),
    sampling(
        Method::Sapo,
        SamplingSpec {
            loss: PolicyLoss::Sapo { tau_positive: 1.0, tau_negative: 1.05 },
            aggregation: AggregationKind::SeqMeanTokenMean,
            ..GRPO
        },
    ),
    sampling(
        Method::Luspo,
        SamplingSpec {
            loss: PolicyLoss::Gspo { clip_low: 3e-4, clip_high: 4e-4 },
            aggregation: AggregationKind::SeqMeanTokenSum,
            ..GRPO
        },
    ),
    sampling(
        Method::Gmpo,
        SamplingSpec {
            loss: PolicyLoss::Gmpo { clip_low: 0.4, clip_high: 0.4 },
            aggregation: AggregationKind::SeqMeanTokenMean,
            ..GRPO
        },
    ),
    sampling(
        Method::DppoTv,
        SamplingSpec { loss: PolicyLoss::DppoTv { clip_low: 0.15, clip_high: 0.15 }, ..GRPO },
    ),
    sampling(
        Method::DppoKl,
        SamplingSpec { loss: PolicyLoss::DppoKl { clip_low: 0.05, clip_high: 0.05 }, ..GRPO },
    ),
    sampling(
        Method::Vespo,
        SamplingSpec { loss: PolicyLoss::Vespo { positive: [2.0, 3.0], negative: [3.0, 2.0] }, ..GRPO },
    ),
    sampling(Method::Opo, SamplingSpec { shaping: GroupShaping::LengthWeighted, ..GRPO }),
    sampling(Method::Gpg, SamplingSpec { shaping: GroupShaping::Gpg, loss: PolicyLoss::Reinforce, ..GRPO }),
    sampling(Method::PassK, SamplingSpec { shaping: GroupShaping::Lead { eps: 1e-4 }, ..GRPO }),
    sampling(Method::Gdpo, SamplingSpec { shaping: GroupShaping::Decoupled { eps: 1e-4 }, ..GRPO }),
    sampling(Method::Remax, SamplingSpec { shaping: GroupShaping::Greedy, ..GRPO }),
    sampling(Method::OptimalToken, SamplingSpec { shaping: GroupShaping::OptimalToken, ..GRPO }),
    sampling(Method::ClipCov, SamplingSpec { covariance: Some(CovarianceKind::Clip), ..GRPO }),
    sampling(
        Method::KlCov,
        SamplingSpec {
            loss: PolicyLoss::Ppo { clip_low: 1.0, clip_high: NEVER, dual_clip: None },
            covariance: Some(CovarianceKind::Kl),
            ..GRPO
        },
    ),
    MethodSpec {
        needs: Needs { critic: true, ..SAMPLES },
        ..sampling(
            Method::Ppo,
            SamplingSpec {
                shaping: GroupShaping::None,
                advantage: AdvantageKind::Gae,
                whiten: Whiten::Full,
                ..GRPO
            },
        )
    },
    MethodSpec { needs: Needs { teacher: true, ..SAMPLES }, ..sampling(Method::Distill, GRPO) },
    data(Method::Sft, Needs { learns_from: LearnsFrom::Completions, reference: Reference::No, ..SAMPLES }),
    data(Method::Dpo, Needs { reference: Reference::Yes, ..PAIRS }),
    data(Method::Simpo, PAIRS),
    data(Method::Cpo, PAIRS),
    data(Method::Orpo, PAIRS),
    data(Method::Kto, Needs { learns_from: LearnsFrom::Labels, reference: Reference::Yes, ..SAMPLES }),
    data(Method::RewardModel, Needs { scores: true, ..PAIRS }),
];

impl Method {
    /// Returns its row of the table.
    pub const fn spec(self) -> &'static MethodSpec {
        &METHODS[self as usize]
    }

    /// Returns what the method needs of a run.
    pub const fn needs(self) -> Needs {
        self.spec().needs
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
            PolicyLossKind::Gmpo => Method::Gmpo,
            PolicyLossKind::DppoTv => Method::DppoTv,
            PolicyLossKind::DppoKl => Method::DppoKl,
            PolicyLossKind::Vespo => Method::Vespo,
            PolicyLossKind::Reinforce => Method::Reinforce,
        };
        match METHODS[method as usize].sampling {
            Some(sampling) => sampling.loss,
            None => panic!("these methods sample"),
        }
    }
}

impl PolicyLoss {
    /// Returns its bounds, lower and upper; none of a loss without.
    pub const fn clips(self) -> Option<[f64; 2]> {
        match self {
            PolicyLoss::Ppo { clip_low, clip_high, .. }
            | PolicyLoss::Gspo { clip_low, clip_high }
            | PolicyLoss::Cispo { clip_low, clip_high }
            | PolicyLoss::Gmpo { clip_low, clip_high }
            | PolicyLoss::DppoTv { clip_low, clip_high }
            | PolicyLoss::DppoKl { clip_low, clip_high } => Some([clip_low, clip_high]),
            PolicyLoss::Sapo { .. } | PolicyLoss::Vespo { .. } | PolicyLoss::Reinforce => None,
        }
    }

    /// Returns the loss with other clips, where it has some; `None` keeps the default.
    pub fn with_clips(mut self, low: Option<f64>, high: Option<f64>) -> PolicyLoss {
        if let PolicyLoss::Ppo { clip_low, clip_high, .. }
        | PolicyLoss::Gspo { clip_low, clip_high }
        | PolicyLoss::Cispo { clip_low, clip_high }
        | PolicyLoss::Gmpo { clip_low, clip_high }
        | PolicyLoss::DppoTv { clip_low, clip_high }
        | PolicyLoss::DppoKl { clip_low, clip_high } = &mut self
        {
            *clip_low = low.unwrap_or(*clip_low);
            *clip_high = high.unwrap_or(*clip_high);
        }
        self
    }

    /// Returns the loss with a dual clip; only PPO has one.
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
            assert_eq!(method.spec(), spec);
            assert_eq!(spec.needs.learns_from == LearnsFrom::Samples, spec.sampling.is_some(), "{method}");
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
