//! `length`: a penalty on the tokens of a response, from 0 down to -1.
//!
//! Without a buffer: -tokens / max_new_tokens. With one: 0 up to `max_new_tokens - buffer`, then linear to -1 at
//! `max_new_tokens` (soft overlong punishment, arXiv 2503.14476, equation 13).

pub(crate) struct Length {
    pub(crate) overlong_buffer: Option<usize>,
}

impl Length {
    pub(crate) fn score(&self, response_tokens: usize, max_new_tokens: usize) -> f64 {
        let limit = max_new_tokens.max(1);
        let buffer = self.overlong_buffer.unwrap_or(limit).clamp(1, limit);
        let over = response_tokens.saturating_sub(limit - buffer);
        // No tokens cost 0, not -0.
        0.0 - (over as f64 / buffer as f64).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(plain.score(0, 100).is_sign_positive());
    }
}
