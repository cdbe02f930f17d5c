//! A role's gradients on several ranks: each owner of a part adds the partial gradients of a round, in rank order.

use super::role::Role;
use super::update::{Update, rows_of};
use crate::arrays::TokenArrays;
use plimsoll_base::Result;
use plimsoll_device::{Device, OwnedRun, Run};
use plimsoll_infer::weights::shard_region;
use plimsoll_memory::{Buf, InPhase};
use plimsoll_model::{Pass, RowGradients, Stage, backward_part};
use plimsoll_ranks::Group;
use plimsoll_train::{Area, Landing, Levels, Links, Part, Share, Sum, UpdateOptions};
use std::cell::{Cell, RefCell};
use std::ops::Range;

/// Adds the ranks' partial gradients, part by part.
pub(super) struct Chain<'u, 'x, 'a, 'p> {
    pub(super) update: &'u Update<'x, 'a, 'p>,
    /// The gradient sum of the parts that this rank owns.
    pub(super) sum: Sum<'p>,
    /// Buffers in which pieces of other ranks' gradients arrive, on cards.
    landing: Option<Landing<'p>>,
    /// Sums that this host adds for others, if hosts fold.
    levels: Option<Levels<'p>>,
    /// Number of marks so far.
    turn: Cell<usize>,
    /// Turn of the last work put aside in a round; later operations do not wait for it yet.
    left: Cell<Option<usize>>,
    /// The error that ended the run meanwhile.
    lost: RefCell<Result<()>>,
}

