//! Matrix products over panels: forward, and the gradients of inputs and weights.
//!
//! Legend: M rows, N outputs, K inputs, e the storage of activations and weights.
//! Every output is one chain over the whole reduced dimension, so no bit depends on M, on threads or on cuts.

mod adapter;
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod coded;
pub(crate) mod experts;
mod merge;
mod operand;
mod pack;
#[cfg(target_arch = "x86_64")]
mod shapes;
mod tile;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use adapter::{
    adapt_backward_u, adapt_backward_w, adapt_down, adapted, adapted_dx, adapted_slots,
};
#[cfg(target_arch = "x86_64")]
pub(crate) use amx::tile_products;
pub(crate) use coded::coded;
pub(crate) use merge::merge;
pub(crate) use operand::{Operand, Panels, Rows};
pub(crate) use pack::Packed;

use super::lanes::{LANES, Lanes, by_dtype, simd_fn};
use super::{CpuDevice, Isa, Real, Shared};
use crate::layouts::BLOCK_ROWS;
use plimsoll_base::DType;
use plimsoll_device::{Matrix, MatrixLayout, PANEL};
use plimsoll_memory::Buf;
use tile::{ALayout, Operands, TILE_PANELS, TILE_ROWS, TILE_WIDTH, Tile};

/// Minimum tasks per thread, so that a slow core delays the others by only a few per cent.
const TASKS_PER_THREAD: usize = 8;
/// Bytes of an operand that a task reads again and again: half a second-level cache of a megabyte.
const KEPT_BYTES: usize = 512 << 10;

/// Returns the elements of one thread's scratch for `backward_x` through a matrix `[n, k]`: three transposed panels.
pub(crate) fn transpose_elements(n: u64, k: u64, weights: DType) -> u64 {
    let steps = if weights == DType::Bf16 { n.next_multiple_of(2) } else { n };
    k.next_multiple_of(PANEL as u64).min(TILE_WIDTH as u64) * steps
}

/// Computes out = resid + x W^T; `out` may be `resid`.
pub(crate) fn forward_add(dev: &CpuDevice, x: Buf<'_>, w: Matrix<'_>, resid: Buf<'_>, out: Buf<'_>) {
    if out != resid {
        super::elementwise::cast(dev, resid, out);
    }
    forward(dev, x, w, None, out, true);
}

/// Computes out = x W^T + bias, or out += when `add`. `x`: [M, K] e; `out`: [M, N] e or f32.
pub(crate) fn forward(
    dev: &CpuDevice,
    x: Buf<'_>,
    w: Matrix<'_>,
    bias: Option<Buf<'_>>,
    out: Buf<'_>,
    add: bool,
) {
    assert_eq!(x.dtype(), w.buf.dtype(), "inputs are stored as weights are");
    assert_eq!(x.len() % w.k, 0, "x of {} elements for K = {}", x.len(), w.k);
    assert_eq!(out.len(), x.len() / w.k * w.n, "out of a product with N = {}", w.n);
    assert!(!add || out.dtype() == DType::F32, "only f32 is added to");
    assert!(bias.is_none_or(|b| b.len() == w.n), "a bias of N = {} elements", w.n);
    by_dtype!(x, E => by_dtype!(out, O => {
        let (x, w, bias) = (dev.read::<E>(x), Panels::<E>::new(dev, w), Bias::of(dev, bias));
        let to = Target { bias, add, ..Target::whole(dev.write::<O>(out), w.n) };
        product(dev, Rows::whole(x, w.k), &w, &to);
    }));
}

/// Writes rows `x` [M, K] times all of `w` to the target.
fn product<E: Operand, O: Lanes>(dev: &CpuDevice, x: Rows<'_, E>, w: &Panels<'_, E>, to: &Target<'_, O>) {
    let num_rows = x.count();
    let groups = w.n.div_ceil(TILE_WIDTH);
    // A group of panels is read once for a block of rows, which stays in cache for all groups.
    let kept = KEPT_BYTES / (w.k * size_of::<E>()) / TILE_ROWS * TILE_ROWS;
    let block = num_rows.div_ceil(wanted(dev, groups)).next_multiple_of(TILE_ROWS).min(kept).max(BLOCK_ROWS);
    // Blocks of rows outside, groups of panels inside: a thread's next task finds its rows in cache.
    dev.pool().run(num_rows.div_ceil(block) * groups, &|task, _| {
        let (row, group) = (task / groups * block, task % groups);
        // SAFETY: a task writes its own rows and columns.
        unsafe { rows_by_group(dev.isa(), x.part(row, block), w.group(group), to, row, group) };
    });
}

