//! A line that a worker wrote, read where it lies: the user's code shares its process, so a line may hold anything. A
//! tree of its values would take many times the line, which alone is planned.

use plimsoll_base::JsonPart;

/// Returns the reply to request `id`.
///
/// Errors: words on what the line is instead.
pub(crate) fn reply_to<'l>(line: &'l str, id: &str) -> Result<JsonPart<'l>, &'static str> {
    // The line itself is bounded, so its strings are too.
    let reply = JsonPart::with_words(line.as_bytes(), line.len()).map_err(|_| "a line that is not JSON")?;
    let is_ours = field(reply, "id").and_then(JsonPart::string).is_some_and(|given| given == id);
    if is_ours { Ok(reply) } else { Err("a line that is no reply to its request: it lacks the request's id") }
}

/// Returns a field; `None` for one that is not there, and for one that is there twice.
pub(crate) fn field<'l>(reply: JsonPart<'l>, name: &str) -> Option<JsonPart<'l>> {
    reply.field(name).ok().flatten()
}

/// Returns a field that is a string.
pub(crate) fn string(reply: JsonPart<'_>, name: &str) -> Option<String> {
    field(reply, name).and_then(JsonPart::string)
}

/// Returns a field of a worker's first line.
pub(crate) fn field_of_first<'l>(line: &'l str, name: &str) -> Option<JsonPart<'l>> {
    JsonPart::with_words(line.as_bytes(), line.len()).ok().and_then(|line| field(line, name))
}
