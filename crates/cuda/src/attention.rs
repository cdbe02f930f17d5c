//! Launchers of `attention.cu`: attention over the paged cache, in decode, prefill and training, and over whole images.
//!
//! A row's bits are the same in all of them; which kernel runs is a matter of speed. Every segment has at least one
//! row, so as many segments as rows have one each and are decoded: a block for each segment and key-value head, or,
//! where those would be too few, for each of their chunks of 512 keys. Other segments are cut into tiles of rows. Heads
//! of 256 elements have their own kernels, in `attention_wide.cu`, and so has attention over latents of 576 elements
//! (`attention_latent.rs`). Heads of 64 elements with sinks have kernels of their own. Other head dimensions than 64,
//! 128 and 256, or than 64 with sinks, f32, and capped scores take the plain kernel everywhere. Rows that see whole
//! segments take the same kernels: a number of keys is all that differs.

use super::attention_shape::{
    BLOCK_ROWS, CHUNKED_BLOCKS_MAX, Shape, THREADS, TILE, UNIT, decode_chunks, panel_bytes, parts_bytes,
    scale,
};
use super::{Arg, CudaDevice, Launch, attention_latent};
use plimsoll_device::{ATTENTION_CHUNK, Batch, Kv, Scores};
use plimsoll_memory::Buf;

/// Blocks of a decode pass from which on neighbours read shared chunks together; fewer would not fill a card then.
const SHARING_BLOCKS_MIN: usize = 256;
/// Shared memory of a block that every architecture from sm_80 on has.
const SHARED_MAX: usize = 99 << 10;
/// Returns the blocks of a row's heads in a decode pass, and the elements that a chunk gives for each head.
fn head_blocks(heads: usize, kv_heads: usize, head_dim: usize) -> (usize, usize) {
    if attention_latent::is_planned(kv_heads, head_dim) {
        return (attention_latent::head_blocks(heads), attention_latent::VALUE);
    }
    (kv_heads * (heads / kv_heads).div_ceil(TILE), head_dim)
}

/// Returns the bytes of scratch to decode `rows` rows with up to `keys_max` keys each, or any smaller pass.
pub fn attention_scratch_bytes(rows: u64, heads: u64, kv_heads: u64, head_dim: u64, keys_max: u64) -> u64 {
    let chunks = keys_max.div_ceil(ATTENTION_CHUNK as u64);
    let (row_blocks, width) = head_blocks(heads as usize, kv_heads as usize, head_dim as usize);
    let rows = rows.min((CHUNKED_BLOCKS_MAX / row_blocks) as u64);
    if chunks > 1 { parts_bytes(rows, heads, width as u64, chunks) } else { 0 }
}

/// Computes attention; see `Device::attention`.
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
    let sinks = scores.sinks.map_or(Arg::Ptr(0), |b| dev.arg(b));
    let places = shape.rows * shape.a;
    assert_eq!((out.len(), out.dtype()), (q.len(), q.dtype()), "out and q");
    assert_eq!(lse.map_or(places, |b| b.len()), places, "lse of [{}, {}]", shape.rows, shape.a);
    let lse = lse.map_or(Arg::Ptr(0), |b| dev.arg(b));
    let inputs = [q, kv.keys, kv.values, batch.segments, batch.tables, out].map(|b| dev.arg(b));
    if attention_latent::takes(dev, &shape) {
        let [q, keys, _, segments, tables, out] = inputs;
        return attention_latent::forward(dev, &shape, [q, keys, segments, tables, out, lse]);
    }
    let log_scale = Arg::F32(scale(shape.d) * std::f32::consts::LOG2_E);
    let before = [&inputs[..], &[lse]].concat();
    if !shape.is_fast() {
        let kernel = shape.plain([
            "attention_plain_bf16",
            "attention_plain_float",
            "attention_plain_wide_bf16",
            "attention_plain_wide_float",
        ]);
        let args =
            [&before[..], &shape.args(), &shape.plain_args(std::f32::consts::LOG2_E), &[sinks]].concat();
        return dev.launch("attention", kernel, shape.warps(places), &args);
    }
    if shape.rows == shape.segments && !shape.is_whole {
        return decode(dev, &shape, &before, log_scale, sinks);
    }
    let mut args = [&before[..], &shape.args(), &[log_scale]].concat();
    if shape.is_wide() {
        // A tile of queries, a unit of keys and one of values.
        let how = shape.tiles(shape.wide_bytes(3 * UNIT));
        return dev.launch("attention_wide", "attention_wide_tiles", how, &args);
    }
    // Each thread's part of the chunks before: half its warp's row elements, and the sums of two rows.
    let totals = if shape.keys_max > ATTENTION_CHUNK { (shape.d / 2 + 4) * THREADS * 4 } else { 0 };
    let kernel = match dev.info().capability {
        (9, 0) => shape.sinking([
            "attention_hopper_tiles_64",
            "attention_sunk_hopper_tiles",
            "attention_hopper_tiles_128",
        ]),
        _ => shape.sinking(["attention_tiles_64", "attention_sunk_tiles", "attention_tiles_128"]),
    };
    args.extend(shape.is_sunk.then_some(sinks));
    dev.launch("attention", kernel, shape.tiles(shape.stream_bytes() + totals + panel_bytes(dev)), &args);
}

/// Decodes segments of one row each. `before`: the parameters up to lse.
fn decode(dev: &CudaDevice, shape: &Shape, before: &[Arg], log_scale: Arg, sinks: Arg) {
    let Shape { segments, a, k, d, .. } = *shape;
    let (row_blocks, width) = head_blocks(a, k, d);
    let (chunks, parts) = decode_chunks(dev, shape, row_blocks, width);
    let grid = [segments as u32, row_blocks as u32, chunks.max(1) as u32];
    let (warps, shared) = decode_warps(shape);
    let how = Launch { grid, block: 32 * warps as u32, shared: shared as u32 };
    let [module, kernel, join] = if shape.is_wide() {
        ["attention_wide", "attention_wide_decode", "attention_wide_join"]
    } else {
        [
            "attention",
            shape.sinking(["attention_decode_64", "attention_sunk_decode", "attention_decode_128"]),
            shape.sinking(["attention_join_64", "attention_sunk_join", "attention_join_128"]),
        ]
    };
    let (chunks_arg, sinks) = (Arg::U32(chunks as u32), shape.is_sunk.then_some(sinks));
    let mut args = [before, &[parts], &shape.args(), &[chunks_arg]].concat();
    if !shape.is_wide() {
        let shares = chunks > 0 && warps == THREADS / 32 && segments * row_blocks >= SHARING_BLOCKS_MIN;
        args.push(Arg::U32(if shares { sharing(a / k) } else { 0 }));
    }
    args.push(log_scale);
    args.extend(sinks);
    dev.launch(module, kernel, how, &args);
    if chunks > 0 {
        let how = Launch {
            grid: [(segments * a * d / 4).div_ceil(THREADS) as u32, 1, 1],
            block: THREADS as u32,
            shared: 0,
        };
        // Segments, out and lse.
        let mut args = [&[parts, before[3], before[5], before[6]], &shape.args()[..], &[chunks_arg]].concat();
        args.extend(sinks);
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
