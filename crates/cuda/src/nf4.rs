//! Launcher of `nf4.cu`: 4-bit weights, widened for products.

use super::{Arg, CudaDevice, Launch};
use plimsoll_device::{Matrix, MatrixLayout, Nf4};
use std::sync::atomic::Ordering;

const BLOCK: u32 = 256;

/// Computes out = w, widened, then rounded. `w`, `out`: [N, K].
pub(crate) fn dequantize(dev: &CudaDevice, w: Nf4<'_>, out: Matrix<'_>) {
    assert_eq!(out.layout, MatrixLayout::Rows);
    let words = w.codes.len();
    let grid = [words.div_ceil(BLOCK as usize) as u32, 1, 1];
    let args = [dev.arg(w.codes), dev.arg(w.scales), dev.arg(out.buf), Arg::U64(words as u64)];
    let kernel = super::rows::typed!("dequantize", out.buf);
    dev.launch("nf4", kernel, Launch { grid, block: BLOCK, shared: 0 }, &args);
    dev.is_widened.store(true, Ordering::Relaxed);
}
