//! 4-bit weights, widened into the panels that products read.

use crate::lanes::simd_fn;
use crate::matmul::Operand;
use crate::{CpuDevice, Isa};
use plimsoll_device::nf4::{CODES_OF_WORD, NF4, NF4_BLOCK};
use plimsoll_device::{Blocks, PANEL};

/// Words of a block.
const WORDS: usize = NF4_BLOCK / CODES_OF_WORD;

/// Codes and scales of a matrix, row by row.
pub(crate) struct Stored<'a> {
    words: &'a [u32],
    scales: &'a [f32],
    n: usize,
    k: usize,
}

impl<'a> Stored<'a> {
    pub(crate) fn new(dev: &'a CpuDevice, w: Blocks<'a>) -> Stored<'a> {
        let scales = w.scales.expect("NF4 has scales");
        Stored { words: dev.read(w.words), scales: dev.read(scales), n: w.n, k: w.k }
    }

    /// Widens a panel and rounds it; rows beyond the last become zeros.
    pub(crate) fn panel<E: Operand>(&self, isa: Isa, panel: usize, to: &mut [E]) {
        let (row_words, row_scales) = (self.k / CODES_OF_WORD, self.k / NF4_BLOCK);
        let rows = panel * PANEL..((panel + 1) * PANEL).min(self.n);
        let words = &self.words[rows.start * row_words..rows.end * row_words];
        widen::<E>(isa, words, &self.scales[rows.start * row_scales..rows.end * row_scales], self.k, to);
    }
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
