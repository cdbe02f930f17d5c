//! The fields that every kind of request has: how to draw, when to end, and how to deliver.

use crate::episodes::Heard;
use crate::fields::Fields;
use crate::house::{Drawing, House};
use crate::limits::CHOICES_MAX;
use crate::refusal::{Refusal, Reply};
use plimsoll_device::Sampling;
use plimsoll_rollout::ENDS_MAX;
use plimsoll_text::StopMatcher;
use serde_json::Value;

/// A request that was read: what the engine gets, and the shape of its answer.
pub struct Asked<F> {
    pub prompts: Vec<Vec<u32>>,
    pub drawing: Drawing,
    pub delivery: Delivery,
    /// Tokens of a response if the request does not say.
    pub usual_tokens: usize,
    /// What a request of an episode has as its conversation.
    pub heard: Heard,
    pub form: F,
}

/// Tokens of a response to a request that does not say, as OpenAI's completions and vLLM have it.
pub const USUAL_TOKENS: usize = 16;

/// Temperatures above 0.
const TEMPERATURE_MIN: f64 = 1e-4;
const TEMPERATURE_MAX: f64 = 1e4;

/// How the answer is sent.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    pub stream: bool,
    /// A last event with the counts.
    pub include_usage: bool,
    /// `prompt_token_ids` and `token_ids`.
    pub return_ids: bool,
}

/// Reads `stream`, `stream_options` and `return_token_ids`.
pub fn delivery(fields: &mut Fields<'_>) -> Reply<Delivery> {
    let stream = fields.flag("stream")?;
    let include_usage = match fields.raw("stream_options") {
        None => false,
        Some(_) if !stream => {
            return Err(Refusal::bad("stream_options", "stream_options without stream = true"));
        }
        Some(options) => {
            let mut options = Fields::of_object("stream_options.", options)?;
            let include_usage = options.flag("include_usage")?;
            if options.flag("include_obfuscation")? || options.flag("continuous_usage_stats")? {
                return Err(Refusal::unsupported(
                    "stream_options",
                    "this server sends the usage once, at the end",
                ));
            }
            options.finish()?;
            include_usage
        }
    };
    Ok(Delivery { stream, include_usage, return_ids: fields.flag("return_token_ids")? })
}

/// Reads how tokens are drawn and what ends a response.
pub fn drawing(fields: &mut Fields<'_>, house: &House) -> Reply<Drawing> {
    let usual = house.settings.sampling;
    let sampling = Sampling {
        temperature: temperature(fields)?.unwrap_or(usual.temperature),
        top_p: top_p(fields)?.unwrap_or(usual.top_p),
        min_p: fields.number("min_p", 0.0..=1.0)?.map_or(usual.min_p, |p| p as f32),
        // Other servers write -1 for all.
        top_k: fields.whole("top_k", -1..=i64::from(u32::MAX))?.map_or(usual.top_k, |k| k.max(0) as u32),
        seed: usual.seed,
    };
    let choices = fields.whole("n", 1..=CHOICES_MAX as i64)?.unwrap_or(1) as usize;
    let max_new_tokens = max_new_tokens(fields)?;
    let (stops, keep_stop) = stops(fields, house)?;
    let stop_ids: Vec<u32> = fields.take("stop_token_ids")?.unwrap_or_default();
    check_ids(&stop_ids, &fields.param("stop_token_ids"), house)?;
    let mut ends = if fields.flag("ignore_eos")? { Vec::new() } else { house.texts.eos.clone() };
    ends.extend(&stop_ids);
    ends.sort_unstable();
    ends.dedup();
    if ends.len() > ENDS_MAX {
        let message = format!("{} tokens that end a response, {ENDS_MAX} is the most", ends.len());
        return Err(Refusal::bad(fields.param("stop_token_ids"), message));
    }
    Ok(Drawing {
        choices,
        max_new_tokens,
        sampling,
        seed: seed(fields)?,
        ends: ends.into(),
        stop_ids,
        stops,
        keep_stop,
        skip_special: fields.take("skip_special_tokens")?.unwrap_or(true),
    })
}

/// Requires that ids are tokens of the model.
pub fn check_ids(ids: &[u32], param: &str, house: &House) -> Reply<()> {
    match ids.iter().find(|&&id| id >= house.texts.vocab) {
        None => Ok(()),
        Some(id) => {
            let message =
                format!("{param} has the token {id}, the model's vocabulary has {}", house.texts.vocab);
            Err(Refusal::bad(param, message))
        }
    }
}

fn temperature(fields: &mut Fields<'_>) -> Reply<Option<f32>> {
    let temperature = fields.number("temperature", 0.0..=TEMPERATURE_MAX)?;
    match temperature.filter(|&t| t > 0.0 && t < TEMPERATURE_MIN) {
        // Divided by it, a logit would be no number any more.
        Some(t) => {
            let message =
                format!("temperature = {t:e}: it can be 0, or {TEMPERATURE_MIN} to {TEMPERATURE_MAX}");
            Err(Refusal::bad(fields.param("temperature"), message).hint("for the likeliest token send 0"))
        }
        None => Ok(temperature.map(|t| t as f32)),
    }
}

fn top_p(fields: &mut Fields<'_>) -> Reply<Option<f32>> {
    let top_p = fields.number("top_p", 0.0..=1.0)?;
    match top_p {
        Some(p) if p as f32 == 0.0 => {
            let param = fields.param("top_p");
            Err(Refusal::bad(param, "top_p = 0 keeps no token")
                .hint("for the likeliest token send temperature = 0"))
        }
        top_p => Ok(top_p.map(|p| p as f32)),
    }
}

/// OpenAI gave the field a new name; a request may bring both if they agree.
fn max_new_tokens(fields: &mut Fields<'_>) -> Reply<Option<usize>> {
    let range = 1..=i64::from(u32::MAX);
    let old = fields.whole("max_tokens", range.clone())?;
    let new = fields.whole("max_completion_tokens", range)?;
    match (old, new) {
        (Some(old), Some(new)) if old != new => {
            let message = format!("max_completion_tokens = {new}, and max_tokens = {old}");
            Err(Refusal::bad("max_completion_tokens", message).hint("send one of them"))
        }
        (old, new) => Ok(new.or(old).map(|n| n as usize)),
    }
}

fn seed(fields: &mut Fields<'_>) -> Reply<Option<u64>> {
    let Some(value) = fields.take::<Value>("seed")? else { return Ok(None) };
    let seed = value.as_u64().or_else(|| value.as_i64().map(|seed| seed as u64));
    match seed {
        Some(seed) => Ok(Some(seed)),
        None => Err(Refusal::bad(fields.param("seed"), "seed: it can be a whole number of 64 bits")),
    }
}

fn stops(fields: &mut Fields<'_>, house: &House) -> Reply<(Vec<String>, bool)> {
    let param = fields.param("stop");
    let stops = match fields.take::<Value>("stop")? {
        None => house.settings.stop.clone(),
        Some(Value::String(stop)) => vec![stop],
        Some(list) => {
            let message = "stop: it can be a string or a list of strings";
            serde_json::from_value(list).map_err(|_| Refusal::bad(&param, message))?
        }
    };
    if let Err(error) = StopMatcher::new(&stops) {
        return Err(Refusal::bad(&param, format!("{param}: {}", error.message)));
    }
    let keep: Option<bool> = fields.take("include_stop_str_in_output")?;
    Ok((stops, keep.unwrap_or(house.settings.keep_stop)))
}
