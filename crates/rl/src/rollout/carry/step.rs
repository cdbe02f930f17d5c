//! The rollout of a step with carried groups: prompts join, all draw to the step's tick, and the groups that have ended
//! are graded; the others stay under way.

use super::drawing::{Drawing, Drawn};
use super::groups::{Group, Response};
use super::report::CarryReport;
use super::times::Times;
use crate::context::StepContext;
use crate::flops::forward_flops;
use crate::roles::Trainer;
use crate::rollout::counted::Counted;
use crate::rollout::exchange::{Deal, SentStats, exchange};
use crate::rollout::gather::Gathered;
use crate::rollout::group::SampleGroup;
use crate::rollout::packed::{Kind, packed};
use plimsoll_base::Result;
use plimsoll_infer::grading::{GradedRequest, Grading};
use plimsoll_infer::model_reward;
use plimsoll_infer::responder::Responder;
use plimsoll_infer::responses::TextStop;
use plimsoll_infer::sampler::sampling;
use plimsoll_infer::text::Item;
use plimsoll_reward::Scored;
use plimsoll_rollout::{Finish, Lengths, Request, RolloutStats, SoFar, StopCondition};
use plimsoll_run::status::Doing;
use std::time::Instant;

/// The tokens of a response that a step drew.
pub(crate) struct Piece {
    pub ids: Vec<u32>,
    pub logprobs: Vec<f32>,
    /// How the response ended, if it did.
    pub finish: Option<Finish>,
}
packed!(Piece { ids: Vec<u32>, logprobs: Vec<f32>, finish: Option<Finish> });

/// What one rank drew.
pub(crate) struct RankDrawn {
    pub pieces: Vec<Piece>,
    pub stats: SentStats,
}
packed!(RankDrawn { pieces: Vec<Piece>, stats: SentStats });

/// What one rank graded.
struct RankGraded {
    scored: Vec<Scored>,
    texts: Vec<String>,
    counted: Counted,
}
packed!(RankGraded { scored: Vec<Scored>, texts: Vec<String>, counted: Counted });

/// Fills `cx.buffer` with the groups of a step, moves `cx.cursor` past the prompts that joined, and leaves the others
/// to be committed.
///
/// Errors: those of sampling and of the rewards; `rank-lost` where another rank has one.
pub(crate) fn gather(trainer: &mut Trainer<'_>, cx: &mut StepContext<'_>, step: u32) -> Result<Gathered> {
    let started = Instant::now();
    let (mut groups, joined) = under_way(cx)?;
    let (ticks, chosen, mut gathered) = draw(trainer, cx, &mut groups)?;
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
    let (scored, texts) = grade(trainer, cx, &taken, step, &mut gathered)?;
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
    let items = (cx.prompts)(first, joined)?;
    (cx.edge)(Doing::Rollout);
    groups.extend(items.into_iter().zip(0..).map(|(item, n)| Group {
        position: first + n,
        first_sample_id: cx.cursor.next_sample_id + n * size as u64,
        item,
        responses: vec![Response::default(); size],
    }));
    Ok((groups, joined))
}

