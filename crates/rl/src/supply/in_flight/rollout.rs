//! The rollout under way in a step, and those that it finishes.

use super::schedule::Arrival;
use super::stop::{SyncPoint, SyncStop};
use crate::context::StepContext;
use crate::players::{Events, Group, OwnPart, RankChunks, Response, ResponseChunk, take};
use crate::roles::Trainer;
use crate::rollout::exchange::{Deal, exchange};
use crate::rollout::message::Kind;
use crate::supply::carried::into_samples;
use crate::supply::gathered::Gathered;
use crate::supply::rollout::Rollout;
use plimsoll_base::Result;
use plimsoll_infer::responder::Responder;
use plimsoll_rollout::{RolloutStats, SoFar};
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
        let ended = std::mem::take(&mut self.groups);
        (cx.edge)(Doing::Reward);
        let started = std::time::Instant::now();
        let mut gathered = Gathered { rounds: 1, ..Gathered::default() };
        let (player, mut play) = cx.play(self.next);
        let grades = player.grade(trainer, &mut play, &ended, Vec::new(), &mut gathered)?;
        gathered.reward_s = started.elapsed().as_secs_f64();
        let versions = ended.iter().flat_map(|group| &group.responses).map(Response::runs).collect();
        let branches = vec![None; ended.len()];
        let groups = into_samples(ended, branches, grades, &mut gathered);
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
    let deal = Deal::new(trainer.group, &trainer.lengths, groups.iter().map(Group::key));
    let own = deal.own(trainer.group);
    let part = OwnPart::new(own.iter().map(|g| &groups[*g]).collect());
    let all = exchange(trainer.group, Kind::Samples, draw_own(trainer, cx, &part, sync))?;
    let mut stats = RolloutStats::default();
    all.iter().for_each(|part| stats.add_counts(&part.stats));
    let pieces = deal.in_order(all.into_iter().map(|part| part.pieces).collect(), size).collect();
    Ok(take((trainer, step), groups, pieces, stats, (&mut CarryCounts::default(), 1)))
}

fn draw_own(
    trainer: &mut Trainer<'_>,
    cx: &StepContext<'_>,
    part: &OwnPart<'_>,
    sync: SyncPoint<'_>,
) -> Result<RankChunks> {
    let (responses, request) = (part.responses(), part.request(cx.run, cx.eos));
    let begun: Vec<SoFar<'_>> = responses.iter().map(|response| response.begun()).collect();
    let stop = part.stop(cx.text, cx.run)?;
    let mut stop = SyncStop::new(stop, responses.len(), request.max_new_tokens, sync);
    let stats = trainer.rollout_from(&request, &begun, &mut stop)?;
    let samples = &trainer.sampler.samples;
    let piece = |(s, response): (usize, &&Response)| {
        let (start, end) = (response.ids.len(), samples.ids(s).len());
        let new = if response.finish.is_some() { 0..0 } else { start..end.min(stop.tick).max(start) };
        ResponseChunk {
            ids: samples.ids(s)[new.clone()].to_vec(),
            logprobs: samples.logprobs(s)[new].to_vec(),
            finish: stop.finish[s].filter(|_| end <= stop.tick),
            ..ResponseChunk::default()
        }
    };
    let pieces = responses.iter().enumerate().map(piece).collect();
    Ok(RankChunks { pieces, stats, dropped: 0, events: Events::default() })
}
