//! Products of experts: each pair of a row and an expert times the expert's matrix, and their gradients.
//!
//! Legend: M rows, P pairs, N outputs and K inputs of an expert, e the storage of activations. Each product is one
//! chain per element, as in a layer: no bit depends on how many pairs an expert got, nor on which.

use super::operand::{Operand, Panels, Rows};
use super::pack::{PACK_ROWS, Packed};
use super::tile::{TILE_PANELS, TILE_WIDTH};
use super::{Target, add_products, pack, rows_by_group};
use crate::CpuDevice;
use crate::lanes::{Lanes, by_dtype};
use crate::layouts::BLOCK_ROWS;
use plimsoll_device::{
    AdaptExpertsBackward, Experts, ExpertsAdapter, ExpertsBackward, Matrix, Routes, RowsOf,
};
use plimsoll_memory::Buf;
use std::ops::Range;

/// Rows that a thread gathers at a time.
const GATHERED_ROWS: usize = PACK_ROWS;
/// Minimum pairs of a task that first transposes panels: then that costs a few per cent.
const TRANSPOSED_ROWS: usize = 256;

/// Returns the elements of one thread's scratch for gathered rows of `width`.
pub(crate) fn gathered_elements(width: u64) -> u64 {
    GATHERED_ROWS as u64 * width
}

