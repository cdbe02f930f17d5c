//! The loop over an update's micro-batches: forward, loss, backward. Each of the ranks takes one micro-batch per turn,
//! and `adding` makes one sum of their gradients.

use super::adding::{Adding, Turn};
use super::role::{GradientPasses, Loss, LossOf, Role, UpdateStats};
use super::update::Update;
use crate::arrays::TokenArrays;
use crate::ranks::gather;
use plimsoll_base::{Error, Result, slugs};
use plimsoll_files::Head;
use plimsoll_memory::{Buf, InPhase};
use plimsoll_model::{Activations, ExpertLoad, ExpertUse, Pass, PassIndex, layers};
use plimsoll_plan::UpdateShape;
use plimsoll_train::{HeadRow, Packer, Sequence, Units};
use std::ops::Range;
use std::time::Instant;

impl<'a> Role<'a> {
    /// Computes the gradients of some sequences, from zero or on top of those before, and returns this rank's part of
    /// the sum. Every rank computes the loss of every micro-batch, of others' from exchanged numbers, so that all have
    /// the same sums.
    ///
    /// Errors: `loss-not-finite`; `rank-lost`; those of packing and of the device.
    pub(super) fn gradients<'p>(
        &self,
        with: GradientPasses<'_, 'a>,
        phase: &InPhase<'p>,
        buffers: &mut TokenArrays,
        of: LossOf<'_, '_>,
    ) -> Result<(Buf<'p>, UpdateStats)>
    where
        'a: 'p,
    {
        let GradientPasses { dev, group, packer, images, teacher, form } = with;
        let UpdateShape { pass, cut, .. } = self.update_shape();
        let units = Units { packing: pass.packing, hidden: u64::from(self.shape.spec.hidden) };
        packer.cut(cut, units, of.sequences, of.which.clone())?;
        let rows = packer.rows_of_sequences(pass.packing.heads, of.sequences, of.which.start);
        let layers = self.layers(dev, phase);
        let how = buffers.divergence.as_ref().and_then(|of| of.how);
        let teacher = self.teacher_head(dev, phase, teacher, &*layers, how, of.inv_temperature);
        let update = Update {
            dev,
            group,
            role: self,
            form,
            layers,
            teacher,
            seen: images.map(|images| images.seen(phase, pass.mode)),
            d_vectors: images.and_then(|images| images.gradients(phase)),
            acts: Activations::bind(phase, pass.mode, pass.limits),
            grads: self.bind_gradients(phase),
            partial: self.partial(phase),
            inv_temperature: of.inv_temperature,
            balance: self.balance_factor(rows),
            sequence_rows: rows,
        };
        let adding = Adding::bind(&update, phase);
        // After an error that all ranks meet, work put aside may still be running, in memory that other phases share.
        let settle = |err: &Error| {
            if slugs::OF_ALL_RANKS.contains(&err.slug) {
                dev.sync();
            }
        };
        let stats = update.turns(&adding, packer, buffers, of).inspect_err(settle)?;
        Ok((adding.sum(), stats))
    }

    /// Returns the derivative of the balance loss, a mean over layers and the rows of sequences, by the probability of
    /// an expert that all rows of its segment chose.
    fn balance_factor(&self, rows: u64) -> f32 {
        let mut layers = self.shape.spec.each_layer();
        let Some(experts) = layers.find_map(|layer| layer.experts()) else { return 0.0 };
        let numbers = rows.max(1) as f64 * f64::from(self.shape.spec.expert_layers());
        (self.update_shape().balance_coef * f64::from(experts.count) / numbers) as f32
    }

    /// Computes the loss of a micro-batch whose numbers are in the buffers.
    fn loss(&self, buffers: &mut TokenArrays, of: &Range<usize>, loss: &mut Loss<'_>) -> Result<()> {
        buffers.set_micro(of);
        let tokens = buffers.tokens(of);
        loss(buffers, tokens)
    }

    /// Returns what the other ranks need of a micro-batch: its row count, the head's outputs and, for a vocabulary
    /// head, the entropies and the divergences, if there are any.
    pub(super) fn numbers(&self, buffers: &TokenArrays, of: &Range<usize>, rows: usize) -> Vec<f32> {
        let tokens = buffers.tokens(of);
        let (values, entropies, divergences): (_, &[f32], &[f32]) = match self.shape.head {
            Head::Vocabulary => (
                &buffers.logprobs[tokens.clone()],
                &buffers.entropy[tokens.clone()],
                buffers.divergence.as_ref().map_or(&[], |of| &of.values[tokens]),
            ),
            Head::Score => (&buffers.values().values[tokens], &[], &[]),
        };
        [&[f32::from_bits(rows as u32)], values, entropies, divergences].concat()
    }

    /// Copies the `numbers` of a micro-batch to the buffers.
    pub(super) fn take(&self, buffers: &mut TokenArrays, of: &Range<usize>, numbers: &[f32]) {
        let tokens = buffers.tokens(of);
        let (values, others) = numbers[1..].split_at(tokens.len());
        match self.shape.head {
            Head::Vocabulary => {
                let (entropies, divergences) = others.split_at(tokens.len());
                buffers.logprobs[tokens.clone()].copy_from_slice(values);
                buffers.entropy[tokens.clone()].copy_from_slice(entropies);
                if let Some(of) = &mut buffers.divergence {
                    of.values[tokens].copy_from_slice(divergences);
                }
            }
            Head::Score => buffers.values_mut().values[tokens].copy_from_slice(values),
        }
    }
}

