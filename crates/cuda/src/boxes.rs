//! The parts that Hopper's kernels share: matrix descriptions for the copy engine, and rings of buffers (`ring.cuh`).

use super::launch::TensorMap;
use super::{CudaDevice, driver};
use cudarc::driver::sys;
use std::ffi::c_void;

/// Elements of K of a step: a row of a box.
const STEP: usize = 64;
/// Elements of a row of a narrow box: one product's depth.
const PIECE: usize = 16;
/// How rows of `STEP` elements are permuted.
const WHOLE: sys::CUtensorMapSwizzle = sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B;

/// Shared memory of a multiprocessor, less a block's needs besides buffers.
pub(super) const SHARED_MAX: usize = 224 << 10;
/// Maximum buffers of a ring.
pub(super) const STAGES_MAX: usize = 24;

/// Returns how many buffers of `bytes` fit, and their shared memory: they begin at a multiple of 1,024.
pub(super) fn ring(bytes: usize, blocks_of_multiprocessor: usize) -> (usize, u32) {
    let stages = (SHARED_MAX / blocks_of_multiprocessor / bytes).min(STAGES_MAX);
    (stages, (stages * bytes + 1024) as u32)
}

/// Describes `rows` rows of `width` bf16, in boxes of `box_rows` x `STEP`. A failure is kept for `check`.
pub(super) fn tensor_map(
    dev: &CudaDevice,
    address: u64,
    rows: usize,
    width: usize,
    box_rows: usize,
) -> TensorMap {
    let dims = [width as u64, rows as u64];
    describe(dev, address, dims, &[width as u64 * 2], &[STEP as u32, box_rows as u32], WHOLE)
}

/// Describes `count` matrices of `rows` rows of `width` bf16, `apart` bytes from one to the next, in boxes as above.
pub(super) fn tensor_maps(
    dev: &CudaDevice,
    (address, apart, count): (u64, u64, usize),
    rows: usize,
    width: usize,
    box_rows: usize,
) -> TensorMap {
    let dims = [width as u64, rows as u64, count as u64];
    describe(dev, address, dims, &[width as u64 * 2, apart], &[STEP as u32, box_rows as u32, 1], WHOLE)
}

/// Describes matrices as `tensor_maps` does, in boxes of `box_rows` x `PIECE`.
pub(super) fn narrow_maps(
    dev: &CudaDevice,
    (address, apart, count): (u64, u64, usize),
    rows: usize,
    width: usize,
    box_rows: usize,
) -> TensorMap {
    let dims = [width as u64, rows as u64, count as u64];
    let narrow = sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_32B;
    describe(dev, address, dims, &[width as u64 * 2, apart], &[PIECE as u32, box_rows as u32, 1], narrow)
}

/// `strides`: bytes between neighbours of each dimension but the first.
fn describe<const D: usize>(
    dev: &CudaDevice,
    address: u64,
    dims: [u64; D],
    strides: &[u64],
    boxes: &[u32; D],
    swizzle: sys::CUtensorMapSwizzle,
) -> TensorMap {
    assert_eq!(strides.len() + 1, D, "a stride for each dimension but the first");
    let mut map = sys::CUtensorMap { opaque: [0; 16] };
    let steps = [1u32; D];
    // SAFETY: all pointers are to values of D dimensions, alive during the call, which only writes `map`.
    let status = unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut map,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            D as u32,
            address as *mut c_void,
            dims.as_ptr(),
            strides.as_ptr(),
            boxes.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    if let Err(err) = status.result() {
        dev.fail(driver::failed(&format!("describing a matrix {dims:?}"), err));
    }
    TensorMap(map.opaque)
}
