//! Passes of models that end in values: the critic of `ppo`, a reward model under training, and one that scores responses.
//! Whose they are, and what the values are for, is `critic.rs`, `reward_model.rs` and `model_reward.rs`.

use crate::buffers::StepBuffers;
use crate::trainer::UpdateStats;
use plimsoll_base::Result;
use plimsoll_device::Device;
use plimsoll_memory::Buf;
use plimsoll_model::{Activations, Decoder, Params, Pass, backward_values, layers, values};
use plimsoll_train::{Packer, Packing, Sequence};
use std::ops::Range;
use std::time::Instant;

/// A model that gives values, in its phase.
pub(crate) struct ValuePasses<'x, 'p> {
    pub(crate) dev: &'x dyn Device,
    pub(crate) decoder: &'x Decoder<'p>,
    pub(crate) acts: Activations<'x>,
    pub(crate) packer: &'x mut Packer,
    pub(crate) packing: Packing,
}

impl ValuePasses<'_, '_> {
    /// The values of all sequences; `each` is given those of a micro-batch, [R] f32 on the device, and its sequences.
    pub(crate) fn score(
        &mut self,
        sequences: &[Sequence<'_>],
        each: &mut dyn FnMut(Range<usize>, Buf<'_>),
    ) -> Result<()> {
        let mut first = 0;
        while first < sequences.len() {
            let batch = self.packer.pack_as(self.packing, sequences, first)?;
            let pass = Pass::upload(self.dev, self.acts, batch.index);
            layers(self.dev, self.decoder, &pass);
            values(self.dev, self.decoder, &pass);
            first = batch.sequences.end;
            each(batch.sequences, pass.values());
            self.dev.check()?;
        }
        Ok(())
    }

    /// Gradients of `which` sequences, from zero. `loss` sees each micro-batch after its forward pass, whose values are in
    /// `buffers.critic.values`: it fills `buffers.critic.d_values` for its entries.
    pub(crate) fn gradients(
        &mut self,
        grads: &Params<'_>,
        buffers: &mut StepBuffers,
        sequences: &[Sequence<'_>],
        which: Range<usize>,
        loss: &mut dyn FnMut(&mut StepBuffers, Range<usize>) -> Result<()>,
    ) -> Result<UpdateStats> {
        let mut stats = UpdateStats::default();
        let mut first = which.start;
        while first < which.end {
            let started = Instant::now();
            let batch = self.packer.pack_as(self.packing, &sequences[..which.end], first)?;
            let pass = Pass::upload(self.dev, self.acts, batch.index);
            layers(self.dev, self.decoder, &pass);
            values(self.dev, self.decoder, &pass);
            let entries = buffers.tokens(&batch.sequences);
            self.dev.read_f32(pass.values(), 0, &mut buffers.critic.values[entries.clone()]);
            self.dev.check()?;
            buffers.set_micro(&batch.sequences);
            loss(buffers, entries.clone())?;
            stats.forward_s += started.elapsed().as_secs_f64();
            let started = Instant::now();
            let d_values = &buffers.critic.d_values[entries];
            backward_values(self.dev, self.decoder, grads, stats.micro_batches > 0, &pass, d_values);
            stats.backward_s += started.elapsed().as_secs_f64();
            stats.micro_batches += 1;
            stats.rows += batch.index.ids.len() as u64;
            first = batch.sequences.end;
        }
        Ok(stats)
    }
}
