//! Reads the JSON of `asample`. Fields that it does not know are passed over, so that newer clients are not refused.

use super::forward::no_images;
use crate::job::{DrawParams, SampleJob, StopRule};
use crate::limits::{RANKED_MAX, SAMPLES_MAX, STOPS_MAX, TOKENS_MAX};
use plimsoll_base::{Error, Result, shown};
use serde::Deserialize;

/// A request to sample. Its sampler says what it samples with.
#[derive(Debug, Deserialize)]
pub struct SampleBody {
    pub sampling_session_id: Option<String>,
    pub seq_id: Option<i64>,
    #[serde(default = "one")]
    pub num_samples: u32,
    prompt: Prompt,
    sampling_params: Params,
    prompt_logprobs: Option<bool>,
    prompt_logprobs_last_n: Option<u32>,
    #[serde(default)]
    topk_prompt_logprobs: u32,
    #[serde(default)]
    topk_sample_logprobs: u32,
    #[serde(default)]
    prompt_alt_tokens_k: u32,
    target_prompt_logprobs: Option<Targets>,
}

#[derive(Debug, Deserialize)]
struct Prompt {
    chunks: Vec<Chunk>,
}

#[derive(Debug, Deserialize)]
struct Chunk {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    tokens: Option<Vec<i64>>,
}

#[derive(Debug, Deserialize)]
struct Params {
    max_tokens: Option<i64>,
    seed: Option<i64>,
    stop: Option<Stop>,
    temperature: Option<f32>,
    top_k: Option<i64>,
    top_p: Option<f32>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Stop {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<i64>),
}

/// Rows of ids, or a tensor with its numbers and shape.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Targets {
    Rows(Vec<Vec<i64>>),
    Tensor { data: Vec<i64>, shape: Option<Vec<usize>> },
}

fn one() -> u32 {
    1
}

/// Reads a request's body.
///
/// Errors: `tinker-bad-request`.
pub fn parse(body: &[u8]) -> Result<SampleBody> {
    serde_json::from_slice(body)
        .map_err(|err| bad(format!("the body of asample: {}", shown(&err.to_string()))))
}

/// Returns the job of a request. `seed`: for a request that brings none.
///
/// Errors: `tinker-bad-request`, `tinker-no-images`.
pub fn job(body: SampleBody, vocab: u32, context: usize, seed: u64) -> Result<SampleJob> {
    let prompt = prompt(body.prompt, vocab)?;
    if prompt.len() >= context.min(TOKENS_MAX) {
        let message = format!("the prompt has {} tokens, and the context {context}", prompt.len());
        return Err(bad(message).hint("a response needs a place too"));
    }
    if body.num_samples == 0 || body.num_samples > SAMPLES_MAX {
        return Err(bad(format!("num_samples = {}: it can be 1 to {SAMPLES_MAX}", body.num_samples)));
    }
    for (name, k) in [
        ("topk_prompt_logprobs", body.topk_prompt_logprobs),
        ("topk_sample_logprobs", body.topk_sample_logprobs),
    ] {
        if k > RANKED_MAX {
            return Err(bad(format!("{name} = {k}: it can be 0 to {RANKED_MAX}")));
        }
    }
    if body.prompt_alt_tokens_k > 0 {
        return Err(
            bad("prompt_alt_tokens_k is not built").hint("topk_prompt_logprobs has the most likely tokens")
        );
    }
    let target_prompt =
        body.target_prompt_logprobs.map(|targets| wanted(targets, prompt.len(), vocab)).transpose()?;
    Ok(SampleJob {
        base_model: String::new(),
        store: None,
        num_samples: body.num_samples,
        params: params(body.sampling_params, (vocab, context - prompt.len()), seed)?,
        prompt_logprobs: body.prompt_logprobs.unwrap_or(false) || body.prompt_logprobs_last_n.is_some(),
        prompt_logprobs_last: body.prompt_logprobs_last_n,
        topk_prompt: body.topk_prompt_logprobs,
        topk_sample: body.topk_sample_logprobs,
        target_prompt,
        prompt,
    })
}

