//! What a server makes of a body, without an engine: for programs that try bodies of all kinds.

use crate::guard::Guard;
use crate::house::{House, Settings, Texts, Ticket};
use crate::limits::Limits;
use crate::refusal::Reply;
use crate::{chat, completions, tokens};
use plimsoll_base::Result;
use plimsoll_device::Sampling;
use plimsoll_text::calls::{Calls, joined};
use plimsoll_text::calls_xml::Tool;
use plimsoll_text::{ChatTemplate, Tokenizer};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// Rows of the embedding that ids are checked against.
const VOCAB: u32 = 260;
const LIMITS: Limits = Limits { slots: 4, queue: 4, context: 4096, new_tokens: 1024 };

/// A server's readers.
pub struct Bodies {
    house: Arc<House>,
    _inbox: Receiver<Ticket>,
}

impl Bodies {
    pub fn new(tokenizer: Tokenizer, template: ChatTemplate) -> Bodies {
        let (send, inbox) = std::sync::mpsc::channel();
        let eos = vec![VOCAB - 1];
        let texts = Texts {
            tokenizer: tokenizer.into(),
            template: Some(template.into()),
            system_prompt: None,
            eos,
            vocab: VOCAB,
        };
        let settings = Settings {
            names: vec!["m".into()],
            sampling: Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 },
            stop: Vec::new(),
            keep_stop: false,
            queue: LIMITS.queue,
            grace: Duration::ZERO,
            guard: Guard { token: None, hosts: Vec::new() },
        };
        Bodies { house: Arc::new(House::new(texts, settings, LIMITS, send, None)), _inbox: inbox }
    }

    /// Reads a body as a request of each kind, and as a response in which calls may be. Returns the prompts' tokens of the
    /// first kind that takes it.
    ///
    /// Errors: why the last kind does not.
    pub fn read(&self, body: &[u8]) -> Result<usize> {
        self.respond(&String::from_utf8_lossy(body));
        let count = |prompts: Vec<Vec<u32>>| prompts.iter().map(Vec::len).sum();
        let kinds: [Reply<usize>; 3] = [
            chat::read(body, &self.house, None).map(|asked| count(asked.prompts)),
            completions::read(body, &self.house, None).map(|asked| count(asked.prompts)),
            tokens::read(body, &self.house, None).map(|asked| count(asked.prompts)),
        ];
        let last = kinds.into_iter().reduce(Reply::or).expect("there are kinds");
        last.map_err(|refusal| refusal.error)
    }

    /// Looks for calls in both forms, at once and character by character: what is found is the same.
    fn respond(&self, text: &str) {
        for template in [self.house.texts.template.as_deref(), None] {
            let calls =
                || Calls::new(template, Tool::all(&[serde_json::json!({ "function": { "name": "f" } })]));
            let mut buffer = [0; 4];
            let (mut whole, mut pieces) = (calls(), calls());
            let mut at_once = whole.push(text);
            at_once.extend(whole.finish());
            let mut one_by_one = Vec::new();
            text.chars().for_each(|c| one_by_one.extend(pieces.push(c.encode_utf8(&mut buffer))));
            one_by_one.extend(pieces.finish());
            assert_eq!(joined(at_once), joined(one_by_one), "in pieces");
        }
    }
}
