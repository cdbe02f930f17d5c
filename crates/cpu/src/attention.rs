//! Attention over the paged cache, causal or over whole segments: training, prefill and decode in one order of
//! arithmetic.
//!
//! Keys are in blocks of 16; a chunk is 512 keys from absolute position 0. Each chunk gives (max, sum, out) in f32;
//! chunks are merged in ascending order, the first taken as it is. A score is one chain over d, an output element one
//! chain over the chunk's keys, a sum 16 chains over blocks and a tree. So a row's bits depend on its own keys only:
//! not on the rows it is computed with, nor on whether it is decoded, prefilled or trained. Slots beyond a row's own
//! position are never used, whatever they hold.

#![allow(clippy::needless_range_loop)] // Indices run over several arrays, which stay in registers.

mod softmax;
pub(super) mod tiles;

use super::activation::capped;
use super::elementwise::convert_row;
use super::lanes::{LANES, Lanes, Simd, by_dtype, simd_fn};
use super::rope::HEAD_DIM_MAX;
use super::{CpuDevice, Shared};
use plimsoll_base::math;
use plimsoll_device::{ALL_KEYS, ATTENTION_CHUNK, Batch, KV_BLOCK, Kv, SEGMENT_FIELDS, Scores};
use plimsoll_memory::Buf;
use softmax::{Seen, Softmax, merge, softmax};
use std::mem::MaybeUninit;
use std::ops::Range;
use tiles::{STRIDE, dot_tile, sum_tile, tile_of};

/// Queries (rows times heads of one key-value head) that share the loads of keys and values.
const QUERIES_MAX: usize = 24;
/// Elements from one query's scores to the next; see `STRIDE`.
const SCORES_STRIDE: usize = ATTENTION_CHUNK + LANES;
/// Multiply-adds of a task: some 10 us.
const TASK_WORK: usize = 1 << 18;
/// Maximum tasks: enough to even out items of different lengths.
const TASKS_MAX: usize = 96;

/// A record of `Batch::segments`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) first_row: usize,
    pub(super) rows: usize,
    pub(super) first_position: usize,
    pub(super) table: usize,
    /// First row of the parent, or `NO_PARENT`.
    pub(super) parent: u32,
}

pub(super) fn segments(fields: &[u32]) -> impl Iterator<Item = Segment> + Clone + '_ {
    fields.as_chunks::<SEGMENT_FIELDS>().0.iter().map(|f| Segment {
        first_row: f[0] as usize,
        rows: f[1] as usize,
        first_position: f[2] as usize,
        table: f[3] as usize,
        parent: f[4],
    })
}

#[derive(Clone, Copy)]
pub(super) struct Dims {
    pub(super) a: usize,
    pub(super) k: usize,
    pub(super) d: usize,
}

impl Dims {
    pub(super) fn new(rows: usize, q: Buf<'_>, kv: Kv<'_>) -> Dims {
        let (k, d) = (kv.kv_heads, kv.head_dim);
        let a = q.len() / (rows * d);
        assert!(
            d.is_multiple_of(LANES) && d <= HEAD_DIM_MAX,
            "head dimension {d}: a multiple of 16 up to {HEAD_DIM_MAX}"
        );
        assert_eq!(q.len(), rows * a * d, "q of [{rows}, {a} x {d}]");
        assert!(a >= k && a.is_multiple_of(k), "{a} heads over {k} key-value heads");
        assert_eq!(kv.keys.len(), kv.values.len(), "keys and values");
        assert_eq!(kv.keys.len() % (k * d * KV_BLOCK), 0, "whole blocks");
        Dims { a, k, d }
    }

    /// Returns the query heads per key-value head.
    pub(super) fn group(self) -> usize {
        self.a / self.k
    }
}

