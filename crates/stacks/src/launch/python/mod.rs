//! Reads Python without running it: arguments of calls, with constants filled in, and fields of configuration classes.

mod branches;
mod expression;
mod fields;
mod outline;
mod tokens;

pub(crate) use expression::{Argument, Call, Value};
pub(crate) use fields::class_fields;
pub(crate) use outline::Outline;

use crate::setting::Setting;

pub(crate) const EXPRESSION: &str = "an expression, which is not run";

/// Why a class or function made by another function cannot be named.
pub(crate) const NESTED: &str = "it is defined within a function";

/// Returns a call's arguments: `key=literal`, `key.inner` for dictionary entries. A positional one's key is its text.
pub(crate) fn arguments(outline: &Outline<'_>, call: &Call) -> Vec<Setting> {
    let mut given = Vec::new();
    for argument in &call.arguments {
        match &argument.name {
            Some(name) => given.extend(settings(outline, name, argument, call.at)),
            None => given.push(expression(&outline.source(&argument.source), "", argument.line)),
        }
    }
    given
}

/// Returns the settings in one argument called `name`.
pub(crate) fn settings(outline: &Outline<'_>, name: &str, argument: &Argument, at: usize) -> Vec<Setting> {
    let (value, before) = outline.meaning(&argument.value, at);
    let one = |key: String, value: &Value| match outline.literal(value, before) {
        Some(text) => Setting::new(key, text, argument.line),
        None => expression(&key, &outline.source(&argument.source), argument.line),
    };
    match &value {
        Value::Dict(entries) => {
            let entries = entries.iter().map(|(key, value)| match key {
                Value::Text(key) => one(format!("{name}.{key}"), value),
                _ => expression(name, &outline.source(&argument.source), argument.line),
            });
            entries.collect()
        }
        Value::Call(call) if call.name == "dict" => {
            let named = call.arguments.iter().filter_map(|inner| Some((inner.name.as_ref()?, inner)));
            named.map(|(key, inner)| one(format!("{name}.{key}"), &inner.value)).collect()
        }
        _ => vec![one(name.to_string(), &value)],
    }
}

pub(crate) fn expression(key: &str, value: &str, line: usize) -> Setting {
    Setting { unreadable: Some(EXPRESSION), ..Setting::new(key, value, line) }
}
