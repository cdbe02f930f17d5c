//! Responses as text: stop strings during sampling, and the text that rewards and samples read afterwards.

use crate::form::FormMasks;
use crate::text::{Item, TextModel};
use plimsoll_base::Result;
use plimsoll_reward::{Scored, column};
use plimsoll_rollout::{Finish, Samples, StopCondition};
use plimsoll_text::{StopMatcher, StreamDecoder};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// A response that is kept for people: a line of `samples/*.jsonl`.
#[derive(Clone, Debug, Serialize)]
pub struct KeptSample {
    pub step: u32,
    pub prompt: String,
    /// The response as the rewards saw it.
    pub response: String,
    /// The data set of the prompt.
    pub set: String,
    /// Position of the prompt in the order of training, or its row in an evaluation set.
    pub prompt_index: u64,
    /// Index of the sample among those of its prompt.
    pub sample: usize,
    /// The answer of the row, cut where it is long; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ground_truth: Option<String>,
    /// The system prompt that went before the conversation, cut where it is long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// The images of the prompt in order, without their content; absent without one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<KeptImage>,
    /// Weighted sum of the rewards; null if none gave a score.
    pub reward: Option<f32>,
    /// The score of each reward, by its name, before its weight.
    pub rewards: BTreeMap<String, Option<f32>>,
    pub response_tokens: usize,
    pub finish: Finish,
    /// Number of optimizer updates of the weights that sampled it: of the newest of them.
    pub policy_version: u64,
    /// Where several weights sampled it, the updates of each and how many tokens are theirs, in order; else absent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policy_versions: Vec<(u64, u32)>,
    /// One entry per token, as the rollout recorded it.
    pub logprobs: Vec<f32>,
    /// One entry per token: characters of `response` that it completed. The last ones may be past its end, where a stop
    /// string was cut off.
    pub token_chars: Vec<u32>,
}

/// An image of a sample's prompt as a line of `samples/*.jsonl` names it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeptImage {
    /// What the row names, cut where it is long; absent for an image that the row holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Pixels of a row and rows, as the model sees them.
    pub width: u32,
    pub height: u32,
    /// Its tokens in the prompt.
    pub tokens: usize,
    /// Its small copy, a file next to the samples; absent if none is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

impl KeptImage {
    /// Cuts the name where it is long.
    pub fn new(
        name: Option<&str>,
        [width, height]: [u32; 2],
        tokens: usize,
        file: Option<String>,
    ) -> KeptImage {
        KeptImage { name: name.map(cut), width, height, tokens, file }
    }
}

impl KeptSample {
    /// Sets the images of the prompt, at most `KEPT_IMAGES_MAX`.
    pub fn with_images(mut self, images: Vec<KeptImage>) -> KeptSample {
        self.images = images;
        self.images.truncate(KEPT_IMAGES_MAX);
        self
    }

    /// Sets which weights sampled it, as (updates, tokens) in order; nothing changes if there are none.
    pub fn drawn_by(mut self, versions: &[(u64, u32)]) -> KeptSample {
        self.policy_version = versions.last().map_or(self.policy_version, |(updates, _)| *updates);
        self.policy_versions = if versions.len() > 1 { versions.to_vec() } else { Vec::new() };
        self
    }
}

/// Data that all samples of a file share.
#[derive(Clone, Copy, Debug)]
pub struct SamplesHeader<'s> {
    /// Tokenizer, for the characters of each token, and system prompt.
    pub text: &'s TextModel,
    pub step: u32,
    pub answer_column: &'s str,
    pub names: &'s [String],
    pub samples: &'s Samples,
    /// Number of optimizer updates of the weights that sampled them.
    pub policy_version: u64,
}

/// The prompt that a sample answers.
#[derive(Clone, Copy, Debug)]
pub struct Place<'s> {
    pub set: &'s str,
    /// Position of the prompt in the order of training, or its row in an evaluation set.
    pub index: u64,
    /// Index of the sample among those of its prompt.
    pub of_group: usize,
}

/// Most images of a sample that its line names.
pub const KEPT_IMAGES_MAX: usize = 16;
/// Bytes of an answer or a system prompt in a line of `samples/`, whose size the plan bounds.
const QUOTED_BYTES_MAX: usize = 256;

/// Cuts a text at a character.
fn cut(text: &str) -> String {
    let end = (0..=text.len().min(QUOTED_BYTES_MAX)).rev().find(|&at| text.is_char_boundary(at));
    text[..end.unwrap_or(0)].to_string()
}

