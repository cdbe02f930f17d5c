//! A tower over images that learns with the text that reads its vectors: its optimizer, and its part of an update. The
//! adapters of a tower are among those of its text, and have their optimizer.

use plimsoll_base::{Bytes, Phase, Result};
use plimsoll_device::{Device, MatrixLayout};
use plimsoll_files::{TRAINED_TOWER, WHOLE_TOWER};
use plimsoll_infer::image_table::ImageTable;
use plimsoll_infer::phases::enter;
use plimsoll_memory::{Buf, InPhase, Overlay, Resident};
use plimsoll_model::tower::{TowerGradients, TowerParams};
use plimsoll_model::{FlatTensors, Mode, ParamTable, restore};
use plimsoll_plan::RunShape;
use plimsoll_run::checkpoint::TOWER_OPTIMIZER;
use plimsoll_train::{Optimizer, Share, UpdateOptions, first_not_finite, gradient_not_finite};
use std::path::Path;

/// The region of a tower's gradients, in the phase of an update.
const GRADIENTS: &str = "tower.grads";

/// Returns the name of a tower's file in a checkpoint.
pub(crate) fn tower_file(shape: &RunShape) -> &'static str {
    if shape.saves_whole() { WHOLE_TOWER } else { TRAINED_TOWER }
}

/// A tower that is trained.
pub struct TrainedTower<'a> {
    pub(crate) table: ParamTable,
    pub(crate) optimizer: Optimizer<'a>,
    weights: Buf<'a>,
    mode: Mode,
    layout: MatrixLayout,
    /// Its file in a checkpoint.
    pub(crate) file: &'static str,
}

impl<'a> TrainedTower<'a> {
    /// Binds the states of a plan that trains a tower; none of one that does not.
    pub(super) fn bind(
        dev: &dyn Device,
        resident: Resident<'a>,
        shape: &RunShape,
        images: Option<&ImageTable<'a>>,
    ) -> Option<TrainedTower<'a>> {
        let (_, mode) = shape.tower_update()?;
        let sight = shape.sight.as_ref().expect("a plan with images");
        let (table, weights) = (sight.table(shape.target, shape.weights), images?.weights());
        let optimizer = Optimizer::new(dev, &table, weights, resident, "tower", Share::WHOLE);
        let layout = MatrixLayout::of_weights(shape.target.kind, shape.weights);
        Some(TrainedTower { table, optimizer, weights, mode, layout, file: tower_file(shape) })
    }

    /// Computes the gradients of an update whose text has given those of the vectors. Returns their norm.
    ///
    /// Errors: those of the device; `gradient-not-finite`.
    pub(super) fn gradients(
        &self,
        dev: &dyn Device,
        phase: &InPhase<'_>,
        images: &mut ImageTable<'a>,
    ) -> Result<f64> {
        let grads = phase.buf(GRADIENTS);
        let params = TowerParams::bind(images.spec(), &self.table, grads.dtype(), grads);
        images.backward(dev, (phase, self.mode), TowerGradients::Weights(&params))?;
        let norm = self.optimizer.grad_norm(dev, grads);
        if norm.is_finite() {
            return Ok(norm);
        }
        let index = first_not_finite(dev, &self.table, self.optimizer.owned(), grads);
        Err(gradient_not_finite(&self.table, index))
    }

    /// Makes a step of the optimizer. `grad_norm`: that of text and tower together.
    pub(super) fn apply(
        &mut self,
        dev: &dyn Device,
        phase: &InPhase<'_>,
        how: UpdateOptions,
        grad_norm: f64,
    ) {
        self.optimizer.update(dev, self.weights, phase.buf(GRADIENTS), None, how, grad_norm);
        dev.sync();
    }

    /// Returns its weights for a checkpoint.
    pub(crate) fn saved(&self) -> FlatTensors<'a> {
        FlatTensors::weights(self.weights)
    }

    /// Reads weights and states from a checkpoint, bit for bit, after `updates` updates.
    ///
    /// Errors: `checkpoint-damaged`; those of reading.
    pub(super) fn restore(
        &mut self,
        dev: &dyn Device,
        overlay: &mut Overlay<'_>,
        (checkpoint, updates): (&Path, u64),
        staging: Bytes,
    ) -> Result<()> {
        let phase = enter(dev, overlay, Phase::Update);
        let (table, layout) = (&self.table, self.layout);
        restore(dev, table, layout, &[self.saved()], None, &checkpoint.join(self.file), staging)?;
        let (states, through) = (self.optimizer.states(), phase.buf(GRADIENTS));
        restore(dev, table, layout, &states, Some(through), &checkpoint.join(TOWER_OPTIMIZER), staging)?;
        self.optimizer.step = updates;
        Ok(())
    }
}
