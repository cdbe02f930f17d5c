//! Settings that rows of several tables name.

use super::setting::{Setting, is_policy, plays, plays_in, when};
use crate::values::{Auto, DynamicSampling};
use plimsoll_algo::advantage::Advantage;
use plimsoll_textenv::Kind;

pub(super) const ENVIRONMENT: Setting =
    when("environment", "[environment]", plays, &["-data", "-reward", "environment.env=text:second-try"]);
pub(super) const POLICY: Setting = when(
    "model",
    "model = \"mlp:...\"",
    is_policy,
    &[
        "-data",
        "-rollout",
        "-reward",
        "-train.micro_batch_tokens",
        "method=ppo",
        "model=mlp:8x8",
        "environment.env=CartPole-v1",
        "environment.total_frames=4096",
    ],
);
pub(super) const AGENTS: Setting = when(
    "environment.env",
    "environment.env = \"http-agent\"",
    |run| plays_in(run, Kind::is_agents),
    &["-data", "-reward", "environment.env=http-agent", "data.prompt_tokens_max=64"],
);
pub(super) const TOOLS: Setting = when(
    "environment.env",
    "environment.env = \"tools\"",
    |run| plays_in(run, Kind::is_graded),
    &[
        "-data",
        "environment.env=tools",
        "environment.tools=[\"python:a.py:f\"]",
        "environment.rows=rows.jsonl",
        "data.prompt_tokens_max=64",
    ],
);
pub(super) const NO_SAMPLES: Setting = when(
    "method",
    "a method that samples nothing",
    |run| run.method.spec().sampling.is_none(),
    &["method=sft"],
);
pub(super) const CARRY: Setting = above!(async.partial_rollouts > 0, "1");
pub(super) const POLICY_LAG: Setting = above!(async.reuse > 0, "1");
pub(super) const FILTERED: Setting = when(
    "loss.dynamic_sampling",
    "loss.dynamic_sampling",
    |run| run.loss.dynamic_sampling.and_then(DynamicSampling::filter).is_some(),
    &["loss.dynamic_sampling=true"],
);
pub(super) const OVERLONG_BUFFER: Setting = set!(loss.overlong_buffer = "2");
pub(super) const GREEDY: Setting = advantage!(Greedy, "greedy", "method=remax");
pub(super) const OPTIMAL_TOKEN: Setting = advantage!(OptimalToken, "optimal_token", "method=optimal_token");
pub(super) const GPG: Setting = advantage!(Gpg, "gpg", "method=gpg");
pub(super) const WHOLE_ON_RANKS: Setting = when(
    "run.zero_stage",
    "run.zero_stage = 3",
    |run| run.run.zero_stage == Auto::Value(3),
    &["run.zero_stage=3"],
);
