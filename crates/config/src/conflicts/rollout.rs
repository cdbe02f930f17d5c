//! What does not go with samples that are older than the weights that they train: carried, drawn ahead, or lagging.

use super::setting::{Case, Conflict, Setting, no, plays_in, when, which};
use super::shared::{
    AGENTS, CARRY, ENVIRONMENT, FILTERED, GREEDY, NO_SAMPLES, OPTIMAL_TOKEN, POLICY_LAG, TOOLS,
    WHOLE_ON_RANKS,
};
use crate::rewards::reward_specs;
use crate::sections::{Environment, Reward, RunFile, WEIGHT_SYNC_STEP, WEIGHT_SYNC_TICK};
use plimsoll_reward::RewardSpec;
use plimsoll_textenv::Kind;

const NO_CARRY: Setting = when(
    "async.partial_rollouts",
    "async.partial_rollouts = 0",
    |run| run.asynchrony.partial_rollouts == 0,
    &[],
);
const AHEAD: Setting = above!(async.staleness > 0, "1");
const NOT_AHEAD: Setting =
    when("async.staleness", "async.staleness = 0", |run| run.asynchrony.staleness == 0, &[]);
const APART: Setting = above!(async.rollout_ranks > 0, "1");
const IN_FLIGHT: Setting = when(
    "async.weight_sync",
    "async.weight_sync other than \"step\"",
    |run| !matches!(run.asynchrony.weight_sync.as_str(), "" | WEIGHT_SYNC_STEP),
    &["async.weight_sync=a.jsonl", "async.staleness=1"],
);
const COVARIANCE: Setting = set!(loss.covariance = "clip");
const REPLAY: Setting = when(
    "environment.replay",
    "environment.replay = true",
    replays,
    &[
        "-data",
        "-reward",
        "environment.env=http-agent",
        "data.prompt_tokens_max=64",
        "environment.replay=true",
    ],
);
const AGENTS_ONCE: Setting = when(
    "environment.replay",
    "environment.replay = false with agents",
    |run| plays_in(run, Kind::is_agents) && !replays(run),
    AGENTS.example,
);
const PYTHON_ONCE: Setting = when(
    "environment.replay",
    "environment.replay = false with an environment in Python",
    |run| plays_in(run, Kind::is_python) && !replays(run),
    &["-data", "-reward", "environment.env=python:a.py:Class", "data.prompt_tokens_max=64"],
);

fn replays(run: &RunFile) -> bool {
    run.environment.as_ref().is_some_and(|environment: &Environment| environment.replay)
}

/// Returns `reward.N.per_response` of the first reward that sets it and is so.
fn per_response(case: &Case, is_so: fn(&Reward) -> bool) -> Option<String> {
    let index = case.run.reward.iter().position(|reward| reward.per_response && is_so(reward));
    index.map(|index| format!("reward.{index}.per_response"))
}

/// Returns the kind of the first such reward.
fn kind(case: &Case, is_so: fn(&Reward) -> bool) -> Option<String> {
    case.run.reward.iter().position(is_so).map(|index| format!("reward.{index}.kind"))
}

/// True if a reward scores each response by itself, whatever it was asked for.
fn scores_each(reward: &Reward) -> bool {
    let plain = Reward { per_response: false, ..reward.clone() };
    reward_specs(&[plain], "").first().is_some_and(RewardSpec::is_per_response)
}

const SCHEMA: Setting = set!(rollout.schema = "schema.json");
const TEACHER: Setting = when(
    "method",
    "method = \"distill\"",
    |run| run.method.needs().teacher,
    &["method=distill", "distill.teacher=t"],
);

const SPECULATE: Setting = when(
    "rollout.speculate",
    "rollout.speculate = \"ngram\" or \"suffix\"",
    |run| run.rollout.speculate.is_required(),
    &["rollout.speculate=suffix"],
);

