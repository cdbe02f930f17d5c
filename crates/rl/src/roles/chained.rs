//! A role's gradients where several ranks share the work: micro-batches are taken in turn, and every owner adds the partial
//! gradients of a round in their order.

use super::adapters::RoleGradients;
use super::role::{LossFor, LossOf, Role, UpdateStats};
use super::weights::shard_region;
use crate::methods::buffers::StepBuffers;
use crate::ranks::{gather_f32, gather_f64};
use plimsoll_base::{Error, Result, slugs};
use plimsoll_device::{Device, Owned, Run};
use plimsoll_files::Head;
use plimsoll_memory::{Buf, InPhase};
use plimsoll_model::{
    Activations, ExpertLoad, Layers, Pass, PassIndex, RowGradients, Stage, backward_part, layers,
};
use plimsoll_plan::UpdateShape;
use plimsoll_ranks::Group;
use plimsoll_train::{Area, Landing, Levels, Links, Packer, Part, Partial, Share, Sum, Units, UpdateOptions};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::Instant;

/// What is fixed while the micro-batches of an update pass.
struct Chain<'x, 'a, 'p> {
    dev: &'x dyn Device,
    group: &'x Group,
    role: &'x Role<'a>,
    layers: Box<dyn Layers<'x> + 'x>,
    acts: Activations<'p>,
    /// Where the partial gradient of this rank's micro-batch goes.
    grads: RoleGradients<'p>,
    /// The same by places in the flat buffer.
    partial: Partial<'p>,
    /// The sum of what this rank owns.
    sum: Sum<'p>,
    /// Where pieces of the others' arrive, on cards.
    landing: Option<Landing<'p>>,
    /// What this host adds for others, if hosts fold.
    levels: Option<Levels<'p>>,
    inv_temperature: f32,
    /// As `Balance::factor`.
    balance: f32,
    /// Marks so far.
    turn: Cell<usize>,
    /// The mark of what was put aside last in a round, which operations do not wait for yet.
    left: Cell<Option<usize>>,
    /// What ended the run meanwhile.
    lost: RefCell<Result<()>>,
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
        let UpdateShape { pass: shape, dtypes, .. } = self.update_shape();
        let (name, summing) = (self.shape.name.name(), dtypes.summing);
        let shard = phase.buf(&shard_region(&self.shape));
        let sum = Sum { shard, folded: phase.get(&format!("{name}.folded")), fold: summing.fold, count: 0 };
        let acts = Activations::bind(phase, shape.mode, shape.limits);
        let grads = self.bind_gradients(phase);
        let share = Share { rank: group.rank(), ranks: group.ranks() };
        let levels = Levels::bind(phase, name, self.learned().0, summing, share.ranks);
        let landing = Landing::bind(phase, name, share, levels);
        let layers = self.layers(dev, phase);
        let partial = self.partial(phase);
        let chain = Chain {
            dev,
            group,
            role: self,
            layers,
            acts,
            grads,
            partial,
            sum,
            landing,
            levels,
            inv_temperature: of.inv_temperature,
            balance: self.balance_factor(of.sequences, &of.which),
            turn: Cell::new(0),
            left: Cell::new(None),
            lost: RefCell::new(Ok(())),
        };
        // After an error that all ranks meet, what is put aside may still be under way, in memory that other phases use too.
        let settle = |err: &Error| {
            if slugs::OF_ALL_RANKS.contains(&err.slug) {
                dev.sync();
            }
        };
        let stats = chain.rounds(packer, buffers, of).inspect_err(settle)?;
        Ok((shard, stats))
    }

    /// Updates the weights that this rank owns, from their gradients `shard`, and copies what the others update: on cards each part
    /// while later parts are updated.
    ///
    /// Errors: `rank-lost`.
    pub(super) fn update_together(
        &mut self,
        dev: &dyn Device,
        group: &Group,
        shard: Buf<'_>,
        how: UpdateOptions,
        grad_norm: f64,
    ) -> Result<()> {
        let (table, weights) = self.learned();
        if self.is_spread() {
            // The others have read what they needed: norms were exchanged since.
            let optimizer = self.optimizer.as_mut().expect("a trained role has an optimizer");
            optimizer.update_in_parts(dev, weights, shard, how, grad_norm, &mut |_| {});
            dev.sync();
            return group.barrier();
        }
        let own = Share { rank: group.rank(), ranks: group.ranks() };
        let others: Vec<(usize, Vec<Owned>)> =
            own.others().map(|rank| (rank, (Share { rank, ..own }).owned(table))).collect();
        let of_own = own.owned(table);
        let copy = |within: Run| {
            let updated = |owned: &Owned| {
                let Run { start, elements } = owned.inside(within)?.run;
                Some(weights.slice(start as usize, elements as usize))
            };
            let all = others.iter().flat_map(|(rank, owned)| owned.iter().map(move |owned| (*rank, owned)));
            let taken =
                all.filter_map(|(rank, owned)| Some((updated(owned)?.of_rank(rank), updated(owned)?)));
            let taken: Vec<_> = taken.collect();
            let mut given = Vec::new();
            if dev.trade().is_some() {
                let ranks = others.iter().map(|(rank, _)| *rank);
                given.extend(
                    ranks.flat_map(|rank| of_own.iter().filter_map(updated).map(move |buf| (rank, buf))),
                );
            }
            dev.exchange(&taken, &given);
        };
        let (mut turn, mut met) = (0, Ok(()));
        let mut done = |part: Run| {
            let Some(aside) = dev.aside().filter(|_| met.is_ok()) else { return };
            aside.mark(turn);
            met = group.barrier();
            if met.is_ok() {
                aside.run(turn, &mut || copy(part));
            }
            turn += 1;
        };
        let optimizer = self.optimizer.as_mut().expect("a trained role has an optimizer");
        optimizer.update_in_parts(dev, weights, shard, how, grad_norm, &mut done);
        met?;
        dev.sync();
        group.barrier()?;
        if dev.aside().is_none() {
            copy(Run { start: 0, elements: weights.len() as u64 });
            dev.sync();
            group.barrier()?;
        }
        Ok(())
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
    /// Passes all micro-batches, a round of the ranks after the other.
    fn rounds(
        &self,
        packer: &mut Packer,
        buffers: &mut StepBuffers,
        of: LossOf<'_, '_>,
    ) -> Result<UpdateStats> {
        let Chain { dev, group, role, .. } = *self;
        let LossOf { sequences, which, loss, .. } = of;
        let UpdateShape { pass: shape, cut, .. } = role.update_shape();
        let units = Units { packing: shape.packing, hidden: u64::from(role.shape.spec.hidden) };
        packer.cut(cut, units, sequences, which.clone())?;
        let (mut stats, count) = (UpdateStats::default(), packer.num_micro_batches());
        if count == 0 {
            dev.zero(self.sum.shard);
        }
        let mut load = ExpertLoad::of(&role.shape.spec);
        for first in (0..count).step_by(group.ranks()) {
            let started = Instant::now();
            let round = first..(first + group.ranks()).min(count);
            let batches: Vec<Range<usize>> =
                round.map(|index| packer.sequences(which.start, index)).collect();
            let (own, mut pass, mut numbers) = (batches.get(group.rank()), None, vec![0.0]);
            if let Some(own) = own {
                let batch = packer.micro_batch(shape.packing, sequences, own.start, first + group.rank())?;
                let forward = self.forward(batch.index)?;
                (pass, numbers) = (Some(forward.0), forward.1);
                let tokens = buffers.tokens(own);
                role.set_numbers(buffers, tokens.clone(), &numbers[1..]);
                buffers.set_micro(own);
                // Every rank meets an error of it below, where all compute the losses of all.
                let _ = loss(buffers, tokens, LossFor::Derivatives);
            } else {
                self.settle()?;
            }
            stats.forward_s += started.elapsed().as_secs_f64();
            let started = Instant::now();
            let round = Round { chain: self, ranks: batches.len(), first, count };
            round.backward(buffers, own.zip(pass.as_ref()));
            for (load, pass) in load.iter_mut().zip(&pass) {
                pass.add_load(dev, load);
            }
            // Cards work meanwhile.
            let all = gather_f32(group, &numbers)?;
            for (batch, numbers) in batches.iter().zip(&all) {
                let tokens = buffers.tokens(batch);
                role.set_numbers(buffers, tokens.clone(), &numbers[1..]);
                buffers.set_micro(batch);
                loss(buffers, tokens, LossFor::Sums)?;
                stats.micro_batches += 1;
                stats.rows += rows_of(numbers) as u64;
            }
            round.end(&all)?;
            stats.backward_s += started.elapsed().as_secs_f64();
        }
        let started = Instant::now();
        self.settle()?;
        if let Some(load) = load {
            stats.experts = Some(load.used(&gather_f64(group, load.numbers())?));
        }
        stats.backward_s += started.elapsed().as_secs_f64();
        Ok(stats)
    }

    /// Runs a micro-batch forward. Returns its pass, and for the other ranks its rows, the head's numbers and, after a
    /// vocabulary, the entropies.
    fn forward(&self, index: &PassIndex) -> Result<(Pass<'p>, Vec<f32>)> {
        let Chain { dev, role, layers: ref from, .. } = *self;
        let pass = Pass::upload(dev, self.acts, index).with_balance(self.balance);
        layers(dev, &**from, &pass);
        let head = role.head(dev, from.decoder(), &pass, self.inv_temperature);
        // The card is busy while the ranks meet.
        self.settle()?;
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

    /// Marks what this rank has computed, and waits until all ranks have. Returns the mark's turn; `None` if a rank was lost.
    fn meet(&self) -> Option<usize> {
        if self.lost.borrow().is_err() {
            return None;
        }
        let turn = self.turn.replace(self.turn.get() + 1);
        match self.dev.aside() {
            Some(aside) => aside.mark(turn),
            None => self.dev.sync(),
        }
        *self.lost.borrow_mut() = self.group.barrier();
        self.lost.borrow().is_ok().then_some(turn)
    }

    /// Puts `folded` and then `ops` aside, if the device can, after the mark `turn`. Where hosts fold, ranks meet between both. Returns the
    /// turn of `ops`; `None` if a rank was lost.
    fn add_aside(&self, turn: usize, folded: impl Fn(), ops: impl Fn()) -> Option<usize> {
        let mut last = turn;
        if self.levels.is_some() {
            last = match self.dev.aside() {
                Some(aside) => {
                    let mut met = None;
                    aside.run(turn, &mut || {
                        folded();
                        met = self.meet();
                    });
                    met?
                }
                None => {
                    folded();
                    self.meet()?
                }
            };
        }
        match self.dev.aside() {
            Some(aside) => aside.run(last, &mut { ops }),
            None => ops(),
        }
        Some(last)
    }

    /// Makes the operations from here on wait for what all ranks put aside last in a round: until then no rank may write what others read
    /// of each other.
    fn settle(&self) -> Result<()> {
        if let Some((left, aside)) = self.left.take().zip(self.dev.aside())
            && let Some(turn) = self.meet()
        {
            aside.run(turn, &mut || {});
            aside.wait(left);
        }
        self.check()
    }

    /// Errors: what ended the run meanwhile.
    fn check(&self) -> Result<()> {
        self.lost.replace(Ok(()))?;
        self.dev.check()
    }
}

/// The backward passes of a round, one on each rank.
struct Round<'r, 'x, 'a, 'p> {
    chain: &'r Chain<'x, 'a, 'p>,
    /// Ranks that have a micro-batch: the first ones.
    ranks: usize,
    /// The micro-batch of the first of them, of `count`.
    first: usize,
    count: usize,
}

impl<'p> Round<'_, '_, '_, 'p> {
    /// Computes the partial gradient of this rank's micro-batch, if it has one. On cards the ranks' are added meanwhile.
    fn backward(&self, buffers: &StepBuffers, own: Option<(&Range<usize>, &Pass<'p>)>) {
        let Chain { dev, role, layers: ref from, inv_temperature, .. } = *self.chain;
        let Some((own, pass)) = own else {
            return Stage::all(role.shape.spec.layers).for_each(|stage| self.after(stage));
        };
        let tokens = buffers.tokens(own);
        let derivatives = match role.shape.head {
            Head::Vocabulary => [&buffers.d_logprobs[tokens.clone()], &buffers.d_entropy[tokens]],
            Head::Score => [&buffers.critic.d_values[tokens], &[]],
        };
        let of = role.derivatives(inv_temperature, derivatives);
        let grads = self.chain.grads.to();
        role.trained().begin_gradients(dev, self.chain.partial);
        backward_part(dev, &**from, grads, false, pass, of, &mut |stage| self.after(stage));
    }

    /// Adds what a stage has left on all ranks: on cards next to the stages after it.
    fn after(&self, stage: Stage) {
        let Chain { dev, role, .. } = *self.chain;
        let Some(turn) = self.chain.meet() else { return };
        let (table, _) = role.learned();
        let at = match stage {
            Stage::Head => (Area::Ends, table.head_run()),
            Stage::Layer(layer) => (Area::Layer(layer), table.layer_run(layer)),
        };
        let parts: Vec<Part<'_>> = self.parts(|_| role.update_shape().pass.limits.rows).collect();
        let links = self.links(&parts);
        let optimizer = role.trained();
        let folded = || optimizer.fold_near(dev, &links, at);
        let is_folded = self.chain.add_aside(turn, folded, || {
            optimizer.fold_run(dev, &links, at);
            if stage == Stage::Head {
                optimizer.take_heads(dev, &links);
            }
        });
        if is_folded.is_none() {
            return;
        }
        // Without a second stream all have added the layer before when they meet after this one. The next layer uses the slot of the one
        // before, and the next pass the tokens that are taken with the head.
        let layers = role.shape.spec.layers;
        if let Some(aside) = dev.aside()
            && matches!(stage, Stage::Layer(layer) if layer + 1 < layers || layers == 1)
        {
            aside.wait(turn - 1);
        }
        let next = match stage {
            Stage::Head => layers,
            Stage::Layer(layer) => layer,
        };
        if let Some(next) = next.checked_sub(1) {
            role.trained().begin_layer(dev, self.chain.partial, table.layer_run(next));
        }
    }

    /// Adds what is left, once all ranks have put their passes on the way: on cards next to the next forward pass. `all`: the numbers of
    /// each rank.
    fn end(self, all: &[Vec<f32>]) -> Result<()> {
        let Chain { dev, role, .. } = *self.chain;
        let (table, _) = role.learned();
        let parts: Vec<Part<'_>> = self.parts(|rank| rows_of(&all[rank])).collect();
        let links = self.links(&parts);
        if let Some(turn) = self.chain.meet() {
            let optimizer = role.trained();
            let folded = || optimizer.fold_embed_near(dev, table, &links);
            let last = self.chain.add_aside(turn, folded, || optimizer.fold_embed(dev, table, &links));
            match dev.aside() {
                Some(_) => self.chain.left.set(last),
                // What the others read of this rank may be overwritten from here on.
                None => drop(self.chain.meet()),
            }
        }
        self.chain.check()
    }

    fn links<'x>(&self, parts: &'x [Part<'p>]) -> Links<'x, 'p> {
        let Chain { sum, landing, levels, .. } = *self.chain;
        Links { parts, first: self.first, sum: Sum { count: self.count, ..sum }, landing, levels }
    }

    /// Returns the partial gradient of each rank that has one, with as many rows as `rows` says of a rank.
    fn parts(&self, rows: impl Fn(usize) -> usize) -> impl Iterator<Item = Part<'p>> {
        (0..self.ranks).map(move |rank| {
            let RowGradients { d_input, ids } = self.chain.acts.row_gradients(rows(rank));
            let of = (rank != self.chain.group.rank()).then_some(rank);
            Part { grads: self.chain.partial, layout: self.chain.role.layout(), d_input, ids, of }
        })
    }
}

fn rows_of(numbers: &[f32]) -> usize {
    numbers[0].to_bits() as usize
}
