//! Preference data: a prompt with a chosen and a rejected answer, in TRL's forms, and its tokens.
//!
//! `prompt`, `chosen` and `rejected` are strings or chat messages. Answers that are conversations, or strings without a
//! prompt column, begin with the prompt: their common prefix (TRL's "implicit prompt"). `margin` is a number.

use crate::data::{Place, bad_prompt, ignore, prompt_of, take};
use crate::images::{ImageColumns, ImageRow, each_answered};
use crate::row_fields::is_learnt;
use crate::row_tokens::{Cut, RowTokenizer};
use crate::{Message, Prompt};
use plimsoll_base::{Error, Result};
use serde_json::{Map, Value};
use std::cell::Cell;
use std::path::Path;

#[derive(Clone, Debug, PartialEq)]
pub struct PairRow {
    pub prompt: Prompt,
    /// A message of the assistant.
    pub chosen: Message,
    pub rejected: Message,
    /// Target for the least score difference of a reward model; 0 if the data has none.
    pub margin: f32,
    pub columns: Map<String, Value>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PairTokens {
    pub prompt: Vec<u32>,
    /// Includes the end token.
    pub chosen: Vec<u32>,
    pub rejected: Vec<u32>,
}

impl PairRow {
    pub fn of_texts(prompt: Prompt, chosen: impl Into<String>, rejected: impl Into<String>) -> PairRow {
        let message = |text: String| Message::new("assistant", text);
        let (chosen, rejected) = (message(chosen.into()), message(rejected.into()));
        PairRow { prompt, chosen, rejected, margin: 0.0, columns: Map::new() }
    }

    /// Leaves columns and fields of messages out.
    pub fn ignore(&mut self, names: &[String]) {
        self.prompt.ignore(names);
        ignore(std::slice::from_mut(&mut self.chosen), names);
        ignore(std::slice::from_mut(&mut self.rejected), names);
        self.columns.retain(|name, _| !names.contains(name));
    }
}

/// Reads preference rows from JSON lines or Parquet, with their images if `images` names their column. Fields and
/// columns called as in `ignored` are left out.
///
/// Errors: those of `each_prompt`; `pair-equal`, `pair-empty`.
pub fn load_pairs(
    path: &Path,
    prompt_column: &str,
    ignored: &[String],
    images: Option<ImageColumns>,
) -> Result<Vec<ImageRow<PairRow>>> {
    let prompts = NamedPrompts::of(prompt_column);
    let rows = each_answered(path, images, as_pair, |object, place| {
        prompts.see(&object);
        let row = row_of(object, prompt_column, ignored, place)?;
        let prompt_is_empty = matches!(&row.prompt, Prompt::Text(text) if text.is_empty());
        let texts = [
            ("prompt", prompt_is_empty),
            ("chosen", is_empty(&row.chosen)),
            ("rejected", is_empty(&row.rejected)),
        ];
        match texts.into_iter().find(|(_, is_empty)| *is_empty) {
            Some((what, _)) => Err(empty(&place, what)),
            None if row.chosen == row.rejected => Err(equal(&place.words(), &row.chosen.content)),
            None => Ok(row),
        }
    })?;
    prompts.finish(path)?;
    Ok(rows)
}

/// Writes a row of ms-swift as one of TRL: its `messages` end with the chosen answer, and a further field has the
/// rejected one.
pub(crate) fn as_pair(object: &mut Map<String, Value>) {
    let Some(Value::Array(chosen)) = object.get("messages").filter(|_| !object.contains_key("chosen")) else {
        return;
    };
    let rejected =
        match (object.get("rejected_messages"), object.get("rejected_response"), chosen.split_last()) {
            (Some(Value::Array(rejected)), ..) => rejected.clone(),
            (_, Some(Value::String(answer)), Some((Value::Object(last), before))) => {
                let mut last = last.clone();
                last.insert("content".into(), answer.as_str().into());
                before.iter().cloned().chain([Value::Object(last)]).collect()
            }
            _ => return,
        };
    for name in ["rejected_messages", "rejected_response"] {
        object.shift_remove(name);
    }
    let chosen = object.shift_remove("messages").unwrap_or_default();
    object.extend([("chosen".to_string(), chosen), ("rejected".to_string(), Value::Array(rejected))]);
}

/// Tells whether pairs, which may be without prompts, have the prompt column that the run file names.
pub(crate) struct NamedPrompts<'c> {
    column: &'c str,
    is_found: Cell<bool>,
}

