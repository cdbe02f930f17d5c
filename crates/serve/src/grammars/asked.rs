//! The fields that say what a response may be, in OpenAI's words and in vLLM's, and which logits are moved.

use crate::protocol::fields::Fields;
use crate::protocol::ids::check_ids;
use crate::protocol::refusal::{Refusal, Reply};
use crate::state::ServerState;
use plimsoll_base::shown;
use plimsoll_grammar::ResponseForm;
use plimsoll_rollout::BIASES_MAX;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// The most that is added to a logit.
const BIAS_MAX: f64 = 100.0;

/// Returns the form that a request asks for, and the field that asks for it.
///
/// Errors: `serve-bad-request`, `serve-field-refused`; also where two fields ask.
pub fn form(fields: &mut Fields<'_>) -> Reply<Option<(ResponseForm, String)>> {
    let mut found: Vec<(ResponseForm, String)> = Vec::new();
    if let Some(raw) = fields.raw("response_format") {
        let param = fields.param("response_format");
        found.extend(of_format(fields, &param, raw)?.map(|form| (form, param)));
    }
    if let Some(raw) = fields.raw("structured_outputs") {
        let param = fields.param("structured_outputs");
        let mut nested = Fields::of_object("structured_outputs.", raw)?;
        let names = ["json", "regex", "choice", "grammar", "json_object"];
        let given = names.map(|name| (name, nested.raw(name)));
        nested.finish()?;
        for (name, raw) in given {
            if let Some(raw) = raw {
                found.extend(
                    of_words(fields, &param, name, raw)?.map(|form| (form, format!("{param}.{name}"))),
                );
            }
        }
    }
    let older = [
        ("guided_json", "json"),
        ("guided_regex", "regex"),
        ("guided_choice", "choice"),
        ("guided_grammar", "grammar"),
        ("guided_json_object", "json_object"),
    ];
    for (name, words) in older {
        if let Some(raw) = fields.raw(name) {
            let param = fields.param(name);
            found.extend(of_words(fields, &param, words, raw)?.map(|form| (form, param)));
        }
    }
    if let [_, (_, second), ..] = &found[..] {
        let message = format!("{second}, and {}: a response can be held to one form", found[0].1);
        return Err(Refusal::bad(second, message));
    }
    Ok(found.pop())
}

/// Reads OpenAI's `response_format`.
fn of_format(fields: &mut Fields<'_>, param: &str, raw: &RawValue) -> Reply<Option<ResponseForm>> {
    let format = value(fields, param, raw)?;
    match format["type"].as_str() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(ResponseForm::JsonObject)),
        Some("json_schema") => match &format["json_schema"]["schema"] {
            Value::Null => Err(Refusal::bad(param, format!("{param}.json_schema.schema is missing"))),
            schema => Ok(Some(ResponseForm::Json(schema.clone()))),
        },
        other => {
            let given = other.map_or("missing".into(), |kind| format!("{:?}", shown(kind)));
            let message = format!("{param}.type is {given}: it can be text, json_object or json_schema");
            Err(Refusal::unsupported(param, message))
        }
    }
}

/// Reads a format whose schema is next to its type, as OpenAI's responses and Anthropic's messages have it.
///
/// Errors: `serve-bad-request`, `serve-field-refused`.
pub fn form_of(fields: &mut Fields<'_>, param: &str, raw: &RawValue) -> Reply<Option<ResponseForm>> {
    let mut format = value(fields, param, raw)?;
    match (format["type"].as_str(), format.get("schema")) {
        (Some("text"), _) => Ok(None),
        (Some("json_object"), _) => Ok(Some(ResponseForm::JsonObject)),
        (Some("json_schema"), Some(_)) => Ok(Some(ResponseForm::Json(format["schema"].take()))),
        (Some("json_schema"), None) => Err(Refusal::bad(param, format!("{param}.schema is missing"))),
        (other, _) => {
            let given = other.map_or("missing".into(), |kind| format!("{:?}", shown(kind)));
            let message = format!("{param}.type is {given}: it can be text, json_object or json_schema");
            Err(Refusal::unsupported(param, message))
        }
    }
}

