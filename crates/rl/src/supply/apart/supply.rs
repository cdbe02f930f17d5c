//! The supply of ranks that only sample or only train.

use super::message::{SampledRollouts, StepMessage, TrainedStep, exchange_step};
use super::place::{Apart, ApartRanks};
use super::weights;
use crate::context::StepContext;
use crate::methods::report::StepReport;
use crate::players::GroupsUnderWay;
use crate::roles::Trainer;
use crate::supply::ahead::{self, DrawSteps};
use crate::supply::gathered::Gathered;
use crate::supply::in_flight::{self, Arrival, InFlightRollout, WeightArrivals};
use crate::supply::queue::RolloutQueue;
use crate::supply::restored::Restored;
use crate::supply::rollout::StepSamples;
use crate::supply::source::Supply;
use plimsoll_base::Result;
use plimsoll_files::FileRecord;
use plimsoll_infer::responder::Responder;
use plimsoll_rollout::{Lengths, Samples};
use plimsoll_run::checkpoint::{BufferState, RunState};
use plimsoll_run::lead::Lead;
use std::path::Path;
use std::sync::Arc;

/// Rollouts of later steps, which ranks that sample draw while the others train.
#[derive(Debug, Default)]
pub(crate) struct ApartSupply {
    queue: RolloutQueue,
    /// The groups of the rollout under way, where weights may arrive in the middle of one.
    under_way: GroupsUnderWay,
    /// True if they may.
    is_in_flight: bool,
    /// The arrivals that the run follows, if it follows any.
    schedule: Option<WeightArrivals>,
    /// Where samples outlive the engine's next request while they are drawn, room for them.
    held: Option<Arc<Samples>>,
    /// The rollout that this rank draws in the step that is being made, if it draws it in parts.
    rollout: Option<InFlightRollout>,
    /// The step that is being made, and the updates of the weights that it begins with.
    of: BufferState,
    /// When the weights of the last step received.
    arrival: Option<Arrival>,
}

impl ApartSupply {
    /// Begins with nothing. `schedule`: the arrivals that the run follows, if it follows any.
    pub(crate) fn new(
        is_in_flight: bool,
        schedule: Option<WeightArrivals>,
        held: Option<Arc<Samples>>,
    ) -> ApartSupply {
        ApartSupply { is_in_flight, schedule, held, ..ApartSupply::default() }
    }

    /// Hands `own` to all ranks. What was drawn joins the queue and `gathered`; returns what was trained, if anything
    /// was.
    ///
    /// Errors: this rank's own; one that all ranks share; `rank-lost` where another rank has one.
    fn exchange_step(
        &mut self,
        trainer: &mut Trainer<'_>,
        cx: &mut StepContext<'_>,
        own: Result<StepMessage>,
        gathered: &mut Gathered,
    ) -> Result<Option<TrainedStep>> {
        let with = ranks_of(trainer);
        let (received, trained) = exchange_step(with, cx, own, self.of)?;
        let Some(received) = received else { return Ok(trained) };
        // Where weights arrive midway, ranks that sample have learned the lengths when they graded.
        let learns = with.apart.trains() || !self.is_in_flight;
        let size = cx.run.rollout.group_size as usize;
        for rollout in received.rollouts {
            for (g, group) in rollout.groups.iter().enumerate().filter(|_| learns) {
                let tokens: usize = (g * size..(g + 1) * size).map(|s| rollout.samples.ids(s).len()).sum();
                let key = Lengths::key(&group.item.ids);
                trainer.lengths.add(key, group.item.set, tokens as u64, size as u64);
            }
            self.queue.push(rollout);
        }
        (self.under_way.next, self.arrival) = (Some(received.under_way), received.arrival);
        gathered.add(received.gathered);
        Ok(trained)
    }

    /// Draws what is drawn while the others train. All ranks that sample do so together.
    fn draw(
        &mut self,
        trainer: &mut Trainer<'_>,
        cx: &mut StepContext<'_>,
        step: u32,
    ) -> Result<StepMessage> {
        if let Some(rollout) = self.rollout.take() {
            return draw_to_sync(trainer, cx, rollout, step, self.schedule.as_ref());
        }
        let of_step = step.saturating_add(cx.run.staleness());
        if of_step > cx.run.train().steps {
            return Ok(StepMessage::default());
        }
        draw(trainer, cx, DrawSteps { drawn_in: step, trained_in: of_step }, self.held.as_mut())
    }
}

