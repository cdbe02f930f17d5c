//! Launchers of `attention.cu`: causal attention over the paged cache, in decode, prefill and training.
//!
//! A row's bits are the same in all of them; which kernel runs is a matter of speed. Every segment has at least one
//! row, so as many segments as rows have one each and are decoded: a block for each segment and key-value head, or,
//! where those would be too few, for each of their chunks of 512 keys. Other segments are cut into tiles of rows. Heads
//! of 256 elements have their own kernels, in `attention_wide.cu`. Head dimensions other than 64, 128 and 256, f32, and
//! capped scores take the plain kernel everywhere.

use super::{Arg, CudaDevice, Launch};
use plimsoll_base::DType;
use plimsoll_device::{ATTENTION_CHUNK, Batch, KV_BLOCK, Kv, SEGMENT_FIELDS, Scores};
use plimsoll_memory::Buf;

/// Rows of a warp, as in `attention_tile.cuh`.
const TILE: usize = 16;
/// Keys that are taken together.
pub(super) const UNIT: usize = 64;
/// Alignment of Hopper's panels in shared memory.
const PANEL_ALIGN: usize = 1024;
pub(super) const THREADS: usize = 128;
const BLOCK_ROWS: usize = THREADS / 32 * TILE;
/// Elements of the largest heads, for `attention_wide.cu` and `attention_backward_wide.cu`.
const WIDE: usize = 256;
/// Blocks of a decode pass up to which chunks of keys get blocks of their own; more fill a card by themselves.
const CHUNKED_BLOCKS_MAX: usize = 1024;
/// Blocks of a decode pass from which on neighbours read shared chunks together; fewer would not fill a card then.
const SHARING_BLOCKS_MIN: usize = 256;
/// Shared memory of a block that every architecture from sm_80 on has.
const SHARED_MAX: usize = 99 << 10;
/// Largest head dimension of the plain kernels.
const HEAD_DIM_MAX: usize = WIDE;

/// True if attention takes heads of `head_dim` elements: whole tiles, up to the widest of its kernels.
pub fn takes_head_dim(head_dim: usize) -> bool {
    head_dim.is_multiple_of(16) && head_dim <= HEAD_DIM_MAX
}

/// The arguments of all attention kernels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Rows of the pass.
    pub(super) rows: usize,
    pub(super) segments: usize,
    table_entries: usize,
    blocks: usize,
    /// Maximum keys of any row.
    pub(super) keys_max: usize,
    pub(super) a: usize,
    pub(super) k: usize,
    pub(super) d: usize,
    /// Maximum keys that a row sees.
    window: u32,
    /// Soft cap on scores.
    cap: Option<f32>,
    /// Dtype of queries, cache and outputs.
    pub(super) dtype: DType,
}

impl Shape {
    /// Checks q and the cache against the batch, which has at least one row.
    pub(super) fn new(q: Buf<'_>, kv: Kv<'_>, batch: Batch<'_>, scores: Scores<'_>) -> Shape {
        let Scores { window, cap, sinks } = scores;
        assert!(sinks.is_none(), "plans for cards refuse sinks");
        assert!(window > 0, "a row sees itself");
        let (rows, k, d) = (batch.positions.len(), kv.kv_heads, kv.head_dim);
        let a = q.len() / (rows * d);
        assert_eq!(q.len(), rows * a * d, "q of [{rows}, {a} x {d}]");
        assert!(a >= k && a.is_multiple_of(k), "{a} heads over {k} key-value heads");
        assert!(d.is_multiple_of(16) && d <= HEAD_DIM_MAX, "head dimension {d}: a multiple of 16 up to 256");
        assert_eq!(kv.keys.len(), kv.values.len(), "keys and values");
        assert_eq!(kv.keys.len() % (k * d * KV_BLOCK), 0, "whole blocks");
        let dtypes = [kv.keys.dtype(), kv.values.dtype()];
        assert_eq!(dtypes, [q.dtype(); 2], "dtypes of the cache and of q");
        assert_eq!(batch.segments.len() % SEGMENT_FIELDS, 0, "whole segments");
        let table_entries = batch.tables.len();
        Shape {
            rows,
            segments: batch.segments.len() / SEGMENT_FIELDS,
            table_entries,
            blocks: kv.keys.len() / (k * d * KV_BLOCK),
            keys_max: batch.keys_max.min(table_entries * KV_BLOCK),
            a,
            k,
            d,
            window: u32::try_from(window).unwrap_or(u32::MAX),
            cap,
            dtype: q.dtype(),
        }
    }

    /// Returns the kernels' last parameters.
    pub(super) fn args(&self) -> [Arg; 8] {
        let count = |n: usize| Arg::U32(u32::try_from(n).expect("counts stay below 2^32"));
        let [rows, segments, entries, blocks] =
            [self.rows, self.segments, self.table_entries, self.blocks].map(count);
        let [keys, a, k] = [self.keys_max, self.a, self.k].map(count);
        [rows, segments, entries, blocks, keys, a, k, Arg::U32(self.window)]
    }

