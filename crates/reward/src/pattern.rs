//! `regex`: 1 if the pattern matches anywhere in the response.

use crate::case::Case;
use crate::scorer::Reading;
use crate::spec::RewardSpec;
use plimsoll_base::{Error, Result};
use regex::Regex;

pub(crate) struct Pattern(Regex);

impl Pattern {
    pub(crate) fn new(pattern: &str) -> Result<Pattern> {
        Regex::new(pattern).map(Pattern).map_err(|err| {
            // The last line of the parser's message is the error; the lines before it draw the pattern.
            let why = err.to_string().lines().last().unwrap_or_default().trim().to_string();
            Error::usage("reward-bad-pattern", format!("pattern `{pattern}` does not compile: {why}"))
                .hint("the syntax is that of the Rust regex crate: no look-around, no back-references")
        })
    }

    pub(crate) fn matches(&self, response: &str) -> bool {
        self.0.is_match(response)
    }
}

/// Reads `regex:PATTERN`, or `regex` with the key `pattern`.
pub(crate) fn read(spec: &RewardSpec, argument: Option<&str>) -> Result<Option<Reading>> {
    match argument.or(spec.pattern.as_deref()) {
        Some(pattern) if !pattern.is_empty() => {
            let pattern = Pattern::new(pattern)?;
            let score = move |case: &Case| f64::from(pattern.matches(&case.response));
            Ok(Some(Reading::verifier("regex", score)))
        }
        _ => Err(Error::usage("reward-bad-pattern", "reward `regex` has no pattern")
            .hint("write kind = \"regex:PATTERN\", or set `pattern`")),
    }
}