impl Role<'_> {
    /// Updates the weights that this rank owns from their gradients `shard`, and copies those that other ranks update.
    /// On cards each part is copied while later parts are updated.
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
            // Other ranks have read what they needed: norms were exchanged since.
            let optimizer = self.optimizer.as_mut().expect("a trained role has an optimizer");
            optimizer.update_in_parts(dev, weights, shard, how, grad_norm, &mut |_| {});
            dev.sync();
            return group.barrier();
        }
        let own = Share { rank: group.rank(), ranks: group.ranks() };
        let others: Vec<(usize, Vec<OwnedRun>)> =
            own.others().map(|rank| (rank, (Share { rank, ..own }).owned(table))).collect();
        let of_own = own.owned(table);
        let copy = |within: Run| {
            let updated = |owned: &OwnedRun| {
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
}

impl<'u, 'x, 'a, 'p> Chain<'u, 'x, 'a, 'p> {
    /// Binds the buffers in which the ranks add gradients.
    pub(super) fn bind(update: &'u Update<'x, 'a, 'p>, phase: &InPhase<'p>) -> Self {
        let Update { role, group, .. } = *update;
        let (name, summing) = (role.shape.name.name(), role.update_shape().dtypes.summing);
        let shard = phase.buf(&shard_region(&role.shape));
        let sum = Sum { shard, folded: phase.get(&format!("{name}.folded")), fold: summing.fold, count: 0 };
        let share = Share { rank: group.rank(), ranks: group.ranks() };
        let levels = Levels::bind(phase, name, role.learned().0, summing, share.ranks);
        let landing = Landing::bind(phase, name, share, levels);
        let (turn, left, lost) = (Cell::new(0), Cell::new(None), RefCell::new(Ok(())));
        Chain { update, sum, landing, levels, turn, left, lost }
    }

    /// Marks this rank's work so far and waits for all ranks. Returns the mark's turn; `None` if a rank was lost.
    fn meet(&self) -> Option<usize> {
        if self.lost.borrow().is_err() {
            return None;
        }
        let turn = self.turn.replace(self.turn.get() + 1);
        match self.update.dev.aside() {
            Some(aside) => aside.mark(turn),
            None => self.update.dev.sync(),
        }
        *self.lost.borrow_mut() = self.update.group.barrier();
        self.lost.borrow().is_ok().then_some(turn)
    }

    /// Runs `ops` after the mark `turn`, on the second stream if the device has one. If hosts fold, `folded` runs
    /// first, and the ranks meet after it. Returns the turn of `ops`; `None` if a rank was lost.
    fn add_aside(&self, turn: usize, folded: impl Fn(), ops: impl Fn()) -> Option<usize> {
        let mut last = turn;
        if self.levels.is_some() {
            last = match self.update.dev.aside() {
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
        match self.update.dev.aside() {
            Some(aside) => aside.run(last, &mut { ops }),
            None => ops(),
        }
        Some(last)
    }

    /// Makes later operations wait for the last work that all ranks put aside in a round. Until then no rank may write
    /// buffers that other ranks read.
    pub(super) fn settle(&self) -> Result<()> {
        if let Some((left, aside)) = self.left.take().zip(self.update.dev.aside())
            && let Some(turn) = self.meet()
        {
            aside.run(turn, &mut || {});
            aside.wait(left);
        }
        self.check()
    }

    /// Errors: the one that ended the run meanwhile.
    fn check(&self) -> Result<()> {
        self.lost.replace(Ok(()))?;
        self.update.dev.check()
    }
}

/// The backward passes of a round, one on each rank.
pub(super) struct Round<'r, 'u, 'x, 'a, 'p> {
    pub(super) chain: &'r Chain<'u, 'x, 'a, 'p>,
    /// Number of ranks with a micro-batch, the first ones.
    pub(super) ranks: usize,
    /// Index of the first rank's micro-batch, out of `count`.
    pub(super) first: usize,
    pub(super) count: usize,
}

impl<'p> Round<'_, '_, '_, '_, 'p> {
    /// Computes the partial gradient of this rank's micro-batch, if it has one. On cards, ranks' sums form meanwhile.
    pub(super) fn backward(&self, buffers: &TokenArrays, own: Option<(&Range<usize>, &Pass<'_>)>) {
        let Update { dev, role, layers: ref from, ref grads, partial, .. } = *self.chain.update;
        let Some((own, pass)) = own else {
            return Stage::all(role.shape.spec.layers.len()).for_each(|stage| self.after(stage));
        };
        let of = self.chain.update.derivatives(buffers, own);
        role.trained().begin_gradients(dev, partial);
        backward_part(dev, &**from, grads.to(), false, pass, of, &mut |stage| self.after(stage));
    }

    /// Adds a stage's gradients from all ranks; on cards, while the next stages run.
    fn after(&self, stage: Stage) {
        let Update { dev, role, .. } = *self.chain.update;
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
        // Without a second stream, all ranks have added the previous layer when they meet after this one. The next
        // layer reuses the previous layer's slot, and the next pass the tokens that are taken with the head.
        let layers = role.shape.spec.layers.len();
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
            role.trained().begin_layer(dev, self.chain.update.partial, table.layer_run(next));
        }
    }

    /// Adds the embedding's gradients once all ranks have started their passes; on cards, during the next forward pass.
    /// `all`: the numbers of each rank.
    pub(super) fn end(self, all: &[Vec<f32>]) -> Result<()> {
        let Update { dev, role, .. } = *self.chain.update;
        let (table, _) = role.learned();
        let parts: Vec<Part<'_>> = self.parts(|rank| rows_of(&all[rank])).collect();
        let links = self.links(&parts);
        if let Some(turn) = self.chain.meet() {
            let optimizer = role.trained();
            let folded = || optimizer.fold_embed_near(dev, table, &links);
            let last = self.chain.add_aside(turn, folded, || optimizer.fold_embed(dev, table, &links));
            match dev.aside() {
                Some(_) => self.chain.left.set(last),
                // From here on, buffers of this rank that others read may be overwritten.
                None => drop(self.chain.meet()),
            }
        }
        self.chain.check()
    }

    fn links<'x>(&self, parts: &'x [Part<'p>]) -> Links<'x, 'p> {
        let Chain { sum, landing, levels, .. } = *self.chain;
        Links { parts, first: self.first, sum: Sum { count: self.count, ..sum }, landing, levels }
    }

    /// Returns the partial gradient of each rank that has one; `rows` returns a rank's number of rows.
    fn parts(&self, rows: impl Fn(usize) -> usize) -> impl Iterator<Item = Part<'p>> {
        let (Update { role, acts, partial, .. }, own) = (self.chain.update, self.chain.update.group.rank());
        (0..self.ranks).map(move |rank| {
            let RowGradients { d_input, ids } = acts.row_gradients(rows(rank));
            let of = (rank != own).then_some(rank);
            Part { grads: *partial, layout: role.layout(), d_input, ids, of }
        })
    }
}