/// Returns into how many parts rows or columns are cut at least, each of `groups` tasks, so that every thread has some.
fn wanted(dev: &CpuDevice, groups: usize) -> usize {
    (TASKS_PER_THREAD * dev.pool().threads()).div_ceil(groups)
}

/// Computes all columns of `w` for a few rows, in the calling thread alone: row r goes to `start + r * stride`.
///
/// # Safety
/// No other task uses these elements of `out`.
pub(crate) unsafe fn rows_product<E: Operand>(
    isa: Isa,
    x: &[E],
    w: &Panels<'_, E>,
    out: Shared<'_, f32>,
    start: usize,
    stride: usize,
) {
    let to = Target { start, stride, ..Target::whole(out, w.n) };
    for group in 0..w.n.div_ceil(TILE_WIDTH) {
        // SAFETY: the caller promises that no other task uses these rows of the target.
        unsafe { rows_by_group(isa, Rows::whole(x, w.k), w.group(group), &to, 0, group) };
    }
}

/// Writes rows `a` times a group of panels `b` to the target's rows from `row` and the group's columns.
///
/// # Safety
/// No other task uses these rows and columns of the target.
unsafe fn rows_by_group<E: Operand, O: Lanes>(
    isa: Isa,
    a: Rows<'_, E>,
    b: &[E],
    to: &Target<'_, O>,
    row: usize,
    group: usize,
) {
    let col = group * TILE_WIDTH;
    let (rows, len, panels) = (a.count(), a.len(), to.cols_from(col).div_ceil(PANEL));
    let b_panel = len.next_multiple_of(E::STEP) * PANEL;
    assert!(b.len() >= panels * b_panel, "operands of a tile");
    let mut tile = Tile::new();
    let most = E::tile_rows(isa);
    for first in (0..rows).step_by(most) {
        let here = most.min(rows - first);
        let (a, a_layout) = (a.row(first), ALayout::Rows(a.stride()));
        let ops = Operands { a, a_layout, b: b.as_ptr(), b_panel, len };
        // SAFETY: the operands reach that far by the assertion; `CpuDevice::new` checked the path.
        unsafe { E::tile(isa, here, panels, &ops, &mut tile) };
        store_rows::<O>(isa, &tile, here, to, row + first, col);
    }
}

/// Computes out = dy W, or out += when `add`: added in f32, rounded once. `dy`: [M, N] e; `out`: [M, K] e or f32.
/// Reduced over n ascending, in pairs.
pub(crate) fn backward_x(dev: &CpuDevice, dy: Buf<'_>, w: Matrix<'_>, out: Buf<'_>, add: bool) {
    assert_eq!(dy.dtype(), w.buf.dtype(), "gradients of outputs are stored as weights are");
    assert_eq!(dy.len() % w.n, 0, "dy of {} elements for N = {}", dy.len(), w.n);
    by_dtype!(dy, E => {
        let w = Panels::<E>::new(dev, w);
        by_dtype!(out, O => backward_x_as::<E, O>(dev, dev.read::<E>(dy), &w, dev.write::<O>(out), add))
    });
}

/// Runs `backward_x` on typed parts.
pub(crate) fn backward_x_as<E: Operand, O: Lanes>(
    dev: &CpuDevice,
    dy: &[E],
    w: &Panels<'_, E>,
    out: Shared<'_, O>,
    add: bool,
) {
    let dy = Rows::whole(dy, w.n);
    let num_rows = dy.count();
    assert_eq!(out.len(), num_rows * w.k, "out of {} elements for {num_rows} rows of K = {}", out.len(), w.k);
    transposed_product(dev, dy, w, &Target { add, ..Target::whole(out, w.k) });
}

/// Writes rows `dy` [M, N] times the transpose of `w` to the target.
fn transposed_product<E: Operand, O: Lanes>(
    dev: &CpuDevice,
    dy: Rows<'_, E>,
    w: &Panels<'_, E>,
    to: &Target<'_, O>,
) {
    let num_rows = dy.count();
    let groups = w.k.div_ceil(TILE_WIDTH);
    // A task transposes its panels first; with 256 rows or more that costs a few per cent.
    let chunk = num_rows.div_ceil(wanted(dev, groups)).next_multiple_of(TILE_ROWS).max(256);
    dev.pool().run(num_rows.div_ceil(chunk) * groups, &|task, thread| {
        let (group, row) = (task % groups, task / groups * chunk);
        let scratch = dev.thread_scratch::<E>(thread);
        let b = pack::transpose(dev.isa(), w, group * TILE_PANELS, scratch);
        // SAFETY: a task writes its own rows and columns.
        unsafe { rows_by_group(dev.isa(), dy.part(row, chunk), b, to, row, group) };
    });
}

