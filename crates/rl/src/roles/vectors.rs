//! Gradients of images' vectors on several ranks: each pass keeps its rows of them, and all ranks add the rows of all
//! passes in the order of micro-batches. So each has the sum that one rank alone has, and trains the tower alike.

use super::adding::Adding;
use super::update::Update;
use plimsoll_base::Result;
use plimsoll_train::{Packer, Sequence};
use std::ops::Range;

impl<'x, 'p: 'x> Update<'x, '_, 'p> {
    /// Adds what the passes of a round have kept for vectors, if they have: `batches`, of which the first has the index
    /// `first`, one of each rank.
    ///
    /// Errors: `rank-lost`; those of packing and of the device.
    pub(super) fn add_vectors(
        &self,
        adding: &Adding<'_, 'x, '_, 'p>,
        packer: &mut Packer,
        sequences: &[Sequence<'_>],
        (batches, first): (&[Range<usize>], usize),
    ) -> Result<()> {
        let Update { dev, role, group, .. } = *self;
        let (Some(seen), Some(to)) = (&self.seen, self.d_vectors) else { return Ok(()) };
        if seen.kept(0, 0).is_none() {
            return Ok(());
        }
        let (packing, vocab) = (role.update_shape().pass.packing, role.shape.spec.vocab);
        adding.settle()?;
        dev.sync();
        group.barrier()?;
        for (rank, batch) in batches.iter().enumerate() {
            // Every rank packs alike, so it knows the rows of others by itself.
            let index = packer.micro_batch(packing, sequences, batch.start, first + rank)?.index;
            let which = seen.which(index, vocab);
            for set in (0..seen.sets()).filter(|_| !which.is_empty()) {
                let kept = seen.kept(set, which.len()).expect("passes keep their rows");
                let rows = if rank == group.rank() { kept } else { seen.landing(which.len()) };
                let taken = (rank != group.rank()).then(|| (kept.of_rank(rank), rows));
                let is_given = rank == group.rank() && dev.trade().is_some();
                let others = (0..group.ranks()).filter(|other| is_given && *other != rank);
                let given: Vec<_> = others.map(|other| (other, kept)).collect();
                dev.exchange(taken.as_slice(), &given);
                seen.add_kept(dev, rows, &which, to.set(set));
            }
        }
        // From here on, the rows that other ranks read may be overwritten.
        dev.sync();
        group.barrier()?;
        dev.check()
    }
}
