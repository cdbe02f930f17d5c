//! Launcher of `nf4.cu`: 4-bit weights, widened for products.

use super::{CudaDevice, Launch};
use plimsoll_device::Blocks;
use plimsoll_memory::Buf;

const BLOCK: u32 = 256;

/// Computes out = w, widened, then rounded. `w`, `out`: [N, K].
pub(crate) fn dequantize(dev: &CudaDevice, w: Blocks<'_>, out: Buf<'_>) {
    let (words, scales) = (w.words.len(), w.scales.expect("NF4 has scales"));
    let grid = [words.div_ceil(BLOCK as usize) as u32, 1, 1];
    let args = args![dev, w.words, scales, out, words as u64];
    let kernel = super::rows::typed!("dequantize", out);
    dev.launch("nf4", kernel, Launch { grid, block: BLOCK, shared: 0 }, &args);
}