pub(super) const ROWS: &[Conflict] = &[
    no(
        SPECULATE,
        SCHEMA,
        "whose masks follow from token to token: drafts with masks are not built yet",
        "set rollout.speculate = \"auto\", or remove it",
    )
    .slug("not-built"),
    no(
        SPECULATE,
        AGENTS,
        "whose requests come and go: drafts for these are not built yet",
        "set rollout.speculate = \"auto\", or remove it",
    )
    .slug("not-built"),
    no(SCHEMA, ENVIRONMENT, "whose turns are not held to one", "remove rollout.schema, or [environment]"),
    no(SCHEMA, TEACHER, "whose distribution is over all tokens", "remove rollout.schema"),
    no(
        when(
            "async.stale_tokens_max",
            "async.stale_tokens_max",
            |run| run.asynchrony.stale_tokens_max.is_some(),
            &["async.stale_tokens_max=2"],
        ),
        NO_CARRY,
        "where all tokens are of the newest weights",
        "set async.partial_rollouts, or remove async.stale_tokens_max",
    ),
    no(
        which(
            "reward.*.per_response",
            "reward.*.per_response",
            |case| per_response(case, |_| true),
            &["reward.0.kind=python:a.py:f", "reward.0.per_response=true"],
        ),
        NO_CARRY,
        "where a response is graded as soon as its group has ended",
        "remove {key}",
    ),
    no(
        which(
            "reward.*.per_response",
            "reward.*.per_response",
            |case| per_response(case, |_| true),
            &[
                "async.partial_rollouts=1",
                "environment.replay=true",
                "reward.0.kind=python:a.py:f",
                "reward.0.per_response=true",
            ],
        ),
        TOOLS,
        "whose episodes are graded when they are trained",
        "remove {key}",
    ),
    no(
        which(
            "reward.*.per_response",
            "reward.*.per_response",
            |case| per_response(case, Reward::is_model),
            &[
                "async.partial_rollouts=1",
                "reward.0.kind=model",
                "reward.0.model=m",
                "reward.0.per_response=true",
            ],
        ),
        which(
            "reward.*.kind",
            "its kind = \"model\"",
            |case| kind(case, Reward::is_model),
            &["reward.0.kind=model", "reward.0.model=m"],
        ),
        "which scores responses between the rollout and the update",
        "remove {key}",
    ),
    no(
        which(
            "reward.*.per_response",
            "reward.*.per_response",
            |case| per_response(case, scores_each),
            &["async.partial_rollouts=1", "reward.0.kind=exact", "reward.0.per_response=true"],
        ),
        which(
            "reward.*.kind",
            "a kind for each response",
            |case| kind(case, scores_each),
            &["reward.0.kind=exact"],
        ),
        "a kind that scores each response by itself anyway",
        "remove {key}",
    ),
    no(REPLAY, NO_CARRY, "where no episode is played again", "remove environment.replay"),
    no(
        when("environment.replay", "environment.replay = true", replays, &["environment.replay=true"]),
        when(
            "environment.env",
            "an environment that is neither in Python nor of agents",
            |run| plays_in(run, |kind| !kind.is_python() && !kind.is_agents()),
            &["-data", "-reward", "environment.env=text:second-try", "async.partial_rollouts=1"],
        ),
        "and those alone are played again",
        "remove environment.replay",
    ),
    no(CARRY, NO_SAMPLES, "which samples nothing", "set async.partial_rollouts = 0, or change the method"),
    no(
        CARRY,
        AGENTS_ONCE,
        "where a resumed run cannot begin the episodes of agents again",
        "set async.partial_rollouts = 0, or environment.replay = true",
    ),
    no(
        CARRY,
        when(
            "environment.branches_max",
            "environment.branches_max above 1",
            |run| {
                run.environment.as_ref().is_some_and(|of| of.branches_max > 1)
                    && plays_in(run, Kind::is_agents)
            },
            &[
                "-data",
                "-reward",
                "environment.env=http-agent",
                "data.prompt_tokens_max=64",
                "environment.replay=true",
                "environment.branches_max=2",
            ],
        ),
        "and an agent's episode that takes several steps is one sequence",
        "set async.partial_rollouts = 0, or change environment.branches_max",
    ),
    no(
        CARRY,
        PYTHON_ONCE,
        "where a worker cannot take back a turn that was played after the step's tick",
        "set async.partial_rollouts = 0, or environment.replay = true",
    ),
    no(
        CARRY,
        POLICY_LAG,
        "which makes samples old in another way",
        "set async.partial_rollouts = 0, or change async.reuse",
    ),
    no(
        CARRY,
        FILTERED,
        "which draws further groups in the same step",
        "set async.partial_rollouts = 0, or change loss.dynamic_sampling",
    ),
    no(
        CARRY,
        GREEDY,
        "which compares with an answer of the newest weights",
        "set async.partial_rollouts = 0, or change loss.advantage",
    ),
    no(
        CARRY,
        OPTIMAL_TOKEN,
        "which needs all tokens of the newest weights",
        "set async.partial_rollouts = 0, or change loss.advantage",
    ),
    no(
        CARRY,
        COVARIANCE,
        "which needs all tokens of the newest weights",
        "set async.partial_rollouts = 0, or change loss.covariance",
    ),
    no(APART, NOT_AHEAD, "where nothing is drawn while the others train", "set async.staleness = 1"),
    no(
        when(
            "async.rollout_ranks",
            "async.rollout_ranks above 0",
            |run| run.asynchrony.rollout_ranks > 0,
            &["async.rollout_ranks=1", "async.staleness=1"],
        ),
        WHOLE_ON_RANKS,
        "which is not built yet",
        "set run.zero_stage = 2, which is built",
    )
    .slug("not-built"),
    no(
        when(
            "async.weight_sync",
            "async.weight_sync other than \"step\"",
            |run| !matches!(run.asynchrony.weight_sync.as_str(), "" | WEIGHT_SYNC_STEP),
            &["async.weight_sync=a.jsonl"],
        ),
        NOT_AHEAD,
        "where no rollout is under way",
        "set async.staleness = 1",
    ),
    no(
        when(
            "async.weight_sync",
            "async.weight_sync = \"tick\"",
            |run| run.asynchrony.weight_sync == WEIGHT_SYNC_TICK,
            &["async.weight_sync=tick", "async.staleness=1"],
        ),
        when(
            "async.rollout_ranks",
            "async.rollout_ranks = 0, or above 1",
            |run| run.asynchrony.rollout_ranks != 1,
            &[],
        ),
        "and one rank that only samples says when they arrive",
        "set async.rollout_ranks = 1, or follow the schedule.jsonl of such a run",
    ),
    no(
        IN_FLIGHT,
        GREEDY,
        "which draws further responses with the same weights",
        "set async.weight_sync = \"step\"",
    ),
    no(
        IN_FLIGHT,
        FILTERED,
        "which draws further responses with the same weights",
        "set async.weight_sync = \"step\"",
    ),
    no(AHEAD, NO_SAMPLES, "which samples nothing", "set async.staleness = 0, or change the method"),
    no(
        AHEAD,
        ENVIRONMENT,
        "whose episodes are played in one step",
        "set async.staleness = 0, or remove [environment]",
    ),
    no(
        AHEAD,
        POLICY_LAG,
        "which makes samples old in another way",
        "set async.staleness = 0, or change async.reuse",
    ),
    no(
        AHEAD,
        CARRY,
        "which makes samples old in another way",
        "set async.staleness = 0, or change async.partial_rollouts",
    ),
    no(
        AHEAD,
        OPTIMAL_TOKEN,
        "which needs all tokens of the newest weights",
        "set async.staleness = 0, or change loss.advantage",
    ),
    no(
        AHEAD,
        COVARIANCE,
        "which needs all tokens of the newest weights",
        "set async.staleness = 0, or change loss.covariance",
    ),
];
