//! Finds where a prompt has its images, and writes the placeholder there: `<image>` in texts, and parts of messages.

use crate::message::listed;
use serde_json::{Value, json};

/// What verl, slime and ms-swift write in a text.
const TAG: &str = "<image>";

/// A place for an image in a prompt.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Mark {
    /// For the next image of the column.
    Next,
    /// A part of a message that names its own image.
    Own(Value),
}

/// Writes the placeholder for each mark of a prompt, and returns the marks.
///
/// A prompt without one has all images of the column, `count`, before the first words of the user, as TRL puts them.
/// `<image>` in a row without images stays text.
pub(super) fn marked(prompt: Value, placeholder: &str, count: usize) -> (Value, Vec<Mark>) {
    let (mut value, mut marks) = marked_where_it_says(prompt, placeholder, count > 0);
    if marks.is_empty() && count > 0 && put_first(&mut value, &placeholder.repeat(count)) {
        marks.resize(count, Mark::Next);
    }
    (value, marks)
}

/// Writes the placeholder for each mark of a text or of messages, and returns the marks.
pub(super) fn marked_where_it_says(text: Value, placeholder: &str, has_images: bool) -> (Value, Vec<Mark>) {
    let mut value = match text {
        Value::String(text) => match listed(&text) {
            Some(list) => Value::Array(list),
            None => Value::String(text),
        },
        other => other,
    };
    let mut writer = Writer { placeholder, has_images, marks: Vec::new() };
    match &mut value {
        Value::Array(messages) => {
            messages
                .iter_mut()
                .filter_map(|message| message.get_mut("content"))
                .for_each(|it| writer.content(it));
        }
        text => writer.content(text),
    }
    (value, writer.marks)
}

struct Writer<'a> {
    placeholder: &'a str,
    has_images: bool,
    marks: Vec<Mark>,
}

impl Writer<'_> {
    fn content(&mut self, content: &mut Value) {
        match content {
            Value::String(text) => self.text(text),
            Value::Array(parts) => parts.iter_mut().for_each(|part| self.part(part)),
            _ => {}
        }
    }

    fn text(&mut self, text: &mut String) {
        let tags = if self.has_images { text.matches(TAG).count() } else { 0 };
        if tags > 0 {
            *text = text.replace(TAG, self.placeholder);
            self.marks.resize(self.marks.len() + tags, Mark::Next);
        }
    }

    fn part(&mut self, part: &mut Value) {
        match part["type"].as_str() {
            Some("text") => {
                if let Some(Value::String(text)) = part.get_mut("text") {
                    self.text(text);
                }
            }
            Some("image" | "image_url") => {
                let named = ["image", "image_url", "url", "path", "base64", "bytes"];
                let own = named.iter().map(|name| &part[*name]).find(|value| !value.is_null());
                self.marks.push(own.map_or(Mark::Next, |own| Mark::Own(own.clone())));
                *part = json!({ "type": "text", "text": self.placeholder });
            }
            _ => {}
        }
    }
}

/// Puts placeholders before the first words of the user. Returns false if there are none.
fn put_first(prompt: &mut Value, placeholders: &str) -> bool {
    let content = match prompt {
        Value::Array(messages) => {
            let user = messages.iter_mut().find(|message| message["role"] == "user");
            user.and_then(|message| message.get_mut("content"))
        }
        text => Some(text),
    };
    match content {
        Some(Value::String(text)) => text.insert_str(0, placeholders),
        Some(Value::Array(parts)) => parts.insert(0, json!({ "type": "text", "text": placeholders })),
        _ => return false,
    }
    true
}
