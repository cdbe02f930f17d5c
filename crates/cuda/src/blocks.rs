//! Widens weights in codes for products: the launcher of `blocks.cu`, and of each encoding's kernel.

use super::{Arg, CudaDevice, Launch, nf4};
use plimsoll_base::Encoding;
use plimsoll_device::{Codes, Matrix, MatrixLayout};

const BLOCK: u32 = 256;

/// Writes out = w, widened, then rounded. `w`, `out`: [N, K].
pub(crate) fn dequantize(dev: &CudaDevice, w: Codes<'_>, out: Matrix<'_>) {
    assert_eq!(w.shape(), (out.n, out.k), "codes and weights of one shape");
    assert_eq!(out.layout, MatrixLayout::Rows);
    dev.note_widened(out.buf);
    let mut first = 0;
    for part in w.parts.into_iter().flatten() {
        let to = out.buf.slice(first, part.n * part.k);
        first += to.len();
        // A thread takes one number of a plain tensor, and eight of a block.
        let (kernel, each) = match part.encoding {
            Encoding::F32 => (super::rows::typed!("widen_f32", to), 1),
            Encoding::F16 => (super::rows::typed!("widen_f16", to), 1),
            Encoding::Bf16 => (super::rows::typed!("widen_bf16", to), 1),
            Encoding::Q8_0 => (super::rows::typed!("widen_q8_0", to), 8),
            Encoding::Q4_0 => (super::rows::typed!("widen_q4_0", to), 8),
            Encoding::Q4_1 => (super::rows::typed!("widen_q4_1", to), 8),
            Encoding::Q5_0 => (super::rows::typed!("widen_q5_0", to), 8),
            Encoding::Q5_1 => (super::rows::typed!("widen_q5_1", to), 8),
            Encoding::Q4K => (super::rows::typed!("widen_q4_k", to), 8),
            Encoding::Q5K => (super::rows::typed!("widen_q5_k", to), 8),
            Encoding::Q6K => (super::rows::typed!("widen_q6_k", to), 8),
            Encoding::Mxfp4 => (super::rows::typed!("widen_mxfp4", to), 8),
            Encoding::Nf4 => {
                nf4::dequantize(dev, part, to);
                continue;
            }
        };
        let threads = to.len() / each;
        let grid = [threads.div_ceil(BLOCK as usize) as u32, 1, 1];
        let args = [dev.arg(part.words), dev.arg(to), Arg::U64(threads as u64)];
        dev.launch("blocks", kernel, Launch { grid, block: BLOCK, shared: 0 }, &args);
    }
}
