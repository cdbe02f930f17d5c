//! `async.staleness`: a step draws the samples of the step that many later, and trains on those that were drawn that
//! many steps before. The lag is counted in steps: no clock, thread or number of ranks has a say.
//!
//! Legend: L steps ahead.

use super::gathered::Gathered;
use super::queue::RolloutQueue;
use super::restored::Restored;
use super::rollout::{Rollout, StepSamples};
use super::source::Supply;
use super::whole;
use crate::context::StepContext;
use crate::roles::Trainer;
use plimsoll_base::Result;
use plimsoll_files::FileRecord;
use plimsoll_infer::responder::Responder;
use plimsoll_rollout::Samples;
use plimsoll_run::checkpoint::{BufferState, RunState};
use std::path::Path;
use std::sync::Arc;

/// Rollouts of later steps.
#[derive(Debug)]
pub(super) struct AheadSupply {
    queue: RolloutQueue,
    /// Where samples outlive the engine's next request while they are drawn, room for them.
    held: Option<Arc<Samples>>,
}

impl AheadSupply {
    pub(super) fn new(held: Option<Arc<Samples>>) -> AheadSupply {
        AheadSupply { queue: RolloutQueue::default(), held }
    }
}

/// The step that draws samples, and the one that trains on them.
#[derive(Clone, Copy)]
pub(super) struct DrawSteps {
    pub drawn_in: u32,
    pub trained_in: u32,
}

/// Draws and grades the samples of a step.
///
/// Errors: those of drawing and of the rewards.
pub(super) fn draw(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    steps: DrawSteps,
    held: Option<&mut Arc<Samples>>,
    gathered: &mut Gathered,
) -> Result<Rollout> {
    let (rollout, drawn) = whole::draw(trainer, cx, steps.trained_in, held)?;
    gathered.add(drawn);
    // The room is drawn into again before they are trained.
    let samples = Arc::new(rollout.samples.copied(cx.run.rollout.max_new_tokens as usize));
    Ok(Rollout { of: BufferState { step: steps.drawn_in, ..rollout.of }, samples, ..rollout })
}

impl Supply for AheadSupply {
    /// Draws what the steps up to L later have none of: for one, in the first step for all. Nothing is drawn that the
    /// run would not train.
    fn next(
        &mut self,
        trainer: &mut Trainer<'_>,
        cx: &mut StepContext<'_>,
        step: u32,
        gathered: &mut Gathered,
    ) -> Result<Option<StepSamples>> {
        let last = step.saturating_add(cx.run.staleness()).min(cx.run.train().steps);
        self.queue.begin();
        for of_step in step + self.queue.num_waiting()..=last {
            let steps = DrawSteps { drawn_in: step, trained_in: of_step };
            let rollout = draw(trainer, cx, steps, self.held.as_mut(), gathered)?;
            self.queue.push(rollout);
        }
        let (samples, metrics) = self.queue.first(trainer.updates());
        gathered.of_supply = metrics;
        gathered.of_supply.insert("rollout/waiting".into(), f64::from(last - step));
        Ok(Some(samples))
    }

    fn keep(&mut self) {
        self.queue.keep();
    }

    fn state(&self, state: &mut RunState) {
        state.ahead = self.queue.states();
    }

    fn write(&self, folder: &Path) -> Result<Vec<(String, FileRecord)>> {
        self.queue.write(folder)
    }

    fn restore(&mut self, from: &mut Restored<'_>) -> Result<()> {
        self.queue = RolloutQueue::read(from)?;
        Ok(())
    }
}
