//! The kernel of AVX2: up to six rows by a panel, or up to two rows by three panels, so that twelve sums of 8 lanes,
//! a vector of A and two of B fill 16 registers.
//!
//! Of bf16, A is widened once for all panels of a tile, B in registers: shuffles of a broadcast pair would take as long
//! as the products. Even elements of B are shuffled into place, not shifted: shifts use the ports of the products. A
//! chain continues through the tile from one part of K to the next, so its order does not change.

#![allow(clippy::needless_range_loop)] // Accumulators are arrays of registers, indexed alike by row and panel.

use super::tile::{ALayout, Operands, Tile, block_single, prefetch};
use crate::lanes::{Avx2, LANES};
use half::bf16;
use plimsoll_device::PANEL;
use std::arch::x86_64::*;

/// Rows of a tile: all lanes of a packed panel.
pub(super) const ROWS: usize = PANEL;
/// Elements of K that are widened at once: 16 rows are 16 KiB and the part of a panel 8 KiB, together less than any
/// first-level cache.
const PART: usize = 256;

/// Calls `$f::<R, P, packed>` for rows from `$r` and panels from `$p`: one or two rows with all panels at once, more
/// rows in parts of at most six, panel by panel, so that a part of a panel stays in the first-level cache.
macro_rules! blocks {
    ($rows:expr, $panels:expr, $packed:expr, |$r:ident, $p:ident| $f:ident $args:tt) => {{
        let wide = if $rows <= 2 { $panels } else { 1 };
        for $p in (0..$panels).step_by(wide) {
            let mut $r = 0;
            while $r < $rows {
                // Parts of equal size: four rows and four, not six and two.
                let here = ($rows - $r).div_ceil(($rows - $r).div_ceil(6));
                match (here, wide, $packed) {
                    (1, 3, false) => $f::<1, 3, false> $args, (1, 3, true) => $f::<1, 3, true> $args,
                    (1, 2, false) => $f::<1, 2, false> $args, (1, 2, true) => $f::<1, 2, true> $args,
                    (1, _, false) => $f::<1, 1, false> $args, (1, _, true) => $f::<1, 1, true> $args,
                    (2, 3, false) => $f::<2, 3, false> $args, (2, 3, true) => $f::<2, 3, true> $args,
                    (2, 2, false) => $f::<2, 2, false> $args, (2, 2, true) => $f::<2, 2, true> $args,
                    (2, _, false) => $f::<2, 1, false> $args, (2, _, true) => $f::<2, 1, true> $args,
                    (3, _, false) => $f::<3, 1, false> $args, (3, _, true) => $f::<3, 1, true> $args,
                    (4, _, false) => $f::<4, 1, false> $args, (4, _, true) => $f::<4, 1, true> $args,
                    (5, _, false) => $f::<5, 1, false> $args, (5, _, true) => $f::<5, 1, true> $args,
                    (_, _, false) => $f::<6, 1, false> $args, (_, _, true) => $f::<6, 1, true> $args,
                }
                $r += here;
            }
        }
    }};
}

/// Computes the tile of single elements.
///
/// # Safety
/// Requires what `Operand::tile` requires.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn single(rows: usize, panels: usize, ops: &Operands<f32>, out: &mut Tile) {
    let packed = ops.a_layout == ALayout::Packed;
    // SAFETY: the caller promises operands that reach over `rows` and `panels`; r and p stay below.
    unsafe { blocks!(rows, panels, packed, |r, p| block_f32(ops, out, r, p)) }
}

/// # Safety
/// Requires what `Operand::tile` requires.
#[target_feature(enable = "avx2,fma")]
unsafe fn block_f32<const R: usize, const P: usize, const PACKED: bool>(
    ops: &Operands<f32>,
    out: &mut Tile,
    r: usize,
    p: usize,
) {
    // SAFETY: this function runs only where its features are; the caller promises operands that reach over the tile.
    unsafe { block_single::<_, R, P, PACKED>(Avx2::new(), ops, out, r, p) }
}