/// Draws to the step's tick. Returns it, and the groups that the step trains.
fn draw(
    trainer: &mut Trainer<'_>,
    cx: &StepContext<'_>,
    groups: &mut [Group],
) -> Result<(u64, Vec<usize>, Gathered)> {
    let size = cx.run.rollout.group_size as usize;
    let wanted = cx.run.rollout.prompts_per_step as usize;
    let due = groups.iter().map(|group| group.is_due(cx.run.rollout.lag_tokens_max));
    let mut times = Times::new(wanted.min(groups.len()), due.collect());
    let ended = groups.iter().enumerate().filter(|(_, group)| group.has_ended());
    ended.for_each(|(g, _)| times.end(g, 0));
    if times.bound() == 0 {
        return Ok((0, times.chosen(), Gathered::default()));
    }
    let keys = groups.iter().map(|group| (Lengths::key(&group.item.ids), group.item.set));
    let deal = trainer.group.map(|ranks| (Deal::new(ranks, &trainer.lengths, keys), ranks));
    let own: Vec<usize> = match &deal {
        Some((deal, ranks)) => deal.own(ranks),
        None => (0..groups.len()).collect(),
    };
    let (drawn, times, mut own_part) = draw_own(trainer, cx, groups, &own, times)?;
    let ticks = times.bound();
    cut(&mut own_part, &drawn, ticks);
    let mut stats = RolloutStats::default();
    let pieces = match &deal {
        None => {
            own_part.stats.add_to(&mut stats);
            own_part.pieces
        }
        Some((deal, ranks)) => {
            let all = exchange(ranks, Kind::Samples, Ok(own_part))?;
            all.iter().for_each(|part| part.stats.add_to(&mut stats));
            deal.in_order(all.into_iter().map(|part| part.pieces).collect(), size).collect()
        }
    };
    let gathered = take(trainer, groups, pieces, ticks, stats);
    Ok((ticks, times.chosen(), gathered))
}

/// Draws this rank's responses.
fn draw_own(
    trainer: &mut Trainer<'_>,
    cx: &StepContext<'_>,
    groups: &[Group],
    own: &[usize],
    times: Times,
) -> Result<(Vec<Drawn>, Times, RankDrawn)> {
    let (rollout, size) = (&cx.run.rollout, cx.run.rollout.group_size as usize);
    let of_own: Vec<&Group> = own.iter().map(|g| &groups[*g]).collect();
    let responses: Vec<&Response> = of_own.iter().flat_map(|group| &group.responses).collect();
    let first_sample_id = of_own.iter().map(|group| group.first_sample_id).min().unwrap_or(0);
    let prompts: Vec<&[u32]> = of_own.iter().map(|group| group.item.ids.as_slice()).collect();
    let number = |group: &&Group| ((group.first_sample_id - first_sample_id) / size as u64) as usize;
    let numbers: Vec<usize> = of_own.iter().map(number).collect();
    let new_tokens = rollout.max_new_tokens as usize;
    let request = Request {
        prompts: &prompts,
        group_size: size,
        max_new_tokens: new_tokens,
        sampling: sampling(rollout, cx.run.seed),
        eos: cx.eos,
        first_sample_id,
        numbers: &numbers,
    };
    let mut stop = TextStop::new(cx.text, &rollout.stop, responses.len())?;
    for (s, response) in responses.iter().enumerate().filter(|_| !rollout.stop.is_empty()) {
        // A stop string may have begun in an earlier step.
        (1..=response.ids.len()).for_each(|drawn| _ = stop.stops(s, &response.ids[..drawn]));
    }
    let begun: Vec<SoFar<'_>> = responses.iter().map(|response| response.begun()).collect();
    let drawn = responses.iter().map(|response| Drawn::new(response.ids.len(), response.finish.is_some()));
    let mut drawing = Drawing::new(stop, (new_tokens, size), own, drawn.collect(), times, trainer.group);
    let ran = trainer.rollout_from(&request, &begun, &mut drawing);
    let (stats, drawn, times) = drawing.finish(ran)?;
    let samples = &trainer.sampler.samples;
    let new = |(s, of): (usize, &Drawn)| {
        let tokens = if of.ticks > 0 { of.start..samples.ids(s).len() } else { 0..0 };
        let (ids, logprobs) = (samples.ids(s)[tokens.clone()].to_vec(), samples.logprobs(s)[tokens].to_vec());
        Piece { ids, logprobs, finish: of.finish }
    };
    let pieces = drawn.iter().enumerate().map(new).collect();
    Ok((drawn, times, RankDrawn { pieces, stats: SentStats::of(&stats) }))
}

