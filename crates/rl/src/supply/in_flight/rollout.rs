//! The rollout under way in a step, and those that it finishes.

use super::schedule::Arrival;
use super::stop::{SyncPoint, SyncStop};
use crate::context::StepContext;
use crate::episodes::Events;
use crate::roles::Trainer;
use crate::rollout::exchange::{Deal, exchange};
use crate::rollout::message::Kind;
use crate::supply::carried::{Group, RankChunks, Response, ResponseChunk, grade, take};
use crate::supply::gathered::Gathered;
use crate::supply::group::SampleGroup;
use crate::supply::rollout::Rollout;
use plimsoll_base::Result;
use plimsoll_infer::responder::Responder;
use plimsoll_infer::responses::TextStop;
use plimsoll_infer::sampler::sampling;
use plimsoll_rollout::{Lengths, Request, RolloutStats, SoFar, StopCondition};
use plimsoll_run::carry::CarryCounts;
use plimsoll_run::checkpoint::BufferState;
use plimsoll_run::status::Doing;
use std::sync::Arc;

/// The rollouts that a step draws, from where the last one has come to.
#[derive(Debug)]
pub(crate) struct InFlightRollout {
    step: u32,
    /// The step whose samples are the next to be finished.
    next: u32,
    /// Their groups, if they are begun.
    pub groups: Vec<Group>,
    /// Finished rollouts, in their order.
    pub rollouts: Vec<Rollout>,
    pub gathered: Gathered,
}

impl InFlightRollout {
    /// Begins where the last step has come to: `num_waiting` rollouts wait, and the groups of the next one are
    /// `under_way`.
    pub(crate) fn begin(step: u32, num_waiting: u32, under_way: &[Group]) -> InFlightRollout {
        let (next, groups) = (step + num_waiting, under_way.to_vec());
        InFlightRollout { step, next, groups, rollouts: Vec::new(), gathered: Gathered::default() }
    }

    /// Draws to an arrival that is written down.
    ///
    /// Errors: those of drawing and of the rewards.
    pub(crate) fn draw_to(
        &mut self,
        trainer: &mut Trainer<'_>,
        cx: &mut StepContext<'_>,
        at: Arrival,
    ) -> Result<()> {
        while self.next < at.rollout {
            self.finish(trainer, cx)?;
        }
        if at.tick > 0 {
            self.draw(trainer, cx, SyncPoint::Tick(at.tick))?;
        }
        Ok(())
    }

    /// Draws until `has_come` is true, or the samples of all steps up to L later are drawn. Returns the arrival.
    ///
    /// Errors: those of drawing and of the rewards.
    pub(crate) fn draw_until(
        &mut self,
        trainer: &mut Trainer<'_>,
        cx: &mut StepContext<'_>,
        has_come: &dyn Fn() -> bool,
    ) -> Result<Arrival> {
        let last = self.step.saturating_add(cx.run.staleness()).min(cx.run.train().steps);
        while self.next <= last && !has_come() {
            self.draw(trainer, cx, SyncPoint::When(has_come))?;
            if self.groups.iter().all(Group::has_ended) {
                self.grade(trainer, cx)?;
            }
        }
        let under_way = self.groups.iter().flat_map(|group| &group.responses);
        let tick =
            under_way.filter(|response| response.finish.is_none()).map(|response| response.ids.len()).max();
        Ok(Arrival { step: self.step, rollout: self.next, tick: tick.unwrap_or(0) as u32 })
    }

    /// Draws the next rollout to its end.
    ///
    /// Errors: those of drawing and of the rewards.
    pub(crate) fn finish(&mut self, trainer: &mut Trainer<'_>, cx: &mut StepContext<'_>) -> Result<()> {
        self.draw(trainer, cx, SyncPoint::Never)?;
        self.grade(trainer, cx)
    }

    /// Begins the next rollout unless it is begun, and draws up to `sync`.
    fn draw(
        &mut self,
        trainer: &mut Trainer<'_>,
        cx: &mut StepContext<'_>,
        sync: SyncPoint<'_>,
    ) -> Result<()> {
        let (prompts, size) = (cx.run.rollout.prompts_per_step as usize, cx.run.rollout.group_size as usize);
        if self.groups.is_empty() {
            let (first, id) = (cx.cursor.data_position, cx.cursor.next_sample_id);
            let items = (cx.prompts)(first, prompts)?.into_iter().zip(0..);
            self.groups =
                items.map(|(item, n)| Group::begun(first + n, id + n * size as u64, item, size)).collect();
            cx.cursor.data_position += prompts as u64;
            cx.cursor.next_sample_id += (prompts * size) as u64;
        }
        (cx.edge)(Doing::Rollout);
        let started = std::time::Instant::now();
        let gathered = draw(trainer, cx, &mut self.groups, self.step, sync)?;
        self.gathered.add(gathered);
        self.gathered.rollout_s += started.elapsed().as_secs_f64();
        Ok(())
    }

