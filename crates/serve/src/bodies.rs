//! Reads bodies as a server does, without an engine: for programs that try bodies of all kinds.

use crate::guard::Guard;
use crate::limits::Limits;
use crate::protocol::refusal::Reply;
use crate::protocol::{anthropic, chat, completions, responses, tokens};
use crate::state::{QueuedRequest, ServerState, Settings, Texts};
use plimsoll_base::Result;
use plimsoll_device::Sampling;
use plimsoll_text::calls_xml::Tool;
use plimsoll_text::said::joined;
use plimsoll_text::{ChatTemplate, ResponseReader, Tokenizer};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// Rows of the embedding that ids are checked against.
const VOCAB: u32 = 260;
const LIMITS: Limits =
    Limits { slots: 4, queue: 4, context: 4096, new_tokens: 1024, listed: 20, biases: 300 };

pub struct Bodies {
    state: Arc<ServerState>,
    _inbox: Receiver<QueuedRequest>,
}

impl Bodies {
    pub fn new(tokenizer: Tokenizer, template: ChatTemplate) -> Bodies {
        let (send, inbox) = std::sync::mpsc::channel();
        let eos = vec![VOCAB - 1];
        let texts = Texts {
            tokenizer: tokenizer.into(),
            template: Some(template.into()),
            system_prompt: None,
            begins: true,
            eos,
            vocab: VOCAB,
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
        Bodies { state: Arc::new(ServerState::new(texts, settings, LIMITS, send, None)), _inbox: inbox }
    }

    /// Returns the largest body, and the bytes that are planned for reading one.
    pub fn limits(&self) -> (usize, usize) {
        (LIMITS.body_bytes(), LIMITS.reading_bytes())
    }

    /// Reads a body as a request of each kind, and as a response in which calls may be. Returns the tokens of the
    /// prompts under the first kind that takes it.
    ///
    /// Errors: those of the last kind if none takes it.
    pub fn read(&self, body: &[u8]) -> Result<usize> {
        self.respond(&String::from_utf8_lossy(body));
        let count = |prompts: Vec<Vec<u32>>| prompts.iter().map(Vec::len).sum();
        let kinds: [Reply<usize>; 5] = [
            anthropic::read(body, &self.state, None).map(|asked| count(asked.prompts)),
            responses::read(body, &self.state, None).map(|asked| count(asked.prompts)),
            chat::read(body, &self.state, None).map(|asked| count(asked.prompts)),
            completions::read(body, &self.state, None).map(|asked| count(asked.prompts)),
            tokens::read(body, &self.state, None).map(|asked| count(asked.prompts)),
        ];
        let last = kinds.into_iter().reduce(Reply::or).expect("there are kinds");
        last.map_err(|refusal| refusal.error)
    }

    /// Reads a body as the request that it is: of token ids, texts to complete or a chat. Returns the prompts' tokens.
    ///
    /// Errors: those of such a request.
    pub fn read_as_written(&self, body: &[u8]) -> Result<usize> {
        let begins = |field: &str| body.starts_with(format!("{{\"{field}\"").as_bytes());
        let count = |prompts: Vec<Vec<u32>>| prompts.iter().map(Vec::len).sum();
        let read: Reply<usize> = if begins("prompt") {
            completions::read(body, &self.state, None).map(|asked| count(asked.prompts))
        } else if begins("token_ids") {
            tokens::read(body, &self.state, None).map(|asked| count(asked.prompts))
        } else {
            chat::read(body, &self.state, None).map(|asked| count(asked.prompts))
        };
        read.map_err(|refusal| refusal.error)
    }

    /// Asserts that thinking and calls of both forms are found alike at once and character by character.
    fn respond(&self, text: &str) {
        let tools = Tool::all(&[serde_json::json!({ "function": { "name": "f" } })]);
        for (template, is_thinking) in [(self.state.texts.template.as_deref(), true), (None, false)] {
            let whole = ResponseReader::new(template, tools.clone(), is_thinking);
            let (mut buffer, mut pieces) = ([0; 4], whole.clone());
            let mut one_by_one = Vec::new();
            text.chars().for_each(|c| one_by_one.extend(pieces.push(c.encode_utf8(&mut buffer))));
            one_by_one.extend(pieces.finish());
            assert_eq!(joined(whole.read(text)), joined(one_by_one), "in pieces");
        }
    }
}
