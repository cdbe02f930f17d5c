//! Collects the pieces of a conversation of another protocol as the messages that chat templates read. What the
//! assistant thought, said and called since the last message of somebody else is one message; each result is one too.

use crate::images::{GivenImage, GivenImages, read_part};
use crate::protocol::refusal::{Refusal, Reply};
use crate::state::ServerState;
use plimsoll_base::shown;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// The messages so far.
pub struct Dialogue<'s> {
    state: &'s ServerState,
    messages: Vec<Map<String, Value>>,
    images: GivenImages,
    /// Names of the functions that were called, by the ids of their calls.
    called: HashMap<String, String>,
}

impl<'s> Dialogue<'s> {
    pub fn new(state: &'s ServerState) -> Dialogue<'s> {
        Dialogue { state, messages: Vec::new(), images: GivenImages::default(), called: HashMap::new() }
    }

    /// Returns the messages and the images whose placeholders they have.
    pub fn finish(self) -> (Vec<Value>, Vec<GivenImage>) {
        (self.messages.into_iter().map(Value::Object).collect(), self.images.images)
    }

    /// Adds a message of somebody; one of the assistant's goes on with what it said before.
    pub fn say(&mut self, role: &str, text: &str) {
        if role == "assistant" {
            append(self.answer(), "content", text, "");
        } else {
            self.messages.push(message(role, text));
        }
    }

    /// Adds words to the last message if it is of the same role, on a line of their own; else a message.
    pub fn go_on(&mut self, role: &str, text: &str) {
        match self.messages.last_mut() {
            Some(last) if last["role"] == role => append(last, "content", text, "\n"),
            _ => self.messages.push(message(role, text)),
        }
    }

    /// Adds what the assistant thought.
    pub fn think(&mut self, text: &str) {
        append(self.answer(), "reasoning_content", text, "");
    }

    /// Adds a call of the assistant's. `arguments`: an object.
    pub fn call(&mut self, id: &str, name: &str, arguments: Value) {
        self.called.insert(id.into(), name.into());
        let function = json!({ "name": name, "arguments": arguments });
        let call = json!({ "id": id, "type": "function", "function": function });
        let calls = self.answer().entry("tool_calls").or_insert(json!([]));
        calls.as_array_mut().expect("it is a list").push(call);
    }

    /// Adds the result of a call.
    ///
    /// Errors: `serve-bad-request` if no call before has this id.
    pub fn result(&mut self, id: &str, text: &str, param: &str) -> Reply<()> {
        let Some(name) = self.called.get(id) else {
            let message = format!("{param} = {:?}: no call before has this id", shown(id));
            return Err(Refusal::bad(param, message));
        };
        let mut result = message("tool", text);
        result.insert("name".into(), name.as_str().into());
        result.insert("tool_call_id".into(), id.into());
        self.messages.push(result);
        Ok(())
    }

    /// Takes an image by its address, which may have its bytes. Returns its placeholder.
    ///
    /// Errors: those of `read_part`.
    pub fn image(&mut self, url: String, detail: Value, param: &str) -> Reply<String> {
        let mut part = json!({ "type": "image_url", "image_url": { "detail": detail } });
        part["image_url"]["url"] = Value::String(url);
        read_part(&mut part, param, self.state.texts.images.as_ref(), &mut self.images)?;
        Ok(part["text"].as_str().unwrap_or_default().to_string())
    }

    /// Returns the assistant's message at the end, which is begun if there is none.
    fn answer(&mut self) -> &mut Map<String, Value> {
        if self.messages.last().is_none_or(|last| last["role"] != "assistant") {
            self.messages.push(message("assistant", ""));
        }
        self.messages.last_mut().expect("there is one")
    }
}

/// Appends to a text of a message, with `between` after what is there.
fn append(message: &mut Map<String, Value>, field: &str, text: &str, between: &str) {
    if let Value::String(whole) = message.entry(field).or_insert(Value::from("")) {
        if !whole.is_empty() {
            whole.push_str(between);
        }
        whole.push_str(text);
    }
}

fn message(role: &str, text: &str) -> Map<String, Value> {
    let mut message = Map::new();
    message.insert("role".into(), role.into());
    message.insert("content".into(), text.into());
    message
}
