//! Reads the conversation of a chat: messages as clients write them become messages that chat templates read.

use crate::grammars::ToolChoice;
use crate::images::{GivenImage, GivenImages, read_part};
use crate::protocol::fields::Fields;
use crate::protocol::refusal::{Refusal, Reply};
use crate::state::ServerState;
use plimsoll_base::{Error, json_marked, shown};
use plimsoll_text::calls_xml::Tool;
use plimsoll_text::{BadPart, Conversation, joined_parts, read_calls};
use serde_json::{Map, Value, json};

pub const MESSAGES_MAX: usize = 4096;
const TOOLS_MAX: usize = 128;
/// Longest `tool_choice`: the name of a function.
const CHOICE_BYTES_MAX: usize = 1 << 10;
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];
/// Fields of a message that reach the template.
const KEPT: [&str; 7] =
    ["role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning"];

/// Lists of a message that ask for nothing if they are empty: answers of OpenAI's own servers have them.
const EMPTY: [&str; 2] = ["annotations", "tool_calls"];

/// Holds the messages, tools and template variables of a chat.
pub struct Chat {
    pub messages: Vec<Value>,
    /// Images, of which each has a placeholder in the messages.
    pub images: Vec<GivenImage>,
    /// The tools that the model may call.
    pub tools: Vec<Value>,
    pub variables: Map<String, Value>,
    /// What the request says about calls.
    pub choice: ToolChoice,
    /// True if a response may have several calls.
    pub several: bool,
}

/// Lists what a template has from the conversation, whatever a request's variables say.
const OF_CHAT: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

impl Chat {
    /// Reads `messages`, `tools`, `tool_choice`, `parallel_tool_calls` and `chat_template_kwargs`.
    pub fn read(fields: &mut Fields<'_>, state: &ServerState) -> Reply<Chat> {
        if let Some(count) = fields.count("messages").filter(|count| !(1..=MESSAGES_MAX).contains(count)) {
            let message = format!("{count} messages: it can be 1 to {MESSAGES_MAX}");
            return Err(Refusal::bad("messages", message));
        }
        let given: Vec<Value> = fields
            .take_exactly("messages")?
            .ok_or_else(|| Refusal::bad("messages", "messages is missing"))?;
        let mut reading = Reading { fields, state, images: GivenImages::default() };
        let messages: Vec<Value> = given
            .into_iter()
            .enumerate()
            .map(|(i, message)| read_message(i, message, &mut reading))
            .collect::<Reply<_>>()?;
        let Reading { images: GivenImages { images, .. }, fields, .. } = reading;
        let (tools, choice) = tools(fields, state)?;
        let several = fields.take::<bool>("parallel_tool_calls")?.unwrap_or(true);
        let variables = variables(fields)?;
        Ok(Chat { messages, images, tools, variables, choice, several }.with_system_prompt(state))
    }

    /// Adds the server's system message to a conversation that begins with none.
    pub fn with_system_prompt(mut self, state: &ServerState) -> Chat {
        if let Some(system) = &state.texts.system_prompt
            && self.messages[0]["role"] != "system"
        {
            self.messages.insert(0, json!({ "role": "system", "content": system }));
        }
        self
    }

    /// Returns the prompt as the model's template writes it.
    ///
    /// Errors: `chat-template-missing`, `chat-template-invalid`.
    pub fn render(&self, state: &ServerState) -> Reply<String> {
        self.render_messages(&self.messages, state)
    }

    /// Renders other messages with the tools and variables of this chat.
    pub fn render_messages(&self, messages: &[Value], state: &ServerState) -> Reply<String> {
        let Some(template) = &state.texts.template else {
            return Err(Error::new("chat-template-missing", "the model has no chat template")
                .hint("use /v1/completions, or start the server with --set data.chat_template=FILE")
                .into());
        };
        let tools = Value::from(self.tools.clone());
        let mut variables: Vec<(&str, &Value)> =
            self.variables.iter().map(|(name, value)| (name.as_str(), value)).collect();
        if !self.tools.is_empty() {
            variables.push(("tools", &tools));
        }
        let conversation = Conversation { messages, variables: &variables, add_generation_prompt: true };
        template
            .render_json(&conversation)
            .map_err(|error| Box::new(Refusal { error, param: Some("messages".into()) }))
    }

    pub fn functions(&self) -> Vec<Tool> {
        Tool::all(&self.tools)
    }
}

/// Reads `chat_template_kwargs`: the variables of the template that a request sets.
///
/// Errors: `serve-field-refused` for one that follows from the conversation.
pub fn variables(fields: &mut Fields<'_>) -> Reply<Map<String, Value>> {
    let variables: Map<String, Value> = fields.take_exactly("chat_template_kwargs")?.unwrap_or_default();
    let of_chat = |name: &&str| variables.get(*name).is_some_and(|value| !value.is_null());
    if let Some(name) = OF_CHAT.iter().find(|name| of_chat(name)) {
        let param = format!("chat_template_kwargs.{name}");
        let message = format!("{param}: the conversation itself gives it to the template");
        return Err(Refusal::unsupported(param, message));
    }
    Ok(variables)
}

