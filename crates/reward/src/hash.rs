//! `hash`: noise from the response alone, for benchmarks and for runs without a signal.

/// Returns a number from 0 to 1.
pub(crate) fn noise(response: &str) -> f64 {
    (simple_hash(response.as_bytes()) >> 11) as f64 / (1u64 << 53) as f64
}

/// Returns the 64-bit FNV-1a hash.
pub(crate) fn simple_hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
