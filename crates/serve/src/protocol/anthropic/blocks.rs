//! Dialogue Anthropic's messages, whose content is a text or a list of blocks, into messages that chat templates read.
//! Messages of one role that follow each other are one turn. Texts of one turn are on lines of their own, but those of
//! the assistant, which follow each other as they were drawn.

use crate::protocol::dialogue::Dialogue;
use crate::protocol::refusal::{Refusal, Reply};
use plimsoll_base::shown;
use serde_json::{Map, Value};

const ROLES: [&str; 3] = ["user", "assistant", "system"];

/// Adds the instructions of a request: a text, or blocks of text.
pub fn read_system(system: Value, turns: &mut Dialogue<'_>) -> Reply<()> {
    each_block(system, "system", &mut |block, place| {
        let text = text_of(&block, place).ok_or_else(|| refused(&block, place, "text"))??;
        turns.go_on("system", &text);
        Ok(())
    })
}

/// Adds a message. `place`: `messages[0]`, for errors.
pub fn read_message(message: Value, place: &str, turns: &mut Dialogue<'_>) -> Reply<()> {
    let Value::Object(mut given) = message else {
        return Err(Refusal::bad(place, format!("{place} is no object")));
    };
    let role = given.remove("role");
    let Some(role) = role.as_ref().and_then(Value::as_str).filter(|role| ROLES.contains(role)) else {
        let param = format!("{place}.role");
        return Err(Refusal::bad(&param, format!("{param}: it can be {}", ROLES.join(", "))));
    };
    let content = given.remove("content").unwrap_or_default();
    if let Some(name) = given.keys().next() {
        let param = format!("{place}.{}", shown(name));
        return Err(Refusal::unsupported(&param, format!("{param}: this server does not have it")));
    }
    let content_place = format!("{place}.content");
    let mut read = |block: Value, place: &str| match role {
        "assistant" => of_assistant(block, place, turns),
        "user" => of_user(block, place, turns),
        _ => {
            let text = text_of(&block, place).ok_or_else(|| refused(&block, place, "text"))??;
            turns.go_on(role, &text);
            Ok(())
        }
    };
    each_block(content, &content_place, &mut read)
}

/// Calls `read` for each block of a content; a text is one block.
fn each_block(content: Value, place: &str, read: &mut dyn FnMut(Value, &str) -> Reply<()>) -> Reply<()> {
    match content {
        Value::String(text) => read(serde_json::json!({ "type": "text", "text": text }), place),
        Value::Array(blocks) => {
            blocks.into_iter().enumerate().try_for_each(|(i, block)| read(block, &format!("{place}[{i}]")))
        }
        _ => Err(Refusal::bad(place, format!("{place}: it can be a text or a list of blocks"))),
    }
}

fn of_assistant(mut block: Value, place: &str, turns: &mut Dialogue<'_>) -> Reply<()> {
    if let Some(text) = text_of(&block, place) {
        turns.say("assistant", &text?);
        return Ok(());
    }
    match kind_of(&block) {
        "thinking" => turns.think(string(&block, "thinking", place)?),
        // Only the server that wrote it can read it.
        "redacted_thinking" => {}
        "tool_use" => {
            let input = block["input"].take();
            if !input.is_object() {
                return Err(Refusal::bad(format!("{place}.input"), format!("{place}.input is no object")));
            }
            turns.call(string(&block, "id", place)?, string(&block, "name", place)?, input);
        }
        _ => return Err(refused(&block, place, "text, thinking, redacted_thinking or tool_use")),
    }
    Ok(())
}

fn of_user(block: Value, place: &str, turns: &mut Dialogue<'_>) -> Reply<()> {
    if let Some(text) = text_of(&block, place) {
        turns.go_on("user", &text?);
        return Ok(());
    }
    match kind_of(&block) {
        "image" => {
            let image = image(block, place, turns)?;
            turns.go_on("user", &image);
            Ok(())
        }
        "tool_result" => result(block, place, turns),
        _ => Err(refused(&block, place, "text, image or tool_result")),
    }
}

