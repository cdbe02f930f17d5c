//! How long a text may become by what a model's files do to it. Templates and normalizers are other people's programs: what
//! they make of a conversation costs memory in every later step, so it may not grow without end.

/// A text of this length is fine whatever it was made of: a quarter of a million tokens.
const TEXT_BYTES: usize = 1 << 20;
/// A longer one may have this many times the bytes that it was made of: compatibility forms of Unicode are up to 11 times as
/// long, templates and normalizers in use stay below 4.
const GROWTH: usize = 12;

/// Returns the most bytes that a text may have that was made of `given` bytes.
pub(crate) fn grown_bytes_max(given: usize) -> usize {
    TEXT_BYTES.max(given.saturating_mul(GROWTH))
}
