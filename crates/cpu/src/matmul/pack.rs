//! Operands in the order of the kernel: pairs of rows interleaved in panels of 16 columns, and transposed panels.

use super::operand::{Operand, Panels, Rows};
use super::tile::TILE_PANELS;
use crate::lanes::simd_fn;
use crate::{CpuDevice, Isa, Shared};
use plimsoll_device::PANEL;

/// Rows that a task packs: 32 rows of a panel are 1 KiB of bf16, written at once.
pub(super) const PACK_ROWS: usize = 32;

/// Both operands of a weight gradient: panels of 16 columns, `[M][16]` or `[M/2][16][2]`; x first, then dy.
pub(crate) struct Packed<'a, E> {
    pack: Shared<'a, E>,
    rows: usize,
    n: usize,
    k: usize,
}

/// Returns rows, given the first one, their maximum number, and the thread that reads them.
pub(super) type RowsFrom<'f, E> = dyn Fn(usize, usize, usize) -> Rows<'f, E> + Sync + 'f;

impl<'a, E: Operand> Packed<'a, E> {
    /// Returns a pack over a region of at least `pack_elements(rows, n, k)` elements.
    pub(crate) fn new(pack: Shared<'a, E>, rows: usize, n: usize, k: usize) -> Packed<'a, E> {
        let needed = crate::layouts::pack_elements(rows as u64, n as u64, k as u64, E::DTYPE);
        assert!(pack.len() as u64 >= needed, "a pack of {} elements, {needed} are needed", pack.len());
        Packed { pack, rows, n, k }
    }

    pub(crate) fn n(&self) -> usize {
        self.n
    }

    pub(crate) fn k(&self) -> usize {
        self.k
    }

    pub(super) fn steps(&self) -> usize {
        self.rows.next_multiple_of(E::STEP)
    }

    /// Packs x [M, K].
    pub(crate) fn pack_x(&mut self, dev: &CpuDevice, x: Rows<'_, E>) {
        assert_eq!(x.count(), self.rows, "rows of a pack");
        self.pack_x_of(dev, &|first, most, _| x.part(first, most));
    }

    /// Packs dy [M, n]; `n` may be smaller than at construction.
    pub(crate) fn pack_dy(&mut self, dev: &CpuDevice, dy: Rows<'_, E>) {
        assert_eq!(dy.count(), self.rows, "rows of a pack");
        self.pack_dy_of(dev, dy.len(), &|first, most, _| dy.part(first, most));
    }

    /// Packs x [M, K], whose rows come from `part`.
    pub(super) fn pack_x_of(&mut self, dev: &CpuDevice, part: &RowsFrom<'_, E>) {
        self.pack_columns(dev, self.k, 0, part, true);
    }

    /// Packs dy [M, n], whose rows come from `part`.
    pub(super) fn pack_dy_of(&mut self, dev: &CpuDevice, n: usize, part: &RowsFrom<'_, E>) {
        self.n = n;
        self.pack_columns(dev, n, self.dy_start(), part, false);
    }

    fn dy_start(&self) -> usize {
        self.k.next_multiple_of(PANEL) * self.steps()
    }

    /// Returns `panels` panels of dy from `first`, and the elements of one.
    pub(super) fn dy_panel(&self, first: usize, panels: usize) -> (&[E], usize) {
        let panel = PANEL * self.steps();
        // SAFETY: packing has ended; nothing is written until `pack_x` or `pack_dy` borrow the region mutably.
        (unsafe { self.pack.seen(self.dy_start() + first * panel, panels * panel) }, panel)
    }

    /// Returns the first element of column `col` of x; the next `cols - 1` columns follow it.
    pub(super) fn x_column(&self, col: usize, cols: usize) -> *const E {
        assert!(
            (col % PANEL + cols <= PANEL || col.is_multiple_of(PANEL))
                && col + cols <= self.k.next_multiple_of(E::STEP),
            "columns {col}+{cols} of {}",
            self.k
        );
        let start = col / PANEL * PANEL * self.steps() + col % PANEL * E::STEP;
        self.pack.as_ptr().wrapping_add(start)
    }

    /// `is_a`: the columns are the products' rows, which some paths want in another order.
    fn pack_columns(&self, dev: &CpuDevice, width: usize, start: usize, part: &RowsFrom<'_, E>, is_a: bool) {
        dev.pool().run(self.rows.div_ceil(PACK_ROWS), &|task, thread| {
            let first = task * PACK_ROWS;
            let from = part(first, PACK_ROWS, thread);
            assert_eq!(
                (from.count(), from.len()),
                (PACK_ROWS.min(self.rows - first), width),
                "rows of a pack"
            );
            for panel in 0..from.len().div_ceil(PANEL) {
                let at = start + panel * PANEL * self.steps() + first * PANEL;
                // SAFETY: a task has its own rows of every panel.
                let to = unsafe { self.pack.range(at, from.count().next_multiple_of(E::STEP) * PANEL) };
                interleave(dev.isa(), from, panel * PANEL, to);
                if is_a {
                    E::order_as_a(dev.isa(), to);
                }
            }
        });
    }
}

/// Interleaves columns `col..col + 16` of rows: `[rows/STEP][16][STEP]`, zero beyond.
fn interleave<E: Operand>(isa: Isa, from: Rows<'_, E>, col: usize, to: &mut [E]) {
    let (rows, cols) = (from.count(), from.len());
    let whole = if cols - col >= PANEL { rows / E::STEP } else { 0 };
    let (fast, rest) = to.split_at_mut(whole * E::STEP * PANEL);
    let (stride, from) = (from.stride(), from.beginning_at(col));
    interleave_whole::<E>(isa, from, stride, fast);
    let width = PANEL.min(cols - col);
    for (i, to) in rest.iter_mut().enumerate() {
        let (lane, row) =
            (i / E::STEP % PANEL, whole * E::STEP + i / (E::STEP * PANEL) * E::STEP + i % E::STEP);
        *to = if lane < width && row < rows { from[row * stride + lane] } else { E::from_f32(0.0) };
    }
}

simd_fn! {
    /// Interleaves 16 full columns of full steps of rows; `stride` elements from row to row.
    fn interleave_whole[E: Operand](_s: S, from: &[E], stride: usize, to: &mut [E]) {
        for (step, to) in to.chunks_exact_mut(E::STEP * PANEL).enumerate() {
            let start = step * E::STEP * stride;
            E::interleave_rows(&from[start..], stride, to);
        }
    }
}

/// Writes at most three panels `first..` of w's transpose: `[K/16][N][16]` or `[K/16][N/2][16][2]`, zero beyond.
pub(super) fn transpose<'s, E: Operand>(
    isa: Isa,
    w: &Panels<'_, E>,
    first: usize,
    scratch: &'s mut [E],
) -> &'s [E] {
    let panels = TILE_PANELS.min(w.k.div_ceil(PANEL) - first);
    let panel_len = w.n.next_multiple_of(E::STEP) * PANEL;
    // A block is 16 rows by 16 columns of W.
    let (vector, block) = (PANEL * E::STEP, PANEL * PANEL);
    let to = &mut scratch[..panels * panel_len];
    for (p, to) in to.chunks_exact_mut(panel_len).enumerate() {
        let start = (first + p) * block;
        for (from, to) in w.data.chunks_exact(w.panel()).zip(to.chunks_mut(block)) {
            let from = &from[start..w.panel().min(start + block)];
            if from.len() == block && to.len() == block {
                E::transpose_block(isa, from.try_into().expect("a block"), to.try_into().expect("a block"));
                continue;
            }
            let mut whole = [E::from_f32(0.0); PANEL * PANEL];
            let mut turned = whole;
            whole[..from.len()].copy_from_slice(from);
            E::transpose_block(isa, &whole, &mut turned);
            debug_assert!(to.len().is_multiple_of(vector), "whole steps");
            to.copy_from_slice(&turned[..to.len()]);
        }
    }
    to
}