/// Adds the result of a call. One that failed says so, because the template has no other place for it.
fn result(mut block: Value, place: &str, turns: &mut Dialogue<'_>) -> Reply<()> {
    let content = match block["content"].take() {
        Value::Null => Value::from(""),
        content => content,
    };
    let mut texts: Vec<String> = Vec::new();
    each_block(content, &format!("{place}.content"), &mut |block, place| {
        texts.push(match text_of(&block, place) {
            Some(text) => text?,
            None if kind_of(&block) == "image" => image(block, place, turns)?,
            None => return Err(refused(&block, place, "text or image")),
        });
        Ok(())
    })?;
    let text = texts.join("\n");
    let is_error = block["is_error"] == true;
    let text = if is_error { format!("Error: {text}") } else { text };
    turns.result(string(&block, "tool_use_id", place)?, &text, &format!("{place}.tool_use_id"))
}

/// Takes an image. Returns its placeholder.
fn image(mut block: Value, place: &str, turns: &mut Dialogue<'_>) -> Reply<String> {
    let place = format!("{place}.source");
    let mut source = block["source"].take();
    let url = match source["type"].as_str() {
        Some("url") => source["url"].take(),
        Some("base64") => {
            let kind = string(&source, "media_type", &place)?.to_string();
            let Value::String(mut data) = source["data"].take() else {
                return Err(Refusal::bad(&place, format!("{place}.data: it can be a string")));
            };
            data.insert_str(0, &format!("data:{kind};base64,"));
            Value::String(data)
        }
        _ => return Err(refused(&source, &place, "base64 or url")),
    };
    let Value::String(url) = url else {
        return Err(Refusal::bad(&place, format!("{place}.url: it can be a string")));
    };
    turns.image(url, Value::Null, &place)
}

/// Returns the text of a block of text; none for another block.
fn text_of(block: &Value, place: &str) -> Option<Reply<String>> {
    (kind_of(block) == "text").then(|| string(block, "text", place).map(str::to_string))
}

fn kind_of(block: &Value) -> &str {
    block["type"].as_str().unwrap_or_default()
}

fn string<'v>(block: &'v Value, name: &str, place: &str) -> Reply<&'v str> {
    let param = || format!("{place}.{name}");
    block[name].as_str().ok_or_else(|| Refusal::bad(param(), format!("{}: it can be a string", param())))
}

/// Refuses a block of a type that is not read here.
fn refused(block: &Value, place: &str, known: &str) -> Box<Refusal> {
    match block["type"].as_str() {
        Some(kind) => {
            let message = format!("{place} is of type {:?}: here it can be {known}", shown(kind));
            Refusal::unsupported(place, message)
        }
        None => Refusal::bad(place, format!("{place}: it has a type, which can be {known}")),
    }
}

/// Dialogue tools into the form that chat templates read.
///
/// Errors: `serve-field-refused` for a tool that Anthropic's servers run; `serve-bad-request`.
pub fn read_tools(tools: Vec<Value>) -> Reply<Vec<Value>> {
    let read = |(index, mut tool): (usize, Value)| {
        let place = format!("tools[{index}]");
        if let Some(kind) = tool["type"].as_str().filter(|kind| *kind != "custom") {
            let message = format!("{place} is of type {:?}, which Anthropic's own servers run", shown(kind));
            return Err(Refusal::unsupported(&place, message)
                .hint("describe it as a tool of your own: name, description, input_schema"));
        }
        if tool["defer_loading"] == true {
            let param = format!("{place}.defer_loading");
            return Err(Refusal::unsupported(&param, format!("{param}: the model sees every tool")));
        }
        if !tool["input_schema"].is_object() {
            let param = format!("{place}.input_schema");
            return Err(Refusal::bad(&param, format!("{param}: it can be an object")));
        }
        if string(&tool, "name", &place)?.is_empty() {
            return Err(Refusal::bad(format!("{place}.name"), format!("{place}.name is empty")));
        }
        let mut function = Map::new();
        function.insert("name".into(), tool["name"].take());
        if tool["description"].is_string() {
            function.insert("description".into(), tool["description"].take());
        }
        function.insert("parameters".into(), tool["input_schema"].take());
        if tool["strict"] == true {
            function.insert("strict".into(), true.into());
        }
        Ok(serde_json::json!({ "type": "function", "function": function }))
    };
    tools.into_iter().enumerate().map(read).collect()
}
