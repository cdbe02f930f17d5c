//! Answers `POST /v1/completions`.

use crate::outbox::Part;
use crate::owner::{Heard, ResponseOwner};
use crate::protocol::fields::Fields;
use crate::protocol::ids::check_ids;
use crate::protocol::logprobs::{self, Logprobs};
use crate::protocol::parsed::{Delivery, Parsed, USUAL_TOKENS, cache_salt, delivery, params};
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
    let mut params = params(&mut fields, state, adapter)?;
    cache_salt(&mut fields, &mut params)?;
    let delivery = delivery(&mut fields)?;
    let logprobs = logprobs::of_number(&mut fields, &mut params, state)?;
    let prompt_top = logprobs::of_prompt(&mut fields, &mut params, (delivery.stream, state))?;
    let echoes = fields.flag("echo")?;
    if let Some(wanted) = logprobs.filter(|_| echoes) {
        if params.choices > 1 {
            return Err(Refusal::unsupported("echo", "echo with logprobs and n > 1")
                .hint("send n = 1, or leave logprobs out"));
        }
        params.prompt_top = Some(params.prompt_top.map_or(wanted.top, |top| top.max(wanted.top)));
    }
    let prompt = fields.raw("prompt").ok_or_else(|| Refusal::bad("prompt", "prompt is missing"))?;
    let begins = fields.take::<bool>("add_special_tokens")?.unwrap_or(state.texts.begins);
    fields.finish()?;
    let prompts = prompts(prompt, state, begins, params.choices)?;
    prompts.iter().try_for_each(|ids| state.check_placeholders(ids, "prompt"))?;
    let form = CompletionForm {
        head: Head::new(state, "cmpl-", adapter),
        usage: Usage { prompt_tokens: prompts.iter().map(Vec::len).sum(), ..Usage::default() },
        prompt_ids: if delivery.return_ids || echoes { prompts.clone() } else { Vec::new() },
        echoes: echoes.then_some(params.skip_special),
        prompt_top,
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
    /// Token ids of each prompt, if the answer has them or its text.
    prompt_ids: Vec<Vec<u32>>,
    /// Whether the text of a prompt leaves special tokens out; none if it is not before the response's.
    echoes: Option<bool>,
    /// Likeliest tokens of each token of the prompt, if the request asks for them.
    prompt_top: Option<usize>,
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
        self.usage.add(part);
        let (offset, tokenizer) = (&mut self.offsets[index], &self.head.state.texts.tokenizer);
        let is_first = !std::mem::replace(&mut self.begun[index], true);
        let prompt = self.prompt_ids.get(index / self.choices).filter(|_| is_first);
        let echoed = prompt.zip(self.echoes);
        let before =
            echoed.map(|(ids, skips_special)| tokenizer.decode(ids, skips_special)).unwrap_or_default();
        let logprobs = self.logprobs.map_or(Value::Null, |wanted| {
            wanted.completion(tokenizer, (echoed.map(|(ids, _)| &ids[..]), part), offset)
        });
        let (finish_reason, stop_reason) = part.end.as_ref().map_or((Value::Null, Value::Null), |end| {
            let (finish, stop) = reasons(end);
            (json!(finish), stop)
        });
        let mut choice = json!({
            "index": index, "text": before + &part.text, "logprobs": logprobs, "finish_reason": finish_reason,
            "stop_reason": stop_reason,
        });
        if self.delivery.return_ids {
            choice["token_ids"] = json!(part.ids);
            if let Some(prompt) = prompt {
                choice["prompt_token_ids"] = json!(prompt);
            }
        }
        if let Some(top) = self.prompt_top {
            choice["prompt_logprobs"] = logprobs::prompt(tokenizer, &part.prompt, top);
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
            self.usage.add(&part);
            return Vec::new();
        }
        let choice = self.choice(index, &part);
        vec![self.chunk(json!([choice]))]
    }

    fn end(&mut self) -> Vec<Value> {
        self.usage.event(self.delivery, self.chunk(json!([])))
    }
}
