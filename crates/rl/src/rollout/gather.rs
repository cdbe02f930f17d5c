//! One rollout: prompts are sampled and graded, and with dynamic sampling groups that are not kept are replaced by groups
//! of further prompts, in further rounds whose number is bounded. Every round uses the engine's buffers; what is kept is
//! moved to a buffer of its own.

use crate::data::dataset::Item;
use crate::episodes;
use crate::methods::metrics::forward_flops;
use crate::methods::policy::{StepContext, StepReport};
use crate::roles::{Trainer, sampling};
use crate::rollout::grading::Grading;
use crate::rollout::held::HeldGroup;
use crate::rollout::model_reward::ModelReward;
use plimsoll_algo::shaping::GroupFilter;
use plimsoll_base::{Error, Result};
use plimsoll_reward::Scored;
use plimsoll_rollout::{Request, RolloutStats};
use plimsoll_run::status::Doing;
use std::time::Instant;

/// Where the next prompt is in the data, and which random numbers the next sample draws: counters that a checkpoint has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Position of the next prompt.
    pub data_position: u64,
    /// Number of the next sample.
    pub next_sample_id: u64,
}

/// What a rollout took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gathered {
    /// Rounds.
    pub rounds: u32,
    /// Groups that were sampled.
    pub sampled: usize,
    /// Groups that passed, those included that were not needed any more.
    pub passed: usize,
    /// Groups that the rollout has fewer than it was to have.
    pub missing: usize,
    /// Sum of all rewards that were given.
    pub rewards: f64,
    /// How many were given.
    pub rewarded: usize,
}

impl Gathered {
    /// Share of sampled groups that passed; the metric `dynamic_sampling/kept_share`.
    pub fn kept_share(&self) -> f64 {
        self.passed as f64 / self.sampled.max(1) as f64
    }

    /// Mean reward of all that was sampled; the metric `dynamic_sampling/reward`.
    pub fn mean_reward(&self) -> f64 {
        self.rewards / self.rewarded.max(1) as f64
    }

    /// Prompts of the next round where `missing` groups are missing: as many as the share that passed so far makes
    /// likely to be enough, and never more than a rollout has.
    fn next_round(&self, missing: usize, rollout: usize) -> usize {
        match self.passed {
            0 => rollout,
            passed => (missing * self.sampled).div_ceil(passed).min(rollout),
        }
    }
}

/// Fills `cx.held` with the groups of a rollout, and moves `cx.cursor` behind what it took.
///
/// Errors: `dynamic-sampling-exhausted` if no group was kept; those of sampling and of the rewards.
pub fn gather(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    step: u32,
    report: &mut StepReport,
) -> Result<()> {
    let wanted = cx.run.prompts_per_rollout() as usize;
    let rounds = match cx.objective.filter {
        Some(_) => 1 + cx.run.loss.dynamic_sampling_retries.unwrap_or(0),
        None => 1,
    };
    cx.held.begin(step, trainer.updates());
    if let Some(kept) = &mut trainer.kept {
        kept.clear();
    }
    let mut gathered = Gathered { missing: wanted, ..Gathered::default() };
    while gathered.missing > 0 && gathered.rounds < rounds {
        let prompts = gathered.next_round(gathered.missing, wanted);
        round(trainer, cx, prompts, step, report, &mut gathered)?;
        gathered.rounds += 1;
        gathered.missing = wanted - cx.held.groups().len();
    }
    if cx.held.groups().is_empty() {
        return Err(exhausted(cx.objective.filter, &gathered, step));
    }
    report.gathered = Some(gathered);
    Ok(())
}

