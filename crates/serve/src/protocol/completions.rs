//! Answers `POST /v1/completions`.

use crate::outbox::Part;
use crate::owner::{Heard, ResponseOwner};
use crate::protocol::fields::Fields;
use crate::protocol::logprobs::{self, Logprobs};
use crate::protocol::parsed::{Delivery, Parsed, USUAL_TOKENS, check_ids, delivery, params};
use crate::protocol::refusal::{Refusal, Reply};
use crate::protocol::reply::{Form, Head, Usage, reasons};
use crate::state::ServerState;
use plimsoll_base::JsonPart;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::sync::Arc;

pub fn read(
    body: &[u8],
    state: &Arc<ServerState>,
    _: Option<&dyn ResponseOwner>,
) -> Reply<Parsed<CompletionForm>> {
    let mut fields = Fields::of_body(body, state.tree_bytes())?;
    let adapter = state.adapter_of(fields.take::<String>("model")?.as_deref())?;
    let params = params(&mut fields, state, adapter)?;
    let delivery = delivery(&mut fields)?;
    let logprobs = logprobs::of_number(&mut fields)?;
    let prompt = fields.raw("prompt").ok_or_else(|| Refusal::bad("prompt", "prompt is missing"))?;
    let begins = fields.take::<bool>("add_special_tokens")?.unwrap_or(state.texts.begins);
    fields.finish()?;
    let prompts = prompts(prompt, state, begins, params.choices)?;
    prompts.iter().try_for_each(|ids| state.check_placeholders(ids, "prompt"))?;
    let form = CompletionForm {
        head: Head::new(state, "cmpl-", adapter),
        usage: Usage { prompt_tokens: prompts.iter().map(Vec::len).sum(), drawn_tokens: 0 },
        prompt_ids: if delivery.return_ids { prompts.clone() } else { Vec::new() },
        delivery,
        logprobs,
        choices: params.choices,
        offsets: vec![0; prompts.len() * params.choices],
        begun: vec![false; prompts.len() * params.choices],
    };
    let (images, heard) = (Vec::new(), Heard::default());
    Ok(Parsed { prompts, images, params, delivery, usual_tokens: USUAL_TOKENS, heard, form })
}

/// Reads a prompt in any of its forms, which its first characters tell: a text, several, token ids, or lists of them.
/// `begins`: texts begin with what the tokenizer puts before a text.
fn prompts(raw: &RawValue, state: &ServerState, begins: bool, choices: usize) -> Reply<Vec<Vec<u32>>> {
    let wrong = |_| {
        Refusal::bad("prompt", "prompt: it can be a string, a list of strings, token ids or lists of them")
    };
    let text = raw.get();
    check_count(text, state, choices)?;
    let inner = text.strip_prefix('[').map(|rest| rest.trim_start().chars().next());
    let texts: Vec<String> = match inner {
        None => vec![serde_json::from_str(text).map_err(wrong)?],
        Some(Some('"')) => serde_json::from_str(text).map_err(wrong)?,
        first => {
            let lists: Vec<Vec<u32>> = match first {
                Some(Some('[')) => serde_json::from_str(text).map_err(wrong)?,
                _ => vec![serde_json::from_str(text).map_err(wrong)?],
            };
            lists.iter().try_for_each(|ids| check_ids(ids, "prompt", state))?;
            return Ok(lists);
        }
    };
    let encode = |text: &String| state.encode_plain(text, begins);
    texts
        .iter()
        .map(|text| encode(text).map_err(|error| Refusal { error, param: Some("prompt".into()) }.into()))
        .collect()
}

/// Refuses a list of more texts, or of more lists, than there are places for, before any of them is read.
fn check_count(text: &str, state: &ServerState, choices: usize) -> Reply<()> {
    let Ok(value) = JsonPart::with_words(text.as_bytes(), text.len()) else { return Ok(()) };
    let are_ids = value.first().is_some_and(|first| first.number().is_some());
    match value.count() {
        Some(count) if !are_ids => state.check_responses(count * choices, choices),
        _ => Ok(()),
    }
}

pub struct CompletionForm {
    head: Head,
    usage: Usage,
    /// Token ids of each prompt, if the request asks for them.
    prompt_ids: Vec<Vec<u32>>,
    delivery: Delivery,
    logprobs: Option<Logprobs>,
    /// Responses of each prompt.
    choices: usize,
    /// Characters of each response so far.
    offsets: Vec<usize>,
    begun: Vec<bool>,
}

impl CompletionForm {
    fn choice(&mut self, index: usize, part: &Part) -> Value {
        self.usage.drawn_tokens += part.ids.len();
        let (offset, tokenizer) = (&mut self.offsets[index], &self.head.state.texts.tokenizer);
        let logprobs = self
            .logprobs
            .map_or(Value::Null, |wanted| wanted.completion(tokenizer, &part.ids, &part.logprobs, offset));
        let (finish_reason, stop_reason) = part.end.as_ref().map_or((Value::Null, Value::Null), |end| {
            let (finish, stop) = reasons(end);
            (json!(finish), stop)
        });
        let mut choice = json!({
            "index": index, "text": part.text, "logprobs": logprobs, "finish_reason": finish_reason,
            "stop_reason": stop_reason,
        });
        if self.delivery.return_ids {
            choice["token_ids"] = json!(part.ids);
            if !std::mem::replace(&mut self.begun[index], true) {
                choice["prompt_token_ids"] = json!(self.prompt_ids[index / self.choices]);
            }
        }
        choice
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = self.head.object("text_completion");
        chunk["choices"] = choices;
        chunk
    }
}

impl Form for CompletionForm {
    fn whole(&mut self, parts: Vec<Part>) -> Value {
        let choices: Vec<Value> =
            parts.iter().enumerate().map(|(index, part)| self.choice(index, part)).collect();
        let mut answer = self.chunk(Value::from(choices));
        answer["usage"] = self.usage.json();
        answer
    }

    fn part(&mut self, index: usize, part: Part) -> Vec<Value> {
        let has_tokens = self.logprobs.is_some() || self.delivery.return_ids;
        if part.text.is_empty() && part.end.is_none() && !has_tokens {
            self.usage.drawn_tokens += part.ids.len();
            return Vec::new();
        }
        let choice = self.choice(index, &part);
        vec![self.chunk(json!([choice]))]
    }

    fn end(&mut self) -> Vec<Value> {
        self.usage.event(self.delivery, self.chunk(json!([])))
    }
}
