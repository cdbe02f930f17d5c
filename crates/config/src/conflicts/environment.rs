//! What does not go with an environment: of a language model, and of a small network.

use super::setting::{Case, Conflict, Setting, is_policy, no, plays, plays_in, when, which};
use super::shared::{
    AGENTS, ENVIRONMENT, FILTERED, GREEDY, NO_SAMPLES, OPTIMAL_TOKEN, OVERLONG_BUFFER, POLICY, POLICY_LAG,
    TOOLS,
};
use crate::key::Player;
use crate::sections::{Environment, Reward, is_python_env};
use crate::values::{AnsweredPrompts, Auto, Credit, Network, Overlong, RunDevice};
use plimsoll_algo::method::Method;
use plimsoll_textenv::{EpisodesOf, Kind};

const OPENENV: Setting = when(
    "environment.env",
    "environment.env = \"openenv:...\"",
    |run| plays_in(run, is_openenv),
    &["-data", "-reward", "environment.env=openenv:http://127.0.0.1:1", "data.prompt_tokens_max=64"],
);
const NO_OPENENV: Setting = when(
    "environment.env",
    "an environment that is no OpenEnv server",
    |run| plays_in(run, |kind| !is_openenv(kind)),
    ENVIRONMENT.example,
);
const NO_FUNCTIONS: Setting = when(
    "environment.env",
    "an environment without functions",
    |run| {
        plays_in(run, |kind| !matches!(kind, Kind::Python(EpisodesOf::Class { .. } | EpisodesOf::Functions)))
    },
    ENVIRONMENT.example,
);
const ROWLESS: Setting = when(
    "environment.env",
    "an environment without rows",
    |run| {
        plays_in(run, |kind| {
            use EpisodesOf::{Class, Functions, Harbor};
            !matches!(kind, Kind::Python(Class { .. } | Functions | Harbor))
        })
    },
    ENVIRONMENT.example,
);
const NO_TASKS: Setting = when(
    "environment.env",
    "an environment without containers",
    |run| plays_in(run, |kind| !kind.plays_tasks()),
    ENVIRONMENT.example,
);
const NO_AGENTS: Setting = when(
    "environment.env",
    "an environment that no agent plays",
    |run| plays_in(run, |kind| !kind.is_agents()),
    ENVIRONMENT.example,
);
const REWARDS_ITSELF: Setting = when(
    "environment.env",
    "an environment other than \"tools\"",
    |run| plays_in(run, |kind| !kind.is_graded()),
    ENVIRONMENT.example,
);
const DENIED: Setting = when(
    "environment.network",
    "environment.network = \"deny\"",
    |run| of(run, |of| of.network == Network::Deny),
    &[],
);
const NO_ROWS: Setting =
    when("environment.rows", "no environment.rows", |run| of(run, |of| of.rows.is_none()), &[]);
const NO_EVAL: Setting = unset!(eval.every);

fn is_openenv(kind: &Kind) -> bool {
    matches!(kind, Kind::Python(EpisodesOf::OpenEnv { .. }))
}

/// True if the environment that a language model plays is so.
fn of(run: &crate::RunFile, is_so: fn(&Environment) -> bool) -> bool {
    run.environment.as_ref().is_some_and(is_so) && plays(run)
}

/// Returns the first key of one kind of environment that was given.
fn given_of(case: &Case, player: Player) -> Option<String> {
    case.given(Environment::keys_of(player).map(|key| format!("environment.{key}")))
}

/// Keys that a small network in an environment does not read.
const UNREAD: [&str; 20] = [
    "data",
    "rollout",
    "reward",
    "eval.samples",
    "model_options",
    "critic.model",
    "critic.learning_rate",
    "critic.updates_per_rollout",
    "critic.warmup_steps",
    "train.micro_batch_tokens",
    "train.cut_multiple",
    "train.grad_dtype",
    "train.gradient_wire",
    "train.fold",
    "train.optimizer_dtype",
    "train.recompute",
    "loss.aggregation",
    "loss.kl_target",
    "loss.overlong_buffer",
    "memory.offload",
];

