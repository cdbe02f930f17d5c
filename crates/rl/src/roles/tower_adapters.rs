//! The adapters of a tower over images, which are among those of the text that reads its vectors: their gradients.

use super::role::Role;
use plimsoll_base::Result;
use plimsoll_device::{Device, OwnedRun};
use plimsoll_infer::image_table::ImageTable;
use plimsoll_memory::{Buf, InPhase};
use plimsoll_model::tower::{TowerAdapters, TowerGradients};
use plimsoll_train::Share;

impl<'a> Role<'a> {
    /// True if adapters of a tower are among what it learns.
    pub(super) fn adapts_tower(&self) -> bool {
        self.adapters.as_ref().is_some_and(|(table, _)| table.tower_run().elements > 0)
    }

    /// Computes the gradients of a tower's adapters, after those of the text and so of the vectors, and writes to `sum`
    /// what this rank adds up: all ranks compute the same. Does nothing without such adapters.
    ///
    /// Errors: those of the device.
    pub(super) fn add_tower<'p>(
        &self,
        dev: &dyn Device,
        phase: &InPhase<'p>,
        images: &mut ImageTable<'a>,
        sum: Buf<'p>,
    ) -> Result<()>
    where
        'a: 'p,
    {
        let (Some((table, _)), Some(lora)) =
            (self.adapters.as_ref().filter(|_| self.adapts_tower()), self.shape.lora)
        else {
            return Ok(());
        };
        let (run, update) = (table.tower_run(), self.update_shape());
        let grads = self.partial(phase).place(run.start, run.elements);
        let of = TowerAdapters::bind(images.spec(), table, self.shape.weights, lora.scale, grads);
        let of = of.expect("the table has adapters of a tower");
        images.backward(dev, (phase, update.pass.mode), TowerGradients::Adapters(&of))?;
        if update.share == Share::WHOLE {
            return Ok(());
        }
        for OwnedRun { run: own, at } in update.share.owned(table).iter().filter_map(|own| own.inside(run)) {
            let (from, len) = ((own.start - run.start) as usize, own.elements as usize);
            dev.accumulate(grads.slice(from, len), sum.slice(at as usize, len), false);
        }
        dev.sync();
        dev.check()
    }
}
