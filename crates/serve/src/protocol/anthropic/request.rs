//! Reads the body of a request for a message: the conversation and how it is answered.

use super::answer::{MessageForm, Shown};
use super::blocks::{read_message, read_system, read_tools};
use crate::grammars::{ToolChoice, form_of};
use crate::owner::ResponseOwner;
use crate::protocol::dialogue::Dialogue;
use crate::protocol::fields::Fields;
use crate::protocol::messages::{Chat, MESSAGES_MAX, check_tools, variables};
use crate::protocol::parsed::{Delivery, Parsed, hold, params_under};
use crate::protocol::prompt::{ChatPrompt, hold_calls};
use crate::protocol::refusal::{Refusal, Reply};
use crate::protocol::reply::{Head, Usage};
use crate::state::{SamplingParams, ServerState};
use plimsoll_base::shown;
use plimsoll_grammar::ResponseForm;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Lists the changes of a conversation that this server makes already: the template decides which thinking stays.
const EDITS: [&str; 1] = ["clear_thinking_20251015"];
/// The field that holds a response to a form.
const FORMAT: &str = "output_config.format";
/// Efforts, and the word of chat templates for each.
const EFFORTS: [(&str, &str); 5] =
    [("low", "low"), ("medium", "medium"), ("high", "high"), ("xhigh", "high"), ("max", "high")];

/// Reads a body. `owner`: what owns its response, if not only the client gets it.
pub fn read(
    body: &[u8],
    state: &Arc<ServerState>,
    owner: Option<&dyn ResponseOwner>,
) -> Reply<Parsed<MessageForm>> {
    read_for(body, state, owner, true)
}

/// Reads a body whose tokens are counted: it needs no longest response.
pub fn read_to_count(
    body: &[u8],
    state: &Arc<ServerState>,
    owner: Option<&dyn ResponseOwner>,
) -> Reply<Parsed<MessageForm>> {
    read_for(body, state, owner, false)
}

fn read_for(
    body: &[u8],
    state: &Arc<ServerState>,
    owner: Option<&dyn ResponseOwner>,
    is_answered: bool,
) -> Reply<Parsed<MessageForm>> {
    let mut fields = Fields::of_body(body, state.tree_bytes())?;
    let adapter = state.adapter_of(fields.take::<String>("model")?.as_deref())?;
    let mut params = params_under(&mut fields, state, "stop_sequences", adapter)?;
    if params.choices > 1 {
        return Err(Refusal::unsupported("n", "n: a message is one response").hint("send several requests"));
    }
    if is_answered && params.max_new_tokens.is_none() {
        return Err(Refusal::bad("max_tokens", "max_tokens is missing"));
    }
    let stream = fields.flag("stream")?;
    let delivery = Delivery { stream, include_usage: false, return_ids: false };
    let mut thinking = Thinking::read(&mut fields)?;
    let (effort, form) = output_config(&mut fields)?;
    thinking.effort = effort;
    if let Some(form) = form {
        params.grammar = Some(hold(&form, FORMAT, &params.ends, state)?);
    }
    check_edits(&mut fields)?;
    fields.raw("cache_control");
    let chat = chat(&mut fields, state, &thinking)?;
    fields.finish()?;
    let begins_freely = hold_calls(&mut params, &chat, state)?;
    let ChatPrompt { rows, images, heard, reader, .. } = ChatPrompt::of(chat, state, owner)?;
    let reader = if begins_freely { reader } else { reader.without_thinking() };
    let is_shortened = shorten(&mut params, rows.len(), state);
    let usage = Usage { prompt_tokens: rows.len(), ..Usage::default() };
    let form =
        MessageForm::new(Head::new(state, "msg_", adapter), usage, reader, thinking.shown, is_shortened);
    Ok(Parsed { prompts: vec![rows], images, params, delivery, usual_tokens: usize::MAX, heard, form })
}

/// Bounds a response by the room after its prompt: clients ask for as many tokens as a large model has. Returns true if
/// that is less than the request allows.
fn shorten(params: &mut SamplingParams, prompt_tokens: usize, state: &ServerState) -> bool {
    let room = state.limits.context.saturating_sub(prompt_tokens).min(state.limits.new_tokens);
    let is_shortened = params.max_new_tokens.is_some_and(|asked| asked > room) && room > 0;
    if is_shortened {
        params.max_new_tokens = Some(room);
    }
    is_shortened
}

fn chat(fields: &mut Fields<'_>, state: &ServerState, thinking: &Thinking) -> Reply<Chat> {
    if let Some(count) = fields.count("messages").filter(|count| !(1..=MESSAGES_MAX).contains(count)) {
        return Err(Refusal::bad("messages", format!("{count} messages: it can be 1 to {MESSAGES_MAX}")));
    }
    let mut turns = Dialogue::new(state);
    if let Some(system) = fields.take_exactly::<Value>("system")? {
        read_system(system, &mut turns)?;
    }
    let messages: Vec<Value> =
        fields.take_exactly("messages")?.ok_or_else(|| Refusal::bad("messages", "messages is missing"))?;
    for (index, message) in messages.into_iter().enumerate() {
        read_message(message, &format!("messages[{index}]"), &mut turns)?;
    }
    let (messages, images) = turns.finish();
    match messages.last() {
        None => return Err(Refusal::bad("messages", "messages: they have no content")),
        Some(last) if last["role"] == "assistant" => {
            let message = "messages end with words of the assistant: this server does not go on with them";
            return Err(Refusal::unsupported("messages", message).hint("end with a message of the user"));
        }
        Some(_) => {}
    }
    let tools = read_tools(fields.take_exactly("tools")?.unwrap_or_default())?;
    let choice: Option<Value> = fields.take_exactly("tool_choice")?;
    let (choice, several) = tool_choice(&choice.unwrap_or_default())?;
    let tools = if choice == ToolChoice::None { Vec::new() } else { tools };
    check_tools(&tools, state)?;
    let mut all = thinking.variables(state);
    all.extend(variables(fields)?);
    Ok(Chat { messages, images, tools, variables: all, choice, several }.with_system_prompt(state))
}

