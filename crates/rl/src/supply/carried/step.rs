//! The rollout of a step with carried groups: prompts join, all draw to the step's tick, and the groups that have ended
//! are graded (`graded.rs`); the others stay under way.

use super::agents;
use super::chunk::{RankChunks, ResponseChunk};
use super::drawing::{Done, Drawing, Drawn};
use super::early_grading::EarlyGrading;
use super::graded::{grade, grade_ahead, hand_over};
use super::groups::{Group, GroupsUnderWay, Response};
use super::playing::play;
use super::report::{CarryReport, count_ages, count_rows};
use super::responding::Responding;
use super::rollout::{StepRollout, take};
use crate::context::StepContext;
use crate::episodes::Events;
use crate::roles::Trainer;
use crate::rollout::exchange::{Deal, exchange};
use crate::rollout::message::Kind;
use crate::supply::gathered::Gathered;
use crate::supply::group::SampleGroup;
use crate::supply::rollout::{Rollout, StepSamples};
use plimsoll_base::Result;
use plimsoll_infer::responder::Responder;
use plimsoll_infer::responses::TextStop;
use plimsoll_infer::sampler::sampling;
use plimsoll_reward::Scored;
use plimsoll_rollout::{GroupTimes, Request, RolloutStats, SoFar, StopCondition};
use plimsoll_run::checkpoint::BufferState;
use plimsoll_run::status::Doing;
use std::sync::Arc;
use std::time::Instant;

/// Draws what `step` trains on, and moves `cx.cursor` past the prompts that joined. What is left of the groups is to be
/// kept. `is_due`: true of a group that the step waits for. Returns the samples with what the step counted.
///
/// Errors: those of sampling and of the rewards; `rank-lost` where another rank has one.
pub(in crate::supply) fn next(
    all: &mut GroupsUnderWay,
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    step: u32,
    is_due: &dyn Fn(&Group) -> bool,
) -> Result<(StepSamples, CarryReport, Gathered)> {
    let started = Instant::now();
    // After a resume, those of earlier steps.
    grade_ahead(cx.rewards, trainer.group, (cx.run, cx.text), &all.groups);
    let (mut groups, joined) = under_way(&all.groups, cx)?;
    let mut report = CarryReport { joined, ..CarryReport::default() };
    let StepRollout { chosen, mut gathered, events } =
        draw(trainer, cx, &mut groups, is_due, (step, &mut report))?;
    let size = cx.run.rollout.group_size as usize;
    cx.cursor.data_position += joined as u64;
    cx.cursor.next_sample_id += (joined * size) as u64;

    let mut is_chosen = vec![false; groups.len()];
    chosen.iter().for_each(|g| is_chosen[*g] = true);
    let (mut taken, mut carried) = (Vec::with_capacity(chosen.len()), Vec::new());
    for (group, is_chosen) in groups.into_iter().zip(is_chosen) {
        if is_chosen { taken.push(group) } else { carried.push(group) }
    }
    gathered.rollout_s = started.elapsed().as_secs_f64();
    (cx.edge)(Doing::Reward);
    let graded = Instant::now();
    let (scored, texts) = if cx.episodes.is_some() {
        (hand_over(trainer, cx, &taken, (events, step), &mut gathered)?, Vec::new())
    } else {
        grade(trainer, cx, &taken, step, (&mut gathered, &mut report.seconds_ahead))?
    };
    gathered.reward_s = graded.elapsed().as_secs_f64();

    let version = trainer.updates();
    let plays_agents = cx.run.plays_agents();
    let is_trained = |response: &&Response| !plays_agents || !response.has_fault;
    let trained = || taken.iter().flat_map(|group| &group.responses).filter(is_trained);
    report.carried = carried.len();
    count_ages(&mut report.counts, trained(), version);
    let longest = trained().map(|response| response.drawn().count()).max().unwrap_or(0);
    report.counts.saved_s = report.saved_s(longest, gathered.rollout_s);
    let versions = trained().map(Response::runs).collect();
    let (mut scored, mut texts) = (scored.into_iter(), texts.into_iter());
    let mut groups = Vec::with_capacity(taken.len());
    for group in taken {
        let branches = plays_agents.then(|| agents::branches(&group));
        let Group { position, item, .. } = group;
        let scored: Vec<Scored> = scored.by_ref().take(size).collect();
        let texts = texts.by_ref().take(size).collect();
        gathered.count_group(&scored);
        gathered.passed += 1;
        groups.push(SampleGroup { position, item, scored, texts, branches, greedy: None });
    }
    gathered.rounds = 1;
    grade_ahead(cx.rewards, trainer.group, (cx.run, cx.text), &carried);
    all.next = Some(carried);
    let of = BufferState { step, policy_version: version, groups: 0 };
    let samples = Arc::clone(&trainer.sampler.samples);
    let (samples, _) = Rollout::whole(Arc::new(Rollout { of, groups, samples, versions }), version);
    Ok((samples, report, gathered))
}

