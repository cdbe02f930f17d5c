//! Holds the state that all requests share: tokenizer and template, settings, the permits that bound the responses
//! under way, and the queue to the engine.

use crate::arrivals::Arrivals;
use crate::encoding::TextRoom;
use crate::gate::{Gate, OwnedRoutes};
use crate::grammars::ServedGrammars;
use crate::guard::Guard;
use crate::images::{IMAGE_TEXT_BYTES, ImageDoor, QueuedImages, ServedImages, image_text_bytes};
use crate::limits::{BODIES_MAX, Limits};
use crate::metrics::Metrics;
use crate::outbox::Outbox;
use crate::protocol::refusal::{Refusal, Reply};
use plimsoll_base::rng::{Stream, philox};
use plimsoll_base::{Error, Result, shown};
use plimsoll_device::Sampling;
use plimsoll_grammar::Grammar;
use plimsoll_rollout::PrefixScope;
use plimsoll_text::calls_xml::Tool;
use plimsoll_text::{ChatTemplate, ResponseReader, Tokenizer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Distance between the sample ids of two choices of one seed, as a power of two.
const CHOICE_SHIFT: u32 = 56;

/// Tokens at the end of a prompt in which the mark that opens thinking is looked for: it has no more characters.
const MARK_TOKENS: usize = 24;

/// Holds the model's tokenizer, chat template and ends of text.
pub struct Texts {
    pub tokenizer: Arc<Tokenizer>,
    pub template: Option<Arc<ChatTemplate>>,
    /// System message of conversations that have none.
    pub system_prompt: Option<String>,
    /// True if text of no template begins with what the tokenizer puts before a text.
    pub begins: bool,
    /// Tokens that end a response.
    pub eos: Vec<u32>,
    /// Rows of the embedding; every token id is below.
    pub vocab: u32,
    /// How images are taken; none for a server of text.
    pub images: Option<ServedImages>,
}

/// Holds the defaults of requests, and who may send one.
pub struct Settings {
    /// Names of the model; the first is the one that answers carry.
    pub names: Vec<String>,
    /// Its adapters, by slot.
    pub adapters: Vec<ServedAdapter>,
    pub sampling: Sampling,
    pub stop: Vec<String>,
    pub keep_stop: bool,
    /// Responses that may wait for the engine.
    pub queue: usize,
    /// Time that running responses have to end when the server is asked to stop.
    pub grace: Duration,
    pub guard: Guard,
    /// Forms that responses may be held to at one time; 0 for a server whose responses are free.
    pub grammars: usize,
}

/// An adapter that requests may name.
#[derive(Clone, Debug)]
pub struct ServedAdapter {
    pub name: String,
    /// A hash of what it computes with.
    pub sha256: [u8; 32],
}

/// Says how the responses of a request are drawn, and what ends them.
#[derive(Clone, Debug)]
pub struct SamplingParams {
    /// Responses of each prompt.
    pub choices: usize,
    pub max_new_tokens: Option<usize>,
    pub sampling: Sampling,
    pub seed: Option<u64>,
    /// Tokens that end a response.
    pub ends: Arc<[u32]>,
    /// Tokens among `ends` that the request names.
    pub stop_ids: Vec<u32>,
    pub stops: Vec<String>,
    pub keep_stop: bool,
    pub skip_special: bool,
    /// The slot of the adapter that the request names.
    pub adapter: Option<u32>,
    /// Likeliest tokens that the client gets for each drawn token, and for each token of the prompt if it gets those.
    pub top: usize,
    pub prompt_top: Option<usize>,
    /// Which requests share the keys of their prompts.
    pub prefix: PrefixScope,
    /// What responses are held to.
    pub grammar: Option<Arc<Grammar>>,
    /// Tokens, ascending, and what is added to their logits.
    pub biases: Arc<[(u32, f32)]>,
}

/// Holds a prompt and the responses that it asks for.
pub struct Prompt {
    /// Tokens, and from `Texts::vocab` on numbers of vectors.
    pub token_ids: Vec<u32>,
    /// The images whose vectors these are.
    pub images: Option<QueuedImages>,
    pub sample_ids: Vec<u64>,
    /// Gates of its responses; empty if only the client gets them.
    pub gates: Vec<Arc<dyn Gate>>,
    pub max_new_tokens: usize,
}

/// Holds a prompt on its way to the engine.
pub struct QueuedRequest {
    pub prompt: Prompt,
    pub params: Arc<SamplingParams>,
    pub outbox: Arc<Outbox>,
    /// Index of its first response in the outbox.
    pub first: usize,
    pub arrived: Instant,
}

/// Gives a client the responses of its request. When it is dropped, the engine drops the responses too.
pub struct RequestOutput {
    pub outbox: Arc<Outbox>,
    _permits: [Option<OwnedSemaphorePermit>; 2],
}

impl Drop for RequestOutput {
    fn drop(&mut self) {
        self.outbox.leave();
    }
}

pub struct ServerState {
    pub texts: Texts,
    pub settings: Settings,
    pub limits: Limits,
    pub metrics: Metrics,
    /// Routes of what owns the responses; none for a server of its own.
    pub owned: Option<Arc<dyn OwnedRoutes>>,
    /// Bodies that have come or are coming.
    pub arrivals: Arc<Arrivals>,
    /// Permits of bodies that are being read.
    pub bodies: Semaphore,
    /// Bounds the images under way; none for a server of text.
    pub image_door: Option<ImageDoor>,
    pub grammars: ServedGrammars,
    encoding: TextRoom,
    /// Seconds since 1970 when the server started.
    pub created: u64,
    /// Permits of responses under way.
    permits: Arc<Semaphore>,
    /// Permits of listed tokens under way.
    lists: Arc<Semaphore>,
    inbox: Sender<QueuedRequest>,
    /// Requests that were sent to the engine since the start.
    pub sent: AtomicU64,
    stopping: AtomicBool,
    abandoned: AtomicBool,
    requests: AtomicU64,
    answers: AtomicU64,
}

impl ServerState {
    pub fn new(
        texts: Texts,
        settings: Settings,
        limits: Limits,
        inbox: Sender<QueuedRequest>,
        owned: Option<Arc<dyn OwnedRoutes>>,
    ) -> ServerState {
        ServerState {
            owned,
            image_door: texts.images.as_ref().map(ImageDoor::new),
            grammars: ServedGrammars::new(
                settings.grammars,
                texts.tokenizer.clone(),
                texts.vocab,
                texts.eos.clone(),
            ),
            texts,
            settings,
            limits,
            metrics: Metrics::default(),
            arrivals: Arc::new(Arrivals::new(limits.arrivals_bytes())),
            bodies: Semaphore::new(BODIES_MAX),
            encoding: TextRoom::new(limits),
            created: seconds_now(),
            permits: Arc::new(Semaphore::new(limits.responses())),
            lists: Arc::new(Semaphore::new(limits.listed_entries())),
            inbox,
            stopping: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            answers: AtomicU64::new(0),
        }
    }

    /// Sends prompts to the engine. The responses to the first one come first. `images`: those of the first prompt.
    pub fn submit(
        &self,
        prompts: Vec<Vec<u32>>,
        images: Option<QueuedImages>,
        params: SamplingParams,
        streams: bool,
        usual: usize,
    ) -> Reply<RequestOutput> {
        let count = prompts.len() * params.choices;
        let lengths: Vec<usize> =
            prompts.iter().map(|ids| self.new_tokens(ids, &params, usual)).collect::<Reply<_>>()?;
        let permit = self.permits(count, params.choices)?;
        let (base, choices, mut images) = (self.base(&params), params.choices, images);
        let ask = |(index, (prompt, max_new_tokens)): (usize, (Vec<u32>, usize))| {
            let first = index * choices;
            let sample_ids = (first..first + choices).map(|i| sample_id(base, i)).collect();
            let images = images.take();
            Prompt { token_ids: prompt, images, sample_ids, gates: Vec::new(), max_new_tokens }
        };
        let asks = prompts.into_iter().zip(lengths).enumerate().map(ask).collect();
        self.send(asks, params, streams, permit)
    }

    /// Returns the most bytes of a body.
    pub fn body_bytes(&self) -> usize {
        self.limits.body_bytes() + self.texts.images.as_ref().map_or(0, |_| IMAGE_TEXT_BYTES)
    }

    /// Returns the most bytes of a body's values that become trees.
    pub fn tree_bytes(&self) -> usize {
        self.limits.tree_bytes() + self.texts.images.as_ref().map_or(0, |_| IMAGE_TEXT_BYTES)
    }

    /// Requires that a body is within the limit without its images.
    ///
    /// Errors: `serve-body-too-large`.
    pub fn check_body(&self, body: &[u8]) -> Reply<()> {
        let most = self.limits.body_bytes();
        if body.len() <= most || body.len() - image_text_bytes(body) <= most {
            return Ok(());
        }
        let message = format!("the body has more than {most} bytes without its images");
        Err(Error::new("serve-body-too-large", message)
            .hint("the limit grows with --prompt-tokens and --max-new-tokens")
            .into())
    }

    /// Requires that a prompt of tokens has no placeholder of an image, where images are taken: it would have none.
    ///
    /// Errors: `image-count`.
    pub fn check_placeholders(&self, ids: &[u32], param: &str) -> Reply<()> {
        let pad = self.texts.images.as_ref().map(|served| served.marks.pad);
        if pad.is_none_or(|pad| !ids.contains(&pad)) {
            return Ok(());
        }
        let message =
            format!("{param} has the placeholder of an image, and images are parts of a chat's messages");
        let error = Error::new("image-count", message).hint("send the image to POST /v1/chat/completions");
        Err(Box::new(Refusal { error, param: Some(param.into()) }))
    }

    /// Returns the tokens of a text.
    ///
    /// Errors: `serve-too-long`; those of the tokenizer.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.encoding.encode(&self.texts.tokenizer, text)
    }

    /// Returns what splits a response to a prompt into thinking, text and calls of these functions.
    pub fn reader(&self, functions: Vec<Tool>, prompt: &[u32]) -> ResponseReader {
        let end = &prompt[prompt.len().saturating_sub(MARK_TOKENS)..];
        let end = || self.texts.tokenizer.decode(end, false);
        let template = self.texts.template.as_deref();
        let is_thinking = template.is_some_and(|template| template.ends_in_thinking(&end()));
        ResponseReader::new(template, functions, is_thinking)
    }

    /// Returns the tokens of a text that no template wrote, which `begins` as the tokenizer's file says, or does not.
    ///
    /// Errors: those of `encode`.
    pub fn encode_plain(&self, text: &str, begins: bool) -> Result<Vec<u32>> {
        let tokenizer = &self.texts.tokenizer;
        let work = || if begins { tokenizer.encode_beginning(text) } else { tokenizer.encode(text) };
        self.encoding.with_room(text, work)
    }

    /// Returns the tokens of a text that follows sampled tokens.
    ///
    /// Errors: those of `encode`.
    pub fn encode_after(&self, sampled: &[u32], text: &str) -> Result<Vec<u32>> {
        self.encoding.with_room(text, || self.texts.tokenizer.encode_after(sampled, text))
    }

    /// Sends prompts, for whose responses `permit` was taken, to the engine.
    pub fn send(
        &self,
        prompts: Vec<Prompt>,
        params: SamplingParams,
        streams: bool,
        permit: OwnedSemaphorePermit,
    ) -> Reply<RequestOutput> {
        let (arrived, choices) = (Instant::now(), params.choices);
        let lists = self.list_permits(&prompts, &params)?;
        let outbox = Arc::new(Outbox::new(prompts.len() * choices, streams));
        let params = Arc::new(params);
        for (index, prompt) in prompts.into_iter().enumerate() {
            self.metrics.prompt_tokens.add(prompt.token_ids.len() as u64);
            let (params, outbox, first) = (params.clone(), outbox.clone(), index * choices);
            let request = QueuedRequest { prompt, params, outbox, first, arrived };
            self.inbox.send(request).map_err(|_| stopping())?;
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
        self.metrics.requests.add(1);
        Ok(RequestOutput { outbox, _permits: [Some(permit), lists] })
    }

    /// Takes permits for all tokens that are listed for a request.
    ///
    /// Errors: `serve-bad-request` if they are more than there ever are; `serve-queue-full`.
    fn list_permits(
        &self,
        prompts: &[Prompt],
        params: &SamplingParams,
    ) -> Reply<Option<OwnedSemaphorePermit>> {
        let of = |prompt: &Prompt| {
            let drawn = prompt.sample_ids.len() * prompt.max_new_tokens * params.top;
            drawn + params.prompt_top.map_or(0, |top| prompt.token_ids.len() * (1 + top))
        };
        let (count, most) = (prompts.iter().map(of).sum::<usize>(), self.limits.listed_entries());
        if count == 0 {
            return Ok(None);
        }
        if count > most {
            let message =
                format!("{count} log-probabilities of other tokens, and {most} is the most of this server");
            return Err(
                Refusal::bad("logprobs", message).hint("ask for fewer at each token, or for fewer tokens")
            );
        }
        let permit = self.lists.clone().try_acquire_many_owned(count as u32).map_err(|_| {
            let free = self.lists.available_permits();
            let message =
                format!("{count} more log-probabilities of other tokens have no room: {free} of {most} do");
            Error::new("serve-queue-full", message).hint("try again later, or ask for fewer at each token")
        })?;
        Ok(Some(permit))
    }

    /// Returns the slot of the adapter that a request names; none if it names the model, or nothing.
    ///
    /// Errors: `serve-unknown-model`.
    pub fn adapter_of(&self, name: Option<&str>) -> Reply<Option<u32>> {
        let Settings { names, adapters, .. } = &self.settings;
        let Some(name) = name.filter(|name| !names.iter().any(|known| known == name)) else {
            return Ok(None);
        };
        if let Some(slot) = adapters.iter().position(|known| known.name == name) {
            return Ok(Some(slot as u32));
        }
        let error = Error::new("serve-unknown-model", format!("there is no model {:?} here", shown(name)))
            .hint(format!("this server has {}", self.all_names().collect::<Vec<_>>().join(", ")));
        Err(Box::new(Refusal { error, param: Some("model".into()) }))
    }

    /// Returns the name of what answers a request.
    pub fn name_of(&self, adapter: Option<u32>) -> &str {
        let Settings { names, adapters, .. } = &self.settings;
        adapter.map_or(&names[0], |slot| &adapters[slot as usize].name)
    }

    /// Returns the names that requests may have for a model.
    pub fn all_names(&self) -> impl Iterator<Item = &str> {
        let Settings { names, adapters, .. } = &self.settings;
        names.iter().map(String::as_str).chain(adapters.iter().map(|adapter| adapter.name.as_str()))
    }

    /// Returns which requests share the keys of their prompts, without one that they name.
    pub fn prefix_scope(&self, adapter: Option<u32>) -> PrefixScope {
        let weights = adapter.map_or([0; 32], |slot| self.settings.adapters[slot as usize].sha256);
        PrefixScope { weights, salt: self.settings.guard.salt() }
    }

    /// Returns a number that no other answer of this server has.
    pub fn next_id(&self) -> u64 {
        self.created << 24 | self.answers.fetch_add(1, Ordering::Relaxed) & 0xff_ffff
    }

    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Records that no client can be answered any more.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    pub fn check_open(&self) -> Reply<()> {
        if self.stopping.load(Ordering::Relaxed) { Err(stopping()) } else { Ok(()) }
    }

    /// Returns the longest response to a prompt: as the request asks, else `usual` tokens if they have room.
    fn new_tokens(&self, prompt: &[u32], params: &SamplingParams, usual: usize) -> Reply<usize> {
        if prompt.is_empty() {
            return Err(Refusal::bad("prompt", "the prompt has no token"));
        }
        let room = self.limits.context.saturating_sub(prompt.len()).min(self.limits.new_tokens);
        let new = params.max_new_tokens.unwrap_or(usual.min(room).max(1));
        self.limits.check_tokens(prompt.len(), new)?;
        Ok(new)
    }

    /// Takes permits for `count` responses.
    ///
    /// Errors: `serve-queue-full`; those of `check_responses`.
    pub fn permits(&self, count: usize, choices: usize) -> Reply<OwnedSemaphorePermit> {
        self.check_responses(count, choices)?;
        let Limits { slots, queue, .. } = self.limits;
        self.permits.clone().try_acquire_many_owned(count as u32).map_err(|_| {
            let free = self.permits.available_permits();
            let message = format!(
                "{count} more responses have no room: {} of {} places are taken, {slots} running and {queue} waiting",
                self.limits.responses() - free,
                self.limits.responses()
            );
            Error::new("serve-queue-full", message).hint("try again later, or start the server with a larger --queue").into()
        })
    }

    /// Refuses more responses than the server ever holds.
    ///
    /// Errors: `serve-bad-request`.
    pub fn check_responses(&self, count: usize, choices: usize) -> Reply<()> {
        let Limits { slots, .. } = self.limits;
        if choices > slots {
            return Err(Refusal::bad("n", format!("n = {choices}: {slots} responses run at one time here"))
                .hint("ask for fewer, or start the server with a larger --sequences"));
        }
        if count > self.limits.responses() {
            let message = format!("{count} responses, and this server holds {}", self.limits.responses());
            return Err(Refusal::bad("prompt", message).hint("send fewer prompts at a time"));
        }
        Ok(())
    }

    /// Returns the first sample id of a request: its seed, or a number of its own.
    fn base(&self, params: &SamplingParams) -> u64 {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        params.seed.unwrap_or_else(|| {
            let bits = philox(self.settings.sampling.seed, Stream::Request, number, 0);
            u64::from(bits[1]) << 32 | u64::from(bits[0])
        })
    }
}

/// Returns the number whose random numbers a response draws with. With the server's seed, the first response to seed s
/// is sample s of a rollout.
fn sample_id(base: u64, index: usize) -> u64 {
    base.wrapping_add((index as u64) << CHOICE_SHIFT)
}

fn stopping() -> Box<Refusal> {
    Error::new("serve-stopping", "the server has been asked to stop and takes no more requests").into()
}

pub fn seconds_now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
