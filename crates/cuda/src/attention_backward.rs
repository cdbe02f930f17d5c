//! Launchers of `attention_backward.cu`: gradients of queries, then of keys and values.
//!
//! The scratch holds each row's delta, the plan of which tile of keys meets which queries in which pieces, and the
//! results of all pieces but a tile's first. Pieces are as long as their results fit: [12288, 2 k d] at most, or
//! [M, 2 k d] where M is larger, or [8 M, 2 k d] where it is smaller. Attention over latents has pieces of its own rule
//! (attention_latent_plan.cuh), whose results are [M a / 8, 2 d] at most.

use super::attention_shape::{Gradients, Shape, THREADS, UNIT, panel_bytes, scale};
use super::rows::typed;
use super::{Arg, CudaDevice, Launch, attention_latent};
use plimsoll_base::DType;
use plimsoll_device::{AttentionBackward, SinkBackward};

/// Rows of pieces' results that a pass of fewer rows may have, up to `PARTS_OF_ROW` times its own.
const PART_ROWS: usize = 12288;
const PARTS_OF_ROW: usize = 8;
/// Items that an H200 runs at once in the keys' kernels with head dimensions 64, 128 and 256. Pieces are cut for this
/// number on every card, because it decides the order of sums.
const ITEMS_AT_ONCE: [usize; 3] = [132 * 3, 132 * 2, 132];
/// Threads of a block that only plans.
const PLAN_THREADS: u32 = 1024;
/// Threads of a block that sums the gradient of a head's sink: they decide the order of the sum.
const SINK_THREADS: u32 = 1024;
/// Alignment of the scratch's regions.
const ALIGN: u64 = 256;

/// Offsets in bytes of the regions of the scratch.
struct Scratch {
    delta: u64,
    counts: u64,
    of_row: u64,
    firsts: u64,
    tiles: u64,
    items: u64,
    parts: u64,
    end: u64,
}

/// Returns the maximum rows of pieces' results; it decides how long the plan's pieces are.
fn part_rows(rows: usize, segments: usize, [a, k, d]: [usize; 3]) -> usize {
    if attention_latent::is_planned(k, d) {
        return attention_latent::part_rows(rows, segments, a);
    }
    rows.max(PART_ROWS.min(PARTS_OF_ROW * rows)).next_multiple_of(UNIT)
}

/// Returns the maximum number of tiles: one of each segment is not full.
fn tiles_max(rows: usize, segments: usize) -> usize {
    rows.div_ceil(UNIT) + segments
}

/// Returns the maximum number of items: each tile's first piece, and those whose results are in the scratch.
fn items_max(rows: usize, segments: usize, part_rows: usize) -> usize {
    tiles_max(rows, segments) + part_rows / UNIT
}

impl Scratch {
    fn new(rows: usize, segments: usize, a: usize, k: usize, d: usize) -> Scratch {
        let (mut end, part_rows) = (0, part_rows(rows, segments, [a, k, d]));
        let mut region = |words: usize| {
            let begin = end;
            end += (words as u64 * 4).next_multiple_of(ALIGN);
            begin
        };
        Scratch {
            delta: region(rows * a),
            counts: region(4),
            of_row: region(rows),
            firsts: region(segments),
            tiles: region(tiles_max(rows, segments) * 4),
            items: region(items_max(rows, segments, part_rows) * 2),
            parts: region(part_rows * 2 * k * d),
            end: region(0),
        }
    }
}

/// Returns the bytes of scratch that `attention_backward` needs for passes up to these sizes.
pub fn attention_backward_scratch_bytes(
    rows: u64,
    segments: u64,
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
) -> u64 {
    Scratch::new(rows as usize, segments as usize, heads as usize, kv_heads as usize, head_dim as usize).end
}

