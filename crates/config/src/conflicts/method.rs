//! What does not go with a method: keys that it does not read, and what it has none of.

use super::setting::{Case, Conflict, Setting, first, is_policy, no, samples, when, which};
use super::shared::NO_SAMPLES;
use crate::RunFile;
use crate::estimator::Estimator;
use crate::sections::{Eval, Loss, Rollout};
use crate::values::{DynamicSampling, LossType};
use plimsoll_algo::advantage::{Advantage, MaskHole};
use plimsoll_algo::method::{LearnsFrom, Method};
use serde::Serialize;

const SAMPLES: Setting = when("method", "a method that samples", samples, &[]);
const NO_CRITIC: Setting =
    when("method", "a method without a critic", |run| !run.method.needs().critic, &["method=grpo"]);
const NO_TEACHER: Setting =
    when("method", "a method other than \"distill\"", |run| !run.method.needs().teacher, &["method=grpo"]);
const SCORES: Setting = when(
    "method",
    "method = \"reward_model\"",
    |run| run.method.needs().scores,
    &["-rollout", "-reward", "method=reward_model"],
);
const ONE_A_GROUP: Setting = when(
    "rollout.group_size",
    "rollout.group_size = 1",
    |run| run.rollout.group_size == 1 && samples(run),
    &["rollout.group_size=1"],
);

/// Keys of `[rollout]` that a method without tokens reads, and those that the planner chooses.
const OF_SCORES: [&str; 3] = ["prompts_per_step", "sequences_max", "kv_blocks"];
/// Keys of `[eval]` that an evaluation over pairs reads.
const OF_PAIRS: [&str; 2] = ["every", "prompts_max"];

/// Returns the keys of `[loss]` that a method over rows of data reads.
fn loss_keys(method: Method) -> &'static [&'static str] {
    match method {
        Method::Dpo => &["dpo_beta", "loss_type", "label_smoothing"],
        Method::Simpo => &["dpo_beta", "simpo_gamma"],
        Method::Cpo => &["dpo_beta", "nll_coef", "label_smoothing"],
        Method::Orpo => &["dpo_beta"],
        Method::Kto => &["dpo_beta", "desirable_weight", "undesirable_weight"],
        _ => &[],
    }
}

/// Returns the first key of a section that differs from its default and is none of `read`.
fn unread<T: Serialize + Default>(section: &str, set: &T, read: &[&str]) -> Option<String> {
    let table = |value: &T| toml::Table::try_from(value).expect("every section is a table");
    let (set, default) = (table(set), table(&T::default()));
    let differs = |key: &&String| set.get(*key) != default.get(*key) && !read.contains(&key.as_str());
    set.keys().find(differs).map(|key| format!("{section}.{key}"))
}

/// Returns the first key of a preference's loss that differs from its default, in a run that samples.
fn of_preferences(run: &RunFile) -> Option<String> {
    let (loss, default) = (&run.loss, Loss::default());
    first([
        ("loss.dpo_beta", loss.dpo_beta != default.dpo_beta),
        ("loss.loss_type", loss.loss_type != default.loss_type),
        ("loss.label_smoothing", loss.label_smoothing != default.label_smoothing),
        ("loss.simpo_gamma", loss.simpo_gamma != default.simpo_gamma),
        ("loss.nll_coef", loss.nll_coef != default.nll_coef),
        ("loss.desirable_weight", loss.desirable_weight != default.desirable_weight),
        ("loss.undesirable_weight", loss.undesirable_weight != default.undesirable_weight),
    ])
}

fn without_tokens<T: Serialize + Default>(
    case: &Case,
    section: &str,
    set: &T,
    read: &[&str],
) -> Option<String> {
    unread(section, set, read).filter(|_| case.run.method.needs().scores)
}

