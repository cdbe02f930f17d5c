//! Checks of values: errors for those that are out of range, and for keys that contradict each other.

use super::provenance::Provenance;
use plimsoll_base::{Error, Result, shown, shown_number};

/// Largest number of tokens of a sequence or micro-batch; a larger one is a typing error.
pub(super) const TOKENS_MAX: u32 = 1 << 22;
/// Most micro-batches of an update.
pub(super) const MICRO_BATCHES_MAX: f64 = 1024.0;
/// Logits divided by less would exceed f32.
pub(super) const TEMPERATURE_MIN: f64 = 1e-6;

pub(super) fn bad_value(at: &Provenance, key: &str, value: impl std::fmt::Display, takes: &str) -> Error {
    let value = value.to_string();
    let value = match value.parse() {
        Ok(number) => shown_number(number).into(),
        Err(_) => shown(&value),
    };
    at.error("bad-value", key, &format!("`{key}` is {value}; it takes {takes}"))
        .hint(format!("set {key} to {takes}"))
}

/// Largest number of sequences in a step; a larger one is a typing error.
pub const SEQUENCES_PER_STEP_MAX: u64 = 1 << 20;

/// Numbers tried for a hint; a step has fewer sequences.
const DIVISORS_TRIED: usize = 1 << 20;

/// Returns a number that divides `whole` and is at most `most`: the largest one, unless both are huge.
pub(super) fn divisor(whole: u64, most: u64) -> u64 {
    let most = most.min(whole).max(1);
    (1..=most).rev().take(DIVISORS_TRIED).find(|&size| whole.is_multiple_of(size)).unwrap_or(1)
}

pub(super) fn contradiction(at: &Provenance, key: &str, message: &str) -> Error {
    at.error("contradictory-keys", key, message)
}

pub(super) fn in_range(value: f64, low: f64, high: f64, at: &Provenance, key: &str) -> Result<()> {
    if (low..=high).contains(&value) {
        Ok(())
    } else {
        Err(bad_value(at, key, value, &format!("a number from {low} to {high}")))
    }
}
