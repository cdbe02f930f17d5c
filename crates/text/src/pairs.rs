//! Preference data: a prompt with a chosen and a rejected answer, in TRL's forms, and its tokens.
//!
//! `prompt`, `chosen` and `rejected` are strings or chat messages. Answers that are conversations, or strings without a
//! prompt column, begin with the prompt: their common prefix (TRL's "implicit prompt"). `margin` is a number.

use crate::data::{Place, bad_prompt, load, prompt_of, take};
use crate::strings::Strings;
use crate::{ChatTemplate, Message, Prompt, SftRow, Tokenizer, tokenize_sft};
use plimsoll_base::{Error, Result};
use serde_json::{Map, Value};
use std::path::Path;

#[derive(Clone, Debug, PartialEq)]
pub struct PairRow {
    pub prompt: Prompt,
    pub chosen: String,
    pub rejected: String,
    /// Target for the least score difference of a reward model; 0 if the data has none.
    pub margin: f32,
    /// All other columns.
    pub columns: Map<String, Value>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PairTokens {
    pub prompt: Vec<u32>,
    /// Includes the end token.
    pub chosen: Vec<u32>,
    pub rejected: Vec<u32>,
}

/// Reads preference rows from JSON lines or Parquet.
///
/// Errors: those of `each_prompt`; `pair-equal`, `pair-empty`.
pub fn load_pairs(path: &Path, prompt_column: &str) -> Result<Vec<PairRow>> {
    load(path, |object, place| {
        let row = row_of(object, prompt_column, place)?;
        let prompt_is_empty = matches!(&row.prompt, Prompt::Text(text) if text.is_empty());
        let texts = [
            ("prompt", prompt_is_empty),
            ("chosen", row.chosen.is_empty()),
            ("rejected", row.rejected.is_empty()),
        ];
        match texts.into_iter().find(|(_, is_empty)| *is_empty) {
            Some((what, _)) => Err(empty(&place, what)),
            None if row.chosen == row.rejected => Err(equal(&place.words(), &row.chosen)),
            None => Ok(row),
        }
    })
}

/// Tokenizes a pair, each half as a supervised row.
///
/// Errors: those of `tokenize_sft`; `pair-equal` if both texts have the same tokens.
pub fn tokenize_pair(
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    row: &PairRow,
    system_prompt: Option<&str>,
    strings: &Strings,
    eos: Option<u32>,
) -> Result<PairTokens> {
    let half = |completion: &str| {
        let (prompt, completion) = (row.prompt.clone(), completion.to_string());
        let row = SftRow::Answer { prompt, completion };
        tokenize_sft(tokenizer, template, &row, system_prompt, strings, eos)
    };
    let (chosen, rejected) = (half(&row.chosen)?, half(&row.rejected)?);
    let (prompt, chosen, rejected) = (chosen.prompt, chosen.completion, rejected.completion);
    match chosen == rejected {
        true => Err(equal("as tokens", &row.chosen)),
        false => Ok(PairTokens { prompt, chosen, rejected }),
    }
}

pub(crate) fn row_of(mut object: Map<String, Value>, prompt_column: &str, place: Place) -> Result<PairRow> {
    let mut half = |column: &str| {
        let form = "a preference row is {\"prompt\": ..., \"chosen\": ..., \"rejected\": ...}";
        let value = take(&mut object, column, place)
            .map_err(|error| Error { hints: vec![form.to_string()], ..error })?;
        // An empty list has no message to report this itself.
        if value.as_array().is_some_and(Vec::is_empty) {
            return Err(empty(&place, column));
        }
        prompt_of(value, column, place)
    };
    let (chosen, rejected) = (half("chosen")?, half("rejected")?);
    let said = match object.shift_remove(prompt_column) {
        None => None,
        Some(value) => Some(prompt_of(value, prompt_column, place)?),
    };
    let margin = match object.shift_remove("margin") {
        None | Some(Value::Null) => 0.0,
        Some(value) => value
            .as_f64()
            .map(|m| m as f32)
            .filter(|m| m.is_finite())
            .ok_or_else(|| bad_prompt(place, "margin", "expected a finite number"))?,
    };
    let (prompt, chosen, rejected) = match (said, chosen, rejected) {
        (Some(prompt), Prompt::Text(chosen), Prompt::Text(rejected)) => (prompt, chosen, rejected),
        (None, Prompt::Text(chosen), Prompt::Text(rejected)) => {
            let shared = shared_text(&chosen, &rejected);
            (Prompt::Text(chosen[..shared].into()), chosen[shared..].into(), rejected[shared..].into())
        }
        (said, Prompt::Messages(chosen), Prompt::Messages(rejected)) => {
            conversations(said, &chosen, &rejected, place)?
        }
        _ => {
            return Err(bad_prompt(
                place,
                "rejected",
                "chosen and rejected are both strings or both messages",
            ));
        }
    };
    Ok(PairRow { prompt, chosen, rejected, margin, columns: object })
}

/// Splits two lists of messages, each ending in one assistant message, into prompt and answers.
fn conversations(
    said: Option<Prompt>,
    chosen: &[Message],
    rejected: &[Message],
    place: Place,
) -> Result<(Prompt, String, String)> {
    if chosen == rejected {
        return Err(equal(&place.words(), &chosen.last().map_or(String::new(), |m| m.content.clone())));
    }
    let shared = chosen.iter().zip(rejected).take_while(|(a, b)| a == b).count();
    let answer = |messages: &[Message], column: &str| match &messages[shared..] {
        [one] if one.role == "assistant" => Ok(one.content.clone()),
        _ => Err(bad_prompt(
            place,
            column,
            "after their common part each must have one message of the assistant",
        )),
    };
    let (better, worse) = (answer(chosen, "chosen")?, answer(rejected, "rejected")?);
    let prompt = match (shared, said) {
        (0, Some(prompt)) => prompt,
        (0, None) => return Err(empty(&place, "prompt")),
        // Whole conversations contain the prompt, even if the row has one as well.
        (shared, _) => Prompt::Messages(chosen[..shared].to_vec()),
    };
    Ok((prompt, better, worse))
}

/// Returns the length of the common prefix in bytes; a space before the difference belongs to the answers, as in TRL.
fn shared_text(chosen: &str, rejected: &str) -> usize {
    let same = chosen.chars().zip(rejected.chars()).take_while(|(a, b)| a == b);
    let shared: usize = same.map(|(c, _)| c.len_utf8()).sum();
    if chosen[..shared].ends_with(' ') { shared - 1 } else { shared }
}

fn equal(place: &str, text: &str) -> Error {
    Error::new("pair-equal", format!("{place}: chosen and rejected are the same: {text:.60?}"))
        .hint("take the row out: two equal answers prefer nothing")
}

fn empty(place: &Place, what: &str) -> Error {
    Error::new("pair-empty", format!("{}: {what} is empty", place.words()))
        .hint("give the row a prompt and two answers, or take it out of the file")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(rows: &[Value]) -> Result<Vec<PairRow>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
        std::fs::write(file.path(), text).unwrap();
        load_pairs(file.path(), "prompt")
    }