impl<'x, 'p: 'x> Update<'x, '_, 'p> {
    /// Runs all micro-batches, one of each rank at a time.
    fn turns(
        &self,
        adding: &Adding<'_, 'x, '_, 'p>,
        packer: &mut Packer,
        buffers: &mut TokenArrays,
        of: LossOf<'_, '_>,
    ) -> Result<UpdateStats> {
        let Update { dev, role, group, .. } = *self;
        let LossOf { sequences, which, loss, goes_on, .. } = of;
        let packing = role.update_shape().pass.packing;
        let (mut stats, count) = (UpdateStats::default(), packer.num_micro_batches());
        if !goes_on {
            adding.begin(count);
        }
        let (rank, ranks) = (group.rank(), group.ranks());
        let mut load = ExpertLoad::of(&role.shape.spec);
        for first in (0..count).step_by(ranks) {
            let started = Instant::now();
            let indices = first..(first + ranks).min(count);
            let batches: Vec<Range<usize>> =
                indices.map(|index| packer.sequences(which.start, index)).collect();
            let (mut own, mut of_own) = (None, Ok(()));
            if let Some(batch) = batches.get(rank) {
                let packed = packer.micro_batch(packing, sequences, batch.start, first + rank)?;
                let of = (packed.head, sequences);
                own = Some((batch.clone(), self.forward(packed.index, of, buffers, batch, adding)?));
                // Its error comes when it is this micro-batch's turn, on all ranks the same.
                of_own = role.loss(buffers, batch, loss);
            } else {
                adding.settle()?;
            }
            stats.forward_s += started.elapsed().as_secs_f64();
            let started = Instant::now();
            let own_batch = batches.get(rank).cloned();
            let mut each = |buffers: &mut TokenArrays, batch: &Range<usize>| match own_batch.as_ref() {
                Some(own) if own == batch => std::mem::replace(&mut of_own, Ok(())),
                _ => role.loss(buffers, batch, loss),
            };
            let adds = goes_on || first > 0;
            let mut turn = Turn { batches, first, count, adds, own, each: &mut each };
            adding.backward(&turn, buffers);
            for (load, (_, pass)) in load.iter_mut().zip(&turn.own) {
                pass.add_load(dev, load);
            }
            stats.rows += adding.end(&mut turn, buffers)? as u64;
            let batches = std::mem::take(&mut turn.batches);
            self.add_vectors(adding, packer, sequences, (&batches, first))?;
            stats.micro_batches += batches.len() as u32;
            stats.backward_s += started.elapsed().as_secs_f64();
        }
        let started = Instant::now();
        stats.experts = self.used(adding, load)?;
        stats.backward_s += started.elapsed().as_secs_f64();
        Ok(stats)
    }

    /// Runs a micro-batch forward, and copies what the head computed to the buffers.
    fn forward(
        &self,
        index: &mut PassIndex,
        (heads, sequences): (&[HeadRow], &[Sequence<'_>]),
        buffers: &mut TokenArrays,
        of: &Range<usize>,
        adding: &Adding<'_, 'x, '_, 'p>,
    ) -> Result<Pass<'x>> {
        let Update { dev, role, layers: ref from, .. } = *self;
        let pass = match &self.seen {
            Some(seen) => seen.upload_texts(dev, self.acts, index, role.shape.spec.vocab)?,
            None => Pass::upload(dev, self.acts, index),
        };
        let pass = pass.with_balance(self.balance).with_teacher(self.teacher);
        layers(dev, &**from, &pass);
        let pass = match self.form.filter(|_| role.shape.head == Head::Vocabulary) {
            Some(form) => {
                form.put(dev, &pass, heads, sequences)?;
                pass.with_masks()
            }
            None => pass,
        };
        let head = role.head(dev, from.decoder(), &pass, self.inv_temperature);
        // The card is busy while the ranks meet.
        adding.settle()?;
        let tokens = buffers.tokens(of);
        match role.shape.head {
            Head::Vocabulary => {
                dev.read_f32(head, 0, &mut buffers.logprobs[tokens.clone()]);
                dev.read_f32(pass.head_out().entropy, 0, &mut buffers.entropy[tokens.clone()]);
                role.diverge(dev, from.decoder(), &pass, self.inv_temperature, buffers, tokens);
            }
            Head::Score => dev.read_f32(head, 0, &mut buffers.values_mut().values[tokens]),
        }
        dev.check()?;
        Ok(pass)
    }

    /// Waits until the ranks have added everything, and returns the expert load balance over all ranks.
    fn used(&self, adding: &Adding<'_, 'x, '_, 'p>, load: Option<ExpertLoad>) -> Result<Option<ExpertUse>> {
        adding.settle()?;
        let Some(load) = load else { return Ok(None) };
        let all = gather(self.group, load.numbers())?;
        Ok(Some(load.used(&all, self.sequence_rows)))
    }
}
