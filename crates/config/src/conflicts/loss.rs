//! What does not go together in `[loss]`: keys without the one that they are of, and the credit of turns and steps.

use super::setting::{Case, Conflict, Setting, first, no, plays, samples, when, which};
use super::shared::{ENVIRONMENT, GPG, GREEDY, OPTIMAL_TOKEN, OVERLONG_BUFFER};
use crate::estimator::Estimator;
use crate::sections::{Loss, RunFile};
use crate::values::{Credit, DynamicSampling, KlIn};
use plimsoll_algo::advantage::Advantage;
use plimsoll_algo::covariance::CovarianceKind;
use plimsoll_algo::policy_loss::PolicyLossKind;
use plimsoll_algo::turns::TurnCredit;

const NO_KL: Setting = when("loss.kl_coef", "loss.kl_coef = 0", |run| run.loss.kl_coef == 0.0, &[]);
const KL_UNBIASED: Setting = when(
    "loss.kl_unbiased",
    "loss.kl_unbiased = true",
    |run| run.loss.kl_unbiased,
    &["loss.kl_unbiased=true"],
);
const NO_FUNCTION: Setting = when(
    "loss.advantage",
    "a loss.advantage by name",
    |run| !is_function(&run.loss),
    &["loss.advantage=rloo"],
);
const GAMMA: Setting = when(
    "loss.gamma",
    "loss.gamma below 1",
    |run| run.loss.gamma != 1.0,
    &["method=reinforce", "loss.gamma=0.9"],
);
const STEPS: Setting = when(
    "loss.step_credit",
    "loss.step_credit",
    |run| run.loss.step_credit.is_some(),
    &["loss.step_credit=turn", "reward.0.kind=python:a.py:f"],
);
const CREDIT_EXAMPLE: &[&str] =
    &["-data", "-reward", "environment.env=text:second-try", "environment.credit=process"];
const CREDITED: Setting = which(
    "environment.credit",
    "environment.credit of turns that are compared, or loss.step_credit",
    |case| credited(case.run).map(|(key, _)| key.to_string()),
    CREDIT_EXAMPLE,
);
const PROCESS: Setting = which(
    "environment.credit",
    "environment.credit or loss.step_credit = \"process\"",
    |case| {
        let process = |(_, how): &(&str, TurnCredit)| *how == TurnCredit::Process;
        credited(case.run).filter(process).map(|(key, _)| key.to_string())
    },
    CREDIT_EXAMPLE,
);

fn is_function(loss: &Loss) -> bool {
    matches!(loss.advantage, Some(Estimator::Python { .. }))
}

/// Returns the key that lets turns or steps be compared, and how.
fn credited(run: &RunFile) -> Option<(&'static str, TurnCredit)> {
    let environment = run.environment.as_ref().filter(|_| plays(run));
    match environment.map(|of| of.credit) {
        Some(Credit::Process) => Some(("environment.credit", TurnCredit::Process)),
        // Without a group a turn's reward is placed on its last token.
        Some(Credit::Turn) if run.loss.baseline().compares_group() => {
            Some(("environment.credit", TurnCredit::Returns))
        }
        _ => run.loss.step_credit.filter(|_| samples(run)).map(|how| ("loss.step_credit", how)),
    }
}

/// Returns a clip where the policy loss has none.
fn idle_clip(case: &Case) -> Option<String> {
    let loss = &case.run.loss;
    let clips = loss.policy.is_none_or(PolicyLossKind::clips);
    first([("loss.clip_low", loss.clip_low.is_some()), ("loss.clip_high", loss.clip_high.is_some())])
        .filter(|_| !clips)
}

/// Returns a limit of a function that differs from its default.
fn limit_of_function(case: &Case) -> Option<String> {
    let (loss, default) = (&case.run.loss, Loss::default());
    first([
        ("loss.advantage_python", loss.advantage_python.is_some()),
        ("loss.advantage_memory", loss.advantage_memory != default.advantage_memory),
        ("loss.advantage_timeout_ms", loss.advantage_timeout_ms != default.advantage_timeout_ms),
    ])
}

