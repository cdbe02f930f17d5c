//! Calls that a request makes the model write: `tool_choice`.

use crate::protocol::refusal::{Refusal, Reply};
use crate::state::ServerState;
use plimsoll_base::shown;
use plimsoll_grammar::{CalledTool, ForcedCall, ResponseForm, forced_call, held_calls};
use serde_json::Value;

/// What a request says about calls.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// There are no tools.
    None,
    /// A call or more.
    Required,
    /// A call of this function.
    Named(String),
}

impl ToolChoice {
    /// Reads OpenAI's `tool_choice`.
    ///
    /// Errors: `serve-field-refused`.
    pub fn read(given: Option<&Value>) -> Reply<ToolChoice> {
        match given {
            None => Ok(ToolChoice::Auto),
            Some(Value::String(words)) if words == "auto" => Ok(ToolChoice::Auto),
            Some(Value::String(words)) if words == "none" => Ok(ToolChoice::None),
            Some(Value::String(words)) if words == "required" => Ok(ToolChoice::Required),
            Some(choice) if choice["type"] == "function" && choice["function"]["name"].is_string() => {
                Ok(ToolChoice::Named(choice["function"]["name"].as_str().unwrap_or_default().to_string()))
            }
            Some(_) => Err(Refusal::unsupported(
                "tool_choice",
                "tool_choice: it can be \"auto\", \"none\", \"required\", or a function by its name",
            )),
        }
    }
}

/// Returns the form of a response that must call some of `tools`, in OpenAI's form; where the model decides, that of
/// what it calls if some of them are strict, else none.
/// `several`: more than one call may follow.
///
/// Errors: `serve-bad-request` without a tool of that name; `serve-field-refused`; `grammar-calls`.
pub fn tool_choice(
    choice: &ToolChoice,
    tools: &[Value],
    several: bool,
    state: &ServerState,
) -> Reply<Option<ResponseForm>> {
    let forced = match choice {
        ToolChoice::None => return Ok(None),
        ToolChoice::Auto => return strict_calls(tools, state),
        ToolChoice::Required => ForcedCall::Any,
        ToolChoice::Named(name) => ForcedCall::Named(name),
    };
    let tools: Vec<CalledTool<'_>> =
        tools.iter().filter_map(|tool| CalledTool::of_function(&tool["function"])).collect();
    if tools.is_empty() {
        return Err(Refusal::bad("tool_choice", "tool_choice asks for a call, and there are no tools"));
    }
    if let ToolChoice::Named(name) = choice
        && !tools.iter().any(|tool| tool.name == name)
    {
        return Err(Refusal::bad("tool_choice", format!("tool_choice: no tool is named {:?}", shown(name))));
    }
    forced_call(state.texts.template.as_deref(), &tools, forced, several)
        .map(Some)
        .map_err(|error| Box::new(Refusal { error, param: Some("tool_choice".into()) }))
}

/// Returns the form of a response that may call what it likes, where a tool is strict: the calls of such a tool have
/// arguments of its schema, those of others any. None on a server without forms, which reads `strict` as a wish.
fn strict_calls(tools: &[Value], state: &ServerState) -> Reply<Option<ResponseForm>> {
    let is_strict = |tool: &Value| tool["function"]["strict"] == true;
    if !tools.iter().any(is_strict) || !state.grammars.are_built() {
        return Ok(None);
    }
    let mut held = Vec::with_capacity(tools.len());
    for tool in tools {
        if let Some(of) = CalledTool::of_function(&tool["function"]) {
            held.push(CalledTool { parameters: of.parameters.filter(|_| is_strict(tool)), ..of });
        }
    }
    held_calls(state.texts.template.as_deref(), &held)
        .map_err(|error| Box::new(Refusal { error, param: Some("tools".into()) }))
}
