//! A step's rollout of episodes that agents play. Nothing is drawn beyond the step's tick: a request waits until the
//! step is certain to go on beyond its own (`plimsoll_serve::episodes`).

use super::chunk::ResponseChunk;
use super::groups::{Group, Response};
use super::report::CarryReport;
use super::rollout::{StepRollout, take};
use crate::context::StepContext;
use crate::episodes::{AgentEpisode, EpisodesRequest, NewTurns, PlayedOn};
use crate::roles::Trainer;
use crate::supply::group::Branch;
use plimsoll_base::Result;
use plimsoll_infer::sampler::sampling;
use plimsoll_rollout::GroupTimes;
use plimsoll_run::carry::CarryCounts;

/// Draws to the step's tick, and counts in `report` what that took.
///
/// Errors: those of agents and of the device.
pub(super) fn draw(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    groups: &mut [Group],
    times: GroupTimes,
    (step, report): (u32, &mut CarryReport),
) -> Result<StepRollout> {
    let asked = EpisodesRequest {
        text: cx.text,
        rollout: &cx.run.rollout,
        starts: &[],
        group_size: cx.run.rollout.group_size as usize,
        sampling: sampling(&cx.run.rollout, cx.run.seed),
        eos: cx.eos,
        steps: [step, cx.run.train().steps],
        first_sample_id: 0,
        kept: 0,
    };
    let so_far: Vec<AgentEpisode<'_>> = groups.iter().flat_map(Group::agent_episodes).collect();
    let episodes = cx.episodes.as_mut().expect("the step is one of episodes");
    let PlayedOn { new, events, times, stats } = episodes.play_on(trainer, &asked, &so_far, times)?;
    let mut rewards = Vec::with_capacity(new.len());
    let responses = groups.iter_mut().flat_map(|group| &mut group.responses);
    let piece = |(response, new): (&mut Response, NewTurns)| {
        let NewTurns { asked, ids, logprobs, turns, finish, reward, has_fault } = new;
        rewards.push(reward);
        response.asked = response.asked.take().or(asked);
        let piece = ResponseChunk { ids, logprobs, finish, turns, has_fault };
        count_rows(&mut report.counts, response, &piece);
        piece
    };
    let pieces = responses.zip(new).map(piece).collect();
    let gathered = take((trainer, step), groups, pieces, stats, (&mut report.counts, times.bound()));
    let responses = groups.iter_mut().flat_map(|group| &mut group.responses);
    for (response, reward) in responses.zip(rewards) {
        if let (Some(last), Some(reward)) = (response.turns.last_mut(), reward) {
            last.reward = reward.to_bits();
        }
    }
    Ok(StepRollout { chosen: times.chosen(), gathered, events: vec![events] })
}

/// Counts the rows of prompts: each request of an episode after the first computes again what came before.
fn count_rows(counts: &mut CarryCounts, response: &Response, piece: &ResponseChunk) {
    let prompt = response.asked.as_ref().map_or(0, |asked| asked.prompt.len()) as u64;
    let mut before = response.turns.last().map(|last| last.turn.end);
    for of in &piece.turns {
        match before {
            None => counts.prompt_rows += prompt,
            Some(end) => counts.recomputed_rows += prompt + u64::from(end),
        }
        before = Some(of.turn.end);
    }
}

/// Returns the sequences of a group's episodes; those that a fault ended have none.
pub(super) fn branches(group: &Group) -> Vec<Branch> {
    let one = |(sample, response): (usize, &Response)| {
        let asked = response.asked.as_ref().filter(|_| !response.has_fault)?;
        Some(Branch { sample, prompt: asked.prompt.clone() })
    };
    group.responses.iter().enumerate().filter_map(one).collect()
}
