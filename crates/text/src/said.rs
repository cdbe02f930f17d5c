//! What a response says, piece by piece: text, thinking and calls, and what the readers of every form share.

use plimsoll_base::{has_mark, json_marked, json_unmarked};
use serde_json::{Map, Value};

/// A piece of a response.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    Text(String),
    /// What the model thought, where its format tells it from text.
    Thought(String),
    Call {
        name: String,
        /// The arguments as JSON.
        arguments: String,
    },
}

/// Joins adjacent texts.
pub fn joined(said: Vec<Said>) -> Vec<Said> {
    let mut joined = Vec::with_capacity(said.len());
    for one in said {
        match one {
            Said::Text(text) => push_text(&mut joined, &text),
            Said::Thought(text) => match joined.last_mut() {
                Some(Said::Thought(last)) => last.push_str(&text),
                _ => joined.push(Said::Thought(text)),
            },
            call => joined.push(call),
        }
    }
    joined
}

/// Writes the arguments of a call that was read from `text`. Numbers keep their digits.
pub(crate) fn written_arguments(text: &str, arguments: &Value) -> String {
    if has_mark(text) { arguments.to_string() } else { json_unmarked(arguments) }
}

pub(crate) fn push_text(said: &mut Vec<Said>, text: &str) {
    if text.is_empty() {
        return;
    }
    match said.last_mut() {
        Some(Said::Text(last)) => last.push_str(text),
        _ => said.push(Said::Text(text.to_string())),
    }
}

/// Takes the arguments of a call, under either name, of which one may be empty. A call of nothing has none; one that
/// has them under another name is no call.
pub(crate) fn arguments_of(call: &mut Map<String, Value>) -> Option<Value> {
    let mut found = Value::Object(Map::new());
    for name in ["arguments", "parameters"] {
        let value = match call.remove(name) {
            None | Some(Value::Null) => continue,
            // Some models write the object as a string.
            Some(Value::String(text)) if text.trim().is_empty() => continue,
            Some(Value::String(text)) => json_marked(&text).ok()?,
            Some(other) => other,
        };
        if found.as_object().is_some_and(Map::is_empty) {
            found = value;
        }
    }
    let is_empty = found.as_object().is_some_and(Map::is_empty);
    let about = |name: &String| ["id", "type", "name"].contains(&name.as_str());
    (!is_empty || call.keys().all(about)).then_some(found)
}

/// Returns the length of the longest suffix of `text` that is a proper prefix of `tag`.
pub(crate) fn overlap(text: &str, tag: &str) -> usize {
    (1..tag.len()).rev().find(|&n| text.as_bytes().ends_with(&tag.as_bytes()[..n])).unwrap_or(0)
}