impl SamplesHeader<'_> {
    /// Returns sample `index`: a response to the prompt of `item`, and its scores.
    pub fn sample(
        &self,
        index: usize,
        place: Place<'_>,
        item: &Item,
        response: &str,
        scored: &Scored,
    ) -> KeptSample {
        let samples = self.samples;
        KeptSample {
            step: self.step,
            prompt: item.text.clone(),
            response: response.to_string(),
            set: place.set.to_string(),
            prompt_index: place.index,
            sample: place.of_group,
            ground_truth: column(&item.columns, self.answer_column).map(|answer| match answer {
                Value::String(text) => cut(text),
                other => cut(&other.to_string()),
            }),
            system_prompt: self.text.system_prompt.as_deref().map(cut),
            images: Vec::new(),
            reward: scored.total,
            rewards: self.names.iter().cloned().zip(scored.parts.iter().copied()).collect(),
            response_tokens: samples.ids(index).len(),
            finish: samples.finish(index),
            policy_version: self.policy_version,
            policy_versions: Vec::new(),
            logprobs: samples.logprobs(index).to_vec(),
            token_chars: self.token_chars(samples.ids(index)),
        }
    }

    /// Returns the characters that each token completes; 0 for special tokens and for the first bytes of a longer
    /// character.
    fn token_chars(&self, response: &[u32]) -> Vec<u32> {
        let (mut decoder, mut text) = (StreamDecoder::new(true), String::new());
        let completed = |&token: &u32| {
            text.clear();
            decoder.push(&self.text.tokenizer, token, &mut text);
            text.chars().count() as u32
        };
        response.iter().map(completed).collect()
    }
}

/// Ends a response at a stop string, whichever tokens spell it.
#[derive(Debug)]
pub struct TextStop<'t> {
    text: &'t TextModel,
    responses: Vec<(StreamDecoder, StopMatcher)>,
    /// The masks of what responses are held to.
    masks: Option<FormMasks>,
    decoded: String,
    released: String,
}

impl<'t> TextStop<'t> {
    /// Watches up to `samples` responses for `stops`.
    ///
    /// Errors: `stop-string-invalid`, `thread-not-started`.
    pub fn new(text: &'t TextModel, stops: &[String], samples: usize) -> Result<TextStop<'t>> {
        let matcher = StopMatcher::new(stops)?;
        let count = if stops.is_empty() { 0 } else { samples };
        let responses = (0..count).map(|_| (StreamDecoder::new(true), matcher.clone())).collect();
        let masks = text.form.as_ref().map(|form| FormMasks::start(form, samples)).transpose()?;
        Ok(TextStop { text, responses, masks, decoded: String::new(), released: String::new() })
    }
}

impl StopCondition for TextStop<'_> {
    fn stops(&mut self, sample: usize, response: &[u32]) -> bool {
        if let Some(masks) = &mut self.masks {
            masks.drew(sample, response);
        }
        if self.responses.is_empty() {
            return false;
        }
        let (decoder, matcher) = &mut self.responses[sample];
        if response.len() == 1 {
            decoder.reset();
            matcher.reset();
        }
        self.decoded.clear();
        self.released.clear();
        let token = *response.last().expect("a response that was drawn");
        decoder.push(&self.text.tokenizer, token, &mut self.decoded);
        matcher.push(&self.decoded, &mut self.released).is_some()
    }

    fn has_masks(&self) -> bool {
        self.masks.is_some()
    }

    fn mask(&mut self, sample: usize, so_far: &[u32], words: &mut [u32]) -> Result<bool> {
        let Some(masks) = &mut self.masks else { return Ok(false) };
        masks.mask(sample, so_far, words).map(|()| true)
    }
}

/// Returns the text of a response as rewards see it: without special tokens, cut before the stop string unless it is
/// kept.
pub fn response_text(
    text: &TextModel,
    response: &[u32],
    finish: Finish,
    stops: &[String],
    keep_stop: bool,
) -> String {
    let mut out = text.tokenizer.decode(response, true);
    if finish == Finish::Stop
        && !keep_stop
        && let Some(at) = stops.iter().filter_map(|stop| out.find(stop.as_str())).min()
    {
        out.truncate(at);
    }
    out
}

#[cfg(test)]
#[path = "responses_tests.rs"]
mod tests;
