//! The rule, row by row. Columns of a state do not depend on each other: a task owns some columns of a segment and
//! head, and keeps them in the first cache.
//!
//! Sums over dk have four chains, of elements 4 i, 4 i + 1, .., which are added as (0 + 1) + (2 + 3).

#![allow(clippy::needless_range_loop)] // Indices run over several arrays, which stay in registers.

use super::super::lanes::{LANES, Lanes, Simd, by_dtype, simd_fn};
use super::super::{CpuDevice, Shared};
use super::shared::{COLUMNS, Stay, Stays, check_rows, exp_of, rows_of};
use plimsoll_device::{DELTA_HEAD_MAX, DeltaHeads, DeltaRule, STATE_CHUNK, edges};
use std::mem::MaybeUninit;

pub(crate) fn forward(dev: &CpuDevice, args: DeltaRule<'_>) {
    let DeltaRule { heads, qkv, gates, places, states, out, rest } = args;
    let rows = rows_of(&heads, qkv, heads.conv_width());
    let (h, width) = (heads.value_heads, heads.value_width());
    check_rows(rows, [("gates", gates, 2 * h), ("out", out, width), ("rest", rest.unwrap_or(out), width)]);
    let all = Stays::new(dev, places, rows);
    assert_eq!(states.len() % heads.state(), 0, "whole states");
    let written = |rows| if rest.is_some() { edges(rows) } else { 1 };
    all.check_places(states.len() / heads.state(), |segment| written(segment.rows));
    assert!(rest.is_none() || all.iter().all(|stay| stay.to.is_some()), "states of all chunks have places");
    by_dtype!(qkv, T => {
        let call = Call::<T> {
            heads,
            qkv: dev.read(qkv),
            gates: dev.read(gates),
            states: dev.write(states),
            out: dev.write(out),
            rest: rest.map(|rest| dev.write(rest)),
        };
        let blocks = heads.value_dim.div_ceil(COLUMNS);
        for &wave in all.waves() {
            dev.pool().run(all.len() * h * blocks, &|task, _thread| {
                let stay = all.at(task / (h * blocks));
                if stay.is_child() == wave {
                    walk::<T>(dev.isa(), &call, &stay, task / blocks % h, task % blocks * COLUMNS);
                }
            });
        }
    });
}

struct Call<'a, T> {
    heads: DeltaHeads,
    qkv: &'a [T],
    gates: &'a [f32],
    states: Shared<'a, f32>,
    out: Shared<'a, T>,
    rest: Option<Shared<'a, f32>>,
}

/// Columns of a state in use: up to `COLUMNS` of each of dk rows.
#[repr(align(64))]
pub(super) struct Space(MaybeUninit<[f32; DELTA_HEAD_MAX * COLUMNS]>);

impl Space {
    pub(super) fn new() -> Space {
        Space(MaybeUninit::uninit())
    }

    /// Returns the columns, `width` of them.
    pub(super) fn block(&mut self, width: usize) -> Block {
        Block { first: self.0.as_mut_ptr().cast(), stride: width }
    }
}

/// Some columns of a state: row i begins at `first + i * stride`.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) first: *mut f32,
    pub(super) stride: usize,
}

impl Block {
    /// Returns columns of a head's state at a place, from `column` on.
    pub(super) fn at(
        states: &Shared<'_, f32>,
        heads: &DeltaHeads,
        place: usize,
        head: usize,
        column: usize,
    ) -> Block {
        let dv = heads.value_dim;
        let first = place * heads.state() + head * heads.key_dim * dv + column;
        assert!(first + heads.key_dim * dv - column <= states.len(), "place {place}");
        // SAFETY: inside the buffer by the assertion.
        Block { first: unsafe { states.as_ptr().add(first) }, stride: dv }
    }

    /// # Safety
    /// `rows` rows of `W` vectors can be written, and no other task uses them.
    #[inline(always)]
    pub(super) unsafe fn clear<S: Simd, const W: usize>(self, s: S, rows: usize) {
        for i in 0..rows {
            for w in 0..W {
                // SAFETY: the caller promises row i < rows, of W vectors.
                unsafe { s.store(self.first.add(i * self.stride + w * LANES), s.splat(0.0)) };
            }
        }
    }

