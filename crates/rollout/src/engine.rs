//! The engine's loop: schedule a pass, run the model, draw tokens, end sequences.

use crate::ahead;
use crate::drafts::Drafter;
use crate::ends::DrawnEnds;
use crate::limits::{EngineLimits, OnFull};
use crate::pass_masks::PassMasks;
use crate::samples::{Finish, Samples};
use crate::schedule::{Next, Schedule};
use crate::stats::RolloutStats;
use plimsoll_base::{Error, Result, slugs};
use plimsoll_device::{Device, KEY_WORDS, Sampling, draw_key};
use plimsoll_model::{
    Activations, Decoder, DrawRun, ImageIndex, NO_SLOT, Pass, PassIndex, SeenImages, TextImage, TextPlaces,
    draw_runs, layers, list_rows, name_rows, score_rows, upload_keys,
};

/// Decides when a response ends, in addition to end-of-text and length; implemented where there is text.
pub trait StopCondition {
    /// Returns true to end the turn after a token drawn for `sample`; `turn`: its tokens so far, including that one.
    fn stops(&mut self, sample: usize, turn: &[u32]) -> bool;

    /// Called when `sample` has ended; others may still run. `finish` is `Length` if an answer had no room.
    fn ended(&mut self, _sample: usize, _response: &[u32], _finish: Finish) {}

    /// True if a response may go on after a turn: the engine then calls `turn_ended`, and `answer` returns what
    /// follows. Decode passes then do not run ahead of the host.
    fn has_turns(&self) -> bool {
        false
    }

    /// Called when a turn of `sample` has ended, with its tokens; its keys and values are kept until the answer.
    fn turn_ended(&mut self, _sample: usize, _turn: &[u32], _finish: Finish) {}

    /// Takes the answer to one ended turn: returns its sample, and fills `tokens`, which is empty, with what follows
    /// the turn; no token ends the response. With `wait` nothing else can run and an answer must come; without, returns
    /// `None` if none has come yet. The order of answers changes no bit of a response.
    ///
    /// Errors: those of the environment; they end the rollout.
    fn answer(&mut self, _wait: bool, _tokens: &mut Vec<u32>) -> Result<Option<usize>> {
        Ok(None)
    }

    /// True if responses may have masks: the engine then calls `mask`. Decode passes do not run ahead of the host.
    fn has_masks(&self) -> bool {
        false
    }

    /// Writes which tokens `sample` may have next, after those so far: a bit a token, V / 32 words. False if it may
    /// have any. Called once a pass for each sample that draws in it, after the pass's layers were begun.
    ///
    /// Errors: those of what a response may be; they end the rollout.
    fn mask(&mut self, _sample: usize, _so_far: &[u32], _words: &mut [u32]) -> Result<bool> {
        Ok(false)
    }

    /// Returns what is added to the logits of a sample's next token before the temperature: tokens, ascending.
    fn biases(&self, _sample: usize) -> &[(u32, f32)] {
        &[]
    }

    /// Returns the images that prompts and answers name, by their first vectors, ascending.
    fn images(&self) -> &[TextImage] {
        &[]
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct NeverStop;

impl StopCondition for NeverStop {
    fn stops(&mut self, _sample: usize, _response: &[u32]) -> bool {
        false
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Token ids of each prompt, at least one.
    pub prompts: &'a [&'a [u32]],
    pub group_size: usize,
    /// Maximum tokens of a turn; a response without an environment is one turn.
    pub max_new_tokens: usize,
    pub sampling: Sampling,
    /// Tokens that end a response; empty to run to the limit.
    pub eos: &'a [u32],
    /// Sample s draws with the random numbers of `first_sample_id + s`.
    pub first_sample_id: u64,
    /// The prompts' indices among all over which ids are counted, if these are only some of them; else empty.
    pub numbers: &'a [usize],
}

impl Request<'_> {
    /// Returns the id of sample `s` of these prompts.
    pub(crate) fn sample_id(&self, s: usize) -> u64 {
        let (prompt, of_group) = (s / self.group_size, s % self.group_size);
        let prompt = self.numbers.get(prompt).copied().unwrap_or(prompt);
        self.first_sample_id + (prompt * self.group_size + of_group) as u64
    }
}

/// How far a response has come when a request begins.
#[derive(Clone, Copy, Debug)]
pub enum SoFar<'b> {
    /// Its tokens so far, none of a new one, and their log-probabilities. It goes on after them: its keys are computed
    /// again, and its next token is drawn with the random numbers of its position.
    Tokens { ids: &'b [u32], logprobs: &'b [f32] },
    /// Turns that have ended, each with its answer: it goes on with a new turn.
    Turns { ids: &'b [u32], logprobs: &'b [f32] },
    /// It has ended, and takes no part.
    Ended,
}

