//! A run of tokens by their ids.

use std::ops::Range;

/// Tokens `first..first + count`; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenRun {
    /// The lowest id.
    pub first: u32,
    /// Number of tokens.
    pub count: u32,
}

impl TokenRun {
    /// Returns a run of one token.
    pub const fn one(token: u32) -> TokenRun {
        TokenRun { first: token, count: 1 }
    }

    /// Returns whether a token is one of them.
    pub fn has(&self, token: u32) -> bool {
        token.wrapping_sub(self.first) < self.count
    }

    /// Returns the places of its tokens among `tokens` from `start` on; an empty range at their end if it has none.
    pub fn within(&self, start: usize, tokens: usize) -> Range<usize> {
        let first = self.first as usize;
        let place = |id: usize| id.saturating_sub(start).min(tokens);
        place(first)..place(first + self.count as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_found_in_the_tiles_that_it_meets() {
        let run = TokenRun { first: 254, count: 4 };
        assert_eq!([run.within(0, 256), run.within(256, 256), run.within(255, 2)], [254..256, 0..2, 0..2]);
        assert!(run.within(0, 254).is_empty() && run.within(258, 10).is_empty());
        assert!(TokenRun::default().within(0, 10).is_empty());
        assert_eq!([253, 254, 257, 258].map(|token| run.has(token)), [false, true, true, false]);
    }
}
