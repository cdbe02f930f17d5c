//! Errors of grammars by their names.

use plimsoll_base::Error;

/// Sorts the library's refusals of a grammar.
pub(crate) fn refused(what: &str) -> Error {
    let line = what.lines().next().unwrap_or_default();
    let is_size = ["too big", "too large", "fuel", "Too many", "too complex", "too deeply"];
    if is_size.iter().any(|words| what.contains(words)) { too_large(line) } else { invalid(line) }
}

pub(crate) fn invalid(what: &str) -> Error {
    Error::new("grammar-invalid", what.to_string())
}

pub(crate) fn too_large(what: &str) -> Error {
    Error::new("grammar-too-large", what.to_string()).hint(
        "ask for less: fewer fields, shorter bounds of lengths and counts, no expression within another one",
    )
}
