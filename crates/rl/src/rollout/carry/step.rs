//! The rollout of a step with carried groups: prompts join, all draw to the step's tick, and the groups that have ended
//! are graded (`graded.rs`); the others stay under way.

use super::drawing::{Drawing, Drawn};
use super::finals::Finals;
use super::graded::{grade, grade_ahead, hand_over};
use super::groups::{Group, Response};
use super::piece::{Piece, RankDrawn};
use super::playing::play;
use super::report::CarryReport;
use super::responding::Responding;
use super::times::Times;
use crate::context::StepContext;
use crate::episodes::Events;
use crate::flops::forward_flops;
use crate::roles::Trainer;
use crate::rollout::buffer::SampleGroup;
use crate::rollout::exchange::{Deal, SentStats, exchange};
use crate::rollout::gather::Gathered;
use crate::rollout::packed::Kind;
use plimsoll_base::Result;
use plimsoll_infer::responder::Responder;
use plimsoll_infer::responses::TextStop;
use plimsoll_infer::sampler::sampling;
use plimsoll_reward::Scored;
use plimsoll_rollout::{Request, RolloutStats, SoFar, StopCondition};
use plimsoll_run::status::Doing;
use std::time::Instant;

/// Fills `cx.buffer` with the groups of a step, moves `cx.cursor` past the prompts that joined, and leaves the others
/// to be committed.
///
/// Errors: those of sampling and of the rewards; `rank-lost` where another rank has one.
pub(crate) fn gather(trainer: &mut Trainer<'_>, cx: &mut StepContext<'_>, step: u32) -> Result<Gathered> {
    let started = Instant::now();
    // After a resume, those of earlier steps.
    grade_ahead(cx.rewards, trainer.group, (cx.run, cx.text), &cx.buffer.carried.groups);
    let (mut groups, joined) = under_way(cx)?;
    let Drew { ticks, chosen, mut gathered, events } = draw(trainer, cx, &mut groups, step)?;
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
    let (scored, texts) = match cx.episodes.is_some() {
        true => (hand_over(trainer, cx, &taken, events, &mut gathered)?, Vec::new()),
        false => grade(trainer, cx, &taken, step, &mut gathered)?,
    };
    gathered.reward_s = graded.elapsed().as_secs_f64();

    let version = trainer.updates();
    let report = gathered.carry.get_or_insert_default();
    (report.ticks, report.carried) = (ticks, carried.len());
    report.count(taken.iter().flat_map(|group| &group.responses), version);
    cx.buffer.begin(step, version);
    cx.buffer.set_stale(taken.iter().flat_map(|group| &group.responses).map(|r| stale(r, version)).collect());
    let (mut scored, mut texts) = (scored.into_iter(), texts.into_iter());
    for Group { position, item, .. } in taken {
        let scored: Vec<Scored> = scored.by_ref().take(size).collect();
        let texts = texts.by_ref().take(size).collect();
        gathered.count_group(&scored);
        gathered.passed += 1;
        cx.buffer.push(SampleGroup { position, item, scored, texts, branches: None, greedy: None });
    }
    gathered.rounds = 1;
    grade_ahead(cx.rewards, trainer.group, (cx.run, cx.text), &carried);
    cx.buffer.carried.next = Some(carried);
    Ok(gathered)
}

/// Returns how many of a response's first tokens older weights drew.
fn stale(response: &Response, version: u64) -> usize {
    response.versions.partition_point(|drawn| *drawn < version)
}

/// Returns the groups under way in this step, by age, and how many of them joined: as many prompts as there is room
/// for, and none that the run would not train.
fn under_way(cx: &mut StepContext<'_>) -> Result<(Vec<Group>, usize)> {
    let size = cx.run.rollout.group_size as usize;
    let mut groups = cx.buffer.carried.groups.clone();
    let (first, last) =
        (cx.cursor.data_position, u64::from(cx.run.train.steps) * cx.run.prompts_per_rollout());
    let room = cx.run.prompts_under_way().saturating_sub(groups.len() as u64);
    let joined = room.min(last.saturating_sub(first)) as usize;
    let items = match &mut cx.episodes {
        Some(episodes) => episodes.prompts(cx.text, first, joined)?,
        None => (cx.prompts)(first, joined)?,
    };
    (cx.edge)(Doing::Rollout);
    groups.extend(items.into_iter().zip(0..).map(|(item, n)| Group {
        position: first + n,
        first_sample_id: cx.cursor.next_sample_id + n * size as u64,
        item,
        responses: vec![Response::default(); size],
    }));
    Ok((groups, joined))
}

/// What was drawn to the step's tick.
#[derive(Default)]
struct Drew {
    ticks: u64,
    /// The groups that the step trains.
    chosen: Vec<usize>,
    gathered: Gathered,
    /// What environments did, by rank.
    events: Vec<Events>,
}

