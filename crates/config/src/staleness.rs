//! Samples that are older than the weights that they train: how many may wait, and for how long.

use super::limits::{SEQUENCES_PER_STEP_MAX, bad_value};
use super::provenance::Provenance;
use super::sections::RunFile;
use plimsoll_base::Result;

/// Requires numbers of sequences and tokens that a run can hold.
pub(super) fn check(run: &RunFile, at: &Provenance) -> Result<()> {
    let (rollout, of) = (&run.rollout, &run.asynchrony);
    if of.weight_sync.is_empty() {
        let takes = "\"step\", \"tick\" or the path of a schedule.jsonl";
        return Err(bad_value(at, "async.weight_sync", "\"\"", takes));
    }
    let longest = rollout.max_new_tokens;
    if let Some(most) = of.stale_tokens_max.filter(|&most| most >= longest) {
        let wanted = format!("below rollout.max_new_tokens = {longest}: no response goes on after more");
        return Err(bad_value(at, "async.stale_tokens_max", most, &wanted));
    }
    let (prompts, group) = (u64::from(rollout.prompts_per_step), u64::from(rollout.group_size));
    let carried = (prompts + u64::from(of.partial_rollouts)).saturating_mul(group);
    let ahead = prompts.saturating_mul(group).saturating_mul(1 + u64::from(of.staleness));
    for (key, value, sequences) in
        [("async.partial_rollouts", of.partial_rollouts, carried), ("async.staleness", of.staleness, ahead)]
    {
        if value > 0 && sequences > SEQUENCES_PER_STEP_MAX {
            let wanted = format!(
                "few enough: {sequences} sequences would be under way, and at most {SEQUENCES_PER_STEP_MAX} may"
            );
            return Err(bad_value(at, key, value, &wanted));
        }
    }
    Ok(())
}
