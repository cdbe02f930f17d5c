//! Parses tool calls as Qwen3-Coder and Qwen3.5 write them: tags for the function and for each parameter, whose text
//! is converted to a value by the function's schema.
//!
//! ```text
//! <function=add>
//! <parameter=a>
//! 1
//! </parameter>
//! </function>
//! ```
//!
//! Source: the chat templates of both, and vLLM's parser `qwen3_coder`, whose rules for types these are.

use plimsoll_base::{json_marked, marked_digits};
use serde_json::{Map, Value};
use std::collections::HashMap;

pub(crate) const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// Most references and forms within each other that a parameter's schema is followed through.
const SCHEMA_DEPTH_MAX: u32 = 16;

/// A function that a response may call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tool {
    /// The name that a call uses.
    pub name: String,
    /// Types of its parameters, without those of several types; null next to another one is none.
    types: HashMap<String, String>,
    /// True if its parameters are described.
    is_described: bool,
}

impl Tool {
    /// Reads the functions of `tools`, in OpenAI's form; skips those without a name.
    pub fn all(tools: &[Value]) -> Vec<Tool> {
        let tool = |tool: &Value| {
            let function = &tool["function"];
            let properties = function["parameters"]["properties"].as_object();
            let types = properties.into_iter().flatten();
            let types = types
                .filter_map(|(name, schema)| Some((name.clone(), type_of(schema, &function["parameters"])?)));
            Some(Tool {
                name: function["name"].as_str()?.to_string(),
                types: types.collect(),
                is_described: properties.is_some_and(|properties| !properties.is_empty()),
            })
        };
        tools.iter().filter_map(tool).collect()
    }

    /// Returns the type of a parameter, if it has one.
    pub(crate) fn type_of(&self, key: &str) -> Option<&str> {
        self.types.get(key).map(String::as_str)
    }
}

/// Returns the one type of a parameter besides null: `integer` of `["integer", "null"]`, of the forms of `anyOf` and of
/// what a reference names, `string` of an `enum` of texts.
fn type_of(schema: &Value, whole: &Value) -> Option<String> {
    let types = types_of(schema, whole, SCHEMA_DEPTH_MAX)?;
    let mut types = types.into_iter().filter(|name| name != "null");
    let first = types.next()?;
    types.all(|other| other == first).then_some(first)
}

/// Returns the types that a schema allows; `None` if one of its forms does not say.
fn types_of(schema: &Value, whole: &Value, depth: u32) -> Option<Vec<String>> {
    let deeper = depth.checked_sub(1)?;
    let list = |key: &str| schema.get(key).and_then(Value::as_array);
    match &schema["type"] {
        Value::String(name) => return Some(vec![name.to_ascii_lowercase()]),
        Value::Array(names) => {
            return names.iter().map(|name| Some(name.as_str()?.to_ascii_lowercase())).collect();
        }
        _ => {}
    }
    if let Some(place) = schema["$ref"].as_str() {
        return types_of(whole.pointer(place.strip_prefix('#')?)?, whole, deeper);
    }
    if let Some(values) = list("enum") {
        return Some(values.iter().map(|value| type_of_value(value).to_string()).collect());
    }
    if let Some(value) = schema.get("const") {
        return Some(vec![type_of_value(value).to_string()]);
    }
    if let Some(forms) = list("anyOf").or_else(|| list("oneOf")) {
        let types: Vec<Vec<String>> =
            forms.iter().map(|form| types_of(form, whole, deeper)).collect::<Option<_>>()?;
        return Some(types.concat());
    }
    list("allOf")?.iter().find_map(|form| types_of(form, whole, deeper))
}

fn type_of_value(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_i64() || number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Reads one call: the function's name and its arguments. `None` if the text is not a complete call.
pub(crate) fn call(text: &str, tools: &[Tool]) -> Option<(String, Map<String, Value>)> {
    let (name, mut rest) = text.trim().strip_prefix(FUNCTION)?.split_once('>')?;
    let name = name.trim();
    if name.is_empty() {
        return None;
    }
    let unknown = Tool::default();
    let tool = tools.iter().find(|tool| tool.name == name).unwrap_or(&unknown);
    let mut arguments = Map::new();
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix(FUNCTION_END) {
            return after.trim().is_empty().then(|| (name.to_string(), arguments));
        }
        let (key, after) = rest.strip_prefix(PARAMETER)?.split_once('>')?;
        // An unclosed parameter ends at the next parameter or at the end of the function.
        let ends = [PARAMETER_END, PARAMETER, FUNCTION_END];
        let is_end = |&(at, _): &(usize, &str)| ends.iter().any(|tag| after[at..].starts_with(tag));
        let (end, _) = after.match_indices('<').find(is_end)?;
        let words = after[..end].strip_prefix('\n').unwrap_or(&after[..end]);
        let words = words.strip_suffix('\n').unwrap_or(words);
        let kind = tool.type_of(key.trim());
        arguments.insert(key.trim().to_string(), value(words, kind, tool.is_described));
        rest = after[end..].strip_prefix(PARAMETER_END).unwrap_or(&after[end..]);
    }
}

