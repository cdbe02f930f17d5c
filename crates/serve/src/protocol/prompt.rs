//! Turns a conversation into the tokens of a prompt, for every protocol that has conversations.

use crate::grammars::{ToolChoice, tool_choice};
use crate::images::{GivenImage, numbered};
use crate::owner::{Heard, ResponseOwner};
use crate::protocol::messages::Chat;
use crate::protocol::parsed::hold;
use crate::protocol::refusal::{Refusal, Reply};
use crate::state::{SamplingParams, ServerState};
use plimsoll_text::ResponseReader;

/// A conversation as the engine takes it.
pub struct ChatPrompt {
    pub ids: Vec<u32>,
    /// The tokens, and numbers of vectors where images are.
    pub rows: Vec<u32>,
    pub images: Vec<GivenImage>,
    pub heard: Heard,
    /// Splits a response into thinking, text and calls.
    pub reader: ResponseReader,
}

impl ChatPrompt {
    /// Renders and tokenizes a conversation. `owner`: what owns its responses, if not only the client gets them.
    ///
    /// Errors: those of the template and the tokenizer; `image-count`, `serve-too-long`, `serve-too-many-images`.
    pub fn of(chat: Chat, state: &ServerState, owner: Option<&dyn ResponseOwner>) -> Reply<ChatPrompt> {
        let (ids, heard) = match owner {
            None => (state.encode(&chat.render(state)?)?, Heard::default()),
            Some(owner) => owner.prompt(&chat, state)?,
        };
        let functions = chat.functions();
        let images = chat.images;
        let (ids, rows) = match &state.texts.images {
            Some(served) => {
                let (vocab, context) = (state.texts.vocab, state.limits.context);
                let with_images = numbered(ids, &images, served, (vocab, context));
                with_images.map_err(|error| Refusal { error, param: Some("messages".into()) })?
            }
            None => (ids.clone(), ids),
        };
        let reader = state.reader(functions, &ids);
        Ok(ChatPrompt { ids, rows, images, heard, reader })
    }
}

/// Holds the responses to calls, if the request says so. Returns true if they begin as the model likes, with thinking
/// too: what is held from its first token has none.
///
/// Errors: those of `tool_choice`; `serve-bad-request` where another field holds them to a form.
pub fn hold_calls(params: &mut SamplingParams, chat: &Chat, state: &ServerState) -> Reply<bool> {
    let (param, has_form) = ("tool_choice", params.grammar.is_some());
    if has_form && !chat.tools.is_empty() {
        let message =
            "a response that is held to a form makes no call: send tool_choice = \"none\", or no form";
        return Err(Refusal::bad(param, message));
    }
    if let Some(form) = tool_choice(&chat.choice, &chat.tools, chat.several, state)? {
        params.grammar = Some(hold(&form, param, &params.ends, state)?);
    }
    // Of strict tools the calls alone are held.
    Ok(params.grammar.is_none() || (!has_form && chat.choice == ToolChoice::Auto))
}
