//! Turns a conversation of an episode into tokens.
//!
//! Drawn tokens are never tokenized again. If a conversation continues after an answer of this episode, as it was
//! given, the prompt is that answer's tokens and the chat template's text after them. Without a template, messages
//! follow each other.

use super::session::Session;
use crate::gate::Gate;
use crate::owner::{Heard, ResponseOwner};
use crate::protocol::messages::Chat;
use crate::protocol::refusal::{Refusal, Reply};
use crate::state::{Prompt, RequestOutput, SamplingParams, ServerState};
use plimsoll_base::{Error, json_marked};
use plimsoll_rollout::Finish;
use plimsoll_text::said::Said;
use plimsoll_text::{Message, ResponseReader, written_after};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use tokio::sync::Mutex;

impl ResponseOwner for Session {
    fn turn(&self) -> Arc<Mutex<()>> {
        self.episodes.turn(&self.id)
    }

    fn prompt(&self, chat: &Chat, state: &ServerState) -> Reply<(Vec<u32>, Heard)> {
        let key = Some(chat.key(chat.messages.len()));
        let answers = (0..chat.messages.len()).rev().filter(|&at| chat.messages[at]["role"] == "assistant");
        for at in answers {
            let Some((tokens, last, finish)) = self.answered(chat, at, state) else { continue };
            let said = &chat.messages[at + 1..];
            let Ok(after) = after_answer(chat, at, last, finish, state) else {
                break;
            };
            let mut ids = tokens;
            ids.extend(state.encode_after(&ids, &after)?);
            return Ok((ids, Heard { key, messages: plain(said) }));
        }
        let ids = match state.texts.template {
            Some(_) => state.encode(&chat.render(state)?)?,
            None => state.encode_plain(&joined(&chat.messages), state.texts.begins)?,
        };
        Ok((ids, Heard { key, messages: plain(&chat.messages) }))
    }

    /// Sends the prompts of an episode's request to the engine; the episode keeps the responses.
    ///
    /// Errors: `agent-sampling`, `agent-limit`, `serve-too-long`, `agent-episode-over`; those of `permits`.
    fn submit(
        &self,
        prompts: Vec<Vec<u32>>,
        mut params: SamplingParams,
        streams: bool,
        heard: &Heard,
        state: &ServerState,
    ) -> Reply<RequestOutput> {
        self.check(&mut params, state)?;
        if prompts.iter().any(Vec::is_empty) {
            return Err(Refusal::bad("prompt", "the prompt has no token"));
        }
        let permit = state.permits(prompts.len() * params.choices, params.choices)?;
        let mut asks: Vec<Prompt> = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            match self.places(&prompt, params.choices, params.max_new_tokens, heard) {
                Ok(places) => asks.push(Prompt {
                    token_ids: prompt,
                    images: None,
                    sample_ids: places.iter().map(|place| place.sample_id).collect(),
                    max_new_tokens: places.iter().map(|place| place.max_new_tokens).min().unwrap_or(1),
                    gates: places.into_iter().map(|place| Arc::new(place) as Arc<dyn Gate>).collect(),
                }),
                Err(refusal) => {
                    asks.iter().flat_map(|ask| &ask.gates).for_each(|gate| gate.leave());
                    return Err(refusal);
                }
            }
        }
        state.send(asks, params, streams, permit)
    }
}

impl Session {
    /// Requires that a request samples as the run trains, and sets the run's sampling.
    ///
    /// Errors: `agent-sampling`.
    fn check(&self, params: &mut SamplingParams, state: &ServerState) -> Reply<()> {
        let (own, runs) = (params.sampling, state.settings.sampling);
        let pairs = [
            ("temperature", own.temperature, runs.temperature),
            ("top_p", own.top_p, runs.top_p),
            ("min_p", own.min_p, runs.min_p),
            ("top_k", own.top_k as f32, runs.top_k as f32),
        ];
        if let Some((name, asked, of_run)) = pairs.into_iter().find(|(_, asked, of_run)| asked != of_run) {
            let message = format!("{name} = {asked}, and the run samples with {of_run}");
            let error = Error::new("agent-sampling", message).hint(format!(
                "leave {name} out of the request, or set rollout.{name} = {asked} in the run file"
            ));
            return Err(Box::new(Refusal { error, param: Some(name.into()) }));
        }
        if params.seed.is_some() {
            let error = Error::new("agent-sampling", "seed: the random numbers of an episode are the run's")
                .hint("leave seed out of the request");
            return Err(Box::new(Refusal { error, param: Some("seed".into()) }));
        }
        params.sampling = self.episodes.sampling();
        Ok(())
    }

