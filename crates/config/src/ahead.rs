//! `rollout.ahead`: refuses what cannot be drawn before the step that trains on it.

use super::limits::{SEQUENCES_PER_STEP_MAX, bad_value, contradiction};
use super::not_built;
use super::provenance::Provenance;
use super::sections::{ARRIVALS_STEP, ARRIVALS_TICK, RunFile};
use super::values::{Auto, DynamicSampling};
use plimsoll_algo::advantage::Advantage;
use plimsoll_base::Result;

/// Requires samples that a later step can take as they are.
pub(super) fn check(run: &RunFile, at: &Provenance) -> Result<()> {
    let rollout = &run.rollout;
    ranks_apart(run, at)?;
    arrivals(run, at)?;
    if rollout.ahead == 0 {
        return Ok(());
    }
    if let Some((with, why)) = hindrance(run) {
        let message = format!("rollout.ahead = {} with {with}, {why}", rollout.ahead);
        return Err(contradiction(at, "rollout.ahead", &message)
            .hint(format!("set rollout.ahead = 0, or change {}", with.split(' ').next().unwrap_or(&with))));
    }
    let of_step = u64::from(rollout.prompts_per_step).saturating_mul(u64::from(rollout.group_size));
    let sequences = of_step.saturating_mul(1 + u64::from(rollout.ahead));
    if sequences > SEQUENCES_PER_STEP_MAX {
        let wanted =
            format!("few enough: {sequences} sequences would wait, and at most {SEQUENCES_PER_STEP_MAX} may");
        return Err(bad_value(at, "rollout.ahead", rollout.ahead, &wanted));
    }
    Ok(())
}

/// Refuses ranks that only sample where they would wait for those that train, and what is not built with them.
fn ranks_apart(run: &RunFile, at: &Provenance) -> Result<()> {
    let apart = run.run.rollout_ranks;
    if apart == 0 {
        return Ok(());
    }
    if run.rollout.ahead == 0 {
        let message = format!(
            "run.rollout_ranks = {apart} with rollout.ahead = 0, where nothing is drawn while the others train"
        );
        return Err(contradiction(at, "run.rollout_ranks", &message).hint("set rollout.ahead = 1"));
    }
    let not_built = |with: &str, built| Err(not_built::error(at, "run.rollout_ranks", with, built));
    if run.run.zero_stage == Auto::Value(3) {
        return not_built("run.zero_stage = 3", "run.zero_stage = 2");
    }
    Ok(())
}

/// Refuses weights that arrive in the middle of rollouts where none is under way, or nothing decides when.
fn arrivals(run: &RunFile, at: &Provenance) -> Result<()> {
    let (rollout, key) = (&run.rollout, "rollout.arrivals");
    let (ahead, asked) = (rollout.ahead, &rollout.arrivals);
    if asked == ARRIVALS_STEP {
        return Ok(());
    }
    if asked.is_empty() {
        return Err(bad_value(at, key, "\"\"", "\"step\", \"tick\" or the path of a schedule.jsonl"));
    }
    if ahead == 0 {
        let message = format!("{key} = \"{asked}\" with rollout.ahead = 0, where no rollout is under way");
        return Err(contradiction(at, key, &message).hint("set rollout.ahead = 1"));
    }
    let apart = run.run.rollout_ranks;
    if asked == ARRIVALS_TICK && apart != 1 {
        let message = format!(
            "{key} = \"tick\" with run.rollout_ranks = {apart}: one rank that only samples says when they arrive"
        );
        return Err(contradiction(at, key, &message)
            .hint("set run.rollout_ranks = 1, or follow the schedule.jsonl of such a run"));
    }
    let greedy = run.loss.baseline() == Advantage::Greedy;
    if greedy || run.loss.dynamic_sampling.and_then(DynamicSampling::filter).is_some() {
        let with = if greedy { "loss.advantage = \"greedy\"" } else { "loss.dynamic_sampling" };
        let message =
            format!("{key} = \"{asked}\" with {with}, which draws further responses with the same weights");
        return Err(contradiction(at, key, &message).hint(format!("set {key} = \"step\"")));
    }
    Ok(())
}

/// Returns the setting that does not go with samples of an earlier step, and why.
fn hindrance(run: &RunFile) -> Option<(String, &'static str)> {
    let (loss, baseline) = (&run.loss, run.loss.baseline());
    [
        (
            run.method.spec().sampling.is_none(),
            format!("method = \"{}\"", run.method),
            "which samples nothing",
        ),
        (run.environment.is_some(), "environment.env".into(), "whose episodes are played in one step"),
        (run.rollout.policy_lag > 0, "rollout.policy_lag".into(), "which makes samples old in another way"),
        (run.rollout.carry > 0, "rollout.carry".into(), "which makes samples old in another way"),
        (
            baseline == Advantage::OptimalToken,
            format!("loss.advantage = \"{baseline}\""),
            "which needs all tokens of the newest weights",
        ),
        (loss.covariance.is_some(), "loss.covariance".into(), "which needs all tokens of the newest weights"),
    ]
    .into_iter()
    .find_map(|(is_so, with, why)| is_so.then_some((with, why)))
}
