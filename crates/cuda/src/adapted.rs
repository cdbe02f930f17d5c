//! Launchers of `adapted_wide.cuh` and `adapted_few.cu`: linear layers with their adapters on Hopper, in bf16.
//!
//! Legend: M rows, N outputs and K inputs of the layer, S blocks of rank r. The choice of kernel and tile is a matter
//! of speed: the bits of a row are the same in all of them.

use super::boxes::{SHARED_MAX, STAGES_MAX, ring, tensor_map};
use super::launch::TensorMap;
use super::matmul::rows;
use super::{Arg, CudaDevice, Launch, count};
use plimsoll_base::DType;
use plimsoll_device::{Adapted, Adapter};
use plimsoll_memory::Buf;

/// Elements of a step, and bytes of a row of one in shared memory.
pub(super) const STEP: usize = 64;
/// Blocks of an adapter that the kernels take; the four of linear attention are products of their own.
pub(super) const BLOCKS_MAX: usize = 3;
pub(super) const STEP_BYTES: usize = 2 * STEP;
/// Rows of a tile of few rows, or of u; and of a wide one.
pub(super) const FEW_ROWS: usize = 64;
const WIDE_ROWS: usize = 128;
/// Columns of a tile, by kernel.
const FEW_COLS: [usize; 4] = [16, 32, 64, 80];
const WIDE_COLS: [usize; 3] = [128, 192, 256];
/// Columns of u in a tile.
const U_COLS: usize = 64;
/// Ranks that the kernels of few rows have room for.
const FEW_RANKS: [usize; 2] = [32, 64];

/// True if the kernels take the shapes: it depends on neither M nor how a run uses the product.
pub(super) fn takes(dev: &CudaDevice, adapter: &Adapter<'_>, n: usize, operands: &[Buf<'_>]) -> bool {
    let whole = |b: Buf<'_>| b.dtype() == DType::Bf16 && dev.address(b).is_multiple_of(16);
    let eights = |x: usize| x.is_multiple_of(8);
    dev.info().capability == (9, 0)
        && adapter.blocks().count() <= BLOCKS_MAX
        && [adapter.rank(), adapter.a.k, n].into_iter().all(eights)
        && adapter.blocks().all(|(_, of)| eights(of.first) && eights(of.b.n) && whole(of.b.buf))
        && whole(adapter.a.buf)
        && operands.iter().all(|b| whole(*b))
}

/// Returns the arguments that all kernels of a layer take: M, output columns, steps of the activation, and blocks.
pub(super) fn layer(
    m: usize,
    cols: usize,
    depth: usize,
    (rank, blocks): (usize, &[(usize, usize)]),
) -> Vec<Arg> {
    let mut args = [m, cols, depth.div_ceil(STEP), rank, blocks.len()].map(count).to_vec();
    for i in 0..BLOCKS_MAX {
        let (first, width) = blocks.get(i).copied().unwrap_or_default();
        args.extend([first, width].map(count));
    }
    args
}

pub(super) fn blocks_of(adapter: &Adapter<'_>) -> Vec<(usize, usize)> {
    adapter.blocks().map(|(_, of)| (of.first, of.b.n)).collect()
}

/// Returns three maps, of which as many are read as there are blocks.
pub(super) fn three(maps: Vec<TensorMap>) -> impl Iterator<Item = Arg> {
    let first = maps[0];
    (0..BLOCKS_MAX).map(move |i| Arg::Map(maps.get(i).copied().unwrap_or(first)))
}

