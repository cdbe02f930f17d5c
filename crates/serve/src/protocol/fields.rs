//! Reads the fields of a request one by one, each as its type, and refuses by name what is left in the end. Values stay
//! text until they are read, so a body of numbers never becomes a tree. Values that a template reads become trees, of
//! bounded bytes together.

use crate::protocol::refusal::{Refusal, Reply};
use plimsoll_base::{JsonPart, json_marked, json_tree_bytes, shown};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;

/// Fields that are accepted and ignored: notes of the client to itself.
const NOTES: [&str; 8] = [
    "cache_salt",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "user",
];

/// Fields that this server does not have, with the value that asks for nothing. `null` always does.
const NEUTRAL: [(&str, &str); 31] = [
    ("add_generation_prompt", "true"),
    ("add_special_tokens", "false"),
    ("allowed_token_ids", "null"),
    ("audio", "null"),
    ("bad_words", "[]"),
    ("best_of", "1"),
    ("continue_final_message", "false"),
    ("detokenize", "true"),
    ("documents", "[]"),
    ("echo", "false"),
    ("features", "null"),
    ("frequency_penalty", "0"),
    ("function_call", "\"none\""),
    ("functions", "[]"),
    ("kv_transfer_params", "null"),
    ("length_penalty", "1"),
    ("min_tokens", "0"),
    ("modalities", "[\"text\"]"),
    ("prediction", "null"),
    ("presence_penalty", "0"),
    ("priority", "0"),
    ("prompt_logprobs", "null"),
    ("reasoning_effort", "null"),
    ("repetition_penalty", "1"),
    ("spaces_between_special_tokens", "true"),
    ("store", "false"),
    ("suffix", "\"\""),
    ("truncate_prompt_tokens", "null"),
    ("use_beam_search", "false"),
    ("verbosity", "null"),
    ("web_search_options", "null"),
];

/// Most bytes of a value that may ask for nothing: one of `NEUTRAL`, with white space.
const NEUTRAL_BYTES_MAX: usize = 1 << 10;

/// Holds the fields of an object that are left to read.
pub struct Fields<'b> {
    /// Path of the object in the request: empty, or `sampling_params.`.
    prefix: &'static str,
    rest: BTreeMap<String, &'b RawValue>,
    /// Names that were asked for, to suggest one for a misspelt name.
    known: Vec<&'static str>,
    /// Bytes that trees of values may still take, and those that they might take at first.
    tree_bytes_left: usize,
    tree_bytes_max: usize,
}

impl<'b> Fields<'b> {
    /// Reads the object that a body is. `tree_bytes_max`: the most bytes of values that become trees, together.
    pub fn of_body(body: &'b [u8], tree_bytes_max: usize) -> Reply<Fields<'b>> {
        let rest = serde_json::from_slice(body).map_err(|err| {
            let message = format!("the body is no JSON object: {err}");
            Refusal { error: plimsoll_base::Error::new("serve-bad-request", message), param: None }
        })?;
        Ok(Fields { prefix: "", rest, known: Vec::new(), tree_bytes_left: tree_bytes_max, tree_bytes_max })
    }

    /// Reads an object within the body.
    pub fn of_object(prefix: &'static str, object: &'b RawValue) -> Reply<Fields<'b>> {
        let name = prefix.trim_end_matches('.');
        let rest = serde_json::from_str(object.get())
            .map_err(|err| Refusal::bad(name, format!("{name} is no JSON object: {err}")))?;
        Ok(Fields { prefix, rest, known: Vec::new(), tree_bytes_left: 0, tree_bytes_max: 0 })
    }