/// Draws to the step's tick.
fn draw(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    groups: &mut [Group],
    step: u32,
) -> Result<Drew> {
    let size = cx.run.rollout.group_size as usize;
    let wanted = cx.run.rollout.prompts_per_step as usize;
    let due = groups.iter().map(|group| group.is_due(cx.run.rollout.lag_tokens_max));
    let mut times = Times::new(wanted.min(groups.len()), due.collect());
    let ended = groups.iter().enumerate().filter(|(_, group)| group.has_ended());
    ended.for_each(|(g, _)| times.end(g, 0));
    if times.bound() == 0 {
        return Ok(Drew { chosen: times.chosen(), ..Drew::default() });
    }
    let keys = groups.iter().map(Group::key);
    let deal = trainer.group.map(|ranks| (Deal::new(ranks, &trainer.lengths, keys), ranks));
    let own: Vec<usize> = match &deal {
        Some((deal, ranks)) => deal.own(ranks),
        None => (0..groups.len()).collect(),
    };
    let (times, own_part) = draw_own(trainer, cx, groups, step, (&own, times))?;
    let ticks = times.bound();
    let all = match &deal {
        None => vec![own_part],
        Some((_, ranks)) => exchange(ranks, Kind::Samples, Ok(own_part))?,
    };
    let mut stats = RolloutStats::default();
    all.iter().for_each(|part| part.stats.add_to(&mut stats));
    let (mut pieces, events): (Vec<_>, Vec<_>) = all.into_iter().map(|it| (it.pieces, it.events)).unzip();
    let pieces = match &deal {
        None => pieces.remove(0),
        Some((deal, _)) => deal.in_order(pieces, size).collect(),
    };
    let gathered = take((trainer, step), groups, pieces, ticks, stats);
    Ok(Drew { ticks, chosen: times.chosen(), gathered, events })
}

/// Draws this rank's responses to the step's tick.
fn draw_own(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    groups: &[Group],
    step: u32,
    (own, times): (&[usize], Times),
) -> Result<(Times, RankDrawn)> {
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
    match cx.episodes.is_some() {
        true => play(trainer, cx, &of_own, &request, (own, times)),
        false => respond(trainer, cx, &of_own, &request, step, (own, times)),
    }
}

/// Draws this rank's responses without an environment.
fn respond(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    groups: &[&Group],
    request: &Request<'_>,
    step: u32,
    (numbers, times): (&[usize], Times),
) -> Result<(Times, RankDrawn)> {
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
    let finals = Finals::new(cx.rewards, (cx.run, cx.text), step, groups, trainer.group);
    let mut responding = Responding { stop, new_tokens: request.max_new_tokens, drawing, finals };
    let ran = trainer.rollout_from(request, &begun, &mut responding);
    let mut drawing = responding.drawing;
    let stats = drawing.finish(ran)?;
    let (samples, ticks) = (&trainer.sampler.samples, drawing.times.bound());
    // What was drawn after the step's tick is dropped.
    let piece = |(s, of): (usize, &Drawn)| {
        let drawn = of.ticks.min(ticks) as usize;
        let tokens = if drawn > 0 { of.start..of.start + drawn } else { 0..0 };
        Piece {
            ids: samples.ids(s)[tokens.clone()].to_vec(),
            logprobs: samples.logprobs(s)[tokens].to_vec(),
            finish: of.finish.filter(|_| of.ticks <= ticks),
            turns: Vec::new(),
            has_fault: false,
        }
    };
    let pieces = drawing.drawn.iter().enumerate().map(piece).collect();
    Ok((drawing.times, RankDrawn { pieces, stats: SentStats::of(&stats), events: Events::default() }))
}

/// Adds the new tokens to their groups. Returns what is counted of them.
fn take(
    (trainer, step): (&Trainer<'_>, u32),
    groups: &mut [Group],
    pieces: Vec<Piece>,
    ticks: u64,
    stats: RolloutStats,
) -> Gathered {
    let version = trainer.updates();
    let mut gathered = Gathered { stats, ..Gathered::default() };
    let (mut pieces, mut lengths, mut places) = (pieces.into_iter(), Vec::new(), 0);
    for group in groups.iter_mut() {
        for (response, piece) in group.responses.iter_mut().zip(pieces.by_ref()) {
            places += u64::from(response.finish.is_none());
            lengths.push((group.item.ids.len() + response.ids.len(), piece.ids.len()));
            response.add(&piece.ids, &piece.logprobs, version);
            gathered.tokens += match piece.turns.is_empty() {
                true => piece.ids.len(),
                false => piece.turns.iter().map(|of| of.turn.tokens().len()).sum(),
            };
            response.turns.extend(piece.turns);
            response.has_fault |= piece.has_fault;
            piece.finish.into_iter().for_each(|finish| response.end(finish, step));
        }
    }
    // A prompt counts when its first tokens are drawn.
    let new =
        groups.iter().filter(|group| group.responses.iter().all(|r| r.versions.first() == Some(&version)));
    let spec = &trainer.sampler.shape.spec;
    gathered.flops = forward_flops(spec, new.map(|group| group.item.ids.len()), lengths.into_iter());
    let drawn = gathered.tokens as f64 / (places * ticks).max(1) as f64;
    // A turn may end after the step's tick.
    gathered.carry = Some(CarryReport { idle_share: (1.0 - drawn).max(0.0), ..CarryReport::default() });
    gathered
}
