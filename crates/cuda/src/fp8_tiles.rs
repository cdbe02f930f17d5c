//! Launcher of `fp8.cu`: products of numbers of eight bits by our own kernel.
//!
//! Legend: M rows, N outputs, K inputs.

use super::boxes::{SHARED_MAX, STAGES_MAX, tensor_map};
use super::lt::Fp8Shape;
use super::{Arg, CudaDevice, Launch};
use plimsoll_base::DType;
use plimsoll_device::{FP8_BLOCK, FP8_WIDTH_MAX, fp8_pitch};
use std::sync::atomic::Ordering;

/// Rows that four warps multiply, and those of a tile, which has at most two groups of them.
const GROUP_ROWS: usize = 64;
pub(super) const TILE_ROWS: usize = 2 * GROUP_ROWS;
/// Outputs of a tile, by how many groups of warps there are.
const COLS: [&[usize]; 2] = [&[16, 24, 32, 40, 48, 64, 72], &[32, 48, 64]];
/// What a round of tiles takes besides its outputs, in outputs.
const ROUND: usize = 40;
/// Shared memory of a tile's scales of weights and of barriers.
const FIXED_BYTES: usize = 10 << 10;
/// Steps of K are as many, or more.
const SETS: usize = 4;
/// Maximum steps of K, as in `fp8.cu`.
const STEPS_MAX: usize = 512;
/// Addresses of a product's operands, W and x with their scales.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fp8Operands {
    pub(super) w: (u64, u64),
    pub(super) x: (u64, u64),
    /// From one step of K to the next of x's scales.
    pub(super) pitch: usize,
    /// What is added: a matrix or a bias; 0 for nothing.
    pub(super) summand: u64,
    pub(super) out: u64,
}

/// Returns the columns of a tile: those that keep the rounds shortest.
fn tile_cols(dev: &CudaDevice, all: &[usize], row_tiles: usize, n: usize) -> usize {
    let rounds = |cols: usize| (n.div_ceil(cols) * row_tiles).div_ceil(dev.multiprocessors() as usize);
    *all.iter().rev().min_by_key(|&&cols| rounds(cols) * (cols + ROUND)).expect("there are kernels")
}

/// Queues our own kernel. Rows of x's scales are whole boxes.
pub(super) fn launch(dev: &CudaDevice, of: &Fp8Shape, operands: &Fp8Operands) {
    let &Fp8Shape { m, n, k, out, .. } = of;
    let groups = m.div_ceil(GROUP_ROWS).min(TILE_ROWS / GROUP_ROWS);
    let row_tiles = m.div_ceil(GROUP_ROWS * groups);
    let cols = tile_cols(dev, COLS[groups - 1], row_tiles, n);
    let kernel = match (out, groups, cols) {
        (DType::F32, 1, 16) => "fp8_float_1_16",
        (DType::F32, 1, 24) => "fp8_float_1_24",
        (DType::F32, 1, 32) => "fp8_float_1_32",
        (DType::F32, 1, 40) => "fp8_float_1_40",
        (DType::F32, 1, 48) => "fp8_float_1_48",
        (DType::F32, 1, 64) => "fp8_float_1_64",
        (DType::F32, 1, _) => "fp8_float_1_72",
        (DType::F32, _, 32) => "fp8_float_2_32",
        (DType::F32, _, 48) => "fp8_float_2_48",
        (DType::F32, ..) => "fp8_float_2_64",
        (_, 1, 16) => "fp8_bf16_1_16",
        (_, 1, 24) => "fp8_bf16_1_24",
        (_, 1, 32) => "fp8_bf16_1_32",
        (_, 1, 40) => "fp8_bf16_1_40",
        (_, 1, 48) => "fp8_bf16_1_48",
        (_, 1, 64) => "fp8_bf16_1_64",
        (_, 1, _) => "fp8_bf16_1_72",
        (_, _, 32) => "fp8_bf16_2_32",
        (_, _, 48) => "fp8_bf16_2_48",
        (..) => "fp8_bf16_2_64",
    };
    // Rows of x after a box are never stored: its copies need not fill them.
    let boxed = m.min(GROUP_ROWS * groups).next_multiple_of(8);
    let (bytes, after) = ((boxed + cols) * FP8_BLOCK, (GROUP_ROWS * groups - boxed) * FP8_BLOCK);
    let each = bytes + GROUP_ROWS * groups * 4;
    let stages = ((SHARED_MAX - FIXED_BYTES - after) / each).min(STAGES_MAX);
    let steps = k.div_ceil(FP8_BLOCK);
    assert!(k <= FP8_WIDTH_MAX && steps <= STEPS_MAX - SETS, "{k} inputs");
    let is_recording = dev.pipeline.is_recording.load(Ordering::Relaxed);
    // Two codes are as long as an element.
    let map =
        |address: u64, rows: usize, boxed: usize| Arg::Map(tensor_map(dev, address, rows, k / 2, boxed));
    let (w_pitch, whole) = (fp8_pitch(k as u64) as usize, steps.next_multiple_of(SETS));
    let mut args = vec![map(operands.x.0, m, boxed), map(operands.w.0, n, cols)];
    args.extend([Arg::Ptr(operands.x.1), Arg::Ptr(operands.w.1)]);
    args.extend(args![dev, steps, operands.pitch, w_pitch, m, n, whole, boxed, stages, is_recording]);
    args.extend([Arg::Ptr(operands.summand), Arg::Ptr(operands.out)]);
    let tiles = n.div_ceil(cols) * row_tiles;
    let grid = [tiles.min(dev.multiprocessors() as usize) as u32, 1, 1];
    let shared = (stages * each + after + 1024) as u32;
    dev.launch("fp8", kernel, Launch { grid, block: 128 * groups as u32 + 64, shared }, &args);
}
