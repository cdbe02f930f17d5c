//! Parses tool calls as Gemma 4 writes them: JSON whose keys have no quotation marks, and whose strings are between
//! marks, without escapes.
//!
//! ```text
//! call:add{a:1,words:[<|"|>one<|"|>,<|"|>two<|"|>]}
//! ```
//!
//! Source: the models' chat template, and vLLM's parser `gemma4`.

use plimsoll_base::json_marked;
use serde_json::Value;

/// Begins and ends a string.
pub(crate) const QUOTE: &str = "<|\"|>";
/// Most objects and lists within each other.
const DEPTH_MAX: u32 = 64;

/// Reads one call: the function's name, its arguments as JSON, and their value. `None` if the text is no complete call.
pub(crate) fn call(text: &str) -> Option<(&str, String, Value)> {
    let text = text.trim().strip_prefix("call:")?;
    let (name, body) = text.split_at(text.find('{')?);
    let (name, mut json) = (name.trim(), String::with_capacity(body.len()));
    let rest = value(body, &mut json, 0)?;
    let is_name = !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || "<[".contains(c));
    let arguments = json_marked(&json).ok().filter(Value::is_object)?;
    (is_name && rest.trim().is_empty()).then_some((name, json, arguments))
}

/// Appends the value at the beginning of a text as JSON. Returns the text after it.
fn value<'t>(text: &'t str, json: &mut String, depth: u32) -> Option<&'t str> {
    let text = text.trim_start();
    match text.chars().next()? {
        '{' if depth < DEPTH_MAX => list(&text[1..], json, ('{', '}'), |text, json| {
            let (key, rest) = key(text)?;
            json.push_str(&Value::from(key).to_string());
            json.push(':');
            value(rest, json, depth + 1)
        }),
        '[' if depth < DEPTH_MAX => {
            list(&text[1..], json, ('[', ']'), |text, json| value(text, json, depth + 1))
        }
        _ => scalar(text, json),
    }
}

/// Appends what is between two brackets, with commas between. Returns the text after the second one.
fn list<'t>(
    mut text: &'t str,
    json: &mut String,
    (open, close): (char, char),
    mut one: impl FnMut(&'t str, &mut String) -> Option<&'t str>,
) -> Option<&'t str> {
    json.push(open);
    let mut is_first = true;
    loop {
        text = text.trim_start();
        if let Some(rest) = text.strip_prefix(close) {
            json.push(close);
            return Some(rest);
        }
        if !is_first {
            text = text.strip_prefix(',')?;
            json.push(',');
        }
        text = one(text, json)?;
        is_first = false;
    }
}

/// Reads a key up to its colon: bare, or between marks or quotation marks.
fn key(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    for quote in [QUOTE, "\""] {
        if let Some(begun) = text.strip_prefix(quote) {
            let (key, rest) = begun.split_once(quote)?;
            return Some((key, rest.trim_start().strip_prefix(':')?));
        }
    }
    let (key, rest) = text.split_once(':')?;
    let key = key.trim();
    (!key.is_empty() && !key.contains(['{', '}', '[', ']', ','])).then_some((key, rest))
}

/// Appends a string, a number or a word. Returns the text after it.
fn scalar<'t>(text: &'t str, json: &mut String) -> Option<&'t str> {
    if let Some(begun) = text.strip_prefix(QUOTE) {
        let (words, rest) = begun.split_once(QUOTE)?;
        json.push_str(&Value::from(words).to_string());
        return Some(rest);
    }
    if text.starts_with('"') {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<String>();
        let words = values.next()?.ok()?;
        json.push_str(&Value::from(words).to_string());
        return Some(&text[values.byte_offset()..]);
    }
    let (word, rest) = text.split_at(text.find([',', '}', ']'])?);
    // What Python writes for no value.
    json.push_str(if word.trim() == "None" { "null" } else { word.trim() });
    Some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_become_json_and_what_is_none_is_no_call() {
        let deep = format!("call:f{{a:{}1{}}}", "[".repeat(100), "]".repeat(100));
        for (text, expect) in [
            ("call:now{}", Some(("now", "{}"))),
            ("call:add{a:1,b:-2.50}", Some(("add", r#"{"a":1,"b":-2.50}"#))),
            (
                "call:f{s:<|\"|>say \"hi\", {x}\n<|\"|>,l:[<|\"|>a<|\"|>, true, null, None],o:{k:{}}}",
                Some(("f", r#"{"s":"say \"hi\", {x}\n","l":["a",true,null,null],"o":{"k":{}}}"#)),
            ),
            ("call:f{<|\"|>a b<|\"|>:1, \"c\": \"d\\n\"}", Some(("f", r#"{"a b":1,"c":"d\n"}"#))),
            ("call:f{a:12345678901234567890123}", Some(("f", r#"{"a":12345678901234567890123}"#))),
            ("call:f{a:<|\"|>no end}", None),
            ("call:f{a:word}", None),
            ("call:f{a:1} more", None),
            ("call:f{a:1", None),
            ("call:f{,}", None),
            ("call:{a:1}", None),
            ("f{a:1}", None),
            (&deep, None),
        ] {
            let found = call(text).map(|(name, json, _)| (name, json));
            assert_eq!(found.as_ref().map(|(name, json)| (*name, json.as_str())), expect, "{text}");
        }
    }
}
