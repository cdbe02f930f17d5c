//! The command `generate`: the rollout engine alone, streaming one prompt's response.

use crate::bound::Sources;
use crate::codes::check_blocks;
use crate::facts::{keep_within_positions, verb_facts};
use crate::models::sample_with_adapter;
use crate::responder::Responder;
use crate::runner::{Runner, open, open_verb};
use crate::sampler::sampling;
use crate::text::TextModel;
use plimsoll_base::{Error, Result};
use plimsoll_config::{RunSpec, VerbFile};
use plimsoll_memory::host::Host;
use plimsoll_plan::{PerRole, devices, plan_sampling};
use plimsoll_rollout::{Finish, Request, StopCondition};
use plimsoll_text::{Prompt, StopMatcher, StreamDecoder, Strings};
use serde_json::{Map, Value, json};
use std::time::Instant;

/// Passes on text as it is sampled, and ends at a stop string.
struct Streaming<'t> {
    text: &'t TextModel,
    decoder: StreamDecoder,
    matcher: StopMatcher,
    stops: &'t [String],
    keep_stop: bool,
    decoded: String,
    out: String,
    sink: &'t mut dyn FnMut(&str),
    whole: String,
    first_token: Option<Instant>,
}

impl StopCondition for Streaming<'_> {
    fn stops(&mut self, _sample: usize, response: &[u32]) -> bool {
        self.first_token.get_or_insert_with(Instant::now);
        self.decoded.clear();
        let token = *response.last().expect("a response that was drawn");
        self.decoder.push(&self.text.tokenizer, token, &mut self.decoded);
        self.out.clear();
        let found = self.matcher.push(&self.decoded, &mut self.out);
        if let Some(found) = found.filter(|_| self.keep_stop) {
            self.out.push_str(&self.stops[found.stop_index]);
        }
        self.emit();
        found.is_some()
    }
}

impl Streaming<'_> {
    fn emit(&mut self) {
        if !self.out.is_empty() {
            (self.sink)(&self.out);
            self.whole.push_str(&self.out);
        }
    }

    /// Passes on the text that was held back, once the response has ended without a stop string.
    fn finish(&mut self) {
        self.out.clear();
        self.decoded.clear();
        self.decoder.finish(&self.text.tokenizer, &mut self.decoded);
        self.matcher.push(&self.decoded, &mut self.out);
        self.matcher.finish(&mut self.out);
        self.emit();
    }
}

/// Generates a response to `prompt`; `sink` gets its text piece by piece. `raw` omits the chat template.
///
/// Errors: those of opening, planning and sampling; `prompt-empty`.
pub fn generate(verb: &VerbFile, prompt: &str, raw: bool, sink: &mut dyn FnMut(&str)) -> Result<Value> {
    let started = Instant::now();
    let (model, mut text) = open_verb(verb)?;
    if raw {
        text.strings = Strings::Raw;
    }
    let ids = text.rows().prompt(&Prompt::Text(prompt.to_string()), &Map::new())?;
    if ids.is_empty() {
        return Err(
            Error::new("prompt-empty", "the prompt has no token").hint("give some text with --prompt")
        );
    }
    let mut run = RunSpec::sampling(verb);
    (run.rollout.prompts_per_step, run.rollout.group_size) = (1, 1);
    check_blocks(&run, &model, &PerRole::none())?;
    sample_with_adapter(&mut run, &model);
    keep_within_positions(&mut run, &model, ids.len())?;
    let facts = verb_facts(&run, &model, ids.len(), 1);
    let report = plan_sampling(&run, &facts)?;
    report.refuse()?;
    let (dev, mut arena) = open(&report.shape, devices::options(&run))?;
    let mut runner = Runner::new(&*dev, &mut arena, &report.shape, Sources::one(&model), verb.seed)?;
    let request = Request {
        prompts: &[&ids],
        group_size: 1,
        max_new_tokens: run.rollout.max_new_tokens as usize,
        sampling: sampling(&run.rollout, verb.seed),
        eos: &model.eos_token_ids,
        first_sample_id: 0,
        numbers: &[],
    };
    let ready = Instant::now();
    let mut streaming = Streaming {
        text: &text,
        decoder: StreamDecoder::new(true),
        matcher: StopMatcher::new(&verb.rollout.stop)?,
        stops: &verb.rollout.stop,
        keep_stop: verb.rollout.keep_stop,
        decoded: String::new(),
        out: String::new(),
        sink,
        whole: String::new(),
        first_token: None,
    };
    runner.rollout(&request, &mut streaming)?;
    let samples = &runner.sampler.samples;
    if samples.finish(0) != Finish::Stop {
        streaming.finish();
    }
    let tokens = samples.ids(0);
    let seconds = ready.elapsed().as_secs_f64();
    let first = streaming.first_token.map(|t| (t - started).as_secs_f64());
    Ok(json!({
        "text": streaming.whole, "tokens": tokens, "logprobs": samples.logprobs(0), "prompt_tokens": ids.len(),
        "finish": samples.finish(0), "seconds": seconds, "seconds_to_first_token": first,
        "tokens_per_second": tokens.len() as f64 / seconds, "arena_bytes": report.plan.arena_bytes(),
        "rss_peak_bytes": Host::this().rss().peak,
    }))
}
