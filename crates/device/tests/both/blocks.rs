//! Weights in the blocks of a file on a device against the numbers of their bytes, to the bit.
#![allow(dead_code)] // Each binary uses its part.

use super::{Machine, Rig, Sized, bits, round};
use plimsoll_base::DType::{self, U32};
use plimsoll_base::Encoding::{
    self, Bf16, F16, F32, Mxfp4, Nf4, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0,
};
use plimsoll_base::blocks::decode;
use plimsoll_base::rng::{Stream, philox};
use plimsoll_device::{BLOCK_PARTS_MAX, Blocks, Codes, Layouts, block_elements, matrix_elements};

/// Encodings and rows of the parts, and the length of a row.
pub type Case = (&'static [(Encoding, usize)], usize);

/// Each encoding; parts that begin and end inside a panel; rows of no whole words, panels or blocks of threads, and of
/// an odd number of bytes.
pub const CASES: [Case; 19] = [
    (&[(Q8_0, 17)], 96),
    (&[(Q4_0, 17)], 96),
    (&[(Q4_1, 16)], 32),
    (&[(Q5_0, 33)], 160),
    (&[(Q5_1, 5)], 352),
    (&[(Q4K, 17)], 256),
    (&[(Q5K, 3)], 768),
    (&[(Q6K, 19)], 256),
    (&[(F32, 17)], 9),
    (&[(F16, 3)], 7),
    (&[(Bf16, 31)], 33),
    (&[(Q4K, 64), (Q4K, 16), (Q6K, 16)], 512),
    (&[(Q4K, 7), (Q6K, 5), (Q5K, 21)], 256),
    (&[(Q5_0, 20), (Q8_0, 44)], 288),
    (&[(F16, 9), (Q6K, 1), (F32, 30)], 256),
    (&[(Q4_0, 40), (Bf16, 24)], 1024),
    (&[(Mxfp4, 17)], 96),
    (&[(Mxfp4, 40)], 32),
    (&[(Mxfp4, 9)], 320),
];

/// Returns any bytes as blocks whose scales, minima and plain numbers are finite.
fn some_bytes(seed: u64, encoding: Encoding, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(4)).map(|i| philox(seed, Stream::Weights, encoding as u64, i as u64)[0]);
    let mut bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).take(len).collect();
    let tops: &[usize] = match encoding {
        F32 => &[3],
        F16 | Bf16 | Q8_0 | Q4_0 | Q5_0 => &[1],
        Q4_1 | Q5_1 | Q4K | Q5K => &[1, 3],
        Q6K => &[209],
        Nf4 => &[],
        Mxfp4 => &[0],
    };
    for block in bytes.chunks_exact_mut(encoding.block_bytes() as usize) {
        tops.iter().for_each(|&top| block[top] &= 0xbf); // an exponent below the middle
    }
    bytes
}

pub fn buffers(kind: &'static Layouts, (parts, k): Case, e: DType) -> Vec<Sized<'static>> {
    let names = ["first", "second", "third"];
    let words = |&(encoding, n): &(Encoding, usize)| block_elements(encoding, n as u64, k as u64).0 as usize;
    let mut all: Vec<Sized<'static>> =
        names.into_iter().zip(parts).map(|(name, part)| (name, U32, words(part))).collect();
    let n: usize = parts.iter().map(|(_, n)| n).sum();
    all.push(("dense", e, matrix_elements(kind, n as u64, k as u64, e) as usize));
    all
}

/// Writes any blocks, and returns them as a matrix.
pub fn fill<D: Machine>(rig: &Rig<D>, (parts, k): Case) -> Codes<'static> {
    let mut coded = [None; BLOCK_PARTS_MAX];
    for (index, (&(encoding, n), name)) in parts.iter().zip(["first", "second", "third"]).enumerate() {
        let blocks = Blocks::new(encoding, (rig.buf(name), None), n, k);
        rig.dev.write_blocks(blocks, 0, &some_bytes(index as u64, encoding, n * blocks.row_bytes()));
        coded[index] = Some(blocks);
    }
    Codes { parts: coded }
}

/// Panics unless blocks written in two pieces become what their bytes stand for, rounded once.
pub fn check<D: Machine>(rig: &mut Rig<D>, (parts, k): Case, e: DType, how: &str) {
    let (mut coded, mut want) = ([None; BLOCK_PARTS_MAX], Vec::new());
    for (index, (&(encoding, n), name)) in parts.iter().zip(["first", "second", "third"]).enumerate() {
        let blocks = Blocks::new(encoding, (rig.buf(name), None), n, k);
        let bytes = some_bytes(index as u64, encoding, n * blocks.row_bytes());
        let rows = if blocks.row_bytes().is_multiple_of(2) { n / 2 / 2 * 2 } else { n / 2 / 4 * 4 };
        let (head, tail) = bytes.split_at(rows * blocks.row_bytes());
        rig.dev.write_blocks(blocks, rows, tail);
        rig.dev.write_blocks(blocks, 0, head);
        let mut values = vec![0.0; n * k];
        decode(encoding, &bytes, &[], &mut values);
        want.extend(values.into_iter().map(|x| round(x, e)));
        coded[index] = Some(blocks);
    }
    let n: usize = parts.iter().map(|(_, n)| n).sum();
    rig.dev.dequantize(Codes { parts: coded }, rig.matrix("dense", n, k, e));
    let (got, padding_is_zero) = rig.get_matrix("dense", n, k, e);
    assert!(want.iter().all(|x| x.is_finite()), "{parts:?}");
    assert!(bits(&got) == bits(&want), "{parts:?} of {k}, {}, {how}", e.name());
    assert!(padding_is_zero, "padding of {parts:?} of {k}, {}, {how}", e.name());
    rig.check_guards();
}