    /// Returns the tokens to the end of the answer that message `at` repeats, its last token and how it ended.
    fn answered(
        &self,
        chat: &Chat,
        at: usize,
        state: &ServerState,
    ) -> Option<(Vec<u32>, Option<u32>, Finish)> {
        let key = chat.key(at);
        self.episodes.with_tree(&self.id, |tree| {
            let is_it = |number: &usize| {
                let response = &tree.responses[*number];
                let Some(drawn) = response.drawn.as_ref().filter(|_| response.key == Some(key)) else {
                    return false;
                };
                let mut prompt = tree.tokens(*number);
                prompt.truncate(prompt.len() - drawn.ids.len());
                let reader = state.reader(chat.functions(), &prompt);
                is_answer(&drawn.text, &chat.messages[at], reader)
            };
            let number = (0..tree.responses.len()).find(is_it)?;
            let drawn = tree.responses[number].drawn.as_ref().expect("an answer was drawn");
            Some((tree.tokens(number), drawn.ids.last().copied(), drawn.finish))
        })?
    }
}

impl Chat {
    /// Returns the digest of the first `count` messages, with the tools and the variables of the template.
    fn key(&self, count: usize) -> [u8; 32] {
        let whole = Value::from(vec![
            Value::from(self.messages[..count].to_vec()),
            Value::from(self.tools.clone()),
            Value::from(self.variables.clone()),
        ]);
        Sha256::digest(whole.to_string().as_bytes()).into()
    }
}

/// Returns true if a message of the assistant repeats an answer, apart from white space around it. A client may have
/// the thinking in the text, or have left it out.
fn is_answer(answer: &str, message: &Value, reader: ResponseReader) -> bool {
    let repeats = |text: &str| message["content"].as_str().unwrap_or_default().trim() == text.trim();
    let (mut text, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
    let texts = reader.clone().without_thinking().read(answer).into_iter();
    let has_all: String =
        texts.filter_map(|one| if let Said::Text(words) = one { Some(words) } else { None }).collect();
    for one in reader.read(answer) {
        match one {
            Said::Text(words) => text.push_str(&words),
            Said::Thought(words) => thought.push_str(&words),
            Said::Call { name, arguments } => {
                let arguments: Value = json_marked(&arguments).unwrap_or_default();
                calls.push((name, arguments));
            }
        }
    }
    let mut given_thoughts =
        ["reasoning_content", "reasoning"].iter().filter_map(|name| message[*name].as_str());
    if given_thoughts.any(|given| !given.trim().is_empty() && given.trim() != thought.trim()) {
        return false;
    }
    let given = message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default().iter().map(|call| {
        let function = &call["function"];
        let arguments = match &function["arguments"] {
            Value::String(text) => json_marked(text).unwrap_or_default(),
            arguments => arguments.clone(),
        };
        (function["name"].as_str().unwrap_or_default().to_string(), arguments)
    });
    (repeats(&text) || repeats(&has_all)) && given.eq(calls)
}

/// Returns the text after the answer at message `at`, whose last token is `last`.
fn after_answer(
    chat: &Chat,
    at: usize,
    last: Option<u32>,
    finish: Finish,
    state: &ServerState,
) -> Reply<String> {
    if let Some(template) = &state.texts.template {
        let calls = chat.messages[at]["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
        let name = |call: &Value| call["function"]["name"].as_str().unwrap_or_default().to_string();
        let calls: Vec<String> = calls.iter().map(name).collect();
        let last = last.and_then(|last| state.texts.tokenizer.token_text(last));
        if let Some(after) = template.after_sampled_turn(&calls, &chat.messages[at + 1..], last.as_deref()) {
            return Ok(after?);
        }
    }
    words_after(chat, at, last.filter(|_| finish == Finish::Eos), state)
}

/// Returns the chat template's text after the assistant's message `at`. `end`: the token that ended it, if one did.
fn words_after(chat: &Chat, at: usize, end: Option<u32>, state: &ServerState) -> Reply<String> {
    if state.texts.template.is_none() {
        return Ok(joined(&chat.messages[at + 1..]));
    }
    let mut messages = chat.messages.clone();
    let is_in_messages = |mark: &str| chat.messages.iter().any(|message| message.to_string().contains(mark));
    let render = |mark: &str| {
        let mut marked = Map::new();
        marked.insert("role".into(), Value::from("assistant"));
        marked.insert("content".into(), Value::from(mark));
        messages[at] = Value::Object(marked);
        chat.render_messages(&messages, state).map_err(|refusal| refusal.error)
    };
    let end = end.and_then(|end| state.texts.tokenizer.token_text(end));
    Ok(written_after(is_in_messages, render, end.as_deref())?)
}

/// Writes messages without a template: one after the other, as text environments do.
fn joined(messages: &[Value]) -> String {
    messages.iter().map(|message| message["content"].as_str().unwrap_or_default()).collect()
}

fn plain(messages: &[Value]) -> Vec<Message> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    messages.iter().map(|message| Message::new(&text(&message["role"]), text(&message["content"]))).collect()
}
