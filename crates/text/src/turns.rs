//! Finds what a chat template writes after an assistant's turn. Sampled tokens are never tokenized again, so it is
//! needed alone: the conversation is rendered with a mark as the turn's words, and the text after the mark is taken.

use plimsoll_base::{Error, Result};

/// Returns what follows a turn's words. `is_in_messages` tells if a mark occurs in a message; `render` renders them
/// with the mark as the turn's words; `end` is the text of the token that ended the turn, which is not written twice.
///
/// Errors: those of `render`; `chat-template-invalid` where the template leaves the turn out.
pub fn written_after(
    is_in_messages: impl Fn(&str) -> bool,
    render: impl FnOnce(&str) -> Result<String>,
    end: Option<&str>,
) -> Result<String> {
    let mark = mark(is_in_messages);
    let rendered = render(&mark)?;
    let Some((_, after)) = rendered.split_once(&mark) else {
        return Err(Error::new(
            "chat-template-invalid",
            "chat template: an earlier turn of the assistant is left out",
        )
        .hint("set data.chat_template to one that writes every turn"));
    };
    Ok(end.and_then(|end| after.strip_prefix(end)).unwrap_or(after).to_string())
}

/// Returns the text up to the end of the last message's words. `render` renders the messages with a mark after those
/// words. A template that trims the words takes the mark's space away, and then theirs goes too.
///
/// Errors: those of `render`; `chat-template-invalid` where the template leaves the message out.
pub(crate) fn written_until(
    is_in_messages: impl Fn(&str) -> bool,
    render: impl FnOnce(&str) -> Result<String>,
) -> Result<String> {
    let mark = mark(is_in_messages);
    let spaced = format!("{mark} ");
    let rendered = render(&spaced)?;
    let Some(at) = rendered.rfind(&mark) else {
        return Err(Error::new("chat-template-invalid", "chat template: the last message is left out")
            .hint("set data.chat_template to one that writes every turn, or data.answered = \"drop-turn\""));
    };
    let (before, after) = rendered.split_at(at);
    let is_kept = after.starts_with(&spaced);
    Ok(if is_kept { before } else { before.trim_end() }.to_string())
}

/// Returns a text that is in no message.
fn mark(is_in_messages: impl Fn(&str) -> bool) -> String {
    (0..)
        .map(|n| format!("turn-{n}-is-here"))
        .find(|mark| !is_in_messages(mark))
        .expect("one of them is in no message")
}
