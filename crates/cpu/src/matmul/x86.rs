//! The kernel of AVX-512: the dot product of pairs and fused multiply-adds.

#![allow(clippy::needless_range_loop)] // Accumulators are arrays of registers, indexed alike by row and panel.

use super::tile::{ALayout, Operands, PREFETCH_BYTES, Tile, block_single, strides};
use crate::lanes::{Avx512, LANES};
use half::bf16;
use plimsoll_device::PANEL;
use std::arch::x86_64::*;

/// Calls `$f::<R, P>` for run-time numbers of rows and panels.
macro_rules! by_shape {
    ($f:ident::<$packed:literal>, $rows:expr, $panels:expr, $args:tt) => {
        match ($rows, $panels) {
            (8, 3) => $f::<8, 3, $packed> $args, (8, 2) => $f::<8, 2, $packed> $args, (8, 1) => $f::<8, 1, $packed> $args,
            (7, 3) => $f::<7, 3, $packed> $args, (7, 2) => $f::<7, 2, $packed> $args, (7, 1) => $f::<7, 1, $packed> $args,
            (6, 3) => $f::<6, 3, $packed> $args, (6, 2) => $f::<6, 2, $packed> $args, (6, 1) => $f::<6, 1, $packed> $args,
            (5, 3) => $f::<5, 3, $packed> $args, (5, 2) => $f::<5, 2, $packed> $args, (5, 1) => $f::<5, 1, $packed> $args,
            (4, 3) => $f::<4, 3, $packed> $args, (4, 2) => $f::<4, 2, $packed> $args, (4, 1) => $f::<4, 1, $packed> $args,
            (3, 3) => $f::<3, 3, $packed> $args, (3, 2) => $f::<3, 2, $packed> $args, (3, 1) => $f::<3, 1, $packed> $args,
            (2, 3) => $f::<2, 3, $packed> $args, (2, 2) => $f::<2, 2, $packed> $args, (2, 1) => $f::<2, 1, $packed> $args,
            (1, 3) => $f::<1, 3, $packed> $args, (1, 2) => $f::<1, 2, $packed> $args, (1, 1) => $f::<1, 1, $packed> $args,
            (rows, panels) => unreachable!("a tile of {rows} rows and {panels} panels"),
        }
    };
}

/// Computes the tile of pairs.
///
/// # Safety
/// Requires what `Operand::tile` requires, and AVX512-BF16.
#[inline]
pub(super) unsafe fn pairs_avx512(rows: usize, panels: usize, ops: &Operands<bf16>, out: &mut Tile) {
    // SAFETY: the caller promises the instructions and operands that reach over rows and panels.
    unsafe {
        match ops.a_layout {
            ALayout::Rows(_) => by_shape!(dot_avx512::<false>, rows, panels, (ops, out)),
            ALayout::Packed => by_shape!(dot_avx512::<true>, rows, panels, (ops, out)),
        }
    }
}

/// Computes the tile of single elements.
///
/// # Safety
/// Requires what `Operand::tile` requires, and AVX-512.
#[inline]
pub(super) unsafe fn single_avx512(rows: usize, panels: usize, ops: &Operands<f32>, out: &mut Tile) {
    // SAFETY: the caller promises the instructions and operands that reach over rows and panels.
    unsafe {
        match ops.a_layout {
            ALayout::Rows(_) => by_shape!(fma_avx512::<false>, rows, panels, (ops, out)),
            ALayout::Packed => by_shape!(fma_avx512::<true>, rows, panels, (ops, out)),
        }
    }
}

/// # Safety
/// Requires what `Operand::tile` requires.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")]
unsafe fn dot_avx512<const R: usize, const P: usize, const PACKED: bool>(
    ops: &Operands<bf16>,
    out: &mut Tile,
) {
    let (row, step) = strides::<bf16, 2, PACKED>(ops);
    let (mut a, mut b) = (ops.a, ops.b);
    let mut acc = [[_mm512_setzero_ps(); P]; R];
    // SAFETY: the caller promises operands that reach over R rows, P panels and `len`; a prefetch may point anywhere.
    unsafe {
        for _ in 0..ops.len / 2 {
            let w: [__m512bh; P] =
                std::array::from_fn(|p| load_pairs_avx512(b.wrapping_add(p * ops.b_panel)));
            for r in 0..R {
                let x = pair_avx512(a.add(r * row).cast::<i32>().read_unaligned());
                for p in 0..P {
                    acc[r][p] = _mm512_dpbf16_ps(acc[r][p], x, w[p]);
                }
            }
            a = a.wrapping_add(step);
            b = b.wrapping_add(2 * PANEL);
        }
        if ops.len % 2 == 1 {
            let w: [__m512bh; P] =
                std::array::from_fn(|p| load_pairs_avx512(b.wrapping_add(p * ops.b_panel)));
            for r in 0..R {
                // The last element of a row has no partner: what follows it belongs to another row.
                let x = pair_avx512(i32::from((*a.add(r * row)).to_bits()));
                for p in 0..P {
                    acc[r][p] = _mm512_dpbf16_ps(acc[r][p], x, w[p]);
                }
            }
        }
        for r in 0..R {
            for p in 0..P {
                _mm512_store_ps(out.rows[r].as_mut_ptr().add(p * LANES), acc[r][p]);
            }
        }
    }
}

/// # Safety
/// `p` points to 32 readable bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn load_pairs_avx512(p: *const bf16) -> __m512bh {
    // SAFETY: the caller promises 32 readable bf16; a prefetch may point anywhere; both types are 64 bytes of any bits.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(p.cast::<i8>().wrapping_add(PREFETCH_BYTES));
        std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(p.cast()))
    }
}

/// Returns a pair in all lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn pair_avx512(pair: i32) -> __m512bh {
    // SAFETY: both types are 64 bytes of any bits.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(pair)) }
}

/// # Safety
/// Requires what `Operand::tile` requires.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
unsafe fn fma_avx512<const R: usize, const P: usize, const PACKED: bool>(
    ops: &Operands<f32>,
    out: &mut Tile,
) {
    // SAFETY: this function runs only where its features are; the caller promises operands that reach over the tile.
    unsafe { block_single::<_, R, P, PACKED>(Avx512::new(), ops, out, 0, 0) }
}