/// Computes u and the layer's outputs, adapters included. False if the kernels do not take the shapes.
pub(crate) fn forward(
    dev: &CudaDevice,
    x: Buf<'_>,
    of: &Adapted<'_>,
    resid: Option<Buf<'_>>,
    u: Buf<'_>,
    out: Buf<'_>,
) -> bool {
    let Adapted { w, bias, adapter, .. } = *of;
    let odd = bias.is_some_and(|b| out.dtype() == DType::F32 || b.dtype() != x.dtype());
    let whole =
        dev.address(out).is_multiple_of(16) && resid.is_none_or(|r| dev.address(r).is_multiple_of(16));
    if odd || !whole || !takes(dev, &adapter, w.n, &[x, w.buf, u]) {
        return false;
    }
    let m = rows(x, w.k);
    if m == 0 {
        return true;
    }
    // The kernels' summands, and the destination of the sums.
    let ends = [if out.dtype() == DType::F32 { resid } else { bias }, Some(out)];
    let ends = ends.map(|b| b.map_or(Arg::Ptr(0), |b| dev.arg(b)));
    let kind = Kind { dev, m, of, out: out.dtype() };
    match kind.few_cols() {
        Some(cols) => kind.few(cols, x, u, ends),
        None => {
            narrow(dev, false, m, x, &adapter, u);
            kind.wide(x, u, ends);
        }
    }
    true
}

/// Returns the number of tiles of `cols` outputs, none with outputs of two blocks.
pub(super) fn tiles_of(of: &Adapted<'_>, cols: usize) -> usize {
    let (mut tiles, mut end) = (0, 0);
    for (first, n) in blocks_of(&of.adapter) {
        tiles += (first - end).div_ceil(cols) + n.div_ceil(cols);
        end = first + n;
    }
    tiles + (of.w.n - end).div_ceil(cols)
}

struct Kind<'x, 'a> {
    dev: &'x CudaDevice,
    m: usize,
    of: &'x Adapted<'a>,
    out: DType,
}

impl Kind<'_, '_> {
    /// Returns the columns of a tile if the kernel for few rows is faster: all blocks at once, two per multiprocessor.
    fn few_cols(&self) -> Option<usize> {
        let (all, row_tiles) = (self.dev.multiprocessors() as usize, self.m.div_ceil(FEW_ROWS));
        let blocks = |cols: usize| tiles_of(self.of, cols) * row_tiles;
        let fitting = FEW_COLS.into_iter().find(|cols| blocks(*cols) <= all);
        let largest = FEW_COLS[FEW_COLS.len() - 1];
        let is_few = row_tiles == 1 || blocks(largest) <= 2 * all;
        (is_few && self.of.adapter.rank() <= FEW_RANKS[1]).then(|| fitting.unwrap_or(largest))
    }

    fn few(&self, cols: usize, x: Buf<'_>, u: Buf<'_>, ends: [Arg; 2]) {
        let &Kind { dev, m, of: &Adapted { w, codes, adapter, .. }, out } = self;
        let is_fixed = codes.is_none() && !dev.is_widened(dev.address(w.buf));
        let (rank, blocks) = (adapter.rank(), blocks_of(&adapter));
        let room = if rank <= FEW_RANKS[0] { FEW_RANKS[0] } else { FEW_RANKS[1] };
        let kernel = match (out, cols, room) {
            (DType::F32, 16, 32) => "adapted_few_float_16_32",
            (DType::F32, 32, 32) => "adapted_few_float_32_32",
            (DType::F32, 64, 32) => "adapted_few_float_64_32",
            (DType::F32, _, 32) => "adapted_few_float_80_32",
            (DType::F32, 16, _) => "adapted_few_float_16_64",
            (DType::F32, 32, _) => "adapted_few_float_32_64",
            (DType::F32, 64, _) => "adapted_few_float_64_64",
            (DType::F32, ..) => "adapted_few_float_80_64",
            (_, 16, 32) => "adapted_few_bf16_16_32",
            (_, 32, 32) => "adapted_few_bf16_32_32",
            (_, 64, 32) => "adapted_few_bf16_64_32",
            (_, _, 32) => "adapted_few_bf16_80_32",
            (_, 16, _) => "adapted_few_bf16_16_64",
            (_, 32, _) => "adapted_few_bf16_32_64",
            (_, 64, _) => "adapted_few_bf16_64_64",
            (..) => "adapted_few_bf16_80_64",
        };
        let grid = [tiles_of(self.of, cols) as u32, m.div_ceil(FEW_ROWS) as u32, 1];
        // A buffer has two steps of a narrow tile.
        let steps = if cols < STEP { 2 } else { 1 };
        let each = if grid[0] * grid[1] <= dev.multiprocessors() { 1 } else { 2 };
        // Rows of x after a box are never stored: its copies need not fill them.
        let boxed = m.min(FEW_ROWS).next_multiple_of(8);
        let after = (FEW_ROWS - boxed) * STEP_BYTES;
        let (bytes, room_of_each) = (steps * (boxed + cols + room) * STEP_BYTES, SHARED_MAX / each - after);
        let stages = (room_of_each / bytes).min(STAGES_MAX);
        let shared = (stages * bytes + after + 1024) as u32;
        let map = |b: Buf<'_>, rows, width, boxed| tensor_map(dev, dev.address(b), rows, width, boxed);
        let b = adapter.blocks().map(|(_, of)| map(of.b.buf, of.b.n, rank, cols)).collect();
        let mut args = vec![
            Arg::Map(map(x, m, w.k, boxed)),
            Arg::Map(map(w.buf, w.n, w.k, cols)),
            Arg::Map(map(adapter.a.buf, adapter.a.n, w.k, room)),
        ];
        args.extend(three(b));
        args.extend(layer(m, w.n, w.k, (rank, &blocks)));
        args.extend(args![dev, stages, is_fixed, adapter.scale, u]);
        args.extend(ends);
        dev.launch("adapted_few", kernel, Launch { grid, block: 192, shared }, &args);
    }

