//! 4-bit weights: NF4, sixteen quantiles of the normal distribution, scaled by the largest magnitude in a block.
//!
//! Codes and blocks are those of bitsandbytes: 64 neighbours of a row share a scale in f32, 4.5 bits a weight. Source:
//! QLoRA (Dettmers et al. 2023), section 3 and appendix E.

/// Elements of a row that share a scale.
pub const NF4_BLOCK: usize = 64;
/// Codes per word; the first is in the lowest bits.
pub const CODES_OF_WORD: usize = 8;
/// The value of each code.
pub const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];
/// Elements per call of `encode`, about: its words and scales are a few MiB.
const PIECE: usize = 4 << 20;

/// Rounds rows of whole blocks to the nearest codes, on all cores. `each` gets a piece's start, words and scales.
pub fn encode_rows(x: &[f32], k: usize, mut each: impl FnMut(usize, &[u32], &[f32])) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let piece = (PIECE / k).max(1) * k;
    let (mut words, mut scales) = (Vec::new(), Vec::new());
    for (index, x) in x.chunks(piece).enumerate() {
        words.resize(x.len() / CODES_OF_WORD, 0);
        scales.resize(x.len() / NF4_BLOCK, 0.0);
        let part = scales.len().div_ceil(threads).max(1 << 10);
        std::thread::scope(|scope| {
            let parts = words.chunks_mut(part * NF4_BLOCK / CODES_OF_WORD).zip(scales.chunks_mut(part));
            for (x, (words, scales)) in x.chunks(part * NF4_BLOCK).zip(parts) {
                scope.spawn(move || encode(x, words, scales));
            }
        });
        each(index * piece, &words, &scales);
    }
}

/// Rounds whole blocks to the nearest codes, a tie to the lower one. A block of zeros has the scale 0.
pub fn encode(x: &[f32], words: &mut [u32], scales: &mut [f32]) {
    let between: [f32; 15] = std::array::from_fn(|i| (NF4[i] + NF4[i + 1]) / 2.0);
    let words = words.chunks_mut(NF4_BLOCK / CODES_OF_WORD);
    for ((x, words), scale) in x.as_chunks::<NF4_BLOCK>().0.iter().zip(words).zip(scales) {
        let largest = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        *scale = largest;
        let inverse = if largest > 0.0 { 1.0 / largest } else { 0.0 };
        let mut codes = [0u32; NF4_BLOCK];
        for (code, x) in codes.iter_mut().zip(x) {
            *code = between.iter().map(|edge| u32::from(x * inverse > *edge)).sum();
        }
        for (word, codes) in words.iter_mut().zip(codes.as_chunks::<CODES_OF_WORD>().0) {
            *word = codes.iter().rev().fold(0, |word, code| word << 4 | code);
        }
    }
}

/// Decodes one block of bytes: two codes a byte, the first in the lower bits.
#[inline(always)]
pub(crate) fn block(bytes: &[u8], scale: f32, out: &mut [f32]) {
    for (pair, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
        *pair = [byte & 15, byte >> 4].map(|code| NF4[code as usize] * scale);
    }
}

/// Decodes whole blocks.
pub fn decode(words: &[u32], scales: &[f32], out: &mut [f32]) {
    for (index, out) in out.iter_mut().enumerate() {
        let code = words[index / CODES_OF_WORD] >> (4 * (index % CODES_OF_WORD)) & 15;
        *out = NF4[code as usize] * scales[index / NF4_BLOCK];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(x: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let (mut words, mut scales) = (vec![0; x.len() / CODES_OF_WORD], vec![0.0; x.len() / NF4_BLOCK]);
        encode(x, &mut words, &mut scales);
        let mut out = vec![0.0; x.len()];
        decode(&words, &scales, &mut out);
        (out, scales)
    }

    #[test]
    fn every_number_becomes_the_nearest_of_sixteen() {
        let x: Vec<f32> = (0..256).map(|i| ((i * 37 % 256) as f32 - 127.5) * 0.013).collect();
        let (out, scales) = round_trip(&x);
        for (i, (x, out)) in x.iter().zip(&out).enumerate() {
            let scale = scales[i / NF4_BLOCK];
            let nearest = NF4.iter().map(|code| (code * scale - x).abs()).fold(f32::INFINITY, f32::min);
            assert!((out - x).abs() <= nearest + 1e-6, "{x} became {out} under {scale}");
        }
        assert_eq!(round_trip(&out).0, out, "what was rounded once stays as it is");
    }

    #[test]
    fn zeros_and_signs_are_kept() {
        let (out, scales) = round_trip(&[0.0; 128]);
        assert!(out.iter().all(|x| *x == 0.0) && scales == [0.0, 0.0]);
        let mut x = [0.0; 64];
        (x[3], x[40]) = (-2.5, 2.5);
        assert_eq!(round_trip(&x).0, x);
    }

    #[test]
    fn the_row_of_the_table_decodes_the_same_numbers() {
        let x: Vec<f32> = (0..192).map(|i| (i as f32 * 0.71).sin() * (i / 64 + 1) as f32).collect();
        let (mut words, mut scales) = (vec![0; x.len() / CODES_OF_WORD], vec![0.0; x.len() / NF4_BLOCK]);
        encode(&x, &mut words, &mut scales);
        let (mut expect, mut found) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        decode(&words, &scales, &mut expect);
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        crate::blocks::decode(crate::Encoding::Nf4, &bytes, &scales, &mut found);
        assert!(found == expect && found.iter().any(|x| *x != 0.0));
        assert_eq!(crate::Encoding::Nf4.block_values() as usize, NF4_BLOCK);
    }

    #[test]
    fn pieces_are_the_whole() {
        let (n, k) = (70, 64 * 1024);
        let x: Vec<f32> = (0..n * k).map(|i| (i as f32 * 0.37).sin()).collect();
        let (mut words, mut scales) = (vec![0; n * k / CODES_OF_WORD], vec![0.0; n * k / NF4_BLOCK]);
        encode(&x, &mut words, &mut scales);
        let mut seen = 0;
        encode_rows(&x, k, |first, some, of_them| {
            assert_eq!((first, some), (seen, &words[seen / CODES_OF_WORD..][..some.len()]));
            assert_eq!(of_them, &scales[seen / NF4_BLOCK..][..of_them.len()]);
            seen += some.len() * CODES_OF_WORD;
        });
        assert_eq!(seen, x.len());
    }
}