/// Reads `tool_choice`, and whether a response may have several calls, which only forced ones can be held to.
fn tool_choice(choice: &Value) -> Reply<(ToolChoice, bool)> {
    let several = choice["disable_parallel_tool_use"] != true;
    let read = match choice["type"].as_str() {
        _ if choice.is_null() => ToolChoice::Auto,
        Some("auto") => ToolChoice::Auto,
        Some("none") => ToolChoice::None,
        Some("any") => ToolChoice::Required,
        Some("tool") if choice["name"].is_string() => {
            ToolChoice::Named(choice["name"].as_str().unwrap_or_default().to_string())
        }
        _ => return Err(Refusal::bad("tool_choice", "tool_choice.type: it can be auto, any, tool or none")),
    };
    if read == ToolChoice::Auto && !several {
        let param = "tool_choice.disable_parallel_tool_use";
        return Err(Refusal::unsupported(param, format!("{param}: the model may call several tools"))
            .hint("a response is held to one call where tool_choice asks for one: any, or tool"));
    }
    Ok((read, several))
}

/// What a request says about thinking.
#[derive(Default)]
struct Thinking {
    /// Whether the model thinks; none if the request does not say.
    is_on: Option<bool>,
    shown: Shown,
    effort: Option<&'static str>,
}

impl Thinking {
    /// Reads `thinking`. A budget is a goal that nothing enforces: `max_tokens` bounds thinking and text together.
    fn read(fields: &mut Fields<'_>) -> Reply<Thinking> {
        let Some(raw) = fields.raw("thinking") else { return Ok(Thinking::default()) };
        let mut own = Fields::of_object("thinking.", raw)?;
        let kind: Option<String> = own.take("type")?;
        let display: Option<String> = own.take("display")?;
        own.within("budget_tokens", 1..=i64::from(u32::MAX))?;
        own.finish()?;
        let is_on = match kind.as_deref() {
            Some("enabled" | "adaptive" | "between_tools") => true,
            Some("disabled") => false,
            _ => {
                let message = "thinking.type: it can be enabled, adaptive, between_tools or disabled";
                return Err(Refusal::bad("thinking.type", message));
            }
        };
        let shown = match display.as_deref() {
            _ if !is_on => Shown::Nothing,
            None | Some("summarized") => Shown::Words,
            Some("omitted") => Shown::Signature,
            Some(other) => {
                let message =
                    format!("thinking.display = {:?}: it can be summarized or omitted", shown(other));
                return Err(Refusal::bad("thinking.display", message));
            }
        };
        Ok(Thinking { is_on: Some(is_on), shown, effort: None })
    }

    /// Returns the variables of the template that say it, as far as the template has them.
    fn variables(&self, state: &ServerState) -> Map<String, Value> {
        let mut variables = Map::new();
        let has = |name: &str| state.texts.template.as_ref().is_some_and(|template| template.mentions(name));
        if let Some(is_on) = self.is_on.filter(|_| has("enable_thinking")) {
            variables.insert("enable_thinking".into(), is_on.into());
        }
        if let Some(effort) = self.effort.filter(|_| has("reasoning_effort")) {
            variables.insert("reasoning_effort".into(), effort.into());
        }
        variables
    }
}

/// Reads `output_config`. Returns the effort in the word of chat templates, and the form of the response.
fn output_config(fields: &mut Fields<'_>) -> Reply<(Option<&'static str>, Option<ResponseForm>)> {
    let Some(raw) = fields.raw("output_config") else { return Ok((None, None)) };
    let mut own = Fields::of_object("output_config.", raw)?;
    let effort: Option<String> = own.take("effort")?;
    let format = own.raw("format");
    own.finish()?;
    let known = |effort: String| {
        let found = EFFORTS.iter().find(|(name, _)| *name == effort);
        found.map(|(_, word)| *word).ok_or_else(|| {
            let message = format!("output_config.effort = {:?}: it can be low to max", shown(&effort));
            Refusal::bad("output_config.effort", message)
        })
    };
    let form = format.map(|raw| form_of(fields, FORMAT, raw)).transpose()?.flatten();
    Ok((effort.map(known).transpose()?, form))
}

/// Takes `context_management` if it asks for what the template does.
fn check_edits(fields: &mut Fields<'_>) -> Reply<()> {
    let managed: Value = fields.take_exactly("context_management")?.unwrap_or_default();
    let edits = managed["edits"].as_array().map(Vec::as_slice).unwrap_or_default();
    let kinds = edits.iter().map(|edit| edit["type"].as_str().unwrap_or_default());
    match { kinds }.find(|kind| !EDITS.contains(kind)) {
        None => Ok(()),
        Some(kind) => {
            let message = format!("context_management: this server makes no edit {:?}", shown(kind));
            Err(Refusal::unsupported("context_management", message))
        }
    }
}
