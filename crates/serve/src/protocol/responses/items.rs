//! Dialogue the items of a response's input into messages that chat templates read. Items of the assistant that follow
//! each other, such as thinking and the calls after it, are one message.

use crate::protocol::dialogue::Dialogue;
use crate::protocol::fields::Fields;
use crate::protocol::refusal::{Refusal, Reply};
use plimsoll_base::{json_marked, shown};
use serde_json::{Map, Value, json};

/// Adds an item. `place`: `input[0]`, for errors.
pub fn read_item(item: Value, place: &str, turns: &mut Dialogue<'_>, fields: &mut Fields<'_>) -> Reply<()> {
    match item["type"].as_str() {
        None | Some("message") => message(item, place, turns),
        Some("reasoning") => {
            thought(&item).into_iter().for_each(|text| turns.think(text));
            Ok(())
        }
        Some("function_call") => {
            let arguments = string(&item, "arguments", place)?;
            fields.count_tree(place, arguments)?;
            let arguments = match json_marked(arguments) {
                Ok(Value::Object(arguments)) => Value::Object(arguments),
                _ if arguments.trim().is_empty() => json!({}),
                _ => Value::from(arguments),
            };
            turns.call(string(&item, "call_id", place)?, string(&item, "name", place)?, arguments);
            Ok(())
        }
        Some("function_call_output") => {
            let mut item = item;
            let text = words(item["output"].take(), &format!("{place}.output"), turns)?;
            turns.result(string(&item, "call_id", place)?, &text, &format!("{place}.call_id"))
        }
        Some(kind) => {
            let message = format!("{place} is of type {:?}: this server has no such item", shown(kind));
            Err(Refusal::unsupported(place, message)
                .hint("it reads message, reasoning, function_call and function_call_output"))
        }
    }
}

fn message(mut item: Value, place: &str, turns: &mut Dialogue<'_>) -> Reply<()> {
    let Value::Object(fields) = &mut item else {
        return Err(Refusal::bad(place, format!("{place} is no object")));
    };
    let content = fields.remove("content").unwrap_or_default();
    let role = match fields.get("role").and_then(Value::as_str) {
        Some("developer") => "system",
        Some(role @ ("system" | "user" | "assistant")) => role,
        _ => {
            let param = format!("{place}.role");
            let message = format!("{param}: it can be system, developer, user or assistant");
            return Err(Refusal::bad(param, message));
        }
    };
    let text = words(content, &format!("{place}.content"), turns)?;
    turns.say(role, &text);
    Ok(())
}

/// Returns the text of a content: itself, or its parts one after the other; an image is its placeholder.
fn words(content: Value, place: &str, turns: &mut Dialogue<'_>) -> Reply<String> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        _ => return Err(Refusal::bad(place, format!("{place}: it can be a text or a list of parts"))),
    };
    let mut text = String::new();
    for (index, mut part) in parts.into_iter().enumerate() {
        let place = format!("{place}[{index}]");
        match part["type"].as_str() {
            Some("input_text" | "output_text" | "text") => text.push_str(string(&part, "text", &place)?),
            Some("refusal") => text.push_str(string(&part, "refusal", &place)?),
            Some("input_image") => {
                let Value::String(url) = part["image_url"].take() else {
                    let message = format!("{place}: an image is its image_url: files are not stored here");
                    return Err(Refusal::unsupported(&place, message));
                };
                text.push_str(&turns.image(url, part["detail"].take(), &place)?);
            }
            Some(kind) => {
                let message =
                    format!("{place} is of type {:?}: this server reads text and images", shown(kind));
                return Err(Refusal::unsupported(&place, message));
            }
            None => return Err(Refusal::bad(&place, format!("{place}: a part has a type"))),
        }
    }
    Ok(text)
}

/// Returns the words of an item of thinking: its content, or else its summary.
fn thought(item: &Value) -> Vec<&str> {
    let texts = |name: &str| -> Vec<&str> {
        item[name].as_array().into_iter().flatten().filter_map(|part| part["text"].as_str()).collect()
    };
    let content = texts("content");
    if content.is_empty() { texts("summary") } else { content }
}

fn string<'v>(item: &'v Value, name: &str, place: &str) -> Reply<&'v str> {
    let param = || format!("{place}.{name}");
    item[name].as_str().ok_or_else(|| Refusal::bad(param(), format!("{}: it can be a string", param())))
}

/// Dialogue tools into the form that chat templates read.
///
/// Errors: `serve-field-refused` for a tool that OpenAI's servers run; `serve-bad-request`.
pub fn read_tools(tools: &[Value]) -> Reply<Vec<Value>> {
    let read = |(index, tool): (usize, &Value)| {
        let place = format!("tools[{index}]");
        if tool["type"] != "function" {
            let message = format!("{place}: its type can be \"function\"");
            return Err(Refusal::unsupported(&place, message));
        }
        if string(tool, "name", &place)?.is_empty() {
            return Err(Refusal::bad(format!("{place}.name"), format!("{place}.name is empty")));
        }
        let mut function = Map::new();
        for name in ["name", "description", "parameters"] {
            if !tool[name].is_null() {
                function.insert(name.into(), tool[name].clone());
            }
        }
        if tool["strict"] == true {
            function.insert("strict".into(), true.into());
        }
        Ok(json!({ "type": "function", "function": function }))
    };
    tools.iter().enumerate().map(read).collect()
}
