//! `[loss]` and `[critic]`.

use crate::estimator::Estimator;
use crate::key::{Becomes, COUNT, FINITE, FREELY, Fact, NOT_NEGATIVE, SHARE, also, such};
use crate::values::{ByteSize, DynamicSampling, KlIn, LossType};
use plimsoll_algo::advantage::{MaskHole, Whiten};
use plimsoll_algo::aggregation::AggregationKind;
use plimsoll_algo::correction::CorrectionKind;
use plimsoll_algo::covariance::CovarianceKind;
use plimsoll_algo::kl::KlEstimator;
use plimsoll_algo::policy_loss::PolicyLossKind;
use plimsoll_algo::turns::TurnCredit;
use plimsoll_base::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

section! {
    /// From rewards to a loss. What a method sets is absent in a run file and filled in by `load`.
    Loss "loss" {
        /// Loss of a token. By method.
        #[serde(skip_serializing_if = "Option::is_none")]
        policy: Option<PolicyLossKind> = None,
        /// Lower clip of the ratio: 1 - clip_low (for `cispo` absolute). By method and policy loss.
        #[serde(skip_serializing_if = "Option::is_none")]
        clip_low: Option<f64> = None => [
            NOT_NEGATIVE, Fact::Also(Becomes::Clips, &["epsilon", "cliprange", "eps_clip"]),
        ],
        /// Upper clip of the ratio: 1 + clip_high (for `cispo` absolute). By method and policy loss.
        #[serde(skip_serializing_if = "Option::is_none")]
        clip_high: Option<f64> = None => [NOT_NEGATIVE],
        /// Bound on the loss of negative advantages; above 1.
        #[serde(skip_serializing_if = "Option::is_none")]
        dual_clip: Option<f64> = None => [
            such("a number above 1, such as 3", |clip| clip.is_finite() && clip > 1.0), also(&["delta"]),
        ],
        /// Coefficient of the KL term; 0 loads no reference model.
        kl_coef: f64 = 0.0 => [NOT_NEGATIVE, also(&["beta", "kl_loss_coef", "init_kl_coef"])],
        /// Estimator of the KL term.
        kl_estimator: KlEstimator = KlEstimator::K3,
        /// Where the KL term goes.
        kl_in: KlIn = KlIn::Loss,
        /// In the loss: the gradient min(ratio, 10) d instead of the estimator's own, which is biased.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        kl_unbiased: bool = false => [also(&["use_bias_correction_kl"])],
        /// KL that the adaptive coefficient aims at.
        #[serde(skip_serializing_if = "Option::is_none")]
        kl_target: Option<f64> = None => [NOT_NEGATIVE],
        /// Samples over which the adaptive coefficient moves [10000].
        #[serde(skip_serializing_if = "Option::is_none")]
        kl_horizon: Option<f64> = None => [NOT_NEGATIVE],
        /// Coefficient of the entropy bonus.
        entropy_coef: f64 = 0.0 => [FINITE, also(&["ent_coef"])],
        /// Coefficient of the loss that keeps experts equally loaded, in models that have some; it is per sequence.
        #[serde(skip_serializing_if = "is_zero")]
        balance_coef: f64 = 0.0 => [NOT_NEGATIVE],
        /// How token losses become one number. By method.
        #[serde(skip_serializing_if = "Option::is_none")]
        aggregation: Option<AggregationKind> = None,
        /// Baseline of a group, or a function of yours, `python:FILE.py:FUNCTION`. By method.
        #[serde(skip_serializing_if = "Option::is_none")]
        advantage: Option<Estimator> = None,
        /// How the steps that a reward returns next to its score are credited, as `environment.credit` credits turns.
        /// Steps are not read if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        step_credit: Option<TurnCredit> = None,
        /// The Python interpreter of such a function; if absent that of the virtual
        /// environment in which `plimsoll` lies, or of `$VIRTUAL_ENV`, else `python3`.
        #[serde(skip_serializing_if = "Option::is_none")]
        advantage_python: Option<String> = None => [FREELY],
        /// Limit on the address space of its interpreter.
        #[serde(skip_serializing_if = "is_advantage_memory")]
        advantage_memory: ByteSize = ADVANTAGE_MEMORY => [FREELY],
        /// Longest time for the advantages of one step, in milliseconds.
        #[serde(skip_serializing_if = "is_advantage_timeout")]
        advantage_timeout_ms: u64 = ADVANTAGE_TIMEOUT_MS => [
            such("a number of milliseconds above 0", |time| time > 0.0), FREELY,
        ],
        /// Added to the group's standard deviation.
        group_norm_eps: f64 = 1e-4 => [NOT_NEGATIVE],
        /// Whitening over the step. By method.
        #[serde(skip_serializing_if = "Option::is_none")]
        whiten: Option<Whiten> = None,
        /// Discount; may differ from 1 only with `reinforce` and `ppo`.
        gamma: f64 = 1.0 => [SHARE],
        /// GAE's lambda.
        #[serde(rename = "lambda")]
        lambda: f64 = 1.0 => [SHARE, also(&["lam", "lambd", "gae_lambda"])],
        /// What advantages do at tokens that are not trained.
        mask_hole: MaskHole = MaskHole::Skip,
        /// Responses that the length limit cut do not train; they count in their group's mean as they are.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        mask_truncated: bool = false => [also(&["mask_truncated_completions"])],
        /// Tokens before `max_new_tokens` from which a response costs reward.
        #[serde(skip_serializing_if = "Option::is_none")]
        overlong_buffer: Option<u32> = None,
        /// What the longest response costs [1.0].
        #[serde(skip_serializing_if = "Option::is_none")]
        overlong_factor: Option<f64> = None => [NOT_NEGATIVE],
        /// `true` keeps only groups whose scores differ, `[low, high]` those whose mean score lies strictly between;
        /// the others are replaced by groups of further prompts.
        #[serde(skip_serializing_if = "Option::is_none")]
        dynamic_sampling: Option<DynamicSampling> = None => [
            also(&["filter_groups", "dynamic_filtering_reward_range"]),
        ],
        /// Rounds of further prompts at most, before a step trains on the groups that there are [10].
        #[serde(skip_serializing_if = "Option::is_none")]
        dynamic_sampling_retries: Option<u32> = None,
        /// Weight of what an older policy version sampled. Without `async.reuse` every weight is exactly 1.
        #[serde(skip_serializing_if = "Option::is_none")]
        correction: Option<CorrectionKind> = None,
        /// Band of that weight [[0.5, 5.0]].
        #[serde(skip_serializing_if = "Option::is_none")]
        correction_band: Option<[f64; 2]> = None,
        /// What is done to tokens whose probability and advantage move together most: `clip` some of them do not learn,
        /// `kl` the highest are held to where they were. By method.
        #[serde(skip_serializing_if = "Option::is_none")]
        covariance: Option<CovarianceKind> = None,
        /// The most of them, as a share of the trained tokens of a step [0.0002].
        #[serde(skip_serializing_if = "Option::is_none")]
        covariance_share: Option<f64> = None => [
            such("a number above 0 and at most 1, such as 0.002", |share| share > 0.0 && share <= 1.0),
            also(&["clip_cov_ratio", "kl_cov_ratio"]),
        ],
        /// Band of the covariance, both ends outside, from which `clip` draws [[1.0, 5.0]].
        #[serde(skip_serializing_if = "Option::is_none")]
        covariance_band: Option<[f64; 2]> = None,
        /// Factor of |l - l_old| of the tokens that `kl` holds [1.0].
        #[serde(skip_serializing_if = "Option::is_none")]
        covariance_coef: Option<f64> = None => [NOT_NEGATIVE, also(&["ppo_kl_coef"])],
        /// The beta of `dpo` and its kin; of `simpo` 2.0 if absent.
        dpo_beta: f64 = 0.1 => [
            such("a number above 0, such as 0.1", |beta| (beta as f32).is_finite() && beta > 0.0),
        ],
        /// Margin of `simpo`.
        #[serde(skip_serializing_if = "is_simpo_gamma")]
        simpo_gamma: f64 = SIMPO_GAMMA => [FINITE],
        /// Factor of the likelihood of chosen answers in `cpo`.
        #[serde(skip_serializing_if = "is_one")]
        nll_coef: f64 = 1.0 => [NOT_NEGATIVE, also(&["cpo_alpha"])],
        /// Weight of desirable answers in `kto`.
        #[serde(skip_serializing_if = "is_one")]
        desirable_weight: f64 = 1.0 => [NOT_NEGATIVE],
        /// Weight of undesirable answers in `kto`.
        #[serde(skip_serializing_if = "is_one")]
        undesirable_weight: f64 = 1.0 => [NOT_NEGATIVE],
        /// The loss of `dpo`.
        loss_type: LossType = LossType::Sigmoid,
        /// Share of labels that `dpo` takes as wrong (cDPO).
        label_smoothing: f64 = 0.0 => [
            such("a number from 0 to below 0.5: at one half the labels say nothing",
                |share| (0.0..0.5).contains(&share)),
        ],
    }
}

