//! Launchers of `attention_latent.cu`, `attention_backward_latent.cu` and their twins for Hopper: attention over
//! latents, whose keys are values too, in bf16, with keys of 576 elements and values of 512.
//!
//! How many rows a block has, and whether keys come through one buffer or two, follows from a card's shared memory and
//! changes no bit. Other widths, f32, and cards whose shared memory is too small take the plain kernels.

use super::attention_shape::{Gradients, Shape, UNIT, decode_chunks, scale};
use super::{Arg, CudaDevice, Launch};
use plimsoll_base::DType;

/// Elements of a key, its first ones that no value has, and those of a value.
const KEY: usize = 576;
const FIRST: usize = 64;
pub(super) const VALUE: usize = KEY - FIRST;
/// Threads of a team of warps, and the most rows that it takes.
const TEAM: usize = 128;
const TEAM_ROWS: usize = 32;
/// Rows of the smallest and of the largest block.
const ROWS_MIN: usize = 16;
const ROWS_MAX: usize = 64;
/// Keys of a block of the keys' gradients, and rows that it takes together.
const KEYS: usize = 32;
const QUERIES: usize = 32;
/// Steps of a piece of a tile of keys, on average, and heads for each of which there may be one more after the first.
const PIECE_STEPS: usize = 128;
const PIECE_HEADS: usize = 16;
/// Threads of a block of the keys' gradients.
const KEYS_THREADS: u32 = 256;
/// Threads of a block of Hopper's kernels, and the alignment of panels.
const HOPPER_THREADS: u32 = 256;
const PANEL_ALIGN: usize = 1024;
/// Panels of a key, and those of a value.
const KEY_PANELS: usize = KEY / UNIT;
const VALUE_PANELS: usize = VALUE / UNIT;

/// Rows of a block and buffers of keys.
#[derive(Clone, Copy)]
struct Block {
    rows: usize,
    buffers: usize,
}

/// True if heads of this width with one key for all are planned as latents.
pub(super) fn is_planned(kv_heads: usize, head_dim: usize) -> bool {
    kv_heads == 1 && head_dim == KEY
}

/// Returns the maximum rows of results of pieces after a tile's first: of whole tiles, and of segments' last ones that
/// many rows see. A row is in one such tile of its own segment and sees one of its parent's; a tile of more than one
/// piece has more than `PIECE_STEPS` steps of `UNIT` rows and heads, of which a row is in `heads / UNIT` at most,
/// rounded up.
pub(super) fn part_rows(rows: usize, segments: usize, heads: usize) -> usize {
    let last = segments.min(2 * rows * heads.div_ceil(UNIT) / (PIECE_STEPS + 1));
    (rows / UNIT + last).max(1) * UNIT * (heads / PIECE_HEADS).max(1)
}

/// Returns the blocks of a row's heads in a decode pass.
pub(super) fn head_blocks(heads: usize) -> usize {
    heads.div_ceil(ROWS_MAX)
}

/// True if attention with these arguments has the kernels on this card.
pub(super) fn takes(dev: &CudaDevice, shape: &Shape) -> bool {
    let is_latent = shape.latent == Some(FIRST) && is_planned(shape.k, shape.d);
    is_latent
        && shape.dtype == DType::Bf16
        && shape.sees_all()
        && block_of(dev, ROWS_MAX, forward_bytes).is_some()
}

/// True if the card has room for the kernels of the backward pass.
pub(super) fn takes_backward(dev: &CudaDevice, shape: &Shape) -> bool {
    let block = block_of(dev, ROWS_MAX, queries_bytes);
    takes(dev, shape) && block.is_some_and(|block| block.rows > ROWS_MIN) && key_buffers(dev).is_some()
}

/// Returns the most shared memory of a block.
fn shared_max(dev: &CudaDevice) -> usize {
    match dev.info().capability {
        (8, 0) | (8, 7) => 163 << 10,
        (9..=11, _) => 227 << 10,
        _ => 99 << 10,
    }
}

/// Returns the bytes of a unit of keys in its buffers.
fn unit_bytes(buffers: usize) -> usize {
    buffers * UNIT * KEY * 2
}

/// Queries, weights, and the numbers of four warps twice.
fn forward_bytes(block: Block) -> usize {
    block.rows * (KEY * 2 + UNIT * 2 + 2 * 4 * 4) + unit_bytes(block.buffers)
}

/// Queries, gradients of outputs, weights and deltas.
fn queries_bytes(block: Block) -> usize {
    block.rows * (KEY * 2 + VALUE * 2 + UNIT * 2 + 4) + unit_bytes(block.buffers)
}

