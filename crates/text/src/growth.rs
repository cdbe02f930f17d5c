//! Limits how much longer a text may get from a model's templates and normalizers. They are other people's programs,
//! and what they make of a conversation costs memory in every later step.

/// A text up to this length is always accepted: a quarter of a million tokens.
const TEXT_BYTES: usize = 1 << 20;
/// Largest ratio of the bytes out to the bytes in. Unicode compatibility forms are up to 11 times as long; templates
/// and normalizers in use stay below 4.
const GROWTH: usize = 12;

/// Returns the most bytes that a text made of `given` bytes may have.
pub(crate) fn grown_bytes_max(given: usize) -> usize {
    TEXT_BYTES.max(given.saturating_mul(GROWTH))
}