pub(super) const OF_POLICIES: &[Conflict] = &[
    no(
        when("method", "a method other than \"ppo\"", |run| run.method != Method::Ppo, &["method=grpo"]),
        when(
            "model",
            "model = \"mlp:...\"",
            is_policy,
            &[
                "-data",
                "-rollout",
                "-reward",
                "-train.micro_batch_tokens",
                "model=mlp:8x8",
                "environment.env=CartPole-v1",
                "environment.total_frames=4096",
            ],
        ),
        "an environment policy, which learns by \"ppo\"",
        "set method = \"ppo\"",
    ),
    no(
        value!(run.device is Auto::Value(RunDevice::Cuda), "cuda"),
        POLICY,
        "an environment policy, which stays on the host",
        "remove run.device",
    ),
    no(
        which(
            "environment.*",
            "a key of text environments",
            |case| given_of(case, Player::Text),
            &["environment.turns_max=2"],
        ),
        POLICY,
        "an environment policy, and it is of text environments",
        "remove {key}",
    ),
    no(
        which(
            "environment.*",
            "a key of workers, without an environment in Python",
            |case| {
                let has_workers = case.run.environment.as_ref().is_some_and(|of| is_python_env(&of.env));
                given_of(case, Player::Workers).filter(|_| !has_workers)
            },
            &["environment.env=CartPole-v1", "environment.num_workers=2"],
        ),
        POLICY,
        "an environment policy in this process, and it is of worker processes",
        "remove {key}",
    ),
    no(
        which("*", "a key of language models", |case| case.given(UNREAD), &["train.fold=2"]),
        POLICY,
        "a small network in an environment, which does not use it",
        "remove {key}",
    ),
    no(
        when("loss.kl_coef", "loss.kl_coef above 0", |run| run.loss.kl_coef != 0.0, &["loss.kl_coef=0.1"]),
        POLICY,
        "an environment policy, which has no reference",
        "remove loss.kl_coef",
    ),
    no(
        which(
            "eval.*",
            "eval.prompts_max, eval.temperature or eval.metric of an environment policy",
            |case| {
                let keys = ["eval.prompts_max", "eval.temperature", "eval.metric"];
                case.given(keys).filter(|_| is_policy(case.run))
            },
            &[
                "-data",
                "-rollout",
                "-reward",
                "-train.micro_batch_tokens",
                "method=ppo",
                "model=mlp:8x8",
                "environment.env=CartPole-v1",
                "environment.total_frames=4096",
                "eval.prompts_max=2",
            ],
        ),
        NO_EVAL,
        "and nothing is evaluated",
        "set eval.every, in steps",
    ),
];