pub(super) fn forward(
    dev: &CpuDevice,
    q: Buf<'_>,
    kv: Kv<'_>,
    batch: Batch<'_>,
    scores: Scores<'_>,
    out: Buf<'_>,
    lse: Option<Buf<'_>>,
) {
    let window = scores.window;
    assert!(window > 0, "a row sees itself");
    assert!(!scores.is_whole || window == ALL_KEYS, "rows that see whole segments have no window");
    let rows = batch.positions.len();
    if rows == 0 {
        return;
    }
    let dims = Dims::new(rows, q, kv);
    assert_eq!(out.len(), q.len(), "out and q");
    assert_eq!(lse.map_or(rows * dims.a, |b| b.len()), rows * dims.a, "lse of [{rows}, {}]", dims.a);
    assert!(scores.sinks.is_none_or(|sinks| sinks.len() == dims.a), "a sink of each of {} heads", dims.a);
    let (fields, tables) = (dev.read::<u32>(batch.segments), dev.read::<u32>(batch.tables));
    let cut = Cut::new(dims);
    by_dtype!(q, T => {
        let call = Call::<T> {
            dims,
            window,
            is_whole: scores.is_whole,
            cap: scores.cap,
            sinks: scores.sinks.map(|sinks| dev.read(sinks)),
            q: dev.read(q),
            keys: dev.read(kv.keys),
            values: dev.read(kv.values),
            out: dev.write(out),
            lse: lse.map(|b| dev.write(b)),
        };
        let items = segments(fields).map(|s| cut.items(&s)).sum::<usize>();
        let keys = segments(fields).map(|s| s.rows * (s.first_position + s.rows).min(window)).sum::<usize>();
        let tasks = (keys * dims.a * dims.d * 2 / TASK_WORK).min(TASKS_MAX).min(items).max(1);
        dev.pool().run(tasks, &|task, _thread| {
            // Descending, because the last rows of a segment have the most keys.
            let task = tasks - 1 - task;
            let mine = items * task / tasks..items * (task + 1) / tasks;
            let mut first = 0;
            for segment in segments(fields) {
                let here = first..first + cut.items(&segment);
                for item in mine.start.max(here.start)..mine.end.min(here.end) {
                    attend::<T>(dev.isa(), &call, &segment, &tables[segment.table..], &cut.item(&segment, item - first));
                }
                first = here.end;
            }
        });
    });
}

/// The cut of a segment into items of at most `QUERIES_MAX` queries.
#[derive(Clone, Copy)]
struct Cut {
    dims: Dims,
    rows: usize,
    heads: usize,
}

/// Rows of a segment and query heads that are computed together.
struct Item {
    rows: Range<usize>,
    kv_head: usize,
    heads: Range<usize>,
}

impl Cut {
    fn new(dims: Dims) -> Cut {
        let heads = dims.group().min(QUERIES_MAX);
        Cut { dims, rows: QUERIES_MAX / heads, heads }
    }

    fn items(&self, segment: &Segment) -> usize {
        self.dims.k * self.dims.group().div_ceil(self.heads) * segment.rows.div_ceil(self.rows)
    }

    fn item(&self, segment: &Segment, index: usize) -> Item {
        let (blocks, parts) = (segment.rows.div_ceil(self.rows), self.dims.group().div_ceil(self.heads));
        let (block, part, kv_head) = (index % blocks, index / blocks % parts, index / (blocks * parts));
        let (group, row, head) = (self.dims.group(), block * self.rows, part * self.heads);
        Item {
            rows: row..(row + self.rows).min(segment.rows),
            kv_head,
            heads: kv_head * group + head..kv_head * group + (head + self.heads).min(group),
        }
    }
}

struct Call<'a, T> {
    dims: Dims,
    /// Maximum keys that a row sees.
    window: usize,
    /// True if a row sees all keys of its segment.
    is_whole: bool,
    /// Soft cap on scores.
    cap: Option<f32>,
    /// A score of each head that every softmax begins with.
    sinks: Option<&'a [T]>,
    q: &'a [T],
    keys: &'a [T],
    values: &'a [T],
    out: Shared<'a, T>,
    lse: Option<Shared<'a, f32>>,
}

