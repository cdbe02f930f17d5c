//! The kernel: a tile of 8, 16 or 32 rows by 3 panels, reduced over the whole of its inputs in one chain per output.
//!
//! A chain starts at zero and adds products in ascending order: one by one for f32, in pairs for bf16, 32 at once on
//! `amx`. So the bits of an output depend on its row of A, its lane of B and the instruction path, not on the tile that
//! computes it.

#![allow(clippy::needless_range_loop)] // Accumulators are arrays of registers, indexed alike by row and panel.

use crate::Real;
use crate::lanes::{LANES, Scalar, Simd};
use half::bf16;
use plimsoll_device::PANEL;

/// Most rows of a tile: two panels of packed columns.
pub(super) const TILE_ROWS: usize = 2 * PANEL;
/// Panels of a tile: 24 accumulators of 32 registers.
pub(super) const TILE_PANELS: usize = 3;
pub(super) const TILE_WIDTH: usize = TILE_PANELS * PANEL;
/// Bytes between a load of B and its prefetch: measured on Zen 4, where weights come from memory.
pub(super) const PREFETCH_BYTES: usize = 1536;

#[repr(C, align(64))] // The rows come first, each aligned to a vector.
pub(crate) struct Tile {
    pub(super) rows: [[f32; TILE_WIDTH]; TILE_ROWS],
    /// The shapes that the thread's tile registers have, on the path that has some.
    #[cfg(target_arch = "x86_64")]
    pub(super) shapes: super::shapes::Shapes,
}

impl Tile {
    pub(super) fn new() -> Tile {
        Tile {
            rows: [[0.0; TILE_WIDTH]; TILE_ROWS],
            #[cfg(target_arch = "x86_64")]
            shapes: super::shapes::Shapes::default(),
        }
    }
}

/// The layout of the rows of A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ALayout {
    /// Row-major; the number is the stride of rows in elements.
    Rows(usize),
    /// Columns of packed panels: rows of the tile are neighbouring lanes, or on `amx` rows of parts of 32 elements.
    Packed,
}

/// Operands of a tile: `a` [rows, len] and panels of `b`, each `[len][16]` or `[len/2][16][2]`.
#[derive(Clone, Copy)]
pub(crate) struct Operands<E> {
    pub(super) a: *const E,
    pub(super) a_layout: ALayout,
    pub(super) b: *const E,
    /// Elements between panels of B.
    pub(super) b_panel: usize,
    /// Elements reduced over. Packed A is padded to an even number with zeros; rows are not.
    pub(super) len: usize,
}

/// Returns the strides of A's rows and of steps, in elements.
#[inline(always)]
pub(super) fn strides<E, const STEP: usize, const PACKED: bool>(ops: &Operands<E>) -> (usize, usize) {
    match ops.a_layout {
        ALayout::Rows(stride) if !PACKED => (stride, STEP),
        _ => (STEP, PANEL * STEP),
    }
}

