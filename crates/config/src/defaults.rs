//! Defaults that depend on the method, from the method table of `algo`, and our names for its choices.

use super::provenance::{Origin, Provenance};
use super::sections::RunFile;
use super::values::{
    Advantage, Aggregation, Correction, DynamicSampling, KlEstimator, MaskHole, Method, PolicyLoss, Whiten,
};
use plimsoll_algo::advantage::{MaskHole as AlgoMaskHole, Whiten as AlgoWhiten};
use plimsoll_algo::aggregation::AggregationKind;
use plimsoll_algo::correction::{Correction as AlgoCorrection, SequenceRatio};
use plimsoll_algo::kl::KlEstimator as AlgoKl;
use plimsoll_algo::method as algo;
use plimsoll_algo::policy_loss::PolicyLoss as AlgoPolicyLoss;
use plimsoll_algo::shaping::{GroupFilter, GroupShaping};

/// The value clip of TRL and Open-Reasoner-Zero.
const VALUE_CLIP: f64 = 0.2;
/// verl's DAPO recipe makes ten batches at most, of which the first is no retry.
const DYNAMIC_SAMPLING_RETRIES: u32 = 10;
/// OpenRLHF's band.
const CORRECTION_BAND: [f64; 2] = [0.5, 5.0];

impl Method {
    /// The row of the method table; none for methods without a rollout.
    pub const fn algo(self) -> Option<algo::Method> {
        match self {
            Method::Grpo => Some(algo::Method::Grpo),
            Method::DrGrpo => Some(algo::Method::DrGrpo),
            Method::Rloo => Some(algo::Method::Rloo),
            Method::Reinforce => Some(algo::Method::Reinforce),
            Method::ReinforceBaseline => Some(algo::Method::ReinforceBaseline),
            Method::Gspo => Some(algo::Method::Gspo),
            Method::Cispo => Some(algo::Method::Cispo),
            Method::Sapo => Some(algo::Method::Sapo),
            Method::Ppo => Some(algo::Method::Ppo),
            Method::Sft | Method::Dpo | Method::RewardModel => None,
        }
    }
}

impl Aggregation {
    /// The same choice in `algo`.
    pub const fn kind(self) -> AggregationKind {
        match self {
            Aggregation::TokenMean => AggregationKind::TokenMean,
            Aggregation::SeqMeanTokenMean => AggregationKind::SeqMeanTokenMean,
            Aggregation::SeqMeanTokenSum => AggregationKind::SeqMeanTokenSum,
            Aggregation::SeqMeanTokenSumNorm => AggregationKind::SeqMeanTokenSumNorm,
            Aggregation::TokenSum => AggregationKind::TokenSum,
        }
    }

    const fn of(kind: AggregationKind) -> Aggregation {
        match kind {
            AggregationKind::TokenMean => Aggregation::TokenMean,
            AggregationKind::SeqMeanTokenMean => Aggregation::SeqMeanTokenMean,
            AggregationKind::SeqMeanTokenSum => Aggregation::SeqMeanTokenSum,
            AggregationKind::SeqMeanTokenSumNorm => Aggregation::SeqMeanTokenSumNorm,
            AggregationKind::TokenSum => Aggregation::TokenSum,
        }
    }
}

impl PolicyLoss {
    /// The same loss in `algo`, with the clips of the method that brought it.
    pub fn loss(self) -> AlgoPolicyLoss {
        let method = match self {
            PolicyLoss::Ppo => algo::Method::Ppo,
            PolicyLoss::Gspo => algo::Method::Gspo,
            PolicyLoss::Cispo => algo::Method::Cispo,
            PolicyLoss::Sapo => algo::Method::Sapo,
            PolicyLoss::Reinforce => algo::Method::Reinforce,
        };
        method.spec().loss
    }

    /// True if its ratio is clipped.
    pub const fn clips(self) -> bool {
        !matches!(self, PolicyLoss::Sapo | PolicyLoss::Reinforce)
    }

    const fn of(loss: &AlgoPolicyLoss) -> PolicyLoss {
        match loss {
            AlgoPolicyLoss::Ppo { .. } => PolicyLoss::Ppo,
            AlgoPolicyLoss::Gspo { .. } => PolicyLoss::Gspo,
            AlgoPolicyLoss::Cispo { .. } => PolicyLoss::Cispo,
            AlgoPolicyLoss::Sapo { .. } => PolicyLoss::Sapo,
            AlgoPolicyLoss::Reinforce => PolicyLoss::Reinforce,
        }
    }
}

impl Correction {
    /// The same correction in `algo`.
    pub const fn kind(self, [low, high]: [f64; 2]) -> AlgoCorrection {
        let statistic = match self {
            Correction::Tis => return AlgoCorrection::Truncate { low, high },
            Correction::IcePop => return AlgoCorrection::Drop { low, high },
            Correction::SequenceMask => SequenceRatio::GeometricMean,
            Correction::SequenceMaskSum => SequenceRatio::Product,
        };
        AlgoCorrection::DropSequence { statistic, low, high }
    }
}

