//! Gradients of q, k, v and the gates of a chunk of rows, from the states at its ends and their gradients.
//!
//! With S the state before the chunk, D the gradient of the state after it, u = beta r, w = beta du, and a(s, t) the
//! product of e^g over the rows after s up to t (over all up to t where s is before the chunk):
//!
//! ```text
//! dq[t] = a(-, t) S do[t] + sum over s <= t of a(s, t) (u[s] do[t]) k[s]
//! dk[t] = a(t, end) D u[t] + sum over s >= t of a(t, s) (u[t] do[s]) q[s] - a(-, t) S w[t]
//!         - sum over s < t of a(s, t) (u[s] w[t]) k[s] - sum over s > t of a(t, s) (u[t] w[s]) k[s]
//! dg[t] = dg[t + 1] + q[t] dq[t] - v[t] dv[t], and D times the state after the chunk beyond its last row
//! ```
//!
//! Sums of g are taken over the rows between s and t alone: a difference of sums from the chunk's first row would lose
//! a small one next to a large one. Sums over dv and rows are chains; value heads of a key head are added in order.

#![allow(clippy::needless_range_loop)] // Indices run over several arrays, which stay in registers.

use super::super::attention::tiles::{sum_tile, tile_of};
use super::super::lanes::{LANES, Lanes, Simd, simd_fn};
use super::super::norm::{dot, load_any, store_any};
use super::rule::widen;
use super::shared::{Stay, Stays};
use crate::{Isa, Shared};
use plimsoll_device::{DELTA_HEAD_MAX, DeltaHeads, STATE_CHUNK};
use std::mem::MaybeUninit;
use std::ops::Range;

pub(super) struct Call<'a, T> {
    pub(super) heads: DeltaHeads,
    pub(super) all: Stays<'a>,
    pub(super) qkv: &'a [T],
    pub(super) gates: &'a [f32],
    pub(super) states: &'a [f32],
    pub(super) rest: &'a [f32],
    pub(super) dout: &'a [T],
    pub(super) d_rest: Shared<'a, f32>,
    pub(super) d_states: Shared<'a, f32>,
    pub(super) d_qkv: Shared<'a, f32>,
    pub(super) d_gates: Shared<'a, f32>,
}

/// Up to 64 rows of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    pub(super) first_row: usize,
    pub(super) rows: usize,
    /// Place of the state before it; the state after it is at the next place.
    pub(super) place: usize,
    /// True if the state before it is zero.
    pub(super) begins: bool,
}

impl<T> Call<'_, T> {
    /// Returns the chunk with that number among those of all segments.
    pub(super) fn chunk(&self, mut index: usize) -> Chunk {
        for Stay { segment, from, to } in self.all.iter() {
            let chunks = segment.rows.div_ceil(STATE_CHUNK);
            if index < chunks {
                return Chunk {
                    first_row: segment.first_row + index * STATE_CHUNK,
                    rows: STATE_CHUNK.min(segment.rows - index * STATE_CHUNK),
                    place: to.expect("states of all chunks have places") + index,
                    begins: index == 0 && from.is_none(),
                };
            }
            index -= chunks;
        }
        panic!("{index} chunks beyond the last segment")
    }
}

/// Rows of an operand that are transposed at a time: two vectors.
const PANEL: usize = 2 * LANES;
/// Elements from one row of scratch to the next.
const STRIDE: usize = DELTA_HEAD_MAX;

/// Elements of rows of scratch, and of a number for each pair of rows.
const WIDE: usize = STATE_CHUNK * STRIDE;
const PAIRS: usize = STATE_CHUNK * STATE_CHUNK;

scratch! {
    /// Working memory of a chunk and a key head: 192 KiB of stack; only what heads and rows need is touched.
    Scratch, Work {
        /// q, k, do, and dq of one value head.
        q: WIDE,
        k: WIDE,
        dout: WIDE,
        dq: WIDE,
        /// [dv][PANEL]: some rows of a state, or of r, transposed.
        panel: DELTA_HEAD_MAX * PANEL,
        /// [t][s]: a(s, t); 0 for s > t.
        decays: PAIRS,
        /// [t][s]: a(s, t) (u[s] do[t]).
        outer: PAIRS,
        /// [t][s] and [s][t]: minus a(s, t) (u[s] w[t]) for s < t; 0 for s = t.
        inner: PAIRS,
    }
}

