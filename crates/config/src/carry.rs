//! `rollout.carry`: refuses what cannot wait for a later step, and a bound without an effect.

use super::limits::{SEQUENCES_PER_STEP_MAX, bad_value, contradiction};
use super::provenance::Provenance;
use super::rewards::reward_specs;
use super::sections::{Reward, RunFile};
use super::values::DynamicSampling;
use plimsoll_algo::advantage::Advantage;
use plimsoll_base::Result;
use plimsoll_reward::RewardSpec;
use plimsoll_textenv::Kind;

/// Requires samples of prompts that are compared with nothing but their group.
pub(super) fn check(run: &RunFile, at: &Provenance) -> Result<()> {
    let rollout = &run.rollout;
    if let Some(most) = rollout.lag_tokens_max {
        if rollout.carry == 0 {
            let message =
                "rollout.lag_tokens_max with rollout.carry = 0, where all tokens are of the newest weights";
            return Err(contradiction(at, "rollout.lag_tokens_max", message)
                .hint("set rollout.carry, or remove rollout.lag_tokens_max"));
        }
        if most >= rollout.max_new_tokens {
            let wanted = format!(
                "below rollout.max_new_tokens = {}: no response goes on after more",
                rollout.max_new_tokens
            );
            return Err(bad_value(at, "rollout.lag_tokens_max", most, &wanted));
        }
    }
    per_response(run, at)?;
    let may_replay = of_environment(run, |kind| kind.is_python() || kind.is_agents());
    if replays(run) && (rollout.carry == 0 || !may_replay) {
        let message = "environment.replay without rollout.carry and an environment in Python or agents, which alone are played again";
        return Err(contradiction(at, "environment.replay", message).hint("remove environment.replay"));
    }
    if rollout.carry == 0 {
        return Ok(());
    }
    if let Some((with, why)) = hindrance(run) {
        let message = format!("rollout.carry = {} with {with}, {why}", rollout.carry);
        return Err(contradiction(at, "rollout.carry", &message)
            .hint(format!("set rollout.carry = 0, or change {}", with.split(' ').next().unwrap_or(&with))));
    }
    let under_way = u64::from(rollout.prompts_per_step) + u64::from(rollout.carry);
    let sequences = under_way.saturating_mul(u64::from(rollout.group_size));
    if sequences > SEQUENCES_PER_STEP_MAX {
        let wanted = format!(
            "few enough: {sequences} sequences would be under way, and at most {SEQUENCES_PER_STEP_MAX} are taken"
        );
        return Err(bad_value(at, "rollout.carry", rollout.carry, &wanted));
    }
    Ok(())
}

/// Refuses `per_response` where it changes nothing.
fn per_response(run: &RunFile, at: &Provenance) -> Result<()> {
    for (index, reward) in run.reward.iter().enumerate().filter(|(_, reward)| reward.per_response) {
        let key = format!("reward.{index}.per_response");
        let plain = Reward { per_response: false, ..reward.clone() };
        let why = match reward_specs(&[plain], "").first().map(RewardSpec::is_per_response) {
            _ if run.rollout.carry == 0 => {
                "rollout.carry = 0, where a response is graded as soon as its group has ended"
            }
            _ if of_environment(run, Kind::is_graded) => {
                "environment.env = \"tools\", whose episodes are graded when they are trained"
            }
            None => "kind = \"model\", which scores responses between the rollout and the update",
            Some(true) => "a kind that scores each response by itself anyway",
            Some(false) => continue,
        };
        let message = format!("{key} with {why}");
        return Err(contradiction(at, &key, &message).hint(format!("remove {key}")));
    }
    Ok(())
}

/// Returns true if the run has an environment of such a kind.
fn of_environment(run: &RunFile, is_so: fn(&Kind) -> bool) -> bool {
    let kind = run.environment.as_ref().map(|environment| Kind::parse(&environment.env));
    kind.and_then(Result::ok).is_some_and(|kind| is_so(&kind))
}

fn replays(run: &RunFile) -> bool {
    run.environment.as_ref().is_some_and(|environment| environment.replay)
}

/// Returns the setting that does not go with groups of several steps, and why.
pub fn hindrance(run: &RunFile) -> Option<(String, &'static str)> {
    let (loss, baseline) = (&run.loss, run.loss.baseline());
    let branches = run.environment.as_ref().map_or(1, |environment| environment.branches_max);
    let advantage = format!("loss.advantage = \"{baseline}\"");
    [
        (
            run.method.spec().sampling.is_none(),
            format!("method = \"{}\"", run.method),
            "which samples nothing",
        ),
        (
            of_environment(run, Kind::is_agents) && !replays(run),
            "environment.replay = false".into(),
            "where a resumed run cannot begin the episodes of agents again",
        ),
        (
            of_environment(run, Kind::is_agents) && branches > 1,
            format!("environment.branches_max = {branches}"),
            "and an agent's episode that takes several steps is one sequence",
        ),
        (
            of_environment(run, Kind::is_python) && !replays(run),
            "environment.replay = false".into(),
            "where a worker cannot take back a turn that was played after the step's tick",
        ),
        (run.rollout.policy_lag > 0, "rollout.policy_lag".into(), "which makes samples old in another way"),
        (
            loss.dynamic_sampling.and_then(DynamicSampling::filter).is_some(),
            "loss.dynamic_sampling".into(),
            "which draws further groups in the same step",
        ),
        (
            baseline == Advantage::Greedy,
            advantage.clone(),
            "which compares with an answer of the newest weights",
        ),
        (baseline == Advantage::OptimalToken, advantage, "which needs all tokens of the newest weights"),
        (loss.covariance.is_some(), "loss.covariance".into(), "which needs all tokens of the newest weights"),
    ]
    .into_iter()
    .find_map(|(is_so, with, why)| is_so.then_some((with, why)))
}
