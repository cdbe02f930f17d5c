//! Holds what a row has besides its texts: columns that are variables of the chat template, and fields of messages.
//! What the template does not read is counted for people, and what would change a row's meaning is refused.

use crate::{ChatTemplate, Message, Prompt};
use plimsoll_base::{Error, Result, json_with_digits, shown};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Columns that go to the template, as TRL hands them on: the functions that may be called, and variables.
pub const TEMPLATE_COLUMNS: [&str; 2] = [TOOLS, VARIABLES];
const TOOLS: &str = "tools";
const VARIABLES: &str = "chat_template_kwargs";
/// Lists what a template has from the conversation, whatever a row's variables say.
const OF_CONVERSATION: [&str; 3] = ["messages", "tools", "add_generation_prompt"];
const WEIGHT: &str = "weight";
/// Columns and fields that are counted apart; a file with more has no table that a person reads.
const NAMES_MAX: usize = 256;
/// Rows of which the fields are compared with and without the template reading them.
const COMPARED_ROWS_MAX: u64 = 256;

/// Returns the variables of the template that a row's columns have; none if there are none of them.
///
/// Errors: `data-bad-prompt`.
pub fn template_variables(columns: &Map<String, Value>) -> Result<Map<String, Value>> {
    let mut variables = Map::new();
    let read = |value: &Value| match value {
        Value::String(text) => json_with_digits(text).ok(),
        value => Some(value.clone()),
    };
    if let Some(value) = columns.get(VARIABLES).filter(|value| !value.is_null()) {
        let Some(Value::Object(given)) = read(value) else {
            return Err(bad(format!("`{VARIABLES}` is {}, no object", shown(&value.to_string()))));
        };
        if let Some(name) =
            OF_CONVERSATION.iter().find(|name| given.get(**name).is_some_and(|v| !v.is_null()))
        {
            return Err(bad(format!(
                "`{VARIABLES}.{name}`: the conversation itself gives it to the template"
            )));
        }
        variables.extend(given.into_iter().filter(|(_, value)| !value.is_null()));
    }
    // A column of that name may be something else, and is then not read.
    let is_tool = |tool: &Value| tool.is_object();
    if let Some(Value::Array(tools)) = columns.get(TOOLS).and_then(read)
        && !tools.is_empty()
        && tools.iter().all(is_tool)
    {
        variables.insert(TOOLS.into(), Value::Array(tools));
    }
    Ok(variables)
}

/// Requires that the template reads what changes the meaning of a conversation: calls and tools, and who speaks.
///
/// Errors: `data-field-lost`.
pub(crate) fn check_meaning(
    template: &ChatTemplate,
    messages: &[Message],
    variables: &Map<String, Value>,
) -> Result<()> {
    if variables.contains_key(TOOLS) && !template.mentions(TOOLS) {
        return Err(lost("the row has `tools`, and the chat template does not write them", TOOLS));
    }
    for name in ["tool_calls", "name"] {
        // Results name the tool that gave them, which few templates write: the call before says it.
        let has_it = |message: &Message| {
            message.role != "tool" && message.fields.get(name).is_some_and(|value| *value != "")
        };
        let Some(index) = messages.iter().position(has_it) else { continue };
        if !is_read(template, messages, variables, name)? {
            let what = format!("message {} has `{name}`, and the chat template does not write it", index + 1);
            return Err(lost(&what, name));
        }
    }
    Ok(())
}

/// Returns true if a field of messages changes what the template writes.
fn is_read(
    template: &ChatTemplate,
    messages: &[Message],
    variables: &Map<String, Value>,
    name: &str,
) -> Result<bool> {
    let mut without = messages.to_vec();
    without.iter_mut().for_each(|message| drop(message.fields.shift_remove(name)));
    let goes_on = messages.last().is_none_or(|last| last.role != "assistant");
    let with = template.render_row(messages, variables, goes_on)?;
    // A template that rejects the conversation without the field reads it.
    Ok(template.render_row(&without, variables, goes_on).map_or(true, |text| text != with))
}