/// Factors of each row, from its gates.
struct Gates {
    beta: [f32; STATE_CHUNK],
    /// a(-, t).
    since: [f32; STATE_CHUNK],
    /// - beta a(-, t).
    written: [f32; STATE_CHUNK],
    /// beta a(t, end).
    until: [f32; STATE_CHUNK],
}

/// Below it e^g is 0.
const UNDERFLOW: f32 = -104.0;
/// Factors that are 1.
const ONES: [f32; STATE_CHUNK] = [1.0; STATE_CHUNK];

/// Computes the gradients of one chunk, of a key head and its value heads.
pub(super) fn backward<T: Lanes>(isa: Isa, call: &Call<'_, T>, chunk: &Chunk, key_head: usize) {
    let heads = &call.heads;
    let group = heads.value_heads / heads.key_heads;
    let mut scratch = MaybeUninit::<Scratch>::uninit();
    let x = Work::new(&mut scratch);
    let (keys, c) = (heads.key_dim, heads.conv_width());
    let (q, k) = (key_head * keys, heads.key_width() + key_head * keys);
    for (to, first) in [(x.q, q), (x.k, k)] {
        widen_rows::<T>(isa, &call.qkv[chunk.first_row * c + first..], (chunk.rows, c), keys, to);
        for t in chunk.first_row..chunk.first_row + chunk.rows {
            // SAFETY: this head of keys of these rows is the task's.
            unsafe { call.d_qkv.range(t * c + first, keys) }.fill(0.0);
        }
    }
    for head in key_head * group..(key_head + 1) * group {
        of_head::<T>(isa, call, chunk, head, x);
    }
}

/// Computes one value head: adds to dq and dk, and writes dv and the gradients of the gates.
fn of_head<T: Lanes>(isa: Isa, call: &Call<'_, T>, chunk: &Chunk, head: usize, x: Work) {
    let (heads, rows) = (&call.heads, chunk.rows);
    let (keys, dv, width) = (heads.key_dim, heads.value_dim, heads.value_width());
    let first = chunk.first_row * width + head * dv;
    widen_rows::<T>(isa, &call.dout[first..], (rows, width), dv, x.dout);
    // SAFETY: the step before wrote them, and no task writes them any more.
    let (du, d_states) = unsafe {
        (call.d_rest.seen(first, (rows - 1) * width + dv), call.d_states.seen(0, call.d_states.len()))
    };
    let rest = &call.rest[first..][..(rows - 1) * width + dv];
    let gates = gates_of(
        isa,
        &call.gates[chunk.first_row * 2 * heads.value_heads + head..],
        heads.value_heads,
        rows,
        x.decays,
    );
    let state = |place: usize| {
        place * heads.state() + head * keys * dv..place * heads.state() + (head + 1) * keys * dv
    };
    let (begin, end) = (&call.states[state(chunk.place)], &call.states[state(chunk.place + 1)]);
    let d_end = &d_states[state(chunk.place + 1)];
    let key_head = head / (heads.value_heads / heads.key_heads);
    let c = heads.conv_width();
    let first_dk = chunk.first_row * c + heads.key_width() + key_head * keys;
    assert!(first_dk + (rows - 1) * c + keys <= call.d_qkv.len(), "rows of {chunk:?}");
    // SAFETY: inside the buffer by the assertion.
    let dk = Out { first: unsafe { call.d_qkv.as_ptr().add(first_dk) }, stride: c, adds: true };
    let dq = Out { first: x.dq, stride: STRIDE, adds: false };
    let of = |first: *const f32, stride: usize| Weights { first, strides: (stride, 1) };
    let (dout, r, du_of) = (of(x.dout, STRIDE), of(rest.as_ptr(), width), of(du.as_ptr(), width));
    for at in (0..keys).step_by(PANEL) {
        let n = PANEL.min(keys - at);
        let panel = Rows { first: x.panel, stride: PANEL, width: n, count: dv };
        turn(isa, &begin[at * dv..], (n, dv), dv, x.panel);
        product(isa, rows, Over::All, dout, panel, dq.at(at), &gates.since);
        product(isa, rows, Over::All, du_of, panel, dk.at(at), &gates.written);
        turn(isa, &d_end[at * dv..], (n, dv), dv, x.panel);
        product(isa, rows, Over::All, r, panel, dk.at(at), &gates.until);
    }
    let table = |first: *mut f32| Out { first, stride: STATE_CHUNK, adds: false };
    for at in (0..rows).step_by(PANEL) {
        let n = PANEL.min(rows - at);
        let panel = Rows { first: x.panel, stride: PANEL, width: n.next_multiple_of(LANES), count: dv };
        turn(isa, &rest[at * width..], (n, width), dv, x.panel);
        product(isa, rows, Over::All, dout, panel, table(x.outer).at(at), &ONES);
        product(isa, rows, Over::All, du_of, panel, table(x.inner).at(at), &ONES);
    }
    weigh(isa, rows, &gates.beta, x);
    let all = |first: *const f32| Rows { first, stride: STRIDE, width: keys, count: rows };
    let by_row = |first: *mut f32| Weights { first, strides: (STATE_CHUNK, 1) };
    product(isa, rows, Over::Before, by_row(x.outer), all(x.k), Out { adds: true, ..dq }, &ONES);
    let by_column = Weights { first: x.outer, strides: (1, STATE_CHUNK) };
    product(isa, rows, Over::After, by_column, all(x.q), dk, &ONES);
    product(isa, rows, Over::All, by_row(x.inner), all(x.k), dk, &ONES);
    finish::<T>(isa, call, chunk, head, x, &gates, (d_end, end));
}

