//! Gradient of attention, from the forward pass's log-sum-exp: weights are recomputed, never stored.
//!
//! One task owns a group of segments (a root and its children) and a key-value head, so a key's gradient is one chain:
//! segments ascending, rows ascending, heads ascending. A query's gradient is a chain over ascending keys. Neither
//! depends on threads or on how rows are blocked.

#![allow(clippy::needless_range_loop)] // Indices run over several arrays, which stay in registers.

use super::activation::{capped, capped_slope};
use super::attention::tiles::{STRIDE, dot_tile, sum_tile, tile_of};
use super::attention::{Blocks, Dims, Segment, segments};
use super::elementwise::{begin_sum, convert_row, split, zero};
use super::lanes::{LANES, Lanes, Simd, by_dtype, simd_fn};
use super::norm::dot;
use super::rope::HEAD_DIM_MAX;
use super::view::Shared;
use super::{CpuDevice, Real};
use plimsoll_base::math;
use plimsoll_device::{AttentionBackward, KV_BLOCK, NO_PARENT, Scores, SinkBackward};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Queries (rows times heads of one key-value head) that share a block of keys.
const QUERIES_MAX: usize = 48;

pub(super) fn backward(dev: &CpuDevice, args: AttentionBackward<'_>) {
    let AttentionBackward { q, kv, batch, scores, out, lse, dout, dq, dkv } = args;
    let rows = batch.positions.len();
    if rows == 0 {
        return;
    }
    let dims = Dims::new(rows, q, kv);
    let Dims { a, k, d } = dims;
    assert_eq!([out.len(), dout.len(), dq.len()], [rows * a * d; 3], "out, dout, dq of [{rows}, {a} x {d}]");
    assert_eq!((lse.len(), dkv.len()), (rows * a, rows * 2 * k * d), "lse and dkv of {rows} rows");
    let (fields, tables) = (dev.read::<u32>(batch.segments), dev.read::<u32>(batch.tables));
    zero(dev, dkv);
    if segments(fields).map(|s| s.rows).sum::<usize>() != rows {
        zero(dev, dq);
    }
    let roots = || segments(fields).filter(|s| s.parent == NO_PARENT);
    by_dtype!(q, T => {
        let call = Call::<T> {
            dims,
            scores,
            q: dev.read(q),
            keys: dev.read(kv.keys),
            values: dev.read(kv.values),
            out: dev.read(out),
            lse: dev.read(lse),
            dout: dev.read(dout),
            dq: dev.write(dq),
            dkv: dev.write(dkv),
        };
        dev.pool().run(roots().count() * k, &|task, _thread| {
            let root = roots().nth(task / k).expect("one of the roots");
            assert_eq!(root.first_position, 0, "a segment without a parent starts at position 0");
            for segment in segments(fields).filter(|s| in_group(s, &root)) {
                backward_segment::<T>(dev.isa(), &call, &segment, &tables[segment.table..], task % k);
            }
        });
    });
}

/// Adds the gradients of sinks, one head a task, rows ascending.
pub(super) fn sinks(dev: &CpuDevice, args: SinkBackward<'_>) {
    let SinkBackward { sinks, out, lse, dout, grad, add } = args;
    let a = sinks.len();
    let rows = lse.len() / a;
    let d = out.len() / (rows * a).max(1);
    assert_eq!((lse.len(), grad.len()), (rows * a, a), "lse of [{rows}, {a}]");
    assert_eq!([out.len(), dout.len()], [rows * a * d; 2], "out and dout of [{rows}, {a} x {d}]");
    begin_sum(dev, grad, add);
    by_dtype!(out, T => by_dtype!(grad, G => {
        let (sinks, lse, grad) = (dev.read::<T>(sinks), dev.read::<f32>(lse), dev.write::<G>(grad));
        let (out, dout) = (dev.read::<T>(out), dev.read::<T>(dout));
        split(dev, a, rows * d, &|part| {
            for head in part {
                let mut sum = 0.0f64;
                for at in (head..rows * a).step_by(a) {
                    let share = math::exp(f64::from(sinks[head].to_f32()) - f64::from(lse[at]));
                    let delta = products::<T>(dev.isa(), &dout[at * d..][..d], &out[at * d..][..d]);
                    sum -= share * f64::from(delta);
                }
                // SAFETY: heads are disjoint, and each is one task's.
                let to = unsafe { grad.range(head, 1) };
                to[0] = G::from_f32(to[0].to_f32() + sum as f32);
            }
        });
    }));
}

