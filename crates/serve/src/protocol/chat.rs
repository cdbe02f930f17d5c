//! Answers `POST /v1/chat/completions`.

use crate::outbox::{End, Part};
use crate::owner::ResponseOwner;
use crate::protocol::fields::Fields;
use crate::protocol::logprobs::{self, Logprobs};
use crate::protocol::messages::Chat;
use crate::protocol::parsed::{Delivery, Parsed, cache_salt, delivery, params};
use crate::protocol::prompt::{ChatPrompt, hold_calls};
use crate::protocol::refusal::Reply;
use crate::protocol::reply::{Form, Head, Usage, reasons};
use crate::state::ServerState;
use plimsoll_text::ResponseReader;
use plimsoll_text::said::Said;
use serde_json::{Value, json};
use std::sync::Arc;

/// Reads a body. `owner`: what owns its responses, if not only the client gets them.
pub fn read(
    body: &[u8],
    state: &Arc<ServerState>,
    owner: Option<&dyn ResponseOwner>,
) -> Reply<Parsed<ChatForm>> {
    let mut fields = Fields::of_body(body, state.tree_bytes())?;
    let adapter = state.adapter_of(fields.take::<String>("model")?.as_deref())?;
    let mut params = params(&mut fields, state, adapter)?;
    cache_salt(&mut fields, &mut params)?;
    let delivery = delivery(&mut fields)?;
    let logprobs = logprobs::of_chat(&mut fields, &mut params, state)?;
    let prompt_top = logprobs::of_prompt(&mut fields, &mut params, (delivery.stream, state))?;
    let shows_thinking = fields.take("include_reasoning")?.unwrap_or(true);
    let splits_thinking = fields.take("separate_reasoning")?.unwrap_or(true);
    let chat = Chat::read(&mut fields, state)?;
    fields.finish()?;
    let begins_freely = hold_calls(&mut params, &chat, state)?;
    let ChatPrompt { ids, rows, images, heard, reader } = ChatPrompt::of(chat, state, owner)?;
    let reader = if splits_thinking && begins_freely { reader } else { reader.without_thinking() };
    let form = ChatForm {
        head: Head::new(state, "chatcmpl-", adapter),
        usage: Usage { prompt_tokens: rows.len(), ..Usage::default() },
        prompt_ids: delivery.return_ids.then_some(ids),
        delivery,
        logprobs,
        prompt_top,
        readers: vec![reader; params.choices],
        num_calls: vec![0; params.choices],
        shows_thinking,
    };
    // What has room: a chat goes on until the model ends it.
    Ok(Parsed { prompts: vec![rows], images, params, delivery, usual_tokens: usize::MAX, heard, form })
}

pub struct ChatForm {
    head: Head,
    usage: Usage,
    prompt_ids: Option<Vec<u32>>,
    delivery: Delivery,
    logprobs: Option<Logprobs>,
    /// Likeliest tokens of each token of the prompt, if the request asks for them.
    prompt_top: Option<usize>,
    /// What splits each choice into thinking, text and calls.
    readers: Vec<ResponseReader>,
    num_calls: Vec<usize>,
    /// True if thinking is part of the answer.
    shows_thinking: bool,
}

/// Holds the new text and the new calls of a choice.
#[derive(Default)]
struct New {
    content: String,
    /// What the model thought.
    thought: String,
    /// Calls in the form of `tool_calls`.
    calls: Vec<Value>,
}

impl ChatForm {
    /// Separates the text of a part from the calls and the thinking in it.
    fn new_of(&mut self, index: usize, part: &Part) -> New {
        let reader = &mut self.readers[index];
        let mut said = reader.push(&part.text);
        if part.end.is_some() {
            said.extend(reader.finish());
        }
        let mut new = New::default();
        for one in said {
            match one {
                Said::Text(text) => new.content.push_str(&text),
                Said::Thought(text) if self.shows_thinking => new.thought.push_str(&text),
                Said::Thought(_) => {}
                Said::Call { name, arguments } => {
                    let number = self.num_calls[index];
                    self.num_calls[index] += 1;
                    let id =
                        format!("call_{}_{index}_{number}", self.head.id.trim_start_matches("chatcmpl-"));
                    new.calls.push(json!({
                        "index": number, "id": id, "type": "function",
                        "function": { "name": name, "arguments": arguments },
                    }));
                }
            }
        }
        new
    }