fn prompt(given: Prompt, vocab: u32) -> Result<Vec<u32>> {
    let mut tokens = Vec::new();
    for chunk in given.chunks {
        match (chunk.kind.as_deref(), chunk.tokens) {
            (None | Some("encoded_text"), Some(ids)) => {
                for id in ids {
                    tokens.push(self::id(id, vocab, "prompt")?);
                }
            }
            (kind, _) => {
                return Err(no_images(&format!("a part {:?}", shown(kind.unwrap_or("without tokens")))));
            }
        }
    }
    if tokens.is_empty() {
        return Err(bad("the prompt has no token"));
    }
    Ok(tokens)
}

fn params(given: Params, (vocab, room): (u32, usize), seed: u64) -> Result<DrawParams> {
    let temperature = given.temperature.unwrap_or(1.0);
    let top_p = given.top_p.unwrap_or(1.0);
    let top_k = given.top_k.unwrap_or(-1);
    if !temperature.is_finite() || temperature < 0.0 {
        return Err(bad(format!("temperature = {temperature}: it is 0 or more")));
    }
    if !(top_p > 0.0 && top_p <= 1.0) {
        return Err(bad(format!("top_p = {top_p}: it is above 0 and at most 1")));
    }
    let top_k = match top_k {
        -1 | 0 => 0,
        k => u32::try_from(k)
            .map_err(|_| bad(format!("top_k = {k}: it is -1 for all, or a number of tokens")))?,
    };
    let max_tokens = match given.max_tokens {
        None => None,
        Some(n) if n >= 1 && n.unsigned_abs() as usize <= room => Some(n.unsigned_abs() as u32),
        Some(n) => return Err(bad(format!("max_tokens = {n}: it can be 1 to {room} after this prompt"))),
    };
    let stop = match given.stop {
        None => StopRule::EndOfText,
        Some(Stop::Text(text)) => StopRule::Texts(vec![text]),
        Some(Stop::Texts(texts)) => StopRule::Texts(texts),
        Some(Stop::Tokens(ids)) => {
            StopRule::Tokens(ids.into_iter().map(|id| self::id(id, vocab, "stop")).collect::<Result<_>>()?)
        }
    };
    let count = match &stop {
        StopRule::EndOfText => 0,
        StopRule::Texts(texts) => texts.len(),
        StopRule::Tokens(ids) => ids.len(),
    };
    if count > STOPS_MAX {
        return Err(bad(format!("stop has {count} entries, and {STOPS_MAX} is the most")));
    }
    let seed = given.seed.map_or(seed, i64::cast_unsigned);
    Ok(DrawParams { max_tokens, seed, stop, temperature, top_k, top_p })
}

fn wanted(targets: Targets, prompt: usize, vocab: u32) -> Result<(u32, Vec<Option<u32>>)> {
    let (columns, ids) = match targets {
        Targets::Rows(rows) => {
            let columns = rows.first().map_or(0, Vec::len);
            if rows.iter().any(|row| row.len() != columns) {
                return Err(bad("the rows of target_prompt_logprobs differ in length"));
            }
            (columns, rows.concat())
        }
        Targets::Tensor { data, shape } => (shape.and_then(|shape| shape.get(1).copied()).unwrap_or(1), data),
    };
    if columns == 0 || columns > RANKED_MAX as usize || ids.len() != (prompt - 1) * columns {
        let message = format!("target_prompt_logprobs has {} ids in {columns} columns", ids.len());
        return Err(bad(message)
            .hint(format!("it has a row for each of {} positions, of 1 to {RANKED_MAX} ids", prompt - 1)));
    }
    let place = |number: i64| match number {
        -1 => Ok(None),
        number => id(number, vocab, "target_prompt_logprobs").map(Some),
    };
    Ok((columns as u32, ids.into_iter().map(place).collect::<Result<_>>()?))
}

fn id(number: i64, vocab: u32, what: &str) -> Result<u32> {
    let id = u32::try_from(number).ok().filter(|id| *id < vocab);
    id.ok_or_else(|| bad(format!("{what} has the token {number}, and the model's ids are below {vocab}")))
}

fn bad(message: impl Into<String>) -> Error {
    Error::new("tinker-bad-request", message)
}
