//! A sample as rewards see it.

use plimsoll_worker::SampleImage;
use serde_json::{Map, Value};
use std::sync::Arc;

/// The default column of the answer.
pub(crate) const ANSWER: &str = "ground_truth";
/// The column of the answer in verl's data.
const VERL_ANSWER: &str = "reward_model.ground_truth";

/// A prompt with the rest of its row; the samples of a group share it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompt {
    /// The user's text, or the last message of a conversation.
    pub text: String,
    /// The text that the model read, including the chat template's tokens.
    pub rendered: String,
    /// The conversation, an array of messages, if the data has one.
    pub messages: Option<Arc<Value>>,
    /// The row's columns other than the prompt, which the data shares.
    pub columns: Arc<Map<String, Value>>,
    /// The prompt's images in order, which the data shares; they are not among the columns.
    pub images: Arc<[SampleImage]>,
}

/// One sample.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its prompt.
    pub prompt: Arc<Prompt>,
    /// The response as text, without special tokens.
    pub response: String,
    /// The messages of a conversation with tools, of which `response` is the last turn.
    pub completion: Option<Value>,
    /// Its tokens.
    pub response_ids: Vec<u32>,
    /// The token limit of its sampling.
    pub max_new_tokens: usize,
    /// False if the limit cut it.
    pub ended: bool,
}

/// Returns a column by name. `a.b` is `b` in column `a`; `ground_truth` may be verl's `reward_model.ground_truth`.
pub fn column<'c>(columns: &'c Map<String, Value>, name: &str) -> Option<&'c Value> {
    let within = |path: &str| {
        let (first, rest) = path.split_once('.')?;
        rest.split('.').try_fold(columns.get(first)?, |value, key| value.get(key))
    };
    let found = columns.get(name).or_else(|| within(name));
    found.or_else(|| within(VERL_ANSWER).filter(|_| name == ANSWER))
}

/// Returns a column as text for a verifier: a string as it is, anything else as JSON.
pub(crate) fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns the text in the last `<answer>…</answer>`, if there is one.
pub(crate) fn tagged_answer(response: &str) -> Option<&str> {
    let (before, _) = response.rsplit_once("</answer>")?;
    before.rsplit_once("<answer>").map(|(_, answer)| answer.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_last_tagged_answer_counts() {
        assert_eq!(tagged_answer("<answer>1</answer> or <answer> 2 </answer>!"), Some("2"));
        assert_eq!(tagged_answer("<answer>1"), None);
    }

    #[test]
    fn a_column_within_a_column_is_found_by_its_path() {
        let verl = json!({"reward_model": {"style": "rule", "ground_truth": "4", "a.b": 1}, "a.b": 2, "a": {"b": 3}});
        let plain = json!({"ground_truth": "5", "reward_model": {"ground_truth": "6"}});
        for (columns, name, expect) in [
            (&verl, "reward_model.ground_truth", json!("4")),
            (&verl, "ground_truth", json!("4")),
            (&plain, "ground_truth", json!("5")),
            (&plain, "reward_model.ground_truth", json!("6")),
            // A column of that very name comes first.
            (&verl, "a.b", json!(2)),
        ] {
            let columns = columns.as_object().unwrap();
            assert_eq!(column(columns, name), Some(&expect), "{name}");
        }
        for name in
            ["answer", "reward_model.answer", "reward_model.style.x", "reward_model.", ".", "ground_truth.x"]
        {
            assert_eq!(column(verl.as_object().unwrap(), name), None, "{name}");
        }
    }
}
