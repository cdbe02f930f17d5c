//! What a client asks of the engine in its live form.

use plimsoll_device::Sampling;
use std::sync::Arc;

/// Maximum tokens that may end one request.
pub const ENDS_MAX: usize = 128;

/// Maximum tokens of one request to whose logits something is added, as in OpenAI's protocol.
pub const BIASES_MAX: usize = 300;

/// An image of a prompt: `rows` times `columns` vectors of the table from `first` on, as rows of the prompt name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskImage {
    pub first: u32,
    pub rows: u32,
    pub columns: u32,
    /// A hash of what is seen in it.
    pub content: [u8; 32],
}

/// Says which requests share the keys of prompts that begin alike: those with the same scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixScope {
    /// A hash of the weights that compute the keys, in addition to the engine's own: of an adapter's content.
    pub weights: [u8; 32],
    /// Who shares them.
    pub salt: [u8; 32],
}

/// Tokens whose log-probabilities are computed in place of each token of a prompt after its first.
#[derive(Clone, Debug)]
pub struct NamedTokens {
    /// K, from 1 to `LISTED`.
    pub per_row: usize,
    /// [P - 1, K] for a prompt of P tokens; each below the vocabulary.
    pub ids: Vec<u32>,
}

/// A request: one prompt and its responses.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'r> {
    /// Token ids, at least one; with `max_new_tokens` within `EngineLimits::context`.
    pub prompt: &'r [u32],
    /// The images of the prompt, by their first vectors, ascending. Their vectors stay as they are until all responses
    /// have ended.
    pub images: &'r [AskImage],
    /// One per response: the number whose random numbers it draws with.
    pub sample_ids: &'r [u64],
    /// From 1 to `EngineLimits::new_tokens`.
    pub max_new_tokens: usize,
    pub sampling: Sampling,
    /// Tokens that end a response, at most `ENDS_MAX`.
    pub ends: &'r [u32],
    /// True if the responses have masks: the engine then asks the listener.
    pub masked: bool,
    /// Tokens, ascending, and what is added to their logits before the temperature; at most `OwnLogits::biases`.
    pub biases: &'r [(u32, f32)],
    /// The slot of its adapter, of a model with several; none for the model alone.
    pub adapter: Option<u32>,
    /// With whom it shares the keys of its prompt, if the engine keeps such.
    pub prefix: PrefixScope,
    /// True if the log-probabilities of its prompt's tokens after the first are computed, at temperature 1. All rows of
    /// the prompt are then computed.
    pub scores_prompt: bool,
    /// Further tokens in place of each token of a prompt that is scored. An engine that lists none ignores them.
    pub named: Option<&'r Arc<NamedTokens>>,
    /// True if the most likely tokens are listed wherever a log-probability is computed. An engine that lists none
    /// ignores it.
    pub lists: bool,
}
