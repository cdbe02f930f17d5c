//! Writes log-probabilities in the forms of the protocols. They belong to the whole distribution at the request's
//! temperature, as in a rollout; those of prompts at temperature 1. Of the likeliest tokens those with equal logits
//! come
//! by their ids.

use crate::outbox::{Part, ScoredToken};
use crate::protocol::fields::Fields;
use crate::protocol::refusal::{Refusal, Reply};
use crate::state::{SamplingParams, ServerState};
use plimsoll_text::Tokenizer;
use serde_json::{Map, Value, json};

/// Says what a request asks for at each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logprobs {
    /// Likeliest tokens that are listed.
    pub top: usize,
}

/// Reads `logprobs` and `top_logprobs` of a chat.
pub fn of_chat(
    fields: &mut Fields<'_>,
    params: &mut SamplingParams,
    state: &ServerState,
) -> Reply<Option<Logprobs>> {
    let wanted = fields.flag("logprobs")?;
    let top = fields.within("top_logprobs", 0..=20)?;
    if top.is_some_and(|top| top > 0) && !wanted {
        return Err(Refusal::bad("top_logprobs", "top_logprobs without logprobs = true"));
    }
    params.top = check_top("top_logprobs", top.unwrap_or(0), state)?;
    Ok(wanted.then_some(Logprobs { top: params.top }))
}

/// Reads `logprobs` where it is a number.
pub fn of_number(
    fields: &mut Fields<'_>,
    params: &mut SamplingParams,
    state: &ServerState,
) -> Reply<Option<Logprobs>> {
    let Some(top) = fields.within("logprobs", 0..=20)? else { return Ok(None) };
    params.top = check_top(&fields.param("logprobs"), top, state)?;
    Ok(Some(Logprobs { top: params.top }))
}

/// Reads `prompt_logprobs`, vLLM's field. Returns the likeliest tokens that are listed in place of each token of the
/// prompt; none if the request does not ask for them.
pub fn of_prompt(
    fields: &mut Fields<'_>,
    params: &mut SamplingParams,
    (streams, state): (bool, &ServerState),
) -> Reply<Option<usize>> {
    let Some(top) = fields.within("prompt_logprobs", 0..=20)? else { return Ok(None) };
    let param = fields.param("prompt_logprobs");
    if streams {
        let message = format!("{param} with stream = true: they come with the whole answer");
        return Err(Refusal::unsupported(&param, message).hint("leave stream out, or send false"));
    }
    let top = check_top(&param, top, state)?;
    params.prompt_top = Some(params.prompt_top.map_or(top, |other| other.max(top)));
    Ok(Some(top))
}

/// Returns how many tokens are listed: all of a vocabulary that has fewer.
fn check_top(param: &str, top: i64, state: &ServerState) -> Reply<usize> {
    if top > 0 && state.limits.listed == 0 {
        let message = format!("{param} = {top}: this server lists no other tokens");
        return Err(Refusal::unsupported(param, message).hint("send 0"));
    }
    Ok((top as usize).min(state.limits.listed))
}

/// Returns vLLM's `prompt_logprobs`: nothing for the first token, and for each other its own entry and those of the
/// `top`
/// likeliest tokens, by their ids.
pub fn prompt(tokenizer: &Tokenizer, tokens: &[ScoredToken], top: usize) -> Value {
    let entry = |id: u32, logprob: f32, rank: Option<usize>| {
        let bytes = tokenizer.token_bytes(id);
        let token = String::from_utf8_lossy(&bytes);
        (id.to_string(), json!({ "logprob": logprob, "rank": rank, "decoded_token": token }))
    };
    let one = |token: &ScoredToken| {
        let mut of = Map::new();
        of.extend([entry(token.id, token.logprob, token.rank)]);
        for (rank, &(id, logprob)) in (1..).zip(token.listed.iter().take(top)) {
            if id != token.id {
                of.extend([entry(id, logprob, Some(rank))]);
            }
        }
        Value::Object(of)
    };
    std::iter::once(Value::Null).chain(tokens.iter().map(one)).collect()
}

/// What is written of a token of a completion: its id, its log-probability, and the likeliest in its place.
type Written<'w> = (u32, Option<f32>, &'w [(u32, f32)]);

