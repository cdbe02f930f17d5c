//! The grading of carried groups. A response that has ended is final, since it ended before the step's tick: rewards
//! that score each response by itself grade it while the update runs, or while others draw where its group has ended
//! too (`early_grading.rs`). Other rewards grade a group when it is trained.
//!
//! A grade depends on the response, its prompt and the step in which it ended. So it is the same whenever it is made:
//! ahead, with its group, or again after a resume.

use super::groups::{Group, Response};
use crate::context::StepContext;
use crate::episodes::{EpisodeSoFar, EpisodesRequest, Events};
use crate::roles::Trainer;
use crate::rollout::counted::Counted;
use crate::rollout::exchange::exchange;
use crate::rollout::message::Kind;
use crate::supply::gathered::Gathered;
use plimsoll_base::Result;
use plimsoll_config::{Environment, RunSpec};
use plimsoll_infer::grading::{self, GradedRequest, Grading};
use plimsoll_infer::model_reward;
use plimsoll_infer::responder::Responder;
use plimsoll_infer::sampler::sampling;
use plimsoll_infer::text::{Item, TextModel};
use plimsoll_ranks::Group as Ranks;
use plimsoll_reward::{Rewards, Scored};
use plimsoll_rollout::{Request, Samples, Turn};
use serde::{Deserialize, Serialize};

/// What one rank graded.
#[derive(Serialize, Deserialize)]
struct RankGraded {
    scored: Vec<Scored>,
    texts: Vec<String>,
    counted: Counted,
    seconds_ahead: f64,
}

/// Begins to grade the responses of carried groups that have ended and that no one grades yet: of several ranks each
/// its groups.
pub(super) fn grade_ahead(
    rewards: &mut Rewards,
    ranks: &Ranks,
    (run, text): (&RunSpec, &TextModel),
    groups: &[Group],
) {
    // Episodes are graded when they are trained.
    if !rewards.grades_ahead() || run.environment().is_some() {
        return;
    }
    for group in groups.iter().filter(|group| is_own(group, ranks)) {
        let ended = group
            .responses
            .iter()
            .enumerate()
            .filter_map(|(s, response)| Some((group.sample_id(s), response, response.finish?)));
        let new: Vec<(u64, &Response, _)> = ended.filter(|(key, ..)| !rewards.is_ahead(*key)).collect();
        for step in new.chunk_by(|a, b| a.1.ended_in == b.1.ended_in) {
            let responses = step.iter().map(|(key, response, finish)| (*key, &response.ids[..], *finish));
            let steps = [step[0].1.ended_in, run.train().steps];
            grading::grade_ahead(rewards, (text, &run.rollout), &group.item, responses, steps);
        }
    }
}

/// True if this rank grades a group while it is under way.
pub(super) fn is_own(group: &Group, ranks: &Ranks) -> bool {
    owner(group, ranks.ranks()) == ranks.rank()
}

/// Returns the rank that grades a group while it is under way.
fn owner(group: &Group, ranks: usize) -> usize {
    (group.position % ranks as u64) as usize
}

/// Grades the groups of a step: of several ranks each its part. Their responses are then the trainer's `samples`.
pub(crate) fn grade(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    groups: &[Group],
    step: u32,
    (gathered, seconds_ahead): (&mut Gathered, &mut f64),
) -> Result<(Vec<Scored>, Vec<String>)> {
    let size = cx.run.rollout.group_size as usize;
    let samples = Samples::to_write(&mut trainer.sampler.samples);
    samples.clear();
    for response in groups.iter().flat_map(|group| &group.responses) {
        samples.push_response(&response.ids, &response.logprobs, response.finish.expect("it has ended"));
    }
    let (rank, ranks) = (trainer.group.rank(), trainer.group.ranks());
    // Where nothing is graded ahead, parts of one size.
    let of: Vec<usize> = if cx.rewards.grades_ahead() {
        groups.iter().map(|group| owner(group, ranks)).collect()
    } else {
        (0..groups.len()).map(|g| g % ranks).collect()
    };
    let own: Vec<&Group> = groups.iter().zip(&of).filter(|(_, of)| **of == rank).map(|(g, _)| g).collect();
    let own_part = grade_own(cx, &own, step);
    let parts = exchange(trainer.group, Kind::Graded, own_part)?;
    *seconds_ahead = parts.iter().map(|part| part.seconds_ahead).fold(0.0, f64::max);
    let (mut counted, mut scored, mut texts) = (Vec::with_capacity(parts.len()), Vec::new(), Vec::new());
    let mut parts: Vec<_> = parts
        .into_iter()
        .map(|part| {
            counted.push(part.counted);
            part.scored.into_iter().zip(part.texts)
        })
        .collect();
    for s in 0..groups.len() * size {
        let (score, text) = parts[of[s / size]].next().expect("a rank grades its part");
        scored.push(score);
        texts.push(text);
    }
    gathered.add_counted(Counted::sum(counted));
    learn_lengths(trainer, groups);
    let items: Vec<Item> = if cx.run.model_rewards.is_empty() {
        Vec::new()
    } else {
        groups.iter().map(|group| group.item.clone()).collect()
    };
    model_reward::add(&cx.run.model_rewards, trainer, &items, size, &mut scored)?;
    Ok((scored, texts))
}

