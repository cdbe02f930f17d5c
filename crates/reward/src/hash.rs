//! `hash`: noise that the response alone decides, for benchmarks and to see what a run learns without a signal.

use crate::case::Case;
use crate::scorer::{Row, Verifier};
use plimsoll_base::Result;

pub(crate) struct Hash;

impl Verifier for Hash {
    fn score(&self, _: &Row, case: &Case) -> Result<f64> {
        Ok((simple_hash(case.response.as_bytes()) >> 11) as f64 / (1u64 << 53) as f64)
    }
}

/// FNV-1a, 64 bits.
pub(crate) fn simple_hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