/// Returns the value of a parameter's text. Without a type it is JSON if `reads_json` and it reads as such.
pub(crate) fn value(words: &str, kind: Option<&str>, reads_json: bool) -> Value {
    let text = || Value::from(words);
    if words.eq_ignore_ascii_case("null") {
        return Value::Null;
    }
    let json = || json_marked(words.trim()).ok();
    let number = |wanted: fn(&Value) -> bool| json().filter(wanted).unwrap_or_else(text);
    match kind {
        // The function or the parameter is not described, so the text stays text.
        None if !reads_json => text(),
        Some(kind) if ["string", "str", "text", "varchar", "char", "enum"].contains(&kind) => text(),
        Some(kind) if ["int", "uint", "long", "short", "unsigned"].iter().any(|of| kind.starts_with(of)) => {
            number(|value| value.is_i64() || value.is_u64() || marked_digits(value).is_some_and(is_whole))
        }
        Some(kind) if kind.starts_with("num") || kind.starts_with("float") => {
            number(|value| value.is_number() || marked_digits(value).is_some())
        }
        Some("boolean" | "bool" | "binary") => match words.trim().to_ascii_lowercase().as_str() {
            "true" | "1" => Value::Bool(true),
            _ => Value::Bool(false),
        },
        _ => json().unwrap_or_else(text),
    }
}

fn is_whole(digits: &str) -> bool {
    digits.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A parameter that may be null had no type, so that the text `12` was a number.
    #[test]
    fn r_a_type_next_to_null_was_none() {
        let properties = json!({
            "text": { "type": ["string", "null"] }, "count": { "anyOf": [{ "type": "integer" }, { "type": "null" }] },
            "choice": { "enum": ["1", "2"] }, "maybe": { "anyOf": [{ "enum": ["1"] }, { "type": "null" }] },
            "place": { "$ref": "#/$defs/Place" }, "spot": { "anyOf": [{ "$ref": "#/$defs/Place" }, { "type": "null" }] },
            "whole": { "allOf": [{ "type": "string" }, { "minLength": 1 }] }, "fixed": { "const": "7" },
            "own": { "$ref": "#/properties/own" }, "nullable": { "type": "string", "nullable": true },
            "deep": { "anyOf": [{ "oneOf": [{ "type": "null" }, { "type": "integer" }] }] },
            "either": { "type": ["string", "integer"] }, "share": { "oneOf": [{ "type": "null" }, { "type": "number" }] },
        });
        let tools = Tool::all(&[json!({ "function": { "name": "f", "parameters": {
                "properties": properties, "$defs": { "Place": { "type": "string" } },
            } } })]);
        for (key, words, expect) in [
            ("choice", "1", json!("1")),
            ("maybe", "1", json!("1")),
            ("maybe", "null", Value::Null),
            ("place", "12", json!("12")),
            ("spot", "12", json!("12")),
            ("whole", "12", json!("12")),
            ("fixed", "7", json!("7")),
            ("own", "12", json!(12)),
            ("nullable", "12", json!("12")),
            ("deep", "12", json!(12)),
            ("deep", "a", json!("a")),
            ("text", "12", json!("12")),
            ("text", "true", json!("true")),
            ("text", "null", Value::Null),
            ("count", "12", json!(12)),
            ("count", "1.5", json!("1.5")),
            ("count", "null", Value::Null),
            ("either", "12", json!(12)),
            ("either", "a", json!("a")),
            ("share", "1.5", json!(1.5)),
            ("share", "[1]", json!("[1]")),
        ] {
            let text = format!("<function=f><parameter={key}>{words}</parameter></function>");
            let (_, arguments) = call(&text, &tools).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(arguments[key], expect, "{text}");
        }
    }

    fn tools() -> Vec<Tool> {
        let properties = json!({
            "text": { "type": "string" }, "count": { "type": "integer" }, "share": { "type": "number" },
            "deep": { "type": "boolean" }, "list": { "type": "array" }, "any": { "anyOf": [] },
        });
        Tool::all(&[json!({ "function": { "name": "f", "parameters": { "properties": properties } } })])
    }

    #[test]
    fn the_text_of_a_parameter_is_a_value_by_its_schema() {
        for (key, words, expect) in [
            ("text", "1", json!("1")),
            ("text", "\n\nkept\n", json!("\n\nkept\n")),
            ("text", "<b>x</b>", json!("<b>x</b>")),
            ("count", "12", json!(12)),
            ("count", "many", json!("many")),
            ("count", "1.5", json!("1.5")),
            ("share", "1.5", json!(1.5)),
            ("share", "2", json!(2)),
            ("deep", "True", json!(true)),
            ("deep", "no", json!(false)),
            ("list", "[1, {\"a\": null}]", json!([1, { "a": null }])),
            ("list", "[1,", json!("[1,")),
            ("any", "{\"a\": 1}", json!({ "a": 1 })),
            ("any", "words", json!("words")),
            ("other", "3", json!(3)),
            ("text", "null", Value::Null),
        ] {
            let text = format!("\n<function=f>\n<parameter={key}>\n{words}\n</parameter>\n</function>\n");
            let (name, arguments) = call(&text, &tools()).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((name.as_str(), &arguments[key]), ("f", &expect), "{text}");
        }
        let (_, arguments) = call("<function=g><parameter=a>1</parameter></function>", &tools()).unwrap();
        assert_eq!(arguments["a"], "1", "a function without a schema");
    }

    #[test]
    fn many_parameters_are_read_in_time_that_grows_with_the_text() {
        let text = format!("<function=f>{}</function>", "<parameter=count>1</parameter>".repeat(300_000));
        assert_eq!(call(&text, &tools()).map(|(_, arguments)| arguments.len()), Some(1));
    }

    #[test]
    fn what_is_no_whole_call_is_none() {
        for (text, count) in [
            ("<function=f>\n</function>", Some(0)),
            ("<function=f><parameter=count>1<parameter=share>2</function>", Some(2)),
            ("<function=f><parameter=count>1</parameter>", None),
            ("<function=f><parameter=count>1", None),
            ("<function=f> words </function>", None),
            ("<function=f></function> and more", None),
            ("<function=></function>", None),
            ("<function", None),
            ("{\"name\": \"f\"}", None),
        ] {
            assert_eq!(call(text, &tools()).map(|(_, arguments)| arguments.len()), count, "{text}");
        }
    }
}