impl Supply for ApartSupply {
    /// Draws what the step cannot begin without. Ranks that train go on among themselves.
    fn next(
        &mut self,
        trainer: &mut Trainer<'_>,
        cx: &mut StepContext<'_>,
        step: u32,
        gathered: &mut Gathered,
    ) -> Result<Option<StepSamples>> {
        let ApartRanks { apart, .. } = ranks_of(trainer);
        self.of = BufferState { step, policy_version: trainer.updates(), groups: 0 };
        self.queue.begin();
        let num_waiting = self.queue.num_waiting();
        self.rollout =
            self.is_in_flight.then(|| InFlightRollout::begin(step, num_waiting, &self.under_way.groups));
        // What earlier steps would have drawn, had there been any.
        let end = step.saturating_add(cx.run.staleness()).min(cx.run.train().steps + 1);
        let lacking = step + num_waiting..if self.is_in_flight { step + 1 } else { end };
        for of_step in lacking {
            let own = match (apart.trains(), &mut self.rollout) {
                (true, _) => Ok(StepMessage::default()),
                (false, Some(rollout)) => finish_first(trainer, cx, rollout),
                (false, None) => {
                    draw(trainer, cx, DrawSteps { drawn_in: step, trained_in: of_step }, self.held.as_mut())
                }
            };
            say_whom(cx, apart, step, of_step, self.queue.num_there());
            self.exchange_step(trainer, cx, own, gathered)?;
        }
        if !apart.trains() {
            return Ok(None);
        }
        let (samples, metrics) = self.queue.first(trainer.updates());
        gathered.of_supply = metrics;
        trainer.group = apart.own();
        Ok(Some(samples))
    }

    /// Exchanges what was drawn for what was trained. The report of a rank that samples has what the loop decides by.
    fn commit(
        &mut self,
        trainer: &mut Trainer<'_>,
        cx: &mut StepContext<'_>,
        step: u32,
        made: Result<StepReport>,
        gathered: &mut Gathered,
    ) -> Result<StepReport> {
        let ApartRanks { all, apart } = ranks_of(trainer);
        trainer.group = all;
        let (made, own) = if apart.trains() {
            // Weights may arrive from here on.
            all.post(u64::from(step));
            StepMessage::of_training(trainer, made)
        } else {
            (made, self.draw(trainer, cx, step))
        };
        // Ranks that train have emptied a place, and those that sample have filled it.
        let there = self.queue.num_there();
        say_whom(cx, apart, step, step + there, there.saturating_sub(u32::from(apart.trains())));
        let exchanged = self.exchange_step(trainer, cx, own, gathered);
        let mut report = made?;
        let trained = exchanged?.expect("the first rank trains");
        weights::copy(trainer, all, apart, &trained.updates)?;
        self.keep();
        if apart.trains() {
            let waiting = f64::from(self.queue.num_waiting());
            gathered.of_supply.insert("rollout/waiting".into(), waiting);
        } else {
            (report.reward, report.vitals) = (trained.reward, trained.vitals);
        }
        Ok(report)
    }

    fn keep(&mut self) {
        self.queue.keep();
        self.under_way.keep();
    }

    fn record(&mut self, lead: &mut Lead<'_, '_, '_, '_>, _step: u32) -> Result<()> {
        self.arrival.take().map_or(Ok(()), |arrival| in_flight::write(lead.dir.path(), &arrival))
    }

    fn state(&self, state: &mut RunState) {
        (state.ahead, state.carried) = (self.queue.states(), self.under_way.count());
    }

    fn write(&self, folder: &Path) -> Result<Vec<(String, FileRecord)>> {
        let mut files = self.queue.write(folder)?;
        files.extend(self.under_way.write(folder)?);
        Ok(files)
    }

    fn restore(&mut self, from: &mut Restored<'_>) -> Result<()> {
        let most = u64::from(from.run.rollout.prompts_per_step);
        (self.queue, self.under_way) = (RolloutQueue::read(from)?, GroupsUnderWay::restored(most, from)?);
        Ok(())
    }