    fn wide(&self, x: Buf<'_>, u: Buf<'_>, ends: [Arg; 2]) {
        let &Kind { dev, m, of: &Adapted { w, adapter, .. }, out } = self;
        let (rank, blocks) = (adapter.rank(), blocks_of(&adapter));
        let cols = wide_cols(dev, m, w.n);
        let kernel = match (out, cols) {
            (DType::F32, 128) => ("adapted_float", "adapted_float_128"),
            (DType::F32, 192) => ("adapted_float", "adapted_float_192"),
            (DType::F32, _) => ("adapted_float", "adapted_float_256"),
            (_, 128) => ("adapted_bf16", "adapted_bf16_128"),
            (_, 192) => ("adapted_bf16", "adapted_bf16_192"),
            (..) => ("adapted_bf16", "adapted_bf16_256"),
        };
        let map = |b: Buf<'_>, rows, width, boxed| tensor_map(dev, dev.address(b), rows, width, boxed);
        let right = adapter.blocks().map(|(_, of)| map(of.b.buf, of.b.n, rank, cols)).collect();
        let maps = [map(x, m, w.k, WIDE_ROWS), map(w.buf, w.n, w.k, cols), map(u, m, adapter.a.n, WIDE_ROWS)];
        launch_wide(dev, kernel, cols, maps, right, (layer(m, w.n, w.k, (rank, &blocks)), m, w.n), &ends);
    }
}

/// Returns the columns of the fastest wide tile, at one block per multiprocessor: its time grows as columns + 16.
fn wide_cols(dev: &CudaDevice, m: usize, n: usize) -> usize {
    let rounds = |cols| (m.div_ceil(WIDE_ROWS) * n.div_ceil(cols)).div_ceil(dev.multiprocessors() as usize);
    WIDE_COLS.into_iter().rev().min_by_key(|cols| rounds(*cols) * (cols + 16)).expect("there are kernels")
}

/// `maps`: the activation, W, and u.
fn launch_wide(
    dev: &CudaDevice,
    (module, kernel): (&'static str, &'static str),
    cols: usize,
    [x, w, u]: [TensorMap; 3],
    right: Vec<TensorMap>,
    (layer, m, n): (Vec<Arg>, usize, usize),
    ends: &[Arg],
) {
    let (stages, shared) = ring((WIDE_ROWS + cols) * STEP_BYTES, 1);
    let mut args = vec![Arg::Map(x), Arg::Map(w)];
    args.extend(three(right));
    args.push(Arg::Map(u));
    args.extend(layer);
    args.push(count(stages));
    args.extend(ends);
    let tiles = m.div_ceil(WIDE_ROWS) * n.div_ceil(cols);
    let grid = [tiles.min(dev.multiprocessors() as usize) as u32, 1, 1];
    dev.launch(module, kernel, Launch { grid, block: 384, shared }, &args);
}