impl Logprobs {
    /// Returns `logprobs` of a chat's choice.
    pub fn chat(self, tokenizer: &Tokenizer, part: &Part) -> Value {
        let entry = |id: u32, logprob: f32| {
            let bytes = tokenizer.token_bytes(id);
            json!({ "token": String::from_utf8_lossy(&bytes), "logprob": logprob, "bytes": bytes.as_ref() })
        };
        let content = self.content(part, &entry);
        json!({ "content": content, "refusal": null })
    }

    /// Returns `logprobs` of a response in token ids: each token is written as its id.
    pub fn ids(self, part: &Part) -> Value {
        let entry = |id: u32, logprob: f32| json!({ "token": format!("token_id:{id}"), "logprob": logprob, "bytes": null });
        json!({ "content": self.content(part, &entry) })
    }

    fn content(self, part: &Part, entry: &dyn Fn(u32, f32) -> Value) -> Vec<Value> {
        let one = |(at, (&id, &logprob)): (usize, (&u32, &f32))| {
            let mut one = entry(id, logprob);
            let listed = part.listed.get(at).map_or(&[][..], |listed| listed);
            one["top_logprobs"] =
                listed.iter().take(self.top).map(|&(id, logprob)| entry(id, logprob)).collect();
            one
        };
        part.ids.iter().zip(&part.logprobs).enumerate().map(one).collect()
    }

    /// Returns `logprobs` of a completion's choice, after the tokens of its prompt if `prompt` has them. `offset`:
    /// characters that begin before it, increased by its own. A token within a character has that character's offset.
    pub fn completion(
        self,
        tokenizer: &Tokenizer,
        (prompt, part): (Option<&[u32]>, &Part),
        offset: &mut usize,
    ) -> Value {
        let first = prompt.and_then(|ids| ids.first()).map(|&id| (id, None, &[][..]));
        let scored = part.prompt.iter().filter(|_| prompt.is_some());
        let scored = scored.map(|token| (token.id, Some(token.logprob), &token.listed[..]));
        let drawn = part.ids.iter().zip(&part.logprobs).enumerate().map(|(at, (&id, &logprob))| {
            (id, Some(logprob), part.listed.get(at).map_or(&[][..], |listed| listed))
        });
        self.written(tokenizer, first.into_iter().chain(scored).chain(drawn), offset)
    }

    fn written<'w>(
        self,
        tokenizer: &Tokenizer,
        tokens: impl Iterator<Item = Written<'w>>,
        offset: &mut usize,
    ) -> Value {
        let goes_on = |byte: &u8| byte & 0xC0 == 0x80;
        let (mut texts, mut logprobs, mut offsets, mut top) = (vec![], vec![], vec![], vec![]);
        for (id, logprob, listed) in tokens {
            let bytes = tokenizer.token_bytes(id);
            // Decoding takes the space before a text away.
            let has_space = *offset == 0 && tokenizer.has_first_piece();
            let bytes = bytes.strip_prefix(b" ").filter(|_| has_space).unwrap_or(&bytes);
            let is_within = bytes.first().is_some_and(goes_on);
            offsets.push(offset.saturating_sub(usize::from(is_within)));
            *offset += bytes.iter().filter(|byte| !goes_on(byte)).count();
            texts.push(String::from_utf8_lossy(bytes).into_owned());
            logprobs.push(logprob);
            // As in vLLM the token itself is there, whether it is one of the likeliest or not.
            let own = logprob.map(|logprob| (id, logprob));
            let text = |id| String::from_utf8_lossy(&tokenizer.token_bytes(id)).into_owned();
            let all = listed.iter().take(self.top).copied().chain(own);
            top.push(
                logprob.map(|_| all.map(|(id, logprob)| (text(id), json!(logprob))).collect::<Map<_, _>>()),
            );
        }
        let top = if self.top > 0 { json!(top) } else { Value::Null };
        json!({ "tokens": texts, "token_logprobs": logprobs, "top_logprobs": top, "text_offset": offsets })
    }
}

#[cfg(test)]
#[path = "logprobs_tests.rs"]
mod tests;