/// Room for numpy, which reserves more than it takes.
const ADVANTAGE_MEMORY: ByteSize = ByteSize(Bytes::mib(2048));
const ADVANTAGE_TIMEOUT_MS: u64 = 60_000;

fn is_advantage_memory(size: &ByteSize) -> bool {
    *size == ADVANTAGE_MEMORY
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde asks.
fn is_advantage_timeout(time: &u64) -> bool {
    *time == ADVANTAGE_TIMEOUT_MS
}

/// TRL's margin.
const SIMPO_GAMMA: f64 = 0.5;

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde asks.
fn is_simpo_gamma(number: &f64) -> bool {
    *number == SIMPO_GAMMA
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde asks.
fn is_one(number: &f64) -> bool {
    *number == 1.0
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde asks.
fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

section! {
    /// The critic of `ppo`. Its dtypes, betas, weight decay, gradient clip and schedule are those of `[train]`.
    Critic "critic" {
        /// Where its body starts from: `actor` for a copy of the actor, or a model with the same tokenizer.
        model: String = "actor".into(),
        /// Its learning rate after warm-up [`train.learning_rate`].
        #[serde(skip_serializing_if = "Option::is_none")]
        learning_rate: Option<f64> = None => [NOT_NEGATIVE, also(&["critic_learning_rate"])],
        /// Its updates a rollout, each over an equal part of the sequences; as many as the actor's, over the same
        /// parts, if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        updates_per_rollout: Option<u32> = None => [COUNT],
        /// Steps at the start in which only it learns [0].
        #[serde(skip_serializing_if = "Option::is_none")]
        warmup_steps: Option<u32> = None => [also(&["critic_warmup", "freezing_actor_steps"])],
        /// Clip of a value's move from what it was at the rollout; 0 never clips [0.2].
        #[serde(skip_serializing_if = "Option::is_none")]
        value_clip: Option<f64> = None => [NOT_NEGATIVE, also(&["cliprange_value"])],
        /// Factor of the value loss of an environment policy, whose actor and critic have one optimizer [0.5].
        #[serde(skip_serializing_if = "Option::is_none")]
        value_coef: Option<f64> = None => [NOT_NEGATIVE, also(&["vf_coef"])],
    }
}