/// Writes grad = dy^T x, or grad += when `add`: see `backward_w`.
pub(crate) fn gradient(dev: &CpuDevice, dy: Buf<'_>, x: Buf<'_>, grad: Matrix<'_>, add: bool, pack: Buf<'_>) {
    crate::elementwise::begin_sum(dev, grad.buf, add);
    backward_w(dev, dy, x, grad, pack);
}

/// Adds dy^T x to grad. `dy`: [M, N] e; `x`: [M, K] e; `grad`: f32 or bf16 in the order of its weights; `pack`: e.
///
/// The sum over all rows is made in f32 and added to the gradient once.
pub(crate) fn backward_w(dev: &CpuDevice, dy: Buf<'_>, x: Buf<'_>, grad: Matrix<'_>, pack: Buf<'_>) {
    let rows = x.len() / grad.k;
    assert_eq!(x.len(), rows * grad.k, "x of {} elements for K = {}", x.len(), grad.k);
    assert_eq!(dy.len(), rows * grad.n, "dy of {} elements for {rows} rows, N = {}", dy.len(), grad.n);
    by_dtype!(x, E => {
        let mut parts = Packed::<E>::new(dev.write(pack), rows, grad.n, grad.k);
        parts.pack_x(dev, Rows::whole(dev.read::<E>(x), grad.k));
        parts.pack_dy(dev, Rows::whole(dev.read::<E>(dy), grad.n));
        by_dtype!(grad.buf, G => add_products::<E, G>(dev, &parts, dev.write(grad.buf), grad.layout))
    });
}

/// Adds the product of packed operands to grad. `grad`: panels of `parts.n()` rows.
pub(crate) fn add_products<E: Operand, G: Lanes>(
    dev: &CpuDevice,
    parts: &Packed<'_, E>,
    grad: Shared<'_, G>,
    layout: MatrixLayout,
) {
    let step = if layout == MatrixLayout::Pairs { 2 } else { 1 };
    let k = parts.k().next_multiple_of(step);
    assert_eq!(
        grad.len(),
        parts.n().next_multiple_of(PANEL) * k,
        "a gradient [{}, {}]",
        parts.n(),
        parts.k()
    );
    let panels = parts.n().div_ceil(PANEL);
    let groups = panels.div_ceil(TILE_PANELS);
    let (chunk, most) =
        (k.div_ceil(wanted(dev, groups)).next_multiple_of(TILE_ROWS), E::tile_rows(dev.isa()));
    dev.pool().run(groups * k.div_ceil(chunk), &|task, _| {
        let (panel, first) = (task % groups * TILE_PANELS, task / groups * chunk);
        let here = TILE_PANELS.min(panels - panel);
        let (b, b_panel) = parts.dy_panel(panel, here);
        let mut tile = Tile::new();
        for col in (first..k.min(first + chunk)).step_by(most) {
            let rows = most.min(k - col);
            let ops = Operands {
                a: parts.x_column(col, rows),
                a_layout: ALayout::Packed,
                b: b.as_ptr(),
                b_panel,
                len: parts.steps(),
            };
            // SAFETY: packed panels hold `steps` rows of 16 columns, and column `col + rows - 1` lies in col's panel.
            unsafe { E::tile(dev.isa(), rows, here, &ops, &mut tile) };
            for p in 0..here {
                let start = (panel + p) * PANEL * k + col * PANEL;
                // SAFETY: a task has its own panels and columns.
                let to = unsafe { grad.range(start, rows * PANEL) };
                if step == 2 {
                    add_pairs::<G>(dev.isa(), &tile, p, to)
                } else {
                    add_single::<G>(dev.isa(), &tile, p, to)
                }
            }
        }
    });
}

simd_fn! {
    /// Adds columns of a tile, as rows of 16, to a gradient in the order `Single`.
    fn add_single[G: Lanes](s: S, tile: &Tile, panel: usize, to: &mut [G]) {
        for (to, from) in to.as_chunks_mut::<LANES>().0.iter_mut().zip(&tile.rows) {
            let sum = s.add(G::load(s, to), f32::load(s, &parts(from)[panel]));
            G::store(s, to, sum);
        }
    }
}

