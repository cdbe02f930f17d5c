//! Gradient of attention, from the forward pass's log-sum-exp: weights are computed again, never stored.
//!
//! One task owns a group of segments (a root and its children) and a key-value head, so a key's gradient is one chain:
//! segments ascending, rows ascending, heads ascending. A query's gradient is a chain over ascending keys. Neither
//! depends on threads or on how rows are blocked.

use super::CpuDevice;
use super::attention::tiles::{STRIDE, dot_tile, sum_tile, tile_of};
use super::attention::{Blocks, Dims, Segment, segments};
use super::elementwise::{convert_row, zero};
use super::lanes::{LANES, Lanes, Simd, by_dtype, simd_fn};
use super::norm::dot;
use super::rope::HEAD_DIM_MAX;
use super::view::Shared;
use crate::{Batch, KV_BLOCK, Kv, NO_PARENT};
use plimsoll_memory::Buf;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Queries (rows times heads of one key-value head) that share a block of keys.
const QUERIES_MAX: usize = 48;

#[allow(clippy::too_many_arguments)] // As the operation.
pub(super) fn backward(
    dev: &CpuDevice,
    q: Buf<'_>,
    kv: Kv<'_>,
    batch: Batch<'_>,
    out: Buf<'_>,
    lse: Buf<'_>,
    dout: Buf<'_>,
    dq: Buf<'_>,
    dkv: Buf<'_>,
) {
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

/// True for a root itself and its children.
fn in_group(segment: &Segment, root: &Segment) -> bool {
    let first = if segment.parent == NO_PARENT { segment.first_row } else { segment.parent as usize };
    first == root.first_row
}

/// The row that owns the key at a position.
fn key_row(segment: &Segment, position: usize) -> usize {
    if segment.parent != NO_PARENT && position < segment.first_position {
        segment.parent as usize + position
    } else {
        segment.first_row + position - segment.first_position
    }
}

/// The buffers of a call.
struct Call<'a, T> {
    dims: Dims,
    q: &'a [T],
    keys: &'a [T],
    values: &'a [T],
    out: &'a [T],
    lse: &'a [f32],
    dout: &'a [T],
    dq: Shared<'a, f32>,
    dkv: Shared<'a, f32>,
}

/// Working memory of a block of rows: 220 KiB of stack, of which what the head dimension needs is touched.
#[repr(align(64))]
struct Scratch {
    q: [MaybeUninit<f32>; QUERIES_MAX * STRIDE],
    dout: [MaybeUninit<f32>; QUERIES_MAX * STRIDE],
    dq: [MaybeUninit<f32>; QUERIES_MAX * STRIDE],
    /// Weights of one block of keys, and gradients of its scores: [query][16].
    weights: [MaybeUninit<f32>; QUERIES_MAX * KV_BLOCK],
    dscores: [MaybeUninit<f32>; QUERIES_MAX * KV_BLOCK],
    /// A block of keys as [d][16] and as [16][d], and of values as [d][16]; zero beyond the last row's position.
    keys: [MaybeUninit<f32>; HEAD_DIM_MAX * KV_BLOCK],
    key_rows: [MaybeUninit<f32>; KV_BLOCK * STRIDE],
    values: [MaybeUninit<f32>; HEAD_DIM_MAX * KV_BLOCK],
}

simd_fn! {
    /// All rows of a segment, for one key-value head.
    fn backward_segment[T: Lanes](s: S, call: &Call<'_, T>, segment: &Segment, table: &[u32], kv_head: usize) {
        let group = call.dims.group();
        let heads_max = group.min(QUERIES_MAX);
        let rows_max = QUERIES_MAX / heads_max;
        for row in (0..segment.rows).step_by(rows_max) {
            for head in (0..group).step_by(heads_max) {
                let rows = row..(row + rows_max).min(segment.rows);
                let heads = kv_head * group + head..kv_head * group + (head + heads_max).min(group);
                backward_rows(s, call, segment, table, kv_head, rows, heads);
            }
        }
    }
}