/// Rows to multiply: `count` of them, of `width` elements.
#[derive(Clone, Copy)]
struct Rows {
    first: *const f32,
    stride: usize,
    width: usize,
    count: usize,
}

/// Factors of outputs and rows, with their strides.
#[derive(Clone, Copy)]
struct Weights {
    first: *const f32,
    strides: (usize, usize),
}

/// Destination of sums; `adds` if they are added to the old values.
#[derive(Clone, Copy)]
struct Out {
    first: *mut f32,
    stride: usize,
    adds: bool,
}

impl Out {
    fn at(self, column: usize) -> Out {
        Out { first: self.first.wrapping_add(column), ..self }
    }
}

/// Rows that are summed for output t; weights of the others are 0.
#[derive(Clone, Copy)]
enum Over {
    All,
    /// Up to row t.
    Before,
    /// From row t on.
    After,
}

impl Over {
    /// Returns the rows that any of some outputs needs.
    #[inline(always)]
    fn range(self, outs: Range<usize>, count: usize) -> Range<usize> {
        match self {
            Over::All => 0..count,
            Over::Before => 0..outs.end,
            Over::After => outs.start..count,
        }
    }
}

simd_fn! {
    /// Writes out[t] = factors[t] times the sum over s of weights[t][s] rows[s], or adds it, for `outs` outputs.
    ///
    /// Pointers must be valid for the sizes given: callers are in this file.
    fn product[](s: S, outs: usize, over: Over, weights: Weights, rows: Rows, out: Out, factors: &[f32; STATE_CHUNK]) {
        let (sizes, widest): (&[usize], usize) =
            if S::ACCUMULATORS >= 16 { (&[8, 4, 2, 1], 2) } else { (&[4, 2, 1], 1) };
        let mut column = 0;
        while column < rows.width {
            let wide = widest.min((rows.width - column) / LANES);
            let mut at = 0;
            while at < outs {
                let size = tile_of(sizes, outs - at);
                let here = over.range(at..at + size, rows.count);
                // SAFETY: callers promise outputs at..at + size, rows `here`, weights of both, and `wide` vectors a
                // row.
                unsafe {
                    let weights = Weights {
                        first: weights.first.add(at * weights.strides.0 + here.start * weights.strides.1),
                        ..weights
                    };
                    let rows = Rows { first: rows.first.add(here.start * rows.stride + column), count: here.len(), ..rows };
                    let out = Out { first: out.first.add(at * out.stride + column), ..out };
                    let factors = &factors[at..at + size];
                    match (size, wide) {
                        (8, 2) => tile::<S, 8, 2>(s, weights, rows, out, factors),
                        (4, 2) => tile::<S, 4, 2>(s, weights, rows, out, factors),
                        (2, 2) => tile::<S, 2, 2>(s, weights, rows, out, factors),
                        (_, 2) => tile::<S, 1, 2>(s, weights, rows, out, factors),
                        (8, _) => tile::<S, 8, 1>(s, weights, rows, out, factors),
                        (4, _) => tile::<S, 4, 1>(s, weights, rows, out, factors),
                        (2, _) => tile::<S, 2, 1>(s, weights, rows, out, factors),
                        _ => tile::<S, 1, 1>(s, weights, rows, out, factors),
                    }
                }
                at += size;
            }
            column += wide * LANES;
        }
    }
}

