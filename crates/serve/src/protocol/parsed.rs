//! Reads the fields that every kind of request has: sampling, ends and delivery.

use crate::grammars;
use crate::images::GivenImage;
use crate::limits::CHOICES_MAX;
use crate::owner::Heard;
use crate::protocol::fields::Fields;
use crate::protocol::ids::check_ids;
use crate::protocol::refusal::{Refusal, Reply};
use crate::state::{SamplingParams, ServerState};
use plimsoll_base::JsonPart;
use plimsoll_device::Sampling;
use plimsoll_grammar::{Grammar, ResponseForm};
use plimsoll_rollout::ENDS_MAX;
use plimsoll_text::{STOPS_MAX, StopMatcher};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Holds a request that was read: the engine's part, and the form of its answer.
pub struct Parsed<F> {
    pub prompts: Vec<Vec<u32>>,
    /// Images of the first prompt.
    pub images: Vec<GivenImage>,
    pub params: SamplingParams,
    pub delivery: Delivery,
    /// Longest response if the request names none.
    pub usual_tokens: usize,
    /// Conversation of a request whose responses have an owner.
    pub heard: Heard,
    pub form: F,
}

/// Longest response to a completion that names no length, as in OpenAI's protocol and vLLM.
pub const USUAL_TOKENS: usize = 16;

/// Temperatures above 0.
const TEMPERATURE_MIN: f64 = 1e-4;
const TEMPERATURE_MAX: f64 = 1e4;

/// Says in which parts and with which extras an answer is sent.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    pub stream: bool,
    /// True if a last event has the counts of tokens.
    pub include_usage: bool,
    /// True if the answer has `prompt_token_ids` and `token_ids`.
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

/// Reads the sampling parameters of a request and the tokens and strings that end its responses. `adapter`: the slot of
/// the one that it names.
pub fn params(fields: &mut Fields<'_>, state: &ServerState, adapter: Option<u32>) -> Reply<SamplingParams> {
    params_under(fields, state, "stop", adapter)
}

/// Reads them where the strings that end a response have another name.
pub fn params_under(
    fields: &mut Fields<'_>,
    state: &ServerState,
    stop: &'static str,
    adapter: Option<u32>,
) -> Reply<SamplingParams> {
    let usual = state.settings.sampling;
    let sampling = Sampling {
        temperature: temperature(fields)?.unwrap_or(usual.temperature),
        top_p: top_p(fields)?.unwrap_or(usual.top_p),
        min_p: fields.within("min_p", 0.0..=1.0)?.map_or(usual.min_p, |p| p as f32),
        // Other servers write -1 for all.
        top_k: fields.within("top_k", -1..=i64::from(u32::MAX))?.map_or(usual.top_k, |k| k.max(0) as u32),
        seed: usual.seed,
    };
    let choices = fields.within("n", 1..=CHOICES_MAX as i64)?.unwrap_or(1) as usize;
    let max_new_tokens = max_new_tokens(fields)?;
    let (stops, keep_stop) = stops(fields, state, stop)?;
    let stop_ids: Vec<u32> = fields.take("stop_token_ids")?.unwrap_or_default();
    check_ids(&stop_ids, &fields.param("stop_token_ids"), state)?;
    let mut ends = if fields.flag("ignore_eos")? { Vec::new() } else { state.texts.eos.clone() };
    ends.extend(&stop_ids);
    ends.sort_unstable();
    ends.dedup();
    if ends.len() > ENDS_MAX {
        let message = format!("{} tokens that end a response, {ENDS_MAX} is the most", ends.len());
        return Err(Refusal::bad(fields.param("stop_token_ids"), message));
    }
    let biases = grammars::biases(fields, state)?;
    let form = grammars::form(fields)?;
    let grammar = match &form {
        Some((form, param)) => Some(hold(form, param, &ends, state)?),
        None => None,
    };
    Ok(SamplingParams {
        grammar,
        biases: biases.into(),
        choices,
        max_new_tokens,
        sampling,
        seed: seed(fields)?,
        ends: ends.into(),
        stop_ids,
        stops,
        keep_stop,
        skip_special: fields.take("skip_special_tokens")?.unwrap_or(true),
        adapter,
        top: 0,
        prompt_top: None,
        prefix: state.prefix_scope(adapter),
    })
}

