//! The objective of a method, resolved from the run file: how rewards become advantages and log-probs a loss.

use crate::{DynamicSampling, KlIn, RunFile};
use plimsoll_algo::advantage::{Advantage, Gae, Whiten};
use plimsoll_algo::aggregation::{Aggregation, AggregationKind};
use plimsoll_algo::correction::Correction;
use plimsoll_algo::covariance::Covariance;
use plimsoll_algo::kl::{KlController, KlEstimator};
use plimsoll_algo::policy_loss::PolicyLoss;
use plimsoll_algo::shaping::{GroupFilter, Overlong, Shaping};
use plimsoll_algo::turns::TurnCredit;

/// Rewards are clipped to this range after shaping (`docs/methods.md`).
const REWARD_CLIP: [f32; 2] = [-10.0, 10.0];

#[derive(Clone, Copy, Debug)]
pub struct KlTerm {
    pub estimator: KlEstimator,
    /// True for a term of the token reward, false for a term of the loss.
    pub in_reward: bool,
    /// In the loss: the unbiased gradient instead of the estimator's own.
    pub unbiased: bool,
    /// The coefficient, fixed or adaptive.
    pub controller: KlController,
}

#[derive(Clone, Copy, Debug)]
pub struct Objective {
    /// The groups that are kept; none keeps all.
    pub filter: Option<GroupFilter>,
    /// Turns sample rewards into shaped rewards.
    pub shaping: Shaping,
    /// How the steps of a response are compared; whole responses are if none.
    pub steps: Option<TurnCredit>,
    pub gamma: f64,
    /// GAE over a critic's values; returns without one.
    pub gae: Option<Gae>,
    pub whiten: Whiten,
    pub loss: PolicyLoss,
    /// Weights of samples from another policy version.
    pub correction: Option<Correction>,
    /// The treatment of tokens of high covariance.
    pub covariance: Option<Covariance>,
    /// How token losses become one number.
    pub aggregation: AggregationKind,
    /// The constant length of `seq_mean_token_sum_norm`.
    pub length_norm: f64,
    pub kl: Option<KlTerm>,
    pub entropy_coef: f64,
}

impl Objective {
    /// Resolves the objective of a run file; none if its method samples nothing.
    pub fn new(run: &RunFile) -> Option<Objective> {
        let method = run.method.spec().sampling?;
        let loss = &run.loss;
        let group = match loss.advantage {
            None => method.shaping,
            Some(_) => loss.baseline().shaping(loss.group_norm_eps),
        };
        let max_new_tokens = run.rollout.max_new_tokens as usize;
        let turns = run.environment.as_ref().map_or(1, |environment| environment.turns_max.max(1) as usize);
        let overlong = loss.overlong_buffer.map(|buffer| Overlong {
            max_new_tokens,
            buffer: buffer as usize,
            factor: loss.overlong_factor.unwrap_or(1.0),
        });
        let policy = method.loss_of(loss.policy.unwrap_or(method.loss.kind()));
        Some(Objective {
            filter: loss.dynamic_sampling.and_then(DynamicSampling::filter),
            shaping: Shaping { overlong, group, clip: REWARD_CLIP },
            steps: loss.step_credit,
            gamma: loss.gamma,
            gae: (loss.baseline() == Advantage::Gae).then_some(Gae {
                gamma: loss.gamma,
                lambda: loss.lambda,
                mask_hole: loss.mask_hole,
            }),
            whiten: loss.whiten.unwrap_or(method.whiten),
            loss: policy.with_clips(loss.clip_low, loss.clip_high).with_dual_clip(loss.dual_clip),
            correction: loss.correction.zip(loss.correction_band).map(|(how, band)| how.within(band)),
            covariance: loss.covariance(),
            aggregation: loss.aggregation.unwrap_or(method.aggregation),
            // For an episode, all its turns.
            length_norm: (max_new_tokens * turns) as f64,
            kl: kl_term(run),
            entropy_coef: loss.entropy_coef,
        })
    }

    /// Returns the coefficient of an adaptive KL controller, which a checkpoint stores.
    pub fn adaptive_kl_coef(&self) -> Option<f64> {
        match self.kl?.controller {
            KlController::Adaptive { coef, .. } => Some(coef),
            KlController::Fixed { .. } => None,
        }
    }

    /// Restores the coefficient of an adaptive controller.
    pub fn set_kl_coef(&mut self, at: f64) {
        if let Some(KlTerm { controller: KlController::Adaptive { coef, .. }, .. }) = &mut self.kl {
            *coef = at;
        }
    }

    /// Returns the aggregation of an update over `total_tokens` and `total_sequences`.
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
    Some(KlTerm {
        estimator: loss.kl_estimator,
        in_reward: loss.kl_in == KlIn::Reward,
        unbiased: loss.kl_unbiased,
        controller,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_algo::advantage::MaskHole;
    use plimsoll_algo::correction::SequenceRatio;

    fn objective(method: &str, loss: &str) -> Objective {
        let text = format!(
            "method = \"{method}\"\nmodel = \"m\"\n[loss]\n{loss}\n[train]\nsteps = 1\nlearning_rate = 0.1\n"
        );
        Objective::new(&toml::from_str(&text).expect("a run file")).expect("a method that samples")
    }

    #[test]
    fn what_the_run_file_says_is_what_is_optimised() {
        let gae = |loss: &str| objective("ppo", &format!("advantage = \"gae\"\n{loss}")).gae.expect("gae");
        assert_eq!(gae("").mask_hole, MaskHole::Skip);
        assert_eq!(gae("mask_hole = \"zero_value\"\nlambda = 0.5").mask_hole, MaskHole::ZeroValue);
        assert_eq!(gae("lambda = 0.5").lambda, 0.5);
        let band = "correction_band = [0.25, 3.0]";
        let (low, high) = (0.25, 3.0);
        for (name, expect) in [
            ("tis", Correction::Truncate { low, high }),
            ("icepop", Correction::Drop { low, high }),
            (
                "sequence_mask",
                Correction::DropSequence { statistic: SequenceRatio::GeometricMean, low, high },
            ),
            ("sequence_mask_sum", Correction::DropSequence { statistic: SequenceRatio::Product, low, high }),
        ] {
            assert_eq!(
                objective("grpo", &format!("correction = \"{name}\"\n{band}")).correction,
                Some(expect)
            );
        }
        for (value, expect) in [
            ("false", None),
            ("true", Some(GroupFilter::Mixed)),
            ("[0.0, 1.0]", Some(GroupFilter::Mean { low: 0.0, high: 1.0 })),
            ("[0, 1]", Some(GroupFilter::Mean { low: 0.0, high: 1.0 })),
        ] {
            assert_eq!(objective("grpo", &format!("dynamic_sampling = {value}")).filter, expect, "{value}");
        }
        let cispo = objective("rloo", "policy = \"cispo\"\nclip_high = 3.0").loss;
        assert_eq!(cispo, PolicyLoss::Cispo { clip_low: 0.0, clip_high: 3.0 });
        let ppo = objective("gspo", "policy = \"ppo\"\ndual_clip = 3.0").loss;
        assert_eq!(ppo, PolicyLoss::Ppo { clip_low: 0.2, clip_high: 0.2, dual_clip: Some(3.0) });
        let kl = objective("grpo", "kl_coef = 0.1\nkl_unbiased = true\nkl_target = 0.5\nkl_horizon = 9.0").kl;
        let kl = kl.expect("a coefficient above 0");
        assert!(kl.unbiased && !kl.in_reward);
        assert_eq!(kl.controller, KlController::Adaptive { coef: 0.1, target: 0.5, horizon: 9.0 });
    }
}
