//! Reads JSON bodies. Fields that a route does not know are passed over, so that newer clients are not refused.

use super::call::{Answer, Call};
use crate::limits::{METADATA_BYTES_MAX, METADATA_MAX, NAME_BYTES_MAX};
use plimsoll_base::{Error, Result, shown};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// Most bytes of a body of a route that takes little.
const SMALL_BODY_MAX: usize = 256 << 10;

impl Call<'_> {
    /// Reads a small JSON body.
    ///
    /// Errors: `tinker-bad-request`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        if self.body.len() > SMALL_BODY_MAX {
            let message =
                format!("the body has {} bytes, and {SMALL_BODY_MAX} is the most here", self.body.len());
            return Err(Error::new("tinker-bad-request", message));
        }
        let body = if self.body.is_empty() { b"{}" } else { self.body };
        serde_json::from_slice(body).map_err(|err| {
            Error::new("tinker-bad-request", format!("the body cannot be read: {}", shown(&err.to_string())))
        })
    }
}

/// Answers a request whose result comes later.
pub fn promised(number: u64, model: Option<&str>, heard: oneshot::Receiver<Result<()>>) -> Answer {
    let mut value = json!({ "request_id": number.to_string() });
    if let Some(model) = model {
        value["model_id"] = model.into();
    }
    Answer::After(value, heard)
}

/// Returns metadata as texts.
///
/// Errors: `tinker-bad-request` if it has too much.
pub fn metadata(given: Option<Map<String, Value>>) -> Result<BTreeMap<String, String>> {
    let text = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let metadata: BTreeMap<String, String> =
        given.unwrap_or_default().into_iter().map(|(key, value)| (key, text(value))).collect();
    let bytes: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    if metadata.len() > METADATA_MAX || bytes > METADATA_BYTES_MAX {
        let message = format!("user_metadata has {} entries with {bytes} bytes", metadata.len());
        return Err(Error::new("tinker-bad-request", message)
            .hint(format!("{METADATA_MAX} entries with {METADATA_BYTES_MAX} bytes are the most")));
    }
    Ok(metadata)
}

/// Returns a number that counts something of a session.
///
/// Errors: `tinker-bad-request`.
pub fn count(name: &str, number: i64) -> Result<i64> {
    if (0..i64::from(i32::MAX)).contains(&number) {
        return Ok(number);
    }
    Err(Error::new("tinker-bad-request", format!("{name} = {number}: it counts from 0")))
}

/// Checks an id that a client sends.
///
/// Errors: `tinker-bad-request`.
pub fn short<'a>(name: &str, text: &'a str) -> Result<&'a str> {
    if text.len() > 2 * NAME_BYTES_MAX {
        return Err(Error::new("tinker-bad-request", format!("{name} has {} bytes", text.len())));
    }
    Ok(text)
}