/// Requires that what the assistant thought is in the text of its turn.
///
/// Errors: `data-field-lost`.
pub(crate) fn check_thinking(message: &Message, written: &str) -> Result<()> {
    match message.thinking() {
        Some((name, text)) if !written.contains(text) => {
            let what = format!("the answer to learn has `{name}`, and its text as tokens would not");
            Err(lost(&what, name))
        }
        _ => Ok(()),
    }
}

/// Returns true if a turn of the assistant is learnt: its `weight` is not 0.
///
/// Errors: `data-bad-prompt` for a weight besides 0 and 1.
pub(crate) fn is_learnt(message: &Message) -> Result<bool> {
    match message.fields.get(WEIGHT) {
        None => Ok(true),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(weight) if weight.as_f64() == Some(1.0) => Ok(true),
        Some(weight) if weight.as_f64() == Some(0.0) => Ok(false),
        Some(weight) => {
            Err(bad(format!("a message has the weight {}: it can be 0 or 1", shown(&weight.to_string()))))
        }
    }
}

/// Returns the number of a message, from 1, that asks to be learnt although it is not the last turn.
pub(crate) fn asks_to_be_learnt(messages: &[Message]) -> Option<usize> {
    let asks =
        |message: &Message| message.fields.get(WEIGHT).is_some_and(|w| w.as_f64() == Some(1.0) || *w == true);
    messages.iter().position(|message| message.role == "assistant" && asks(message)).map(|at| at + 1)
}

fn bad(what: String) -> Error {
    Error::usage("data-bad-prompt", what)
        .hint("mend the row, or leave the column or field out with data.ignore")
}

fn lost(what: &str, name: &str) -> Error {
    Error::usage("data-field-lost", what.to_string())
        .hint("set data.chat_template to one that writes it")
        .hint(format!("or data.ignore = [\"{name}\"], to leave it out of every row"))
}

/// Counts of the columns and fields of rows, and which of them are read.
#[derive(Clone, Debug, Default)]
pub struct FieldCounts {
    rows: u64,
    compared: u64,
    columns: BTreeMap<String, u64>,
    /// Messages with a field, and whether the template reads it.
    fields: BTreeMap<String, (u64, bool)>,
}

