//! The chain: each owner adds the partial gradients of micro-batches in their order, wherever they were computed.
//!
//! A partial gradient is what a micro-batch adds to the gradient: of every parameter one sum, but of the embedding the sums of its
//! tokens' rows, which are added after what it gets as the head. So the chain gives the bits that one process accumulates.

use crate::optimizer::Optimizer;
use crate::share::Owned;
use plimsoll_device::Device;
use plimsoll_memory::Buf;
use plimsoll_model::{ParamKind, ParamTable, Params};

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
        let embed = table.find(ParamKind::Embed, 0).expect("a decoder has an embedding");
        let (first, end) = (embed.offset, embed.offset + embed.elements);
        let is_tied = part.grads.head.buf == part.grads.embed.buf;
        for Owned { run, at } in self.owned() {
            let inside = run.start.max(first)..run.end().min(end);
            let own = |from: u64, to: u64| {
                let (start, len) = ((at + from - run.start) as usize, (to - from) as usize);
                (part.there(part.grads.all.slice(from as usize, len)), shard.slice(start, len))
            };
            if inside.is_empty() {
                let (src, dst) = own(run.start, run.end());
                dev.accumulate(src, dst, add);
                continue;
            }
            for (from, to) in [(run.start, inside.start), (inside.end, run.end())] {
                if from < to {
                    let (src, dst) = own(from, to);
                    dev.accumulate(src, dst, add);
                }
            }
            let (src, dst) = own(inside.start, inside.end);
            match (is_tied, add) {
                (true, _) => dev.accumulate(src, dst, add),
                (false, true) => {}
                (false, false) => dev.zero(dst),
            }
            let (k, layout) = (embed.k as usize, part.grads.embed.layout);
            let start = (inside.start - first) as usize;
            dev.embed_backward_part(part.there(part.d_input), part.there(part.ids), k, layout, start, dst);
        }
    }
}
