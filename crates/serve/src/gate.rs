//! The joint between the queue and what gets its responses besides a client. A server of its own has no gates: it draws
//! a request as soon as there are slots. A training run has episodes (`episodes/`): their requests wait until they may
//! be drawn, and their responses are kept.

use crate::guard::Guard;
use crate::protocol::refusal::Reply;
use plimsoll_base::Error;
use plimsoll_rollout::Finish;

/// Decides when a response is drawn, and keeps it.
pub trait Gate: Send + Sync {
    /// Decides whether the response is drawn in the next pass.
    fn admission(&self) -> Admission;

    /// Notes that the response begins to be drawn.
    fn begin(&self);

    /// Notes the tokens that the response has so far.
    fn advance(&self, num_tokens: usize);

    /// Keeps the response, which has come to its end.
    fn record(&self, drawn: SampledResponse);

    /// Gives the response up: its client has gone, or it failed.
    fn leave(&self);
}

/// Decides about a queued request.
pub enum Admission {
    Now,
    Later,
    /// It was drawn before.
    Drawn(SampledResponse),
    Never(Box<Error>),
}

/// Holds the tokens that the engine drew for a response.
#[derive(Clone, Debug)]
pub struct SampledResponse {
    pub ids: Vec<u32>,
    /// Log-probability of each id.
    pub logprobs: Vec<f32>,
    pub finish: Finish,
    /// Text that the client got, with the calls in it.
    pub text: String,
}

/// Routes of its own, in place of those that answer every client.
pub trait OwnedRoutes: Send + Sync {
    /// Checks the token of a request. None if the path asks for the server's token.
    ///
    /// Errors: `serve-token-wrong`.
    fn check_token(&self, path: &str, authorization: &str, run: &Guard) -> Option<Reply<()>>;

    /// Returns the hint of an answer to a path that there is not.
    fn hint(&self) -> &'static str;
}