/// A block of rows against all their keys.
#[inline(always)]
fn backward_rows<S: Simd, T: Lanes>(
    s: S,
    call: &Call<'_, T>,
    segment: &Segment,
    table: &[u32],
    kv_head: usize,
    rows: Range<usize>,
    heads: Range<usize>,
) {
    let Dims { a, k, d } = call.dims;
    let n = rows.len() * heads.len();
    let mut scratch = MaybeUninit::<Scratch>::uninit();
    // SAFETY: its fields are arrays of `MaybeUninit`.
    let scratch = unsafe { scratch.assume_init_mut() };
    let [q, dout, dq] =
        [&mut scratch.q, &mut scratch.dout, &mut scratch.dq].map(|x| x.as_mut_ptr().cast::<f32>());
    let [weights, dscores] =
        [&mut scratch.weights, &mut scratch.dscores].map(|x| x.as_mut_ptr().cast::<f32>());
    let [keys, values] = [&mut scratch.keys, &mut scratch.values].map(|x| x.as_mut_ptr().cast::<f32>());
    let key_rows = scratch.key_rows.as_mut_ptr().cast::<f32>();
    let (mut deltas, mut lses) = ([0.0; QUERIES_MAX], [0.0; QUERIES_MAX]);
    // Query i is of row i / heads; its place in q, in heads of d elements.
    let place =
        |i: usize| (segment.first_row + rows.start + i / heads.len()) * a + heads.start + i % heads.len();
    for i in 0..n {
        let at = place(i) * d;
        // SAFETY: row i of the scratch.
        unsafe {
            convert_row(s, &call.q[at..at + d], std::slice::from_raw_parts_mut(q.add(i * STRIDE), d));
            convert_row(s, &call.dout[at..at + d], std::slice::from_raw_parts_mut(dout.add(i * STRIDE), d));
            std::slice::from_raw_parts_mut(dq.add(i * STRIDE), d).fill(0.0);
        }
        deltas[i] = dot(s, &call.dout[at..at + d], &call.out[at..at + d]);
        lses[i] = call.lse[place(i)];
    }
    let first_position = segment.first_position + rows.start;
    let num_keys = first_position + rows.len();
    let key_blocks = Blocks { data: call.keys, table, dims: call.dims, kv_head };
    let value_blocks = Blocks { data: call.values, ..key_blocks };
    for block in 0..num_keys.div_ceil(KV_BLOCK) {
        let first_key = block * KV_BLOCK;
        let count = (num_keys - first_key).min(KV_BLOCK);
        // SAFETY: the scratch has rows for n queries; the gradients of the group's rows and of this head are this
        // task's alone.
        unsafe {
            load_block(s, d, count, key_blocks.at(block), value_blocks.at(block), keys, key_rows, values);
            // The first query that sees the block.
            let from = first_key.saturating_sub(first_position) * heads.len();
            let mut at = from;
            while at < n {
                let sizes: &[usize] = if S::ACCUMULATORS >= 16 { &[8, 4, 2, 1] } else { &[4, 2, 1] };
                let size = tile_of(sizes, n - at);
                let x = Tile { q: q.add(at * STRIDE), dout: dout.add(at * STRIDE), keys, values };
                let (w, ds) = (weights.add(at * KV_BLOCK), dscores.add(at * KV_BLOCK));
                let mut seen = [0; 8];
                for (i, seen) in seen.iter_mut().enumerate() {
                    *seen =
                        (first_position + (at + i) / heads.len() + 1).saturating_sub(first_key).min(KV_BLOCK);
                }
                match size {
                    8 => weight_tile::<S, 8>(s, d, x, &seen, &deltas[at..], &lses[at..], w, ds),
                    4 => weight_tile::<S, 4>(s, d, x, &seen, &deltas[at..], &lses[at..], w, ds),
                    2 => weight_tile::<S, 2>(s, d, x, &seen, &deltas[at..], &lses[at..], w, ds),
                    _ => weight_tile::<S, 1>(s, d, x, &seen, &deltas[at..], &lses[at..], w, ds),
                }
                at += size;
            }
            let mut to = [std::ptr::null_mut(); QUERIES_MAX];
            for (key, to) in to.iter_mut().enumerate().take(count) {
                let at = key_row(segment, first_key + key) * 2 * k * d + kv_head * d;
                *to = call.dkv.range(at, (k + 1) * d).as_mut_ptr();
            }
            // The first query that sees a key of the block.
            let first_seen = |key: usize| (first_key + key).saturating_sub(first_position) * heads.len();
            for (values, weights, rows) in [(true, weights, dout), (false, dscores, q)] {
                let shift = if values { k * d } else { 0 };
                accumulate(s, d, &to[..count], shift, weights, (1, KV_BLOCK), rows, n, first_seen);
            }
            for (i, to) in to.iter_mut().enumerate().take(n) {
                *to = dq.add(i * STRIDE);
            }
            accumulate(
                s,
                d,
                &to[from..n],
                0,
                dscores.add(from * KV_BLOCK),
                (KV_BLOCK, 1),
                key_rows,
                count,
                |_| 0,
            );
        }
    }
    for i in 0..n {
        // SAFETY: row i of the scratch; rows and heads of tasks are disjoint.
        unsafe {
            call.dq.range(place(i) * d, d).copy_from_slice(std::slice::from_raw_parts(dq.add(i * STRIDE), d))
        };
    }
}

