//! Operands in the order of the kernel: pairs of rows interleaved in panels of 16 columns, and transposed panels.

use super::tile::TILE_PANELS;
use super::{Operand, Panels};
use crate::PANEL;
use crate::cpu::{CpuDevice, Isa, Shared};

/// Rows that a task packs: 32 rows of a panel are 1 KiB of bf16, written in one go.
const PACK_ROWS: usize = 32;

/// Both operands of a weight gradient: panels of 16 columns, `[M][16]` or `[M/2][16][2]`; x first, then dy.
pub(crate) struct Packed<'a, E> {
    pack: Shared<'a, E>,
    rows: usize,
    n: usize,
    k: usize,
}

impl<'a, E: Operand> Packed<'a, E> {
    /// Over a region of `pack_elements(rows, n, k)` elements at least.
    pub(crate) fn new(pack: Shared<'a, E>, rows: usize, n: usize, k: usize) -> Packed<'a, E> {
        let needed = super::pack_elements(rows as u64, n as u64, k as u64, E::DTYPE);
        assert!(pack.len() as u64 >= needed, "a pack of {} elements, {needed} are needed", pack.len());
        Packed { pack, rows, n, k }
    }

    /// Outputs packed now.
    pub(crate) fn n(&self) -> usize {
        self.n
    }

    /// Inputs.
    pub(crate) fn k(&self) -> usize {
        self.k
    }

    /// Rows, padded to whole steps.
    pub(super) fn steps(&self) -> usize {
        self.rows.next_multiple_of(E::STEP)
    }

    /// Packs x [M, K].
    pub(crate) fn pack_x(&mut self, dev: &CpuDevice, x: &[E]) {
        self.pack_columns(dev, x, self.k, 0);
    }

    /// Packs dy [M, n]; `n` may be smaller than at construction.
    pub(crate) fn pack_dy(&mut self, dev: &CpuDevice, dy: &[E], n: usize) {
        self.n = n;
        self.pack_columns(dev, dy, n, self.dy_start());
    }

    fn dy_start(&self) -> usize {
        self.k.next_multiple_of(PANEL) * self.steps()
    }

    /// `panels` panels of dy from `first`, and the elements of one.
    pub(super) fn dy_panel(&self, first: usize, panels: usize) -> (&[E], usize) {
        let panel = PANEL * self.steps();
        // SAFETY: packing has ended; nobody writes the region until `pack_x` or `pack_dy` borrow it mutably.
        (unsafe { self.pack.range(self.dy_start() + first * panel, panels * panel) }, panel)
    }

    /// The first element of column `col` of x; `cols` columns lie beside it.
    pub(super) fn x_column(&self, col: usize, cols: usize) -> *const E {
        assert!(
            col % PANEL + cols <= PANEL && col < self.k.next_multiple_of(E::STEP),
            "columns {col}+{cols} of {}",
            self.k
        );
        let start = col / PANEL * PANEL * self.steps() + col % PANEL * E::STEP;
        self.pack.as_ptr().wrapping_add(start)
    }

    fn pack_columns(&self, dev: &CpuDevice, from: &[E], cols: usize, start: usize) {
        assert_eq!(from.len(), self.rows * cols, "{} rows of {cols}", self.rows);
        dev.pool().run(self.rows.div_ceil(PACK_ROWS), &|task, _| {
            let first = task * PACK_ROWS;
            let rows = PACK_ROWS.min(self.rows - first);
            let from = &from[first * cols..][..rows * cols];
            for panel in 0..cols.div_ceil(PANEL) {
                let at = start + panel * PANEL * self.steps() + first * PANEL;
                // SAFETY: a task has its own rows of every panel.
                let to = unsafe { self.pack.range(at, rows.next_multiple_of(E::STEP) * PANEL) };
                interleave(dev.isa(), from, cols, panel * PANEL, to);
            }
        });
    }
}

/// Columns `col..col + 16` of rows of `cols` elements: `[rows/STEP][16][STEP]`, zero beyond.
fn interleave<E: Operand>(_isa: Isa, from: &[E], cols: usize, col: usize, to: &mut [E]) {
    let width = PANEL.min(cols - col);
    let zero = E::from_f32(0.0);
    for (step, to) in to.chunks_exact_mut(PANEL * E::STEP).enumerate() {
        for part in 0..E::STEP {
            let row = from.get((step * E::STEP + part) * cols + col..).unwrap_or(&[]);
            for lane in 0..PANEL {
                to[lane * E::STEP + part] = if lane < width && lane < row.len() { row[lane] } else { zero };
            }
        }
    }
}

/// Panels `first..` of the transpose of `w`, three at most: `[K/16][N][16]` or `[K/16][N/2][16][2]`, zero beyond.
pub(super) fn transpose<'s, E: Operand>(
    _isa: Isa,
    w: &Panels<'_, E>,
    first: usize,
    scratch: &'s mut [E],
) -> &'s [E] {
    let (step, k_padded) = (E::STEP, w.k.next_multiple_of(E::STEP));
    let panels = TILE_PANELS.min(w.k.div_ceil(PANEL) - first);
    let panel_len = w.n.next_multiple_of(step) * PANEL;
    let zero = E::from_f32(0.0);
    let to = &mut scratch[..panels * panel_len];
    for (p, to) in to.chunks_exact_mut(panel_len).enumerate() {
        for (i, to) in to.iter_mut().enumerate() {
            let (lane, n) = (i / step % PANEL, i / (step * PANEL) * step + i % step);
            let col = (first + p) * PANEL + lane;
            let at = n / PANEL * w.panel() + (col / step * PANEL + n % PANEL) * step + col % step;
            *to = if col < k_padded { w.data[at] } else { zero };
        }
    }
    to
}
