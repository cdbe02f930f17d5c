//! A role's files in a checkpoint: what one rank or several write to them, and how they are read back.

use super::role::Role;
use plimsoll_base::{Bytes, Result};
use plimsoll_device::Device;
use plimsoll_files::{WHOLE_TEXT, whole_name};
use plimsoll_infer::phases::enter;
use plimsoll_infer::weights::whole_source;
use plimsoll_memory::{Buf, InPhase, Overlay};
use plimsoll_model::{FlatTensors, ParamTable, Place, SpreadFile, SpreadTensors, restore, restore_own};
use plimsoll_plan::RoleName;
use plimsoll_run::checkpoint::{ADAPTER_WEIGHTS, CRITIC, CRITIC_OPTIMIZER, OPTIMIZER, WEIGHTS};
use plimsoll_train::{Optimizer, Share};
use std::borrow::Cow;
use std::path::Path;

impl<'a> Role<'a> {
    /// Returns the names of its files in a checkpoint: weights, and optimizer states.
    pub fn files(&self) -> (&'static str, &'static str) {
        match (self.shape.name, &self.adapters) {
            (RoleName::Critic, _) => (CRITIC, CRITIC_OPTIMIZER),
            (_, Some(_)) => (ADAPTER_WEIGHTS, OPTIMIZER),
            (_, None) if self.shape.is_whole => (WHOLE_TEXT, OPTIMIZER),
            (_, None) => (WEIGHTS, OPTIMIZER),
        }
    }

    /// Returns the table of what it learns, with the names that its weights have in files.
    pub fn saved_table(&self) -> Cow<'_, ParamTable> {
        let (table, _) = self.learned();
        if self.shape.is_whole { Cow::Owned(table.renamed(whole_name)) } else { Cow::Borrowed(table) }
    }

    /// Returns the trained parameters for a checkpoint; of adapters the f32 copy, if products read them rounded.
    pub fn saved(&self) -> FlatTensors<'a> {
        let master = || self.optimizer.as_ref().and_then(Optimizer::master);
        let exact = self.adapters.as_ref().and_then(|_| master());
        FlatTensors::weights(exact.unwrap_or(self.learned().1))
    }

    /// Returns the tensors of `saved`, with the places of their elements on several ranks.
    pub fn saved_together(&self) -> SpreadTensors<'a> {
        let (table, learned) = self.learned();
        let dtype = self.saved().dtype();
        let optimizer = self.trained();
        if self.adapters.is_some() && optimizer.master().is_some() {
            let master = optimizer.spread_states(table, true).swap_remove(Optimizer::MASTER);
            return SpreadTensors { prefix: "", ..master };
        }
        let source = self.source().unwrap_or_else(|| whole_source(table, learned));
        let places = source.into_iter().map(|(run, buf)| (run, Place::Numbers(buf))).collect();
        SpreadTensors { prefix: "", dtype, places }
    }

    /// Returns the phase's buffer through which the ranks' parts pass to files and back.
    pub(super) fn passage<'p>(&self, phase: &InPhase<'p>) -> Buf<'p> {
        phase.buf(&format!("{}.passage", self.shape.name.name()))
    }

    /// Reads weights and optimizer states from a checkpoint, bit for bit, after `updates` updates.
    ///
    /// Errors: `checkpoint-damaged`; those of reading.
    pub fn restore(
        &mut self,
        dev: &dyn Device,
        overlay: &mut Overlay<'_>,
        checkpoint: &Path,
        updates: u64,
        staging: Bytes,
    ) -> Result<()> {
        let (weights, states) = self.files();
        let (weights, states) = (checkpoint.join(weights), checkpoint.join(states));
        let ((table, learned), layout) = (self.learned(), self.layout());
        let phase = enter(dev, overlay, self.update_shape().pass.mode.phase());
        let named = self.saved_table();
        let own = |table: &ParamTable, sets: &[SpreadTensors<'_>], path: &Path| {
            restore_own(dev, SpreadFile { path, table, layout, sets, staging }, self.passage(&phase))
        };
        match self.own_source() {
            Some(part) => {
                let places = part.into_iter().map(|(run, buf)| (run, Place::Numbers(buf))).collect();
                own(&named, &[SpreadTensors { prefix: "", dtype: learned.dtype(), places }], &weights)?;
            }
            None => {
                let learned = FlatTensors { stored: self.stored_as(), ..FlatTensors::weights(learned) };
                restore(dev, &named, layout, &[learned], None, &weights, staging)?;
            }
        }
        self.refresh(dev);
        let Some(optimizer) = &self.optimizer else { return Ok(()) };
        match self.update_shape().share {
            Share::WHOLE => {
                let through = self.bind_gradients(&phase).all();
                restore(dev, table, layout, &optimizer.states(), Some(through), &states, staging)?;
            }
            _ => own(table, &optimizer.spread_states(table, false), &states)?,
        }
        self.optimizer.as_mut().expect("it was read just now").step = updates;
        Ok(())
    }
}
