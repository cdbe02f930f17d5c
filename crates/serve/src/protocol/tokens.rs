//! Answers `POST /inference/v1/generate`, vLLM's endpoint: token ids in, token ids and log-probabilities out, no text.

use crate::outbox::Part;
use crate::owner::{Heard, ResponseOwner};
use crate::protocol::fields::Fields;
use crate::protocol::ids::check_ids;
use crate::protocol::logprobs::{self, Logprobs};
use crate::protocol::parsed::{Delivery, Parsed, USUAL_TOKENS, cache_salt, delivery, params};
use crate::protocol::refusal::{Refusal, Reply};
use crate::protocol::reply::{Form, Head, Usage, reasons};
use crate::state::ServerState;
use plimsoll_base::shown;
use serde_json::{Value, json};
use std::sync::Arc;

/// Longest id that a client may give its request.
const REQUEST_ID_BYTES_MAX: usize = 256;

pub fn read(
    body: &[u8],
    state: &Arc<ServerState>,
    _: Option<&dyn ResponseOwner>,
) -> Reply<Parsed<TokensForm>> {
    let mut fields = Fields::of_body(body, state.tree_bytes())?;
    let adapter = state.adapter_of(fields.take::<String>("model")?.as_deref())?;
    let delivery = delivery(&mut fields)?;
    let id: Option<String> = fields.take("request_id")?;
    if let Some(id) = id.as_ref().filter(|id| id.len() > REQUEST_ID_BYTES_MAX) {
        let message = format!("request_id = {:?}: {REQUEST_ID_BYTES_MAX} bytes is the most", shown(id));
        return Err(Refusal::bad("request_id", message));
    }
    let prompt: Vec<u32> =
        fields.take("token_ids")?.ok_or_else(|| Refusal::bad("token_ids", "token_ids is missing"))?;
    check_ids(&prompt, "token_ids", state)?;
    state.check_placeholders(&prompt, "token_ids")?;
    let raw = fields.raw("sampling_params");
    let empty = serde_json::value::RawValue::from_string("{}".into()).expect("it is JSON");
    let mut nested = Fields::of_object("sampling_params.", raw.unwrap_or(&empty))?;
    let mut params = params(&mut nested, state, adapter)?;
    let logprobs = logprobs::of_number(&mut nested, &mut params, state)?;
    let prompt_top = logprobs::of_prompt(&mut nested, &mut params, (delivery.stream, state))?;
    nested.finish()?;
    cache_salt(&mut fields, &mut params)?;
    fields.finish()?;
    let head = Head::new(state, "", adapter);
    let form = TokensForm {
        id: id.unwrap_or_else(|| head.id.clone()),
        usage: Usage { prompt_tokens: prompt.len(), ..Usage::default() },
        delivery,
        logprobs,
        prompt_top,
        state: state.clone(),
    };
    Ok(Parsed {
        prompts: vec![prompt],
        images: Vec::new(),
        params,
        delivery,
        usual_tokens: USUAL_TOKENS,
        heard: Heard::default(),
        form,
    })
}

pub struct TokensForm {
    id: String,
    usage: Usage,
    delivery: Delivery,
    logprobs: Option<Logprobs>,
    /// Likeliest tokens of each token of the prompt, if the request asks for them.
    prompt_top: Option<usize>,
    state: Arc<ServerState>,
}

impl TokensForm {
    fn choice(&mut self, index: usize, part: &Part) -> Value {
        self.usage.add(part);
        let logprobs = self.logprobs.map_or(Value::Null, |wanted| wanted.ids(part));
        let finish_reason = part.end.as_ref().map_or(Value::Null, |end| json!(reasons(end).0));
        json!({ "index": index, "logprobs": logprobs, "finish_reason": finish_reason, "token_ids": part.ids })
    }
}

impl Form for TokensForm {
    fn whole(&mut self, parts: Vec<Part>) -> Value {
        let scored = self.prompt_top.zip(parts.first());
        let scored =
            scored.map(|(top, part)| logprobs::prompt(&self.state.texts.tokenizer, &part.prompt, top));
        let choices: Vec<Value> =
            parts.iter().enumerate().map(|(index, part)| self.choice(index, part)).collect();
        json!({
            "request_id": self.id, "choices": choices, "prompt_logprobs": scored, "kv_transfer_params": null,
            "usage": self.usage.json(),
        })
    }

    fn part(&mut self, index: usize, part: Part) -> Vec<Value> {
        let choice = self.choice(index, &part);
        vec![json!({ "request_id": self.id, "choices": [choice] })]
    }

    fn end(&mut self) -> Vec<Value> {
        self.usage.event(self.delivery, json!({ "request_id": self.id, "choices": [] }))
    }
}
