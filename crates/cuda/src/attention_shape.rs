//! What all kernels of attention take: the sizes of a pass, its chunks of keys, and the addresses of a backward pass.

use super::{Arg, CudaDevice, Launch};
use plimsoll_base::DType;
use plimsoll_device::{ALL_KEYS, ATTENTION_CHUNK, Batch, KV_BLOCK, Kv, SEGMENT_FIELDS, Scores};
use plimsoll_memory::Buf;

/// Rows of a warp, as in `attention_tile.cuh`.
pub(super) const TILE: usize = 16;
/// Keys that are taken together.
pub(super) const UNIT: usize = 64;
/// Alignment of Hopper's panels in shared memory.
const PANEL_ALIGN: usize = 1024;
pub(super) const THREADS: usize = 128;
pub(super) const BLOCK_ROWS: usize = THREADS / 32 * TILE;
/// Elements of the largest heads, for `attention_wide.cu` and `attention_backward_wide.cu`.
pub(super) const WIDE: usize = 256;
/// Blocks of a decode pass up to which chunks of keys get blocks of their own; more fill a card by themselves.
pub(super) const CHUNKED_BLOCKS_MAX: usize = 1024;
/// Largest head dimension of the plain kernels; those of heads wider than `WIDE` have names of their own.
const HEAD_DIM_MAX: usize = 576;

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
    /// True if rows see all keys of their segments.
    pub(super) is_whole: bool,
    /// True if softmaxes begin with sinks.
    pub(super) is_sunk: bool,
    /// Columns at the start of values that nothing reads, if values are the keys' rows.
    pub(super) latent: Option<usize>,
    /// Dtype of queries, cache and outputs.
    pub(super) dtype: DType,
}

impl Shape {
    /// Checks q and the cache against the batch, which has at least one row.
    pub(super) fn new(q: Buf<'_>, kv: Kv<'_>, batch: Batch<'_>, scores: Scores<'_>) -> Shape {
        let Scores { window, cap, sinks, latent, is_whole } = scores;
        let sees_all = sinks.is_none() && latent.is_none() && window == ALL_KEYS;
        assert!(!is_whole || sees_all, "rows that see whole segments have no windows, sinks or latents");
        assert!(sinks.is_none() || latent.is_none(), "attention over latents has no sinks");
        assert!(window > 0, "a row sees itself");
        let (rows, k, d) = (batch.positions.len(), kv.kv_heads, kv.head_dim);
        let a = q.len() / (rows * d);
        assert_eq!(q.len(), rows * a * d, "q of [{rows}, {a} x {d}]");
        assert!(a >= k && a.is_multiple_of(k), "{a} heads over {k} key-value heads");
        assert!(takes_head_dim(d), "head dimension {d}: a multiple of 16 up to {HEAD_DIM_MAX}");
        assert_eq!(kv.keys.len(), kv.values.len(), "keys and values");
        assert_eq!(kv.keys.len() % (k * d * KV_BLOCK), 0, "whole blocks");
        let dtypes = [kv.keys.dtype(), kv.values.dtype()];
        assert_eq!(dtypes, [q.dtype(); 2], "dtypes of the cache and of q");
        assert!(sinks.is_none_or(|b| (b.len(), b.dtype()) == (a, q.dtype())), "a sink of each of {a} heads");
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
            is_whole,
            is_sunk: sinks.is_some(),
            latent,
            dtype: q.dtype(),
        }
    }

    /// Returns the kernels' last parameters.
    pub(super) fn args(&self) -> [Arg; 9] {
        let count = |n: usize| Arg::U32(u32::try_from(n).expect("counts stay below 2^32"));
        let [rows, segments, entries, blocks] =
            [self.rows, self.segments, self.table_entries, self.blocks].map(count);
        let [keys, a, k] = [self.keys_max, self.a, self.k].map(count);
        let whole = Arg::U32(self.is_whole.into());
        [rows, segments, entries, blocks, keys, a, k, Arg::U32(self.window), whole]
    }

    /// Returns the last parameters of the plain kernels: d, and the scale and cap of scores in units of 1 / `unit`.
    pub(super) fn plain_args(&self, unit: f32) -> [Arg; 3] {
        let [scale, cap] = [scale(self.d), self.cap.unwrap_or(0.0)].map(|x| Arg::F32(x * unit));
        [Arg::U32(self.d as u32), scale, cap]
    }

    /// True for the kernels on tensor cores. With sinks they are of heads of 64 elements alone.
    pub(super) fn is_fast(&self) -> bool {
        let has_kernels = self.d == 64 || (matches!(self.d, 128 | WIDE) && !self.is_sunk);
        self.dtype == DType::Bf16 && has_kernels && self.cap.is_none()
    }

    /// True if rows see all keys before them, with uncapped scores.
    pub(super) fn sees_all(&self) -> bool {
        self.window == u32::MAX && self.cap.is_none()
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

    /// Returns one of three kernels: of heads of 64 elements, with sinks, and of 128.
    pub(super) fn sinking(&self, [d64, sunk, d128]: [&'static str; 3]) -> &'static str {
        if self.is_sunk { sunk } else { self.fast(d64, d128) }
    }

    /// Returns one of four plain kernels: of heads up to 256 elements in bf16 and f32, and of wider ones.
    pub(super) fn plain(&self, kernels: [&'static str; 4]) -> &'static str {
        let of_dtype = match self.dtype {
            DType::Bf16 => 0,
            DType::F32 => 1,
            other => panic!("attention in {}", other.name()),
        };
        kernels[2 * usize::from(self.d > WIDE) + of_dtype]
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

/// Returns the bytes of (out, max, sum) of every head and chunk.
pub(super) fn parts_bytes(rows: u64, heads: u64, width: u64, chunks: u64) -> u64 {
    rows * heads * chunks * (width + 2) * 4
}

/// Returns the chunks that get blocks of their own, 0 if a block takes all of a row's, and where their results go:
/// `width` elements of each head. A row has `row_blocks` blocks for a chunk.
pub(super) fn decode_chunks(
    dev: &CudaDevice,
    shape: &Shape,
    row_blocks: usize,
    width: usize,
) -> (usize, Arg) {
    let all_chunks = shape.keys_max.div_ceil(ATTENTION_CHUNK);
    let bytes = parts_bytes(shape.segments as u64, shape.a as u64, width as u64, all_chunks as u64);
    // A pass of single rows that is no decode pass may find no room: then a block takes all chunks, with the same bits.
    let has_room = dev.scratch.is_some_and(|(_, len)| bytes <= len);
    let is_small = shape.segments * row_blocks <= CHUNKED_BLOCKS_MAX;
    let chunks = if is_small && has_room && all_chunks > 1 { all_chunks } else { 0 };
    (chunks, Arg::Ptr(if chunks > 0 { dev.scratch(bytes) } else { 0 }))
}

/// The addresses that kernels of the backward pass take.
#[derive(Clone, Copy)]
pub(super) struct Gradients {
    /// q, keys, values, segments, tables.
    pub(super) inputs: [Arg; 5],
    pub(super) out: Arg,
    pub(super) lse: Arg,
    pub(super) dout: Arg,
    pub(super) dq: Arg,
    pub(super) dkv: Arg,
    pub(super) delta: Arg,
    pub(super) counts: Arg,
    pub(super) of_row: Arg,
    pub(super) firsts: Arg,
    pub(super) tiles: Arg,
    pub(super) items: Arg,
    pub(super) parts: Arg,
    /// Maximum number of items.
    pub(super) items_max: usize,
}
