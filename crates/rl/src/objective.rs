//! What a method optimises, resolved from the run file: how rewards become advantages and log-probs a loss.

use crate::runfile::{
    Advantage, Aggregation as RunAggregation, KlEstimator as RunKl, KlIn, RunFile, Whiten as RunWhiten,
};
use plimsoll_algo::advantage::Whiten;
use plimsoll_algo::aggregation::{Aggregation, AggregationKind};
use plimsoll_algo::kl::{KlController, KlEstimator};
use plimsoll_algo::method::Method;
use plimsoll_algo::policy_loss::PolicyLoss;
use plimsoll_algo::shaping::{GroupShaping, Overlong, Shaping};
use plimsoll_base::{Error, Result};

/// Rewards outside this range are cut, after shaping (algorithms: "Sample reward to token reward", step 4).
const REWARD_CLIP: [f32; 2] = [-10.0, 10.0];

/// The KL term.
#[derive(Clone, Copy, Debug)]
pub struct KlTerm {
    /// Which estimator.
    pub estimator: KlEstimator,
    /// True for a term of the token reward, false for a term of the loss.
    pub in_reward: bool,
    /// The coefficient, fixed or adaptive.
    pub controller: KlController,
}

/// What a method optimises.
#[derive(Clone, Copy, Debug)]
pub struct Objective {
    /// Sample rewards to shaped rewards.
    pub shaping: Shaping,
    /// Discount of token rewards.
    pub gamma: f64,
    /// Whitening over the step.
    pub whiten: Whiten,
    /// The loss of a token.
    pub loss: PolicyLoss,
    /// How token losses become one number.
    pub aggregation: AggregationKind,
    /// The constant length of `seq_mean_token_sum_norm`.
    pub length_norm: f64,
    /// The KL term, where its coefficient is not 0.
    pub kl: Option<KlTerm>,
    /// Coefficient of the entropy bonus.
    pub entropy_coef: f64,
}

impl Objective {
    /// The objective of a run file whose method samples responses.
    pub fn new(run: &RunFile) -> Result<Objective> {
        let method = Method::parse(run.method.name())?.spec();
        let loss = &run.loss;
        let group = match loss.advantage {
            None => method.shaping,
            Some(Advantage::GroupNorm) => GroupShaping::GroupNorm { eps: loss.group_norm_eps },
            Some(Advantage::MeanBaseline) => GroupShaping::MeanBaseline,
            Some(Advantage::Rloo) => GroupShaping::Rloo,
            Some(Advantage::None) => GroupShaping::None,
            Some(Advantage::Gae) => {
                return Err(Error::usage(
                    "not-built",
                    "loss.advantage = \"gae\" needs a critic, which is not built yet",
                )
                .hint("set loss.advantage = \"group_norm\" or another group baseline"));
            }
        };
        let max_new_tokens = run.rollout.max_new_tokens as usize;
        let overlong = loss.overlong_buffer.map(|buffer| Overlong {
            max_new_tokens,
            buffer: buffer as usize,
            factor: loss.overlong_factor.unwrap_or(1.0),
        });
        Ok(Objective {
            shaping: Shaping { overlong, group, clip: REWARD_CLIP },
            gamma: loss.gamma,
            whiten: loss.whiten.map_or(method.whiten, whiten),
            loss: method.loss.with_clips(loss.clip_low, loss.clip_high).with_dual_clip(loss.dual_clip),
            aggregation: loss.aggregation.map_or(method.aggregation, aggregation),
            length_norm: max_new_tokens as f64,
            kl: kl_term(run),
            entropy_coef: loss.entropy_coef,
        })
    }

    /// The aggregation of an update over so many tokens and sequences.
    pub fn aggregation_of(&self, total_tokens: f64, total_sequences: f64) -> Aggregation {
        Aggregation { kind: self.aggregation, total_tokens, total_sequences, length_norm: self.length_norm }
    }
}

fn kl_term(run: &RunFile) -> Option<KlTerm> {
    let loss = &run.loss;
    if loss.kl_coef == 0.0 {
        return None;
    }
    let estimator = match loss.kl_estimator {
        RunKl::K1 => KlEstimator::K1,
        RunKl::K2 => KlEstimator::K2,
        RunKl::K3 => KlEstimator::K3,
    };
    let coef = loss.kl_coef;
    let controller = match loss.kl_target {
        None => KlController::Fixed { coef },
        Some(target) => KlController::Adaptive { coef, target, horizon: loss.kl_horizon.unwrap_or(10_000.0) },
    };
    Some(KlTerm { estimator, in_reward: loss.kl_in == KlIn::Reward, controller })
}

fn whiten(how: RunWhiten) -> Whiten {
    match how {
        RunWhiten::Off => Whiten::Off,
        RunWhiten::Full => Whiten::Full,
        RunWhiten::NoStd => Whiten::NoStd,
    }
}

fn aggregation(how: RunAggregation) -> AggregationKind {
    match how {
        RunAggregation::TokenMean => AggregationKind::TokenMean,
        RunAggregation::SeqMeanTokenMean => AggregationKind::SeqMeanTokenMean,
        RunAggregation::SeqMeanTokenSum => AggregationKind::SeqMeanTokenSum,
        RunAggregation::SeqMeanTokenSumNorm => AggregationKind::SeqMeanTokenSumNorm,
        RunAggregation::TokenSum => AggregationKind::TokenSum,
    }
}