    fn finish_reason(&self, index: usize, end: &End) -> (&'static str, Value) {
        match (end, self.num_calls[index]) {
            (End::Eos | End::Token(_) | End::String(_), 1..) => ("tool_calls", Value::Null),
            _ => reasons(end),
        }
    }

    fn logprobs_of(&self, part: &Part) -> Value {
        let tokenizer = &self.head.state.texts.tokenizer;
        self.logprobs.map_or(Value::Null, |wanted| wanted.chat(tokenizer, part))
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = self.head.object("chat.completion.chunk");
        chunk["choices"] = choices;
        if self.delivery.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}

impl Form for ChatForm {
    fn whole(&mut self, parts: Vec<Part>) -> Value {
        let mut choices = Vec::with_capacity(parts.len());
        let scored = self.prompt_top.zip(parts.first());
        let scored =
            scored.map(|(top, part)| logprobs::prompt(&self.head.state.texts.tokenizer, &part.prompt, top));
        for (index, part) in parts.into_iter().enumerate() {
            self.usage.add(&part);
            let New { content, thought, calls } = self.new_of(index, &part);
            let end = part.end.as_ref().expect("every response has ended");
            let (finish_reason, stop_reason) = self.finish_reason(index, end);
            let has_content = !content.is_empty() || calls.is_empty();
            let content = if has_content { json!(content) } else { Value::Null };
            let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
            if !thought.is_empty() {
                // vLLM's name and that of earlier versions, which other clients read.
                message["reasoning"] = json!(thought);
                message["reasoning_content"] = json!(thought);
            }
            if !calls.is_empty() {
                message["tool_calls"] = calls
                    .into_iter()
                    .map(|mut call| {
                        call.as_object_mut().map(|call| call.shift_remove("index"));
                        call
                    })
                    .collect();
            }
            let mut choice = json!({
                "index": index, "message": message, "logprobs": self.logprobs_of(&part),
                "finish_reason": finish_reason, "stop_reason": stop_reason,
            });
            if self.delivery.return_ids {
                choice["token_ids"] = json!(part.ids);
            }
            choices.push(choice);
        }
        let mut answer = self.head.object("chat.completion");
        answer["choices"] = Value::from(choices);
        answer["usage"] = self.usage.json();
        if let Some(ids) = self.prompt_ids.take() {
            answer["prompt_token_ids"] = json!(ids);
        }
        if let Some(scored) = scored {
            answer["prompt_logprobs"] = scored;
        }
        answer
    }

    fn begin(&mut self) -> Vec<Value> {
        let first = |index: usize| {
            let delta = json!({ "role": "assistant", "content": "" });
            let choice = json!({ "index": index, "delta": delta, "logprobs": null, "finish_reason": null });
            self.chunk(json!([choice]))
        };
        let mut chunks: Vec<Value> = (0..self.num_calls.len()).map(first).collect();
        if let Some(ids) = self.prompt_ids.take() {
            chunks[0]["prompt_token_ids"] = json!(ids);
        }
        chunks
    }

    fn part(&mut self, index: usize, part: Part) -> Vec<Value> {
        self.usage.add(&part);
        let New { content, thought, calls } = self.new_of(index, &part);
        let mut chunks = Vec::new();
        let has_tokens = (self.logprobs.is_some() || self.delivery.return_ids) && !part.ids.is_empty();
        if !content.is_empty() || !thought.is_empty() || !calls.is_empty() || has_tokens {
            let mut delta = json!({});
            if !content.is_empty() || (calls.is_empty() && thought.is_empty()) {
                delta["content"] = json!(content);
            }
            if !thought.is_empty() {
                delta["reasoning"] = json!(thought);
                delta["reasoning_content"] = json!(thought);
            }
            if !calls.is_empty() {
                delta["tool_calls"] = Value::from(calls);
            }
            let mut choice = json!({
                "index": index, "delta": delta, "logprobs": self.logprobs_of(&part), "finish_reason": null,
            });
            if self.delivery.return_ids {
                choice["token_ids"] = json!(part.ids);
            }
            chunks.push(self.chunk(json!([choice])));
        }
        if let Some(end) = &part.end {
            let (finish_reason, stop_reason) = self.finish_reason(index, end);
            chunks.push(self.chunk(json!([{
                "index": index, "delta": {}, "logprobs": null, "finish_reason": finish_reason,
                "stop_reason": stop_reason,
            }])));
        }
        chunks
    }

    fn end(&mut self) -> Vec<Value> {
        self.usage.event(self.delivery, self.chunk(json!([])))
    }
}

#[cfg(test)]
#[path = "chat_tests.rs"]
mod tests;
