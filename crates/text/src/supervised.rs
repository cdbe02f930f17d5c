//! Supervised rows: a prompt with its answer, or a conversation that trains every assistant turn. Finds the tokens to
//! train on, and refuses a conversation in which they cannot be found.

use crate::data::{Place, bad_prompt, ignore, prompt_of, take};
use crate::images::{ImageColumns, ImageRow, each_answered};
use crate::row_fields::{asks_to_be_learnt, check_meaning, check_thinking, is_learnt};
use crate::row_tokens::RowTokenizer;
use crate::{ChatTemplate, Message, Prompt};
use plimsoll_base::{Error, Result};
use serde_json::{Map, Value};
use std::ops::Range;
use std::path::Path;

/// The column of whole conversations.
const MESSAGES: &str = "messages";

/// One row of supervised data.
#[derive(Clone, Debug, PartialEq)]
pub enum SftRow {
    /// Trains the completion, a message of the assistant.
    Answer { prompt: Prompt, completion: Message },
    /// Trains every assistant turn.
    Turns(Vec<Message>),
}

impl SftRow {
    /// Returns a row with an answer that is text alone.
    pub fn answer(prompt: Prompt, completion: impl Into<String>) -> SftRow {
        SftRow::Answer { prompt, completion: Message::new("assistant", completion) }
    }

    /// Leaves fields out of its messages.
    pub fn ignore(&mut self, names: &[String]) {
        match self {
            SftRow::Answer { prompt, completion } => {
                prompt.ignore(names);
                ignore(std::slice::from_mut(completion), names);
            }
            SftRow::Turns(messages) => ignore(messages, names),
        }
    }

    /// Returns all of its messages; those of a prompt that is text are none.
    pub fn messages(&self) -> Vec<Message> {
        match self {
            SftRow::Answer { prompt, completion } => {
                prompt.messages().iter().chain([completion]).cloned().collect()
            }
            SftRow::Turns(messages) => messages.clone(),
        }
    }
}

/// One row of a file for supervised training.
#[derive(Clone, Debug, PartialEq)]
pub struct SupervisedRow {
    pub row: SftRow,
    pub columns: Map<String, Value>,
    /// True if its texts are from `messages`, false if they are from a prompt and its completion.
    pub is_conversation: bool,
}

/// A supervised row as tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SftTokens {
    /// Tokens before the first trained token.
    pub prompt: Vec<u32>,
    /// Tokens from the first trained one to the last.
    pub completion: Vec<u32>,
    /// Trained tokens of the completion, as ranges in order; all of it if empty.
    pub learnt: Vec<Range<u32>>,
}

/// Reads supervised rows: `{prompt, completion}`, with the prompt in `prompt_column`, or `{messages}`, of which the
/// last turn, or `every_turn`, is trained; with their images if `images` names their column. Fields and columns called
/// as in `ignored` are left out.
///
/// Errors: those of `each_prompt`.
pub fn load_sft(
    path: &Path,
    prompt_column: &str,
    every_turn: bool,
    ignored: &[String],
    images: Option<ImageColumns>,
) -> Result<Vec<ImageRow<SupervisedRow>>> {
    each_answered(
        path,
        images,
        |_| (),
        |mut object, place| {
            let is_conversation = object.contains_key(MESSAGES);
            let mut row = if is_conversation {
                conversation_of(&mut object, every_turn, place)?
            } else {
                answer_of(&mut object, prompt_column, place)?
            };
            row.ignore(ignored);
            check_weights(&row, place)?;
            object.retain(|name, _| !ignored.contains(name));
            Ok(SupervisedRow { row, columns: object, is_conversation })
        },
    )
}

fn conversation_of(object: &mut Map<String, Value>, every_turn: bool, place: Place) -> Result<SftRow> {
    let value = take(object, MESSAGES, place)?;
    let Prompt::Messages(mut messages) = prompt_of(value, MESSAGES, place)? else {
        return Err(bad_prompt(place, MESSAGES, "expected a list of messages"));
    };
    if every_turn {
        return if messages.iter().any(|m| m.role == "assistant") {
            Ok(SftRow::Turns(messages))
        } else {
            Err(bad_prompt(place, MESSAGES, "no message is the assistant's"))
        };
    }
    let last = messages.pop().filter(|m| m.role == "assistant" && !messages.is_empty());
    let completion =
        last.ok_or_else(|| bad_prompt(place, MESSAGES, "the last of two or more must be the assistant's"))?;
    Ok(SftRow::Answer { prompt: Prompt::Messages(messages), completion })
}