/// Returns the module and the names of the queries' and the keys' kernels on tensor cores.
fn fast_kernels(dev: &CudaDevice, shape: &Shape) -> [&'static str; 3] {
    match dev.info().capability {
        _ if shape.is_wide() => {
            ["attention_backward_wide", "attention_backward_wide_queries", "attention_backward_wide_keys"]
        }
        (9, 0) => [
            "attention_backward_hopper",
            shape.fast("attention_backward_hopper_queries_64", "attention_backward_hopper_queries_128"),
            shape.fast("attention_backward_hopper_keys_64", "attention_backward_hopper_keys_128"),
        ],
        _ => [
            "attention_backward",
            shape.fast("attention_backward_queries_64", "attention_backward_queries_128"),
            shape.fast("attention_backward_keys_64", "attention_backward_keys_128"),
        ],
    }
}

/// Returns the shared memory of a block of the queries' and of the keys' kernel.
fn shared_bytes(dev: &CudaDevice, shape: &Shape) -> [usize; 2] {
    // Log-sum-exp, delta and both bounds of a buffer's queries.
    let fields = 4 * UNIT * 4;
    if shape.is_wide() {
        // A tile's own two rows, and half a unit of those that come; there are two buffers of fields.
        let rows = shape.wide_bytes(3 * UNIT);
        return [rows, rows + fields];
    }
    let (stream, aligned) = (shape.stream_bytes(), panel_bytes(dev));
    // Two buffers of queries, and a tile of keys and values.
    [stream + aligned, stream * 3 / 2 + 2 * fields + aligned]
}

/// Computes the gradient of attention; see `Device::attention_backward`.
pub(crate) fn backward(dev: &CudaDevice, args: AttentionBackward<'_>) {
    let AttentionBackward { q, kv, batch, scores, out, lse, dout, dq, dkv } = args;
    if batch.positions.is_empty() {
        return;
    }
    let shape = Shape::new(q, kv, batch, scores);
    let Shape { rows, segments, a, k, d, dtype, .. } = shape;
    assert_eq!([out.len(), dout.len(), dq.len()], [rows * a * d; 3], "out, dout, dq of [{rows}, {a} x {d}]");
    assert_eq!((lse.len(), dkv.len()), (rows * a, rows * 2 * k * d), "lse and dkv of {rows} rows");
    let dtypes = [out.dtype(), dout.dtype(), lse.dtype(), dq.dtype(), dkv.dtype()];
    assert_eq!(dtypes, [dtype, dtype, DType::F32, DType::F32, DType::F32], "out, dout, lse, dq, dkv");

    let at = Scratch::new(rows, segments, a, k, d);
    let scratch = dev.scratch(at.end);
    let region = |offset: u64| Arg::Ptr(scratch + offset);
    let [delta, counts, of_row, firsts, tiles, items, parts] =
        [at.delta, at.counts, at.of_row, at.firsts, at.tiles, at.items, at.parts].map(region);
    let part_rows = part_rows(rows, segments, [a, k, d]);
    let sizes = [part_rows, ITEMS_AT_ONCE[usize::from(d > 64) + usize::from(shape.is_wide())]]
        .map(|n| Arg::U32(n as u32));
    let plan = [&[counts, of_row, firsts, tiles, items][..], &sizes].concat();
    let [q, keys, values, segs, tables] =
        [q, kv.keys, kv.values, batch.segments, batch.tables].map(|b| dev.arg(b));
    let [out, lse, dout, dq, dkv] = [out, lse, dout, dq, dkv].map(|b| dev.arg(b));
    let items_max = items_max(rows, segments, part_rows);
    let inputs = [q, keys, values, segs, tables];
    let all = Gradients {
        inputs,
        out,
        lse,
        dout,
        dq,
        dkv,
        delta,
        counts,
        of_row,
        firsts,
        tiles,
        items,
        parts,
        items_max,
    };
    if attention_latent::takes_backward(dev, &shape) {
        return attention_latent::backward(dev, &shape, &all);
    }
    if !shape.is_fast() {
        return plain(dev, &shape, &all, &plan);
    }
    let launch = |module, kernel, how, parts: &[&[Arg]]| dev.launch(module, kernel, how, &parts.concat());
    let last = Arg::F32(scale(d));
    let [module, queries_kernel, keys_kernel] = fast_kernels(dev, &shape);
    let [queries_shared, keys_shared] = shared_bytes(dev, &shape);
    // One more block makes the plan.
    let mut how = shape.tiles(queries_shared);
    how.grid[0] += 1;
    let own = [out, lse, dout, delta, dq];
    launch(module, queries_kernel, how, &[&inputs, &own, &plan, &shape.args(), &[last]]);
    // Wide heads have a block for keys and one for values.
    let blocks = items_max * k * if shape.is_wide() { 2 } else { 1 };
    let how = Launch { grid: [blocks as u32, 1, 1], block: THREADS as u32, shared: keys_shared as u32 };
    let own = [lse, dout, delta, counts, tiles, items, parts, dkv];
    launch(module, keys_kernel, how, &[&inputs, &own, &shape.args(), &[last]]);
    let widths = [rows, a * d, 2 * k * d].map(|n| Arg::U32(n as u32));
    let own = [segs, counts, of_row, firsts, tiles, parts, dq, dkv];
    launch("attention_backward", "attention_backward_join", shape.warps(rows), &[&own, &widths]);
}

