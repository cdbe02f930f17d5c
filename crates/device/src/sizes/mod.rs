//! Sizes of the buffers that operations need besides their inputs and outputs, by kind of device: pure functions, which
//! the plan and the arena share.

pub mod cpu;
pub mod cuda;

use crate::{DeviceKind, HEAD_TILE};
use plimsoll_base::DType;

/// f32 elements of the `tile` argument of the head's operations, for calls of `rows_max` rows at most.
///
/// `truncates`: some call samples with top-k, top-p or min-p.
pub fn head_tile(kind: DeviceKind, threads: usize, rows_max: usize, vocab: usize, truncates: bool) -> u64 {
    match kind {
        DeviceKind::Cpu => cpu::head_tile_elements(threads, rows_max, vocab, truncates),
        DeviceKind::Cuda => cuda::head_tile_elements(rows_max, vocab, truncates),
    }
}

/// Elements (e) of the `dtile` argument of `head_backward`.
pub fn head_gradient_tile(kind: DeviceKind, rows: usize, vocab: usize) -> u64 {
    match kind {
        DeviceKind::Cpu => (rows * HEAD_TILE.min(vocab)) as u64,
        DeviceKind::Cuda => cuda::head_dtile_elements(rows, vocab),
    }
}

/// Elements (e) of the `pack` argument of `matmul_dw` and `head_backward`, for dy [M, N] and x [M, K]; 0 on a GPU.
pub fn pack(kind: DeviceKind, m: u64, n: u64, k: u64, weights: DType) -> u64 {
    match kind {
        DeviceKind::Cpu => cpu::pack_elements(m, n, k, weights),
        DeviceKind::Cuda => 0,
    }
}