/// The blocks of one key-value head along a segment's table.
#[derive(Clone, Copy)]
pub(super) struct Blocks<'a, T> {
    pub(super) data: &'a [T],
    pub(super) table: &'a [u32],
    pub(super) dims: Dims,
    pub(super) kv_head: usize,
}

impl<T> Blocks<'_, T> {
    /// Returns a pointer to the block that holds keys 16 i..16 i + 16.
    #[inline(always)]
    pub(super) fn at(&self, i: usize) -> *const T {
        let size = self.dims.d * KV_BLOCK;
        let start = (self.table[i] as usize * self.dims.k + self.kv_head) * size;
        self.data[start..start + size].as_ptr()
    }
}

scratch! {
    /// An item's working memory: 150 KiB of stack; only what the head dimension and the keys need is touched.
    Scratch, Work {
        q: QUERIES_MAX * STRIDE,
        scores: QUERIES_MAX * SCORES_STRIDE,
        /// Sums over values of the chunk.
        out: QUERIES_MAX * STRIDE,
        /// Sums over values of the chunks so far.
        total: QUERIES_MAX * STRIDE,
    }
}

simd_fn! {
    fn attend[T: Lanes](s: S, call: &Call<'_, T>, segment: &Segment, table: &[u32], item: &Item) {
        let Dims { a, d, .. } = call.dims;
        let (heads, n) = (item.heads.len(), item.rows.len() * item.heads.len());
        let mut scratch = MaybeUninit::<Scratch>::uninit();
        let Work { q, scores, out, total } = Work::new(&mut scratch);
        // Query i is of row i / heads; its place in q and out counts heads of d elements.
        let place = |i: usize| (segment.first_row + item.rows.start + i / heads) * a + item.heads.start + i % heads;
        for i in 0..n {
            // SAFETY: row i of the scratch, which this task borrows mutably.
            let to = unsafe { std::slice::from_raw_parts_mut(q.add(i * STRIDE), d) };
            convert_row(s, &call.q[place(i) * d..][..d], to);
        }
        let blocks = Blocks { data: call.keys, table, dims: call.dims, kv_head: item.kv_head };
        let values = Blocks { data: call.values, ..blocks };
        let last = if call.is_whole { segment.rows } else { item.rows.end };
        let keys_max = segment.first_position + last;
        let first_keys = if call.is_whole { keys_max } else { keys_max + 1 - item.rows.len() };
        // `None` for a query whose window begins in a later chunk, if no sink comes before it.
        let mut soft = [None; QUERIES_MAX];
        if let Some(sinks) = call.sinks {
            for i in 0..n {
                soft[i] = Some(Softmax { max: sinks[item.heads.start + i % heads].to_f32(), sum: 1.0 });
                // SAFETY: row i of the scratch, which this task borrows mutably.
                unsafe { std::slice::from_raw_parts_mut(total.add(i * STRIDE), d) }.fill(0.0);
            }
        }
        let first_chunk = first_keys.saturating_sub(call.window) / ATTENTION_CHUNK * ATTENTION_CHUNK;
        for chunk in (first_chunk..keys_max).step_by(ATTENTION_CHUNK) {
            // Keys of this chunk that each query sees.
            let mut seen = [Seen::default(); QUERIES_MAX];
            for (i, seen) in seen.iter_mut().enumerate().take(n) {
                let keys = if call.is_whole { keys_max } else { first_keys + i / heads };
                *seen = Seen::of(keys, call.window, chunk);
            }
            let seen = &seen[..n];
            let block = chunk / KV_BLOCK;
            // SAFETY: the scratch has rows of queries and scores for n queries.
            unsafe {
                chunk_scores(s, blocks, block, seen, q, scores);
                if let Some(cap) = call.cap {
                    cap_scores(s, seen, cap, scores);
                }
                let mut fresh = [Softmax::default(); QUERIES_MAX];
                for i in 0..n {
                    fresh[i] = softmax(s, scores.add(i * SCORES_STRIDE), seen[i]);
                }
                let to = if chunk == first_chunk && call.sinks.is_none() { total } else { out };
                chunk_values(s, values, block, seen, scores, to);
                for i in (0..n).filter(|&i| !seen[i].is_empty()) {
                    let (total, out) = (total.add(i * STRIDE), out.add(i * STRIDE));
                    match &mut soft[i] {
                        Some(soft) => merge(s, d, soft, total, fresh[i], out),
                        none => {
                            *none = Some(fresh[i]);
                            if chunk > first_chunk {
                                total.copy_from_nonoverlapping(out, d);
                            }
                        }
                    }
                }
            }
        }
        for i in 0..n {
            let soft = soft[i].expect("a row sees itself");
            // SAFETY: row i of the scratch; rows and heads of items are disjoint.
            unsafe {
                let total = std::slice::from_raw_parts(total.add(i * STRIDE), d);
                let to = call.out.range(place(i) * d, d);
                let sum = s.splat(soft.sum);
                for (to, x) in to.as_chunks_mut::<LANES>().0.iter_mut().zip(total.as_chunks::<LANES>().0) {
                    T::store(s, to, s.div(f32::load(s, x), sum));
                }
                if let Some(lse) = &call.lse {
                    let lse = lse.range(place(i), 1);
                    lse[0] = (f64::from(soft.max) + math::ln(f64::from(soft.sum))) as f32;
                }
            }
        }
    }
}

