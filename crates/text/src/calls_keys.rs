//! Parses tool calls as GLM-4.5 and later write them: the function's name, then tags for the key and the value of each
//! argument, whose text is converted by the function's schema.
//!
//! ```text
//! add
//! <arg_key>a</arg_key>
//! <arg_value>1</arg_value>
//! ```
//!
//! Source: the models' chat template, and vLLM's parser `glm45`: what has no type is JSON if it reads as such.

use crate::calls_xml::{Tool, value};
use serde_json::{Map, Value};

/// The tag that a template of this form has.
pub(crate) const KEY: &str = "<arg_key>";
const KEY_END: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";
const VALUE_END: &str = "</arg_value>";

/// Reads one call: the function's name and its arguments. `None` if the text is not a complete call; one without
/// arguments is a call of a function that there is.
pub(crate) fn call(text: &str, tools: &[Tool]) -> Option<(String, Map<String, Value>)> {
    let (name, mut rest) = text.split_at(text.find(KEY).unwrap_or(text.len()));
    let name = name.trim();
    let tool = tools.iter().find(|tool| tool.name == name);
    let is_name = !name.is_empty() && !name.contains(char::is_whitespace) && !name.contains(['<', '{']);
    if !is_name || (rest.is_empty() && tool.is_none()) {
        return None;
    }
    let mut arguments = Map::new();
    while let Some(after) = rest.trim_start().strip_prefix(KEY) {
        let (key, after) = after.split_once(KEY_END)?;
        let after = after.trim_start().strip_prefix(VALUE)?;
        let (words, after) = after.split_once(VALUE_END)?;
        let key = key.trim();
        arguments.insert(key.to_string(), value(words, tool.and_then(|tool| tool.type_of(key)), true));
        rest = after;
    }
    rest.trim().is_empty().then(|| (name.to_string(), arguments))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tools() -> Vec<Tool> {
        let properties = json!({ "text": { "type": "string" }, "count": { "type": "integer" } });
        Tool::all(&[json!({ "function": { "name": "f", "parameters": { "properties": properties } } })])
    }

    #[test]
    fn keys_and_values_are_arguments_by_their_schema() {
        for (text, expect) in [
            ("f\n<arg_key>text</arg_key>\n<arg_value>12</arg_value>\n", Some(json!({ "text": "12" }))),
            ("f<arg_key>count</arg_key><arg_value>12</arg_value>", Some(json!({ "count": 12 }))),
            (
                "\nf\n<arg_key>list</arg_key>\n<arg_value>[1, \"a\"]</arg_value>\n<arg_key>x</arg_key><arg_value>a b</arg_value>",
                Some(json!({ "list": [1, "a"], "x": "a b" })),
            ),
            (
                "f\n<arg_key>text</arg_key><arg_value>two\nlines </arg_value>",
                Some(json!({ "text": "two\nlines " })),
            ),
            ("g\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>", Some(json!({ "n": 3 }))),
            ("f", Some(json!({}))),
            ("g", None),
            ("", None),
            ("two words\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>", None),
            ("f\n<arg_key>n</arg_key>\n<arg_value>3", None),
            ("f\n<arg_key>n</arg_key>", None),
            ("f\n<arg_key>n</arg_key><arg_value>3</arg_value> and more", None),
            ("{\"name\": \"f\"}<arg_key>n</arg_key><arg_value>3</arg_value>", None),
        ] {
            let found = call(text, &tools()).map(|(_, arguments)| Value::Object(arguments));
            assert_eq!(found, expect, "{text}");
        }
    }
}