/// Drops what was drawn after the step's tick.
fn cut(part: &mut RankDrawn, drawn: &[Drawn], ticks: u64) {
    for (piece, _) in part.pieces.iter_mut().zip(drawn).filter(|(_, of)| of.ticks > ticks) {
        piece.ids.truncate(ticks as usize);
        piece.logprobs.truncate(ticks as usize);
        piece.finish = None;
    }
}

/// Adds the new tokens to their groups. Returns what is counted of them.
pub(crate) fn take(
    trainer: &mut Trainer<'_>,
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
            gathered.tokens += piece.ids.len();
            response.add(&piece.ids, &piece.logprobs, version);
            response.finish = response.finish.or(piece.finish);
        }
    }
    // A prompt counts when its first tokens are drawn.
    let new =
        groups.iter().filter(|group| group.responses.iter().all(|r| r.versions.first() == Some(&version)));
    let spec = &trainer.sampler.shape.spec;
    gathered.flops = forward_flops(spec, new.map(|group| group.item.ids.len()), lengths.into_iter());
    let drawn = gathered.tokens as f64 / (places * ticks).max(1) as f64;
    gathered.carry = Some(CarryReport { idle_share: 1.0 - drawn, ..CarryReport::default() });
    gathered
}

/// Grades the groups of a step: of several ranks each its part. Their responses are then the trainer's `samples`.
pub(crate) fn grade(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    groups: &[Group],
    step: u32,
    gathered: &mut Gathered,
) -> Result<(Vec<Scored>, Vec<String>)> {
    let size = cx.run.rollout.group_size as usize;
    let samples = &mut trainer.sampler.samples;
    samples.clear();
    for response in groups.iter().flat_map(|group| &group.responses) {
        samples.push_response(&response.ids, &response.logprobs, response.finish.expect("it has ended"));
    }
    let (rank, ranks) = trainer.group.map_or((0, 1), |group| (group.rank(), group.ranks()));
    let own: Vec<usize> = (0..groups.len()).filter(|g| g % ranks == rank).collect();
    let own_part = grade_own(cx, groups, &own, step);
    let parts = match trainer.group {
        None => vec![own_part?],
        Some(group) => exchange(group, Kind::Graded, own_part)?,
    };
    let mut counted = Vec::with_capacity(parts.len());
    let (mut scored, mut texts) = (Vec::new(), Vec::new());
    let mut parts: Vec<_> = parts
        .into_iter()
        .map(|part| {
            counted.push(part.counted);
            part.scored.into_iter().zip(part.texts)
        })
        .collect();
    for s in 0..groups.len() * size {
        let (score, text) = parts[s / size % ranks].next().expect("a rank grades its part");
        scored.push(score);
        texts.push(text);
    }
    gathered.add_counted(Counted::sum(counted));
    for group in groups {
        let tokens: usize = group.responses.iter().map(|response| response.ids.len()).sum();
        trainer.lengths.add(Lengths::key(&group.item.ids), group.item.set, tokens as u64, size as u64);
    }
    let items: Vec<Item> = match cx.run.model_rewards.is_empty() {
        true => Vec::new(),
        false => groups.iter().map(|group| group.item.clone()).collect(),
    };
    model_reward::add(&cx.run.model_rewards, trainer, &items, size, &mut scored)?;
    Ok((scored, texts))
}

fn grade_own(cx: &mut StepContext<'_>, groups: &[Group], own: &[usize], step: u32) -> Result<RankGraded> {
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
    let steps = [step, cx.run.train.steps];
    let of = GradedRequest { request, items: &[], text: cx.text, rollout: &cx.run.rollout, steps };
    let mut grading = Grading::begin(cx.rewards, &of, own.iter().map(|g| &groups[*g].item))?;
    let responses = own.iter().flat_map(|g| &groups[*g].responses);
    for (s, response) in responses.enumerate() {
        grading.ended(s, &response.ids, response.finish.expect("it has ended"));
    }
    let texts = grading.texts();
    let scored = cx.rewards.finish()?;
    Ok(RankGraded { scored, texts, counted: Counted::of(cx.rewards) })
}