simd_fn! {
    /// Returns the sum of products of elements.
    fn products[T: Lanes](s: S, x: &[T], y: &[T]) -> f32 {
        dot(s, x, y)
    }
}

/// True for the root itself and its children.
fn in_group(segment: &Segment, root: &Segment) -> bool {
    let first = if segment.parent == NO_PARENT { segment.first_row } else { segment.parent as usize };
    first == root.first_row
}

/// Returns the row that owns the key at a position.
fn key_row(segment: &Segment, position: usize) -> usize {
    if segment.parent != NO_PARENT && position < segment.first_position {
        segment.parent as usize + position
    } else {
        segment.first_row + position - segment.first_position
    }
}

struct Call<'a, T> {
    dims: Dims,
    scores: Scores<'a>,
    q: &'a [T],
    keys: &'a [T],
    values: &'a [T],
    out: &'a [T],
    lse: &'a [f32],
    dout: &'a [T],
    dq: Shared<'a, f32>,
    dkv: Shared<'a, f32>,
}

scratch! {
    /// Working memory of a block of rows: 220 KiB of stack; only what the head dimension needs is touched.
    Scratch, Work {
        q: QUERIES_MAX * STRIDE,
        dout: QUERIES_MAX * STRIDE,
        dq: QUERIES_MAX * STRIDE,
        /// Weights of one block of keys, and gradients of its scores: [query][16].
        weights: QUERIES_MAX * KV_BLOCK,
        dscores: QUERIES_MAX * KV_BLOCK,
        /// A block of keys as [d][16] and as [16][d], and of values as [d][16]; zero beyond the last row's position.
        keys: HEAD_DIM_MAX * KV_BLOCK,
        key_rows: KV_BLOCK * STRIDE,
        values: HEAD_DIM_MAX * KV_BLOCK,
    }
}

/// A block of rows of a segment, with the query heads of one key-value head.
struct Queries<'a> {
    segment: &'a Segment,
    dims: Dims,
    scores: Scores<'a>,
    kv_head: usize,
    rows: Range<usize>,
    heads: Range<usize>,
}

impl Queries<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.rows.len() * self.heads.len()
    }

    /// Returns the index in q, in heads of d elements, of query i, which is of row i / heads.
    #[inline(always)]
    fn place(&self, i: usize) -> usize {
        let (row, head) = (i / self.heads.len(), i % self.heads.len());
        (self.segment.first_row + self.rows.start + row) * self.dims.a + self.heads.start + head
    }

    /// Returns the position of the first row.
    #[inline(always)]
    fn first_position(&self) -> usize {
        self.segment.first_position + self.rows.start
    }

    /// Returns the number of keys up to the last one that the last row sees.
    #[inline(always)]
    fn num_keys(&self) -> usize {
        let last = if self.scores.is_whole { self.segment.rows } else { self.rows.end };
        self.segment.first_position + last
    }

    /// Returns the number of keys up to the last one that a query sees.
    #[inline(always)]
    fn keys_of(&self, query: usize) -> usize {
        if self.scores.is_whole {
            self.num_keys()
        } else {
            self.first_position() + query / self.heads.len() + 1
        }
    }

    /// Returns the first key that the first row sees.
    #[inline(always)]
    fn first_key(&self) -> usize {
        (self.first_position() + 1).saturating_sub(self.scores.window)
    }

    /// Returns the first query that sees a key, or keys after it.
    #[inline(always)]
    fn first_seeing(&self, key: usize) -> usize {
        if self.scores.is_whole { 0 } else { key.saturating_sub(self.first_position()) * self.heads.len() }
    }
}

simd_fn! {
    /// Computes all rows of a segment, for one key-value head.
    fn backward_segment[T: Lanes](s: S, call: &Call<'_, T>, segment: &Segment, table: &[u32], kv_head: usize) {
        let (dims, group) = (call.dims, call.dims.group());
        let heads_max = group.min(QUERIES_MAX);
        let rows_max = QUERIES_MAX / heads_max;
        for row in (0..segment.rows).step_by(rows_max) {
            for head in (0..group).step_by(heads_max) {
                let rows = row..(row + rows_max).min(segment.rows);
                let heads = kv_head * group + head..kv_head * group + (head + heads_max).min(group);
                backward_rows(s, call, table, &Queries { segment, dims, scores: call.scores, kv_head, rows, heads });
            }
        }
    }
}

