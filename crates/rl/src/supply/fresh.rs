//! Rollouts that are drawn when a step needs them. One serves the step that draws it and `reuse` further ones;
//! a checkpoint between two of them stores the groups that are left, because the weights that drew them are gone.

use super::gathered::Gathered;
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
use plimsoll_run::checkpoint::{BufferState, HELD, RunState};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A rollout, and how far steps have come in it.
#[derive(Debug, Default)]
pub struct FreshSupply {
    /// Where samples outlive the engine's next request, room for them.
    held: Option<Arc<Samples>>,
    rollout: Option<Arc<Rollout>>,
    /// True if its groups wait for further steps, and are not drawn again should this one fail.
    waits: bool,
    /// Number of its groups that have been trained on.
    used: usize,
    /// The same once the step that is being made is.
    used_after: usize,
}

impl FreshSupply {
    /// Begins with nothing. `held`: room for samples that outlive the engine's next request, where they do.
    pub fn new(held: Option<Arc<Samples>>) -> FreshSupply {
        FreshSupply { held, ..FreshSupply::default() }
    }

    /// Takes a rollout for the next steps.
    pub fn put(&mut self, rollout: Rollout) {
        (self.rollout, self.waits, self.used) = (Some(Arc::new(rollout)), false, 0);
    }

    /// Returns the rollout whose groups wait for further steps.
    fn waiting(&self) -> Option<&Rollout> {
        self.rollout.as_deref().filter(|_| self.waits)
    }

    /// Returns the groups that a step of `prompts` prompts trains on; empty where none are left.
    fn left(&self, prompts: usize) -> Range<usize> {
        let groups = self.rollout.as_ref().map_or(0, |rollout| rollout.groups.len());
        self.used..(self.used + prompts).min(groups)
    }
}

impl Supply for FreshSupply {
    fn next(
        &mut self,
        trainer: &mut Trainer<'_>,
        cx: &mut StepContext<'_>,
        step: u32,
        gathered: &mut Gathered,
    ) -> Result<Option<StepSamples>> {
        let prompts = cx.run.rollout.prompts_per_step as usize;
        if self.left(prompts).is_empty() {
            // Its room is drawn into again.
            (self.rollout, self.waits) = (None, false);
            let (rollout, drawn) = whole::draw(trainer, cx, step, self.held.as_mut())?;
            *gathered = drawn;
            self.put(rollout);
        }
        let groups = self.left(prompts);
        self.used_after = groups.end;
        let rollout = self.rollout.clone().expect("it was drawn");
        let is_recorded = rollout.of.policy_version == trainer.updates();
        Ok(Some(StepSamples { rollout, groups, stale: Vec::new(), is_recorded }))
    }

    fn keep(&mut self) {
        (self.used, self.waits) = (self.used_after, true);
        self.rollout.take_if(|rollout| rollout.groups.len() == self.used);
    }

    fn state(&self, state: &mut RunState) {
        state.held = self
            .waiting()
            .map(|rollout| BufferState { groups: (rollout.groups.len() - self.used) as u64, ..rollout.of });
    }

    fn write(&self, folder: &Path) -> Result<Vec<(String, FileRecord)>> {
        let Some(rollout) = self.waiting() else { return Ok(Vec::new()) };
        let record = rollout.write(self.used..rollout.groups.len(), &folder.join(HELD))?;
        Ok(vec![(HELD.to_string(), record)])
    }

    fn restore(&mut self, from: &mut Restored<'_>) -> Result<()> {
        let Some(of) = from.state.held else { return Ok(()) };
        let room = self.held.as_mut().expect("a run whose samples wait has room for them");
        let rollout = Rollout::read(HELD, of, room, from)?;
        self.put(rollout);
        self.waits = true;
        Ok(())
    }
}

#[cfg(test)]
#[path = "fresh_tests.rs"]
mod tests;