impl FieldCounts {
    /// Counts a row by its columns.
    pub fn columns<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        self.rows += 1;
        for name in names {
            if let Some(count) = self.columns.get_mut(name) {
                *count += 1;
            } else if self.columns.len() < NAMES_MAX {
                self.columns.insert(name.to_string(), 1);
            }
        }
    }

    /// Counts fields of a row's messages. A field that the template never read in the first rows is one that it does
    /// not read.
    ///
    /// Errors: those of rendering.
    pub fn messages(
        &mut self,
        messages: &[Message],
        variables: &Map<String, Value>,
        template: Option<&ChatTemplate>,
    ) -> Result<()> {
        let mut to_compare: Vec<&str> = Vec::new();
        for name in messages.iter().flat_map(|message| message.fields.keys()) {
            if !self.fields.contains_key(name) && self.fields.len() < NAMES_MAX {
                self.fields.insert(name.clone(), (0, name == WEIGHT));
            }
            let Some((count, is_read)) = self.fields.get_mut(name) else { continue };
            *count += 1;
            if !*is_read && !to_compare.contains(&name.as_str()) {
                to_compare.push(name);
            }
        }
        let Some(template) = template.filter(|_| !to_compare.is_empty() && self.compared < COMPARED_ROWS_MAX)
        else {
            return Ok(());
        };
        self.compared += 1;
        for name in to_compare {
            if is_read(template, messages, variables, name)?
                && let Some((_, read)) = self.fields.get_mut(name)
            {
                *read = true;
            }
        }
        Ok(())
    }

    /// Counts fields of the messages of a prompt.
    ///
    /// Errors: those of rendering.
    pub fn prompt(
        &mut self,
        prompt: &Prompt,
        variables: &Map<String, Value>,
        template: Option<&ChatTemplate>,
    ) -> Result<()> {
        if prompt.messages().iter().all(|message| message.fields.is_empty()) {
            Ok(())
        } else {
            self.messages(prompt.messages(), variables, template)
        }
    }

    /// Says what was read of the rows and what was not; nothing if all was. `is_read`: tells whether something reads a
    /// column.
    pub fn words(&self, name: &str, is_read: impl Fn(&str) -> bool) -> Option<String> {
        let (mut read, mut unread) = (Vec::new(), Vec::new());
        for (column, count) in &self.columns {
            let of = if *count == self.rows { String::new() } else { format!(" ({count})") };
            let list = if is_read(column) { &mut read } else { &mut unread };
            list.push(format!("{}{of}", shown(column)));
        }
        if unread.is_empty() && self.fields.values().all(|(_, is_read)| *is_read) {
            return None;
        }
        let mut words = format!("{name}: {} rows; columns read: {}", self.rows, joined(&read));
        if !unread.is_empty() {
            let _ = write!(words, "; not read: {}", joined(&unread));
        }
        let of_fields = |wanted: bool| {
            let fields = self.fields.iter().filter(|(_, (_, is_read))| *is_read == wanted);
            fields.map(|(field, (count, _))| format!("{} ({count})", shown(field))).collect::<Vec<_>>()
        };
        let (read, unread) = (of_fields(true), of_fields(false));
        if !read.is_empty() {
            let _ = write!(words, "; fields of messages read: {}", joined(&read));
        }
        if !unread.is_empty() {
            let _ = write!(words, "; fields of messages that nothing reads: {}", joined(&unread));
        }
        Some(words)
    }
}

fn joined(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().expect("an object")
    }

    #[test]
    fn columns_for_the_template_are_read_as_objects_or_as_their_text() {
        let tools = json!([{"type": "function"}]);
        for (columns, variables) in [
            (json!({"id": 1}), json!({})),
            (
                json!({"tools": tools, "chat_template_kwargs": {"a": 1, "b": null}}),
                json!({"a": 1, "tools": tools}),
            ),
            (
                json!({"tools": tools.to_string(), "chat_template_kwargs": "{\"a\": 1}"}),
                json!({"a": 1, "tools": tools}),
            ),
            (json!({"tools": "hammer", "chat_template_kwargs": null}), json!({})),
            (json!({"tools": []}), json!({})),
        ] {
            assert_eq!(Value::Object(template_variables(&object(columns)).unwrap()), variables);
        }
        for columns in [json!({"chat_template_kwargs": 1}), json!({"chat_template_kwargs": {"messages": []}})]
        {
            assert_eq!(template_variables(&object(columns)).unwrap_err().slug, "data-bad-prompt");
        }
    }

    #[test]
    fn columns_and_fields_are_named_with_their_numbers() {
        let template = "{% for m in messages %}{{ m.content }}{{ m.thinking }}{% endfor %}";
        let template = ChatTemplate::new(template, &[]).unwrap();
        let mut counts = FieldCounts::default();
        for n in 0..3 {
            counts.columns(["prompt", "id"]);
            let mut message = Message::new("user", "a");
            message.fields.insert("thinking".into(), "hm".into());
            if n == 0 {
                counts.columns(["prompt"]);
                message.fields.insert("mood".into(), 1.into());
            }
            counts.messages(&[message], &Map::new(), Some(&template)).unwrap();
        }
        assert_eq!(
            counts.words("d.jsonl", |name| name == "prompt").as_deref(),
            Some(
                "d.jsonl: 4 rows; columns read: prompt; not read: id (3); fields of messages read: thinking (3); \
                 fields of messages that nothing reads: mood (1)"
            )
        );
    }
}