/// Computes the scaled scores of the blocks from `first_block` that each query sees, and of some before them.
///
/// # Safety
/// `q` and `scores` have rows for all queries of `seen`.
#[inline(always)]
unsafe fn chunk_scores<S: Simd, T: Lanes>(
    s: S,
    blocks: Blocks<'_, T>,
    first_block: usize,
    seen: &[Seen],
    q: *const f32,
    scores: *mut f32,
) {
    let mut at = 0;
    while at < seen.len() {
        let sizes: &[usize] = if S::ACCUMULATORS >= 16 { &[8, 4, 3, 2, 1] } else { &[4, 3, 2, 1] };
        let size = tile_of(sizes, seen.len() - at);
        // Queries ascend in position: the first of a tile sees the earliest key, the last one the latest.
        let (skip, num_blocks) = (seen[at].from / KV_BLOCK, seen[at + size - 1].upto.div_ceil(KV_BLOCK));
        let range = first_block + skip..first_block + num_blocks;
        // SAFETY: queries at..at + size are among those of `seen`, for which the caller promises rows.
        unsafe {
            let (q, scores) = (q.add(at * STRIDE), scores.add(at * SCORES_STRIDE + skip * LANES));
            match (size, S::ACCUMULATORS >= 16) {
                (8, _) => score_tile::<S, T, 8, 2>(s, blocks, range, q, scores),
                (4, true) => score_tile::<S, T, 4, 4>(s, blocks, range, q, scores),
                (3, true) => score_tile::<S, T, 3, 4>(s, blocks, range, q, scores),
                (2, true) => score_tile::<S, T, 2, 4>(s, blocks, range, q, scores),
                (1, true) => score_tile::<S, T, 1, 4>(s, blocks, range, q, scores),
                (4, false) => score_tile::<S, T, 4, 1>(s, blocks, range, q, scores),
                (3, false) => score_tile::<S, T, 3, 1>(s, blocks, range, q, scores),
                (2, false) => score_tile::<S, T, 2, 2>(s, blocks, range, q, scores),
                _ => score_tile::<S, T, 1, 4>(s, blocks, range, q, scores),
            }
        }
        at += size;
    }
}

