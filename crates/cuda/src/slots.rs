//! Launchers of `adapted_slots.cu`: linear layers of which each row has the adapter of its slot, or none.
//!
//! Legend: M rows, N outputs and K inputs of the layer, C slots of S blocks of rank r. A row's bits are those of its
//! adapter alone, by `adapter::forward`: shapes that Hopper's kernels do not take there, they do not take here. Then
//! the slots come one after another, each for its own rows.

use super::adapted::{FEW_ROWS, STEP, STEP_BYTES, blocks_of, layer, takes, three, tiles_of};
use super::adapter;
use super::boxes::{SHARED_MAX, STAGES_MAX, narrow_maps, ring, tensor_map, tensor_maps};
use super::chosen::Chosen;
use super::matmul::{self, rows};
use super::{Arg, CudaDevice, Launch, blocks, count};
use plimsoll_base::DType;
use plimsoll_device::{Adapted, Adapter, AdapterSlots, MatrixLayout, SLOT_ROWS};
use plimsoll_memory::Buf;

/// Columns of u in a tile.
const U_COLS: usize = 64;
/// Columns of a tile of 64 rows, and of one of 128.
const FEW_COLS: [usize; 3] = [32, 64, 80];
const MANY_COLS: [usize; 2] = [128, 192];
const MANY_ROWS: usize = 128;
/// Columns of u that a tile of 64 rows makes next to its own sums.
const FEW_U: usize = 64;
/// Most elements of A that such a tile reads: beyond them a kernel that makes u once is faster, though it is one more.
const FEW_ELEMENTS: usize = 80 << 10;

/// Computes u of the rows with an adapter, and out = x W^T with bias, or resid + x W^T, plus u_i B_i^T at the outputs
/// of each block.
pub(crate) fn forward(
    dev: &CudaDevice,
    x: Buf<'_>,
    of: Adapted<'_>,
    slots: AdapterSlots<'_>,
    resid: Option<Buf<'_>>,
    u: Buf<'_>,
    out: Buf<'_>,
) {
    let Adapted { w, bias, adapter, .. } = of;
    let m = rows(x, w.k);
    assert_eq!((u.len(), u.dtype()), (m * adapter.a.n, x.dtype()), "u of [{m}, {}]", adapter.a.n);
    assert_eq!((out.len(), w.layout, adapter.a.k), (m * w.n, MatrixLayout::Rows, w.k), "[{m}, {}]", w.n);
    slots.check(m);
    adapter::check(&adapter, m, u, out);
    of.codes.into_iter().for_each(|codes| blocks::dequantize(dev, codes, w));
    if m == 0 || on_hopper(dev, m, x, &of, &slots, resid, u, out) {
        return;
    }
    for slot in 0..slots.count() {
        adapter::down_of(dev, x, &slots.adapter(adapter, slot), u, Chosen::Scaled(slots, slot));
    }
    match resid {
        Some(resid) => matmul::forward_add(dev, x, w, resid, out),
        None => matmul::forward(dev, x, w, bias, out, false),
    }
    for slot in 0..slots.count() {
        adapter::up(dev, u, slots.adapter(adapter, slot), out, Chosen::Slot(slots, slot));
    }
}

/// False if the kernels do not take the shapes.
#[allow(clippy::too_many_arguments)] // Those of the operation.
fn on_hopper(
    dev: &CudaDevice,
    m: usize,
    x: Buf<'_>,
    of: &Adapted<'_>,
    slots: &AdapterSlots<'_>,
    resid: Option<Buf<'_>>,
    u: Buf<'_>,
    out: Buf<'_>,
) -> bool {
    let Adapted { w, bias, adapter, codes, .. } = *of;
    let odd = bias.is_some_and(|b| out.dtype() == DType::F32 || b.dtype() != x.dtype());
    let aligned = |b: Buf<'_>| dev.address(b).is_multiple_of(16);
    let whole = aligned(out) && resid.is_none_or(aligned) && slots.stride.is_multiple_of(8);
    if odd || !whole || !takes(dev, &adapter, w.n, &[x, w.buf, u]) {
        return false;
    }
    let kind = Kind { dev, m, of, slots, is_float: out.dtype() == DType::F32 };
    // The kernels' summands, and the destination of the sums.
    let ends = [if kind.is_float { resid } else { bias }, Some(out)];
    let ends = ends.map(|b| b.map_or(Arg::Ptr(0), |b| dev.arg(b)));
    kind.run(x, u, ends, codes.is_none() && !dev.is_widened(dev.address(w.buf)));
    true
}

struct Kind<'x, 'a> {
    dev: &'x CudaDevice,
    m: usize,
    of: &'x Adapted<'a>,
    slots: &'x AdapterSlots<'a>,
    is_float: bool,
}

