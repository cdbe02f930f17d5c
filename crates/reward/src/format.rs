//! `format`: 1 if the response is `<think>…</think><answer>…</answer>` with each tag once, or matches `pattern`.

use crate::pattern::Pattern;
use plimsoll_base::Result;

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
    // The prompt may already contain `<think>`, so only that tag may be missing.
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
}
