//! Who owns the responses to a request, and makes its prompt: the client alone, unless the request came by a route of
//! an episode.

use crate::protocol::messages::Chat;
use crate::protocol::refusal::Reply;
use crate::state::{RequestOutput, SamplingParams, ServerState};
use plimsoll_text::Message;
use std::sync::Arc;
use tokio::sync::Mutex;

/// Owns the responses to one request.
pub trait ResponseOwner: Send + Sync {
    /// Returns the lock that its requests hold one after the other while they are tokenized.
    fn turn(&self) -> Arc<Mutex<()>>;

    /// Returns the tokens of a conversation.
    ///
    /// Errors: those of the template and the tokenizer.
    fn prompt(&self, chat: &Chat, state: &ServerState) -> Reply<(Vec<u32>, Heard)>;

    /// Sends prompts to the engine, each response with a gate.
    ///
    /// Errors: those of the owner, if it does not take the request; `serve-queue-full`.
    fn submit(
        &self,
        prompts: Vec<Vec<u32>>,
        params: SamplingParams,
        streams: bool,
        heard: &Heard,
        state: &ServerState,
    ) -> Reply<RequestOutput>;
}

/// Holds what a chat's prompt was made from, for the next request of its owner.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// Digest of the conversation; none for a request that is no chat.
    pub key: Option<[u8; 32]>,
    /// The messages since the last answer.
    pub messages: Vec<Message>,
}