simd_fn! {
    /// Adds columns of a tile, two by two, to a gradient in the order `Pairs`.
    fn add_pairs[G: Lanes](s: S, tile: &Tile, panel: usize, to: &mut [G]) {
        for (to, rows) in to.chunks_exact_mut(2 * PANEL).zip(tile.rows.as_chunks::<2>().0) {
            let mut mixed = [0.0f32; 2 * PANEL];
            for lane in 0..PANEL {
                mixed[2 * lane] = rows[0][panel * PANEL + lane];
                mixed[2 * lane + 1] = rows[1][panel * PANEL + lane];
            }
            for (to, from) in to.as_chunks_mut::<LANES>().0.iter_mut().zip(mixed.as_chunks::<LANES>().0) {
                let sum = s.add(G::load(s, to), f32::load(s, from));
                G::store(s, to, sum);
            }
        }
    }
}

/// A bias in its stored dtype.
#[derive(Clone, Copy)]
enum Bias<'a> {
    None,
    F32(&'a [f32]),
    Bf16(&'a [half::bf16]),
}

impl<'a> Bias<'a> {
    fn of(dev: &'a CpuDevice, bias: Option<Buf<'a>>) -> Bias<'a> {
        match bias {
            None => Bias::None,
            Some(b) if b.dtype() == DType::F32 => Bias::F32(dev.read(b)),
            Some(b) => Bias::Bf16(dev.read(b)),
        }
    }

    /// Widens elements `start..start + into.len()`; returns false if there is no bias.
    #[inline(always)]
    fn widen(&self, start: usize, into: &mut [f32]) -> bool {
        match self {
            Bias::None => return false,
            Bias::F32(b) => into.copy_from_slice(&b[start..start + into.len()]),
            Bias::Bf16(b) => into.iter_mut().zip(&b[start..]).for_each(|(to, &x)| *to = Real::to_f32(x)),
        }
        true
    }
}

/// The output of a product, and how results are stored in it.
struct Target<'a, O> {
    out: Shared<'a, O>,
    /// Index of the first row's first element.
    start: usize,
    /// Elements from row to row.
    stride: usize,
    cols: usize,
    /// Factor on the sums, before anything is added.
    scale: Option<f32>,
    bias: Bias<'a>,
    add: bool,
}

impl<'a, O> Target<'a, O> {
    /// Returns a target that overwrites all of `out`, in rows of `cols`.
    fn whole(out: Shared<'a, O>, cols: usize) -> Target<'a, O> {
        Target { out, start: 0, stride: cols, cols, scale: None, bias: Bias::None, add: false }
    }

    /// Returns the columns of a group that begins at `col`.
    fn cols_from(&self, col: usize) -> usize {
        TILE_WIDTH.min(self.cols - col)
    }
}

simd_fn! {
    /// Stores a tile's rows: scale, bias, addition and rounding.
    fn store_rows[O: Lanes](s: S, tile: &Tile, rows: usize, to: &Target<'_, O>, row: usize, col: usize) {
        let cols = to.cols_from(col);
        let mut bias = [0.0f32; TILE_WIDTH];
        let biased = to.bias.widen(col, &mut bias[..cols]);
        for r in 0..rows {
            // SAFETY: the callers' tasks have their own rows and columns.
            let out = unsafe { to.out.range(to.start + (row + r) * to.stride + col, cols) };
            // No closures: they would be compiled without the path's instructions.
            for (i, part) in out.chunks_mut(LANES).enumerate() {
                let mut x = f32::load(s, &parts(&tile.rows[r])[i]);
                if let Some(scale) = to.scale {
                    x = s.mul(x, s.splat(scale));
                }
                if biased {
                    x = s.add(x, f32::load(s, &parts(&bias)[i]));
                }
                if let Ok(part) = <&mut [O; LANES]>::try_from(&mut *part) {
                    if to.add {
                        x = s.add(O::load(s, part), x);
                    }
                    O::store(s, part, x);
                } else {
                    if to.add {
                        x = s.add(O::load_part(s, part), x);
                    }
                    O::store_part(s, part, x);
                }
            }
        }
    }
}

/// Returns a row of a tile in vectors.
#[inline(always)]
fn parts(row: &[f32; TILE_WIDTH]) -> &[[f32; LANES]; TILE_PANELS] {
    row.as_chunks::<LANES>().0.try_into().expect("three panels")
}
