//! A role's gradients where several ranks share the work: micro-batches are taken in turn, and every owner adds the partial
//! gradients of a round in their order.

use super::role::{LossOf, Role, UpdateStats};
use crate::methods::buffers::StepBuffers;
use crate::ranks::gather_f32;
use plimsoll_base::Result;
use plimsoll_device::{Aside, Device, Owned};
use plimsoll_files::Head;
use plimsoll_memory::{Buf, InPhase};
use plimsoll_model::{Activations, Params, Pass, PassIndex, RowGradients, Stage, backward_part, layers};
use plimsoll_plan::UpdateShape;
use plimsoll_ranks::Group;
use plimsoll_train::{Landing, Packer, Part, Share, Units};
use std::cell::{Cell, RefCell};
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
    /// Where pieces of the others' arrive, on cards.
    landing: Option<Landing<'p>>,
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
        let landing = Landing::bind(phase, self.shape.name.name());
        let chain = Chain { dev, group, role: self, acts, grads, shard, landing, inv_temperature };
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
            let own = own.zip(pass.as_ref());
            chain.backward(buffers, own, &all[..batches.len()], first > 0)?;
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

    /// Computes the partial gradient of this rank's micro-batch, if it has one, and adds those of a round, of which `all` has the
    /// numbers, to the shard; or begins it with them unless `add`.
    fn backward(
        &self,
        buffers: &StepBuffers,
        own: Option<(&Range<usize>, &Pass<'p>)>,
        all: &[Vec<f32>],
        add: bool,
    ) -> Result<()> {
        let round = Round { chain: self, all, add, turn: Cell::new(0), lost: RefCell::new(Ok(())) };
        match own {
            None => Stage::all(self.role.shape.spec.layers).for_each(|stage| round.after(stage)),
            Some((own, pass)) => {
                let tokens = buffers.tokens(own);
                let derivatives = match self.role.shape.head {
                    Head::Vocabulary => [&buffers.d_logprobs[tokens.clone()], &buffers.d_entropy[tokens]],
                    Head::Score => [&buffers.critic.d_values[tokens], &[]],
                };
                let of = self.role.derivatives(self.inv_temperature, derivatives);
                self.role.trained().begin_gradients(self.dev, self.grads.all);
                let after = &mut |stage| round.after(stage);
                backward_part(self.dev, self.role.decoder(), &self.grads, false, pass, of, after);
            }
        }
        round.end()
    }
}

/// The backward passes of a round, one on each rank.
struct Round<'x, 'a, 'p> {
    chain: &'x Chain<'x, 'a, 'p>,
    /// The numbers of each rank that has a micro-batch.
    all: &'x [Vec<f32>],
    add: bool,
    /// Marks so far.
    turn: Cell<usize>,
    /// What ended the run meanwhile.
    lost: RefCell<Result<()>>,
}

impl Round<'_, '_, '_> {
    /// Adds what a stage has left on all ranks, next to the stages after it.
    fn after(&self, stage: Stage) {
        let Chain { dev, role, shard, landing, .. } = *self.chain;
        let Some(aside) = dev.aside() else { return };
        let Some(turn) = self.meet(aside) else { return };
        let within = match stage {
            Stage::Head => role.table.head_run(),
            Stage::Layer(layer) => role.table.layer_run(layer),
        };
        aside.run(turn, &mut || {
            for (rank, part) in self.parts().enumerate() {
                role.trained().fold_run(dev, part, landing, shard, self.add || rank > 0, within);
                if let (Stage::Head, Some(landing), Some(_)) = (stage, landing, part.of) {
                    role.trained().take_head(dev, part, landing);
                }
            }
        });
    }

    /// Adds what is left once the passes have ended.
    fn end(self) -> Result<()> {
        let Chain { dev, group, role, shard, landing, .. } = *self.chain;
        let table = &role.table;
        let Some(aside) = dev.aside() else {
            dev.sync();
            dev.check()?;
            // All partial gradients are there; after the second barrier they may be overwritten.
            group.barrier()?;
            for (rank, part) in self.parts().enumerate() {
                role.trained().fold(dev, table, part, shard, self.add || rank > 0);
            }
            dev.sync();
            return group.barrier();
        };
        self.join(aside);
        for (rank, part) in self.parts().enumerate() {
            role.trained().fold_embed(dev, table, part, landing, shard, self.add || rank > 0);
        }
        // What the others read of this rank may be overwritten from here on.
        self.join(aside);
        self.lost.into_inner()?;
        dev.check()
    }

    /// Makes the operations from here on wait for those of all ranks so far.
    fn join(&self, aside: &dyn Aside) {
        if let Some(turn) = self.meet(aside) {
            aside.run(turn, &mut || {});
            aside.join();
        }
    }

    /// Marks what this rank has computed, and waits until all ranks have. Returns the mark's turn; `None` if a rank was lost.
    fn meet(&self, aside: &dyn Aside) -> Option<usize> {
        if self.lost.borrow().is_err() {
            return None;
        }
        let turn = self.turn.replace(self.turn.get() + 1);
        aside.mark(turn);
        *self.lost.borrow_mut() = self.chain.group.barrier();
        self.lost.borrow().is_ok().then_some(turn)
    }

    fn parts(&self) -> impl Iterator<Item = Part<'_, '_>> {
        self.all.iter().enumerate().map(|(rank, numbers)| {
            let RowGradients { d_input, ids } = self.chain.acts.row_gradients(rows_of(numbers));
            let of = (rank != self.chain.group.rank()).then_some(rank);
            Part { grads: &self.chain.grads, d_input, ids, of }
        })
    }
}

fn rows_of(numbers: &[f32]) -> usize {
    numbers[0].to_bits() as usize
}
