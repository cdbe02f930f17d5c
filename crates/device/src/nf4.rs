//! Matrices of 4-bit weights; `plimsoll_base::nf4` defines the codes.

use plimsoll_base::DType;
pub use plimsoll_base::nf4::{CODES_OF_WORD, NF4, NF4_BLOCK, decode, encode, encode_rows};
use plimsoll_memory::Buf;

/// A matrix `[n, k]` of codes, row by row on every device; k is a multiple of `NF4_BLOCK`.
#[derive(Clone, Copy, Debug)]
pub struct Nf4<'a> {
    /// [n, k / 8] u32.
    pub codes: Buf<'a>,
    /// [n, k / 64] f32.
    pub scales: Buf<'a>,
    pub n: usize,
    pub k: usize,
}

impl<'a> Nf4<'a> {
    /// Returns a matrix over buffers of exactly the right lengths.
    pub fn new(codes: Buf<'a>, scales: Buf<'a>, n: usize, k: usize) -> Nf4<'a> {
        let found = (codes.len() as u64, scales.len() as u64);
        assert_eq!(found, nf4_elements(n as u64, k as u64), "codes and scales of [{n}, {k}]");
        assert_eq!((codes.dtype(), scales.dtype()), (DType::U32, DType::F32));
        assert!(k.is_multiple_of(NF4_BLOCK), "rows of whole blocks: {k}");
        Nf4 { codes, scales, n, k }
    }
}

/// Returns the words and scales of a matrix `[n, k]`.
pub const fn nf4_elements(n: u64, k: u64) -> (u64, u64) {
    (n * (k / CODES_OF_WORD as u64), n * (k / NF4_BLOCK as u64))
}