/// The decoder and device of the engine's passes.
#[derive(Clone, Copy)]
pub struct Model<'m, 'a, 'p> {
    pub dev: &'m dyn Device,
    pub decoder: &'m Decoder<'a>,
    pub acts: Activations<'p>,
    /// The images that prompts name, if the model takes such.
    pub sight: Option<SeenImages<'m, 'p>>,
}

/// What the head computes for the head rows of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeadRuns<'r> {
    /// Consecutive rows from the first on that are drawn alike.
    pub(crate) runs: &'r [DrawRun],
    /// The tokens of the rows after those, whose log-probabilities at temperature 1 are computed.
    pub(crate) given: &'r [u32],
    /// Tokens of each given row, `EngineLimits::listed` each, whose log-probabilities are computed too; or none.
    pub(crate) named: &'r [u32],
    /// Rows whose most likely tokens are listed, by the first of each run.
    pub(crate) listed: &'r [(usize, DrawRun)],
}

/// The rollout engine. Its vectors are allocated once and never grow.
#[derive(Debug)]
pub struct Engine {
    pub(crate) limits: EngineLimits,
    pub(crate) schedule: Schedule,
    pub(crate) index: PassIndex,
    pub(crate) keys: Vec<u32>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<f32>,
    /// The most likely tokens of each head row and their log-probabilities, `EngineLimits::listed` each.
    pub(crate) listed: (Vec<u32>, Vec<f32>),
    /// Log-probabilities of named tokens of the last head rows, as many each.
    pub(crate) named: Vec<f32>,
    pub(crate) drafter: Option<Drafter>,
    /// Whether the response of each row has ended, in passes that run ahead.
    pub(crate) ended: Vec<bool>,
    /// The environment's latest answer.
    answer: Vec<u32>,
    /// Where responses end besides where they end by themselves, for measuring.
    drawn_ends: Option<DrawnEnds>,
    /// Rows of the pass that are vectors of images.
    vectors: ImageIndex,
    masks: PassMasks,
}

impl Engine {
    pub fn new(limits: EngineLimits, on_full: OnFull) -> Engine {
        assert!(limits.rows >= limits.sequences && limits.sequences > 0, "{limits:?}");
        assert!(limits.drafts.is_none() || !limits.has_units(), "drafts with a state: {limits:?}");
        limits.check(limits.prompt_tokens);
        let rows = limits.pass().head_rows;
        Engine {
            limits,
            schedule: Schedule::new(limits, on_full),
            index: PassIndex::with_capacity(&limits.pass()),
            keys: Vec::with_capacity(rows * KEY_WORDS),
            tokens: vec![0; rows],
            logprobs: vec![0.0; rows],
            listed: (vec![0; rows * limits.listed], vec![0.0; rows * limits.listed]),
            named: vec![0.0; rows * limits.listed],
            drafter: limits.drafts.map(|of| Drafter::new(of, &limits)),
            ended: Vec::with_capacity(rows),
            answer: Vec::new(),
            drawn_ends: None,
            vectors: ImageIndex::default(),
            masks: PassMasks::default(),
        }
    }

    /// Makes room for prompts with images.
    pub fn take_images(&mut self) {
        self.take_images_of(self.limits.prompt_tokens);
    }

    /// Makes room for prompts of some length with images.
    pub(crate) fn take_images_of(&mut self, prompt: usize) {
        let rows = self.limits.pass().rows;
        self.index.places.reserve_exact(3 * rows);
        self.vectors = ImageIndex::with_capacity(rows);
        self.schedule.places = (0..self.limits.samples).map(|_| TextPlaces::with_capacity(prompt)).collect();
        self.schedule.own_places = vec![None; self.limits.samples];
    }

