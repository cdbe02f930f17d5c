//! The chain: each owner adds the partial gradients of micro-batches in their order, wherever they were computed.
//!
//! A partial gradient is what a micro-batch adds to the gradient: of every parameter one sum, but of the embedding the sums of its
//! tokens' rows, which are added after what it gets as the head. So the chain gives the bits that one process accumulates.

use crate::optimizer::Optimizer;
use plimsoll_device::{Device, Owned, Run};
use plimsoll_memory::Buf;
use plimsoll_model::{Param, ParamKind, ParamTable, Params};

/// The partial gradient of a micro-batch, as `backward_part` leaves it in the arena of one rank.
#[derive(Clone, Copy, Debug)]
pub struct Part<'x, 'p> {
    /// Without the embedding's rows.
    pub grads: &'x Params<'p>,
    /// [M, h] f32: the gradient of the first layer's input, row by row.
    pub d_input: Buf<'p>,
    /// [M] u32: the token of each row.
    pub ids: Buf<'p>,
    /// The rank in whose arena it lies; none for this one's.
    pub of: Option<usize>,
}

impl<'p> Part<'_, 'p> {
    fn there(&self, buf: Buf<'p>) -> Buf<'p> {
        self.of.map_or(buf, |rank| buf.of_rank(rank))
    }
}

impl Optimizer<'_> {
    /// Adds a partial gradient to the shard, or begins the chain with it unless `add`.
    pub fn fold(&self, dev: &dyn Device, table: &ParamTable, part: Part<'_, '_>, shard: Buf<'_>, add: bool) {
        let whole = Run { start: 0, elements: table.elements };
        self.fold_weights(dev, table, part, shard, add, whole);
        self.fold_rows(dev, table, part, shard);
    }

    /// `fold` of the elements in `within`, without the embedding's rows.
    pub fn fold_weights(
        &self,
        dev: &dyn Device,
        table: &ParamTable,
        part: Part<'_, '_>,
        shard: Buf<'_>,
        add: bool,
        within: Run,
    ) {
        let embed = embed_of(table);
        let (first, end) = (embed.offset, embed.offset + embed.elements);
        let is_tied = part.grads.head.buf == part.grads.embed.buf;
        let pieces = [(0, first), (first, end), (end, table.elements)];
        for owned in self.owned().iter().filter_map(|owned| owned.inside(within)) {
            for (start, end) in pieces {
                let Some(Owned { run, at }) = owned.inside(Run { start, elements: end - start }) else {
                    continue;
                };
                let dst = shard.slice(at as usize, run.elements as usize);
                match (start == first && !is_tied, add) {
                    (false, _) => {
                        let src = part.grads.all.slice(run.start as usize, run.elements as usize);
                        dev.accumulate(part.there(src), dst, add);
                    }
                    // Only rows are added to it.
                    (true, true) => {}
                    (true, false) => dev.zero(dst),
                }
            }
        }
    }

    /// `fold` of the embedding's rows, after everything else of the same part.
    pub fn fold_rows(&self, dev: &dyn Device, table: &ParamTable, part: Part<'_, '_>, shard: Buf<'_>) {
        let (k, layout) = (embed_of(table).k as usize, part.grads.embed.layout);
        let (d_input, ids) = (part.there(part.d_input), part.there(part.ids));
        dev.embed_backward_part(d_input, ids, k, layout, self.owned_of_embed(), shard);
    }
}

fn embed_of(table: &ParamTable) -> &Param {
    table.find(ParamKind::Embed, 0).expect("a decoder has an embedding")
}