    /// # Safety
    /// `rows` rows of `W` vectors can be read here and written at `to`, which may be these.
    #[inline(always)]
    pub(super) unsafe fn copy<S: Simd, const W: usize>(self, s: S, rows: usize, to: Block) {
        for i in 0..rows {
            for w in 0..W {
                // SAFETY: the caller promises row i < rows of both, of W vectors.
                unsafe {
                    let x = s.load(self.first.add(i * self.stride + w * LANES));
                    s.store(to.first.add(i * to.stride + w * LANES), x);
                }
            }
        }
    }

    /// # Safety
    /// `rows` rows of `W` vectors can be read here and written at `to`, which are not these.
    #[inline(always)]
    pub(super) unsafe fn add_to<S: Simd, const W: usize>(self, s: S, rows: usize, to: Block) {
        for i in 0..rows {
            for w in 0..W {
                // SAFETY: the caller promises row i < rows of both, of W vectors.
                unsafe {
                    let to = to.first.add(i * to.stride + w * LANES);
                    let x = s.load(self.first.add(i * self.stride + w * LANES));
                    s.store(to, s.add(s.load(to), x));
                }
            }
        }
    }

    /// Returns the sums over rows i of this[i] x[i].
    ///
    /// # Safety
    /// As many rows as `x` has, a multiple of 4, of `W` vectors, can be read.
    #[inline(always)]
    pub(super) unsafe fn times<S: Simd, const W: usize>(self, s: S, x: &[f32]) -> [S::F; W] {
        let mut sums = [[s.splat(0.0); W]; 4];
        for i in (0..x.len()).step_by(4) {
            for j in 0..4 {
                let x = s.splat(x[i + j]);
                for w in 0..W {
                    // SAFETY: the caller promises row i + j, of W vectors.
                    let here = unsafe { s.load(self.first.add((i + j) * self.stride + w * LANES)) };
                    sums[j][w] = s.fma(here, x, sums[j][w]);
                }
            }
        }
        four(s, sums)
    }
}

/// Returns (0 + 1) + (2 + 3).
#[inline(always)]
fn four<S: Simd, const W: usize>(s: S, sums: [[S::F; W]; 4]) -> [S::F; W] {
    let mut out = sums[0];
    for w in 0..W {
        out[w] = s.add(s.add(sums[0][w], sums[1][w]), s.add(sums[2][w], sums[3][w]));
    }
    out
}

/// Iterates over the columns of a task, as many at a time as the registers hold: the width changes no bit.
macro_rules! by_width {
    ($S:ident, $T:ident, ($s:expr, $call:expr, $stay:expr, $head:expr, $column:expr)) => {{
        let (mut space, mut at) = (Space::new(), $column);
        let end = (at + COLUMNS).min($call.heads.value_dim);
        while at < end {
            let left = if $S::ACCUMULATORS < 16 { 1 } else { (end - at) / LANES };
            at += LANES
                * match left {
                    1 => walk_columns::<$S, $T, 1>($s, $call, $stay, $head, at, &mut space),
                    2 | 3 => walk_columns::<$S, $T, 2>($s, $call, $stay, $head, at, &mut space),
                    _ => walk_columns::<$S, $T, 4>($s, $call, $stay, $head, at, &mut space),
                };
        }
    }};
}
pub(super) use by_width;

simd_fn! {
    /// Computes the rows of a segment, for the columns of a head's state from `column` on.
    fn walk[T: Lanes](s: S, call: &Call<'_, T>, stay: &Stay, head: usize, column: usize) {
        by_width!(S, T, (s, call, stay, head, column));
    }
}

/// Computes the rows of a segment, for W vectors of columns. Returns W.
#[inline(always)]
fn walk_columns<S: Simd, T: Lanes, const W: usize>(
    s: S,
    call: &Call<'_, T>,
    stay: &Stay,
    head: usize,
    column: usize,
    space: &mut Space,
) -> usize {
    let (heads, rows) = (&call.heads, stay.segment.rows);
    let (keys, own) = (heads.key_dim, space.block(W * LANES));
    let place = |place: usize| Block::at(&call.states, heads, place, head, column);
    let keeps_all = call.rest.is_some();
    // SAFETY: blocks have dk rows of W vectors; no other task has these columns of this head in the places that the
    // segment writes, nor writes the one that it begins with: a parent was computed in the wave before.
    unsafe {
        let mut from = match stay.from {
            Some(from) => place(from),
            None => {
                own.clear::<S, W>(s, keys);
                own
            }
        };
        if let Some(to) = stay.to.filter(|_| keeps_all) {
            from.copy::<S, W>(s, keys, place(to));
        }
        for t in 0..rows {
            let done = t + 1;
            let is_edge = done == rows || (keeps_all && done % STATE_CHUNK == 0);
            let edge = if keeps_all { done.div_ceil(STATE_CHUNK) } else { 0 };
            let to = match stay.to {
                Some(to) if is_edge => place(to + edge),
                _ => own,
            };
            row::<S, T, W>(s, call, stay.segment.first_row + t, head, column, from, to);
            from = to;
        }
    }
    W
}

