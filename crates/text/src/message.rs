//! Messages of a conversation as data files and clients write them: text or parts of text, and every other field, which
//! goes to the chat template. Refuses what would be lost: parts that are no text, and what is no message.

use plimsoll_base::{json_with_digits, shown};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Fields in which stacks keep what the assistant thought before it answered.
pub(crate) const THINKING: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, ...
    pub role: String,
    pub content: String,
    /// All other fields, such as `reasoning_content` and `tool_calls`.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

impl Message {
    pub fn new(role: &str, content: impl Into<String>) -> Message {
        Message { role: role.to_string(), content: content.into(), fields: Map::new() }
    }

    /// Returns the message as an object, role and content first.
    pub fn to_json(&self) -> Value {
        let mut object = Map::with_capacity(2 + self.fields.len());
        object.insert("role".into(), self.role.as_str().into());
        object.insert("content".into(), self.content.as_str().into());
        object.extend(self.fields.iter().map(|(name, value)| (name.clone(), value.clone())));
        Value::Object(object)
    }

    /// Reads a message of a data file. A field of null is none, as columns of Parquet have them.
    pub(crate) fn read(value: Value) -> Result<Message, String> {
        let Value::Object(mut fields) = value else {
            return Err(format!("it is no object: {}", shown(&value.to_string())));
        };
        fields.retain(|_, value| !value.is_null());
        if fields.get("tool_calls").is_some_and(|calls| *calls == Value::Array(Vec::new())) {
            fields.shift_remove("tool_calls");
        }
        let role = match fields.shift_remove("role") {
            Some(Value::String(role)) => role,
            Some(other) => return Err(format!("its role is {}, no text", shown(&other.to_string()))),
            None if fields.contains_key("from") && fields.contains_key("value") => {
                return Err("missing field `role`: it has ShareGPT's `from` and `value`; write `from` as `role` (human: user, gpt: assistant) and `value` as `content`".into());
            }
            None => return Err("missing field `role`".into()),
        };
        let content = match fields.shift_remove("content") {
            Some(Value::String(text)) => text,
            Some(Value::Array(parts)) => joined_parts(&parts).map_err(|fault| fault.words("its content"))?,
            Some(other) => {
                return Err(format!(
                    "its content is {}, no text and no list of parts",
                    shown(&other.to_string())
                ));
            }
            None if role == "assistant" && fields.contains_key("tool_calls") => String::new(),
            None => return Err("missing field `content`".into()),
        };
        if let Some(calls) = fields.get_mut("tool_calls") {
            read_calls(calls, json_with_digits).map_err(|place| format!("`tool_calls`{place}"))?;
        }
        Ok(Message { role, content, fields })
    }

    /// Returns what the assistant thought, if a field has it.
    pub(crate) fn thinking(&self) -> Option<(&'static str, &str)> {
        let of = |name: &&'static str| Some((*name, self.fields.get(*name)?.as_str()?.trim()));
        THINKING.iter().filter_map(of).find(|(_, text)| !text.is_empty())
    }
}

/// Reads a list of messages that a column holds as text, as stacks write columns of one type. None for any other text.
pub(crate) fn listed(text: &str) -> Option<Vec<Value>> {
    let trimmed = text.trim();
    if !(trimmed.starts_with('[') && trimmed.ends_with(']') && trimmed.contains("\"role\"")) {
        return None;
    }
    let Ok(Value::Array(list)) = json_with_digits(trimmed) else { return None };
    let is_message = |value: &Value| value["role"].is_string();
    (!list.is_empty() && list.iter().all(is_message)).then_some(list)
}

/// A part of a message's content that is no text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPart {
    /// Its place in the list, from 0.
    pub index: usize,
    /// Its type, if it is a part of another type.
    pub kind: Option<String>,
}

impl BadPart {
    fn words(&self, content: &str) -> String {
        match &self.kind {
            Some(kind) => {
                format!("part {} of {content} is of type {:?}: only text is read", self.index, shown(kind))
            }
            None => format!("part {} of {content} has no type and text", self.index),
        }
    }
}