fn learn_lengths(trainer: &mut Trainer<'_>, groups: &[Group]) {
    for group in groups {
        let tokens: usize = group.responses.iter().map(|response| response.ids.len()).sum();
        let (key, set) = group.key();
        trainer.lengths.add(key, set, tokens as u64, group.responses.len() as u64);
    }
}

/// Hands over the episodes of a step, and returns their scores: those that their environment gave, or the run's. Their
/// tokens are then the trainer's `samples`.
///
/// Errors: `text-environment-failing`; those of the rewards; `rank-lost` where another rank has one.
pub(super) fn hand_over(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    groups: &[Group],
    (events, step): (Vec<Events>, u32),
    gathered: &mut Gathered,
) -> Result<Vec<Scored>> {
    let samples = Samples::to_write(&mut trainer.sampler.samples);
    samples.clear();
    let plays_agents = cx.run.plays_agents();
    let is_in = |response: &&Response| !plays_agents || !response.has_fault;
    for response in groups.iter().flat_map(|group| &group.responses).filter(is_in) {
        let turns: Vec<Turn> = response.turns.iter().map(|of| of.turn).collect();
        samples.push_turns(&response.ids, &response.logprobs, &turns);
    }
    let episodes = cx.episodes.as_mut().expect("the step is one of episodes");
    let trained: Vec<EpisodeSoFar<'_>> = groups.iter().flat_map(Group::episodes).collect();
    episodes.set_trained(trainer.updates(), &trained, events)?;
    episodes.check_left(&trainer.sampler.samples)?;
    if cx.run.environment().is_some_and(Environment::is_graded) {
        grade_episodes(trainer, cx, groups, step, gathered)?;
    }
    let episodes = cx.episodes.as_mut().expect("the step is one of episodes");
    gathered.episodes = Some(episodes.report());
    learn_lengths(trainer, groups);
    Ok(episodes.scored(cx.rewards))
}

/// Grades the episodes of a step with the run's rewards: of several ranks each its part.
fn grade_episodes(
    trainer: &Trainer<'_>,
    cx: &mut StepContext<'_>,
    groups: &[Group],
    step: u32,
    gathered: &mut Gathered,
) -> Result<()> {
    let episodes = cx.episodes.as_mut().expect("the step is one of episodes");
    let size = cx.run.rollout.group_size as usize;
    let asked = EpisodesRequest {
        text: cx.text,
        rollout: &cx.run.rollout,
        starts: &[],
        group_size: size,
        sampling: sampling(&cx.run.rollout, cx.run.seed),
        eos: cx.eos,
        steps: [step, cx.run.train().steps],
        first_sample_id: 0,
        kept: 0,
    };
    let (rank, ranks) = (trainer.group.rank(), trainer.group.ranks());
    let slots = |of: usize| -> Vec<usize> {
        (of..groups.len()).step_by(ranks).flat_map(|g| g * size..(g + 1) * size).collect()
    };
    let items: Vec<&Item> = groups.iter().map(|group| &group.item).collect();
    let scored = episodes.scores_of(cx.rewards, &slots(rank), (&items, &trainer.sampler.samples), &asked);
    let own_part = scored.map(|scored| RankGraded {
        scored,
        texts: Vec::new(),
        counted: Counted::of(cx.rewards),
        seconds_ahead: 0.0,
    });
    let parts = exchange(trainer.group, Kind::Graded, own_part)?;
    let mut counted = Vec::with_capacity(parts.len());
    for (of, part) in parts.into_iter().enumerate() {
        episodes.set_scored(&slots(of), part.scored);
        counted.push(part.counted);
    }
    gathered.add_counted(Counted::sum(counted));
    Ok(())
}

fn grade_own(cx: &mut StepContext<'_>, own: &[&Group], step: u32) -> Result<RankGraded> {
    let size = cx.run.rollout.group_size as usize;
    let request = Request {
        prompts: &[],
        group_size: size,
        max_new_tokens: cx.run.rollout.max_new_tokens as usize,
        sampling: sampling(&cx.run.rollout, cx.run.seed),
        eos: cx.eos,
        first_sample_id: 0,
        numbers: &[],
    };
    let steps = [step, cx.run.train().steps];
    let of = GradedRequest { request, items: &[], text: cx.text, rollout: &cx.run.rollout, steps };
    let keys = own.iter().flat_map(|group| (0..size).map(|s| group.sample_id(s)));
    let keys: Vec<Option<u64>> = keys.map(|key| Some(key).filter(|key| cx.rewards.is_ahead(*key))).collect();
    let mut grading = Grading::begin(cx.rewards, &of, own.iter().map(|group| &group.item))?;
    let responses = own.iter().flat_map(|group| &group.responses);
    for ((s, response), key) in responses.enumerate().zip(keys) {
        grading.take(s, &response.ids, response.finish.expect("it has ended"), key);
    }
    let texts = grading.texts();
    let scored = cx.rewards.finish()?;
    let seconds_ahead = cx.rewards.seconds_ahead();
    Ok(RankGraded { scored, texts, counted: Counted::of(cx.rewards), seconds_ahead })
}
