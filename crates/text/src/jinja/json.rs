//! Values from JSON: messages, tools and variables of a request. Text is lent.

use super::meter::{Meter, Result};
use super::value::{Buffer, Items, Text, Value};
use plimsoll_base::marked_digits;
use serde_json::Value as Json;

/// Returns a value as a template sees it. A number beyond 64 bits keeps its digits: `plimsoll_base::json_marked` reads
/// one as a marked text.
pub(super) fn value_of<'r>(meter: &'r Meter, json: &'r Json) -> Result<Value<'r>> {
    Ok(match json {
        Json::Null => Value::None,
        Json::Bool(flag) => Value::Bool(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::Int(number),
            (None, Some(number)) => match Buffer::text(meter, &number.to_string())? {
                Value::Text(digits) => Value::Digits(digits),
                other => other,
            },
            (None, None) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => match marked_digits(json) {
            Some(digits) => Value::Digits(Text::Lent(digits)),
            None => Value::lent(text),
        },
        Json::Array(list) => list_of(meter, list)?,
        Json::Object(object) => {
            let mut entries = Items::new(meter);
            for (key, value) in object {
                entries.push(Value::lent(key))?;
                entries.push(value_of(meter, value)?)?;
            }
            entries.dict()?
        }
    })
}

pub(super) fn list_of<'r>(meter: &'r Meter, list: &'r [Json]) -> Result<Value<'r>> {
    let mut items = Items::new(meter);
    list.iter().try_for_each(|item| items.push(value_of(meter, item)?))?;
    items.list()
}

pub(super) fn text_bytes(json: &Json) -> usize {
    match json {
        Json::String(text) => text.len(),
        Json::Array(list) => list.iter().map(text_bytes).sum(),
        Json::Object(object) => object.iter().map(|(key, value)| key.len() + text_bytes(value)).sum(),
        _ => 8,
    }
}
