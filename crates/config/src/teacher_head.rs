//! A teacher whose head is the run's own: the rows that it keeps are of the head that a step begins with.

use super::distill::OwnTeacher;
use super::limits::contradiction;
use super::provenance::Provenance;
use super::sections::RunFile;
use super::spec::sequences_per_step;
use plimsoll_base::Result;

/// Refuses updates that change the head of a teacher before all rows that it kept were compared: without `top_k` the
/// teacher's head reads in each update what its layers gave when the step began.
pub(super) fn check(run: &RunFile, at: &Provenance) -> Result<()> {
    let Some(distill) = &run.distill else { return Ok(()) };
    if !distill.is_whole() || distill.own_teacher() != Some(OwnTeacher::Now) || run.lora.is_some() {
        return Ok(());
    }
    let sequences =
        sequences_per_step(run.method.needs(), run.rollout.prompts_per_step, run.rollout.group_size);
    let cut = run.train.mini_batch.filter(|&mini_batch| u64::from(mini_batch) < sequences);
    let (key, value) = match (run.train.epochs_per_rollout, cut) {
        (1, None) => return Ok(()),
        (1, Some(mini_batch)) => ("train.mini_batch", mini_batch),
        (epochs, _) => ("train.epochs_per_rollout", epochs),
    };
    let message = format!(
        "{key} = {value} with distill.teacher = \"self\" and no distill.top_k: each update of a step changes the teacher's head"
    );
    Err(contradiction(at, key, &message)
        .hint(format!("remove {key}, for one update a step"))
        .hint("or set distill.top_k = 64, whose lists are made once, or distill.teacher = \"initial\""))
}