/// Computes one row: reads the state at `from`, and writes the next to `to`.
///
/// # Safety
/// Both have dk rows of W vectors, which no other task writes; they are the same or apart.
#[inline(always)]
unsafe fn row<S: Simd, T: Lanes, const W: usize>(
    s: S,
    call: &Call<'_, T>,
    m: usize,
    head: usize,
    column: usize,
    from: Block,
    to: Block,
) {
    let heads = &call.heads;
    let (h, keys) = (heads.value_heads, heads.key_dim);
    let (q, k) = (&mut [0.0; DELTA_HEAD_MAX], &mut [0.0; DELTA_HEAD_MAX]);
    let (q, k) = queries_and_keys(s, heads, &call.qkv[m * heads.conv_width()..], head, q, k);
    let gates = &call.gates[m * 2 * h..][..2 * h];
    let (decay, beta) = (exp_of(s, gates[head]), s.splat(gates[h + head]));
    let v = &call.qkv[m * heads.conv_width() + 2 * heads.key_width() + head * heads.value_dim + column..];
    let (v, at) = (&v[..W * LANES], m * heads.value_width() + head * heads.value_dim + column);
    // SAFETY: the caller promises dk rows of both blocks; row m's elements of this head's columns are this task's.
    unsafe {
        let read = from.times::<S, W>(s, k);
        let mut written = read;
        for w in 0..W {
            let v = T::load_at(s, v.as_ptr().add(w * LANES));
            let rest = s.fma(s.splat(-decay), read[w], v);
            if let Some(to) = &call.rest {
                f32::store_at(s, to.range(at + w * LANES, LANES).as_mut_ptr(), rest);
            }
            written[w] = s.mul(beta, rest);
        }
        let (mut sums, decay) = ([[s.splat(0.0); W]; 4], s.splat(decay));
        for i in (0..keys).step_by(4) {
            for j in 0..4 {
                let (q, k) = (s.splat(q[i + j]), s.splat(k[i + j]));
                for w in 0..W {
                    let old = s.load(from.first.add((i + j) * from.stride + w * LANES));
                    let new = s.fma(k, written[w], s.mul(decay, old));
                    s.store(to.first.add((i + j) * to.stride + w * LANES), new);
                    sums[j][w] = s.fma(new, q, sums[j][w]);
                }
            }
        }
        let sums = four(s, sums);
        for w in 0..W {
            T::store_at(s, call.out.range(at + w * LANES, LANES).as_mut_ptr(), sums[w]);
        }
    }
}

/// Widens the q and k that a value head reads, from a row of `qkv`.
#[inline(always)]
pub(super) fn queries_and_keys<'f, S: Simd, T: Lanes>(
    s: S,
    heads: &DeltaHeads,
    qkv: &[T],
    head: usize,
    q: &'f mut [f32; DELTA_HEAD_MAX],
    k: &'f mut [f32; DELTA_HEAD_MAX],
) -> (&'f [f32], &'f [f32]) {
    let keys = heads.key_dim;
    let first = head / (heads.value_heads / heads.key_heads) * keys;
    widen(s, &qkv[first..][..keys], q);
    widen(s, &qkv[heads.key_width() + first..][..keys], k);
    (&q[..keys], &k[..keys])
}

#[inline(always)]
pub(super) fn widen<S: Simd, T: Lanes>(s: S, x: &[T], out: &mut [f32]) {
    for (x, out) in x.as_chunks::<LANES>().0.iter().zip(out.as_chunks_mut::<LANES>().0) {
        f32::store(s, out, T::load(s, x));
    }
}