    /// Returns the last parameters of the plain kernels: d, and the scale and cap of scores in units of 1 / `unit`.
    pub(super) fn plain_args(&self, unit: f32) -> [Arg; 3] {
        let [scale, cap] = [scale(self.d), self.cap.unwrap_or(0.0)].map(|x| Arg::F32(x * unit));
        [Arg::U32(self.d as u32), scale, cap]
    }

    /// True for the kernels on tensor cores.
    pub(super) fn is_fast(&self) -> bool {
        self.dtype == DType::Bf16 && matches!(self.d, 64 | 128 | WIDE) && self.cap.is_none()
    }

    /// True for heads that have kernels of their own.
    pub(super) fn is_wide(&self) -> bool {
        self.d == WIDE
    }

    /// Returns the bytes of `rows` rows of wide heads in shared memory.
    pub(super) fn wide_bytes(&self, rows: usize) -> usize {
        rows * WIDE * 2
    }

    /// Returns one of two kernels, by head dimension.
    pub(super) fn fast(&self, d64: &'static str, d128: &'static str) -> &'static str {
        if self.d == 64 { d64 } else { d128 }
    }

    /// Returns one of two plain kernels, by dtype.
    pub(super) fn plain(&self, bf16: &'static str, f32: &'static str) -> &'static str {
        match self.dtype {
            DType::Bf16 => bf16,
            DType::F32 => f32,
            other => panic!("attention in {}", other.name()),
        }
    }

    /// Returns a launch with a block per tile of rows and key-value head: at most one tile a segment is not full.
    pub(super) fn tiles(&self, shared: usize) -> Launch {
        let tiles = (self.rows * self.a / self.k).div_ceil(BLOCK_ROWS) + self.segments;
        Launch { grid: [(tiles * self.k) as u32, 1, 1], block: THREADS as u32, shared: shared as u32 }
    }

    /// Returns a launch of a warp for each of `items`.
    pub(super) fn warps(&self, items: usize) -> Launch {
        let grid = u32::try_from(items.div_ceil(THREADS / 32)).expect("rows and heads fit a grid");
        Launch { grid: [grid, 1, 1], block: THREADS as u32, shared: 0 }
    }

    /// Returns the bytes of the two buffers of keys and values in shared memory.
    pub(super) fn stream_bytes(&self) -> usize {
        2 * 2 * UNIT * self.d * 2
    }
}

/// Returns the most shared memory that a block loses before its first panel: Hopper's only, others have no panels.
pub(super) fn panel_bytes(dev: &CudaDevice) -> usize {
    if dev.info().capability == (9, 0) { PANEL_ALIGN } else { 0 }
}

/// Returns 1/sqrt(d).
pub(super) fn scale(d: usize) -> f32 {
    1.0 / (d as f32).sqrt()
}

/// Returns the blocks of a row's heads in a decode pass.
fn head_blocks(heads: usize, kv_heads: usize) -> usize {
    kv_heads * (heads / kv_heads).div_ceil(TILE)
}

/// Returns the bytes of scratch to decode `rows` rows with up to `keys_max` keys each, or any smaller pass.
pub fn attention_scratch_bytes(rows: u64, heads: u64, kv_heads: u64, head_dim: u64, keys_max: u64) -> u64 {
    let chunks = keys_max.div_ceil(ATTENTION_CHUNK as u64);
    let row_blocks = head_blocks(heads as usize, kv_heads as usize) as u64;
    let rows = rows.min(CHUNKED_BLOCKS_MAX as u64 / row_blocks);
    if chunks > 1 { parts_bytes(rows, heads, head_dim, chunks) } else { 0 }
}

/// Returns the bytes of (out, max, sum) of every head and chunk.
fn parts_bytes(rows: u64, heads: u64, head_dim: u64, chunks: u64) -> u64 {
    rows * heads * chunks * (head_dim + 2) * 4
}

