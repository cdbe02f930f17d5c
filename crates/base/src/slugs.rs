//! Slugs of errors that code counts, rewords or recovers from. Other slugs are written only where their error is made.

pub const CUDA_FAILED: &str = "cuda-failed";
pub const INTERRUPTED: &str = "interrupted";
pub const UNKNOWN_ENVIRONMENT: &str = "unknown-environment";

pub const LOSS_NOT_FINITE: &str = "loss-not-finite";
pub const GRADIENT_NOT_FINITE: &str = "gradient-not-finite";
pub const ROLLOUT_NOT_FINITE: &str = "rollout-not-finite";
pub const MODEL_WEIGHT_NOT_FINITE: &str = "model-weight-not-finite";
/// Errors of a model with NaN or infinite weights.
pub const DIVERGENCE: [&str; 4] =
    [LOSS_NOT_FINITE, GRADIENT_NOT_FINITE, ROLLOUT_NOT_FINITE, MODEL_WEIGHT_NOT_FINITE];

pub const LOGPROB_MISMATCH: &str = "logprob-mismatch";
pub const DYNAMIC_SAMPLING_EXHAUSTED: &str = "dynamic-sampling-exhausted";
/// Errors that every rank of a run meets in the same place, computed from the same numbers.
pub const OF_ALL_RANKS: [&str; 5] = [
    LOSS_NOT_FINITE,
    GRADIENT_NOT_FINITE,
    MODEL_WEIGHT_NOT_FINITE,
    LOGPROB_MISMATCH,
    DYNAMIC_SAMPLING_EXHAUSTED,
];

pub const REWARD_MODEL_HEAD_MISSING: &str = "reward-model-head-missing";
pub const REWARD_MODEL_LABELS: &str = "reward-model-labels";
/// Errors of a sequence classification model whose head does not give a single score.
pub const REWARD_MODEL_HEAD: [&str; 2] = [REWARD_MODEL_HEAD_MISSING, REWARD_MODEL_LABELS];

pub const REWARD_WORKER_CRASHED: &str = "reward-worker-crashed";
pub const REWARD_WORKER_OOM_KILLED: &str = "reward-worker-oom-killed";
pub const REWARD_WORKER_OVER_BUDGET: &str = "reward-worker-over-budget";
pub const REWARD_WORKER_TIMEOUT: &str = "reward-worker-timeout";
pub const REWARD_WORKER_NOT_STARTED: &str = "reward-worker-not-started";
pub const REWARD_SANDBOX_MISSING: &str = "reward-sandbox-missing";
pub const REWARD_FUNCTION_RAISED: &str = "reward-function-raised";
pub const REWARD_BAD_REPLY: &str = "reward-bad-reply";
pub const REWARD_NOT_FINITE: &str = "reward-not-finite";
pub const REWARD_HTTP_FAILED: &str = "reward-http-failed";
pub const REWARD_HTTP_TIMEOUT: &str = "reward-http-timeout";

pub const ADVANTAGE_FUNCTION_MISSING: &str = "advantage-function-missing";
pub const ADVANTAGE_FUNCTION_RAISED: &str = "advantage-function-raised";
pub const ADVANTAGE_BAD_REPLY: &str = "advantage-bad-reply";
pub const ADVANTAGE_WORKER_FAILED: &str = "advantage-worker-failed";

pub const TEXT_ENVIRONMENT_TIMEOUT: &str = "text-environment-timeout";
pub const TEXT_ENVIRONMENT_RAISED: &str = "text-environment-raised";
pub const TEXT_ENVIRONMENT_OVER_BUDGET: &str = "text-environment-over-budget";
pub const TEXT_ENVIRONMENT_BAD_REPLY: &str = "text-environment-bad-reply";
