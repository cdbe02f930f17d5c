//! Calls of functions that a response must make: the template's marks with JSON of one function's schema between them.

use crate::form::{ResponseForm, json_schema};
use crate::refusal::invalid;
use plimsoll_base::{Error, Result};
use plimsoll_text::{CallForm, ChatTemplate};
use serde_json::{Map, Value, json};

/// A function that a response may call.
#[derive(Clone, Copy, Debug)]
pub struct CalledTool<'t> {
    /// Its name.
    pub name: &'t str,
    /// The JSON schema of its arguments; none takes any object.
    pub parameters: Option<&'t Value>,
}

impl<'t> CalledTool<'t> {
    /// Reads a function in OpenAI's form; none without a name.
    pub fn of_function(function: &'t Value) -> Option<CalledTool<'t>> {
        let parameters = Some(&function["parameters"]).filter(|parameters| !parameters.is_null());
        Some(CalledTool { name: function["name"].as_str()?, parameters })
    }
}

/// Which functions a response must call.
#[derive(Clone, Copy, Debug)]
pub enum ForcedCall<'t> {
    /// One of them or more.
    Any,
    /// This one, once.
    Named(&'t str),
}

/// Returns the form of a response that is calls and nothing else, as the template has the model write them. `several`:
/// more than one call may follow, where the template has a form for that.
///
/// Errors: `grammar-calls` for a template whose calls are written in another form; `grammar-invalid` for a name that no
/// tool has.
pub fn forced_call(
    template: Option<&ChatTemplate>,
    tools: &[CalledTool<'_>],
    choice: ForcedCall<'_>,
    several: bool,
) -> Result<ResponseForm> {
    let tools: Vec<CalledTool<'_>> = match choice {
        ForcedCall::Any => tools.to_vec(),
        ForcedCall::Named(name) => tools.iter().copied().filter(|tool| tool.name == name).collect(),
    };
    if tools.is_empty() {
        return Err(invalid("no tool has the name that must be called"));
    }
    let several = several && matches!(choice, ForcedCall::Any);
    match template.map_or(CallForm::Bare, ChatTemplate::call_form) {
        CallForm::Tagged => {
            let call = json_schema(&schema(&tools, "arguments"))?;
            let more = if several { "(\"\\n\" call)*" } else { "" };
            let lark = format!(
                "start: call {more}\ncall: \"<tool_call>\\n\" object \"\\n</tool_call>\"\nobject: %json {call}\n"
            );
            Ok(ResponseForm::Lark(lark))
        }
        CallForm::Bare => Ok(ResponseForm::Json(schema(&tools, "parameters"))),
        CallForm::Other => Err(Error::new(
            "grammar-calls",
            "the model's chat template writes calls in a form that a response cannot be held to",
        )
        .hint("leave tool_choice out: the model decides, and its calls are found all the same")),
    }
}

/// Returns the form of a response that is text, in which whatever call the model begins is one of `tools`; none for a
/// template whose calls have no mark at which they begin.
///
/// Errors: `grammar-invalid`.
pub fn held_calls(template: Option<&ChatTemplate>, tools: &[CalledTool<'_>]) -> Result<Option<ResponseForm>> {
    match template.map_or(CallForm::Bare, ChatTemplate::call_form) {
        CallForm::Tagged if !tools.is_empty() => text_with_calls(tools).map(Some),
        _ => Ok(None),
    }
}

/// Returns the form of text with calls between marks. The text ends as soon as a mark is whole, so that no other
/// reading of the mark is left.
pub(crate) fn text_with_calls(tools: &[CalledTool<'_>]) -> Result<ResponseForm> {
    let call = json_schema(&schema(tools, "arguments"))?;
    let lark = format!(
        "start: (mark \"\\n\" object \"\\n</tool_call>\")* text\nmark[lazy]: TEXT \"<tool_call>\"\ntext: TEXT\n\
         object: %json {call}\nTEXT: /(\\n|.)*/\n"
    );
    Ok(ResponseForm::Lark(lark))
}

/// Returns the schema of one call: an object with the name of a function and its arguments.
fn schema(tools: &[CalledTool<'_>], arguments: &str) -> Value {
    let one = |(index, tool): (usize, &CalledTool<'_>)| {
        let mut parameters = tool.parameters.cloned().unwrap_or_else(|| json!({ "type": "object" }));
        let place = if tools.len() == 1 { String::new() } else { format!("/anyOf/{index}") };
        move_references(&mut parameters, &format!("#{place}/properties/{arguments}"));
        let mut properties = Map::new();
        properties.insert("name".into(), json!({ "const": tool.name }));
        properties.insert(arguments.into(), parameters);
        json!({
            "type": "object", "properties": properties, "required": ["name", arguments],
            "additionalProperties": false,
        })
    };
    let mut all: Vec<Value> = tools.iter().enumerate().map(one).collect();
    if all.len() == 1 { all.remove(0) } else { json!({ "anyOf": all }) }
}

/// Moves references within a schema to its new place within another one.
fn move_references(schema: &mut Value, place: &str) {
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                match value {
                    Value::String(target) if name == "$ref" => {
                        if let Some(rest) = target.strip_prefix('#') {
                            *target = format!("{place}{rest}");
                        }
                    }
                    _ => move_references(value, place),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| move_references(item, place)),
        _ => {}
    }
}