pub(super) const ROWS: &[Conflict] = &[
    no(
        when(
            "data.train_on",
            "data.train_on = \"assistant\"",
            |run| !run.data.train_on.is_last(),
            &["data.train_on=assistant"],
        ),
        when(
            "method",
            "a method other than \"sft\"",
            |run| run.method.needs().learns_from != LearnsFrom::Completions,
            &["method=grpo"],
        ),
        "which does not read it",
        "remove {key}: it is of method = \"sft\"",
    ),
    no(
        // Held-out prompts of `sft` are sampled from.
        when(
            "data.answered",
            "data.answered",
            |run| !run.data.answered.is_error(),
            &["data.answered=continue"],
        ),
        when(
            "method",
            "a method over pairs or labels",
            |run| run.method.needs().learns_from.is_judged(),
            &["method=dpo"],
        ),
        "which does not read it",
        "remove {key}: it is of methods that sample",
    ),
    no(
        which(
            "rollout.*",
            "a key of [rollout] for tokens",
            |case| without_tokens::<Rollout>(case, "rollout", &case.run.rollout, &OF_SCORES),
            &["-rollout", "-reward", "method=reward_model", "rollout.top_k=2"],
        ),
        SCORES,
        "which samples nothing",
        "remove {key}",
    ),
    no(
        which(
            "eval.*",
            "a key of [eval] for tokens",
            |case| without_tokens::<Eval>(case, "eval", &case.run.eval, &OF_PAIRS),
            &["-rollout", "-reward", "method=reward_model", "eval.samples=2"],
        ),
        SCORES,
        "which samples nothing",
        "remove {key}",
    ),
    no(
        when("reward", "[[reward]]", |run| !run.reward.is_empty(), &["reward.0.kind=exact"]),
        SCORES,
        "which is a reward itself",
        "remove {key}",
    ),
    no(
        when(
            "rollout.prompts_per_step",
            "rollout.prompts_per_step = 1",
            |run| run.rollout.prompts_per_step == 1,
            &["rollout.prompts_per_step=1"],
        ),
        when("method", "method = \"kto\"", |run| run.method == Method::Kto, &["method=kto"]),
        "whose KL is of prompts with other rows' answers",
        "set rollout.prompts_per_step to at least 2; TRL's batches have 8 or more",
    )
    .slug("group-too-small"),
    no(
        when(
            "loss.label_smoothing",
            "loss.label_smoothing",
            |run| run.loss.label_smoothing != 0.0 && run.method == Method::Dpo,
            &["method=dpo", "loss.label_smoothing=0.1"],
        ),
        when(
            "loss.loss_type",
            "loss.loss_type = \"ipo\"",
            |run| run.loss.loss_type == LossType::Ipo,
            &["method=dpo", "loss.loss_type=ipo"],
        ),
        "and it applies to \"sigmoid\", not to IPO",
        "remove it, or set loss.loss_type = \"sigmoid\"",
    ),
    no(
        which(
            "loss.*",
            "a key of [loss] that the method does not read",
            |case| {
                let of_data = case.run.method.spec().sampling.is_none();
                unread("loss", &case.run.loss, loss_keys(case.run.method)).filter(|_| of_data)
            },
            &["method=sft", "loss.entropy_coef=0.1"],
        ),
        NO_SAMPLES,
        "which does not read it",
        "remove {key}",
    ),
    no(
        which(
            "train.*",
            "train.mini_batch, or epochs_per_rollout above 1",
            |case| {
                let train = &case.run.train;
                first([
                    ("train.mini_batch", train.mini_batch.is_some()),
                    ("train.epochs_per_rollout", train.epochs_per_rollout != 1),
                ])
            },
            &["train.mini_batch=64"],
        ),
        NO_SAMPLES,
        "whose step over rows of data is one update",
        "remove {key}",
    ),
    no(
        which(
            "loss.*",
            "a key of a preference's loss",
            |case| of_preferences(case.run),
            &["loss.dpo_beta=0.2"],
        ),
        SAMPLES,
        "which does not read it",
        "remove {key}: it is of method = \"dpo\" or its kin",
    ),
    no(
        when("critic", "[critic]", |run| run.critic.is_some(), &["critic.model=actor"]),
        NO_CRITIC,
        "which has no critic",
        "set method = \"ppo\", or remove {key}",
    ),
    no(
        advantage!(Gae, "gae", "loss.advantage=gae"),
        NO_CRITIC,
        "which has no critic, and GAE is over a critic's values",
        "set method = \"ppo\", or remove {key}",
    ),
    no(
        when("loss.lambda", "loss.lambda below 1", |run| run.loss.lambda != 1.0, &["loss.lambda=0.9"]),
        NO_CRITIC,
        "which has no critic, and it belongs to GAE",
        "set method = \"ppo\", or remove {key}",
    ),
    no(
        when(
            "loss.mask_hole",
            "loss.mask_hole",
            |run| run.loss.mask_hole != MaskHole::Skip,
            &["loss.mask_hole=zero_value"],
        ),
        NO_CRITIC,
        "which has no critic, and it belongs to GAE",
        "set method = \"ppo\", or remove {key}",
    ),
    no(
        when(
            "loss.advantage",
            "loss.advantage other than \"gae\"",
            |run| run.loss.advantage.as_ref().is_some_and(|of| *of != Estimator::Named(Advantage::Gae)),
            &["loss.advantage=rloo"],
        ),
        when("method", "method = \"ppo\"", |run| run.method.needs().critic, &["method=ppo"]),
        "whose critic's values are the baseline: its advantage is \"gae\"",
        "remove loss.advantage, or set method = \"grpo\", which has a group baseline",
    ),
    no(
        when(
            "lora.critic",
            "lora.critic = \"adapter\"",
            |run| run.lora.as_ref().is_some_and(|lora| !lora.critic.is_full()),
            &["lora.critic=adapter"],
        ),
        NO_CRITIC,
        "which has no critic",
        "set method = \"ppo\", or remove lora.critic",
    ),
    no(
        when("distill", "[distill]", |run| run.distill.is_some(), &["distill.teacher=t"]),
        NO_TEACHER,
        "which has no teacher",
        "set method = \"distill\", or remove [distill]",
    ),
    no(
        when("loss.gamma", "loss.gamma below 1", |run| run.loss.gamma != 1.0, &["loss.gamma=0.9"]),
        when(
            "method",
            "a method without a discount",
            |run| run.method.spec().sampling.is_some_and(|of| !of.advantage.discounts()),
            &["method=grpo"],
        ),
        "whose reward belongs to the whole response",
        "set loss.gamma = 1.0, or method = \"reinforce\"",
    ),
    no(
        ONE_A_GROUP,
        when(
            "loss.advantage",
            "an advantage that compares a group",
            |run| run.loss.baseline().compares_group(),
            &["loss.advantage=group_norm"],
        ),
        "where one sample has nothing to be compared with",
        "set rollout.group_size to at least 2, or method = \"reinforce\", which compares over the whole step",
    )
    .slug("group-too-small"),
    no(
        when(
            "loss.dynamic_sampling",
            "loss.dynamic_sampling = true",
            |run| run.loss.dynamic_sampling == Some(DynamicSampling::Mixed),
            &["method=reinforce", "loss.dynamic_sampling=true"],
        ),
        ONE_A_GROUP,
        "which has one score a group, and groups are kept whose scores differ",
        "set rollout.group_size to at least 2, or remove loss.dynamic_sampling",
    )
    .slug("group-too-small"),
    no(
        when(
            "rollout.temperature",
            "rollout.temperature = 0",
            |run| run.rollout.temperature == 0.0 && !is_policy(run),
            &["rollout.temperature=0"],
        ),
        SAMPLES,
        "and a greedy policy never varies, and learns nothing",
        "set rollout.temperature = 1.0; eval.temperature is greedy by itself",
    ),
];