    /// Makes room for responses that choose among several adapters.
    pub fn take_adapters(&mut self) {
        self.index.adapters.reserve_exact(self.limits.pass().rows);
        self.schedule.adapters = vec![NO_SLOT; self.limits.samples];
    }

    /// Returns the heap bytes that `take_adapters` adds.
    pub fn adapter_bytes(limits: &EngineLimits) -> u64 {
        (4 * (limits.pass().rows + limits.samples)) as u64
    }

    /// Returns the heap bytes that masks over a vocabulary add.
    pub fn mask_bytes(limits: &EngineLimits, vocab: u32) -> u64 {
        if limits.own.masks { PassMasks::bytes(limits.pass().head_rows, vocab) } else { 0 }
    }

    /// Returns the heap bytes that `take_images` adds.
    pub fn image_bytes(limits: &EngineLimits) -> u64 {
        Engine::image_bytes_of(limits, limits.prompt_tokens)
    }

    pub(crate) fn image_bytes_of(limits: &EngineLimits, prompt: usize) -> u64 {
        let of_groups = limits.samples * (12 * prompt + size_of::<TextPlaces>());
        (20 * limits.pass().rows + of_groups) as u64
    }

    /// Returns the heap bytes of places of sequences whose answers have images: each as long as it may become, and one
    /// that is made.
    pub fn own_place_bytes(limits: &EngineLimits) -> u64 {
        let one = 16 * (limits.prompt_tokens + limits.new_tokens);
        ((limits.samples + 2) * one) as u64
    }

    /// Ends responses at lengths of a distribution as well, for measuring with a model that does not end them.
    pub fn draw_ends(&mut self, ends: DrawnEnds) {
        self.drawn_ends = Some(ends);
    }

    /// Drafts at most `depth` tokens of a sequence from now on, none with 0, and forgets what it drafts from; for
    /// measuring with an engine that may draft as many.
    pub fn limit_drafts(&mut self, depth: usize) {
        let Some((drafter, of)) = self.drafter.as_mut().zip(self.limits.drafts) else { return };
        drafter.limit(depth.min(of.depth));
    }

    /// Returns the heap bytes of an engine with these limits, without those of drafts.
    pub fn host_bytes(limits: &EngineLimits) -> u64 {
        let answer = 8 * limits.new_tokens as u64; // A vector that grows by doubling.
        Schedule::bytes(limits)
            + PassIndex::bytes(&limits.pass())
            + (29 + 12 * limits.listed as u64) * limits.pass().head_rows as u64
            + answer
    }

    /// Returns the heap bytes of the texts from which drafts are made, and of drafts.
    pub fn draft_bytes(limits: &EngineLimits) -> u64 {
        limits.drafts.map_or(0, |of| Drafter::bytes(of, limits))
    }

    /// Samples responses to all prompts into `out`.
    ///
    /// Errors: `prompt-too-long`, `rollout-not-finite`.
    pub fn run(
        &mut self,
        dev: &dyn Device,
        decoder: &Decoder<'_>,
        acts: Activations<'_>,
        request: &Request<'_>,
        stop: &mut dyn StopCondition,
        out: &mut Samples,
    ) -> Result<RolloutStats> {
        self.run_from(Model { dev, decoder, acts, sight: None }, request, &[], stop, out)
    }

