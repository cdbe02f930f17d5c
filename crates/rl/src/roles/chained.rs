//! A role's gradients where several ranks share the work: micro-batches are taken in turn, and every owner adds the partial
//! gradients of a round in their order.

use super::role::{LossOf, Role, UpdateStats};
use crate::methods::buffers::StepBuffers;
use crate::ranks::gather_f32;
use plimsoll_base::Result;
use plimsoll_device::{Device, Owned};
use plimsoll_files::Head;
use plimsoll_memory::{Buf, InPhase};
use plimsoll_model::{Activations, Params, Pass, PassIndex, RowGradients, backward_part, layers};
use plimsoll_plan::UpdateShape;
use plimsoll_ranks::Group;
use plimsoll_train::{Packer, Part, Share, Units};
use std::ops::Range;
use std::time::Instant;

/// What is fixed while the micro-batches of an update pass.
struct Chain<'x, 'a, 'p> {
    dev: &'x dyn Device,
    group: &'x Group,
    role: &'x Role<'a>,
    acts: Activations<'p>,
    /// The partial gradient of this rank's micro-batch.
    grads: Params<'p>,
    /// The sum of what this rank owns.
    shard: Buf<'p>,
    inv_temperature: f32,
}

impl Role<'_> {
    /// Computes the part of the gradients that this rank owns. Every rank computes the loss of every micro-batch, from numbers
    /// that the ranks exchange, so that all have the same sums.
    ///
    /// Errors: as `Role::gradients`; `rank-lost`.
    pub(super) fn chained<'p>(
        &self,
        dev: &dyn Device,
        phase: &InPhase<'p>,
        packer: &mut Packer,
        buffers: &mut StepBuffers,
        of: LossOf<'_, '_>,
        group: &Group,
    ) -> Result<(Buf<'p>, UpdateStats)> {
        let LossOf { sequences, which, inv_temperature, loss } = of;
        let UpdateShape { pass: shape, cut, .. } = self.update_shape();
        let shard = phase.buf(&format!("{}.shard", self.shape.name.name()));
        let acts = Activations::bind(phase, shape.mode, shape.limits);
        let grads = self.bind_gradients(phase);
        let chain = Chain { dev, group, role: self, acts, grads, shard, inv_temperature };
        let units = Units { packing: shape.packing, hidden: u64::from(self.shape.spec.hidden) };
        packer.cut(cut, units, sequences, which.clone())?;
        let (mut stats, count) = (UpdateStats::default(), packer.num_micro_batches());
        if count == 0 {
            dev.zero(shard);
        }
        for first in (0..count).step_by(group.ranks()) {
            let started = Instant::now();
            let round = first..(first + group.ranks()).min(count);
            let batches: Vec<Range<usize>> =
                round.map(|index| packer.sequences(which.start, index)).collect();
            let own = batches.get(group.rank());
            let (pass, numbers) = match own {
                None => (None, vec![0.0]),
                Some(own) => {
                    let index = first + group.rank();
                    let batch = packer.micro_batch(shape.packing, sequences, own.start, index)?;
                    let (pass, numbers) = chain.forward(batch.index)?;
                    (Some(pass), numbers)
                }
            };
            let all = gather_f32(group, &numbers)?;
            for (batch, numbers) in batches.iter().zip(&all) {
                let tokens = buffers.tokens(batch);
                self.set_numbers(buffers, tokens.clone(), &numbers[1..]);
                buffers.set_micro(batch);
                loss(buffers, tokens)?;
                stats.micro_batches += 1;
                stats.rows += rows_of(numbers) as u64;
            }
            stats.forward_s += started.elapsed().as_secs_f64();
            let started = Instant::now();
            if let (Some(own), Some(pass)) = (own, &pass) {
                chain.backward(buffers, own, pass)?;
            }
            chain.add_round(&all[..batches.len()], first > 0)?;
            stats.backward_s += started.elapsed().as_secs_f64();
        }
        Ok((shard, stats))
    }

    /// Copies the weights that other ranks have updated.
    ///
    /// Errors: `rank-lost`.
    pub(super) fn take_weights(&self, dev: &dyn Device, group: &Group) -> Result<()> {
        let weights = self.decoder().params.all;
        group.barrier()?;
        for rank in (0..group.ranks()).filter(|rank| *rank != group.rank()) {
            for Owned { run, .. } in (Share { rank, ranks: group.ranks() }).owned(&self.table) {
                let updated = weights.slice(run.start as usize, run.elements as usize);
                dev.accumulate(updated.of_rank(rank), updated, false);
            }
        }
        dev.sync();
        group.barrier()
    }

    /// Takes a micro-batch's numbers as `Chain::forward` gives them, without the rows.
    fn set_numbers(&self, buffers: &mut StepBuffers, tokens: Range<usize>, numbers: &[f32]) {
        let (values, entropies) = numbers.split_at(tokens.len());
        match self.shape.head {
            Head::Vocabulary => {
                buffers.logprobs[tokens.clone()].copy_from_slice(values);
                buffers.entropy[tokens].copy_from_slice(entropies);
            }
            Head::Score => buffers.critic.values[tokens].copy_from_slice(values),
        }
    }
}