/// Requires that there are not too many tools, and that the model's template has a place for them.
///
/// Errors: `serve-bad-request`, `serve-field-refused`.
pub fn check_tools(tools: &[Value], state: &ServerState) -> Reply<()> {
    if tools.len() > TOOLS_MAX {
        return Err(Refusal::bad("tools", format!("{} tools, {TOOLS_MAX} is the most", tools.len())));
    }
    let takes_tools = state.texts.template.as_ref().is_none_or(|template| template.mentions("tools"));
    if !tools.is_empty() && !takes_tools {
        return Err(Refusal::unsupported("tools", "the model's chat template has no place for tools")
            .hint("start the server with --set data.chat_template=FILE"));
    }
    Ok(())
}

/// What messages are read with, and the images that are found in them.
struct Reading<'r, 'b> {
    fields: &'r mut Fields<'b>,
    state: &'r ServerState,
    images: GivenImages,
}

fn read_message(index: usize, message: Value, reading: &mut Reading<'_, '_>) -> Reply<Value> {
    let place = |field: &str| format!("messages[{index}]{field}");
    let Value::Object(mut given) = message else {
        return Err(Refusal::bad(place(""), format!("{} is no object", place(""))));
    };
    given.retain(|_, value| !value.is_null());
    let role = match given.get("role").and_then(Value::as_str) {
        Some("developer") => "system".to_string(),
        Some(role) if ROLES.contains(&role) => role.to_string(),
        other => {
            let (param, given) =
                (place(".role"), other.map_or("missing".into(), |role| format!("{:?}", shown(role))));
            return Err(Refusal::bad(&param, format!("{param} is {given}: it can be {}", ROLES.join(", "))));
        }
    };
    let content = match given.remove("content") {
        Some(content) => text_of(content, &place(".content"), reading)?,
        // OpenAI's own answers have null where they call functions, refuse, or end at once.
        None if role == "assistant" => String::new(),
        None => return Err(Refusal::bad(place(".content"), format!("{} is missing", place(".content")))),
    };
    let mut message = Map::new();
    message.insert("role".into(), Value::from(role));
    message.insert("content".into(), Value::from(content));
    for (name, value) in given.into_iter().filter(|(name, _)| name != "role") {
        if EMPTY.contains(&name.as_str()) && value.as_array().is_some_and(Vec::is_empty) {
            continue;
        }
        if !KEPT.contains(&name.as_str()) {
            let param = place(&format!(".{}", shown(&name)));
            return Err(Refusal::unsupported(&param, format!("{param}: this server does not have it")));
        }
        let value =
            if name == "tool_calls" { calls(value, &place(".tool_calls"), reading.fields)? } else { value };
        message.insert(name, value);
    }
    Ok(Value::Object(message))
}

/// Returns the text of a message, whose parts are joined; an image is its placeholder.
fn text_of(content: Value, param: &str, reading: &mut Reading<'_, '_>) -> Reply<String> {
    let mut parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        _ => return Err(Refusal::bad(param, format!("{param}: it can be a string or a list of parts"))),
    };
    let served = reading.state.texts.images.as_ref();
    for (index, part) in parts.iter_mut().enumerate() {
        read_part(part, &format!("{param}[{index}]"), served, &mut reading.images)?;
    }
    joined_parts(&parts).map_err(|BadPart { index, kind }| {
        let place = format!("{param}[{index}]");
        match kind {
            Some(kind) => {
                let message = format!("{place} is of type {:?}: this server reads text", shown(&kind));
                Refusal::unsupported(place, message)
            }
            None => Refusal::bad(&place, format!("{place}: a part has a type and its text")),
        }
    })
}

/// Reads the calls of an earlier answer. Templates write the arguments as an object, clients send them as its text.
fn calls(mut calls: Value, param: &str, fields: &mut Fields<'_>) -> Reply<Value> {
    let Value::Array(list) = &calls else {
        return Err(Refusal::bad(param, format!("{param}: it can be a list")));
    };
    if let Some(index) = list.iter().position(|call| !call["function"]["name"].is_string()) {
        let place = format!("{param}[{index}].function.name");
        return Err(Refusal::bad(&place, format!("{place}: it can be a string")));
    }
    for call in list {
        // Their text becomes a tree too.
        call["function"]["arguments"].as_str().map_or(Ok(()), |text| fields.count_tree(param, text))?;
    }
    read_calls(&mut calls, json_marked).map_err(|what| Refusal::bad(param, format!("{param}{what}")))?;
    Ok(calls)
}

fn tools(fields: &mut Fields<'_>, state: &ServerState) -> Reply<(Vec<Value>, ToolChoice)> {
    let tools: Vec<Value> = fields.take_exactly("tools")?.unwrap_or_default();
    let choice = match fields.raw("tool_choice").map(|raw| raw.get()) {
        Some(text) if text.len() > CHOICE_BYTES_MAX => {
            let message = format!("tool_choice has more than {CHOICE_BYTES_MAX} bytes");
            return Err(Refusal::unsupported("tool_choice", message));
        }
        text => ToolChoice::read(text.and_then(|text| serde_json::from_str(text).ok()).as_ref())?,
    };
    for (index, tool) in tools.iter().enumerate() {
        let place = format!("tools[{index}]");
        if tool["type"] != "function" {
            return Err(Refusal::unsupported(&place, format!("{place}: its type can be \"function\"")));
        }
        if tool["function"]["name"].as_str().is_none_or(str::is_empty) {
            return Err(Refusal::bad(&place, format!("{place}.function.name: it can be a string")));
        }
    }
    if choice == ToolChoice::None {
        return Ok((Vec::new(), choice));
    }
    check_tools(&tools, state)?;
    Ok((tools, choice))
}
