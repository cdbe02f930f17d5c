//! A server's state without an engine: a test takes what the engine would get, and says what it drew.

use crate::guard::Guard;
use crate::limits::Limits;
use crate::outbox::{End, Part};
use crate::state::{QueuedRequest, ServerState, Settings, Texts};
use plimsoll_device::Sampling;
use plimsoll_files::TokenizerFiles;
use plimsoll_text::{ChatTemplate, Tokenizer};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

pub const EOS: u32 = 257;
pub const LIMITS: Limits = Limits { slots: 4, queue: 3, context: 64, new_tokens: 16, listed: 0, biases: 300 };

pub fn state(template: &str) -> (Arc<ServerState>, Receiver<QueuedRequest>) {
    let (send, inbox) = channel();
    let files = TokenizerFiles { bytes: true, ..TokenizerFiles::default() };
    let texts = Texts {
        tokenizer: Tokenizer::from_files(&files, 260).expect("bytes need no file").into(),
        template: Some(ChatTemplate::new(template, &[]).expect("a template").into()),
        system_prompt: None,
        begins: true,
        eos: vec![EOS],
        vocab: 260,
        images: None,
    };
    let settings = Settings {
        names: vec!["m".into()],
        adapters: Vec::new(),
        sampling: Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 },
        stop: Vec::new(),
        keep_stop: false,
        queue: LIMITS.queue,
        grace: Duration::ZERO,
        guard: Guard { token: None, hosts: Vec::new() },
        grammars: 4,
    };
    (Arc::new(ServerState::new(texts, settings, LIMITS, send, None)), inbox)
}

/// A part of a response whose tokens are the bytes of its text.
pub fn part(text: &str, end: Option<End>) -> Part {
    let ids: Vec<u32> = text.bytes().map(u32::from).collect();
    Part {
        text: text.into(),
        logprobs: ids.iter().map(|&id| -(id as f32)).collect(),
        ids,
        end,
        ..Part::default()
    }
}
