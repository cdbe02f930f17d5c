//! The command `generate`: the rollout engine alone, streaming one prompt's response.

use crate::album::{Album, RowImage};
use crate::bound::Sources;
use crate::codes::check_blocks;
use crate::facts::{keep_within_positions, verb_facts};
use crate::form::FormMasks;
use crate::models::sample_as_trained;
use crate::responder::Responder;
use crate::runner::{Runner, open, open_verb};
use crate::sampler::sampling;
use crate::text::TextModel;
use plimsoll_base::{Error, Result, read_small};
use plimsoll_config::{Data, RunSpec, VerbFile};
use plimsoll_files::OpenModel;
use plimsoll_images::{BYTES_MAX, PLACEHOLDER};
use plimsoll_memory::host::Host;
use plimsoll_plan::{Facts, PerRole, devices, plan_sampling};
use plimsoll_rollout::{Finish, Request, StopCondition};
use plimsoll_text::{ImageSource, Prompt, StopMatcher, StreamDecoder, Strings};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// What a prompt may have where an image is, as in rows of data.
const TAG: &str = "<image>";

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
    /// The masks of what the response is held to.
    masks: Option<FormMasks>,
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
        if let Some(masks) = &mut self.masks {
            masks.drew(0, response);
        }
        found.is_some()
    }

    fn has_masks(&self) -> bool {
        self.masks.is_some()
    }

    fn mask(&mut self, sample: usize, so_far: &[u32], words: &mut [u32]) -> Result<bool> {
        let Some(masks) = &mut self.masks else { return Ok(false) };
        masks.mask(sample, so_far, words).map(|()| true)
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

/// A prompt of a command: its text, and its images, which are where the text has `<image>`, or before it.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'r> {
    pub prompt: &'r str,
    pub images: &'r [PathBuf],
    /// True if the chat template is omitted.
    pub raw: bool,
}

/// Generates a response; `sink` gets its text piece by piece.
///
/// Errors: those of opening, planning and sampling; `prompt-empty`, `model-takes-no-images`, `image-count`, those of
/// images.
pub fn generate(verb: &VerbFile, asked: Asked<'_>, sink: &mut dyn FnMut(&str)) -> Result<Value> {
    let started = Instant::now();
    let (model, mut text) = open_verb(verb)?;
    if asked.raw {
        text.strings = Strings::Raw;
    }
    text.album = album_of(&model, &verb.data, !asked.images.is_empty())?;
    let (ids, _images) = rows_of(&text, &asked)?;
    if ids.is_empty() {
        return Err(
            Error::new("prompt-empty", "the prompt has no token").hint("give some text with --prompt")
        );
    }
    let mut run = RunSpec::sampling(verb);
    (run.rollout.prompts_per_step, run.rollout.group_size) = (1, 1);
    check_blocks(&run, &model, &PerRole::none())?;
    sample_as_trained(&mut run, &model);
    keep_within_positions(&mut run, &model, ids.len())?;
    let sight = text.album.as_ref().filter(|_| !asked.images.is_empty()).map(|album| album.shape(1));
    let facts = Facts { sight, ..verb_facts(&run, &model, ids.len(), 1) };
    let report = plan_sampling(&run, &facts)?;
    report.refuse()?;
    let (dev, mut arena) = open(&report.shape, devices::options(&run))?;
    let mut runner =
        Runner::new(&*dev, &mut arena, &report.shape, Sources::one(&model).with_images(&text), verb.seed)?;
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
        masks: text.form.as_ref().map(|form| FormMasks::start(form, 1)).transpose()?,
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

/// Returns the album of a model that sees; of one that does not, only if images are `wanted`.
fn album_of(model: &OpenModel, data: &Data, wanted: bool) -> Result<Option<Arc<Album>>> {
    // A tower that is not built is none: prompts of text do not need it.
    let opened = Album::open(model, data);
    if wanted { opened.map(|album| Some(album.into())) } else { Ok(opened.ok().map(Arc::new)) }
}

/// Returns the rows of a prompt, tokens and numbers of vectors, and its images.
///
/// Errors: those of tokenizing; `image-count`; those of reading images.
fn rows_of(text: &TextModel, asked: &Asked<'_>) -> Result<(Vec<u32>, Vec<Arc<RowImage>>)> {
    let prompt = with_placeholders(asked.prompt, asked.images.len());
    let ids = text.rows().prompt(&Prompt::Text(prompt), &Map::new())?;
    let Some(album) = &text.album else { return Ok((ids, Vec::new())) };
    let file = |path: &PathBuf| {
        let bytes = read_small(path, BYTES_MAX as u64).map_err(|err| {
            Error::io("image-missing", path, &err).hint("give the name of a file with --image")
        })?;
        Ok(ImageSource::Bytes(bytes))
    };
    album.take(&ids, asked.images.iter().map(file).collect(), None, "--prompt")
}

/// Writes the placeholders of images where a prompt has `<image>`; before a prompt without any.
fn with_placeholders(prompt: &str, images: usize) -> String {
    if images == 0 {
        return prompt.to_string();
    }
    let prompt = prompt.replace(TAG, PLACEHOLDER);
    if prompt.contains(PLACEHOLDER) { prompt } else { PLACEHOLDER.repeat(images) + &prompt }
}
