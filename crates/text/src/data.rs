//! Prompt data: JSON lines, read one line at a time. A row that is wrong is named by file, line and column; none is
//! skipped. Columns that are not the prompt travel to the reward as they are.

use crate::{ChatTemplate, Message, Tokenizer};
use plimsoll_base::{Error, Result};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

const LINE_BYTES_MAX: u64 = 16 << 20;
const ROWS_MAX: usize = 1 << 24;

/// What the model is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Text as it is.
    Text(String),
    /// A conversation for the chat template.
    Messages(Vec<Message>),
}

/// One row of prompt data.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The prompt.
    pub prompt: Prompt,
    /// All other columns.
    pub columns: Map<String, Value>,
}

/// One row of supervised data.
#[derive(Clone, Debug, PartialEq)]
pub struct SftRow {
    /// What is given.
    pub prompt: Prompt,
    /// What is learned.
    pub completion: String,
}

/// Reads prompts from JSON lines.
///
/// Errors: `data-missing`, `data-empty`, `data-bad-json`, `data-column-missing`, `data-bad-prompt`.
pub fn load_jsonl(path: &Path, prompt_column: &str) -> Result<Vec<Row>> {
    load(path, |mut object, place| {
        let value = take(&mut object, prompt_column, place)?;
        Ok(Row { prompt: prompt_of(value, prompt_column, place)?, columns: object })
    })
}

/// Reads supervised rows from JSON lines: `messages`, of which the last one is learned, or `prompt` and `completion`.
///
/// Errors: as `load_jsonl`.
pub fn load_sft_jsonl(path: &Path) -> Result<Vec<SftRow>> {
    load(path, |mut object, place| {
        if object.contains_key("messages") {
            let value = take(&mut object, "messages", place)?;
            let Prompt::Messages(mut messages) = prompt_of(value, "messages", place)? else {
                return Err(bad_prompt(place, "messages", "a list of messages is wanted"));
            };
            let last = messages.pop().filter(|m| m.role == "assistant" && !messages.is_empty());
            let last = last.ok_or_else(|| {
                bad_prompt(place, "messages", "the last of two or more must be the assistant's")
            })?;
            return Ok(SftRow { prompt: Prompt::Messages(messages), completion: last.content });
        }
        let prompt = prompt_of(take(&mut object, "prompt", place)?, "prompt", place)?;
        let completion = match take(&mut object, "completion", place)? {
            Value::String(text) => text,
            // TRL writes the completion of a conversation as a list of one message.
            list => match prompt_of(list, "completion", place)? {
                Prompt::Messages(mut list) if list.len() == 1 => list.remove(0).content,
                _ => return Err(bad_prompt(place, "completion", "a string or one message is wanted")),
            },
        };
        Ok(SftRow { prompt, completion })
    })
}

/// The tokens of a prompt.
///
/// A string is taken as it is, unless `apply_chat` or a system prompt asks for the chat template: then it is one user
/// message. A system prompt goes before conversations that have none.
/// Errors: `chat-template-missing`, `chat-template-invalid`, those of `Tokenizer::encode`.
pub fn tokenize_prompt(
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    prompt: &Prompt,
    system_prompt: Option<&str>,
    apply_chat: bool,
) -> Result<Vec<u32>> {
    match conversation(prompt, system_prompt, apply_chat) {
        Err(text) => tokenizer.encode(text),
        Ok(messages) => tokenizer.encode(&required(template)?.render(&messages, true)?),
    }
}

/// The tokens of a supervised row: those that are given, and those that are learned.
///
/// After plain text comes `eos`; a conversation ends as its template ends the assistant's turn.
/// Errors: as `tokenize_prompt`; `chat-template-invalid` where the prompt's text does not begin the whole text.
pub fn tokenize_sft(
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    row: &SftRow,
    system_prompt: Option<&str>,
    apply_chat: bool,
    eos: Option<u32>,
) -> Result<(Vec<u32>, Vec<u32>)> {
    match conversation(&row.prompt, system_prompt, apply_chat) {
        Err(text) => {
            let mut completion = tokenizer.encode(&row.completion)?;
            completion.extend(eos);
            Ok((tokenizer.encode(text)?, completion))
        }
        Ok(mut messages) => {
            let template = required(template)?;
            let prompt = template.render(&messages, true)?;
            messages.push(Message::new("assistant", row.completion.clone()));
            let whole = template.render(&messages, false)?;
            let completion = whole.strip_prefix(&prompt).ok_or_else(|| {
                Error::new("chat-template-invalid", "chat template: an answer changes the text of its prompt")
                    .hint("set data.chat_template to one whose generation prompt begins the assistant's turn")
            })?;
            Ok((tokenizer.encode(&prompt)?, tokenizer.encode(completion)?))
        }
    }
}

