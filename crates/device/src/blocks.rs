//! Matrices in codes; the table of `plimsoll_base::blocks` defines their values.

use plimsoll_base::{DType, Encoding};
use plimsoll_memory::Buf;

/// Maximum matrices of a file that are one matrix here: queries, keys and values.
pub const BLOCK_PARTS_MAX: usize = 3;

/// Rows `[n, k]` in blocks of one encoding, one row after the other on every device; k is whole blocks.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    pub encoding: Encoding,
    /// Their bytes as u32, the first in the lowest bits.
    pub words: Buf<'a>,
    /// [n, k / block] f32, if the encoding's scales lie apart.
    pub scales: Option<Buf<'a>>,
    pub n: usize,
    pub k: usize,
}

impl<'a> Blocks<'a> {
    /// Returns rows over buffers of exactly the right lengths.
    pub fn new(
        encoding: Encoding,
        (words, scales): (Buf<'a>, Option<Buf<'a>>),
        n: usize,
        k: usize,
    ) -> Blocks<'a> {
        let expect = block_elements(encoding, n as u64, k as u64);
        let found = (words.len() as u64, scales.map_or(0, |scales| scales.len() as u64));
        assert_eq!(found, expect, "words and scales of [{n}, {k}] in {}", encoding.name());
        assert_eq!(words.dtype(), DType::U32, "words of {}", encoding.name());
        assert!(scales.is_none_or(|scales| scales.dtype() == DType::F32), "scales of {}", encoding.name());
        assert!(k.is_multiple_of(encoding.block_values() as usize), "rows of whole blocks: {k}");
        Blocks { encoding, words, scales, n, k }
    }

    /// Returns the bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.k / self.encoding.block_values() as usize * self.encoding.block_bytes() as usize
    }
}

/// Returns the words and the scales of `n` rows of `k` elements.
pub const fn block_elements(encoding: Encoding, n: u64, k: u64) -> (u64, u64) {
    let blocks = k / encoding.block_values() * n;
    ((blocks * encoding.block_bytes()).div_ceil(4), if encoding.has_scales() { blocks } else { 0 })
}

/// A matrix of codes `[n, k]`: groups of rows, one after the other, each in its own encoding.
#[derive(Clone, Copy, Debug)]
pub struct Codes<'a> {
    pub parts: [Option<Blocks<'a>>; BLOCK_PARTS_MAX],
}

impl<'a> Codes<'a> {
    /// Returns a matrix whose rows have one encoding.
    pub const fn of(rows: Blocks<'a>) -> Codes<'a> {
        Codes { parts: [Some(rows), None, None] }
    }

    /// Returns all rows, if they have this encoding.
    pub fn whole(&self, encoding: Encoding) -> Option<Blocks<'a>> {
        match self.parts {
            [Some(rows), None, None] if rows.encoding == encoding => Some(rows),
            _ => None,
        }
    }

    /// Returns n and k.
    pub fn shape(&self) -> (usize, usize) {
        let k = self.parts[0].map_or(0, |part| part.k);
        assert!(self.parts.iter().flatten().all(|part| part.k == k), "rows of one length");
        (self.parts.iter().flatten().map(|part| part.n).sum(), k)
    }
}
