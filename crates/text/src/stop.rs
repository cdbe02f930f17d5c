//! Finds stop strings in streamed text. Text that may begin a stop string is held back, at most one byte less than the
//! longest stop string; the first complete stop string ends the response.

use plimsoll_base::{Error, Result};

pub const STOPS_MAX: usize = 64;
const STOP_BYTES_MAX: usize = 4096;

/// The place of a stop string; offsets are bytes of all text pushed so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopMatch {
    pub stop_index: usize,
    /// First byte of the stop string.
    pub start: usize,
    /// One past its last byte.
    pub end: usize,
}

/// Searches one response for stop strings.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    released: usize,
}

impl StopMatcher {
    /// Makes a matcher. `stops` may be empty.
    ///
    /// Errors: `stop-string-invalid` (empty, too long, too many).
    pub fn new(stops: &[String]) -> Result<StopMatcher> {
        let bad = stops.iter().find(|s| s.is_empty() || s.len() > STOP_BYTES_MAX);
        if stops.len() > STOPS_MAX || bad.is_some() {
            let message = match bad {
                Some(stop) => {
                    format!("a stop string of {} bytes, wanted is 1 to {STOP_BYTES_MAX}", stop.len())
                }
                None => format!("{} stop strings, the limit is {STOPS_MAX}", stops.len()),
            };
            return Err(Error::usage("stop-string-invalid", message).hint("change rollout.stop"));
        }
        let longest = stops.iter().map(String::len).max().unwrap_or(0);
        Ok(StopMatcher { stops: stops.to_vec(), held: String::with_capacity(2 * longest + 64), released: 0 })
    }

    /// Takes the text of one token and appends to `out` the text that cannot belong to a stop string.
    ///
    /// `Some` means that the response ends with this token; `out` then has all text before the stop string.
    /// If several stop strings end at the same byte, the one that began first counts.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<StopMatch> {
        self.held.push_str(text);
        let found = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            let at = self.held.find(stop.as_str())?;
            Some((at + stop.len(), at, index))
        });
        if let Some((end, at, stop_index)) = found.min() {
            out.push_str(&self.held[..at]);
            let start = self.released + at;
            self.released = start;
            self.held.clear();
            return Some(StopMatch { stop_index, start, end: start + (end - at) });
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let cut = self.held.len() - keep;
        out.push_str(&self.held[..cut]);
        self.held.drain(..cut);
        self.released += cut;
        None
    }

    /// Appends the text held back, at the end of a response without a stop string.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.released += self.held.len();
        self.held.clear();
    }

    pub fn reset(&mut self) {
        self.held.clear();
        self.released = 0;
    }
}

/// Returns the length of the longest suffix of `text` that is a proper prefix of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    let fits = |n: &usize| text.as_bytes().ends_with(&stop.as_bytes()[..*n]);
    // Both are UTF-8, so a suffix of one that equals a prefix of the other ends at a character boundary in both.
    (1..=longest).rev().filter(|n| stop.is_char_boundary(*n)).find(fits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(stops: &[&str], pieces: &[&str], expect: Option<(usize, usize, usize)>, text: &str) {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let mut matcher = StopMatcher::new(&stops).unwrap();
        let mut out = String::new();
        let mut found = None;
        for piece in pieces {
            found = matcher.push(piece, &mut out);
            if found.is_some() {
                break;
            }
        }
        if found.is_none() {
            matcher.finish(&mut out);
        }
        assert_eq!(found.map(|m| (m.stop_index, m.start, m.end)), expect, "{stops:?} {pieces:?}");
        assert_eq!(out, text, "{stops:?} {pieces:?}");
    }

    #[test]
    fn stop_strings_are_found_across_pieces() {
        check(&[], &["a", "b"], None, "ab");
        check(&["END"], &["one E", "N", "D two"], Some((0, 4, 7)), "one ");
        check(&["END"], &["E", "EN", "E"], None, "EENE");
        check(&["\n\n"], &["a\n", "b\n", "\n"], Some((0, 3, 5)), "a\nb");
        check(&["b", "ab"], &["xab"], Some((1, 1, 3)), "x");
        check(&["abcd", "bc"], &["ab", "cd"], Some((1, 1, 3)), "a");
        check(&["é"], &["caf", "é!"], Some((0, 3, 5)), "caf");
        check(&["aab"], &["aaa", "b"], Some((0, 1, 4)), "a");
    }

    #[test]
    fn empty_and_excessive_stop_strings_are_refused() {
        for stops in [vec![String::new()], vec!["x".repeat(5000)], vec!["x".to_string(); 65]] {
            assert_eq!(StopMatcher::new(&stops).unwrap_err().slug, "stop-string-invalid");
        }
    }

    proptest! {
        /// Whatever the pieces, the result is that of the whole text at once, found at the earliest end.
        #[test]
        fn pieces_do_not_matter(text in "[abé]{0,24}", cuts in proptest::collection::vec(0usize..24, 0..6),
                                stops in proptest::collection::vec("[abé]{1,4}", 0..4)) {
            let chars: Vec<char> = text.chars().collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(chars.len())).collect();
            cuts.extend([0, chars.len()]);
            cuts.sort_unstable();
            let pieces: Vec<String> = cuts.windows(2).map(|w| chars[w[0]..w[1]].iter().collect()).collect();
            let mut matcher = StopMatcher::new(&stops).unwrap();
            let mut out = String::new();
            let found = pieces.iter().find_map(|p| matcher.push(p, &mut out));
            if found.is_none() { matcher.finish(&mut out); }
            let expect = stops.iter().enumerate()
                .filter_map(|(i, s)| text.find(s.as_str()).map(|at| (at + s.len(), at, i))).min();
            prop_assert_eq!(found.map(|m| (m.end, m.start, m.stop_index)), expect);
            prop_assert_eq!(out.as_str(), &text[..expect.map_or(text.len(), |e| e.1)]);
        }
    }
}
