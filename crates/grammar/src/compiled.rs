//! A compiled grammar, and where one response is in it.

use crate::kept_masks::{KeptMasks, LaneMasks, kept_bytes};
use crate::refusal::{invalid, refused};
use llguidance::api::{ParserLimits, StopReason};
use llguidance::earley::SlicedBiasComputer;
use llguidance::{Matcher, TokenParser};
use plimsoll_base::{Bytes, Error, Result};
use std::sync::Arc;

/// Most bytes of a grammar for each thread that computes masks, an estimate: 4,000 states of a lexer of up to 2 kB and
/// what leads from each to others, 50,000 symbols, and the matchers of its responses.
const LANE_BYTES: u64 = 13 << 20;

/// Limits on one grammar and on one mask. The library's rates: 50,000 units of fuel a millisecond for a new lexer,
/// 14,000 in a mask, 20,000 items a millisecond: a mask takes 10 ms at most.
pub(crate) fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 1_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 100_000,
        step_max_items: 30_000,
        max_lexer_states: 4_000,
        max_grammar_size: 50_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// A grammar that was compiled and has a first token.
pub struct Grammar {
    /// A parser that has taken no token for each lane; those of a lane share what their lexer has computed.
    lanes: Vec<Matcher>,
    words: usize,
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a grammar for {} lanes", self.lanes.len())
    }
}

impl Grammar {
    /// Computes the first mask, so that what has none is refused. `ends_at_lexeme`: the grammar is one expression.
    ///
    /// Errors: `grammar-invalid`, `grammar-too-large`.
    pub(crate) fn new(
        parser: &TokenParser,
        plain: &Arc<SlicedBiasComputer>,
        (lanes, words): (usize, usize),
        ends_at_lexeme: bool,
    ) -> Result<Grammar> {
        let mut tried = Matcher::new(Ok(parser.deep_clone()));
        if let Err(err) = tried.compute_mask_or_eos() {
            let what = err.to_string();
            let is_empty = what.contains("NoExtension");
            return Err(if is_empty { invalid("no text satisfies it") } else { refused(&what) });
        }
        let kept = Arc::<KeptMasks>::default();
        let lane = |_| {
            let mut parser = parser.deep_clone();
            parser.bias_computer = Arc::new(LaneMasks::new(plain.clone(), &kept, ends_at_lexeme));
            Matcher::new(Ok(parser))
        };
        Ok(Grammar { lanes: (0..lanes.max(1)).map(lane).collect(), words })
    }

    /// Returns the most bytes of a grammar for `lanes` threads that compute masks, with the masks that it keeps.
    pub fn host_bytes(lanes: usize, vocab: u32) -> Bytes {
        Bytes(lanes as u64 * LANE_BYTES + kept_bytes(vocab).0)
    }

    /// Returns the matcher of a new response, for the thread of a lane.
    pub fn matcher(&self, lane: usize) -> GrammarMatcher {
        GrammarMatcher { inner: self.lanes[lane % self.lanes.len()].clone(), words: self.words }
    }
}

/// Where a response is in its grammar.
pub struct GrammarMatcher {
    inner: Matcher,
    words: usize,
}

impl std::fmt::Debug for GrammarMatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a matcher, {}", self.inner.stop_reason())
    }
}

impl GrammarMatcher {
    /// Writes which tokens may be next, a bit a token: only those that end a text once nothing else can follow.
    ///
    /// Errors: `grammar-too-complex`.
    pub fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        assert_eq!(words.len(), self.words, "words of a mask");
        let mask = self.inner.compute_mask_or_eos().map_err(|err| self.failed(&err.to_string()))?;
        let given = mask.as_slice();
        for (to, from) in words.iter_mut().zip(given.iter().copied().chain(std::iter::repeat(0))) {
            *to = from;
        }
        Ok(())
    }

    /// Takes the token that was drawn.
    ///
    /// Errors: `grammar-too-complex`, also for a token that the mask did not have.
    pub fn take(&mut self, token: u32) -> Result<()> {
        if self.is_complete() {
            // What ends the text may follow.
            return Ok(());
        }
        self.inner.consume_token(token).map_err(|err| self.failed(&err.to_string()))
    }

    /// True once nothing but the end can follow.
    pub fn is_complete(&self) -> bool {
        matches!(self.inner.stop_reason(), StopReason::NoExtension | StopReason::EndOfSentence)
    }

    fn failed(&self, what: &str) -> Error {
        let line = what.lines().next().unwrap_or_default().to_string();
        Error::new(
            "grammar-too-complex",
            format!("the grammar's next token takes more work than it may: {line}"),
        )
        .hint("a simpler grammar: fewer alternatives at one place, shorter bounds of lengths and counts")
    }
}