fn answer_of(object: &mut Map<String, Value>, prompt_column: &str, place: Place) -> Result<SftRow> {
    let prompt = prompt_of(take(object, prompt_column, place)?, prompt_column, place)?;
    let completion = completion_of(taken_completion(object, place)?, place)?;
    Ok(SftRow::Answer { prompt, completion })
}

/// Takes the completion of a row.
///
/// Errors: `data-column-missing`, with the forms that a row may have.
pub(crate) fn taken_completion(object: &mut Map<String, Value>, place: Place) -> Result<Value> {
    const FORMS: &str = "a row to learn is {\"prompt\": ..., \"completion\": ...} or {\"messages\": [...]}";
    take(object, "completion", place).map_err(|error| Error { hints: vec![FORMS.to_string()], ..error })
}

/// Requires that the weights of messages agree with what is learnt.
fn check_weights(row: &SftRow, place: Place) -> Result<()> {
    let of_row = |error: Error| bad_prompt(place, "messages", &error.message);
    let refused = |why: String| {
        Err(bad_prompt(place, "messages", &why)
            .hint("or set data.ignore = [\"weight\"], to learn as if there were none"))
    };
    match row {
        SftRow::Answer { prompt, completion } => {
            if !is_learnt(completion).map_err(of_row)? {
                return refused("the answer has the weight 0, so nothing of the row is learnt".into());
            }
            match asks_to_be_learnt(prompt.messages()) {
                None => Ok(()),
                Some(number) => refused(format!(
                    "message {number} has the weight 1, and data.train_on = \"last\" learns the last turn alone"
                )),
            }
        }
        SftRow::Turns(messages) => {
            let turns = messages.iter().filter(|message| message.role == "assistant");
            let learnt = turns.map(is_learnt).collect::<Result<Vec<bool>>>().map_err(of_row)?;
            if learnt.contains(&true) {
                Ok(())
            } else {
                refused("every turn has the weight 0, so nothing of the row is learnt".into())
            }
        }
    }
}

/// Reads a completion: text, or a list of one message, as TRL writes the completion of a conversation.
pub(crate) fn completion_of(value: Value, place: Place) -> Result<Message> {
    match value {
        Value::String(text) => Ok(Message::new("assistant", text)),
        list => match prompt_of(list, "completion", place)? {
            Prompt::Messages(mut list) if list.len() == 1 => {
                let message = list.remove(0);
                Ok(Message { role: "assistant".into(), ..message })
            }
            _ => Err(bad_prompt(place, "completion", "expected a string or one message")),
        },
    }
}

impl RowTokenizer<'_> {
    /// Tokenizes a supervised row. `variables`: the row's own variables of the template.
    ///
    /// `eos` follows plain text; a conversation ends as its template ends the assistant's turn.
    /// Errors: those of `prompt`; `data-bad-prompt` for an answer without a token; `chat-template-invalid` if the whole
    /// text does not begin with the prompt's; `turns-not-found` if the text does not show the assistant's turns.
    pub fn sft(&self, row: &SftRow, variables: &Map<String, Value>) -> Result<SftTokens> {
        let tokens = match row {
            SftRow::Answer { prompt, completion } => {
                let cut = self.answered(prompt, completion, variables)?;
                SftTokens { prompt: cut.before, completion: cut.after, learnt: Vec::new() }
            }
            SftRow::Turns(messages) => {
                let prompt = Prompt::Messages(messages.clone());
                let messages = self.conversation(&prompt).expect("a list is a conversation");
                self.every_turn(&messages, variables)?
            }
        };
        if tokens.completion.is_empty() {
            Err(Error::usage(
                "data-bad-prompt",
                "the answer of a row has no token, so nothing of it can be learnt",
            )
            .hint("give the row an answer, or take it out of the file"))
        } else {
            Ok(tokens)
        }
    }

    /// Tokenizes a whole conversation at once, as transformers does, and finds the assistant's tokens in it.
    fn every_turn(&self, messages: &[Message], variables: &Map<String, Value>) -> Result<SftTokens> {
        let template = self.required()?;
        check_meaning(template, messages, variables)?;
        let (text, turns) = if template.has_marks() {
            template.render_marked(messages, variables)?
        } else {
            by_prefixes(template, messages, variables)?
        };
        let turns = learnt_turns(messages, &text, turns)?;
        let tokens = self.tokenizer.encode_with_bytes(&text)?;
        let (mut learnt, mut turn) = (Vec::<Range<usize>>::new(), turns.iter().peekable());
        for (index, (_, bytes)) in tokens.iter().enumerate() {
            while turn.next_if(|turn| turn.end <= bytes.start).is_some() {}
            // A token at the edge of a turn is part of it, as in transformers' mask.
            let is_learnt =
                turn.peek().is_some_and(|t| bytes.end.max(bytes.start + 1) > t.start && !t.is_empty());
            match learnt.last_mut() {
                _ if !is_learnt => {}
                Some(last) if last.end == index => last.end += 1,
                _ => learnt.push(index..index + 1),
            }
        }
        let (Some(first), Some(last)) = (learnt.first(), learnt.last()) else {
            return Err(not_found(
                "the template marks no token of this conversation as the assistant's".into(),
            ));
        };
        let (from, to) = (first.start, last.end);
        let within = |range: &Range<usize>| (range.start - from) as u32..(range.end - from) as u32;
        let learnt = learnt.iter().map(within).collect();
        let ids: Vec<u32> = tokens[..to].iter().map(|(id, _)| *id).collect();
        Ok(SftTokens { prompt: ids[..from].to_vec(), completion: ids[from..].to_vec(), learnt })
    }
}