    /// Samples as `run` does, from where each response has come to; `begun`: an entry a sample, or none if all are new.
    ///
    /// Errors: as `run`; `image-rows-incomplete`.
    pub fn run_from(
        &mut self,
        model: Model<'_, '_, '_>,
        request: &Request<'_>,
        begun: &[SoFar<'_>],
        stop: &mut dyn StopCondition,
        out: &mut Samples,
    ) -> Result<RolloutStats> {
        self.begin(model, request, out)?;
        let samples = request.prompts.len() * request.group_size;
        assert!(begun.is_empty() || begun.len() == samples, "an entry a sample");
        for (s, begun) in begun.iter().enumerate() {
            match *begun {
                SoFar::Tokens { ids, logprobs } => out.go_on(s, ids, logprobs),
                SoFar::Turns { ids, logprobs } => out.begin_turn(s, ids, logprobs),
                SoFar::Ended => self.schedule.skip(s),
            }
        }
        self.draw(model, request, stop, out)
    }

    fn begin(&mut self, model: Model<'_, '_, '_>, request: &Request<'_>, out: &mut Samples) -> Result<()> {
        self.check(request)?;
        let images = model.sight.map_or(&[][..], |sight| sight.images);
        for (places, prompt) in self.schedule.places.iter_mut().zip(request.prompts) {
            places.fill(prompt, model.decoder.spec.vocab, images)?;
        }
        self.schedule.own_places.iter_mut().for_each(|own| *own = None);
        out.reset(request.prompts.len() * request.group_size);
        self.schedule.begin(request.prompts.iter().map(|p| p.len()), request.group_size);
        self.drafter.iter_mut().for_each(Drafter::begin);
        Ok(())
    }

    /// Draws until every response has ended.
    fn draw(
        &mut self,
        model: Model<'_, '_, '_>,
        request: &Request<'_>,
        stop: &mut dyn StopCondition,
        out: &mut Samples,
    ) -> Result<RolloutStats> {
        let mut stats = RolloutStats::default();
        let (has_turns, has_masks) = (stop.has_turns(), stop.has_masks());
        loop {
            if has_turns {
                self.take_answers(false, (model, request), stop, out)?;
            }
            if !has_masks && self.verify((model, request), stop, out, &mut stats)? {
                continue;
            }
            let ran = match model.dev.pipeline() {
                Some(pipeline) if self.limits.ahead && !has_turns && !has_masks => {
                    let mut run = ahead::Run { pipeline, model, request };
                    self.run_ahead(&mut run, stop, out, &mut stats)?
                }
                _ => false,
            };
            if ran {
                continue;
            }
            match self.schedule.next_pass(|g| request.prompts[g], out, &mut self.index) {
                Next::Pass => {}
                Next::Answer => {
                    self.take_answers(true, (model, request), stop, out)?;
                    continue;
                }
                Next::Nothing => break,
            }
            let rows = self.index.head_rows.len();
            let runs = [DrawRun { masks: has_masks, ..DrawRun::plain(rows, request.sampling) }];
            let heads = HeadRuns { runs: &runs, ..HeadRuns::default() };
            let key = |s| (request.sampling.seed, request.sample_id(s));
            let compute = |model: Model<'_, '_, '_>, pass: &Pass<'_>| layers(model.dev, model.decoder, pass);
            self.pass(model, &heads, key, (out, stop), &mut stats, compute)?;
            for row in 0..self.index.head_rows.len() {
                self.take_token(row, request, stop, out)?;
            }
        }
        stats.preemptions = self.schedule.preemptions;
        Ok(stats)
    }

    /// Runs the model over the scheduled rows, its layers by `compute`. A sample draws with the random numbers of the
    /// seed and the id that `key_of` returns, by the masks and biases of `masker`. Tokens and log-probabilities are
    /// copied to the host.
    ///
    /// Errors: those of the device and of `masker`.
    pub(crate) fn pass(
        &mut self,
        model: Model<'_, '_, '_>,
        heads: &HeadRuns<'_>,
        key_of: impl Fn(usize) -> (u64, u64),
        (out, masker): (&Samples, &mut dyn StopCondition),
        stats: &mut RolloutStats,
        compute: impl FnOnce(Model<'_, '_, '_>, &Pass<'_>),
    ) -> Result<()> {
        let (dev, decoder) = (model.dev, model.decoder);
        if self.limits.own.masks {
            self.masks.begin(self.limits.pass().head_rows, decoder.spec.vocab);
        }
        let pass = self.upload(model);
        compute(model, &pass);
        self.push_keys(key_of, out);
        let r = self.index.head_rows.len();
        self.keys.resize(KEY_WORDS * r, 0);
        upload_keys(dev, &pass, &self.keys);
        self.put_own(model, &pass, heads.runs, (out, masker))?;
        let tokens = draw_runs(dev, decoder, &pass, heads.runs);
        score_rows(dev, decoder, &pass, heads.given);
        for (first, run) in heads.listed {
            list_rows(dev, decoder, &pass, *first, run);
        }
        if let Some(of) = pass.listed().filter(|_| !heads.listed.is_empty()) {
            let count = r * self.limits.listed;
            dev.read_u32(of.ids, 0, &mut self.listed.0[..count]);
            dev.read_f32(of.logprobs, 0, &mut self.listed.1[..count]);
        }
        if !heads.named.is_empty() {
            let logprobs = name_rows(dev, decoder, &pass, heads.named);
            dev.read_f32(logprobs, 0, &mut self.named[..heads.named.len()]);
        }
        dev.read_u32(tokens, 0, &mut self.tokens[..r]);
        dev.read_f32(pass.head_out().logprobs, 0, &mut self.logprobs[..r]);
        stats.passes += 1;
        stats.rows += self.index.ids.len() as u64;
        dev.check()
    }

    /// Puts in the keys of the draws of all head rows. Neighbours of one sample are at positions after each other.
    pub(crate) fn push_keys(&mut self, key_of: impl Fn(usize) -> (u64, u64), out: &Samples) {
        self.keys.clear();
        let (mut last, mut more) = (None, 0);
        for &s in &self.schedule.head_samples {
            more = if last == Some(s) { more + 1 } else { 0 };
            last = Some(s);
            let (seed, id) = key_of(s);
            self.keys.extend_from_slice(&draw_key(seed, id, out.ids(s).len() + more));
        }
    }

    /// Uploads what rows of runs have of their own, while the device computes the layers.
    fn put_own(
        &mut self,
        model: Model<'_, '_, '_>,
        pass: &Pass<'_>,
        runs: &[DrawRun],
        (out, masker): (&Samples, &mut dyn StopCondition),
    ) -> Result<()> {
        if !runs.iter().any(|run| run.masks || run.biases) {
            return Ok(());
        }
        let mut row = 0;
        for run in runs {
            for _ in 0..run.rows {
                let sample = self.schedule.head_samples[row];
                if run.biases {
                    pass.put_biases(model.dev, model.decoder, row, masker.biases(sample));
                }
                if run.masks {
                    self.masks.push(|words| masker.mask(sample, out.ids(sample), words))?;
                } else if self.limits.own.masks {
                    self.masks.push_none();
                }
                row += 1;
            }
        }
        if self.limits.own.masks {
            self.masks.upload(model.dev, pass, self.index.head_rows.len());
        }
        Ok(())
    }

    /// Uploads the scheduled rows.
    pub(crate) fn upload<'p>(&mut self, model: Model<'_, '_, 'p>) -> Pass<'p> {
        let Model { dev, decoder, acts, sight } = model;
        let Some(sight) = sight else { return Pass::upload(dev, acts, &self.index) };
        sight.upload(dev, acts, (&mut self.index, &mut self.vectors), decoder.spec.vocab)
    }

    /// Takes the answers that have come; with `wait` at least one.
    fn take_answers(
        &mut self,
        wait: bool,
        of: (Model<'_, '_, '_>, &Request<'_>),
        stop: &mut dyn StopCondition,
        out: &mut Samples,
    ) -> Result<()> {
        let mut wait = wait;
        loop {
            self.answer.clear();
            let Some(s) = stop.answer(wait, &mut self.answer)? else {
                assert!(!wait, "every turn has an answer");
                return Ok(());
            };
            wait = false;
            let has_room = out.ids(s).len() + self.answer.len() < self.limits.new_tokens;
            if !self.answer.is_empty() && has_room {
                out.append(s, &self.answer);
                self.place_answer(s, of, stop, out)?;
                self.schedule.go_on(s);
                continue;
            }
            let finish = if has_room || self.answer.is_empty() { out.finish(s) } else { Finish::Length };
            stop.ended(s, out.ids(s), finish);
            self.schedule.end(s);
        }
    }

    /// Gives a sequence places of its own if its latest answer has images.
    ///
    /// Errors: `image-rows-incomplete`.
    fn place_answer(
        &mut self,
        s: usize,
        (model, request): (Model<'_, '_, '_>, &Request<'_>),
        stop: &mut dyn StopCondition,
        out: &Samples,
    ) -> Result<()> {
        let vocab = model.decoder.spec.vocab;
        if self.answer.iter().any(|id| *id >= vocab) {
            let prompt = request.prompts[s / request.group_size];
            let places = TextPlaces::of(&[prompt, out.ids(s)].concat(), vocab, stop.images())?;
            self.schedule.own_places[s] = Some(places);
        }
        Ok(())
    }

    /// Takes the token drawn in a head row. True if its turn has ended.
    pub(crate) fn take_token(
        &mut self,
        row: usize,
        request: &Request<'_>,
        stop: &mut dyn StopCondition,
        out: &mut Samples,
    ) -> Result<bool> {
        let (s, token, _) = self.take_drawn(row, out)?;
        let ends = (request.eos, request.max_new_tokens);
        let drawn_end = self.drawn_ends.map(|ends| ends.length(request.sample_id(s)));
        let is_over = drawn_end.is_some_and(|length| out.ids(s).len() >= length);
        let Some(finish) = self.finish(s, token, ends, out, |turn| is_over || stop.stops(s, turn)) else {
            return Ok(false);
        };
        if stop.has_turns() {
            stop.turn_ended(s, out.turn(s), finish);
            self.schedule.pause(s);
            out.end_turn(s, finish);
        } else {
            self.learn(s, request, out);
            out.end_turn(s, finish);
            stop.ended(s, out.ids(s), finish);
            self.schedule.end(s);
        }
        Ok(true)
    }

    /// Adds the token drawn in a head row to its sample. Returns the sample, the token and its log-probability.
    ///
    /// Errors: `rollout-not-finite`.
    pub(crate) fn take_drawn(&self, row: usize, out: &mut Samples) -> Result<(usize, u32, f32)> {
        let (s, token, logprob) = (self.schedule.head_samples[row], self.tokens[row], self.logprobs[row]);
        if token == u32::MAX || !logprob.is_finite() {
            return Err(not_finite(s, out.ids(s).len(), logprob));
        }
        out.push(s, token, logprob);
        Ok((s, token, logprob))
    }

    /// Returns why the turn of a sample has ended with its last token, if it has: the token is one of `ends`, `stops`
    /// says so, or the turn has its full length.
    pub(crate) fn finish(
        &self,
        s: usize,
        token: u32,
        (ends, max_new_tokens): (&[u32], usize),
        out: &Samples,
        stops: impl FnOnce(&[u32]) -> bool,
    ) -> Option<Finish> {
        let turn = out.turn(s);
        if ends.contains(&token) {
            Some(Finish::Eos)
        } else if stops(turn) {
            Some(Finish::Stop)
        } else if turn.len() == max_new_tokens || out.ids(s).len() == self.limits.new_tokens {
            Some(Finish::Length)
        } else {
            None
        }
    }

    fn check(&self, request: &Request<'_>) -> Result<()> {
        let samples = request.prompts.len() * request.group_size;
        assert!(
            samples <= self.limits.samples,
            "{samples} samples, the engine holds {}",
            self.limits.samples
        );
        assert!(request.max_new_tokens <= self.limits.new_tokens && request.max_new_tokens > 0);
        assert!(request.numbers.is_empty() || request.numbers.len() == request.prompts.len());
        for (i, prompt) in request.prompts.iter().enumerate() {
            assert!(!prompt.is_empty(), "prompt {i} is empty");
            if prompt.len() > self.limits.prompt_tokens {
                let limit = self.limits.prompt_tokens;
                return Err(Error::new(
                    "prompt-too-long",
                    format!("prompt {i} has {} tokens, the limit is {limit}", prompt.len()),
                )
                .hint("raise data.prompt_tokens_max, or set data.overlong = \"drop\" or \"truncate-left\""));
            }
        }
        Ok(())
    }
}

fn not_finite(sample: usize, position: usize, logprob: f32) -> Error {
    Error::new(
        slugs::ROLLOUT_NOT_FINITE,
        format!("sample {sample}, token {position}: the logits are not finite (log-probability {logprob})"),
    )
    .hint("the weights have diverged: lower train.learning_rate, or start from the last good checkpoint")
}
