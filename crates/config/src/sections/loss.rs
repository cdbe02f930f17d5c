//! `[loss]` and `[critic]`.

use crate::values::{DynamicSampling, KlIn, LossType};
use plimsoll_algo::advantage::{Advantage, MaskHole, Whiten};
use plimsoll_algo::aggregation::AggregationKind;
use plimsoll_algo::correction::CorrectionKind;
use plimsoll_algo::kl::KlEstimator;
use plimsoll_algo::policy_loss::PolicyLossKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// From rewards to a loss. What a method sets is absent in a run file and filled in by `load`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Loss {
    /// Loss of a token. By method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyLossKind>,
    /// Lower clip of the ratio: 1 - clip_low (for `cispo` absolute). By policy loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_low: Option<f64>,
    /// Upper clip of the ratio: 1 + clip_high (for `cispo` absolute). By policy loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_high: Option<f64>,
    /// Bound on the loss of negative advantages; above 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dual_clip: Option<f64>,
    /// Coefficient of the KL term; 0 loads no reference model.
    pub kl_coef: f64,
    /// Estimator of the KL term.
    pub kl_estimator: KlEstimator,
    /// Where the KL term goes.
    pub kl_in: KlIn,
    /// In the loss: the gradient min(ratio, 10) d instead of the estimator's own, which is biased.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub kl_unbiased: bool,
    /// KL that the adaptive coefficient aims at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kl_target: Option<f64>,
    /// Samples over which the adaptive coefficient moves [10000].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kl_horizon: Option<f64>,
    /// Coefficient of the entropy bonus.
    pub entropy_coef: f64,
    /// Coefficient of the loss that keeps experts equally loaded, in models that have some; it is per sequence.
    #[serde(skip_serializing_if = "is_zero")]
    pub balance_coef: f64,
    /// How token losses become one number. By method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregation: Option<AggregationKind>,
    /// Baseline of a group. By method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advantage: Option<Advantage>,
    /// Added to the group's standard deviation.
    pub group_norm_eps: f64,
    /// Whitening over the step. By method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whiten: Option<Whiten>,
    /// Discount; may differ from 1 only with `reinforce` and `ppo`.
    pub gamma: f64,
    /// GAE's lambda.
    #[serde(rename = "lambda")]
    pub lambda: f64,
    /// What advantages do at tokens that are not trained.
    pub mask_hole: MaskHole,
    /// Responses that the length limit cut do not train; they count in their group's mean as they are.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mask_truncated: bool,
    /// Tokens before `max_new_tokens` from which a response costs reward.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlong_buffer: Option<u32>,
    /// What the longest response costs [1.0].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlong_factor: Option<f64>,
    /// `true` keeps only groups whose scores differ, `[low, high]` those whose mean score lies strictly between; the others
    /// are replaced by groups of further prompts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dynamic_sampling: Option<DynamicSampling>,
    /// Rounds of further prompts at most, before a step trains on the groups that there are [10].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dynamic_sampling_retries: Option<u32>,
    /// Weight of what an older policy version sampled. Without `rollout.policy_lag` every weight is exactly 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correction: Option<CorrectionKind>,
    /// Band of that weight [[0.5, 5.0]].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correction_band: Option<[f64; 2]>,
    /// DPO's beta.
    pub dpo_beta: f64,
    /// The loss of `dpo`.
    pub loss_type: LossType,
    /// Share of labels that `dpo` takes as wrong (cDPO).
    pub label_smoothing: f64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde asks.
fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

impl Default for Loss {
    fn default() -> Loss {
        Loss {
            policy: None,
            clip_low: None,
            clip_high: None,
            dual_clip: None,
            kl_coef: 0.0,
            kl_estimator: KlEstimator::K3,
            kl_in: KlIn::Loss,
            kl_unbiased: false,
            kl_target: None,
            kl_horizon: None,
            entropy_coef: 0.0,
            balance_coef: 0.0,
            aggregation: None,
            advantage: None,
            group_norm_eps: 1e-4,
            whiten: None,
            gamma: 1.0,
            lambda: 1.0,
            mask_hole: MaskHole::Skip,
            mask_truncated: false,
            overlong_buffer: None,
            overlong_factor: None,
            dynamic_sampling: None,
            dynamic_sampling_retries: None,
            correction: None,
            correction_band: None,
            dpo_beta: 0.1,
            loss_type: LossType::Sigmoid,
            label_smoothing: 0.0,
        }
    }
}

/// The critic of `ppo`. Its dtypes, betas, weight decay, gradient clip and schedule are those of `[train]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Critic {
    /// Where its body starts from: `actor` for a copy of the actor, or a model with the same tokenizer.
    pub model: String,
    /// Its learning rate after warm-up [`train.learning_rate`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// Its updates a rollout, each over an equal part of the sequences; as many as the actor's, over the same parts, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updates_per_rollout: Option<u32>,
    /// Steps at the start in which only it learns [0].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_steps: Option<u32>,
    /// Clip of a value's move from what it was at the rollout; 0 never clips [0.2].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_clip: Option<f64>,
    /// Factor of the value loss of an environment policy, whose actor and critic have one optimizer [0.5].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_coef: Option<f64>,
}

impl Default for Critic {
    fn default() -> Critic {
        let model = "actor".into();
        Critic {
            model,
            learning_rate: None,
            updates_per_rollout: None,
            warmup_steps: None,
            value_clip: None,
            value_coef: None,
        }
    }
}