/// Computes out[p] = x W^T of each pair, or x W if `is_backward`. `x`: [M, K] or [P, K] e; `out`: [P, N] e or f32.
pub(crate) fn product(
    dev: &CpuDevice,
    (x, x_has): (Buf<'_>, RowsOf),
    w: Experts<'_>,
    routes: Routes<'_>,
    out: Buf<'_>,
    is_backward: bool,
) {
    let (length, width) = if is_backward { (w.n, w.k) } else { (w.k, w.n) };
    assert_eq!(x.dtype(), w.buf.dtype(), "rows are stored as weights are");
    assert_eq!(out.len(), routes.pairs() * width, "out of {} pairs of {width}", routes.pairs());
    by_dtype!(x, E => by_dtype!(out, O => {
        let x = PairRows::<E>::new(dev, x, x_has, Columns::all(length), &routes);
        rows_product(dev, &x, w, &routes, &Target::whole(dev.write::<O>(out), width), is_backward);
    }));
}

/// Writes the rows of pairs times W^T of their experts to the target, or times W if `is_backward`.
fn rows_product<E: Operand, O: Lanes>(
    dev: &CpuDevice,
    x: &PairRows<'_, E>,
    w: Experts<'_>,
    routes: &Routes<'_>,
    to: &Target<'_, O>,
    is_backward: bool,
) {
    let (rows, width) = if is_backward { (TRANSPOSED_ROWS, w.k) } else { (BLOCK_ROWS, w.n) };
    let (cut, groups) = (Cut::new(dev, routes, rows), width.div_ceil(TILE_WIDTH));
    dev.pool().run(cut.blocks * groups, &|task, thread| {
        // Groups outside would transpose once for a thread's blocks, but an expert has one block as a rule.
        let (block, group) = (cut.block(task / groups), task % groups);
        let w = Panels::<E>::new(dev, w.of(block.expert));
        let (panels, gathered) = if is_backward {
            let (gathered, scratch) = dev.thread_scratch::<E>(thread).split_at_mut(x.gathered());
            (pack::transpose(dev.isa(), &w, group * TILE_PANELS, scratch), gathered)
        } else {
            (w.group(group), x.scratch(dev, thread))
        };
        // SAFETY: a task writes its own pairs and columns.
        unsafe { product_of_block(dev, x, block.pairs, panels, to, group, gathered) };
    });
}

/// Writes grad = dy^T x over the pairs of each expert, or grad += when `add`.
pub(crate) fn backward_w(dev: &CpuDevice, args: ExpertsBackward<'_>) {
    let ExpertsBackward { dy, dy_has, x, x_has, routes, grad, add, pack } = args;
    assert_eq!(dy.dtype(), x.dtype(), "gradients of outputs are stored as activations are");
    by_dtype!(x, E => {
        let x = PairRows::<E>::new(dev, x, x_has, Columns::all(grad.k), &routes);
        let dy = PairRows::<E>::new(dev, dy, dy_has, Columns::all(grad.n), &routes);
        gradient(dev, &dy, &x, &routes, grad, add, pack);
    });
}

fn gradient<E: Operand>(
    dev: &CpuDevice,
    dy: &PairRows<'_, E>,
    x: &PairRows<'_, E>,
    routes: &Routes<'_>,
    grad: Experts<'_>,
    add: bool,
    pack: Buf<'_>,
) {
    crate::elementwise::begin_sum(dev, grad.buf, add);
    let starts = dev.read::<u32>(routes.starts);
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
}

/// Computes u = scale x A^T of each pair, and out += u_i B_i^T.
pub(crate) fn adapt(
    dev: &CpuDevice,
    x: Buf<'_>,
    x_has: RowsOf,
    adapter: ExpertsAdapter<'_>,
    routes: Routes<'_>,
    u: Buf<'_>,
    out: Option<Buf<'_>>,
) {
    let ExpertsAdapter { a, n, scale, .. } = adapter;
    let r = adapter.rank();
    adapter.check(&routes, u);
    assert!(
        out.is_none_or(|out| out.len() == routes.pairs() * n),
        "out of {} pairs, N = {n}",
        routes.pairs()
    );
    by_dtype!(x, E => {
        let x = PairRows::<E>::new(dev, x, x_has, Columns::all(a.k), &routes);
        let to = Target { scale: Some(scale), ..Target::whole(dev.write::<E>(u), a.n) };
        rows_product(dev, &x, a, &routes, &to, false);
        let Some(out) = out else { return };
        for (i, b, first) in adapter.blocks() {
            let of = Columns { stride: a.n, first: i * r, len: r };
            let u = PairRows::<E>::new(dev, u, RowsOf::Pairs, of, &routes);
            by_dtype!(out, O => {
                let to = Target { start: first, cols: b.n, add: true, ..Target::whole(dev.write::<O>(out), n) };
                rows_product(dev, &u, b, &routes, &to, false);
            });
        }
    });
}

/// Computes du_i = scale dy_i B_i of each pair, and out += du A.
pub(crate) fn adapt_dx(
    dev: &CpuDevice,
    dy: Buf<'_>,
    dy_has: RowsOf,
    adapter: ExpertsAdapter<'_>,
    routes: Routes<'_>,
    du: Buf<'_>,
    out: Option<Buf<'_>>,
) {
    let ExpertsAdapter { a, n, scale, .. } = adapter;
    let r = adapter.rank();
    adapter.check(&routes, du);
    by_dtype!(dy, E => {
        for (i, b, first) in adapter.blocks() {
            let of = Columns { stride: n, first, len: b.n };
            let dy = PairRows::<E>::new(dev, dy, dy_has, of, &routes);
            let to = Target { start: i * r, cols: r, scale: Some(scale), ..Target::whole(dev.write::<E>(du), a.n) };
            rows_product(dev, &dy, b, &routes, &to, true);
        }
        let Some(out) = out else { return };
        let du = PairRows::<E>::new(dev, du, RowsOf::Pairs, Columns::all(a.n), &routes);
        assert_eq!(out.len(), routes.pairs() * a.k, "out of {} pairs, K = {}", routes.pairs(), a.k);
        by_dtype!(out, O => {
            let to = Target { add: true, ..Target::whole(dev.write::<O>(out), a.k) };
            rows_product(dev, &du, a, &routes, &to, true);
        });
    });
}

/// Writes grad B_i = dy_i^T u_i of each block and grad A = du^T x, or adds them when `add`.
pub(crate) fn adapt_dw(dev: &CpuDevice, args: AdaptExpertsBackward<'_>) {
    let AdaptExpertsBackward { x, x_has, u, dy, dy_has, du, routes, grads, add, pack } = args;
    let ExpertsAdapter { a, n, .. } = grads;
    let r = grads.rank();
    grads.check(&routes, u);
    assert_eq!((du.len(), du.dtype(), dy.dtype()), (u.len(), u.dtype(), x.dtype()), "du is u's gradient");
    by_dtype!(x, E => {
        for (i, b, first) in grads.blocks() {
            let of = [Columns { stride: n, first, len: b.n }, Columns { stride: a.n, first: i * r, len: r }];
            let dy = PairRows::<E>::new(dev, dy, dy_has, of[0], &routes);
            let u = PairRows::<E>::new(dev, u, RowsOf::Pairs, of[1], &routes);
            gradient(dev, &dy, &u, &routes, b, add, pack);
        }
        let du = PairRows::<E>::new(dev, du, RowsOf::Pairs, Columns::all(a.n), &routes);
        let x = PairRows::<E>::new(dev, x, x_has, Columns::all(a.k), &routes);
        gradient(dev, &du, &x, &routes, a, add, pack);
    });
}

/// Writes the rows of some pairs of an expert times a group of panels to the group's columns of their target rows.
///
/// # Safety
/// No other task uses these rows and columns of the target, nor `scratch`.
unsafe fn product_of_block<E: Operand, O: Lanes>(
    dev: &CpuDevice,
    rows: &PairRows<'_, E>,
    pairs: Range<usize>,
    panels: &[E],
    to: &Target<'_, O>,
    group: usize,
    scratch: &mut [E],
) {
    for first in pairs.clone().step_by(GATHERED_ROWS) {
        let part = first..pairs.end.min(first + GATHERED_ROWS);
        let rows = rows.take(part, scratch);
        // SAFETY: the caller promises that no other task uses these rows and columns.
        unsafe { rows_by_group(dev.isa(), rows, panels, to, first, group) };
    }
}

/// Pairs of one expert.
struct Block {
    expert: usize,
    pairs: Range<usize>,
}

/// The pairs of each expert in blocks of at most `rows`.
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

/// Columns of rows of `stride` elements.
#[derive(Clone, Copy)]
struct Columns {
    stride: usize,
    first: usize,
    len: usize,
}

impl Columns {
    fn all(stride: usize) -> Columns {
        Columns { stride, first: 0, len: stride }
    }
}

/// Rows that pairs read, or columns of them: the pairs' own, or those of M rows, which are gathered.
struct PairRows<'a, E> {
    data: &'a [E],
    of: Columns,
    /// The pairs, and how many a row has.
    of_rows: Option<(&'a [u32], usize)>,
}

impl<'a, E: Operand> PairRows<'a, E> {
    fn new(dev: &'a CpuDevice, data: Buf<'a>, has: RowsOf, of: Columns, routes: &Routes<'a>) -> Self {
        let (rows, pairs) = (data.len() / of.stride, routes.pairs());
        assert_eq!(data.len(), rows * of.stride, "rows of {}", of.stride);
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
        PairRows { data: dev.read(data), of, of_rows }
    }

    /// Returns the elements that a thread gathers at a time.
    fn gathered(&self) -> usize {
        self.of_rows.map_or(0, |_| GATHERED_ROWS * self.of.len)
    }

    /// Returns a thread's space for gathered rows; empty if pairs have their own rows.
    #[allow(clippy::mut_from_ref)] // A thread has one part and runs one task.
    fn scratch<'s>(&self, dev: &'s CpuDevice, thread: usize) -> &'s mut [E] {
        if self.of_rows.is_some() { dev.thread_scratch::<E>(thread) } else { &mut [] }
    }

    /// Returns the rows of neighbouring pairs, at most `GATHERED_ROWS`.
    fn take<'s>(&self, pairs: Range<usize>, scratch: &'s mut [E]) -> Rows<'s, E>
    where
        'a: 's,
    {
        let Columns { stride, first, len } = self.of;
        let Some((of, chosen)) = self.of_rows else {
            return Rows::columns(&self.data[pairs.start * stride..pairs.end * stride], stride, first, len);
        };
        let to = &mut scratch[..pairs.len() * len];
        for (to, &pair) in to.chunks_exact_mut(len).zip(&of[pairs]) {
            let row = pair as usize / chosen;
            to.copy_from_slice(&self.data[row * stride + first..][..len]);
        }
        Rows::whole(to, len)
    }

    /// Returns at most `most` rows of an expert's pairs from `first`.
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