/// Computes a block of rows against all their keys.
#[inline(always)]
fn backward_rows<S: Simd, T: Lanes>(s: S, call: &Call<'_, T>, table: &[u32], queries: &Queries<'_>) {
    let (d, n) = (call.dims.d, queries.len());
    let mut scratch = MaybeUninit::uninit();
    let work = Work::new(&mut scratch);
    let (mut deltas, mut lses) = ([0.0; QUERIES_MAX], [0.0; QUERIES_MAX]);
    for i in 0..n {
        let place = queries.place(i);
        let (q, dout) = (&call.q[place * d..][..d], &call.dout[place * d..][..d]);
        // SAFETY: row i of the scratch, which this task borrows mutably.
        unsafe {
            convert_row(s, q, std::slice::from_raw_parts_mut(work.q.add(i * STRIDE), d));
            convert_row(s, dout, std::slice::from_raw_parts_mut(work.dout.add(i * STRIDE), d));
            std::slice::from_raw_parts_mut(work.dq.add(i * STRIDE), d).fill(0.0);
        }
        deltas[i] = dot(s, dout, &call.out[place * d..][..d]);
        lses[i] = call.lse[place];
    }
    let keys = Blocks { data: call.keys, table, dims: call.dims, kv_head: queries.kv_head };
    let values = Blocks { data: call.values, ..keys };
    for block in queries.first_key() / KV_BLOCK..queries.num_keys().div_ceil(KV_BLOCK) {
        let first_key = block * KV_BLOCK;
        let count = (queries.num_keys() - first_key).min(KV_BLOCK);
        // SAFETY: the scratch has rows for n queries; gradients of the group's rows and this head are this task's
        // alone.
        unsafe {
            load_block(s, d, count, keys.at(block), values.at(block), work);
            block_weights(s, queries, first_key, &deltas, &lses, work);
            add_gradients(s, &call.dkv, queries, first_key, count, work);
        }
    }
    for i in 0..n {
        // SAFETY: row i of the scratch; rows and heads of tasks are disjoint.
        unsafe {
            let dq = std::slice::from_raw_parts(work.dq.add(i * STRIDE), d);
            call.dq.range(queries.place(i) * d, d).copy_from_slice(dq);
        }
    }
}

/// Computes the weights of a block's keys and the gradients of its scores, for the queries that see any of it.
///
/// # Safety
/// `work` holds the queries and the block.
#[inline(always)]
unsafe fn block_weights<S: Simd>(
    s: S,
    queries: &Queries<'_>,
    first_key: usize,
    deltas: &[f32],
    lses: &[f32],
    work: Work,
) {
    let (d, n) = (queries.dims.d, queries.len());
    let mut at = queries.first_seeing(first_key);
    while at < n {
        let sizes: &[usize] = if S::ACCUMULATORS >= 16 { &[8, 4, 2, 1] } else { &[4, 2, 1] };
        let size = tile_of(sizes, n - at);
        // Keys of the block that each query sees: from the first number on, below the second.
        let mut seen = [(0, 0); 8];
        for (i, seen) in seen.iter_mut().enumerate() {
            let keys = queries.keys_of(at + i);
            let within = |key: usize| key.saturating_sub(first_key).min(KV_BLOCK);
            *seen = (within(keys.saturating_sub(queries.scores.window)), within(keys));
        }
        let rows = Softmaxes { deltas: &deltas[at..], lses: &lses[at..], cap: queries.scores.cap };
        // SAFETY: queries at..at + size are among the n that the caller promises rows for.
        unsafe {
            let x = Work {
                q: work.q.add(at * STRIDE),
                dout: work.dout.add(at * STRIDE),
                weights: work.weights.add(at * KV_BLOCK),
                dscores: work.dscores.add(at * KV_BLOCK),
                ..work
            };
            match size {
                8 => weight_tile::<S, 8>(s, d, x, &seen, rows),
                4 => weight_tile::<S, 4>(s, d, x, &seen, rows),
                2 => weight_tile::<S, 2>(s, d, x, &seen, rows),
                _ => weight_tile::<S, 1>(s, d, x, &seen, rows),
            }
        }
        at += size;
    }
}