impl DynamicSampling {
    /// The same choice in `algo`; none keeps every group.
    pub const fn filter(self) -> Option<GroupFilter> {
        match self {
            DynamicSampling::Off => None,
            DynamicSampling::Mixed => Some(GroupFilter::Mixed),
            DynamicSampling::Mean([low, high]) => Some(GroupFilter::Mean { low, high }),
        }
    }
}

impl MaskHole {
    /// The same choice in `algo`.
    pub const fn kind(self) -> AlgoMaskHole {
        match self {
            MaskHole::Skip => AlgoMaskHole::Skip,
            MaskHole::ZeroValue => AlgoMaskHole::ZeroValue,
        }
    }
}

impl KlEstimator {
    /// The same choice in `algo`.
    pub const fn kind(self) -> AlgoKl {
        match self {
            KlEstimator::K1 => AlgoKl::K1,
            KlEstimator::K2 => AlgoKl::K2,
            KlEstimator::K3 => AlgoKl::K3,
        }
    }
}

impl Whiten {
    /// The same choice in `algo`.
    pub const fn kind(self) -> AlgoWhiten {
        match self {
            Whiten::Off => AlgoWhiten::Off,
            Whiten::Full => AlgoWhiten::Full,
            Whiten::NoStd => AlgoWhiten::NoStd,
        }
    }

    const fn of(kind: AlgoWhiten) -> Whiten {
        match kind {
            AlgoWhiten::Off => Whiten::Off,
            AlgoWhiten::Full => Whiten::Full,
            AlgoWhiten::NoStd => Whiten::NoStd,
        }
    }
}

impl Advantage {
    /// The same baseline in `algo`; GAE has none.
    pub const fn shaping(self, eps: f64) -> GroupShaping {
        match self {
            Advantage::GroupNorm => GroupShaping::GroupNorm { eps },
            Advantage::MeanBaseline => GroupShaping::MeanBaseline,
            Advantage::Rloo => GroupShaping::Rloo,
            Advantage::None | Advantage::Gae => GroupShaping::None,
        }
    }

    /// True if it compares the samples of one prompt.
    pub const fn compares_group(self) -> bool {
        matches!(self, Advantage::GroupNorm | Advantage::MeanBaseline | Advantage::Rloo)
    }
}

/// Fills what the method sets and the run file does not.
pub(super) fn fill(run: &mut RunFile, provenance: &mut Provenance) {
    let Some(method) = run.method.algo() else { return };
    let spec = method.spec();
    let mut filled: Vec<&str> = Vec::new();
    let mut note = |was_none: bool, key| {
        if was_none {
            filled.push(key);
        }
    };
    note(run.loss.policy.is_none(), "loss.policy");
    let policy = *run.loss.policy.get_or_insert(PolicyLoss::of(&spec.loss));
    if let AlgoPolicyLoss::Ppo { clip_low, clip_high, .. }
    | AlgoPolicyLoss::Gspo { clip_low, clip_high }
    | AlgoPolicyLoss::Cispo { clip_low, clip_high } = policy.loss()
    {
        note(run.loss.clip_low.is_none(), "loss.clip_low");
        note(run.loss.clip_high.is_none(), "loss.clip_high");
        run.loss.clip_low.get_or_insert(clip_low);
        run.loss.clip_high.get_or_insert(clip_high);
    }
    if run.loss.dynamic_sampling.and_then(DynamicSampling::filter).is_some() {
        run.loss.dynamic_sampling_retries.get_or_insert(DYNAMIC_SAMPLING_RETRIES);
    }
    if run.loss.correction.is_some() {
        run.loss.correction_band.get_or_insert(CORRECTION_BAND);
    }
    note(run.loss.aggregation.is_none(), "loss.aggregation");
    note(run.loss.advantage.is_none(), "loss.advantage");
    note(run.loss.whiten.is_none(), "loss.whiten");
    run.loss.aggregation.get_or_insert(Aggregation::of(spec.aggregation));
    run.loss.whiten.get_or_insert(Whiten::of(spec.whiten));
    run.loss.advantage.get_or_insert(match (spec.needs_critic, spec.shaping) {
        (true, _) => Advantage::Gae,
        (false, GroupShaping::GroupNorm { .. }) => Advantage::GroupNorm,
        (false, GroupShaping::MeanBaseline) => Advantage::MeanBaseline,
        (false, GroupShaping::Rloo) => Advantage::Rloo,
        (false, GroupShaping::None) => Advantage::None,
    });
    if spec.needs_critic {
        let learning_rate = run.train.learning_rate;
        let critic = run.critic.get_or_insert_default();
        note(critic.learning_rate.is_none(), "critic.learning_rate");
        note(critic.value_clip.is_none(), "critic.value_clip");
        note(critic.warmup_steps.is_none(), "critic.warmup_steps");
        critic.learning_rate.get_or_insert(learning_rate);
        critic.value_clip.get_or_insert(VALUE_CLIP);
        critic.warmup_steps.get_or_insert(0);
    }
    for key in filled {
        provenance.origins.insert(key.to_string(), Origin::Method);
    }
}