    /// Grades the rollout that has ended.
    fn grade(&mut self, trainer: &mut Trainer<'_>, cx: &mut StepContext<'_>) -> Result<()> {
        let (size, ended) = (cx.run.rollout.group_size as usize, std::mem::take(&mut self.groups));
        (cx.edge)(Doing::Reward);
        let started = std::time::Instant::now();
        let mut gathered = Gathered { rounds: 1, ..Gathered::default() };
        let (scored, texts) = grade(trainer, cx, &ended, self.next, (&mut gathered, &mut 0.0))?;
        gathered.reward_s = started.elapsed().as_secs_f64();
        let (mut scored, mut texts) = (scored.into_iter(), texts.into_iter());
        let (mut groups, mut versions) = (Vec::with_capacity(ended.len()), Vec::new());
        for Group { position, item, responses, .. } in ended {
            let scored: Vec<_> = scored.by_ref().take(size).collect();
            let texts = texts.by_ref().take(size).collect();
            gathered.count_group(&scored);
            gathered.passed += 1;
            versions.extend(responses.iter().map(Response::runs));
            groups.push(SampleGroup { position, item, scored, texts, branches: None, greedy: None });
        }
        self.gathered.add(gathered);
        let of = BufferState { step: self.step, policy_version: trainer.updates(), groups: 0 };
        let samples = Arc::new(trainer.sampler.samples.copied(cx.run.rollout.max_new_tokens as usize));
        self.rollouts.push(Rollout { of, groups, samples, versions });
        self.next += 1;
        Ok(())
    }
}

/// Draws a rollout's responses up to `sync`: of several ranks each its part.
fn draw(
    trainer: &mut Trainer<'_>,
    cx: &StepContext<'_>,
    groups: &mut [Group],
    step: u32,
    sync: SyncPoint<'_>,
) -> Result<Gathered> {
    let size = cx.run.rollout.group_size as usize;
    let keys = groups.iter().map(|group| (Lengths::key(&group.item.ids), group.item.set));
    let deal = Deal::new(trainer.group, &trainer.lengths, keys);
    let own = deal.own(trainer.group);
    let of_own: Vec<&Group> = own.iter().map(|g| &groups[*g]).collect();
    let all = exchange(trainer.group, Kind::Samples, draw_own(trainer, cx, &of_own, sync))?;
    let mut stats = RolloutStats::default();
    all.iter().for_each(|part| stats.add_counts(&part.stats));
    let pieces = deal.in_order(all.into_iter().map(|part| part.pieces).collect(), size).collect();
    Ok(take((trainer, step), groups, pieces, stats, (&mut CarryCounts::default(), 1)))
}

fn draw_own(
    trainer: &mut Trainer<'_>,
    cx: &StepContext<'_>,
    groups: &[&Group],
    sync: SyncPoint<'_>,
) -> Result<RankChunks> {
    let (rollout, size) = (&cx.run.rollout, cx.run.rollout.group_size as usize);
    let responses: Vec<&Response> = groups.iter().flat_map(|group| &group.responses).collect();
    let first_sample_id = groups.iter().map(|group| group.first_sample_id).min().unwrap_or(0);
    let prompts: Vec<&[u32]> = groups.iter().map(|group| group.item.ids.as_slice()).collect();
    let number = |group: &&Group| ((group.first_sample_id - first_sample_id) / size as u64) as usize;
    let numbers: Vec<usize> = groups.iter().map(number).collect();
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
        // A stop string may have begun under older weights.
        (1..=response.ids.len()).for_each(|drawn| _ = stop.stops(s, &response.ids[..drawn]));
    }
    let begun: Vec<SoFar<'_>> = responses.iter().map(|response| response.begun()).collect();
    let mut stop = SyncStop::new(stop, responses.len(), new_tokens, sync);
    let stats = trainer.rollout_from(&request, &begun, &mut stop)?;
    let samples = &trainer.sampler.samples;
    let piece = |(s, response): (usize, &&Response)| {
        let (start, end) = (response.ids.len(), samples.ids(s).len());
        let new = if response.finish.is_some() { 0..0 } else { start..end.min(stop.tick).max(start) };
        let finish = stop.finish[s].filter(|_| end <= stop.tick);
        ResponseChunk {
            ids: samples.ids(s)[new.clone()].to_vec(),
            logprobs: samples.logprobs(s)[new].to_vec(),
            finish,
            turns: Vec::new(),
            has_fault: false,
        }
    };
    let pieces = responses.iter().enumerate().map(piece).collect();
    Ok(RankChunks { pieces, stats, dropped: 0, events: Events::default() })
}
