//! Products of experts: each pair of a row and an expert with the matrix of its expert, and their gradients.
//!
//! Legend: M rows, P pairs, N outputs and K inputs of an expert, e the storage of activations. Each product is one chain an element, as
//! those of a layer: no bit depends on how many pairs an expert got, nor on which.

use super::operand::{Operand, Panels, Rows};
use super::pack::{PACK_ROWS, Packed};
use super::tile::{TILE_PANELS, TILE_WIDTH};
use super::{Target, add_products, pack, rows_by_group};
use crate::lanes::{Lanes, by_dtype};
use crate::{CpuDevice, Shared};
use plimsoll_device::sizes::cpu::BLOCK_ROWS;
use plimsoll_device::{Experts, ExpertsBackward, Matrix, Routes, RowsOf};
use plimsoll_memory::Buf;
use std::ops::Range;

/// Rows that a thread gathers at a time.
const GATHERED_ROWS: usize = PACK_ROWS;
/// Pairs of a task that transposes panels first, which then costs a few per cent.
const TRANSPOSED_ROWS: usize = 256;

/// Elements of one thread's scratch for rows of `width` that are gathered.
pub(crate) fn gathered_elements(width: u64) -> u64 {
    GATHERED_ROWS as u64 * width
}

/// out[p] = x W^T of each pair. `x`: [M, K] or [P, K] e; `out`: [P, N] e or f32.
pub(crate) fn forward(
    dev: &CpuDevice,
    x: Buf<'_>,
    x_has: RowsOf,
    w: Experts<'_>,
    routes: Routes<'_>,
    out: Buf<'_>,
) {
    assert_eq!(x.dtype(), w.buf.dtype(), "inputs are stored as weights are");
    assert_eq!(out.len(), routes.pairs() * w.n, "out of {} pairs, N = {}", routes.pairs(), w.n);
    let (cut, groups) = (Cut::new(dev, &routes, BLOCK_ROWS), w.n.div_ceil(TILE_WIDTH));
    by_dtype!(x, E => by_dtype!(out, O => {
        let (x, out) = (PairRows::<E>::new(dev, x, x_has, w.k, &routes), dev.write::<O>(out));
        dev.pool().run(cut.blocks * groups, &|task, thread| {
            let (block, group) = (cut.block(task / groups), task % groups);
            let w = Panels::<E>::new(dev, w.of(block.expert));
            let scratch = x.scratch(dev, thread);
            // SAFETY: a task writes its own pairs and columns.
            unsafe { product(dev, &x, block.pairs, w.group(group), (out, w.n), group, scratch) };
        });
    }));
}

/// out[p] = dy W of each pair. `dy`: [M, N] or [P, N] e; `out`: [P, K] e or f32.
pub(crate) fn backward_x(
    dev: &CpuDevice,
    dy: Buf<'_>,
    dy_has: RowsOf,
    w: Experts<'_>,
    routes: Routes<'_>,
    out: Buf<'_>,
) {
    assert_eq!(dy.dtype(), w.buf.dtype(), "gradients of outputs are stored as weights are");
    assert_eq!(out.len(), routes.pairs() * w.k, "out of {} pairs, K = {}", routes.pairs(), w.k);
    let (cut, groups) = (Cut::new(dev, &routes, TRANSPOSED_ROWS), w.k.div_ceil(TILE_WIDTH));
    by_dtype!(dy, E => by_dtype!(out, O => {
        let (dy, out) = (PairRows::<E>::new(dev, dy, dy_has, w.n, &routes), dev.write::<O>(out));
        dev.pool().run(cut.blocks * groups, &|task, thread| {
            // Groups outside would transpose once for a thread's blocks, but an expert has one block as a rule.
            let (block, group) = (cut.block(task / groups), task % groups);
            let w = Panels::<E>::new(dev, w.of(block.expert));
            let (gathered, scratch) =
                dev.thread_scratch::<E>(thread).split_at_mut(dy.gathered());
            let turned = pack::transpose(dev.isa(), &w, group * TILE_PANELS, scratch);
            // SAFETY: a task writes its own pairs and columns.
            unsafe { product(dev, &dy, block.pairs, turned, (out, w.k()), group, gathered) };
        });
    }));
}

/// grad = dy^T x over the pairs of each expert, or grad += when `add`.
pub(crate) fn backward_w(dev: &CpuDevice, args: ExpertsBackward<'_>) {
    let ExpertsBackward { dy, dy_has, x, x_has, routes, grad, add, pack } = args;
    assert_eq!(dy.dtype(), x.dtype(), "gradients of outputs are stored as activations are");
    crate::elementwise::begin_sum(dev, grad.buf, add);
    let starts = dev.read::<u32>(routes.starts);
    by_dtype!(x, E => {
        let x = PairRows::<E>::new(dev, x, x_has, grad.k, &routes);
        let dy = PairRows::<E>::new(dev, dy, dy_has, grad.n, &routes);
        for expert in 0..grad.count {
            let pairs = starts[expert] as usize..starts[expert + 1] as usize;
            if pairs.is_empty() {
                continue;
            }
            let Matrix { buf, n, k, layout } = grad.of(expert);
            let mut parts = Packed::<E>::new(dev.write(pack), pairs.len(), n, k);
            parts.pack_x_of(dev, &|first, most, thread| x.part(dev, &pairs, first, most, thread));
            parts.pack_dy_of(dev, n, &|first, most, thread| dy.part(dev, &pairs, first, most, thread));
            by_dtype!(buf, G => add_products::<E, G>(dev, &parts, dev.write(buf), layout));
        }
    });
}