/// Returns the turns that are learnt: those of the assistant whose weight is not 0. What the assistant thought in them
/// is in their text.
fn learnt_turns(messages: &[Message], text: &str, turns: Vec<Range<usize>>) -> Result<Vec<Range<usize>>> {
    let of_assistant: Vec<&Message> = messages.iter().filter(|m| m.role == "assistant").collect();
    let learnt = of_assistant.iter().map(|message| is_learnt(message)).collect::<Result<Vec<bool>>>()?;
    let all = learnt.iter().all(|is_learnt| *is_learnt);
    if turns.len() != of_assistant.len() {
        if !all {
            let (marked, count) = (turns.len(), of_assistant.len());
            return Err(not_found(format!(
                "it marks {marked} texts and the assistant has {count} turns, so that a turn of weight 0 is not found"
            )));
        }
        of_assistant.iter().try_for_each(|message| check_thinking(message, text))?;
        return Ok(turns);
    }
    let mut kept = Vec::with_capacity(turns.len());
    for ((turn, message), is_learnt) in turns.into_iter().zip(of_assistant).zip(learnt) {
        if is_learnt {
            check_thinking(message, &text[turn.clone()])?;
            kept.push(turn);
        }
    }
    Ok(kept)
}

/// Finds the assistant's turns from renderings of each prefix of the conversation: a turn is what the prefix with it
/// has beyond the prefix before it with a generation prompt. `SftRow::Answer` trains the same text.
fn by_prefixes(
    template: &ChatTemplate,
    messages: &[Message],
    variables: &Map<String, Value>,
) -> Result<(String, Vec<Range<usize>>)> {
    let whole = template.render_row(messages, variables, false)?;
    let mut turns = Vec::new();
    for (index, message) in messages.iter().enumerate().filter(|(_, m)| m.role == "assistant") {
        let number = index + 1;
        let before = template.render_row(&messages[..index], variables, true)?;
        let until = if number == messages.len() {
            whole.clone()
        } else {
            template.render_row(&messages[..number], variables, false)?
        };
        if !until.starts_with(&before) {
            let what = format!("message {number} changes the text of the prompt before it");
            return Err(not_found(what));
        }
        if !whole.starts_with(&until) {
            let what = format!(
                "the text up to message {number} of {} is another one in the whole conversation{}",
                messages.len(),
                if message.content.contains("</think>") || message.thinking().is_some() {
                    ": the template takes the thinking out of earlier turns"
                } else {
                    ""
                }
            );
            return Err(not_found(what));
        }
        turns.push(before.len()..until.len());
    }
    Ok((whole, turns))
}

fn not_found(what: String) -> Error {
    Error::new("turns-not-found", format!("chat template: {what}"))
        .fact("data.train_on is \"assistant\": every turn of the assistant is learnt, where it is in the whole text")
        .hint("set data.chat_template to a template with `{% generation %}...{% endgeneration %}` round what the assistant writes")
        .hint("or set data.train_on = \"last\", and write a row for each turn")
}