/// # Safety
/// `rows` has W vectors each, O outputs and all rows have weights, and `out` has O rows of W vectors, the task's.
#[inline(always)]
unsafe fn tile<S: Simd, const O: usize, const W: usize>(
    s: S,
    weights: Weights,
    rows: Rows,
    out: Out,
    factors: &[f32],
) {
    let mut sums = [[s.splat(0.0); W]; O];
    // SAFETY: as the caller promises.
    unsafe {
        sum_tile::<S, f32, O, W>(
            s,
            &mut sums,
            weights.first,
            weights.strides,
            rows.first,
            rows.stride,
            rows.count,
        );
        for o in 0..O {
            let factor = s.splat(factors[o]);
            for w in 0..W {
                let to = out.first.add(o * out.stride + w * LANES);
                let sum =
                    if out.adds { s.fma(factor, sums[o][w], s.load(to)) } else { s.mul(factor, sums[o][w]) };
                s.store(to, sum);
            }
        }
    }
}

simd_fn! {
    /// Widens rows of `width` elements into rows of scratch, which has room for them.
    fn widen_rows[T: Lanes](s: S, from: &[T], of: (usize, usize), width: usize, to: *mut f32) {
        let (rows, stride) = of;
        for t in 0..rows {
            // SAFETY: `to` has rows of `STRIDE` >= `width` elements, the task's; it is written before it is read.
            let to = unsafe { std::slice::from_raw_parts_mut(to.add(t * STRIDE), width) };
            widen(s, &from[t * stride..][..width], to);
        }
    }
}

simd_fn! {
    /// Transposes: to[j][i] = from[i][j] for `of.0` rows, `of.1` apart, of `columns` elements; 0 up to whole vectors.
    fn turn[](s: S, from: &[f32], of: (usize, usize), columns: usize, to: *mut f32) {
        let (rows, stride) = of;
        for i in (0..rows).step_by(LANES) {
            for j in (0..columns).step_by(LANES) {
                let mut square = [s.splat(0.0); LANES];
                for (lane, x) in square.iter_mut().enumerate().take(rows - i) {
                    *x = load_any(s, &from[(i + lane) * stride + j..][..LANES]);
                }
                for (lane, x) in s.transpose(square).into_iter().enumerate() {
                    // SAFETY: the panel has `columns` rows of `PANEL` elements, and i + LANES <= PANEL.
                    unsafe { s.store(to.add((j + lane) * PANEL + i), x) };
                }
            }
        }
    }
}

simd_fn! {
    /// Writes the decays between rows; returns the gates' factors. `gates`: g and beta of rows in turn, `heads` apart.
    fn gates_of[](s: S, gates: &[f32], heads: usize, rows: usize, decays: *mut f32) -> Gates {
        let mut out = Gates {
            beta: [0.0; STATE_CHUNK],
            since: [0.0; STATE_CHUNK],
            written: [0.0; STATE_CHUNK],
            until: [0.0; STATE_CHUNK],
        };
        // Logarithms, for rows before t; e^-inf = 0 for those after it.
        let (mut between, mut since) = ([f32::NEG_INFINITY; STATE_CHUNK], 0.0);
        for t in 0..rows {
            let (g, beta) = (gates[t * 2 * heads], gates[(t * 2 + 1) * heads]);
            since += g;
            between[..t].iter_mut().for_each(|x| *x += g);
            between[t] = 0.0;
            (out.beta[t], out.since[t]) = (beta, since);
            for at in (0..rows).step_by(LANES) {
                let a = s.exp(load_any(s, &between[at..at + LANES]));
                // SAFETY: row t of the table, which has `STATE_CHUNK` elements.
                unsafe { s.store(decays.add(t * STATE_CHUNK + at), a) };
                if t + 1 == rows {
                    store_any(s, &mut out.until[at..at + LANES], a);
                }
            }
        }
        for at in (0..rows).step_by(LANES) {
            let since = s.exp(load_any(s, &out.since[at..at + LANES]));
            store_any(s, &mut out.since[at..at + LANES], since);
        }
        for t in 0..rows {
            out.written[t] = -out.beta[t] * out.since[t];
            out.until[t] *= out.beta[t];
        }
        out
    }
}

