//! Verifiers of shape: equality, regular expressions, tag layout, length.

use plimsoll_base::{Error, Result};
use regex::Regex;

/// True if both are equal after trimming white space.
pub fn grade_exact(response: &str, ground_truth: &str) -> bool {
    response.trim() == ground_truth.trim()
}

/// `regex`: 1 if the pattern matches anywhere in the response.
pub(crate) struct Pattern(Regex);

impl Pattern {
    pub(crate) fn new(pattern: &str) -> Result<Pattern> {
        Regex::new(pattern).map(Pattern).map_err(|err| {
            // The last line of the parser's message says what is wrong; those before it draw the pattern.
            let why = err.to_string().lines().last().unwrap_or_default().trim().to_string();
            Error::usage("reward-bad-pattern", format!("pattern `{pattern}` does not compile: {why}"))
                .hint("the syntax is that of the Rust regex crate: no look-around, no back-references")
        })
    }

    pub(crate) fn matches(&self, response: &str) -> bool {
        self.0.is_match(response)
    }
}

/// `format`: 1 if the response is `<think>…</think><answer>…</answer>` with each tag once, or matches `pattern`.
pub(crate) struct Format(Option<Pattern>);

impl Format {
    pub(crate) fn new(pattern: Option<&str>) -> Result<Format> {
        Ok(Format(pattern.map(Pattern::new).transpose()?))
    }

    pub(crate) fn matches(&self, response: &str) -> bool {
        match &self.0 {
            Some(pattern) => pattern.matches(response),
            None => think_then_answer(response),
        }
    }
}

fn think_then_answer(response: &str) -> bool {
    // A prompt may already hold `<think>`, so that tag alone may be missing.
    let text = response.trim();
    let text = text.strip_prefix("<think>").unwrap_or(text);
    let once = |tag: &str| text.matches(tag).count() == 1;
    if !(once("</think>") && once("<answer>") && once("</answer>") && !text.contains("<think>")) {
        return false;
    }
    let Some((_, rest)) = text.split_once("</think>") else { return false };
    let Some(rest) = rest.trim_start().strip_prefix("<answer>") else { return false };
    rest.strip_suffix("</answer>").is_some_and(|answer| !answer.trim().is_empty())
}

/// `length`: what the tokens of a response cost, from 0 down to -1.
///
/// Without a buffer: -tokens / max_new_tokens. With one: 0 up to `max_new_tokens - buffer`, then linear to -1 at
/// `max_new_tokens` (soft overlong punishment, arXiv 2503.14476, equation 13).
pub(crate) struct Length {
    pub(crate) overlong_buffer: Option<usize>,
}

impl Length {
    pub(crate) fn score(&self, response_tokens: usize, max_new_tokens: usize) -> f64 {
        let limit = max_new_tokens.max(1);
        let buffer = self.overlong_buffer.unwrap_or(limit).clamp(1, limit);
        let over = response_tokens.saturating_sub(limit - buffer);
        -(over as f64 / buffer as f64).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_wants_each_tag_once_and_in_order() {
        let format = Format::new(None).unwrap();
        for (response, expect) in [
            ("<think>a</think><answer>5</answer>", true),
            (" <think>a\nb</think>\n<answer>5</answer>\n", true),
            ("a</think> <answer>5</answer>", true),
            ("<think>a</think>5", false),
            ("<think>a</think><answer></answer>", false),
            ("<think>a</think><answer>5</answer> more", false),
            ("<think>a</think><answer>5</answer><answer>6</answer>", false),
            ("<answer>5</answer><think>a</think>", false),
            ("<think><think>a</think><answer>5</answer>", false),
            ("", false),
        ] {
            assert_eq!(format.matches(response), expect, "{response}");
        }
        assert!(Format::new(Some("^ANSWER: ")).unwrap().matches("ANSWER: 5"));
    }

    #[test]
    fn length_costs_nothing_before_the_buffer_and_one_at_the_limit() {
        let plain = Length { overlong_buffer: None };
        let soft = Length { overlong_buffer: Some(20) };
        for (tokens, expect_plain, expect_soft) in [
            (0, 0.0, 0.0),
            (50, -0.5, 0.0),
            (80, -0.8, 0.0),
            (90, -0.9, -0.5),
            (100, -1.0, -1.0),
            (120, -1.0, -1.0),
        ] {
            assert_eq!(plain.score(tokens, 100), expect_plain);
            assert_eq!(soft.score(tokens, 100), expect_soft);
        }
        assert_eq!(soft.score(3, 0), -1.0);
    }

    #[test]
    fn exact_trims_and_nothing_else() {
        for (response, truth, expect) in
            [(" 17\n", "17", true), ("17.", "17", false), ("017", "17", false), ("a  b", "a b", false)]
        {
            assert_eq!(grade_exact(response, truth), expect, "{response:?}");
        }
    }
}