/// # Safety
/// `q` and `scores` have Q rows.
#[inline(always)]
unsafe fn score_tile<S: Simd, T: Lanes, const Q: usize, const B: usize>(
    s: S,
    blocks: Blocks<'_, T>,
    range: Range<usize>,
    q: *const f32,
    scores: *mut f32,
) {
    let d = blocks.dims.d;
    let scale = s.splat(1.0 / (d as f32).sqrt());
    let mut i = range.start;
    while i + B <= range.end {
        let mut keys = [std::ptr::null(); B];
        for b in 0..B {
            keys[b] = blocks.at(i + b);
        }
        // SAFETY: Q rows of queries; a block has d vectors; at most ATTENTION_CHUNK scores in a row.
        unsafe {
            let sums = dot_tile::<S, T, Q, B>(s, d, q, keys);
            for (o, sums) in sums.iter().enumerate() {
                for (b, &sum) in sums.iter().enumerate() {
                    s.store(scores.add(o * SCORES_STRIDE + (i - range.start + b) * LANES), s.mul(sum, scale));
                }
            }
        }
        i += B;
    }
    while i < range.end {
        // SAFETY: the caller promises Q rows of scores; a chunk has at most ATTENTION_CHUNK keys.
        unsafe {
            let sums = dot_tile::<S, T, Q, 1>(s, d, q, [blocks.at(i)]);
            for (o, sums) in sums.iter().enumerate() {
                s.store(scores.add(o * SCORES_STRIDE + (i - range.start) * LANES), s.mul(sums[0], scale));
            }
        }
        i += 1;
    }
}

/// Caps the scores that queries see, and the others of their blocks.
///
/// # Safety
/// `scores` has rows for all queries of `seen`.
#[inline(always)]
unsafe fn cap_scores<S: Simd>(s: S, seen: &[Seen], cap: f32, scores: *mut f32) {
    for (i, seen) in seen.iter().enumerate().filter(|(_, seen)| !seen.is_empty()) {
        for block in seen.from / LANES..seen.upto.div_ceil(LANES) {
            // SAFETY: row i of the scores, which has a chunk's.
            unsafe {
                let at = scores.add(i * SCORES_STRIDE + block * LANES);
                s.store(at, capped(s, s.load(at), cap));
            }
        }
    }
}

/// Sets out[query] to the sum over the keys that it sees of weight times value.
///
/// # Safety
/// `weights` and `out` have rows for all queries of `seen`.
#[inline(always)]
unsafe fn chunk_values<S: Simd, T: Lanes>(
    s: S,
    blocks: Blocks<'_, T>,
    first_block: usize,
    seen: &[Seen],
    weights: *const f32,
    out: *mut f32,
) {
    let mut column = 0;
    while column < blocks.dims.d {
        let left = (blocks.dims.d - column) / LANES;
        let width = if S::ACCUMULATORS >= 16 { tile_of(&[4, 2, 1], left) } else { tile_of(&[2, 1], left) };
        let mut at = 0;
        while at < seen.len() {
            let sizes: &[usize] = if S::ACCUMULATORS >= 16 { &[6, 4, 3, 2, 1] } else { &[2, 1] };
            let size = tile_of(sizes, seen.len() - at);
            let seen = &seen[at..at + size];
            // SAFETY: queries at..at + size are among those of `seen`, for which the caller promises rows.
            unsafe {
                let (w, o) = (weights.add(at * SCORES_STRIDE), out.add(at * STRIDE + column));
                match (width, size) {
                    (4, 6) => value_tile::<S, T, 6, 4>(s, blocks, first_block, column, seen, w, o),
                    (4, 4) => value_tile::<S, T, 4, 4>(s, blocks, first_block, column, seen, w, o),
                    (4, 3) => value_tile::<S, T, 3, 4>(s, blocks, first_block, column, seen, w, o),
                    (4, 2) => value_tile::<S, T, 2, 4>(s, blocks, first_block, column, seen, w, o),
                    (4, _) => value_tile::<S, T, 1, 4>(s, blocks, first_block, column, seen, w, o),
                    (2, 6) => value_tile::<S, T, 6, 2>(s, blocks, first_block, column, seen, w, o),
                    (2, 4) => value_tile::<S, T, 4, 2>(s, blocks, first_block, column, seen, w, o),
                    (2, 3) => value_tile::<S, T, 3, 2>(s, blocks, first_block, column, seen, w, o),
                    (2, 2) => value_tile::<S, T, 2, 2>(s, blocks, first_block, column, seen, w, o),
                    (2, _) => value_tile::<S, T, 1, 2>(s, blocks, first_block, column, seen, w, o),
                    (_, 6) => value_tile::<S, T, 6, 1>(s, blocks, first_block, column, seen, w, o),
                    (_, 4) => value_tile::<S, T, 4, 1>(s, blocks, first_block, column, seen, w, o),
                    (_, 3) => value_tile::<S, T, 3, 1>(s, blocks, first_block, column, seen, w, o),
                    (_, 2) => value_tile::<S, T, 2, 1>(s, blocks, first_block, column, seen, w, o),
                    _ => value_tile::<S, T, 1, 1>(s, blocks, first_block, column, seen, w, o),
                }
            }
            at += size;
        }
        column += width * LANES;
    }
}