/// Prefetches the cache line `PREFETCH_BYTES` after `p`, which may point anywhere.
#[inline(always)]
pub(super) fn prefetch<T>(p: *const T) {
    // SAFETY: a prefetch reads nothing that the program sees.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(p.cast::<i8>().wrapping_add(PREFETCH_BYTES));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Computes four rows by one panel at a time: what 16 registers of 8 lanes hold.
///
/// # Safety
/// Requires what `Operand::tile` requires.
#[inline(always)]
pub(super) unsafe fn single(rows: usize, panels: usize, ops: &Operands<f32>, out: &mut Tile) {
    let packed = ops.a_layout == ALayout::Packed;
    for p in 0..panels {
        let mut r = 0;
        // SAFETY: the caller promises operands that reach over `rows` and `panels`; r and p stay below.
        unsafe {
            while r < rows {
                match (rows - r >= 4, packed) {
                    (true, false) => block_single::<_, 4, 1, false>(Scalar, ops, out, r, p),
                    (true, true) => block_single::<_, 4, 1, true>(Scalar, ops, out, r, p),
                    (false, false) => block_single::<_, 1, 1, false>(Scalar, ops, out, r, p),
                    (false, true) => block_single::<_, 1, 1, true>(Scalar, ops, out, r, p),
                }
                r += if rows - r >= 4 { 4 } else { 1 };
            }
        }
    }
}

/// # Safety
/// Requires what `Operand::tile` requires.
#[inline(always)]
pub(super) unsafe fn block_single<S: Simd, const R: usize, const P: usize, const PACKED: bool>(
    s: S,
    ops: &Operands<f32>,
    out: &mut Tile,
    r0: usize,
    p0: usize,
) {
    let (row, step) = strides::<f32, 1, PACKED>(ops);
    let (mut a, mut b) = (ops.a.wrapping_add(r0 * row), ops.b.wrapping_add(p0 * ops.b_panel));
    let mut acc = [[s.splat(0.0); P]; R];
    // SAFETY: the caller promises operands that span the tile's rows, panels and `len`; a prefetch may point anywhere.
    unsafe {
        for _ in 0..ops.len {
            let mut w = [s.splat(0.0); P];
            for p in 0..P {
                let at = b.wrapping_add(p * ops.b_panel);
                prefetch(at);
                w[p] = s.load(at);
            }
            for r in 0..R {
                let x = s.splat(*a.add(r * row));
                for p in 0..P {
                    acc[r][p] = s.fma(x, w[p], acc[r][p]);
                }
            }
            a = a.wrapping_add(step);
            b = b.wrapping_add(PANEL);
        }
        for r in 0..R {
            for p in 0..P {
                s.store(out.rows[r0 + r].as_mut_ptr().add((p0 + p) * LANES), acc[r][p]);
            }
        }
    }
}

/// Loads sixteen pairs, widened: the even elements and the odd ones.
///
/// # Safety
/// `p` points to 32 readable bf16.
#[inline(always)]
unsafe fn load_pairs(p: *const bf16) -> ([f32; LANES], [f32; LANES]) {
    // SAFETY: the caller promises 32 readable bf16 at `p`.
    let x = unsafe { p.cast::<[[bf16; 2]; LANES]>().read_unaligned() };
    let (mut even, mut odd) = ([0.0; LANES], [0.0; LANES]);
    for i in 0..LANES {
        (even[i], odd[i]) = (Real::to_f32(x[i][0]), Real::to_f32(x[i][1]));
    }
    (even, odd)
}

/// # Safety
/// Requires what `Operand::tile` requires.
#[inline(always)]
pub(super) unsafe fn widened(rows: usize, panels: usize, ops: &Operands<bf16>, out: &mut Tile) {
    let packed = ops.a_layout == ALayout::Packed;
    for p in 0..panels {
        let mut r = 0;
        // SAFETY: the caller promises operands that reach over `rows` and `panels`; r and p stay below.
        unsafe {
            while r < rows {
                match (rows - r >= 4, packed) {
                    (true, false) => block_widened::<4, false>(ops, out, r, p),
                    (true, true) => block_widened::<4, true>(ops, out, r, p),
                    (false, false) => block_widened::<1, false>(ops, out, r, p),
                    (false, true) => block_widened::<1, true>(ops, out, r, p),
                }
                r += if rows - r >= 4 { 4 } else { 1 };
            }
        }
    }
}

/// # Safety
/// Requires what `Operand::tile` requires.
#[inline(always)]
unsafe fn block_widened<const R: usize, const PACKED: bool>(
    ops: &Operands<bf16>,
    out: &mut Tile,
    r0: usize,
    p: usize,
) {
    let (s, (row, step)) = (Scalar, strides::<bf16, 2, PACKED>(ops));
    let (mut a, mut b) = (ops.a.wrapping_add(r0 * row), ops.b.wrapping_add(p * ops.b_panel));
    let mut acc = [s.splat(0.0); R];
    // SAFETY: the caller promises operands that reach over the tile's rows, panels and `len`.
    unsafe {
        for _ in 0..ops.len / 2 {
            let (even, odd) = load_pairs(b);
            for r in 0..R {
                let x = a.add(r * row).cast::<u32>().read_unaligned();
                acc[r] = s.fma(s.splat(f32::from_bits(x << 16)), even, acc[r]);
                acc[r] = s.fma(s.splat(f32::from_bits(x & 0xffff_0000)), odd, acc[r]);
            }
            a = a.wrapping_add(step);
            b = b.wrapping_add(2 * PANEL);
        }
        if ops.len % 2 == 1 {
            let (even, _) = load_pairs(b);
            for r in 0..R {
                acc[r] = s.fma(s.splat(Real::to_f32(*a.add(r * row))), even, acc[r]);
            }
        }
        for r in 0..R {
            s.store(out.rows[r0 + r].as_mut_ptr().add(p * LANES), acc[r]);
        }
    }
}
