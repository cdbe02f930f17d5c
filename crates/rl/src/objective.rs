//! What a method optimises, resolved from the run file: how rewards become advantages and log-probs a loss.

use crate::runfile::{Advantage, Aggregation as RunAggregation, KlIn, RunFile, Whiten as RunWhiten};
use plimsoll_algo::advantage::{Gae, MaskHole, Whiten};
use plimsoll_algo::aggregation::{Aggregation, AggregationKind};
use plimsoll_algo::kl::{KlController, KlEstimator};
use plimsoll_algo::method::Method;
use plimsoll_algo::policy_loss::PolicyLoss;
use plimsoll_algo::shaping::{Overlong, Shaping};
use plimsoll_base::Result;

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
    /// GAE over a critic's values; returns without one.
    pub gae: Option<Gae>,
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
            Some(baseline) => baseline.shaping(loss.group_norm_eps),
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
            gae: (loss.advantage == Some(Advantage::Gae)).then_some(Gae {
                gamma: loss.gamma,
                lambda: loss.lambda,
                mask_hole: MaskHole::Skip,
            }),
            whiten: loss.whiten.map_or(method.whiten, RunWhiten::kind),
            loss: method.loss.with_clips(loss.clip_low, loss.clip_high).with_dual_clip(loss.dual_clip),
            aggregation: loss.aggregation.map_or(method.aggregation, RunAggregation::kind),
            length_norm: max_new_tokens as f64,
            kl: kl_term(run),
            entropy_coef: loss.entropy_coef,
        })
    }

    /// The coefficient of an adaptive KL controller, which a checkpoint carries.
    pub fn adaptive_kl_coef(&self) -> Option<f64> {
        match self.kl?.controller {
            KlController::Adaptive { coef, .. } => Some(coef),
            KlController::Fixed { .. } => None,
        }
    }

    /// Puts an adaptive controller where a checkpoint left it.
    pub fn set_kl_coef(&mut self, at: f64) {
        if let Some(KlTerm { controller: KlController::Adaptive { coef, .. }, .. }) = &mut self.kl {
            *coef = at;
        }
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
    let coef = loss.kl_coef;
    let controller = match loss.kl_target {
        None => KlController::Fixed { coef },
        Some(target) => KlController::Adaptive { coef, target, horizon: loss.kl_horizon.unwrap_or(10_000.0) },
    };
    Some(KlTerm { estimator: loss.kl_estimator.kind(), in_reward: loss.kl_in == KlIn::Reward, controller })
}
