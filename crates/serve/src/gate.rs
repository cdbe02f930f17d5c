//! The joint between the server and what owns the responses to its requests. A server of its own has none: it draws a
//! request as soon as there are slots, and only the client gets the responses. A training run has episodes
//! (`episodes/`): their requests come by routes of their own, wait until they may be drawn, and are kept.

use crate::guard::Guard;
use crate::messages::Chat;
use crate::refusal::Reply;
use crate::state::{RequestOutput, SamplingParams, ServerState};
use axum::Router;
use plimsoll_base::Error;
use plimsoll_rollout::Finish;
use plimsoll_text::Message;
use std::sync::Arc;
use tokio::sync::Mutex;

/// Decides when a response is drawn, and keeps it.
pub trait Gate: Send + Sync {
    /// Decides whether the response is drawn in the next pass.
    fn admission(&self) -> Admission;

    /// Notes that the response begins to be drawn.
    fn begin(&self);

    /// Notes the tokens that the response has so far.
    fn advance(&self, num_tokens: usize);

    /// Keeps the response, which has come to its end.
    fn record(&self, drawn: Drawn);

    /// Gives the response up: its client has gone, or it failed.
    fn leave(&self);
}

/// Says what becomes of a queued request.
pub enum Admission {
    Now,
    Later,
    /// It was drawn before.
    Drawn(Drawn),
    Never(Box<Error>),
}

/// Holds the tokens that the engine drew for a response.
#[derive(Clone, Debug)]
pub struct Drawn {
    pub ids: Vec<u32>,
    /// Log-probability of each id.
    pub logprobs: Vec<f32>,
    pub finish: Finish,
    /// Text that the client got, with the calls in it.
    pub text: String,
}

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

/// Serves requests by routes of its own, in place of those that answer every client.
pub trait OwnedRoutes: Send + Sync {
    fn router(self: Arc<Self>) -> Router<Arc<ServerState>>;

    /// Checks the token of a request. None if the path asks for the server's token.
    ///
    /// Errors: `serve-token-wrong`.
    fn check_token(&self, path: &str, authorization: &str, run: &Guard) -> Option<Reply<()>>;

    /// Returns the hint of an answer to a path that there is not.
    fn hint(&self) -> &'static str;
}