/// # Safety
/// `weights` and `out` have Q rows; `seen` has Q elements, ascending.
#[inline(always)]
unsafe fn value_tile<S: Simd, T: Lanes, const Q: usize, const W: usize>(
    s: S,
    blocks: Blocks<'_, T>,
    first_block: usize,
    column: usize,
    seen: &[Seen],
    weights: *const f32,
    out: *mut f32,
) {
    let d = blocks.dims.d;
    let mut sums = [[s.splat(0.0); W]; Q];
    // First the keys that only earlier rows see, then whole blocks that all queries see, then keys only later rows see.
    let (first, whole) = (seen[0], seen[Q - 1].from.next_multiple_of(KV_BLOCK));
    let common = if whole < first.upto { whole..first.upto } else { first.from..first.from };
    // SAFETY: the caller promises Q rows of weights, and the table has the blocks of all keys that are seen.
    unsafe {
        let of = (blocks, first_block, column);
        some_keys::<S, T, Q, W>(s, of, first.from..common.start, seen, weights, &mut sums);
    }
    for start in common.clone().step_by(KV_BLOCK) {
        let count = (common.end - start).min(KV_BLOCK);
        // SAFETY: W vectors from `column` are inside a row of d elements; the block has 16 rows.
        unsafe {
            let rows = blocks.at(first_block + start / KV_BLOCK).add(column);
            sum_tile::<S, T, Q, W>(s, &mut sums, weights.add(start), (SCORES_STRIDE, 1), rows, d, count);
        }
    }
    // SAFETY: as above.
    unsafe {
        let of = (blocks, first_block, column);
        some_keys::<S, T, Q, W>(s, of, common.end..seen[Q - 1].upto, seen, weights, &mut sums);
    }
    for q in 0..Q {
        for w in 0..W {
            // SAFETY: the caller promises Q rows of `out`, and q < Q.
            unsafe { s.store(out.add(q * STRIDE + w * LANES), sums[q][w]) };
        }
    }
}

/// Adds keys that only some queries of a tile see.
///
/// # Safety
/// Requires what `value_tile` requires.
#[inline(always)]
unsafe fn some_keys<S: Simd, T: Lanes, const Q: usize, const W: usize>(
    s: S,
    (blocks, first_block, column): (Blocks<'_, T>, usize, usize),
    keys: Range<usize>,
    seen: &[Seen],
    weights: *const f32,
    sums: &mut [[S::F; W]; Q],
) {
    let d = blocks.dims.d;
    for key in keys {
        let rows = blocks.at(first_block + key / KV_BLOCK);
        for q in 0..Q {
            if seen[q].from <= key && key < seen[q].upto {
                // SAFETY: W vectors from `column` are inside a row of d elements, and the caller promises Q rows.
                unsafe {
                    let x = s.splat(*weights.add(q * SCORES_STRIDE + key));
                    for w in 0..W {
                        let value = T::load_at(s, rows.add(key % KV_BLOCK * d + column + w * LANES));
                        sums[q][w] = s.fma(x, value, sums[q][w]);
                    }
                }
            }
        }
    }
}