/// Returns the text of a message's parts, one after the other.
///
/// Errors: the first part that is no text.
pub fn joined_parts(parts: &[Value]) -> Result<String, BadPart> {
    let mut text = String::new();
    for (index, part) in parts.iter().enumerate() {
        match (part["type"].as_str(), part["text"].as_str()) {
            (Some("text"), Some(words)) => text.push_str(words),
            (Some(kind), _) if kind != "text" => {
                return Err(BadPart { index, kind: Some(kind.to_string()) });
            }
            _ => return Err(BadPart { index, kind: None }),
        }
    }
    Ok(text)
}

/// Reads the calls of an earlier answer in place. Templates write the arguments as an object; clients and data have
/// them as its text, which `read` parses, and nothing or an empty text is no argument.
///
/// Errors: what is wrong, with its place, for words after the list's name.
pub fn read_calls(calls: &mut Value, read: fn(&str) -> serde_json::Result<Value>) -> Result<(), String> {
    let Value::Array(list) = calls else {
        return Err(": it can be a list".into());
    };
    for (index, call) in list.iter_mut().enumerate() {
        // Stacks also write a call without `function` around it, which templates read as well.
        let function = if call["function"].is_object() { &mut call["function"] } else { &mut *call };
        if !function["name"].is_string() {
            return Err(format!("[{index}].function.name: it can be a string"));
        }
        let arguments = &mut function["arguments"];
        let object = match arguments {
            Value::Null => Some(Map::new()),
            Value::String(text) if text.trim().is_empty() => Some(Map::new()),
            Value::String(text) => match read(text) {
                Ok(Value::Object(object)) => Some(object),
                _ => None,
            },
            _ => None,
        };
        if let Some(object) = object {
            *arguments = Value::Object(object);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_message_keeps_its_fields_and_joins_its_parts() {
        for (given, content, fields) in [
            (json!({"role": "user", "content": "a", "x": null}), "a", json!({})),
            (
                json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "image": null}]}),
                "ab",
                json!({}),
            ),
            (
                json!({"role": "assistant", "content": "a", "reasoning_content": "r", "weight": 0, "tool_calls": []}),
                "a",
                json!({"reasoning_content": "r", "weight": 0}),
            ),
            (
                json!({"role": "assistant", "content": null, "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}),
                "",
                json!({"tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]}),
            ),
            (
                json!({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": ""}}, {"name": "g"}]}),
                "",
                json!({"tool_calls": [{"function": {"name": "f", "arguments": {}}}, {"name": "g", "arguments": {}}]}),
            ),
        ] {
            let message = Message::read(given.clone()).expect("a message");
            assert_eq!(
                (message.content.as_str(), Value::Object(message.fields.clone())),
                (content, fields),
                "{given}"
            );
        }
    }

    #[test]
    fn what_is_no_text_is_refused_with_its_place() {
        for (given, words) in [
            (json!("hi"), "no object"),
            (json!({"role": "user"}), "missing field `content`"),
            (json!({"content": "a"}), "missing field `role`"),
            (json!({"from": "human", "value": "a"}), "write `from` as `role`"),
            (json!({"role": 3, "content": "a"}), "no text"),
            (json!({"role": "user", "content": 3}), "no list of parts"),
            (
                json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}),
                "part 1 of its content is of type \"image_url\"",
            ),
            (json!({"role": "user", "content": ["a"]}), "part 0 of its content has no type"),
            (
                json!({"role": "assistant", "content": "", "tool_calls": [{"function": {}}]}),
                "[0].function.name",
            ),
        ] {
            let error = Message::read(given.clone()).expect_err("no message");
            assert!(error.contains(words), "{given}: {error}");
        }
    }

    #[test]
    fn only_a_text_that_is_a_list_of_messages_is_one() {
        assert_eq!(listed(r#" [{"role": "user", "content": "a"}]"#).map(|list| list.len()), Some(1));
        for text in ["a", "[]", "[1]", r#"[{"a": "role"}]"#, r#"[{"role": "user"}"#, r#"say "role" [x]"#] {
            assert_eq!(listed(text), None, "{text}");
        }
    }
}