/// Reads one of vLLM's fields.
fn of_words(
    fields: &mut Fields<'_>,
    param: &str,
    words: &str,
    raw: &RawValue,
) -> Reply<Option<ResponseForm>> {
    let wrong = |what: &str| Refusal::bad(param, format!("{param}: {what}"));
    let given = value(fields, param, raw)?;
    Ok(Some(match (words, given) {
        // A schema may come as its text.
        ("json", Value::String(text)) => {
            fields.count_tree(param, &text)?;
            let schema = serde_json::from_str(&text).map_err(|_| wrong("its text is no JSON"))?;
            ResponseForm::Json(schema)
        }
        ("json", schema) => ResponseForm::Json(schema),
        ("json_object", Value::Bool(true)) => ResponseForm::JsonObject,
        ("json_object", Value::Bool(false)) => return Ok(None),
        ("regex", Value::String(regex)) => ResponseForm::Regex(regex),
        ("grammar", Value::String(lark)) => ResponseForm::Lark(lark),
        ("choice", Value::Array(texts)) => {
            let texts = texts.iter().map(|text| text.as_str().map(str::to_string));
            ResponseForm::Choice(
                texts.collect::<Option<_>>().ok_or_else(|| wrong("it can be a list of strings"))?,
            )
        }
        ("choice", _) => return Err(wrong("it can be a list of strings")),
        ("json_object", _) => return Err(wrong("it can be true or false")),
        _ => return Err(wrong("it can be a string")),
    }))
}

/// Reads a value as a tree, which counts with the other trees of the body.
fn value(fields: &mut Fields<'_>, param: &str, raw: &RawValue) -> Reply<Value> {
    fields.count_tree(param, raw.get())?;
    serde_json::from_str(raw.get()).map_err(|err| Refusal::bad(param, format!("{param}: {err}")))
}

/// Reads `logit_bias`: what is added to the logits of some tokens, by their ids; ascending.
///
/// Errors: `serve-bad-request`.
pub fn biases(fields: &mut Fields<'_>, state: &ServerState) -> Reply<Vec<(u32, f32)>> {
    let param = fields.param("logit_bias");
    if let Some(raw) = fields.peek("logit_bias")
        && raw.len() > BIASES_MAX * 64
    {
        return Err(Refusal::unsupported(&param, format!("{param}: {BIASES_MAX} tokens are the most")));
    }
    let given: BTreeMap<String, f64> = fields.take("logit_bias")?.unwrap_or_default();
    if given.len() > BIASES_MAX {
        return Err(Refusal::bad(
            &param,
            format!("{param}: {} tokens, {BIASES_MAX} is the most", given.len()),
        ));
    }
    if !given.is_empty() && state.limits.biases == 0 {
        return Err(Refusal::unsupported(
            &param,
            format!("{param}: what a run trains on is drawn without it"),
        ));
    }
    let mut biases = Vec::with_capacity(given.len());
    for (id, bias) in given {
        let Ok(token) = id.parse::<u32>() else {
            return Err(Refusal::bad(&param, format!("{param}: {:?} is no token id", shown(&id))));
        };
        check_ids(&[token], &param, state)?;
        if !(-BIAS_MAX..=BIAS_MAX).contains(&bias) {
            let message = format!("{param}[{token}] = {bias}: it can be -{BIAS_MAX} to {BIAS_MAX}");
            return Err(Refusal::bad(&param, message));
        }
        biases.push((token, bias as f32));
    }
    biases.sort_unstable_by_key(|(token, _)| *token);
    if biases.windows(2).any(|two| two[0].0 == two[1].0) {
        return Err(Refusal::bad(&param, format!("{param} names a token twice")));
    }
    Ok(biases)
}