/// Writes the rows of some pairs of one expert times a group of panels, to the group's columns of their rows of `out`, which are `cols`
/// wide.
///
/// # Safety
/// No other task uses these rows and columns of `out`, nor `scratch`.
unsafe fn product<E: Operand, O: Lanes>(
    dev: &CpuDevice,
    rows: &PairRows<'_, E>,
    pairs: Range<usize>,
    panels: &[E],
    (out, cols): (Shared<'_, O>, usize),
    group: usize,
    scratch: &mut [E],
) {
    let to = Target::whole(out, cols);
    for first in pairs.clone().step_by(GATHERED_ROWS) {
        let part = first..pairs.end.min(first + GATHERED_ROWS);
        let rows = rows.take(part, scratch);
        // SAFETY: the caller promises that no other task uses these rows and columns.
        unsafe { rows_by_group(dev.isa(), rows, panels, &to, first, group) };
    }
}

/// Pairs of one expert.
struct Block {
    expert: usize,
    pairs: Range<usize>,
}

/// The pairs of each expert in blocks of `rows` at most.
struct Cut<'a> {
    starts: &'a [u32],
    rows: usize,
    blocks: usize,
}

impl<'a> Cut<'a> {
    fn new(dev: &'a CpuDevice, routes: &Routes<'a>, rows: usize) -> Cut<'a> {
        let starts = dev.read::<u32>(routes.starts);
        let blocks = starts.windows(2).map(|ends| ((ends[1] - ends[0]) as usize).div_ceil(rows)).sum();
        Cut { starts, rows, blocks }
    }

    fn block(&self, index: usize) -> Block {
        let mut before = 0;
        for (expert, ends) in self.starts.windows(2).enumerate() {
            let (start, end) = (ends[0] as usize, ends[1] as usize);
            let blocks = (end - start).div_ceil(self.rows);
            if index < before + blocks {
                let first = start + (index - before) * self.rows;
                return Block { expert, pairs: first..end.min(first + self.rows) };
            }
            before += blocks;
        }
        panic!("block {index} of {}", self.blocks)
    }
}

/// What pairs read: rows of their own, one after the other, or those of M rows, which are gathered.
struct PairRows<'a, E> {
    data: &'a [E],
    width: usize,
    /// The pairs, and how many a row has.
    of_rows: Option<(&'a [u32], usize)>,
}

impl<'a, E: Operand> PairRows<'a, E> {
    fn new(dev: &'a CpuDevice, data: Buf<'a>, has: RowsOf, width: usize, routes: &Routes<'a>) -> Self {
        let (rows, pairs) = (data.len() / width, routes.pairs());
        assert_eq!(data.len(), rows * width, "rows of {width}");
        let of_rows = match has {
            RowsOf::Rows => {
                assert!(pairs == 0 || pairs.is_multiple_of(rows), "{pairs} pairs of {rows} rows");
                Some((dev.read::<u32>(routes.pairs), pairs.checked_div(rows).unwrap_or(1)))
            }
            RowsOf::Pairs => {
                assert_eq!(rows, pairs, "a row for each pair");
                None
            }
        };
        PairRows { data: dev.read(data), width, of_rows }
    }

    /// Elements that a thread gathers at a time.
    fn gathered(&self) -> usize {
        self.of_rows.map_or(0, |_| GATHERED_ROWS * self.width)
    }

    /// What a thread gathers into; nothing where rows lie as pairs read them.
    #[allow(clippy::mut_from_ref)] // A thread has one part and runs one task.
    fn scratch<'s>(&self, dev: &'s CpuDevice, thread: usize) -> &'s mut [E] {
        if self.of_rows.is_some() { dev.thread_scratch::<E>(thread) } else { &mut [] }
    }

    /// The rows of neighbouring pairs, `GATHERED_ROWS` at most.
    fn take<'s>(&self, pairs: Range<usize>, scratch: &'s mut [E]) -> Rows<'s, E>
    where
        'a: 's,
    {
        let width = self.width;
        let Some((of, chosen)) = self.of_rows else {
            return Rows::whole(&self.data[pairs.start * width..pairs.end * width], width);
        };
        let to = &mut scratch[..pairs.len() * width];
        for (to, &pair) in to.chunks_exact_mut(width).zip(&of[pairs]) {
            let row = pair as usize / chosen;
            to.copy_from_slice(&self.data[row * width..][..width]);
        }
        Rows::whole(to, width)
    }

    /// Rows of an expert's pairs from `first`, `most` of them at most.
    fn part<'s>(
        &self,
        dev: &'s CpuDevice,
        pairs: &Range<usize>,
        first: usize,
        most: usize,
        thread: usize,
    ) -> Rows<'s, E>
    where
        'a: 's,
    {
        let first = pairs.start + first;
        self.take(first..pairs.end.min(first + most), self.scratch(dev, thread))
    }
}
