//! Launcher of `few.cu`: products of few rows on Hopper, in bf16, at the speed at which memory gives the weights.
//!
//! Legend: M rows, N outputs, K inputs. The kernel is used for an (N, K) once its bits were found to be the library's.

use super::boxes::{SHARED_MAX, STAGES_MAX, tensor_map};
use super::lt::{Op, Operands, Shape, Strides};
use super::rows::is_gelu;
use super::{Arg, CudaDevice, Launch};
use plimsoll_arch::Gate;
use plimsoll_base::DType;
use std::sync::atomic::Ordering;

/// Rows that four warps multiply, and those of a tile, which has at most two groups of them.
const GROUP_ROWS: usize = 64;
const TILE_ROWS: usize = 2 * GROUP_ROWS;
/// Maximum rows of a product of gates; of others those of a tile, beyond which the library is as fast.
const ROWS_MAX: usize = 2 * TILE_ROWS;
/// Outputs of a tile, by how many groups of warps there are.
const COLS: [&[usize]; 2] = [&[16, 24, 32, 40, 48], &[32, 48, 64, 96]];
/// Gates and ups of a tile, likewise.
const GATED_COLS: [&[usize]; 2] = [&[16, 32, 48], &[32, 64, 96]];
/// Bytes of a row of one step, 64 elements.
const STEP_BYTES: usize = 128;

/// True if the kernel takes a product, and gives the bits that the library would. A product of gates takes as many rows
/// whatever its size: it saves the operation after it.
pub(super) fn takes_gated(dev: &CudaDevice, shape: &Shape, operands: &Operands) -> bool {
    let strides = Strides { a: shape.k, b: shape.k, out: shape.n };
    let takes = shape.op == Op::Forward
        && shape.m <= ROWS_MAX
        && dev.info().capability == (9, 0)
        && shape.strides == strides
        && operands.scale == 1.0
        && !shape.of_many
        && [operands.added, operands.out, operands.bias].iter().all(|address| address.is_multiple_of(16));
    takes
        && dev.blas.has_bits_of(&dev.gpu, shape, dev.workspace(), |probe, operands| {
            dev.gpu.bind();
            forward(dev, probe, operands);
        })
}

/// True if the kernel takes a product and is faster than the library, whose bits it gives.
pub(super) fn takes(dev: &CudaDevice, shape: &Shape, operands: &Operands) -> bool {
    shape.m <= TILE_ROWS && takes_gated(dev, shape, operands)
}

/// Returns the groups of warps that share a tile's columns.
fn groups(m: usize) -> usize {
    m.div_ceil(GROUP_ROWS).min(TILE_ROWS / GROUP_ROWS)
}

/// Returns the columns of a tile: as few as one round of tiles allows, or those that keep the rounds shortest.
fn tile_cols(dev: &CudaDevice, all: &[usize], m: usize, n: usize) -> usize {
    let rows = m.div_ceil(TILE_ROWS);
    let rounds = |cols: usize| (n.div_ceil(cols) * rows).div_ceil(dev.multiprocessors() as usize);
    *all.iter().rev().min_by_key(|&&cols| rounds(cols) * cols.max(20)).expect("there are kernels")
}

pub(super) fn forward(dev: &CudaDevice, shape: &Shape, operands: Operands) {
    let &Shape { m, n, out, add, .. } = shape;
    let groups = groups(m);
    let cols = tile_cols(dev, COLS[groups - 1], m, n);
    let kernel = match (out, groups, cols) {
        (DType::F32, 1, 16) => "few_float_1_16",
        (DType::F32, 1, 24) => "few_float_1_24",
        (DType::F32, 1, 32) => "few_float_1_32",
        (DType::F32, 1, 40) => "few_float_1_40",
        (DType::F32, 1, _) => "few_float_1_48",
        (DType::F32, _, 32) => "few_float_2_32",
        (DType::F32, _, 48) => "few_float_2_48",
        (DType::F32, _, 64) => "few_float_2_64",
        (DType::F32, ..) => "few_float_2_96",
        (_, 1, 16) => "few_bf16_1_16",
        (_, 1, 24) => "few_bf16_1_24",
        (_, 1, 32) => "few_bf16_1_32",
        (_, 1, 40) => "few_bf16_1_40",
        (_, 1, _) => "few_bf16_1_48",
        (_, _, 32) => "few_bf16_2_32",
        (_, _, 48) => "few_bf16_2_48",
        (_, _, 64) => "few_bf16_2_64",
        (..) => "few_bf16_2_96",
    };
    let summand = match out {
        DType::F32 if add => operands.added,
        DType::F32 => 0,
        _ => operands.bias,
    };
    launch(dev, kernel, (shape, &operands), (cols, 1), [Arg::Ptr(summand), Arg::Ptr(operands.out)]);
}

/// Queues the product of gates and ups, and their product: `shape` is of the former, and the output [M, N / 2].
pub(super) fn gated(dev: &CudaDevice, shape: &Shape, operands: Operands, how: Gate) {
    let groups = groups(shape.m);
    // The widest tile has the least to read again for a second tile of rows.
    let all = if shape.m > TILE_ROWS { &GATED_COLS[1][2..] } else { GATED_COLS[groups - 1] };
    let cols = tile_cols(dev, all, shape.m, shape.n);
    let kernel = match (groups, cols) {
        (1, 16) => "few_gated_1_16",
        (1, 32) => "few_gated_1_32",
        (1, _) => "few_gated_1_48",
        (_, 32) => "few_gated_2_32",
        (_, 64) => "few_gated_2_64",
        (..) => "few_gated_2_96",
    };
    launch(dev, kernel, (shape, &operands), (cols, 2), [Arg::Ptr(operands.out), is_gelu(how)]);
}

/// Launches a kernel whose tiles have `cols` rows of W, in `runs` parts.
fn launch(
    dev: &CudaDevice,
    kernel: &'static str,
    (shape, operands): (&Shape, &Operands),
    (cols, runs): (usize, usize),
    ends: [Arg; 2],
) {
    let &Shape { m, n, k, .. } = shape;
    let groups = groups(m);
    // Rows of x after a box are never stored: its copies need not fill them.
    let boxed = m.min(GROUP_ROWS * groups).next_multiple_of(8);
    let steps = if cols * groups < GROUP_ROWS { 2 } else { 1 };
    let (bytes, after) = (steps * (boxed + cols) * STEP_BYTES, (GROUP_ROWS * groups - boxed) * STEP_BYTES);
    let stages = ((SHARED_MAX - after) / bytes).min(STAGES_MAX);
    let is_recording = dev.pipeline.is_recording.load(Ordering::Relaxed);
    let is_fixed = !dev.is_widened(operands.a) && is_recording;
    let x = Arg::Map(tensor_map(dev, operands.b, m, k, boxed));
    let w = Arg::Map(tensor_map(dev, operands.a, n, k, cols / runs));
    let args = args![dev, x, w, m, n / runs, k.div_ceil(STEP_BYTES / 2), boxed, stages, is_fixed];
    let args = [&args[..], &ends].concat();
    let tiles = n.div_ceil(cols) * m.div_ceil(GROUP_ROWS * groups);
    let grid = [tiles.min(dev.multiprocessors() as usize) as u32, 1, 1];
    let shared = (stages * bytes + after + 1024) as u32;
    dev.launch("few", kernel, Launch { grid, block: 128 * groups as u32 + 64, shared }, &args);
}