/// The messages for the template, or the text to take as it is.
fn conversation<'a>(
    prompt: &'a Prompt,
    system_prompt: Option<&str>,
    apply_chat: bool,
) -> std::result::Result<Vec<Message>, &'a str> {
    let mut messages = match prompt {
        Prompt::Text(text) if !apply_chat && system_prompt.is_none() => return Err(text),
        Prompt::Text(text) => vec![Message::new("user", text.clone())],
        Prompt::Messages(messages) => messages.clone(),
    };
    if let Some(system) = system_prompt
        && messages.first().is_none_or(|m| m.role != "system")
    {
        messages.insert(0, Message::new("system", system));
    }
    Ok(messages)
}

fn required(template: Option<&ChatTemplate>) -> Result<&ChatTemplate> {
    template.ok_or_else(|| {
        Error::new("chat-template-missing", "the prompts are conversations, the model has no chat template")
            .hint("set data.chat_template, or write prompts as strings")
    })
}

/// Where a row stands, for messages.
#[derive(Clone, Copy)]
struct Place<'a> {
    path: &'a Path,
    line: usize,
}

fn load<T>(path: &Path, row: impl Fn(Map<String, Value>, Place) -> Result<T>) -> Result<Vec<T>> {
    let missing = |e: std::io::Error| {
        Error::io("data-missing", path, &e)
            .hint("check data.prompts in the run file; paths are relative to where you are")
    };
    if !std::fs::metadata(path).map_err(missing)?.is_file() {
        let message = format!("{}: not a regular file", path.display());
        return Err(
            Error::new("data-missing", message).hint("data.prompts names a JSONL file or builtin:TASK")
        );
    }
    let mut reader = BufReader::new(File::open(path).map_err(missing)?);
    let (mut rows, mut bytes) = (Vec::new(), Vec::new());
    for line in 1.. {
        let place = Place { path, line };
        bytes.clear();
        let read = (&mut reader).take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut bytes).map_err(missing)?;
        if read == 0 {
            break;
        }
        if read as u64 > LINE_BYTES_MAX {
            return Err(bad_json(place, &format!("longer than {LINE_BYTES_MAX} bytes")));
        }
        let start = if line == 1 && bytes.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 }; // a byte order mark
        let text = bytes[start..].trim_ascii();
        if text.is_empty() {
            continue;
        }
        if rows.len() == ROWS_MAX {
            return Err(bad_json(place, &format!("more than {ROWS_MAX} rows")));
        }
        rows.push(row(parse(text, place)?, place)?);
    }
    if rows.is_empty() {
        return Err(Error::new("data-empty", format!("{}: no rows", path.display()))
            .hint("write one JSON object a line, such as {\"prompt\": \"2+2=\", \"ground_truth\": \"4\"}"));
    }
    Ok(rows)
}

fn parse(text: &[u8], place: Place) -> Result<Map<String, Value>> {
    match serde_json::from_slice(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(bad_json(place, "not an object; a file of one JSON list is not read, JSON lines are")),
        Err(e) => Err(bad_json(place, &e.to_string().replace("line 1 column", "column"))),
    }
}

fn take(object: &mut Map<String, Value>, column: &str, place: Place) -> Result<Value> {
    if let Some(value) = object.shift_remove(column) {
        return Ok(value);
    }
    let there: Vec<String> = object.keys().take(20).map(|k| format!("`{k}`")).collect();
    let message = format!("{}:{}: no column `{column}`", place.path.display(), place.line);
    Err(Error::new("data-column-missing", message)
        .fact(format!("columns there: {}", if there.is_empty() { "none".into() } else { there.join(", ") }))
        .hint("set data.prompt_column to the column with the prompt"))
}

fn prompt_of(value: Value, column: &str, place: Place) -> Result<Prompt> {
    match value {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(list) if !list.is_empty() => {
            let messages = list.into_iter().map(|m| serde_json::from_value(m).map_err(|e| e.to_string()));
            let messages: std::result::Result<Vec<Message>, String> = messages.collect();
            messages
                .map(Prompt::Messages)
                .map_err(|e| bad_prompt(place, column, &format!("a message is wrong: {e}")))
        }
        _ => Err(bad_prompt(place, column, "a string or a list of messages is wanted")),
    }
}

fn bad_json(place: Place, why: &str) -> Error {
    Error::new("data-bad-json", format!("{}:{}: {why}", place.path.display(), place.line))
        .hint("write one JSON object a line, in UTF-8")
}

fn bad_prompt(place: Place, column: &str, why: &str) -> Error {
    Error::new(
        "data-bad-prompt",
        format!("{}:{}: column `{column}`: {why}", place.path.display(), place.line),
    )
    .hint("a message is {\"role\": \"user\", \"content\": \"...\"}")
}