/// Returns the groups under way in this step, by age, and how many of them joined: as many prompts as there is room
/// for, and none that the run would not train.
fn under_way(before: &[Group], cx: &mut StepContext<'_>) -> Result<(Vec<Group>, usize)> {
    let size = cx.run.rollout.group_size as usize;
    let mut groups = before.to_vec();
    let (first, last) =
        (cx.cursor.data_position, u64::from(cx.run.train().steps) * cx.run.prompts_per_rollout());
    let room = cx.run.prompts_under_way().saturating_sub(groups.len() as u64);
    let joined = room.min(last.saturating_sub(first)) as usize;
    let items = match &mut cx.episodes {
        Some(episodes) => episodes.prompts(cx.text, first, joined)?,
        None => (cx.prompts)(first, joined)?,
    };
    (cx.edge)(Doing::Rollout);
    let id = cx.cursor.next_sample_id;
    let begun = |(item, n)| Group::begun(first + n, id + n * size as u64, item, size);
    groups.extend(items.into_iter().zip(0..).map(begun));
    Ok((groups, joined))
}

/// Draws to the step's tick, and counts in `report` what that took.
fn draw(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    groups: &mut [Group],
    is_due: &dyn Fn(&Group) -> bool,
    (step, report): (u32, &mut CarryReport),
) -> Result<StepRollout> {
    let size = cx.run.rollout.group_size as usize;
    let wanted = cx.run.rollout.prompts_per_step as usize;
    let due: Vec<bool> = groups.iter().map(is_due).collect();
    report.waited_for = due.iter().filter(|is_due| **is_due).count();
    let mut times = GroupTimes::new(wanted.min(groups.len()), due);
    let ended = groups.iter().enumerate().filter(|(_, group)| group.has_ended());
    ended.for_each(|(g, _)| times.end(g, 0));
    if times.bound() == 0 {
        return Ok(StepRollout { chosen: times.chosen(), ..StepRollout::default() });
    }
    if cx.run.plays_agents() {
        return agents::draw(trainer, cx, groups, times, (step, report));
    }
    count_rows(&mut report.counts, groups.iter().map(|group| (group.item.ids.len(), &group.responses[..])));
    let keys = groups.iter().map(Group::key);
    let deal = Deal::new(trainer.group, &trainer.lengths, keys);
    let own = deal.own(trainer.group);
    let (Done { times, tail_tick_s }, own_part) = draw_own(trainer, cx, groups, step, (&own, times))?;
    report.tail_tick_s = tail_tick_s;
    let ticks = times.bound();
    let all = exchange(trainer.group, Kind::Samples, Ok(own_part))?;
    let mut stats = RolloutStats::default();
    for part in &all {
        stats.add_counts(&part.stats);
        report.counts.dropped_tokens += part.dropped;
    }
    let (pieces, events): (Vec<_>, Vec<_>) = all.into_iter().map(|it| (it.pieces, it.events)).unzip();
    let pieces = deal.in_order(pieces, size).collect();
    let gathered = take((trainer, step), groups, pieces, stats, (&mut report.counts, ticks));
    Ok(StepRollout { chosen: times.chosen(), gathered, events })
}

