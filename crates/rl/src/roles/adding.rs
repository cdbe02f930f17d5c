//! How the gradients of micro-batches become one sum. A rank alone adds them in the products that compute them; several
//! ranks, or sums of another storage, form each by itself and add it to the sum (`chained`).

use super::chained::{Chain, Round};
use super::update::{Update, rows_of};
use crate::arrays::TokenArrays;
use crate::ranks::gather;
use plimsoll_base::Result;
use plimsoll_memory::{Buf, InPhase};
use plimsoll_model::{Pass, backward};
use std::ops::Range;

pub(super) enum Adding<'u, 'x, 'a, 'p> {
    InProducts(&'u Update<'x, 'a, 'p>),
    Chained(Box<Chain<'u, 'x, 'a, 'p>>),
}

/// Micro-batches that the ranks compute at once, one each.
pub(super) struct Turn<'t, 'x> {
    /// Their sequences; the first ranks have one each.
    pub(super) batches: Vec<Range<usize>>,
    /// Index of the first, out of `count`.
    pub(super) first: usize,
    pub(super) count: usize,
    /// True if the sum has something before it.
    pub(super) adds: bool,
    /// This rank's sequences, and its pass after the head.
    pub(super) own: Option<(Range<usize>, Pass<'x>)>,
    /// Called for each micro-batch once its numbers are in the buffers, in their order.
    pub(super) each: &'t mut dyn FnMut(&mut TokenArrays, &Range<usize>) -> Result<()>,
}

impl<'u, 'x, 'a, 'p: 'x> Adding<'u, 'x, 'a, 'p> {
    pub(super) fn bind(update: &'u Update<'x, 'a, 'p>, phase: &InPhase<'p>) -> Self {
        if update.role.is_chained(update.group) {
            Adding::Chained(Box::new(Chain::bind(update, phase)))
        } else {
            Adding::InProducts(update)
        }
    }

    /// Returns where the sum is: of several ranks the part that this one owns.
    pub(super) fn sum(&self) -> Buf<'p> {
        match self {
            Adding::InProducts(update) => update.grads.all(),
            Adding::Chained(chain) => chain.sum.shard,
        }
    }

    /// Prepares the gradients to which the first of `count` micro-batches is added.
    pub(super) fn begin(&self, count: usize) {
        match self {
            Adding::InProducts(Update { dev, role, partial, .. }) if count > 0 => {
                role.trained().begin_gradients(*dev, *partial);
            }
            Adding::InProducts(Update { dev, .. }) => dev.zero(self.sum()),
            Adding::Chained(chain) if count == 0 => chain.update.dev.zero(self.sum()),
            // A rank starts from zero with each micro-batch.
            Adding::Chained(_) => {}
        }
    }

    /// Waits until all ranks have added what they put aside. Until then no rank may write buffers that others read.
    ///
    /// Errors: `rank-lost`; those of the device.
    pub(super) fn settle(&self) -> Result<()> {
        match self {
            Adding::InProducts(_) => Ok(()),
            Adding::Chained(chain) => chain.settle(),
        }
    }

    /// Computes the gradients of this rank's micro-batch, if it has one. On cards, ranks' sums form meanwhile.
    pub(super) fn backward(&self, turn: &Turn<'_, 'x>, buffers: &TokenArrays) {
        let own = turn.own.as_ref().map(|(own, pass)| (own, pass));
        match self {
            Adding::InProducts(update) => {
                let (own, pass) = own.expect("a rank alone has every micro-batch");
                let of = update.derivatives(buffers, own);
                backward(update.dev, &*update.layers, update.grads.to(), turn.adds, pass, of);
            }
            Adding::Chained(chain) => round(chain, turn).backward(buffers, own),
        }
    }

    /// Calls `turn.each` for all micro-batches, with what other ranks computed in the buffers, and ends their sums.
    /// Returns the rows of all.
    ///
    /// Errors: those of `turn.each`, the same on all ranks; `rank-lost`; those of the device.
    pub(super) fn end(&self, turn: &mut Turn<'_, 'x>, buffers: &mut TokenArrays) -> Result<usize> {
        let rows = turn.own.as_ref().map_or(0, |(_, pass)| pass.rows());
        let Adding::Chained(chain) = self else {
            turn.batches.iter().try_for_each(|batch| (turn.each)(buffers, batch))?;
            return Ok(rows);
        };
        let Update { role, group, .. } = chain.update;
        // Cards compute during this exchange.
        let own = turn.own.as_ref().map_or(vec![0.0], |(own, _)| role.numbers(buffers, own, rows));
        let all = gather(group, &own)?;
        for (batch, numbers) in turn.batches.iter().zip(&all) {
            role.take(buffers, batch, numbers);
            (turn.each)(buffers, batch)?;
        }
        round(chain, turn).end(&all)?;
        Ok(all.iter().take(turn.batches.len()).map(|numbers| rows_of(numbers)).sum())
    }
}

fn round<'r, 'u, 'x, 'a, 'p>(
    chain: &'r Chain<'u, 'x, 'a, 'p>,
    turn: &Turn<'_, 'x>,
) -> Round<'r, 'u, 'x, 'a, 'p> {
    Round { chain, ranks: turn.batches.len(), first: turn.first, count: turn.count }
}