/// Adds a block's part of the gradients of its values, its keys and the queries.
///
/// # Safety
/// `work` is as `block_weights` left it; no other task touches the gradients of the group's rows and of this head.
#[inline(always)]
unsafe fn add_gradients<S: Simd>(
    s: S,
    dkv: &Shared<'_, f32>,
    queries: &Queries<'_>,
    first_key: usize,
    count: usize,
    work: Work,
) {
    let (Dims { k, d, .. }, n) = (queries.dims, queries.len());
    let mut to = [std::ptr::null_mut(); QUERIES_MAX];
    for (key, to) in to.iter_mut().enumerate().take(count) {
        let at = key_row(queries.segment, first_key + key) * 2 * k * d + queries.kv_head * d;
        assert!(at + (k + 1) * d <= dkv.len(), "the row of key {} of {}", first_key + key, dkv.len());
        // SAFETY: inside the buffer by the assertion. No slice: other heads' columns lie between.
        *to = unsafe { dkv.as_ptr().add(at) };
    }
    // SAFETY: `to` points to rows that the assertion found in the buffer; the caller promises n rows of the scratch.
    unsafe {
        let from = |key: usize| queries.first_seeing(first_key + key);
        for (shift, weights, rows) in [(k * d, work.weights, work.dout), (0, work.dscores, work.q)] {
            let weights = Weights { first: weights, strides: (1, KV_BLOCK) };
            accumulate(s, d, &to[..count], shift, weights, Rows { first: rows, count: n }, from);
        }
        for (i, to) in to.iter_mut().enumerate().take(n) {
            *to = work.dq.add(i * STRIDE);
        }
        let (first, all) = (from(0), |_| 0);
        let weights = Weights { first: work.dscores.add(first * KV_BLOCK), strides: (KV_BLOCK, 1) };
        accumulate(s, d, &to[first..n], 0, weights, Rows { first: work.key_rows, count }, all);
    }
}

/// Widens and transposes a block; keys and values from `count` on are zero, whatever their slots hold.
///
/// # Safety
/// The pointers are those of a block of the cache and of `Scratch`.
#[inline(always)]
unsafe fn load_block<S: Simd, T: Lanes>(
    s: S,
    d: usize,
    count: usize,
    from_keys: *const T,
    from_values: *const T,
    work: Work,
) {
    let Work { keys, key_rows, values, .. } = work;
    let none = s.splat(0.0);
    for column in (0..d).step_by(LANES) {
        let mut square = [none; LANES];
        // SAFETY: 16 of d rows of 16 keys; 16 rows of d elements.
        unsafe {
            for (i, x) in square.iter_mut().enumerate() {
                *x = s.first(count, T::load_at(s, from_keys.add((column + i) * KV_BLOCK)), none);
                s.store(keys.add((column + i) * KV_BLOCK), *x);
            }
            for (i, &x) in s.transpose(square).iter().enumerate() {
                s.store(key_rows.add(i * STRIDE + column), x);
            }
            for (i, x) in square.iter_mut().enumerate() {
                *x = if i < count { T::load_at(s, from_values.add(i * d + column)) } else { none };
            }
            for (i, &x) in s.transpose(square).iter().enumerate() {
                s.store(values.add((column + i) * KV_BLOCK), x);
            }
        }
    }
}

/// Statistics of a tile's queries, and the soft cap on their scores.
#[derive(Clone, Copy)]
struct Softmaxes<'a> {
    /// Dot products of outputs and their gradients.
    deltas: &'a [f32],
    lses: &'a [f32],
    cap: Option<f32>,
}

/// Computes weights e^(score - lse) and gradients of the scores; 0 for keys that a query does not see.
///
/// # Safety
/// `x` has Q rows of q, dout, weights and dscores, and d vectors of keys and values.
#[inline(always)]
unsafe fn weight_tile<S: Simd, const Q: usize>(
    s: S,
    d: usize,
    x: Work,
    seen: &[(usize, usize); 8],
    rows: Softmaxes<'_>,
) {
    let (none, scale) = (s.splat(0.0), s.splat(1.0 / (d as f32).sqrt()));
    // SAFETY: the caller promises Q rows of queries, gradients and weights, and a block of 16 keys.
    unsafe {
        let scores = dot_tile::<S, f32, Q, 1>(s, d, x.q, [x.keys.cast_const()]);
        let dweights = dot_tile::<S, f32, Q, 1>(s, d, x.dout, [x.values.cast_const()]);
        for q in 0..Q {
            let mut score = s.mul(scores[q][0], scale);
            if let Some(cap) = rows.cap {
                score = capped(s, score, cap);
            }
            let weight = s.exp(s.sub(score, s.splat(rows.lses[q])));
            let (from, upto) = seen[q];
            let weight = s.first(from, none, s.first(upto, weight, none));
            let mut dscore = s.mul(s.mul(weight, s.sub(dweights[q][0], s.splat(rows.deltas[q]))), scale);
            if let Some(cap) = rows.cap {
                dscore = s.mul(dscore, capped_slope(s, score, cap));
            }
            s.store(x.weights.add(q * KV_BLOCK), weight);
            s.store(x.dscores.add(q * KV_BLOCK), s.first(from, none, s.first(upto, dscore, none)));
        }
    }
}

