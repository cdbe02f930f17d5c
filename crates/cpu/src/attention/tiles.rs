//! Register tiles of attention: products of a few queries with blocks of keys, and sums of a few rows of values.
//!
//! Each output is one chain of multiply-adds, in ascending element for scores and in ascending key for sums, so its
//! bits depend neither on the tile's shape nor on the other outputs of the tile.

#![allow(clippy::needless_range_loop)] // Indices run over several arrays, which stay in registers.

use super::super::lanes::{LANES, Lanes, Simd};
use super::super::rope::HEAD_DIM_MAX;

/// Elements from one query's row of scratch to the next; no power of two, so that rows use different sets of the cache.
pub(crate) const STRIDE: usize = HEAD_DIM_MAX + LANES;

/// Returns the sums over t of a[q][t] k[b][t][16 keys].
///
/// # Safety
/// `a` has Q rows of `STRIDE`, of which `d` are set; each `k` has `d` vectors.
#[inline(always)]
pub(crate) unsafe fn dot_tile<S: Simd, T: Lanes, const Q: usize, const B: usize>(
    s: S,
    d: usize,
    a: *const f32,
    k: [*const T; B],
) -> [[S::F; B]; Q] {
    let mut sums = [[s.splat(0.0); B]; Q];
    for t in 0..d {
        let mut keys = [s.splat(0.0); B];
        for b in 0..B {
            // SAFETY: the caller promises `d` vectors at each `k`, and t < d.
            keys[b] = unsafe { T::load_at(s, k[b].add(t * LANES)) };
        }
        for q in 0..Q {
            // SAFETY: the caller promises Q rows of `d` elements at `a`; q < Q and t < d.
            let x = s.splat(unsafe { *a.add(q * STRIDE + t) });
            for b in 0..B {
                sums[q][b] = s.fma(keys[b], x, sums[q][b]);
            }
        }
    }
    sums
}

/// Adds weight[o][i] rows[i][w] to sums[o][w], i ascending below `count`.
///
/// # Safety
/// `weight` is readable at `o * weight_out + i * weight_in`; `rows` has `count` rows, `stride` apart, of W vectors.
#[inline(always)]
pub(crate) unsafe fn sum_tile<S: Simd, T: Lanes, const O: usize, const W: usize>(
    s: S,
    sums: &mut [[S::F; W]; O],
    weight: *const f32,
    (weight_out, weight_in): (usize, usize),
    rows: *const T,
    stride: usize,
    count: usize,
) {
    for i in 0..count {
        let mut row = [s.splat(0.0); W];
        for w in 0..W {
            // SAFETY: the caller promises `count` rows at `rows`, and i < count.
            row[w] = unsafe { T::load_at(s, rows.add(i * stride + w * LANES)) };
        }
        for o in 0..O {
            // SAFETY: the caller promises a weight for each output and row; o < O and i < count.
            let x = s.splat(unsafe { *weight.add(o * weight_out + i * weight_in) });
            for w in 0..W {
                sums[o][w] = s.fma(x, row[w], sums[o][w]);
            }
        }
    }
}

/// Returns the largest of `sizes` (descending, ending in 1) that `left` outputs fill.
#[inline(always)]
pub(crate) fn tile_of(sizes: &[usize], left: usize) -> usize {
    sizes.iter().copied().find(|&size| size <= left).expect("tiles end in 1")
}
