//! Bounds what the server holds, in numbers and bytes that are known before it listens.

use crate::grammars::grammar_bytes;
use crate::images::ServedImages;
use plimsoll_arch::ModelSpec;
use plimsoll_base::{Bytes, Error};
use plimsoll_rollout::{BIASES_MAX, EngineLimits, LISTED, Live, OwnLogits};
use std::time::Duration;

/// Responses of one prompt.
pub const CHOICES_MAX: usize = 128;
/// Connections in addition to those of responses: for `/health`, `/metrics`, agents that wait and for being refused.
const SPARE_CONNECTIONS: usize = 32;
/// Buffers of a connection, for reading and for writing each.
pub const BUFFER_BYTES: usize = 16 << 10;
/// A socket's buffers, which the kernel doubles.
pub const SEND_BYTES: usize = 16 << 10;
pub const RECEIVE_BYTES: usize = 64 << 10;
const TASK_BYTES: usize = 8 << 10;
/// Stacks of a thread, its own and the kernel's: the thread of connections, and those that read bodies.
const THREAD_BYTES: usize = 512 << 10;
/// A body holds the longest prompt as token ids, or as text with the tools that it may call.
const BODY_BYTES_LEAST: usize = 256 << 10;
const BODY_BYTES_PER_TOKEN: usize = 32;
/// Bodies that are parsed, rendered and tokenized at one time.
pub const BODIES_MAX: usize = 4;
/// Bodies of the largest size that are held while they come and while they wait for a reader.
const BODIES_HELD: usize = 16;
/// Bytes per byte of a body while it is read: values, text, tokens.
const BODY_COPIES: usize = 24;
/// Bytes per byte of the longest body that its values take as trees while they are built. A template reads up to three
/// copies, which take a third of that each.
const TREE_COPIES: usize = 12;
/// Bytes of a prompt's text: natural text has 4 to 5 for a token.
const TEXT_BYTES_LEAST: usize = 16 << 10;
pub const TEXT_BYTES_PER_TOKEN: usize = 16;
/// Bytes per byte of a text that the tokenizer's library takes while it encodes.
const ENCODING_BYTES_PER_BYTE: usize = 256;
/// Words that the tokenizer's library keeps for each thread.
const TOKENIZER_BYTES_PER_THREAD: usize = 4 << 20;
/// Bytes of a request between arrival and answer, without its tokens.
const REQUEST_BYTES: usize = 8 << 10;
/// Bytes of a drawn token: its id, its log-probability and its text.
const DRAWN_BYTES: usize = 24;
/// Bytes of a token as JSON, with its log-probability, its bytes, and both again among the most likely.
const WRITTEN_BYTES: usize = 320;

/// Bytes of a listed token from the engine to its client: its id and log-probability, both as values of JSON with its
/// text and bytes, and those written.
const LISTED_BYTES: usize = 1200;

/// Time within which a request's head must come, and after which an idle connection is closed.
pub const HEAD_WAIT: Duration = Duration::from_secs(20);
/// Time within which a body must come.
pub const BODY_WAIT: Duration = Duration::from_secs(30);
/// Time after which a client that reads nothing has gone.
pub const WRITE_WAIT: Duration = Duration::from_secs(60);
/// Time that the last client has to read its response.
pub const FAREWELL: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Responses that the engine works on at one time.
    pub slots: usize,
    /// Responses that wait for a slot.
    pub queue: usize,
    /// Tokens of a prompt and its response together.
    pub context: usize,
    /// Tokens of a response.
    pub new_tokens: usize,
    /// Likeliest tokens that the engine lists of a row; 0 if it lists none.
    pub listed: usize,
    /// Tokens of a request to whose logits something is added; 0 where the engine has no room for it.
    pub biases: usize,
}

impl Limits {
    pub fn of(engine: &EngineLimits, queue: usize) -> Limits {
        Limits {
            slots: engine.samples,
            queue,
            context: engine.context(),
            new_tokens: engine.new_tokens,
            listed: engine.listed,
            biases: engine.own.biases,
        }
    }

    pub fn responses(&self) -> usize {
        self.slots + self.queue
    }