/// Rows of scratch, `STRIDE` apart.
#[derive(Clone, Copy)]
struct Rows {
    first: *const f32,
    count: usize,
}

/// Weights of outputs and rows, with their strides.
#[derive(Clone, Copy)]
struct Weights {
    first: *const f32,
    strides: (usize, usize),
}

/// Adds the sum over i of weights[o][i] rows[i], i from `first(o)` to `rows.count`, to outs[o][shift..shift + d].
///
/// # Safety
/// `outs` are writable; `weights` and `rows` as `sum_tile` says.
#[inline(always)]
unsafe fn accumulate<S: Simd>(
    s: S,
    d: usize,
    outs: &[*mut f32],
    shift: usize,
    weights: Weights,
    rows: Rows,
    first: impl Fn(usize) -> usize,
) {
    let mut column = 0;
    while column < d {
        let left = (d - column) / LANES;
        let width = if S::ACCUMULATORS >= 16 { tile_of(&[4, 2, 1], left) } else { tile_of(&[2, 1], left) };
        let mut at = 0;
        while at < outs.len() {
            let sizes: &[usize] = if S::ACCUMULATORS >= 16 { &[6, 4, 2, 1] } else { &[2, 1] };
            let size = tile_of(sizes, outs.len() - at);
            let skip = first(at).min(rows.count);
            // SAFETY: the caller promises outputs at..at + size and inputs skip..count.
            unsafe {
                let (per_out, per_row) = weights.strides;
                let w = Weights { first: weights.first.add(at * per_out + skip * per_row), ..weights };
                let x = Rows { first: rows.first.add(skip * STRIDE + column), count: rows.count - skip };
                let (outs, column) = (&outs[at..at + size], shift + column);
                match (width, size) {
                    (4, 6) => add_tile::<S, 6, 4>(s, outs, column, w, x),
                    (4, 4) => add_tile::<S, 4, 4>(s, outs, column, w, x),
                    (4, 2) => add_tile::<S, 2, 4>(s, outs, column, w, x),
                    (4, _) => add_tile::<S, 1, 4>(s, outs, column, w, x),
                    (2, 6) => add_tile::<S, 6, 2>(s, outs, column, w, x),
                    (2, 4) => add_tile::<S, 4, 2>(s, outs, column, w, x),
                    (2, 2) => add_tile::<S, 2, 2>(s, outs, column, w, x),
                    (2, _) => add_tile::<S, 1, 2>(s, outs, column, w, x),
                    (_, 6) => add_tile::<S, 6, 1>(s, outs, column, w, x),
                    (_, 4) => add_tile::<S, 4, 1>(s, outs, column, w, x),
                    (_, 2) => add_tile::<S, 2, 1>(s, outs, column, w, x),
                    _ => add_tile::<S, 1, 1>(s, outs, column, w, x),
                }
            }
            at += size;
        }
        column += width * LANES;
    }
}

/// # Safety
/// Requires what `accumulate` requires, for O outputs.
#[inline(always)]
unsafe fn add_tile<S: Simd, const O: usize, const W: usize>(
    s: S,
    outs: &[*mut f32],
    column: usize,
    weights: Weights,
    rows: Rows,
) {
    let mut sums = [[s.splat(0.0); W]; O];
    // SAFETY: the caller promises writable `outs`, a weight for each output and row, and `rows.count` rows.
    unsafe {
        for o in 0..O {
            for w in 0..W {
                sums[o][w] = s.load(outs[o].add(column + w * LANES));
            }
        }
        sum_tile::<S, f32, O, W>(
            s,
            &mut sums,
            weights.first,
            weights.strides,
            rows.first,
            STRIDE,
            rows.count,
        );
        for o in 0..O {
            for w in 0..W {
                s.store(outs[o].add(column + w * LANES), sums[o][w]);
            }
        }
    }
}