pub(super) const ROWS: &[Conflict] = &[
    no(
        which(
            "loss.clip_*",
            "loss.clip_low or clip_high",
            idle_clip,
            &["loss.policy=sapo", "loss.clip_high=0.3"],
        ),
        when(
            "loss.policy",
            "a policy loss without clips",
            |run| run.loss.policy.is_some_and(|policy| !policy.clips()),
            &["loss.policy=sapo"],
        ),
        "which clips nothing",
        "remove {key}, or set loss.policy = \"ppo\"",
    ),
    no(
        set!(loss.dual_clip = "3.0"),
        when(
            "loss.policy",
            "a policy loss other than \"ppo\"",
            |run| run.loss.policy.is_some_and(|policy| policy != PolicyLossKind::Ppo),
            &["loss.policy=gspo"],
        ),
        "and it bounds the policy loss \"ppo\"",
        "remove loss.dual_clip, or set loss.policy = \"ppo\"",
    ),
    no(
        set!(loss.kl_target = "0.1"),
        NO_KL,
        "which has nothing to adapt",
        "set loss.kl_coef = 0.001, or remove loss.kl_target",
    ),
    no(
        set!(loss.kl_horizon = "9.0"),
        unset!(loss.kl_target),
        "to which it would move",
        "set loss.kl_target, or remove loss.kl_horizon",
    ),
    no(
        KL_UNBIASED,
        NO_KL,
        "where there is no KL term",
        "set loss.kl_coef = 0.001 and loss.kl_in = \"loss\", or remove loss.kl_unbiased",
    ),
    no(
        KL_UNBIASED,
        when(
            "loss.kl_in",
            "loss.kl_in = \"reward\"",
            |run| run.loss.kl_in == KlIn::Reward,
            &["loss.kl_in=reward", "loss.kl_coef=0.1"],
        ),
        "where the KL term has no gradient",
        "set loss.kl_coef = 0.001 and loss.kl_in = \"loss\", or remove loss.kl_unbiased",
    ),
    no(
        set!(loss.dynamic_sampling_retries = "3"),
        when(
            "loss.dynamic_sampling",
            "loss.dynamic_sampling = false",
            |run| run.loss.dynamic_sampling.and_then(DynamicSampling::filter).is_none(),
            &[],
        ),
        "which keeps every group",
        "set loss.dynamic_sampling = true, or remove loss.dynamic_sampling_retries",
    ),
    no(
        set!(loss.correction_band = "[0.5, 2.0]"),
        unset!(loss.correction),
        "whose weights it bounds",
        "set loss.correction = \"tis\", or remove loss.correction_band",
    ),
    no(
        set!(loss.covariance_share = "0.002"),
        unset!(loss.covariance),
        "whose tokens it counts",
        "set loss.covariance = \"clip\", or remove {key}",
    ),
    no(
        set!(loss.covariance_band = "[1.0, 5.0]"),
        when(
            "loss.covariance",
            "no loss.covariance = \"clip\"",
            |run| run.loss.covariance != Some(CovarianceKind::Clip),
            &[],
        ),
        "and \"clip\" draws from the band",
        "set loss.covariance = \"clip\", or remove {key}",
    ),
    no(
        set!(loss.covariance_coef = "0.5"),
        when(
            "loss.covariance",
            "no loss.covariance = \"kl\"",
            |run| run.loss.covariance != Some(CovarianceKind::Kl),
            &[],
        ),
        "and \"kl\" holds tokens by it",
        "set loss.covariance = \"kl\", or remove {key}",
    ),
    no(
        GAMMA,
        when(
            "loss.advantage",
            "a function of yours as loss.advantage",
            |run| is_function(&run.loss),
            &["loss.advantage=python:a.py:f"],
        ),
        "a function of yours, which discounts by itself",
        "remove loss.gamma: discount `token_rewards` in the function",
    ),
    no(
        which(
            "loss.advantage_*",
            "loss.advantage_python, memory or timeout_ms",
            limit_of_function,
            &["loss.advantage_timeout_ms=5"],
        ),
        NO_FUNCTION,
        "which is no function of yours",
        "set loss.advantage = \"python:FILE.py:FUNCTION\", or remove {key}",
    ),
    no(
        set!(loss.overlong_factor = "0.5"),
        unset!(loss.overlong_buffer),
        "whose cost it is",
        "set loss.overlong_buffer, or remove loss.overlong_factor",
    ),
    no(
        OVERLONG_BUFFER,
        advantage!(Decoupled, "decoupled", "loss.advantage=decoupled"),
        "which compares rewards as they are",
        "remove loss.overlong_buffer, and add a [[reward]] with kind = \"length\"",
    ),
    no(
        OVERLONG_BUFFER,
        GREEDY,
        "which compares rewards as they are",
        "remove loss.overlong_buffer, and add a [[reward]] with kind = \"length\"",
    ),
];