/// Reads `cache_salt`, vLLM's field: keys of a prompt are shared only with requests of the same token that bring the
/// same salt.
pub fn cache_salt(fields: &mut Fields<'_>, params: &mut SamplingParams) -> Reply<()> {
    match fields.take::<String>("cache_salt")? {
        None => {}
        Some(salt) if salt.is_empty() => {
            return Err(Refusal::bad("cache_salt", "cache_salt is empty")
                .hint("leave it out to share keys with all requests that leave it out"));
        }
        Some(salt) => {
            let of_token = Sha256::new().chain_update(params.prefix.salt);
            params.prefix.salt = of_token.chain_update(salt).finalize().into();
        }
    }
    Ok(())
}

/// Returns the grammar that holds responses to a form; `ends`: the tokens that end them.
///
/// Errors: `serve-bad-request` if nothing would end a response; those of `ServedGrammars::grammar`.
pub fn hold(form: &ResponseForm, param: &str, ends: &[u32], state: &ServerState) -> Reply<Arc<Grammar>> {
    if !state.texts.eos.iter().any(|eos| ends.contains(eos)) && !state.texts.eos.is_empty() {
        let message = format!("{param}: with ignore_eos nothing would end a response that is whole");
        return Err(Refusal::bad(param, message));
    }
    state.grammars.grammar(form, param)
}

fn temperature(fields: &mut Fields<'_>) -> Reply<Option<f32>> {
    let temperature = fields.within("temperature", 0.0..=TEMPERATURE_MAX)?;
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
    let top_p = fields.within("top_p", 0.0..=1.0)?;
    match top_p {
        Some(p) if p as f32 == 0.0 => {
            let param = fields.param("top_p");
            Err(Refusal::bad(param, "top_p = 0 keeps no token")
                .hint("for the likeliest token send temperature = 0"))
        }
        top_p => Ok(top_p.map(|p| p as f32)),
    }
}

/// Reads the longest response under OpenAI's old and new name; a request may bring both if they agree.
fn max_new_tokens(fields: &mut Fields<'_>) -> Reply<Option<usize>> {
    let range = 1..=i64::from(u32::MAX);
    let old = fields.within("max_tokens", range.clone())?;
    let new = fields.within("max_completion_tokens", range)?;
    match (old, new) {
        (Some(old), Some(new)) if old != new => {
            let message = format!("max_completion_tokens = {new}, and max_tokens = {old}");
            Err(Refusal::bad("max_completion_tokens", message).hint("send one of them"))
        }
        (old, new) => Ok(new.or(old).map(|n| n as usize)),
    }
}

fn seed(fields: &mut Fields<'_>) -> Reply<Option<u64>> {
    let Some(raw) = fields.raw("seed") else { return Ok(None) };
    let seed = raw.get().parse().ok().or_else(|| raw.get().parse().ok().map(|seed: i64| seed as u64));
    match seed {
        Some(seed) => Ok(Some(seed)),
        None => Err(Refusal::bad(fields.param("seed"), "seed: it can be a whole number of 64 bits")),
    }
}

/// Reads a string or a list of strings.
fn stops_of(text: &str) -> Result<Vec<String>, String> {
    let wrong = || "stop: it can be a string or a list of strings".to_string();
    let value = JsonPart::of(text.as_bytes()).map_err(|_| wrong())?;
    if let Some(stop) = value.string() {
        return Ok(vec![stop]);
    }
    let count = value.count().ok_or_else(wrong)?;
    if count > STOPS_MAX {
        return Err(format!("stop: {count} stop strings, the limit is {STOPS_MAX}"));
    }
    let mut stops = Vec::with_capacity(count);
    value.each(&mut |stop| {
        stops.push(stop.string().ok_or_else(wrong)?);
        Ok::<(), String>(())
    })?;
    Ok(stops)
}

fn stops(fields: &mut Fields<'_>, state: &ServerState, name: &'static str) -> Reply<(Vec<String>, bool)> {
    let param = fields.param(name);
    let stops = match fields.raw(name) {
        None => state.settings.stop.clone(),
        Some(raw) => stops_of(raw.get()).map_err(|message| Refusal::bad(&param, message))?,
    };
    if let Err(error) = StopMatcher::new(&stops) {
        return Err(Refusal::bad(&param, format!("{param}: {}", error.message)));
    }
    let keep: Option<bool> = fields.take("include_stop_str_in_output")?;
    Ok((stops, keep.unwrap_or(state.settings.keep_stop)))
}
