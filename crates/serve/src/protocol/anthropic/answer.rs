//! Writes a message of Anthropic's protocol: thinking, text and calls as content blocks, whole or as events. The whole
//! message is what its events add up to.

use crate::outbox::{End, Part};
use crate::protocol::refusal::Refusal;
use crate::protocol::reply::{EventStyle, Form, Head, Usage};
use plimsoll_text::ResponseReader;
use plimsoll_text::said::Said;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// How much of its thinking an answer has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shown {
    #[default]
    Words,
    /// A block without its words.
    Signature,
    Nothing,
}

pub struct MessageForm {
    head: Head,
    usage: Usage,
    reader: ResponseReader,
    shown: Shown,
    /// True if the response has less room than the request allows.
    is_shortened: bool,
    block: Block,
    /// Blocks that were begun.
    num_blocks: usize,
    num_calls: usize,
    /// White space that belongs to the next text, if such comes.
    gap: String,
    end: Option<End>,
}

/// The block that is being written.
enum Block {
    None,
    Text,
    /// Thinking, with the digest of its words.
    Thinking(Sha256),
}

impl MessageForm {
    pub fn new(
        head: Head,
        usage: Usage,
        reader: ResponseReader,
        shown: Shown,
        is_shortened: bool,
    ) -> MessageForm {
        MessageForm {
            head,
            usage,
            reader,
            shown,
            is_shortened,
            block: Block::None,
            num_blocks: 0,
            num_calls: 0,
            gap: String::new(),
            end: None,
        }
    }

    fn message(&self) -> Value {
        json!({
            "id": self.head.id, "type": "message", "role": "assistant", "model": self.head.model(),
            "content": [], "stop_reason": null, "stop_sequence": null, "usage": self.usage(),
        })
    }

    fn usage(&self) -> Value {
        json!({
            "input_tokens": self.usage.prompt_tokens - self.usage.cached_tokens, "output_tokens": self.usage.drawn_tokens,
            "cache_creation_input_tokens": 0, "cache_read_input_tokens": self.usage.cached_tokens,
        })
    }

    /// Returns `stop_reason` and `stop_sequence`.
    fn reason(&self) -> (&'static str, Value) {
        match &self.end {
            Some(End::Length) if self.is_shortened => ("model_context_window_exceeded", Value::Null),
            Some(End::Length) => ("max_tokens", Value::Null),
            _ if self.num_calls > 0 => ("tool_use", Value::Null),
            Some(End::String(text)) => ("stop_sequence", json!(text)),
            _ => ("end_turn", Value::Null),
        }
    }

    fn begin_block(&mut self, block: Value) -> Value {
        self.num_blocks += 1;
        json!({ "type": "content_block_start", "index": self.num_blocks - 1, "content_block": block })
    }

    fn delta(&self, delta: Value) -> Value {
        json!({ "type": "content_block_delta", "index": self.num_blocks - 1, "delta": delta })
    }

    fn end_block(&mut self, events: &mut Vec<Value>) {
        match std::mem::replace(&mut self.block, Block::None) {
            Block::None => return,
            Block::Text => {}
            Block::Thinking(digest) => {
                let signature: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
                events.push(self.delta(json!({ "type": "signature_delta", "signature": signature })));
            }
        }
        events.push(json!({ "type": "content_block_stop", "index": self.num_blocks - 1 }));
    }

    fn say(&mut self, said: Said, events: &mut Vec<Value>) {
        match said {
            Said::Thought(_) if self.shown == Shown::Nothing => {}
            Said::Thought(text) => self.think(&text, events),
            Said::Text(text) => {
                if !matches!(self.block, Block::Text) {
                    self.gap.push_str(&text);
                    if self.gap.trim().is_empty() {
                        return;
                    }
                    self.end_block(events);
                    events.push(self.begin_block(json!({ "type": "text", "text": "" })));
                    self.block = Block::Text;
                    let text = std::mem::take(&mut self.gap);
                    events.push(self.delta(json!({ "type": "text_delta", "text": text })));
                    return;
                }
                events.push(self.delta(json!({ "type": "text_delta", "text": text })));
            }
            Said::Call { name, arguments } => {
                self.end_block(events);
                self.gap.clear();
                let id = self.head.id.trim_start_matches("msg_");
                let id = format!("toolu_{id}_{}", self.num_calls);
                self.num_calls += 1;
                let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                events.push(self.begin_block(block));
                events.push(self.delta(json!({ "type": "input_json_delta", "partial_json": arguments })));
                events.push(json!({ "type": "content_block_stop", "index": self.num_blocks - 1 }));
            }
        }
    }

    fn think(&mut self, text: &str, events: &mut Vec<Value>) {
        if !matches!(self.block, Block::Thinking(_)) {
            self.end_block(events);
            events.push(self.begin_block(json!({ "type": "thinking", "thinking": "", "signature": "" })));
            self.block = Block::Thinking(Sha256::new());
        }
        if let Block::Thinking(digest) = &mut self.block {
            digest.update(text.as_bytes());
        }
        if self.shown == Shown::Words {
            events.push(self.delta(json!({ "type": "thinking_delta", "thinking": text })));
        }
    }
}

impl Form for MessageForm {
    const EVENTS: EventStyle = EventStyle::Named;

    fn whole(&mut self, parts: Vec<Part>) -> Value {
        let events: Vec<Value> = parts.into_iter().flat_map(|part| self.part(0, part)).collect();
        let mut blocks: Vec<Value> = Vec::new();
        for mut event in events {
            if event["type"] == "content_block_start" {
                blocks.push(event["content_block"].take());
            } else if let Some(block) = blocks.last_mut() {
                add(block, &mut event["delta"]);
            }
        }
        let mut message = self.message();
        message["content"] = Value::from(blocks);
        let (reason, sequence) = self.reason();
        (message["stop_reason"], message["stop_sequence"]) = (json!(reason), sequence);
        message
    }

    fn begin(&mut self) -> Vec<Value> {
        vec![json!({ "type": "message_start", "message": self.message() }), json!({ "type": "ping" })]
    }

    fn part(&mut self, _: usize, part: Part) -> Vec<Value> {
        self.usage.add(&part);
        let mut said = self.reader.push(&part.text);
        if part.end.is_some() {
            said.extend(self.reader.finish());
        }
        let mut events = Vec::new();
        said.into_iter().for_each(|one| self.say(one, &mut events));
        if part.end.is_some() {
            self.end = part.end;
            self.end_block(&mut events);
        }
        events
    }

    fn end(&mut self) -> Vec<Value> {
        let (reason, sequence) = self.reason();
        let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
        vec![
            json!({ "type": "message_delta", "delta": delta, "usage": self.usage() }),
            json!({ "type": "message_stop" }),
        ]
    }

    fn failed(&mut self, refusal: &Refusal) -> Value {
        super::refused::body(refusal)
    }
}

/// Adds a part of a block to it.
fn add(block: &mut Value, delta: &mut Value) {
    let field = match delta["type"].as_str() {
        Some("text_delta") => "text",
        Some("thinking_delta") => "thinking",
        Some("signature_delta") => "signature",
        Some("input_json_delta") => {
            let arguments = delta["partial_json"].as_str().unwrap_or_default();
            block["input"] = serde_json::from_str(arguments).unwrap_or_default();
            return;
        }
        _ => return,
    };
    if let (Value::String(whole), Some(text)) = (&mut block[field], delta[field].as_str()) {
        whole.push_str(text);
    }
}