/// Widens and transposes a block; keys and values from `count` on are zero, whatever their slots hold.
///
/// # Safety
/// The pointers are those of a block of the cache and of `Scratch`.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // Two inputs and three outputs.
unsafe fn load_block<S: Simd, T: Lanes>(
    s: S,
    d: usize,
    count: usize,
    from_keys: *const T,
    from_values: *const T,
    keys: *mut f32,
    key_rows: *mut f32,
    values: *mut f32,
) {
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

/// A few queries and a block of keys.
#[derive(Clone, Copy)]
struct Tile {
    q: *const f32,
    dout: *const f32,
    keys: *const f32,
    values: *const f32,
}

/// Weights e^(score - lse) and gradients of the scores; 0 for keys that a query does not see.
///
/// # Safety
/// Q rows of q, dout, weights and dscores; d vectors of keys and values.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // Each a column of the tile.
unsafe fn weight_tile<S: Simd, const Q: usize>(
    s: S,
    d: usize,
    x: Tile,
    seen: &[usize; 8],
    deltas: &[f32],
    lses: &[f32],
    weights: *mut f32,
    dscores: *mut f32,
) {
    let (none, scale) = (s.splat(0.0), s.splat(1.0 / (d as f32).sqrt()));
    // SAFETY: the caller's promise.
    unsafe {
        let scores = dot_tile::<S, f32, Q, 1>(s, d, x.q, [x.keys]);
        let dweights = dot_tile::<S, f32, Q, 1>(s, d, x.dout, [x.values]);
        for q in 0..Q {
            let weight = s.exp(s.sub(s.mul(scores[q][0], scale), s.splat(lses[q])));
            let weight = s.first(seen[q], weight, none);
            let dscore = s.mul(s.mul(weight, s.sub(dweights[q][0], s.splat(deltas[q]))), scale);
            s.store(weights.add(q * KV_BLOCK), weight);
            s.store(dscores.add(q * KV_BLOCK), s.first(seen[q], dscore, none));
        }
    }
}

/// outs[o][shift..shift + d] += sum over i of weights[o][i] rows[i], i from `first(o)` to `count`.
///
/// # Safety
/// `outs` are writable; `weights` and `rows` as `sum_tile` says, `rows` being `STRIDE` apart.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // The operands of a product.
unsafe fn accumulate<S: Simd>(
    s: S,
    d: usize,
    outs: &[*mut f32],
    shift: usize,
    weights: *const f32,
    strides: (usize, usize),
    rows: *const f32,
    count: usize,
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
            let skip = first(at).min(count);
            // SAFETY: outputs at..at + size, inputs skip..count.
            unsafe {
                let w = weights.add(at * strides.0 + skip * strides.1);
                let x = Rows { first: rows.add(skip * STRIDE + column), count: count - skip };
                let (outs, column) = (&outs[at..at + size], shift + column);
                match (width, size) {
                    (4, 6) => add_tile::<S, 6, 4>(s, outs, column, w, strides, x),
                    (4, 4) => add_tile::<S, 4, 4>(s, outs, column, w, strides, x),
                    (4, 2) => add_tile::<S, 2, 4>(s, outs, column, w, strides, x),
                    (4, _) => add_tile::<S, 1, 4>(s, outs, column, w, strides, x),
                    (2, 6) => add_tile::<S, 6, 2>(s, outs, column, w, strides, x),
                    (2, 4) => add_tile::<S, 4, 2>(s, outs, column, w, strides, x),
                    (2, 2) => add_tile::<S, 2, 2>(s, outs, column, w, strides, x),
                    (2, _) => add_tile::<S, 1, 2>(s, outs, column, w, strides, x),
                    (_, 6) => add_tile::<S, 6, 1>(s, outs, column, w, strides, x),
                    (_, 4) => add_tile::<S, 4, 1>(s, outs, column, w, strides, x),
                    (_, 2) => add_tile::<S, 2, 1>(s, outs, column, w, strides, x),
                    _ => add_tile::<S, 1, 1>(s, outs, column, w, strides, x),
                }
            }
            at += size;
        }
        column += width * LANES;
    }
}

/// Rows of scratch, `STRIDE` apart.
#[derive(Clone, Copy)]
struct Rows {
    first: *const f32,
    count: usize,
}

/// # Safety
/// As `accumulate`, for O outputs.
#[inline(always)]
unsafe fn add_tile<S: Simd, const O: usize, const W: usize>(
    s: S,
    outs: &[*mut f32],
    column: usize,
    weights: *const f32,
    strides: (usize, usize),
    rows: Rows,
) {
    let mut sums = [[s.splat(0.0); W]; O];
    // SAFETY: the caller's promise.
    unsafe {
        for o in 0..O {
            for w in 0..W {
                sums[o][w] = s.load(outs[o].add(column + w * LANES));
            }
        }
        sum_tile::<S, f32, O, W>(s, &mut sums, weights, strides, rows.first, STRIDE, rows.count);
        for o in 0..O {
            for w in 0..W {
                s.store(outs[o].add(column + w * LANES), sums[o][w]);
            }
        }
    }
}