/// A part of A, widened: `[ROWS][PART]`, or `[PART][ROWS]` where A is packed.
type Wide = [f32; ROWS * PART];

/// Computes the tile of pairs.
///
/// # Safety
/// Requires what `Operand::tile` requires.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn pairs(rows: usize, panels: usize, ops: &Operands<bf16>, out: &mut Tile) {
    let packed = ops.a_layout == ALayout::Packed;
    let mut wide = std::mem::MaybeUninit::<Wide>::uninit();
    let a = wide.as_mut_ptr().cast::<f32>();
    for row in &mut out.rows[..rows] {
        row[..panels * PANEL].fill(0.0);
    }
    for first in (0..ops.len).step_by(PART) {
        let part = Part {
            a,
            len: PART.min(ops.len - first),
            b: ops.b.wrapping_add(first * PANEL),
            b_panel: ops.b_panel,
        };
        // SAFETY: the caller promises operands that reach over `rows`, `panels` and `len`; r and p stay below, and
        // what is read of `wide` was written by `widen`.
        unsafe {
            widen(rows, ops, first, &part);
            blocks!(rows, panels, packed, |r, p| block_pairs(&part, out, r, p));
        }
    }
}

/// A part of K.
struct Part {
    a: *mut f32,
    len: usize,
    b: *const bf16,
    b_panel: usize,
}

/// Widens elements `first..first + part.len` of A's rows.
///
/// # Safety
/// A reaches over `rows` and these elements; `part.a` has room for `ROWS` by `PART`.
#[target_feature(enable = "avx2,fma")]
unsafe fn widen(rows: usize, ops: &Operands<bf16>, first: usize, part: &Part) {
    let (high, zero) = (_mm256_set1_epi32(0xffff_0000_u32 as i32), _mm256_setzero_si256());
    // SAFETY: the caller promises elements and room; packed A is padded to pairs, with 16 lanes from its panel's start.
    unsafe {
        match ops.a_layout {
            ALayout::Rows(stride) => {
                for r in 0..rows {
                    let (from, to) = (ops.a.add(r * stride + first), part.a.add(r * PART));
                    let whole = part.len / 16 * 16;
                    for i in (0..whole).step_by(16) {
                        // Quarters 0, 2, 1, 3: what is then unpacked within halves of a register is in order.
                        let x = _mm256_loadu_si256(from.add(i).cast());
                        let x = _mm256_permute4x64_epi64::<0b11_01_10_00>(x);
                        _mm256_storeu_si256(to.add(i).cast(), _mm256_unpacklo_epi16(zero, x));
                        _mm256_storeu_si256(to.add(i + 8).cast(), _mm256_unpackhi_epi16(zero, x));
                    }
                    for i in whole..part.len {
                        *to.add(i) = crate::Real::to_f32(*from.add(i));
                    }
                }
            }
            ALayout::Packed => {
                for pair in 0..part.len.div_ceil(2) {
                    let from = ops.a.add((first / 2 + pair) * 2 * PANEL).cast::<__m256i>();
                    let to = part.a.add(2 * pair * ROWS);
                    for half in 0..rows.div_ceil(8) {
                        let x = _mm256_loadu_si256(from.add(half));
                        _mm256_storeu_si256(to.add(half * 8).cast(), _mm256_slli_epi32::<16>(x));
                        _mm256_storeu_si256(to.add(ROWS + half * 8).cast(), _mm256_and_si256(x, high));
                    }
                }
            }
        }
    }
}