    fn num_there(&self) -> u32 {
        self.queue.num_there()
    }
}

/// How many places of the queue of rollouts are full.
#[derive(Clone, Copy)]
pub(crate) struct QueueFill {
    pub full: u32,
    pub places: u32,
}

/// Returns all ranks, and this one's place among them.
fn ranks_of<'a>(trainer: &Trainer<'a>) -> ApartRanks<'a> {
    trainer.apart.expect("some ranks only sample, and the others only train")
}

/// Says what this rank needs before it can go on, the rollout of a step or the weights of this one, and how many
/// places of the queue are full.
fn say_whom(cx: &mut StepContext<'_>, apart: &Apart, step: u32, of_step: u32, full: u32) {
    let queue = QueueFill { full, places: cx.run.staleness() };
    let (what, of) = if apart.trains() { ("rollout", of_step) } else { ("weights", step) };
    (cx.waits)(whom(apart, what, of, queue));
}

/// Returns what this rank waits for once it has ended a step: the others' end of it.
pub(crate) fn whom_at_end(apart: &Apart, step: u32, queue: QueueFill) -> String {
    whom(apart, "end", step, queue)
}

fn whom(apart: &Apart, what: &str, step: u32, QueueFill { full, places }: QueueFill) -> String {
    let from = if apart.trains() { apart.first_sampler() } else { 0 };
    format!("the {what} of step {step} from rank {from} (queue `rollouts`, {full} of {places} places full)")
}

/// Calls `body` with the ranks that do the same as this one.
fn with_own<'a, T>(trainer: &mut Trainer<'a>, body: impl FnOnce(&mut Trainer<'a>) -> T) -> T {
    let ApartRanks { all, apart } = ranks_of(trainer);
    trainer.group = apart.own();
    let done = body(trainer);
    trainer.group = all;
    done
}

/// Returns what this rank hands over of what the ranks that sample have drawn: all of them have all of it.
fn of_first_sampler(trainer: &Trainer<'_>, sampled: SampledRollouts) -> StepMessage {
    let ApartRanks { all, apart } = ranks_of(trainer);
    let speaks = all.rank() == apart.first_sampler();
    StepMessage { sampled: speaks.then_some(sampled), ..StepMessage::default() }
}

/// Draws and grades the samples of a step, with the ranks that sample.
fn draw(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    steps: DrawSteps,
    held: Option<&mut Arc<Samples>>,
) -> Result<StepMessage> {
    let mut gathered = Gathered::default();
    let rollout = with_own(trainer, |trainer| ahead::draw(trainer, cx, steps, held, &mut gathered))?;
    Ok(of_first_sampler(trainer, SampledRollouts::new(cx.cursor, vec![rollout], Vec::new(), None, gathered)))
}

/// Finishes the rollout that the step trains on.
fn finish_first(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    rollout: &mut InFlightRollout,
) -> Result<StepMessage> {
    with_own(trainer, |trainer| rollout.finish(trainer, cx))?;
    let (rollouts, gathered) = (std::mem::take(&mut rollout.rollouts), std::mem::take(&mut rollout.gathered));
    Ok(of_first_sampler(trainer, SampledRollouts::new(cx.cursor, rollouts, Vec::new(), None, gathered)))
}

/// Draws until the weights that the step makes arrive: at the tick that the run's schedule has, or as soon as they are
/// there.
fn draw_to_sync(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    mut rollout: InFlightRollout,
    step: u32,
    schedule: Option<&WeightArrivals>,
) -> Result<StepMessage> {
    let ApartRanks { all, .. } = ranks_of(trainer);
    let has_come = || all.posted(0) >= u64::from(step);
    let written = schedule.map(|schedule| schedule.at(step));
    let arrival = with_own(trainer, |trainer| match written {
        Some(arrival) => rollout.draw_to(trainer, cx, arrival).map(|()| arrival),
        None => rollout.draw_until(trainer, cx, &has_come),
    })?;
    let InFlightRollout { groups, rollouts, gathered, .. } = rollout;
    Ok(of_first_sampler(trainer, SampledRollouts::new(cx.cursor, rollouts, groups, Some(arrival), gathered)))
}
