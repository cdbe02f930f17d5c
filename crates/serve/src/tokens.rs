//! `POST /inference/v1/generate`, as vLLM has it: token ids in, token ids and log-probabilities out. No text is made.

use crate::asked::{Asked, Delivery, USUAL_TOKENS, check_ids, delivery, drawing};
use crate::episodes::{Heard, Seat};
use crate::fields::Fields;
use crate::house::House;
use crate::logprobs::{self, Logprobs};
use crate::outbox::Part;
use crate::refusal::{Refusal, Reply};
use crate::reply::{Form, Head, Usage, reasons};
use plimsoll_base::shown;
use serde_json::{Value, json};
use std::sync::Arc;

/// Longest id that a client may give its request.
const REQUEST_ID_BYTES_MAX: usize = 256;

/// Reads a body.
pub fn read(body: &[u8], house: &Arc<House>, _: Option<&Seat>) -> Reply<Asked<TokensForm>> {
    let mut fields = Fields::of_body(body)?;
    house.check_model(fields.take::<String>("model")?.as_deref())?;
    let delivery = delivery(&mut fields)?;
    let id: Option<String> = fields.take("request_id")?;
    if let Some(id) = id.as_ref().filter(|id| id.len() > REQUEST_ID_BYTES_MAX) {
        let message = format!("request_id = {:?}: {REQUEST_ID_BYTES_MAX} bytes is the most", shown(id));
        return Err(Refusal::bad("request_id", message));
    }
    let prompt: Vec<u32> =
        fields.take("token_ids")?.ok_or_else(|| Refusal::bad("token_ids", "token_ids is missing"))?;
    check_ids(&prompt, "token_ids", house)?;
    let params = fields.raw("sampling_params");
    fields.finish()?;
    let empty = serde_json::value::RawValue::from_string("{}".into()).expect("it is JSON");
    let mut params = Fields::of_object("sampling_params.", params.unwrap_or(&empty))?;
    let drawing = drawing(&mut params, house)?;
    let logprobs = logprobs::of_number(&mut params)?;
    params.finish()?;
    let head = Head::new(house, "");
    let form = TokensForm {
        id: id.unwrap_or_else(|| head.id.clone()),
        usage: Usage { prompt_tokens: prompt.len(), drawn_tokens: 0 },
        delivery,
        logprobs,
    };
    Ok(Asked {
        prompts: vec![prompt],
        drawing,
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
}

impl TokensForm {
    fn choice(&mut self, index: usize, part: &Part) -> Value {
        self.usage.drawn_tokens += part.ids.len();
        let logprobs = self.logprobs.map_or(Value::Null, |wanted| wanted.ids(&part.ids, &part.logprobs));
        let finish_reason = part.end.as_ref().map_or(Value::Null, |end| json!(reasons(end).0));
        json!({ "index": index, "logprobs": logprobs, "finish_reason": finish_reason, "token_ids": part.ids })
    }
}

impl Form for TokensForm {
    fn whole(&mut self, parts: Vec<Part>) -> Value {
        let choices: Vec<Value> =
            parts.iter().enumerate().map(|(index, part)| self.choice(index, part)).collect();
        json!({
            "request_id": self.id, "choices": choices, "prompt_logprobs": null, "kv_transfer_params": null,
            "usage": self.usage.json(),
        })
    }

    fn begin(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn part(&mut self, index: usize, part: Part) -> Vec<Value> {
        let choice = self.choice(index, &part);
        vec![json!({ "request_id": self.id, "choices": [choice] })]
    }

    fn end(&mut self) -> Vec<Value> {
        match self.delivery.include_usage {
            true => vec![json!({ "request_id": self.id, "choices": [], "usage": self.usage.json() })],
            false => Vec::new(),
        }
    }
}