/// Keys, both weights in whole rows, four quarters of two products, three numbers of each row, and rows.
fn keys_bytes(buffers: usize) -> usize {
    let (partials, fields) = (2 * 4 * KEYS * (QUERIES + 8) * 4, 2 * 3 * QUERIES * 4);
    KEYS * (KEY * 2 + 2 * UNIT * 2) + partials + fields + buffers * QUERIES * (KEY + VALUE) * 2
}

/// Returns the fastest block for `rows` rows of a segment that fits the card, or none if none does.
fn block_of(dev: &CudaDevice, rows: usize, bytes: fn(Block) -> usize) -> Option<Block> {
    let most = rows.min(ROWS_MAX).next_power_of_two().max(ROWS_MIN);
    // Two small blocks of one buffer fit a multiprocessor, and hide each other's copies.
    let all = [(64, 2), (64, 1), (32, 1), (16, 1)].map(|(rows, buffers)| Block { rows, buffers });
    all.into_iter().find(|block| block.rows <= most && bytes(*block) <= shared_max(dev))
}

fn key_buffers(dev: &CudaDevice) -> Option<usize> {
    [2, 1].into_iter().find(|&buffers| keys_bytes(buffers) <= shared_max(dev))
}

/// Returns the shared memory of a block of Hopper's kernels: `panels` of 64 rows and 64 columns, and what is besides.
fn hopper(panels: usize, rest: usize) -> Launch {
    let shared = panels * UNIT * UNIT * 2 + rest + PANEL_ALIGN;
    Launch { grid: [1; 3], block: HOPPER_THREADS, shared: shared as u32 }
}

fn is_hopper(dev: &CudaDevice) -> bool {
    dev.info().capability == (9, 0)
}

fn count(n: usize) -> Arg {
    Arg::U32(n as u32)
}