impl Kind<'_, '_> {
    /// `is_fixed`: W was written before the operations that precede this one.
    fn run(&self, x: Buf<'_>, u: Buf<'_>, ends: [Arg; 2], is_fixed: bool) {
        let &Kind { dev, m, of: &Adapted { w, adapter, .. }, slots, is_float } = self;
        let (rank, blocks) = (adapter.rank(), blocks_of(&adapter));
        let tables = [dev.arg(slots.of_row), dev.arg(slots.scales), count(slots.count())];
        let (cols, groups) = tile(dev, m, self.of);
        let of_a = slots.most * rank;
        let makes_u = groups == 1 && rank.is_multiple_of(16) && of_a <= FEW_U && of_a * w.k <= FEW_ELEMENTS;
        let kernel = match (makes_u, is_float, cols) {
            (true, true, 32) => "few_slots_float_32",
            (true, true, 64) => "few_slots_float_64",
            (true, true, _) => "few_slots_float_80",
            (true, false, 32) => "few_slots_bf16_32",
            (true, false, 64) => "few_slots_bf16_64",
            (true, false, _) => "few_slots_bf16_80",
            (false, true, 32) => "adapted_slots_float_32_1",
            (false, true, 64) => "adapted_slots_float_64_1",
            (false, true, 80) => "adapted_slots_float_80_1",
            (false, true, 128) => "adapted_slots_float_128_2",
            (false, true, _) => "adapted_slots_float_192_2",
            (false, false, 32) => "adapted_slots_bf16_32_1",
            (false, false, 64) => "adapted_slots_bf16_64_1",
            (false, false, 80) => "adapted_slots_bf16_80_1",
            (false, false, 128) => "adapted_slots_bf16_128_2",
            (false, false, _) => "adapted_slots_bf16_192_2",
        };
        let rows_max = groups * SLOT_ROWS;
        let grid = [tiles_of(self.of, cols) as u32, m.div_ceil(rows_max) as u32, 1];
        // As in `adapted_slots.cu`: a buffer has two steps of a narrow tile, and rows after a box are never stored.
        let steps = if cols < STEP { 2 } else { 1 };
        let each = if grid[0] * grid[1] <= dev.multiprocessors() { 1 } else { 2 };
        let boxed = m.min(rows_max).next_multiple_of(8);
        let after = (rows_max - boxed) * STEP_BYTES;
        let bytes = steps * (boxed + cols + if makes_u { FEW_U } else { 0 }) * STEP_BYTES;
        let stages = ((SHARED_MAX / each - after) / bytes).min(STAGES_MAX);
        let shared = (stages * bytes + after + 1024) as u32;
        let map = |b: Buf<'_>, rows, width, boxed| tensor_map(dev, dev.address(b), rows, width, boxed);
        let mut args = vec![Arg::Map(map(x, m, w.k, boxed)), Arg::Map(map(w.buf, w.n, w.k, cols))];
        if makes_u {
            args.push(Arg::Map(maps_of(dev, slots, adapter.a.buf, adapter.a.n, w.k, rank)));
        } else {
            make_u(dev, m, x, &adapter, slots, tables, u);
        }
        let boxes = if makes_u { tensor_maps } else { narrow_maps };
        let b = adapter.blocks().map(|(_, of)| boxes(dev, all_of(slots, dev, of.b.buf), of.b.n, rank, cols));
        args.extend(three(b.collect()));
        args.extend(layer(m, w.n, w.k, (rank, &blocks)));
        args.push(count(stages));
        args.extend(tables);
        if makes_u {
            args.push(Arg::U32(is_fixed.into()));
        }
        args.push(dev.arg(u));
        args.extend(ends);
        let block = (groups * 128 + 64) as u32;
        dev.launch("adapted_slots", kernel, Launch { grid, block, shared }, &args);
    }
}

/// Computes u = scale x A^T of the rows with an adapter.
fn make_u(
    dev: &CudaDevice,
    m: usize,
    x: Buf<'_>,
    adapter: &Adapter<'_>,
    slots: &AdapterSlots<'_>,
    tables: [Arg; 3],
    u: Buf<'_>,
) {
    let (sr, k) = (adapter.a.n, adapter.a.k);
    let (stages, shared) = ring(2 * (FEW_ROWS + U_COLS) * STEP_BYTES, 1);
    let mut args = vec![
        Arg::Map(tensor_map(dev, dev.address(x), m, k, FEW_ROWS)),
        Arg::Map(maps_of(dev, slots, adapter.a.buf, sr, k, U_COLS.min(sr))),
    ];
    args.extend(layer(m, 0, k, (adapter.rank(), &blocks_of(adapter))));
    args.push(count(stages));
    args.extend(tables);
    args.push(dev.arg(u));
    let grid = [sr.div_ceil(U_COLS) as u32, m.div_ceil(FEW_ROWS) as u32, slots.count() as u32];
    dev.launch("adapted_slots", "adapter_u_slots", Launch { grid, block: 160, shared }, &args);
}

/// Describes a matrix of all slots by that of slot 0.
fn maps_of(
    dev: &CudaDevice,
    slots: &AdapterSlots<'_>,
    first: Buf<'_>,
    rows: usize,
    width: usize,
    boxed: usize,
) -> super::launch::TensorMap {
    tensor_maps(dev, all_of(slots, dev, first), rows, width, boxed)
}

/// Returns where a matrix of slot 0 is, the bytes from one slot's to the next, and the slots.
fn all_of(slots: &AdapterSlots<'_>, dev: &CudaDevice, first: Buf<'_>) -> (u64, u64, usize) {
    (dev.address(first), slots.stride as u64 * first.dtype().bytes(), slots.count())
}

/// Returns the columns of a tile and its groups of 64 rows: the narrowest of 64 rows of which all run at once, else the
/// widest of these if two run at a time, else the faster of 128 rows, whose time grows as columns + 16.
fn tile(dev: &CudaDevice, m: usize, of: &Adapted<'_>) -> (usize, usize) {
    let (all, row_tiles) = (dev.multiprocessors() as usize, m.div_ceil(FEW_ROWS));
    let blocks = |cols: usize| tiles_of(of, cols) * row_tiles;
    let largest = FEW_COLS[FEW_COLS.len() - 1];
    match FEW_COLS.into_iter().find(|cols| blocks(*cols) <= all) {
        Some(cols) => (cols, 1),
        None if row_tiles == 1 || blocks(largest) <= 2 * all => (largest, 1),
        None => {
            let rounds = |cols| (tiles_of(of, cols) * m.div_ceil(MANY_ROWS)).div_ceil(all);
            let of = MANY_COLS.into_iter().min_by_key(|cols| rounds(*cols) * (cols + 16));
            (of.expect("there are tiles"), 2)
        }
    }
}