impl<'c> NamedPrompts<'c> {
    pub(crate) fn of(column: &'c str) -> NamedPrompts<'c> {
        // The usual name is no wish of the run file.
        NamedPrompts { column, is_found: Cell::new(column == "prompt") }
    }

    pub(crate) fn see(&self, row: &Map<String, Value>) {
        if row.contains_key(self.column) {
            self.is_found.set(true);
        }
    }

    /// Requires that some row has the column.
    ///
    /// Errors: `data-column-missing`.
    pub(crate) fn finish(self, path: &Path) -> Result<()> {
        if self.is_found.get() {
            return Ok(());
        }
        let message = format!("{}: no row has the column `{}`", path.display(), self.column);
        Err(Error::new("data-column-missing", message).hint(
            "set data.prompt_column to the column with the prompt, or remove it: pairs may be without one",
        ))
    }
}

fn is_empty(answer: &Message) -> bool {
    answer.content.is_empty() && answer.fields.is_empty()
}

impl RowTokenizer<'_> {
    /// Tokenizes a pair, each half as a supervised row. `variables`: the row's own variables of the template.
    ///
    /// Errors: those of `sft`; `pair-equal` if both texts have the same tokens.
    pub fn pair(&self, row: &PairRow, variables: &Map<String, Value>) -> Result<PairTokens> {
        let half = |answer: &Message| self.answered(&row.prompt, answer, variables);
        let (chosen, rejected) = (half(&row.chosen)?, half(&row.rejected)?);
        if chosen.after.is_empty() || rejected.after.is_empty() {
            return Err(Error::usage(
                "data-bad-prompt",
                "the answer of a row has no token, so nothing of it can be learnt",
            )
            .hint("give the row an answer, or take it out of the file"));
        }
        if chosen == rejected {
            return Err(equal("as tokens", &row.chosen.content));
        }
        // A token across the end of the prompt may be one half's alone: what both begin with is the prompt.
        let same = chosen.before.iter().zip(&rejected.before).take_while(|(a, b)| a == b).count();
        let prompt = chosen.before[..same].to_vec();
        let answer = |Cut { before, after }: Cut| before.into_iter().skip(same).chain(after).collect();
        Ok(PairTokens { prompt, chosen: answer(chosen), rejected: answer(rejected) })
    }
}

pub(crate) fn row_of(
    mut object: Map<String, Value>,
    prompt_column: &str,
    ignored: &[String],
    place: Place,
) -> Result<PairRow> {
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
        (Some(prompt), Prompt::Text(chosen), Prompt::Text(rejected)) => {
            (prompt, Message::new("assistant", chosen), Message::new("assistant", rejected))
        }
        (None, Prompt::Text(chosen), Prompt::Text(rejected)) => {
            let shared = shared_text(&chosen, &rejected);
            let answer = |text: &str| Message::new("assistant", &text[shared..]);
            (Prompt::Text(chosen[..shared].into()), answer(&chosen), answer(&rejected))
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
    let mut row = PairRow { prompt, chosen, rejected, margin, columns: object };
    row.ignore(ignored);
    for answer in [&row.chosen, &row.rejected] {
        match is_learnt(answer) {
            Ok(true) => {}
            Ok(false) => return Err(bad_prompt(place, "chosen", "an answer has the weight 0")),
            Err(error) => return Err(bad_prompt(place, "chosen", &error.message)),
        }
    }
    Ok(row)
}

/// Splits two lists of messages, each ending in one assistant message, into prompt and answers.
fn conversations(
    said: Option<Prompt>,
    chosen: &[Message],
    rejected: &[Message],
    place: Place,
) -> Result<(Prompt, Message, Message)> {
    if chosen == rejected {
        return Err(equal(&place.words(), &chosen.last().map_or(String::new(), |m| m.content.clone())));
    }
    let shared = chosen.iter().zip(rejected).take_while(|(a, b)| a == b).count();
    let answer = |messages: &[Message], column: &str| match &messages[shared..] {
        [one] if one.role == "assistant" => Ok(one.clone()),
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
        Ok(load_pairs(file.path(), "prompt", &[], None)?.into_iter().map(|of| of.row).collect())
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
                json!({"messages": [user("1+1?"), assistant("2")], "rejected_response": "3"}),
                conversation.clone(),
            ),
            (
                json!({"prompt": "1+1?", "chosen": [user("1+1?"), assistant("2")], "rejected": [user("1+1?"), assistant("3")]}),
                conversation,
            ),
        ] {
            let found = &read(std::slice::from_ref(&row)).unwrap()[0];
            let (chosen, rejected) = (&*found.chosen.content, &*found.rejected.content);
            assert_eq!((&found.prompt, chosen, rejected), (&prompt, "2", "3"), "{row}");
        }
        let row =
            &read(&[json!({"chosen": "äh yes", "rejected": "äh no", "margin": 1.5, "id": 7})]).unwrap()[0];
        assert_eq!((&row.prompt, &*row.chosen.content), (&Prompt::Text("äh".into()), " yes"));
        assert_eq!((row.margin, &row.columns["id"]), (1.5, &json!(7)));
    }

    #[test]
    fn a_prompt_column_that_is_named_must_be_there() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let rows = |column: &str| {
            let row = json!({column: "1+1=", "chosen": "1+1=2", "rejected": "1+1=3"});
            std::fs::write(file.path(), format!("{row}\n")).unwrap();
            load_pairs(file.path(), "question", &[], None)
        };
        assert_eq!(rows("question").unwrap()[0].row.prompt, Prompt::Text("1+1=".into()));
        let error = rows("query").unwrap_err();
        assert!(error.slug == "data-column-missing" && error.message.contains("`question`"), "{error}");
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