    /// Takes a field as it is written; `null` is none.
    pub fn raw(&mut self, name: &'static str) -> Option<&'b RawValue> {
        self.known.push(name);
        self.rest.remove(name).filter(|raw| raw.get() != "null")
    }

    pub fn take<T: Deserialize<'b>>(&mut self, name: &'static str) -> Reply<Option<T>> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        serde_json::from_str(raw.get()).map(Some).map_err(|err| {
            let (param, given) = (self.param(name), shown(raw.get()));
            Refusal::bad(param.clone(), format!("{param} = {given}: {}", words(&err)))
        })
    }

    /// Takes a value as a tree whose numbers keep their digits: `plimsoll_base::json_marked` marks those beyond 64
    /// bits.
    ///
    /// Errors: `serve-body-too-large` if all trees of the body would take more than they may.
    pub fn take_exactly<T: DeserializeOwned>(&mut self, name: &'static str) -> Reply<Option<T>> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        self.count_tree(name, raw.get())?;
        let read = json_marked(raw.get()).and_then(serde_json::from_value);
        read.map(Some).map_err(|err| {
            let (param, given) = (self.param(name), shown(raw.get()));
            Refusal::bad(param.clone(), format!("{param} = {given}: {}", words(&err)))
        })
    }

    /// Counts a text that becomes a tree.
    ///
    /// Errors: `serve-body-too-large`.
    pub fn count_tree(&mut self, param: &str, text: &str) -> Reply<()> {
        match self.tree_bytes_left.checked_sub(json_tree_bytes(text)) {
            Some(left) => {
                self.tree_bytes_left = left;
                Ok(())
            }
            None => {
                let message = format!(
                    "{param}: its values would take more than {} bytes as a tree",
                    self.tree_bytes_max
                );
                let error = plimsoll_base::Error::new("serve-body-too-large", message)
                    .hint("the limit grows with --prompt-tokens and --max-new-tokens");
                Err(Box::new(Refusal { error, param: Some(param.into()) }))
            }
        }
    }

    /// Returns the text of a field that is not yet taken.
    pub fn peek(&self, name: &str) -> Option<&'b str> {
        self.rest.get(name).map(|raw| raw.get())
    }

    /// Returns the number of items of a list that is not yet taken; `None` for another value.
    pub fn count(&self, name: &str) -> Option<usize> {
        let text = self.rest.get(name)?.get();
        JsonPart::with_words(text.as_bytes(), text.len()).ok()?.count()
    }

    /// Takes a number within a range.
    pub fn within<T>(&mut self, name: &'static str, range: RangeInclusive<T>) -> Reply<Option<T>>
    where
        T: Deserialize<'b> + PartialOrd + Display,
    {
        let value: Option<T> = self.take(name)?;
        let Some(beyond) = value.as_ref().filter(|value| !range.contains(value)) else { return Ok(value) };
        let (param, low, high) = (self.param(name), range.start(), range.end());
        Err(Refusal::bad(param.clone(), format!("{param} = {beyond}: it can be {low} to {high}")))
    }

    /// Takes a flag; false if it is absent.
    pub fn flag(&mut self, name: &'static str) -> Reply<bool> {
        Ok(self.take(name)?.unwrap_or(false))
    }

    pub fn param(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Refuses what is left, unless it asks for nothing.
    pub fn finish(self) -> Reply<()> {
        for (name, raw) in &self.rest {
            if raw.get() == "null" || NOTES.contains(&name.as_str()) {
                continue;
            }
            let param = self.param(name);
            let Some((_, nothing)) = NEUTRAL.iter().find(|(known, _)| known == name) else {
                return Err(self.unknown(name));
            };
            if !same(raw.get(), nothing) {
                let message = format!("{param} = {}: this server does not have it", shown(raw.get()));
                return Err(
                    Refusal::unsupported(param, message).hint(format!("leave it out, or send {nothing}"))
                );
            }
        }
        Ok(())
    }

    fn unknown(&self, name: &str) -> Box<Refusal> {
        let param = self.param(name);
        let near = self.known.iter().filter(|known| strsim::damerau_levenshtein(known, name) <= 2);
        let refusal = Refusal::unsupported(&param, format!("{} is no field of this request", shown(&param)));
        match near.min_by_key(|known| strsim::damerau_levenshtein(known, name)) {
            Some(near) => refusal.hint(format!("did you mean {}{near}?", self.prefix)),
            None => refusal.hint("leave it out"),
        }
    }
}

/// Returns true if two texts are the same value; 0 is 0.0.
fn same(given: &str, nothing: &str) -> bool {
    if given.len() > NEUTRAL_BYTES_MAX {
        return false;
    }
    let read = |text: &str| serde_json::from_str::<Value>(text).ok();
    match (read(given), read(nothing)) {
        (Some(Value::Number(a)), Some(Value::Number(b))) => a.as_f64() == b.as_f64(),
        (a, b) => a.is_some() && a == b,
    }
}

/// Returns the words of a wrong type, without the place in a text that the client has not seen.
fn words(err: &serde_json::Error) -> String {
    let text = err.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(words, _)| words.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str) -> (String, Option<String>) {
        let read = || -> Reply<()> {
            let mut fields = Fields::of_body(body.as_bytes(), 0)?;
            fields.within("temperature", 0.0..=10.0)?;
            fields.within("n", 1..=4)?;
            fields.flag("stream")?;
            fields.finish()
        };
        let refusal = read().expect_err(body);
        (refusal.error.slug.to_string(), refusal.param)
    }

    #[test]
    fn what_is_not_read_is_refused_by_name_unless_it_asks_for_nothing() {
        for (body, slug, param) in [
            ("", "serve-bad-request", None),
            ("[1]", "serve-bad-request", None),
            ("{\"n\":1", "serve-bad-request", None),
            ("{\"n\":5}", "serve-bad-request", Some("n")),
            ("{\"n\":\"two\"}", "serve-bad-request", Some("n")),
            ("{\"temperature\":-1}", "serve-bad-request", Some("temperature")),
            ("{\"temperature\":1e999}", "serve-bad-request", Some("temperature")),
            ("{\"stream\":1}", "serve-bad-request", Some("stream")),
            ("{\"temprature\":1}", "serve-field-refused", Some("temprature")),
            ("{\"logit_bias\":{\"5\":1}}", "serve-field-refused", Some("logit_bias")),
            ("{\"echo\":true}", "serve-field-refused", Some("echo")),
        ] {
            assert_eq!(refused(body), (slug.to_string(), param.map(str::to_string)), "{body}");
        }
        let body = "{\"n\":null,\"user\":\"me\",\"frequency_penalty\":0.0,\"echo\":false,\"strange\":null}";
        Fields::of_body(body.as_bytes(), 0).and_then(Fields::finish).expect("it asks for nothing");
        let near = Fields::of_body(b"{\"temprature\":1}", 0).and_then(|mut fields| {
            fields.within("temperature", 0.0..=1.0)?;
            fields.finish()
        });
        assert!(near.unwrap_err().error.hints[0].contains("temperature"));
    }
}
