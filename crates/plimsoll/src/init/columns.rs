//! Guesses the prompt and answer columns of a data file from its first row.

use plimsoll_text::{Part, first_rows_of};
use serde_json::{Map, Value};
use std::path::Path;

/// Names of prompt columns, likeliest first.
const PROMPTS: [&str; 9] =
    ["prompt", "question", "problem", "messages", "query", "instruction", "input", "conversation", "text"];
/// Names of answer columns. A nested column is written `a.b`, as in verl's data.
const ANSWERS: [&str; 9] = [
    "ground_truth",
    "answer",
    "reward_model.ground_truth",
    "solution",
    "target",
    "label",
    "final_answer",
    "expected",
    "output",
];

/// One row; a longer one is not considered.
const FIRST: Part = Part { rows: 1, bytes: 1 << 20 };

/// The columns of a file's first row.
#[derive(Debug, Default, PartialEq)]
pub struct Columns {
    pub prompt: Option<&'static str>,
    pub answer: Option<&'static str>,
    pub names: Vec<String>,
    /// True if the prompt ends with the assistant's words, as rows for `sft` do.
    pub is_answered: bool,
}

impl Columns {
    /// Reads the first row of a local file; `None` for others. `plan` reports what is wrong with a file.
    pub fn of(data: &str) -> Option<Columns> {
        let path = Path::new(data);
        let mut found = None;
        let look = |_: usize, row: Map<String, Value>| {
            found.get_or_insert_with(|| Columns::of_row(&row));
            Ok(())
        };
        (path.is_file() && first_rows_of(path, FIRST, look).is_ok()).then_some(found?)
    }

    fn of_row(row: &Map<String, Value>) -> Columns {
        let has = |name: &&str| match name.split_once('.') {
            Some((outer, inner)) => row.get(outer).is_some_and(|value| value.get(inner).is_some()),
            None => row.contains_key(*name),
        };
        let first = |names: &[&'static str]| names.iter().copied().find(|name| has(name));
        let prompt = first(&PROMPTS);
        let last = prompt.and_then(|name| row.get(name)?.as_array()?.last());
        let is_answered = last.is_some_and(|message| message["role"] == "assistant");
        Columns { prompt, answer: first(&ANSWERS), names: row.keys().cloned().collect(), is_answered }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_have_the_names_that_people_give_them() {
        for (row, prompt, answer) in [
            (json!({ "question": "1+1", "answer": "2" }), Some("question"), Some("answer")),
            (json!({ "problem": "x", "solution": "y", "level": 3 }), Some("problem"), Some("solution")),
            (
                json!({ "prompt": [], "reward_model": { "ground_truth": "4" } }),
                Some("prompt"),
                Some("reward_model.ground_truth"),
            ),
            (json!({ "messages": [] }), Some("messages"), None),
            (json!({ "a": 1 }), None, None),
        ] {
            let found = Columns::of_row(row.as_object().expect("a row"));
            assert_eq!((found.prompt, found.answer), (prompt, answer), "{row}");
        }
        let row = json!({ "messages": [{ "role": "user" }, { "role": "assistant" }] });
        assert!(Columns::of_row(row.as_object().expect("a row")).is_answered);
        assert_eq!(Columns::of("no such file.jsonl"), None);
    }
}