/// Computes the gradient of sinks; see `Device::sink_backward`.
pub(crate) fn sinks(dev: &CudaDevice, args: SinkBackward<'_>) {
    let SinkBackward { sinks, out, lse, dout, grad, add } = args;
    let a = sinks.len();
    let rows = lse.len() / a;
    let d = out.len() / (rows * a).max(1);
    assert_eq!((lse.len(), lse.dtype(), grad.len()), (rows * a, DType::F32, a), "lse of [{rows}, {a}]");
    assert_eq!([out.len(), dout.len()], [rows * a * d; 2], "out and dout of [{rows}, {a} x {d}]");
    assert_eq!(
        [sinks.dtype(), dout.dtype()],
        [out.dtype(); 2],
        "dtypes of sinks, outputs and their gradient"
    );
    let how = Launch { grid: [a as u32, 1, 1], block: SINK_THREADS, shared: 0 };
    let args = args![dev, sinks, out, lse, dout, grad, rows, a, d, add];
    dev.launch("attention_backward", typed!("sink_backward", out, grad), how, &args);
}

/// Computes the gradients with the plain kernels. `plan`: the plan's arguments.
fn plain(dev: &CudaDevice, shape: &Shape, all: &Gradients, plan: &[Arg]) {
    let launch =
        |kernel, how, parts: &[&[Arg]]| dev.launch("attention_backward", kernel, how, &parts.concat());
    let one_block = Launch { grid: [1, 1, 1], block: PLAN_THREADS, shared: 0 };
    let Gradients { inputs, out, lse, dout, dq, dkv, delta, of_row, .. } = *all;
    launch("attention_backward_plan", one_block, &[&[inputs[3]], plan, &shape.args()]);
    let last = shape.plain_args(1.0);
    let kernel = shape.plain([
        "attention_backward_plain_queries_bf16",
        "attention_backward_plain_queries_float",
        "attention_backward_plain_wide_queries_bf16",
        "attention_backward_plain_wide_queries_float",
    ]);
    let own = [out, lse, dout, of_row, delta, dq];
    launch(kernel, shape.warps(shape.rows * shape.a), &[&inputs, &own, &shape.args(), &last]);
    let kernel = shape.plain([
        "attention_backward_plain_keys_bf16",
        "attention_backward_plain_keys_float",
        "attention_backward_plain_wide_keys_bf16",
        "attention_backward_plain_wide_keys_float",
    ]);
    let own = [lse, dout, of_row, delta, dkv];
    launch(kernel, shape.warps(shape.rows * shape.k), &[&inputs, &own, &shape.args(), &last]);
}