    fn user(text: &str) -> Value {
        json!({"role": "user", "content": text})
    }

    fn assistant(text: &str) -> Value {
        json!({"role": "assistant", "content": text})
    }

    #[test]
    fn every_form_of_trl_gives_prompt_and_answers() {
        let conversation = Prompt::Messages(vec![Message::new("user", "1+1?")]);
        for (row, prompt) in [
            (json!({"prompt": "1+1=", "chosen": "2", "rejected": "3"}), Prompt::Text("1+1=".into())),
            (json!({"chosen": "1+1=2", "rejected": "1+1=3"}), Prompt::Text("1+1=".into())),
            (
                json!({"prompt": [user("1+1?")], "chosen": [assistant("2")], "rejected": [assistant("3")]}),
                conversation.clone(),
            ),
            (json!({"prompt": [user("1+1?")], "chosen": "2", "rejected": "3"}), conversation.clone()),
            (
                json!({"chosen": [user("1+1?"), assistant("2")], "rejected": [user("1+1?"), assistant("3")]}),
                conversation.clone(),
            ),
            (
                json!({"prompt": "1+1?", "chosen": [user("1+1?"), assistant("2")], "rejected": [user("1+1?"), assistant("3")]}),
                conversation,
            ),
        ] {
            let found = &read(std::slice::from_ref(&row)).unwrap()[0];
            assert_eq!((&found.prompt, &*found.chosen, &*found.rejected), (&prompt, "2", "3"), "{row}");
        }
        let row =
            &read(&[json!({"chosen": "äh yes", "rejected": "äh no", "margin": 1.5, "id": 7})]).unwrap()[0];
        assert_eq!((&row.prompt, &*row.chosen), (&Prompt::Text("äh".into()), " yes"));
        assert_eq!((row.margin, &row.columns["id"]), (1.5, &json!(7)));
    }

    #[test]
    fn rows_that_prefer_nothing_are_named_by_line() {
        let good = json!({"prompt": "p", "chosen": "a", "rejected": "b"});
        for (row, slug, words) in [
            (json!({"prompt": "p", "chosen": "a", "rejected": "a"}), "pair-equal", ":2: chosen and rejected"),
            (
                json!({"chosen": [user("p"), assistant("a")], "rejected": [user("p"), assistant("a")]}),
                "pair-equal",
                ":2",
            ),
            (json!({"prompt": "", "chosen": "a", "rejected": "b"}), "pair-empty", "prompt is empty"),
            (json!({"prompt": "p", "chosen": "", "rejected": "b"}), "pair-empty", "chosen is empty"),
            (json!({"prompt": "p", "chosen": "a", "rejected": []}), "pair-empty", "rejected is empty"),
            (json!({"chosen": "a", "rejected": "b"}), "pair-empty", "prompt is empty"),
            (json!({"prompt": "p", "rejected": "b"}), "data-column-missing", "`chosen`"),
            (json!({"prompt": "p", "chosen": "b"}), "data-column-missing", "`rejected`"),
            (json!({"prompt": "p", "chosen": "a", "rejected": [assistant("b")]}), "data-bad-prompt", "both"),
            (json!({"prompt": "p", "chosen": 3, "rejected": "b"}), "data-bad-prompt", "`chosen`"),
            (
                json!({"prompt": "p", "chosen": "a", "rejected": "b", "margin": "x"}),
                "data-bad-prompt",
                "margin",
            ),
            (
                json!({"chosen": [user("p"), user("a")], "rejected": [user("p"), user("b")]}),
                "data-bad-prompt",
                "assistant",
            ),
        ] {
            let error = read(&[good.clone(), row.clone()]).unwrap_err();
            assert!(error.slug == slug && error.to_string().contains(words), "{row}: {error}");
        }
    }
}
