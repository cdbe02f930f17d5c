//! Writes log-probabilities in the forms of the protocols. They belong to the whole distribution at the request's
//! temperature, as in a rollout; at each position only that of the drawn token is known.

use crate::protocol::fields::Fields;
use crate::protocol::refusal::{Refusal, Reply};
use plimsoll_text::Tokenizer;
use serde_json::{Value, json};

/// Says what a request asks for at each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logprobs {
    /// True if the likeliest tokens are listed, with one place: the drawn token.
    pub top: bool,
}

/// Reads `logprobs` and `top_logprobs` of a chat.
pub fn of_chat(fields: &mut Fields<'_>) -> Reply<Option<Logprobs>> {
    let wanted = fields.flag("logprobs")?;
    let top = fields.within("top_logprobs", 0..=20)?;
    if top.is_some_and(|top| top > 0) && !wanted {
        return Err(Refusal::bad("top_logprobs", "top_logprobs without logprobs = true"));
    }
    let top = check_top("top_logprobs", top.unwrap_or(0))?;
    Ok(wanted.then_some(Logprobs { top }))
}

/// Reads `logprobs` where it is a number.
pub fn of_number(fields: &mut Fields<'_>) -> Reply<Option<Logprobs>> {
    let Some(top) = fields.within("logprobs", 0..=20)? else { return Ok(None) };
    Ok(Some(Logprobs { top: check_top(&fields.param("logprobs"), top)? }))
}

fn check_top(param: &str, top: i64) -> Reply<bool> {
    if top > 1 {
        let message =
            format!("{param} = {top}: the sampler keeps the log-probability of the drawn token alone");
        return Err(Refusal::unsupported(param, message).hint("send 0 or 1, which lists the drawn token"));
    }
    Ok(top == 1)
}

impl Logprobs {
    /// Returns `logprobs` of a chat's choice.
    pub fn chat(self, tokenizer: &Tokenizer, ids: &[u32], logprobs: &[f32]) -> Value {
        let one = |(&id, &logprob): (&u32, &f32)| {
            let bytes = tokenizer.token_bytes(id);
            let token = String::from_utf8_lossy(&bytes);
            let entry = json!({ "token": token, "logprob": logprob, "bytes": bytes.as_ref() });
            let top = if self.top { vec![entry.clone()] } else { vec![] };
            let mut entry = entry;
            entry["top_logprobs"] = json!(top);
            entry
        };
        json!({ "content": ids.iter().zip(logprobs).map(one).collect::<Vec<Value>>(), "refusal": null })
    }

    /// Returns `logprobs` of a response in token ids: each token is written as its id.
    pub fn ids(self, ids: &[u32], logprobs: &[f32]) -> Value {
        let one = |(id, logprob): (&u32, &f32)| {
            let entry = json!({ "token": format!("token_id:{id}"), "logprob": logprob, "bytes": null });
            let top = if self.top { vec![entry.clone()] } else { vec![] };
            let mut entry = entry;
            entry["top_logprobs"] = json!(top);
            entry
        };
        json!({ "content": ids.iter().zip(logprobs).map(one).collect::<Vec<Value>>() })
    }

    /// Returns `logprobs` of a completion's choice. `offset`: characters that begin before it, increased by its own. A
    /// token within a character has that character's offset.
    pub fn completion(
        self,
        tokenizer: &Tokenizer,
        ids: &[u32],
        logprobs: &[f32],
        offset: &mut usize,
    ) -> Value {
        let goes_on = |byte: &u8| byte & 0xC0 == 0x80;
        let (mut texts, mut offsets) = (Vec::with_capacity(ids.len()), Vec::with_capacity(ids.len()));
        for &id in ids {
            let bytes = tokenizer.token_bytes(id);
            // Decoding takes the space before a text away.
            let has_space = *offset == 0 && tokenizer.has_first_piece();
            let bytes = bytes.strip_prefix(b" ").filter(|_| has_space).unwrap_or(&bytes);
            let is_within = bytes.first().is_some_and(goes_on);
            offsets.push(offset.saturating_sub(usize::from(is_within)));
            *offset += bytes.iter().filter(|byte| !goes_on(byte)).count();
            texts.push(String::from_utf8_lossy(bytes).into_owned());
        }
        let top: Value = if self.top {
            texts.iter().zip(logprobs).map(|(text, &logprob)| json!({ text: logprob })).collect()
        } else {
            Value::Null
        };
        json!({ "tokens": texts, "token_logprobs": logprobs, "top_logprobs": top, "text_offset": offsets })
    }
}

#[cfg(test)]
#[path = "logprobs_tests.rs"]
mod tests;
