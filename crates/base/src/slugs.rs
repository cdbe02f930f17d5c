//! Slugs of the errors that other code acts on: it counts them, words them anew or recovers. Every other slug is spelled
//! where its error is made.

/// CUDA returned an error, and the context is lost.
pub const CUDA_FAILED: &str = "cuda-failed";
/// No environment has the name.
pub const UNKNOWN_ENVIRONMENT: &str = "unknown-environment";

/// The weights no longer give numbers.
pub const DIVERGENCE: [&str; 4] =
    ["loss-not-finite", "gradient-not-finite", "rollout-not-finite", "model-weight-not-finite"];
/// A model for sequence classification is no reward model.
pub const NO_REWARD_MODEL: [&str; 2] = ["reward-model-head-missing", "reward-model-labels"];

/// A reward's worker was ended by a signal or left on its own.
pub const REWARD_WORKER_CRASHED: &str = "reward-worker-crashed";
/// The kernel killed a reward's worker for memory.
pub const REWARD_WORKER_OOM_KILLED: &str = "reward-worker-oom-killed";
/// A reward's worker reached its limit of memory.
pub const REWARD_WORKER_OVER_BUDGET: &str = "reward-worker-over-budget";
/// A reward's worker did not answer in time.
pub const REWARD_WORKER_TIMEOUT: &str = "reward-worker-timeout";
/// A reward's worker could not be started.
pub const REWARD_WORKER_NOT_STARTED: &str = "reward-worker-not-started";
/// The kernel cannot deny a worker the network.
pub const REWARD_SANDBOX_MISSING: &str = "reward-sandbox-missing";
/// A reward function raised.
pub const REWARD_FUNCTION_RAISED: &str = "reward-function-raised";
/// A reward answered something that is no score.
pub const REWARD_BAD_REPLY: &str = "reward-bad-reply";
/// A reward gave an infinite score or NaN.
pub const REWARD_NOT_FINITE: &str = "reward-not-finite";
/// The address of a reward could not be reached, or refused.
pub const REWARD_HTTP_FAILED: &str = "reward-http-failed";
/// The address of a reward did not answer in time.
pub const REWARD_HTTP_TIMEOUT: &str = "reward-http-timeout";

/// The worker of a text environment died.
pub const TEXT_ENVIRONMENT_CRASHED: &str = "text-environment-crashed";
/// The worker of a text environment did not answer in time.
pub const TEXT_ENVIRONMENT_TIMEOUT: &str = "text-environment-timeout";
/// A text environment raised.
pub const TEXT_ENVIRONMENT_RAISED: &str = "text-environment-raised";
/// The worker of a text environment reached its limit of memory.
pub const TEXT_ENVIRONMENT_OVER_BUDGET: &str = "text-environment-over-budget";
/// A text environment answered something that cannot be read.
pub const TEXT_ENVIRONMENT_BAD_REPLY: &str = "text-environment-bad-reply";
/// A text environment cannot be found, loaded or started.
pub const TEXT_ENVIRONMENT_MISSING: &str = "text-environment-missing";

/// An environment's worker reached its limit of memory.
pub const ENV_WORKER_OVER_BUDGET: &str = "env-worker-over-budget";
/// An environment raised.
pub const ENV_EXCEPTION: &str = "env-exception";
/// An environment could not be made.
pub const ENV_NOT_MADE: &str = "env-not-made";
