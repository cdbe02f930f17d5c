//! Answers that are worse than a right one, for tasks that make pairs.

use plimsoll_base::rng::{Stream, philox};

/// Changes one digit of a number, or of a sum, and keeps its length.
pub(crate) fn with_a_digit_changed(number: &str, seed: u64, index: u64) -> String {
    let [which, by, ..] = philox(seed, Stream::Task, index, u64::MAX - 1);
    let text = number.as_bytes();
    let places: Vec<usize> = (0..text.len()).filter(|&place| text[place].is_ascii_digit()).collect();
    let place = places[which as usize % places.len()];
    let digit = u32::from(text[place] - b'0');
    // The first digit of a number is 1 to 9, others 0 to 9; the new one differs from the old.
    let is_first = place == 0 || !text[place - 1].is_ascii_digit();
    let (low, digits) = if is_first && digit > 0 { (1, 9) } else { (0, 10) };
    let other = low + (digit - low + 1 + by % (digits - 1)) % digits;
    format!("{}{other}{}", &number[..place], &number[place + 1..])
}
