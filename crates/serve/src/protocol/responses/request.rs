//! Reads the body of a request for a response: the conversation and how it is answered.

use super::answer::ItemsForm;
use super::items::{read_item, read_tools};
use crate::grammars::{ToolChoice, form_of};
use crate::owner::ResponseOwner;
use crate::protocol::dialogue::Dialogue;
use crate::protocol::fields::Fields;
use crate::protocol::messages::{Chat, MESSAGES_MAX, check_tools, variables};
use crate::protocol::parsed::{Delivery, Parsed, hold, params};
use crate::protocol::prompt::{ChatPrompt, hold_calls};
use crate::protocol::refusal::{Refusal, Reply};
use crate::protocol::reply::{Head, Usage};
use crate::state::ServerState;
use plimsoll_base::shown;
use plimsoll_grammar::ResponseForm;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Fields that refer to something which this server would have to keep, and what to do instead.
const KEPT_ELSEWHERE: [(&str, &str); 3] = [
    ("previous_response_id", "send the whole conversation as input: nothing is stored here"),
    ("conversation", "send the whole conversation as input: nothing is stored here"),
    ("prompt", "send instructions and input: no prompts are stored here"),
];
/// What an answer may have in addition: it has the words of the thinking, so that nothing has to be encrypted.
const INCLUDED: [&str; 1] = ["reasoning.encrypted_content"];

/// The field that holds a response to a form.
const FORMAT: &str = "text.format";
/// Most bytes of what an answer repeats of its request, as text.
const REPEATED_BYTES_MAX: usize = 2 << 10;

/// Reads a body. `owner`: what owns its response, if not only the client gets it.
pub fn read(
    body: &[u8],
    state: &Arc<ServerState>,
    owner: Option<&dyn ResponseOwner>,
) -> Reply<Parsed<ItemsForm>> {
    let mut fields = Fields::of_body(body, state.tree_bytes())?;
    let adapter = state.adapter_of(fields.take::<String>("model")?.as_deref())?;
    let mut params = params(&mut fields, state, adapter)?;
    if params.choices > 1 {
        return Err(Refusal::unsupported("n", "n: there is one response").hint("send several requests"));
    }
    let longest = fields.within("max_output_tokens", 1..=i64::from(u32::MAX))?;
    params.max_new_tokens = longest.map(|tokens| tokens as usize).or(params.max_new_tokens);
    let delivery = Delivery { stream: stream(&mut fields)?, include_usage: false, return_ids: false };
    check_kept(&mut fields)?;
    let format = format(&mut fields)?;
    if let Some(form) = &format {
        params.grammar = Some(hold(form, FORMAT, &params.ends, state)?);
    }
    let mut about = Map::new();
    let sampling = params.sampling;
    about.insert("max_output_tokens".into(), json!(longest));
    about.insert("temperature".into(), json!(sampling.temperature));
    about.insert("top_p".into(), json!(sampling.top_p));
    let chat = chat(&mut fields, state, &mut about)?;
    fields.finish()?;
    let begins_freely = hold_calls(&mut params, &chat, state)?;
    let ChatPrompt { ids, rows, images, heard, reader } = ChatPrompt::of(chat, state, owner)?;
    let reader = if begins_freely { reader } else { reader.without_thinking() };
    let counting = state.reader(Vec::new(), &ids);
    let usage = Usage { prompt_tokens: rows.len(), ..Usage::default() };
    let form = ItemsForm::new(Head::new(state, "resp_", adapter), usage, [reader, counting], repeated(about));
    Ok(Parsed { prompts: vec![rows], images, params, delivery, usual_tokens: usize::MAX, heard, form })
}

fn stream(fields: &mut Fields<'_>) -> Reply<bool> {
    if let Some(options) = fields.raw("stream_options") {
        let mut options = Fields::of_object("stream_options.", options)?;
        if options.flag("include_obfuscation")? {
            let message = "stream_options.include_obfuscation: events are as long as their words";
            return Err(Refusal::unsupported("stream_options.include_obfuscation", message));
        }
        options.finish()?;
    }
    fields.flag("stream")
}

/// Refuses what would need a store, a queue or another answer than this one. `store` itself asks for nothing now.
fn check_kept(fields: &mut Fields<'_>) -> Reply<()> {
    for (name, hint) in KEPT_ELSEWHERE {
        if fields.raw(name).is_some() {
            return Err(
                Refusal::unsupported(name, format!("{name}: this server does not have it")).hint(hint)
            );
        }
    }
    fields.flag("store")?;
    if fields.flag("background")? {
        return Err(Refusal::unsupported("background", "background: a response is answered at once"));
    }
    let truncation: Option<String> = fields.take("truncation")?;
    if truncation.is_some_and(|word| word != "disabled") {
        let message = "truncation: nothing is left out of a conversation here; it can be \"disabled\"";
        return Err(Refusal::unsupported("truncation", message));
    }
    let included: Vec<String> = fields.take("include")?.unwrap_or_default();
    if let Some(other) = included.iter().find(|name| !INCLUDED.contains(&name.as_str())) {
        let message = format!("include: an answer has no {:?} here", shown(other));
        return Err(Refusal::unsupported("include", message));
    }
    if fields.within("top_logprobs", 0..=20_i64)?.is_some_and(|count| count > 0) {
        let message = "top_logprobs: a response has no log-probabilities here";
        return Err(Refusal::unsupported("top_logprobs", message).hint("POST /v1/chat/completions has them"));
    }
    // Notes of clients to themselves.
    for note in ["client_metadata", "prompt_cache_options"] {
        fields.raw(note);
    }
    Ok(())
}