impl<'p> Chain<'_, '_, 'p> {
    /// Runs a micro-batch forward. Returns its pass, and for the other ranks its rows, the head's numbers and, after a
    /// vocabulary, the entropies.
    fn forward(&self, index: &PassIndex) -> Result<(Pass<'p>, Vec<f32>)> {
        let Chain { dev, role, .. } = *self;
        let pass = Pass::upload(dev, self.acts, index);
        layers(dev, role.decoder(), &pass);
        let head = role.head(dev, role.decoder(), &pass, self.inv_temperature);
        let heads = index.head_rows.len();
        let mut numbers = vec![0.0; 1 + heads];
        numbers[0] = f32::from_bits(index.ids.len() as u32);
        dev.read_f32(head, 0, &mut numbers[1..]);
        if role.shape.head == Head::Vocabulary {
            numbers.resize(1 + 2 * heads, 0.0);
            dev.read_f32(pass.head_out().entropy, 0, &mut numbers[1 + heads..]);
        }
        dev.check()?;
        Ok((pass, numbers))
    }

    /// Computes the partial gradient of this rank's micro-batch.
    fn backward(&self, buffers: &StepBuffers, own: &Range<usize>, pass: &Pass<'p>) -> Result<()> {
        let Chain { dev, role, .. } = *self;
        let tokens = buffers.tokens(own);
        let derivatives = match role.shape.head {
            Head::Vocabulary => [&buffers.d_logprobs[tokens.clone()], &buffers.d_entropy[tokens]],
            Head::Score => [&buffers.critic.d_values[tokens], &[]],
        };
        let of = role.derivatives(self.inv_temperature, derivatives);
        role.trained().begin_gradients(dev, self.grads.all);
        backward_part(dev, role.decoder(), &self.grads, false, pass, of);
        dev.sync();
        dev.check()
    }

    /// Adds the partial gradients of a round, of which `all` has the numbers, to the shard; or begins it with them unless `add`.
    fn add_round(&self, all: &[Vec<f32>], add: bool) -> Result<()> {
        // All partial gradients are there; after the second barrier they may be overwritten.
        self.group.barrier()?;
        for (rank, numbers) in all.iter().enumerate() {
            let RowGradients { d_input, ids } = self.acts.row_gradients(rows_of(numbers));
            let of = (rank != self.group.rank()).then_some(rank);
            let part = Part { grads: &self.grads, d_input, ids, of };
            self.role.trained().fold(self.dev, &self.role.table, part, self.shard, add || rank > 0);
        }
        self.dev.sync();
        self.group.barrier()
    }
}

fn rows_of(numbers: &[f32]) -> usize {
    numbers[0].to_bits() as usize
}
