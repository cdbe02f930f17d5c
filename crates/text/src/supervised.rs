//! Supervised rows: a prompt with its answer, or a conversation that trains every assistant turn. Finds the tokens to
//! train on, and refuses a conversation in which they cannot be found.

use crate::data::{Place, bad_prompt, conversation, load, prompt_of, required, take};
use crate::strings::Strings;
use crate::{ChatTemplate, Message, Prompt, Tokenizer};
use plimsoll_base::{Error, Result};
use std::ops::Range;
use std::path::Path;

/// One row of supervised data.
#[derive(Clone, Debug, PartialEq)]
pub enum SftRow {
    /// Trains the completion.
    Answer { prompt: Prompt, completion: String },
    /// Trains every assistant turn.
    Turns(Vec<Message>),
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

/// Reads supervised rows: `{prompt, completion}`, or `{messages}`, of which the last turn, or `every_turn`, is trained.
///
/// Errors: those of `each_prompt`.
pub fn load_sft(path: &Path, every_turn: bool) -> Result<Vec<SftRow>> {
    load(path, |mut object, place| {
        if object.contains_key("messages") {
            let value = take(&mut object, "messages", place)?;
            let Prompt::Messages(mut messages) = prompt_of(value, "messages", place)? else {
                return Err(bad_prompt(place, "messages", "expected a list of messages"));
            };
            if every_turn {
                return match messages.iter().any(|m| m.role == "assistant") {
                    true => Ok(SftRow::Turns(messages)),
                    false => Err(bad_prompt(place, "messages", "no message is the assistant's")),
                };
            }
            let last = messages.pop().filter(|m| m.role == "assistant" && !messages.is_empty());
            let last = last.ok_or_else(|| {
                bad_prompt(place, "messages", "the last of two or more must be the assistant's")
            })?;
            return Ok(SftRow::Answer { prompt: Prompt::Messages(messages), completion: last.content });
        }
        let prompt = prompt_of(take(&mut object, "prompt", place)?, "prompt", place)?;
        let completion = completion_of(take(&mut object, "completion", place)?, place)?;
        Ok(SftRow::Answer { prompt, completion })
    })
}

/// Reads a completion: text, or a list of one message, as TRL writes the completion of a conversation.
pub(crate) fn completion_of(value: serde_json::Value, place: Place) -> Result<String> {
    match value {
        serde_json::Value::String(text) => Ok(text),
        list => match prompt_of(list, "completion", place)? {
            Prompt::Messages(mut list) if list.len() == 1 => Ok(list.remove(0).content),
            _ => Err(bad_prompt(place, "completion", "expected a string or one message")),
        },
    }
}

/// Tokenizes a supervised row.
///
/// `eos` follows plain text; a conversation ends as its template ends the assistant's turn.
/// Errors: those of `tokenize_prompt`; `data-bad-prompt` for an answer without a token; `chat-template-invalid` if the
/// whole text does not begin with the prompt's; `turns-not-found` if the text does not show the assistant's turns.
pub fn tokenize_sft(
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    row: &SftRow,
    system_prompt: Option<&str>,
    strings: &Strings,
    eos: Option<u32>,
) -> Result<SftTokens> {
    let tokens = tokens_of(tokenizer, template, row, system_prompt, strings, eos)?;
    match tokens.completion.is_empty() {
        true => Err(Error::usage(
            "data-bad-prompt",
            "the answer of a row has no token, so nothing of it can be learnt",
        )
        .hint("give the row an answer, or take it out of the file")),
        false => Ok(tokens),
    }
}

fn tokens_of(
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    row: &SftRow,
    system_prompt: Option<&str>,
    strings: &Strings,
    eos: Option<u32>,
) -> Result<SftTokens> {
    let (prompt, completion) = match row {
        SftRow::Answer { prompt, completion } => (prompt, completion),
        SftRow::Turns(messages) => {
            let prompt = Prompt::Messages(messages.clone());
            let messages = conversation(&prompt, system_prompt, strings).expect("a list is a conversation");
            return every_turn(tokenizer, required(template)?, &messages);
        }
    };
    match conversation(prompt, system_prompt, strings) {
        Err(text) => {
            let mut completion = tokenizer.encode(completion)?;
            completion.extend(eos);
            Ok(SftTokens { prompt: tokenizer.encode(text)?, completion, learnt: Vec::new() })
        }
        Ok(mut messages) => {
            let template = required(template)?;
            let prompt = template.render(&messages, true)?;
            messages.push(Message::new("assistant", completion.clone()));
            let whole = template.render(&messages, false)?;
            let completion = whole.strip_prefix(&prompt).ok_or_else(|| {
                Error::new("chat-template-invalid", "chat template: an answer changes the text of its prompt")
                    .hint("set data.chat_template to one whose generation prompt begins the assistant's turn")
            })?;
            let (prompt, completion) = (tokenizer.encode(&prompt)?, tokenizer.encode(completion)?);
            Ok(SftTokens { prompt, completion, learnt: Vec::new() })
        }
    }
}

/// Tokenizes a whole conversation at once, as transformers does, and finds the assistant's tokens in it.
fn every_turn(tokenizer: &Tokenizer, template: &ChatTemplate, messages: &[Message]) -> Result<SftTokens> {
    let (text, turns) = match template.has_marks() {
        true => template.render_marked(messages)?,
        false => by_prefixes(template, messages)?,
    };
    let tokens = tokenizer.encode_with_bytes(&text)?;
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
        return Err(not_found("the template marks no token of this conversation as the assistant's".into()));
    };
    let (from, to) = (first.start, last.end);
    let within = |range: &Range<usize>| (range.start - from) as u32..(range.end - from) as u32;
    let learnt = learnt.iter().map(within).collect();
    let ids: Vec<u32> = tokens[..to].iter().map(|(id, _)| *id).collect();
    Ok(SftTokens { prompt: ids[..from].to_vec(), completion: ids[from..].to_vec(), learnt })
}

/// Finds the assistant's turns from renderings of each prefix of the conversation: a turn is what the prefix with it
/// has beyond the prefix before it with a generation prompt. `SftRow::Answer` trains the same text.
fn by_prefixes(template: &ChatTemplate, messages: &[Message]) -> Result<(String, Vec<Range<usize>>)> {
    let whole = template.render(messages, false)?;
    let mut turns = Vec::new();
    for (index, message) in messages.iter().enumerate().filter(|(_, m)| m.role == "assistant") {
        let number = index + 1;
        let before = template.render(&messages[..index], true)?;
        let until = match number == messages.len() {
            true => whole.clone(),
            false => template.render(&messages[..number], false)?,
        };
        if !until.starts_with(&before) {
            let what = format!("message {number} changes the text of the prompt before it");
            return Err(not_found(what));
        }
        if !whole.starts_with(&until) {
            let what = format!(
                "the text up to message {number} of {} is another one in the whole conversation{}",
                messages.len(),
                match message.content.contains("</think>") {
                    true => ": the template takes the thinking out of earlier turns",
                    false => "",
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