/// The hint where an advantage that is compared turn by turn is neither of these.
const COMPARED: &str = "set loss.advantage = \"group_norm\" or \"mean_baseline\", or remove {key}";

pub(super) const CREDIT: &[Conflict] = &[
    no(
        set!(loss.step_credit = "turn"),
        ENVIRONMENT,
        "which has turns",
        "set environment.credit, and remove loss.step_credit",
    ),
    no(
        set!(loss.step_credit = "turn"),
        when(
            "reward",
            "no [[reward]] that can return steps",
            |run| {
                let returns =
                    |kind: &str| ["python:", "http:", "https:"].iter().any(|of| kind.starts_with(of));
                !run.reward.iter().any(|reward| returns(&reward.kind))
            },
            &["reward.0.kind=exact"],
        ),
        "which it would credit",
        "add a [[reward]] with kind = \"python:FILE.py:FUNCTION\", or remove loss.step_credit",
    ),
    no(
        STEPS,
        OVERLONG_BUFFER,
        "which costs whole responses reward",
        "remove loss.overlong_buffer, and add a [[reward]] with kind = \"length\"",
    ),
    no(
        CREDITED,
        when(
            "loss.advantage",
            "an advantage that compares no group",
            |run| !run.loss.baseline().compares_group(),
            &["loss.advantage=none"],
        ),
        "which compares no group",
        COMPARED,
    ),
    no(CREDITED, GPG, "which counts the whole samples of a step that have a reward of 0", COMPARED),
    no(
        CREDITED,
        advantage!(Lead, "lead", "loss.advantage=lead"),
        "which pays the best whole sample of a group and no other",
        COMPARED,
    ),
    no(
        CREDITED,
        advantage!(Decoupled, "decoupled", "loss.advantage=decoupled"),
        "which compares each reward of a whole sample by itself",
        COMPARED,
    ),
    no(STEPS, OPTIMAL_TOKEN, "which has a baseline of each token", COMPARED),
    no(
        PROCESS,
        advantage!(Rloo, "rloo", "loss.advantage=rloo"),
        "which leaves a sample out of its own baseline, and here an episode's other turns stay in it",
        COMPARED,
    ),
    no(
        PROCESS,
        advantage!(LengthWeighted, "length_weighted", "loss.advantage=length_weighted"),
        "which weighs whole samples by their lengths",
        COMPARED,
    ),
    no(
        when(
            "loss.gamma",
            "loss.gamma below 1",
            |run| run.loss.gamma != 1.0,
            &["method=reinforce", "loss.advantage=rloo", "loss.gamma=0.9"],
        ),
        which(
            "environment.credit",
            "environment.credit of turns that are compared, or loss.step_credit",
            |case| credited(case.run).map(|(key, _)| key.to_string()),
            &["-data", "-reward", "environment.env=text:second-try", "environment.credit=turn"],
        ),
        "where a group is compared turn by turn",
        "remove loss.gamma, which discounts tokens",
    ),
];
