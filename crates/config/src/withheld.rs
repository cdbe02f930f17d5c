//! Refuses a run file of a run directory whose keys and passwords were not filled in.

use crate::Provenance;
use plimsoll_base::{Error, Result, unmarked};
use toml::Value;

/// Returns the error for a key of a run file whose secret is nowhere.
pub fn secret_withheld(key: &str) -> Error {
    hinted(Error::usage("secret-withheld", message(key)), key)
}

/// Requires that no value of a file has the mark of a secret that was taken out.
///
/// Errors: `secret-withheld`.
pub(crate) fn check(at: &Provenance, visit: impl FnOnce(&mut dyn FnMut(&str, &Value))) -> Result<()> {
    let mut found = None;
    visit(&mut |key, value| {
        if found.is_none() && is_marked(value) {
            found = Some(key.to_string());
        }
    });
    let refused = |key: String| Err(hinted(at.error("secret-withheld", &key, &message(&key)), &key));
    found.map_or(Ok(()), refused)
}

fn is_marked(value: &Value) -> bool {
    match value {
        Value::String(text) => unmarked(text).is_some(),
        Value::Array(list) => list.iter().any(is_marked),
        Value::Table(table) => table.iter().any(|(key, value)| unmarked(key).is_some() || is_marked(value)),
        _ => false,
    }
}

fn message(key: &str) -> String {
    format!("the secret in `{key}` was taken out: the run file of a run directory has none")
}

fn hinted(error: Error, key: &str) -> Error {
    error
        .hint("name the run file with which the run began")
        .hint(format!("or give the value: --set {key}=VALUE, or a variable PLIMSOLL__SECTION__KEY"))
}