/// Samples and grades `prompts` prompts, and keeps of their groups what passes and is still needed.
fn round(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    prompts: usize,
    step: u32,
    report: &mut StepReport,
    gathered: &mut Gathered,
) -> Result<()> {
    let group = cx.run.rollout.group_size as usize;
    let first = cx.cursor.data_position;
    let items = match &mut cx.episodes {
        Some(episodes) => episodes.begin(cx.text, first, prompts, group)?,
        None => (cx.prompts)(first, prompts)?,
    };
    (cx.edge)(Doing::Rollout);
    let ids: Vec<&[u32]> = items.iter().map(|item| item.ids.as_slice()).collect();
    let request = Request {
        prompts: &ids,
        group_size: group,
        max_new_tokens: cx.run.rollout.max_new_tokens as usize,
        sampling: sampling(&cx.run.rollout, cx.run.seed),
        eos: cx.eos,
        first_sample_id: cx.cursor.next_sample_id,
    };
    let (scored, texts) = match cx.episodes.is_some() {
        true => episodes::play(trainer, cx, &request, report)?,
        false => respond(trainer, cx, &request, &items, step, report)?,
    };
    let (mut scored, mut texts) = (scored.into_iter(), texts.into_iter());

    let out = &trainer.samples;
    report.sampled_tokens += out.sampled_tokens();
    let lengths = (0..out.len()).map(|s| (items[s / group].ids.len(), out.ids(s).len()));
    report.flops += forward_flops(&trainer.shape.spec, items.iter().map(|item| item.ids.len()), lengths);
    cx.cursor.data_position += prompts as u64;
    cx.cursor.next_sample_id += (prompts * group) as u64;

    let wanted = cx.run.prompts_per_rollout() as usize;
    for (g, item) in items.into_iter().enumerate() {
        let scored: Vec<_> = scored.by_ref().take(group).collect();
        let texts: Vec<String> = texts.by_ref().take(group).collect();
        let rewards: Vec<Option<f32>> = scored.iter().map(|s| s.total).collect();
        gathered.sampled += 1;
        gathered.rewarded += rewards.iter().flatten().count();
        gathered.rewards += rewards.iter().flatten().map(|&reward| f64::from(reward)).sum::<f64>();
        if cx.objective.filter.is_some_and(|filter| !filter.keeps(&rewards)) {
            continue;
        }
        gathered.passed += 1;
        if cx.held.groups().len() == wanted {
            continue; // The round was likely to be too small, and was not.
        }
        if let Some(kept) = &mut trainer.kept {
            for s in g * group..(g + 1) * group {
                kept.push_response(out.ids(s), out.logprobs(s), out.finish(s));
            }
        }
        cx.held.push(HeldGroup { position: first + g as u64, item, scored, texts });
    }
    Ok(())
}

/// Samples responses to `items`, which are graded as they end: their scores and texts.
fn respond(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    request: &Request<'_>,
    items: &[Item],
    step: u32,
    report: &mut StepReport,
) -> Result<(Vec<Scored>, Vec<String>)> {
    let (group, steps) = (request.group_size, [step, cx.run.train.steps]);
    let started = Instant::now();
    let mut grading = Grading::begin(&mut cx.rewards, cx.text, &cx.run.rollout, items, group, steps)?;
    let stats = trainer.rollout(request, &mut grading)?;
    let texts = grading.texts();
    add(&mut report.rollout, &stats);
    report.seconds.rollout += started.elapsed().as_secs_f64();

    (cx.edge)(Doing::Reward);
    let started = Instant::now();
    let mut scored = cx.rewards.finish()?;
    if let Some(model) = ModelReward::of(&cx.run.reward) {
        model.add(trainer, items, group, &mut scored)?;
    }
    report.add_graded(&cx.rewards);
    report.seconds.reward += started.elapsed().as_secs_f64();
    Ok((scored, texts))
}

pub(crate) fn add(sum: &mut RolloutStats, round: &RolloutStats) {
    sum.passes += round.passes;
    sum.rows += round.rows;
    sum.preemptions += round.preemptions;
}

/// No group of a whole rollout was kept.
fn exhausted(filter: Option<GroupFilter>, gathered: &Gathered, step: u32) -> Error {
    let Gathered { rounds, sampled, rewarded, .. } = *gathered;
    let wanted = match filter {
        Some(GroupFilter::Mean { low, high }) => format!("a mean score above {low} and below {high}"),
        Some(GroupFilter::Mixed) | None => "scores that differ".to_string(),
    };
    let message = format!("step {step}: none of {sampled} groups in {rounds} rounds has {wanted}");
    Error::new("dynamic-sampling-exhausted", message)
        .fact(format!("mean score {} over {rewarded} samples", gathered.mean_reward()))
        .hint("choose prompts that the model sometimes solves, or raise rollout.group_size")
        .hint("raise loss.dynamic_sampling_retries, or remove loss.dynamic_sampling: such groups then teach nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_as_large_as_what_passed_makes_likely_to_be_enough() {
        for (sampled, passed, missing, expect) in
            [(0, 0, 8, 8), (8, 0, 8, 8), (8, 4, 4, 8), (8, 6, 2, 3), (8, 1, 7, 8), (16, 7, 1, 3)]
        {
            let gathered = Gathered { sampled, passed, ..Gathered::default() };
            assert_eq!(gathered.next_round(missing, 8), expect, "{sampled} {passed} {missing}");
        }
    }
}