simd_fn! {
    /// Turns products of rows into the weights of the sums over rows.
    fn weigh[](s: S, rows: usize, beta: &[f32; STATE_CHUNK], x: Work) {
        for t in 0..rows {
            let mut row = [0.0; STATE_CHUNK];
            let minus = s.splat(-beta[t]);
            for at in (0..rows).step_by(LANES) {
                let here = t * STATE_CHUNK + at;
                // SAFETY: row t of tables of `STATE_CHUNK` elements, which are written up to the last row's vector.
                unsafe {
                    let factor = s.mul(s.load(x.decays.add(here)), load_any(s, &beta[at..at + LANES]));
                    s.store(x.outer.add(here), s.mul(factor, s.load(x.outer.add(here))));
                    let inner = s.mul(s.mul(factor, minus), s.load(x.inner.add(here)));
                    store_any(s, &mut row[at..at + LANES], inner);
                }
            }
            for before in 0..t {
                // SAFETY: rows and columns below `rows`.
                unsafe {
                    x.inner.add(t * STATE_CHUNK + before).write(row[before]);
                    x.inner.add(before * STATE_CHUNK + t).write(row[before]);
                }
            }
            // SAFETY: row t < rows.
            unsafe { x.inner.add(t * STATE_CHUNK + t).write(0.0) };
        }
    }
}

simd_fn! {
    /// Adds dq, and writes dv and the gradients of the gates.
    fn finish[T: Lanes](
        s: S, call: &Call<'_, T>, chunk: &Chunk, head: usize, x: Work, gates: &Gates, ends: (&[f32], &[f32]),
    ) {
        let heads = &call.heads;
        let (h, keys, dv) = (heads.value_heads, heads.key_dim, heads.value_dim);
        let first_q = head / (h / heads.key_heads) * keys;
        let mut dg = dot(s, ends.0, ends.1);
        for t in (0..chunk.rows).rev() {
            let m = chunk.first_row + t;
            let (qkv, here) = (m * heads.conv_width(), m * heads.value_width() + head * dv);
            let of_v = qkv + 2 * heads.key_width() + head * dv;
            // SAFETY: scratch has dk elements of row t; row m of this value head and its key head is the task's.
            let (q, own, dq, to_v, of_gates, du) = unsafe {
                (
                    std::slice::from_raw_parts(x.q.add(t * STRIDE).cast_const(), keys),
                    std::slice::from_raw_parts(x.dq.add(t * STRIDE).cast_const(), keys),
                    call.d_qkv.range(qkv + first_q, keys),
                    call.d_qkv.range(of_v, dv),
                    [call.d_gates.range(m * 2 * h + head, 1), call.d_gates.range((m * 2 + 1) * h + head, 1)],
                    call.d_rest.seen(here, dv),
                )
            };
            let beta = s.splat(gates.beta[t]);
            for at in (0..dv).step_by(LANES) {
                let d = s.mul(beta, load_any(s, &du[at..at + LANES]));
                store_any(s, &mut to_v[at..at + LANES], d);
            }
            for at in (0..keys).step_by(LANES) {
                let sum = s.add(load_any(s, &dq[at..at + LANES]), load_any(s, &own[at..at + LANES]));
                store_any(s, &mut dq[at..at + LANES], sum);
            }
            dg += dot(s, q, own) - dot(s, &call.qkv[of_v..][..dv], to_v);
            // Where e^g is 0, or what it decays, nothing depends on it: not even the rounding error of the sum, which
            // the gradient of the decay multiplies by g.
            if call.gates[m * 2 * h + head] < UNDERFLOW || (t == 0 && chunk.begins) {
                dg = 0.0;
            }
            let [to_g, to_beta] = of_gates;
            to_g[0] = dg;
            to_beta[0] = dot(s, du, &call.rest[here..][..dv]);
        }
    }
}