    /// Returns the most tokens that are listed for requests at one time: all of one that is as long as it may be.
    pub fn listed_entries(&self) -> usize {
        self.context * (self.listed + 1)
    }

    pub fn connections(&self) -> usize {
        self.responses() + SPARE_CONNECTIONS
    }

    pub fn body_bytes(&self) -> usize {
        BODY_BYTES_LEAST + self.context * BODY_BYTES_PER_TOKEN
    }

    /// Returns the most bytes of a body's values that become trees.
    pub fn tree_bytes(&self) -> usize {
        TREE_COPIES * self.body_bytes()
    }

    /// Returns the bytes that are planned for a body while it is read, without what comes before and after.
    pub fn reading_bytes(&self) -> usize {
        self.body_bytes() * BODY_COPIES
    }

    /// Returns the most bytes of text that are tokenized at one time, and so of a prompt.
    pub fn text_bytes(&self) -> usize {
        TEXT_BYTES_LEAST + self.context * TEXT_BYTES_PER_TOKEN
    }

    /// Returns the most bytes of bodies that are held at one time.
    pub fn arrivals_bytes(&self) -> usize {
        BODIES_HELD * self.body_bytes()
    }

    /// Returns the host bytes of everything between the socket and the engine.
    pub fn host_bytes(&self) -> Bytes {
        let sockets = 2 * (SEND_BYTES + RECEIVE_BYTES);
        let connections = self.connections() * (2 * BUFFER_BYTES + sockets + TASK_BYTES);
        let body = self.reading_bytes() + TOKENIZER_BYTES_PER_THREAD + THREAD_BYTES;
        let encoding = self.text_bytes() * ENCODING_BYTES_PER_BYTE;
        let bodies = self.arrivals_bytes() + BODIES_MAX * body + encoding + THREAD_BYTES;
        let drawn = self.new_tokens * (DRAWN_BYTES + WRITTEN_BYTES);
        let responses = self.responses() * (REQUEST_BYTES + 4 * self.context + drawn);
        let listed = self.listed_entries() * LISTED_BYTES;
        Bytes((connections + bodies + responses + listed) as u64)
    }

    /// Requires that a prompt and its response fit.
    ///
    /// Errors: `serve-too-long`.
    pub fn check_tokens(&self, prompt: usize, new: usize) -> Result<(), Error> {
        let Limits { context, new_tokens, .. } = *self;
        let message = if prompt >= context {
            format!("the prompt has {prompt} tokens, and {context} is the most with its response")
        } else if new > new_tokens {
            format!("{new} new tokens, and {new_tokens} is the most of a response")
        } else if prompt + new > context {
            format!(
                "{prompt} tokens of prompt and {new} new ones are {}, and {context} is the most",
                prompt + new
            )
        } else {
            return Ok(());
        };
        Err(Error::new("serve-too-long", message)
            .hint("ask for less, or start the server with larger --prompt-tokens and --max-new-tokens"))
    }
}

/// Returns the host bytes of a server next to its engine: `slots` responses at one time, `queue` waiting, and images
/// and grammars if it takes such.
pub fn host_bytes(
    [slots, queue]: [usize; 2],
    [prompt_tokens, new_tokens]: [usize; 2],
    spec: &ModelSpec,
    images: Option<&ServedImages>,
    grammars: usize,
) -> Bytes {
    let engine = EngineLimits {
        sequences: slots,
        rows: slots,
        samples: slots,
        prompt_tokens,
        new_tokens,
        ahead: true, // Which has the most rows.
        listed: LISTED,
        own: OwnLogits { masks: true, biases: BIASES_MAX },
        caches: spec.caches(prompt_tokens + new_tokens).iter().map(|of| (of.cache, 0)).collect(),
        drafts: None,
    };
    let of_images = images.map_or(0, |served| {
        (served.host_bytes(BODIES_MAX) + THREAD_BYTES) as u64 + Live::image_bytes(&engine)
    });
    let of_grammars = grammar_bytes(grammars, spec.vocab).0;
    Bytes(Limits::of(&engine, queue).host_bytes().0 + Live::host_bytes(&engine) + of_images + of_grammars)
}

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
