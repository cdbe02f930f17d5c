//! A run that follows a schedule, whose ranks take turns.

use super::rollout::InFlightRollout;
use super::schedule::{Arrival, WeightArrivals};
use crate::context::StepContext;
use crate::players::GroupsUnderWay;
use crate::roles::Trainer;
use crate::supply::gathered::Gathered;
use crate::supply::queue::RolloutQueue;
use crate::supply::restored::Restored;
use crate::supply::rollout::StepSamples;
use crate::supply::source::Supply;
use plimsoll_base::Result;
use plimsoll_files::FileRecord;
use plimsoll_infer::responder::Responder;
use plimsoll_run::checkpoint::RunState;
use plimsoll_run::lead::Lead;
use std::path::Path;

/// Rollouts of later steps, and the one under way.
#[derive(Debug)]
pub(crate) struct InFlightSupply {
    queue: RolloutQueue,
    under_way: GroupsUnderWay,
    schedule: WeightArrivals,
    /// When the weights of the last step arrived.
    arrival: Option<Arrival>,
}

impl InFlightSupply {
    /// Begins with nothing, and follows `schedule`.
    pub(crate) fn new(schedule: WeightArrivals) -> InFlightSupply {
        InFlightSupply {
            queue: RolloutQueue::default(),
            under_way: GroupsUnderWay::default(),
            schedule,
            arrival: None,
        }
    }
}

impl Supply for InFlightSupply {
    fn next(
        &mut self,
        trainer: &mut Trainer<'_>,
        cx: &mut StepContext<'_>,
        step: u32,
        gathered: &mut Gathered,
    ) -> Result<Option<StepSamples>> {
        let arrival = self.schedule.at(step);
        self.queue.begin();
        let mut rollout = InFlightRollout::begin(step, self.queue.num_waiting(), &self.under_way.groups);
        rollout.draw_to(trainer, cx, arrival)?;
        rollout.rollouts.into_iter().for_each(|rollout| self.queue.push(rollout));
        (self.under_way.next, self.arrival) = (Some(rollout.groups), Some(arrival));
        let (samples, metrics) = self.queue.first(trainer.updates());
        *gathered = Gathered { of_supply: metrics, ..rollout.gathered };
        gathered.of_supply.insert("rollout/waiting".into(), f64::from(arrival.rollout - step - 1));
        Ok(Some(samples))
    }

    fn keep(&mut self) {
        self.queue.keep();
        self.under_way.keep();
    }

    fn record(&mut self, lead: &mut Lead<'_, '_, '_, '_>, _step: u32) -> Result<()> {
        self.arrival.take().map_or(Ok(()), |arrival| super::write(lead.dir.path(), &arrival))
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
}