/// Adds a part of K to the sums of R rows and P panels.
///
/// # Safety
/// `widen` filled the part's rows; B reaches over P panels and the part.
#[target_feature(enable = "avx2,fma")]
unsafe fn block_pairs<const R: usize, const P: usize, const PACKED: bool>(
    part: &Part,
    out: &mut Tile,
    r0: usize,
    p0: usize,
) {
    let (row, step) = if PACKED { (1, ROWS) } else { (PART, 1) };
    let mut a = part.a.cast_const().wrapping_add(r0 * row);
    let mut b = part.b.wrapping_add(p0 * part.b_panel);
    let mut acc = [[[_mm256_setzero_ps(); 2]; P]; R];
    // SAFETY: the caller promises operands of that reach; a prefetch may point anywhere.
    unsafe {
        // `volatile`: a mask that the compiler knows becomes a shift.
        let up = (&raw const UP).cast::<Unaligned>().read_volatile().0;
        for r in 0..R {
            for p in 0..P {
                let from = out.rows[r0 + r].as_ptr().add((p0 + p) * LANES);
                acc[r][p] = [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))];
            }
        }
        for i in 0..part.len.div_ceil(2) {
            let at = |p: usize| b.wrapping_add(p * part.b_panel);
            (0..P).for_each(|p| prefetch(at(p)));
            step_of::<R, P>(a, row, &even::<P>(b, part.b_panel, up), &mut acc);
            // The last element of an odd number has no partner.
            if 2 * i + 1 == part.len {
                break;
            }
            step_of::<R, P>(a.wrapping_add(step), row, &odd::<P>(b, part.b_panel), &mut acc);
            a = a.wrapping_add(2 * step);
            b = b.wrapping_add(2 * PANEL);
        }
        for r in 0..R {
            for p in 0..P {
                let to = out.rows[r0 + r].as_mut_ptr().add((p0 + p) * LANES);
                _mm256_storeu_ps(to, acc[r][p][0]);
                _mm256_storeu_ps(to.add(8), acc[r][p][1]);
            }
        }
    }
}

/// The shuffle that puts the lower half of 32 bits into the upper one, and zeros into the lower.
static UP: [[u16; 8]; 2] = [[0x8080, 0x0100, 0x8080, 0x0504, 0x8080, 0x0908, 0x8080, 0x0d0c]; 2];

/// Returns the even elements of pairs of P panels, widened. `up`: the shuffle `UP`.
///
/// # Safety
/// B reaches over P panels.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn even<const P: usize>(b: *const bf16, b_panel: usize, up: __m256i) -> [[__m256; 2]; P] {
    let mut w = [[_mm256_setzero_ps(); 2]; P];
    for p in 0..P {
        for h in 0..2 {
            // SAFETY: the caller promises P panels.
            let x = unsafe { _mm256_loadu_si256(b.wrapping_add(p * b_panel + 16 * h).cast()) };
            w[p][h] = _mm256_castsi256_ps(_mm256_shuffle_epi8(x, up));
        }
    }
    w
}

/// Returns the odd elements of pairs of P panels, widened.
///
/// # Safety
/// B reaches over P panels.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn odd<const P: usize>(b: *const bf16, b_panel: usize) -> [[__m256; 2]; P] {
    let mut w = [[_mm256_setzero_ps(); 2]; P];
    let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
    for p in 0..P {
        for h in 0..2 {
            // Read again, which `volatile` enforces: kept since `even`, the pairs would push sums out of registers.
            // SAFETY: the caller promises P panels.
            let x = unsafe { b.wrapping_add(p * b_panel + 16 * h).cast::<Unaligned>().read_volatile().0 };
            w[p][h] = _mm256_castsi256_ps(_mm256_and_si256(x, high));
        }
    }
    w
}

/// Eight pairs at any address of a bf16.
#[derive(Clone, Copy)]
#[repr(Rust, packed(2))]
struct Unaligned(__m256i);

/// Adds one product to each sum.
///
/// # Safety
/// `a` is readable at R rows.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn step_of<const R: usize, const P: usize>(
    a: *const f32,
    row: usize,
    w: &[[__m256; 2]; P],
    acc: &mut [[[__m256; 2]; P]; R],
) {
    for r in 0..R {
        // SAFETY: the caller promises R rows.
        let x = unsafe { _mm256_set1_ps(*a.add(r * row)) };
        for p in 0..P {
            for h in 0..2 {
                acc[r][p][h] = _mm256_fmadd_ps(x, w[p][h], acc[r][p][h]);
            }
        }
    }
}
