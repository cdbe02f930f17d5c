//! 4-bit weights, widened into the panels that products read.

use crate::CpuDevice;
use crate::lanes::{by_dtype, simd_fn};
use crate::matmul::Operand;
use plimsoll_device::nf4::{CODES_OF_WORD, NF4, NF4_BLOCK};
use plimsoll_device::{Matrix, MatrixLayout, Nf4, PANEL};

/// Words of a block.
const WORDS: usize = NF4_BLOCK / CODES_OF_WORD;

/// Writes out = w, widened, then rounded. `w`, `out`: [N, K].
pub(crate) fn dequantize(dev: &CpuDevice, w: Nf4<'_>, out: Matrix<'_>) {
    assert_eq!(out.layout, MatrixLayout::of_weights(&crate::LAYOUTS, out.buf.dtype()));
    let (words, scales) = (dev.read::<u32>(w.codes), dev.read::<f32>(w.scales));
    let (row_words, row_scales) = (w.k / CODES_OF_WORD, w.k / NF4_BLOCK);
    by_dtype!(out.buf, E => {
        let to = dev.write::<E>(out.buf);
        dev.pool().run(out.n.div_ceil(PANEL), &|panel, _| {
            let rows = panel * PANEL..((panel + 1) * PANEL).min(w.n);
            // SAFETY: a task writes its own panel.
            let to = unsafe { to.range(panel * PANEL * w.k, PANEL * w.k) };
            let words = &words[rows.start * row_words..rows.end * row_words];
            widen::<E>(dev.isa(), words, &scales[rows.start * row_scales..rows.end * row_scales], w.k, to);
        });
    });
}

simd_fn! {
    /// Widens one panel of up to 16 rows of `k` elements; missing rows become zeros.
    fn widen[E: Operand](_s: S, words: &[u32], scales: &[f32], k: usize, to: &mut [E]) {
        let (row_words, row_scales) = (k / CODES_OF_WORD, k / NF4_BLOCK);
        let rows = scales.len() / row_scales;
        for (block, to) in to.chunks_exact_mut(PANEL * NF4_BLOCK).enumerate() {
            let mut scale = [0.0f32; PANEL];
            for (row, scale) in scale[..rows].iter_mut().enumerate() {
                *scale = scales[row * row_scales + block];
            }
            for (word, to) in to.chunks_exact_mut(PANEL * CODES_OF_WORD).enumerate() {
                let mut bits = [0u32; PANEL];
                for (row, bits) in bits[..rows].iter_mut().enumerate() {
                    *bits = words[row * row_words + block * WORDS + word];
                }
                // E::STEP columns at a time: [16][STEP].
                for (step, to) in to.chunks_exact_mut(PANEL * E::STEP).enumerate() {
                    for (i, to) in to.iter_mut().enumerate() {
                        let (row, col) = (i / E::STEP, step * E::STEP + i % E::STEP);
                        *to = E::from_f32(NF4[(bits[row] >> (4 * col) & 15) as usize] * scale[row]);
                    }
                }
            }
        }
    }
}