/// Draws this rank's responses to the step's tick.
fn draw_own(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    groups: &[Group],
    step: u32,
    (own, times): (&[usize], GroupTimes),
) -> Result<(Done, RankChunks)> {
    let (rollout, size) = (&cx.run.rollout, cx.run.rollout.group_size as usize);
    let of_own: Vec<&Group> = own.iter().map(|g| &groups[*g]).collect();
    let first_sample_id = of_own.iter().map(|group| group.first_sample_id).min().unwrap_or(0);
    let prompts: Vec<&[u32]> = of_own.iter().map(|group| group.item.ids.as_slice()).collect();
    let number = |group: &&Group| ((group.first_sample_id - first_sample_id) / size as u64) as usize;
    let numbers: Vec<usize> = of_own.iter().map(number).collect();
    let request = Request {
        prompts: &prompts,
        group_size: size,
        max_new_tokens: rollout.max_new_tokens as usize,
        sampling: sampling(rollout, cx.run.seed),
        eos: cx.eos,
        first_sample_id,
        numbers: &numbers,
    };
    if cx.episodes.is_some() {
        play(trainer, cx, &of_own, &request, (own, times))
    } else {
        respond(trainer, cx, &of_own, &request, step, (own, times))
    }
}

/// Draws this rank's responses without an environment.
fn respond(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    groups: &[&Group],
    request: &Request<'_>,
    step: u32,
    (numbers, times): (&[usize], GroupTimes),
) -> Result<(Done, RankChunks)> {
    let responses: Vec<&Response> = groups.iter().flat_map(|group| &group.responses).collect();
    let stops = &cx.run.rollout.stop;
    let mut stop = TextStop::new(cx.text, stops, responses.len())?;
    for (s, response) in responses.iter().enumerate().filter(|_| !stops.is_empty()) {
        // A stop string may have begun in an earlier step.
        (1..=response.ids.len()).for_each(|drawn| _ = stop.stops(s, &response.ids[..drawn]));
    }
    let begun: Vec<SoFar<'_>> = responses.iter().map(|response| response.begun()).collect();
    let drawn = responses.iter().map(|response| Drawn::new(response.ids.len(), response.finish.is_some()));
    let drawing = Drawing::new(request.group_size, numbers, drawn.collect(), times, trainer.group);
    let grading = EarlyGrading::new(cx.rewards, (cx.run, cx.text), step, groups, trainer.group);
    let mut responding = Responding { stop, new_tokens: request.max_new_tokens, drawing, grading };
    let ran = trainer.rollout_from(request, &begun, &mut responding);
    let mut drawing = responding.drawing;
    let stats = drawing.finish(ran)?;
    let (samples, ticks) = (&trainer.sampler.samples, drawing.times.bound());
    // What was drawn after the step's tick is dropped.
    let piece = |(s, of): (usize, &Drawn)| {
        let drawn = of.ticks.min(ticks) as usize;
        let tokens = if drawn > 0 { of.start..of.start + drawn } else { 0..0 };
        ResponseChunk {
            ids: samples.ids(s)[tokens.clone()].to_vec(),
            logprobs: samples.logprobs(s)[tokens].to_vec(),
            finish: of.finish.filter(|_| of.ticks <= ticks),
            turns: Vec::new(),
            has_fault: false,
        }
    };
    let pieces = drawing.drawn.iter().enumerate().map(piece).collect();
    let dropped = drawing.drawn.iter().map(|of| of.ticks.saturating_sub(ticks)).sum();
    let events = Events::default();
    Ok((drawing.done(), RankChunks { pieces, stats, dropped, events }))
}