impl Block {
    fn kernel(self, names: [&'static str; 3]) -> &'static str {
        names[(self.rows / 32).min(2)]
    }

    fn launch(self, grid: [usize; 3], bytes: usize) -> Launch {
        let block = (TEAM * self.rows.div_ceil(TEAM_ROWS)) as u32;
        Launch { grid: grid.map(|n| n as u32), block, shared: bytes as u32 }
    }

    /// Returns the most tiles of a pass's rows: at most one a segment is not full.
    fn tiles(self, shape: &Shape) -> usize {
        (shape.rows * shape.a).div_ceil(self.rows) + shape.segments
    }
}

/// Computes attention. `inputs`: q, keys, segments, tables, out, lse.
pub(super) fn forward(dev: &CudaDevice, shape: &Shape, inputs: [Arg; 6]) {
    let log_scale = Arg::F32(scale(KEY) * std::f32::consts::LOG2_E);
    if shape.rows == shape.segments {
        return decode(dev, shape, inputs, log_scale);
    }
    if is_hopper(dev) {
        // Queries, two units of keys, weights; the largest score of two groups and four sums of each row.
        let how = hopper(3 * KEY_PANELS + 1, UNIT * 6 * 4);
        let how = Launch { grid: [Block { rows: UNIT, buffers: 2 }.tiles(shape) as u32, 1, 1], ..how };
        let args = [&inputs[..], &shape.args(), &[log_scale]].concat();
        return dev.launch("attention_latent_hopper", "attention_latent_hopper_tiles", how, &args);
    }
    let block = block_of(dev, ROWS_MAX, forward_bytes).expect("a card that takes latents");
    let kernel =
        block.kernel(["attention_latent_tiles_16", "attention_latent_tiles_32", "attention_latent_tiles_64"]);
    let args = [&inputs[..], &shape.args(), &[count(block.buffers), log_scale]].concat();
    let how = block.launch([block.tiles(shape), 1, 1], forward_bytes(block));
    dev.launch("attention_latent", kernel, how, &args);
}

/// Decodes segments of one row each.
fn decode(dev: &CudaDevice, shape: &Shape, inputs: [Arg; 6], log_scale: Arg) {
    let (chunks, parts) = decode_chunks(dev, shape, head_blocks(shape.a), VALUE);
    let block = block_of(dev, shape.a, forward_bytes).expect("a card that takes latents");
    let kernel = block.kernel([
        "attention_latent_decode_16",
        "attention_latent_decode_32",
        "attention_latent_decode_64",
    ]);
    let how =
        block.launch([shape.segments, shape.a.div_ceil(block.rows), chunks.max(1)], forward_bytes(block));
    let own = [count(chunks), count(block.buffers), log_scale];
    dev.launch("attention_latent", kernel, how, &[&inputs[..], &[parts], &shape.args(), &own].concat());
    if chunks > 0 {
        let [_, _, segments, _, out, lse] = inputs;
        let grid = [(shape.segments * shape.a * KEY / 4).div_ceil(TEAM) as u32, 1, 1];
        let how = Launch { grid, block: TEAM as u32, shared: 0 };
        let args = [&[parts, segments, out, lse], &shape.args()[..], &[count(chunks)]].concat();
        dev.launch("attention_latent", "attention_latent_join", how, &args);
    }
}

/// Computes the gradients of queries, keys and values; see `attention_backward.rs` for the scratch.
pub(super) fn backward(dev: &CudaDevice, shape: &Shape, of: &Gradients) {
    let launch = |kernel, how, parts: &[&[Arg]]| {
        dev.launch("attention_backward_latent", kernel, how, &parts.concat());
    };
    let last = Arg::F32(scale(KEY));
    let [q, keys, _, segments, tables] = of.inputs;
    let inputs = [q, keys, segments, tables];
    if is_hopper(dev) {
        gradients_by_hopper(dev, shape, of, (inputs, last));
    } else {
        gradients(dev, shape, of, (inputs, last));
    }
    let own = [segments, of.of_row, of.firsts, of.tiles, of.parts, of.dq, of.dkv];
    let sizes = [count(shape.rows), count(shape.a)];
    launch("attention_backward_latent_join", shape.warps(shape.rows), &[&own, &sizes]);
}

/// Computes dQ, and dK and dV by pieces, by Hopper's own instructions. A tile's dK and dV are two blocks.
fn gradients_by_hopper(dev: &CudaDevice, shape: &Shape, of: &Gradients, (inputs, last): ([Arg; 4], Arg)) {
    // Queries, gradients of outputs, a unit of keys, weights, and what is exchanged; or keys, and a unit of the others.
    let panels = 2 * KEY_PANELS + VALUE_PANELS + 2;
    let launch = |kernel, blocks: usize, rest, parts: &[&[Arg]]| {
        let how = Launch { grid: [blocks as u32, 1, 1], ..hopper(panels, rest) };
        dev.launch("attention_backward_latent_hopper", kernel, how, &parts.concat());
    };
    let own = [of.out, of.lse, of.dout, of.delta, of.dq, of.counts, of.of_row, of.firsts, of.tiles, of.items];
    // One more block makes the plan.
    let blocks = Block { rows: UNIT, buffers: 1 }.tiles(shape) + 1;
    launch("attention_backward_latent_hopper_queries", blocks, 0, &[&inputs, &own, &shape.args(), &[last]]);
    let own = [of.lse, of.dout, of.delta, of.counts, of.tiles, of.items, of.parts, of.dkv];
    // Two steps' log-sum-exps, deltas and bounds.
    let rest = 2 * 3 * UNIT * 4;
    let blocks = 2 * of.items_max;
    launch("attention_backward_latent_hopper_keys", blocks, rest, &[&inputs, &own, &shape.args(), &[last]]);
}

/// Computes dQ, and dK and dV by pieces, of which each has two blocks of half the keys.
fn gradients(dev: &CudaDevice, shape: &Shape, of: &Gradients, (inputs, last): ([Arg; 4], Arg)) {
    let launch = |kernel, how, parts: &[&[Arg]]| {
        dev.launch("attention_backward_latent", kernel, how, &parts.concat());
    };
    let block = block_of(dev, ROWS_MAX, queries_bytes).expect("a card that takes latents");
    // No card has room for the smallest blocks alone.
    let kernel = if block.rows == ROWS_MAX {
        "attention_backward_latent_queries_64"
    } else {
        "attention_backward_latent_queries_32"
    };
    // One more block makes the plan.
    let how = block.launch([block.tiles(shape) + 1, 1, 1], queries_bytes(block));
    let own = [of.out, of.lse, of.dout, of.delta, of.dq, of.counts, of.of_row, of.firsts, of.tiles, of.items];
    launch(kernel, how, &[&inputs, &own, &shape.args(), &[count(block.buffers), last]]);
    let buffers = key_buffers(dev).expect("a card that takes latents");
    let grid = [2 * of.items_max as u32, 1, 1];
    let how = Launch { grid, block: KEYS_THREADS, shared: keys_bytes(buffers) as u32 };
    let own = [of.lse, of.dout, of.delta, of.counts, of.tiles, of.items, of.parts, of.dkv];
    launch("attention_backward_latent_keys", how, &[&inputs, &own, &shape.args(), &[count(buffers), last]]);
}
