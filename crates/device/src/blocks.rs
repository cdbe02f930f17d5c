//! Matrices in the quantized blocks of a file; `plimsoll_base::blocks` defines their values.

use crate::Nf4;
use plimsoll_base::{DType, Encoding};
use plimsoll_memory::Buf;

/// Maximum matrices of a file that are one matrix here: queries, keys and values.
pub const BLOCK_PARTS_MAX: usize = 3;

/// Rows `[n, k]` in blocks of one encoding, one row after the other as in the file on every device; k is whole blocks.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    pub encoding: Encoding,
    /// Their bytes as u32, the first in the lowest bits.
    pub words: Buf<'a>,
    pub n: usize,
    pub k: usize,
}

impl<'a> Blocks<'a> {
    /// Returns rows over a buffer of exactly the right length.
    pub fn new(encoding: Encoding, words: Buf<'a>, n: usize, k: usize) -> Blocks<'a> {
        let (len, expect) = (words.len() as u64, block_words(encoding, n as u64, k as u64));
        assert_eq!((len, words.dtype()), (expect, DType::U32), "[{n}, {k}] in {}", encoding.name());
        assert!(k.is_multiple_of(encoding.block_values() as usize), "rows of whole blocks: {k}");
        Blocks { encoding, words, n, k }
    }

    /// Returns the bytes of a row, an even number.
    pub fn row_bytes(&self) -> usize {
        self.k / self.encoding.block_values() as usize * self.encoding.block_bytes() as usize
    }
}

/// Returns the words of `n` rows of `k` elements.
pub const fn block_words(encoding: Encoding, n: u64, k: u64) -> u64 {
    (k / encoding.block_values() * encoding.block_bytes() * n).div_ceil(4)
}

/// A matrix of codes `[n, k]`.
#[derive(Clone, Copy, Debug)]
pub enum Codes<'a> {
    Nf4(Nf4<'a>),
    /// Groups of rows, one after the other, each in its own encoding.
    Blocks([Option<Blocks<'a>>; BLOCK_PARTS_MAX]),
}

impl Codes<'_> {
    /// Returns n and k.
    pub fn shape(&self) -> (usize, usize) {
        match self {
            Codes::Nf4(nf4) => (nf4.n, nf4.k),
            Codes::Blocks(parts) => {
                let k = parts[0].map_or(0, |part| part.k);
                assert!(parts.iter().flatten().all(|part| part.k == k), "rows of one length");
                (parts.iter().flatten().map(|part| part.n).sum(), k)
            }
        }
    }
}