/// Reads `text`. Returns the form that a response is held to.
fn format(fields: &mut Fields<'_>) -> Reply<Option<ResponseForm>> {
    let Some(text) = fields.raw("text") else { return Ok(None) };
    let mut text = Fields::of_object("text.", text)?;
    // How many words it takes is the model's.
    text.raw("verbosity");
    let format = text.raw("format");
    text.finish()?;
    Ok(format.map(|raw| form_of(fields, FORMAT, raw)).transpose()?.flatten())
}

/// Reads the conversation. Adds what an answer repeats of it to `about`.
fn chat(fields: &mut Fields<'_>, state: &ServerState, about: &mut Map<String, Value>) -> Reply<Chat> {
    if let Some(count) = fields.count("input").filter(|count| !(1..=MESSAGES_MAX).contains(count)) {
        return Err(Refusal::bad("input", format!("{count} items: it can be 1 to {MESSAGES_MAX}")));
    }
    let mut turns = Dialogue::new(state);
    let instructions: Option<String> = fields.take("instructions")?;
    if let Some(text) = &instructions {
        turns.say("system", text);
    }
    match fields.take_exactly::<Value>("input")? {
        Some(Value::String(text)) => turns.say("user", &text),
        Some(Value::Array(items)) => {
            for (index, item) in items.into_iter().enumerate() {
                read_item(item, &format!("input[{index}]"), &mut turns, fields)?;
            }
        }
        Some(_) => return Err(Refusal::bad("input", "input: it can be a text or a list of items")),
        None => return Err(Refusal::bad("input", "input is missing")),
    }
    let (messages, images) = turns.finish();
    if messages.is_empty() {
        return Err(Refusal::bad("input", "input has no words"));
    }
    let given: Vec<Value> = fields.take_exactly("tools")?.unwrap_or_default();
    let choice: Value = fields.take_exactly("tool_choice")?.unwrap_or_else(|| json!("auto"));
    let (tools, call) = (read_tools(&given)?, tool_choice(&choice)?);
    let tools = if call == ToolChoice::None { Vec::new() } else { tools };
    check_tools(&tools, state)?;
    let several = fields.take::<bool>("parallel_tool_calls")?.unwrap_or(true);
    let mut all = Map::new();
    let effort = effort(fields)?;
    let has_effort = |template: &Arc<plimsoll_text::ChatTemplate>| template.mentions("reasoning_effort");
    if let Some(effort) = effort.as_ref().filter(|_| state.texts.template.as_ref().is_some_and(has_effort)) {
        all.insert("reasoning_effort".into(), effort.as_str().into());
    }
    all.extend(variables(fields)?);
    let metadata: Map<String, Value> = fields.take_exactly("metadata")?.unwrap_or_default();
    about.insert("instructions".into(), json!(instructions));
    about.insert("metadata".into(), Value::Object(metadata));
    about.insert("reasoning".into(), json!({ "effort": effort, "summary": null }));
    about.insert("tool_choice".into(), choice);
    about.insert("tools".into(), Value::from(given));
    Ok(Chat { messages, images, tools, variables: all, choice: call, several }.with_system_prompt(state))
}

/// Returns the fields that an answer repeats of its request, which no client needs, as text: without those of any
/// length if they are longer than the plan has room for.
fn repeated(mut about: Map<String, Value>) -> String {
    let text = Value::Object(about.clone()).to_string();
    if text.len() <= REPEATED_BYTES_MAX {
        return text;
    }
    let none = json!({
        "instructions": null, "metadata": {}, "tool_choice": "auto", "tools": [],
        "reasoning": { "effort": null, "summary": null },
    });
    about.extend(none.as_object().cloned().unwrap_or_default());
    Value::Object(about).to_string()
}

/// Reads `reasoning`. Returns the effort; thinking is sent as it is, whatever summary is asked for.
fn effort(fields: &mut Fields<'_>) -> Reply<Option<String>> {
    let Some(raw) = fields.raw("reasoning") else { return Ok(None) };
    let mut own = Fields::of_object("reasoning.", raw)?;
    let effort = own.take("effort")?;
    let _: Option<String> = own.take("summary")?;
    let _: Option<String> = own.take("generate_summary")?;
    own.finish()?;
    Ok(effort)
}

/// Reads `tool_choice`.
fn tool_choice(choice: &Value) -> Reply<ToolChoice> {
    match (choice.as_str(), choice["type"].as_str()) {
        (Some("auto"), _) => Ok(ToolChoice::Auto),
        (Some("none"), _) => Ok(ToolChoice::None),
        (Some("required"), _) => Ok(ToolChoice::Required),
        (None, Some("function")) if choice["name"].is_string() => {
            Ok(ToolChoice::Named(choice["name"].as_str().unwrap_or_default().to_string()))
        }
        (None, Some(kind)) => {
            let message = format!("tool_choice.type = {:?}: this server has no such choice", shown(kind));
            Err(Refusal::unsupported("tool_choice", message))
        }
        _ => Err(Refusal::bad("tool_choice", "tool_choice: it can be auto, none, required or a function")),
    }
}