pub(super) const ROWS: &[Conflict] = &[
    no(ENVIRONMENT, NO_SAMPLES, "which samples nothing", "set method = \"grpo\", or remove [environment]"),
    no(
        which(
            "environment.*",
            "a key of native environments",
            |case| given_of(case, Player::Native),
            &["environment.num_envs=2"],
        ),
        ENVIRONMENT,
        "and it belongs to native environments, which a small network acts in",
        "remove {key}, or set model = \"mlp:64x64\"",
    ),
    no(
        which(
            "environment.*",
            "environment.command, port or branches_max",
            |case| case.given(["environment.command", "environment.port", "environment.branches_max"]),
            &["environment.port=8123"],
        ),
        NO_AGENTS,
        "and it belongs to env = \"http-agent\"",
        "remove {key}",
    ),
    no(
        when(
            "environment.credit",
            "environment.credit of turns",
            |run| of(run, |of| of.credit != Credit::Episode),
            &["environment.credit=turn"],
        ),
        AGENTS,
        "whose agent reports one reward for its episode",
        "remove environment.credit",
    ),
    no(
        when(
            "environment.command",
            "environment.command",
            |run| of(run, |of| !of.command.is_empty()),
            &[
                "-data",
                "-reward",
                "environment.env=http-agent",
                "data.prompt_tokens_max=64",
                "environment.command=[\"agent\"]",
            ],
        ),
        DENIED,
        "and an agent reaches the model over the network",
        "set environment.network = \"allow\"",
    ),
    no(
        which(
            "environment.*",
            "environment.action or observation",
            |case| case.given(["environment.action", "environment.observation"]),
            &["environment.action=move"],
        ),
        NO_OPENENV,
        "and it belongs to env = \"openenv:URL\"",
        "remove {key}",
    ),
    no(
        when(
            "environment.tools",
            "environment.tools",
            |run| of(run, |of| !of.tools.is_empty()),
            &["environment.tools=[\"python:a.py:f\"]"],
        ),
        NO_FUNCTIONS,
        "and it belongs to env = \"python:FILE.py:CLASS\" or \"tools\"",
        "remove environment.tools, or set env = \"tools\"",
    ),
    no(
        which(
            "environment.*",
            "environment.rows or eval_rows",
            |case| case.given(["environment.rows", "environment.eval_rows"]),
            &["environment.rows=rows.jsonl"],
        ),
        ROWLESS,
        "and it belongs to env = \"python:FILE.py:CLASS\", \"tools\" or \"harbor\"",
        "remove {key}",
    ),
    no(
        which(
            "environment.*",
            "environment.engine or container_memory",
            |case| case.given(["environment.engine", "environment.container_memory"]),
            &["environment.engine=podman"],
        ),
        NO_TASKS,
        "and it belongs to env = \"harbor\"",
        "remove {key}",
    ),
    no(
        when(
            "environment.eval_rows",
            "environment.eval_rows",
            |run| of(run, |of| of.eval_rows.is_some()),
            &[
                "-data",
                "-reward",
                "environment.env=python:a.py:Class",
                "data.prompt_tokens_max=64",
                "environment.eval_rows=rows.jsonl",
            ],
        ),
        NO_ROWS,
        "which has the rows of training",
        "set environment.rows too",
    ),
    no(OPENENV, DENIED, "and a client of a server needs the network", "set environment.network = \"allow\""),
    no(
        set!(data.prompts = "builtin:addition"),
        ENVIRONMENT,
        "whose episodes have their own prompts",
        "remove {key}, or remove [environment]",
    ),
    no(
        when(
            "data.eval",
            "data.eval",
            |run| run.data.eval.is_some() && !run.data.asks_no_eval(),
            &["data.eval=builtin:addition"],
        ),
        ENVIRONMENT,
        "which is evaluated on its own seeds",
        "remove {key}, or remove [environment]",
    ),
    no(
        when("reward", "[[reward]]", |run| !run.reward.is_empty(), &["reward.0.kind=exact"]),
        REWARDS_ITSELF,
        "which gives the reward itself",
        "remove reward, or remove [environment]",
    ),
    no(
        which(
            "reward.*.kind",
            "a [[reward]] of kind = \"model\"",
            |case| {
                let index = case.run.reward.iter().position(Reward::is_model);
                index.map(|index| format!("reward.{index}.kind"))
            },
            &["reward.0.kind=model", "reward.0.model=m"],
        ),
        TOOLS,
        "whose episodes a reward model cannot read",
        "let a function or a verifier grade them",
    ),
    no(
        OVERLONG_BUFFER,
        ENVIRONMENT,
        "whose episodes are longer than one response",
        "remove {key}, or remove [environment]",
    ),
    no(
        POLICY_LAG,
        ENVIRONMENT,
        "whose episodes are played for the step that trains on them",
        "remove {key}, or remove [environment]",
    ),
    no(
        FILTERED,
        ENVIRONMENT,
        "whose episodes are played for the step that trains on them",
        "remove {key}, or remove [environment]",
    ),
    no(
        value!(data.answered is AnsweredPrompts::Continue, "continue"),
        ENVIRONMENT,
        "where \"continue\" has no turn of its own to go on with",
        "remove {key}, or remove [environment]",
    ),
    no(
        value!(data.overlong is Overlong::Drop, "drop"),
        ENVIRONMENT,
        "where \"drop\" would change the set of episodes",
        "remove {key}, or remove [environment]",
    ),
    no(
        OPTIMAL_TOKEN,
        ENVIRONMENT,
        "whose episodes have no common tokens to be compared at",
        "set method = \"grpo\" or \"reinforce\"",
    ),
    no(
        GREEDY,
        ENVIRONMENT,
        "whose episodes have no greedy answer to be compared with",
        "set method = \"grpo\" or \"reinforce\"",
    ),
];
