//! A whole rollout: prompts are sampled and graded. With dynamic sampling, groups that are not kept are replaced by
//! groups of further prompts, in a bounded number of further rounds. Every round uses the engine's buffers; what is
//! kept is moved to a separate buffer.

use super::gathered::Gathered;
use super::group::{Branch, SampleGroup};
use super::rollout::Rollout;
use crate::context::StepContext;
use crate::flops::forward_flops;
use crate::players::Answered;
use crate::roles::Trainer;
use plimsoll_algo::shaping::GroupFilter;
use plimsoll_base::{Error, Result, slugs};
use plimsoll_infer::responder::Responder;
use plimsoll_infer::text::Item;
use plimsoll_rollout::Samples;
use plimsoll_run::checkpoint::BufferState;
use std::sync::Arc;

/// Draws and grades the groups of a rollout, and moves `cx.cursor` past them. `held`: where groups may be dropped, or
/// outlive the engine's next request, room for those that are kept.
///
/// Errors: `dynamic-sampling-exhausted` if no group was kept; those of sampling and of the rewards.
pub fn draw(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    step: u32,
    mut held: Option<&mut Arc<Samples>>,
) -> Result<(Rollout, Gathered)> {
    let wanted = cx.run.prompts_per_rollout() as usize;
    let rounds = match cx.objective.filter {
        Some(_) => 1 + cx.run.trains.samples().map_or(0, |of| of.retries),
        None => 1,
    };
    let (filters, filter) = (cx.objective.filter.is_some(), cx.objective.filter);
    let mut gathered = Gathered { filters, missing: wanted, ..Gathered::default() };
    let mut kept = Kept {
        wanted,
        groups: Vec::with_capacity(wanted),
        samples: held.as_deref_mut().map(Samples::to_write),
    };
    kept.samples.iter_mut().for_each(|samples| samples.clear());
    while gathered.missing > 0 && gathered.rounds < rounds {
        let prompts = gathered.next_round(gathered.missing, wanted);
        round(trainer, cx, prompts, step, &mut kept, &mut gathered)?;
        gathered.rounds += 1;
        gathered.missing = wanted - kept.groups.len();
    }
    if kept.groups.is_empty() {
        return Err(exhausted(filter, &gathered, step));
    }
    let of = BufferState { step, policy_version: trainer.updates(), groups: 0 };
    let groups = kept.groups;
    let samples = Arc::clone(held.unwrap_or(&mut trainer.sampler.samples));
    Ok((Rollout { of, groups, samples, versions: Vec::new() }, gathered))
}

/// The groups of a rollout that passed.
struct Kept<'k> {
    /// The most of them.
    wanted: usize,
    groups: Vec<SampleGroup>,
    /// Their samples, where those of a request do not stay.
    samples: Option<&'k mut Samples>,
}

/// Samples and grades `prompts` prompts, and keeps those of their groups that pass and are still needed.
fn round(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    prompts: usize,
    step: u32,
    kept: &mut Kept<'_>,
    gathered: &mut Gathered,
) -> Result<()> {
    let group = cx.run.rollout.group_size as usize;
    let first = cx.cursor.data_position;
    let (player, mut play) = cx.play(step);
    let answered = player.play(trainer, &mut play, prompts, gathered)?;
    let Answered { items, scored, texts, branches, greedy } = answered;
    let (mut scored, mut texts) = (scored.into_iter(), texts.into_iter());

    count_drawn(trainer, (&items, group), branches.as_deref(), gathered);
    let out = &trainer.sampler.samples;
    cx.cursor.data_position += prompts as u64;
    cx.cursor.next_sample_id += (prompts * group) as u64;

    let mut branches = branches.map(Vec::into_iter);
    for (g, item) in items.into_iter().enumerate() {
        let scored: Vec<_> = scored.by_ref().take(group).collect();
        let texts: Vec<String> = texts.by_ref().take(group).collect();
        let branches = branches.as_mut().and_then(Iterator::next);
        let rewards: Vec<Option<f32>> = scored.iter().map(|s| s.total).collect();
        gathered.count_group(&scored);
        if cx.objective.filter.is_some_and(|filter| !filter.keeps(&rewards)) {
            continue;
        }
        gathered.passed += 1;
        if kept.groups.len() == kept.wanted {
            continue; // The round was likely to be too small, and was not.
        }
        if let Some(samples) = &mut kept.samples {
            for s in g * group..(g + 1) * group {
                samples.push_response(out.ids(s), out.logprobs(s), out.finish(s));
            }
        }
        let (position, greedy) = (first + g as u64, greedy.get(g).copied().flatten());
        kept.groups.push(SampleGroup { position, item, scored, texts, branches, greedy });
    }
    Ok(())
}

/// Adds the tokens that the newest request drew, `group` samples of each item, and the operations of drawing them.
pub(crate) fn count_drawn(
    trainer: &Trainer<'_>,
    (items, group): (&[Item], usize),
    branches: Option<&[Vec<Branch>]>,
    gathered: &mut Gathered,
) {
    let out = &trainer.sampler.samples;
    gathered.tokens += out.sampled_tokens();
    // Agents' requests share no prompt: each one computes its own again.
    let lengths_of_prompts: Vec<usize> = match branches {
        Some(branches) => branches.iter().flatten().map(|branch| branch.prompt.len()).collect(),
        None => (0..out.len()).map(|s| items[s / group].ids.len()).collect(),
    };
    let shared = lengths_of_prompts.iter().copied().step_by(if branches.is_some() { 1 } else { group });
    let lengths = lengths_of_prompts.iter().enumerate().map(|(s, &prompt)| (prompt, out.ids(s).len()));
    gathered.flops += forward_flops(&trainer.sampler.shape.spec, shared, lengths);
}

/// Returns the error of a rollout in which no group was kept.
fn exhausted(filter: Option<GroupFilter>, gathered: &Gathered, step: u32) -> Error {
    let Gathered { rounds, sampled, rewarded, .. } = gathered;
    let wanted = match filter {
        Some(GroupFilter::Mean { low, high }) => format!("a mean score above {low} and below {high}"),
        Some(GroupFilter::Mixed) | None => "scores that differ".to_string(),
    };
    let message = format!("step {step}: none of {sampled} groups in {rounds} rounds has {wanted}");
    Error::new(slugs::DYNAMIC_SAMPLING_EXHAUSTED, message)
        .fact(format!("mean score {} over {rewarded} samples", gathered.mean_reward()))
        .hint("choose prompts that the model sometimes solves, or raise rollout.group_size")
        .hint("raise loss.dynamic_sampling_retries, or remove loss.dynamic_sampling: such groups then teach nothing")
}

#[cfg(test)]
#[path = "whole_tests.rs"]
mod tests;