/// Computes u = scale x A^T, or du_i = scale dy_i B_i.
fn narrow(dev: &CudaDevice, is_backward: bool, m: usize, x: Buf<'_>, adapter: &Adapter<'_>, u: Buf<'_>) {
    let (width, rank, sr) = (x.len() / m, adapter.rank(), adapter.a.n);
    let map = |b: Buf<'_>, rows, width| tensor_map(dev, dev.address(b), rows, width, FEW_ROWS);
    let (right, tiles) = if is_backward {
        let b: Vec<_> = adapter.blocks().map(|(_, of)| map(of.b.buf, of.b.n, rank)).collect();
        let tiles = b.len() * rank.div_ceil(U_COLS);
        (b, tiles)
    } else {
        (vec![map(adapter.a.buf, sr, adapter.a.k)], sr.div_ceil(U_COLS))
    };
    let (module, kernel) =
        if is_backward { ("adapted_dx", "adapter_du") } else { ("adapted_bf16", "adapter_u") };
    let (stages, shared) = ring(2 * (FEW_ROWS + U_COLS) * STEP_BYTES, 1);
    let mut args = vec![Arg::Map(map(x, m, width))];
    args.extend(three(right));
    args.extend(layer(m, 0, width, (rank, &blocks_of(adapter))));
    args.extend([count(stages), Arg::F32(adapter.scale), dev.arg(u)]);
    let grid = [tiles as u32, m.div_ceil(FEW_ROWS) as u32, 1];
    dev.launch(module, kernel, Launch { grid, block: 160, shared }, &args);
}

/// Computes u alone. False if the kernels do not take the shapes.
pub(crate) fn down(dev: &CudaDevice, m: usize, x: Buf<'_>, adapter: &Adapter<'_>, u: Buf<'_>) -> bool {
    let takes = takes(dev, adapter, adapter.a.k, &[x, u]);
    if takes && m > 0 {
        narrow(dev, false, m, x, adapter, u);
    }
    takes
}

/// Computes du of `n` outputs alone. False if the kernels do not take the shapes.
pub(crate) fn backward_u(
    dev: &CudaDevice,
    (m, n): (usize, usize),
    dy: Buf<'_>,
    adapter: &Adapter<'_>,
    du: Buf<'_>,
) -> bool {
    let takes = takes(dev, adapter, n, &[dy, du]);
    if takes && m > 0 {
        narrow(dev, true, m, dy, adapter, du);
    }
    takes
}

/// Computes dx = dy W + du A. False if the kernels do not take the shapes.
pub(crate) fn backward_x(dev: &CudaDevice, dy: Buf<'_>, of: &Adapted<'_>, du: Buf<'_>, dx: Buf<'_>) -> bool {
    let (w, a) = (of.w, of.adapter.a);
    if !takes(dev, &of.adapter, w.n, &[dy, w.buf, du, dx]) {
        return false;
    }
    let m = rows(dy, w.n);
    if m == 0 {
        return true;
    }
    let cols = wide_cols(dev, m, w.k);
    let kernel = match cols {
        128 => ("adapted_dx", "adapted_dx_128"),
        192 => ("adapted_dx", "adapted_dx_192"),
        _ => ("adapted_dx", "adapted_dx_256"),
    };
    let map = |b: Buf<'_>, rows, width, boxed| tensor_map(dev, dev.address(b), rows, width, boxed);
    let maps = [map(dy, m, w.n, WIDE_ROWS), map(w.buf, w.n, w.k, STEP), map(du, m, a.n, WIDE_ROWS)];
    // All of du adds to each input: one block as deep as all of them.
    let layer = layer(m, w.k, w.n, (a.n, &[(0, w.k)]));
    launch_wide(dev, kernel, cols, maps, vec![map(a.buf, a.n, w.k, STEP)], (layer, m, w.k), &[dev.arg(dx)]);
    true
}