/// Computes causal attention; see `Device::attention`.
pub(crate) fn forward(
    dev: &CudaDevice,
    q: Buf<'_>,
    kv: Kv<'_>,
    batch: Batch<'_>,
    scores: Scores<'_>,
    out: Buf<'_>,
    lse: Option<Buf<'_>>,
) {
    if batch.positions.is_empty() {
        return;
    }
    let shape = Shape::new(q, kv, batch, scores);
    let places = shape.rows * shape.a;
    assert_eq!((out.len(), out.dtype()), (q.len(), q.dtype()), "out and q");
    assert_eq!(lse.map_or(places, |b| b.len()), places, "lse of [{}, {}]", shape.rows, shape.a);
    let lse = lse.map_or(Arg::Ptr(0), |b| dev.arg(b));
    let inputs = [q, kv.keys, kv.values, batch.segments, batch.tables, out].map(|b| dev.arg(b));
    let log_scale = Arg::F32(scale(shape.d) * std::f32::consts::LOG2_E);
    let before = [&inputs[..], &[lse]].concat();
    if !shape.is_fast() {
        let kernel = shape.plain("attention_plain_bf16", "attention_plain_float");
        let args = [&before[..], &shape.args(), &shape.plain_args(std::f32::consts::LOG2_E)].concat();
        return dev.launch("attention", kernel, shape.warps(places), &args);
    }
    if shape.rows == shape.segments {
        return decode(dev, &shape, &before, log_scale);
    }
    let args = [&before[..], &shape.args(), &[log_scale]].concat();
    if shape.is_wide() {
        // A tile of queries, a unit of keys and one of values.
        let how = shape.tiles(shape.wide_bytes(3 * UNIT));
        return dev.launch("attention_wide", "attention_wide_tiles", how, &args);
    }
    // Each thread's part of the chunks before: half its warp's row elements, and the sums of two rows.
    let totals = if shape.keys_max > ATTENTION_CHUNK { (shape.d / 2 + 4) * THREADS * 4 } else { 0 };
    let kernel = match dev.info().capability {
        (9, 0) => shape.fast("attention_hopper_tiles_64", "attention_hopper_tiles_128"),
        _ => shape.fast("attention_tiles_64", "attention_tiles_128"),
    };
    dev.launch("attention", kernel, shape.tiles(shape.stream_bytes() + totals + panel_bytes(dev)), &args);
}

/// Decodes segments of one row each. `before`: the parameters up to lse.
fn decode(dev: &CudaDevice, shape: &Shape, before: &[Arg], log_scale: Arg) {
    let Shape { segments, a, k, d, .. } = *shape;
    let all_chunks = shape.keys_max.div_ceil(ATTENTION_CHUNK);
    let row_blocks = head_blocks(a, k);
    let bytes = parts_bytes(segments as u64, a as u64, d as u64, all_chunks as u64);
    // A pass of single rows that is no decode pass may find no room: then a block takes all chunks, with the same bits.
    let has_room = dev.scratch.is_some_and(|(_, len)| bytes <= len);
    let is_small = segments * row_blocks <= CHUNKED_BLOCKS_MAX;
    let chunks = if is_small && has_room && all_chunks > 1 { all_chunks } else { 0 };
    let parts = Arg::Ptr(if chunks > 0 { dev.scratch(bytes) } else { 0 });
    let grid = [segments as u32, row_blocks as u32, chunks.max(1) as u32];
    let (warps, shared) = decode_warps(shape);
    let how = Launch { grid, block: 32 * warps as u32, shared: shared as u32 };
    let [module, kernel, join] = if shape.is_wide() {
        ["attention_wide", "attention_wide_decode", "attention_wide_join"]
    } else {
        [
            "attention",
            shape.fast("attention_decode_64", "attention_decode_128"),
            shape.fast("attention_join_64", "attention_join_128"),
        ]
    };
    let chunks_arg = Arg::U32(chunks as u32);
    let mut args = [before, &[parts], &shape.args(), &[chunks_arg]].concat();
    if !shape.is_wide() {
        let shares = chunks > 0 && warps == THREADS / 32 && segments * row_blocks >= SHARING_BLOCKS_MIN;
        args.push(Arg::U32(if shares { sharing(a / k) } else { 0 }));
    }
    args.push(log_scale);
    dev.launch(module, kernel, how, &args);
    if chunks > 0 {
        let how = Launch {
            grid: [(segments * a * d / 4).div_ceil(THREADS) as u32, 1, 1],
            block: THREADS as u32,
            shared: 0,
        };
        // Segments, out and lse.
        let args = [&[parts, before[3], before[5], before[6]], &shape.args()[..], &[chunks_arg]].concat();
        dev.launch(module, join, how, &args);
    }
}

/// Returns the neighbours among which rows share chunks, for groups of `group` heads: as many as fill a block's rows, a
/// power of two, as the responses of a prompt mostly are; 0 for too large groups.
fn sharing(group: usize) -> u32 {
    match (BLOCK_ROWS / group).min(32) {
        0 | 1 => 0,
        most => 1 << most.ilog2(),
    }
}

/// Returns the warps of a block that decodes, and its shared memory.
fn decode_warps(shape: &Shape) -> (usize, usize) {
    let Shape { a, k, d, .. } = *shape;
    if shape.is_wide() {
        // A tile of queries, a unit of keys and one of values.
        return (1, shape.wide_bytes(TILE + 2 * UNIT));
    }
    // A warp's halves of units on their way; units' results and the chunks' before, rows 8 floats apart; their sums.
    let slots = if d == 64 { 4 } else { 2 };
    let results = 9 * (a / k).min(TILE) * (d + 8) * 4 + 10 * TILE * 8;
    let shared = |warps: usize| warps * slots * UNIT / 2 * d * 2 + results;
    let warps = [4, 2, 1].into_iter().find(|&w| shared(w) <= SHARED_MAX).expect("one warp fits");
    (warps, shared(warps))
}
