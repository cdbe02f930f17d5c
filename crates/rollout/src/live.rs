//! The engine in serving form: requests arrive, are cancelled and end between two passes, each with its own prompt,
//! sampling, ends and length. A response depends on nothing else that runs.
//!
//! Rows with the same sampling go through the sampler together: a pass has one draw per distinct sampling, and others
//! for responses with masks or biases, which change no bit of those without.

mod ahead;

use crate::ask::{Ask, AskImage, ENDS_MAX, NamedTokens};
use crate::engine::{Engine, Model, StopCondition};
use crate::limits::EngineLimits;
use crate::samples::{Finish, Samples};
use crate::schedule::slots::Opening;
use crate::schedule::{Next, Schedule};
use crate::stats::RolloutStats;
use plimsoll_base::{Error, Result};
use plimsoll_device::Sampling;
use plimsoll_model::{DrawRun, NO_SLOT, TextImage, layers};
use std::sync::Arc;

/// Tokens of a row, most likely first, of equals the lower id first, and their log-probabilities.
#[derive(Clone, Copy, Debug, Default)]
pub struct Likeliest<'l> {
    pub ids: &'l [u32],
    pub logprobs: &'l [f32],
}

/// Receives the engine's tokens.
pub trait Listener {
    /// Called with the tokens of a prompt after its first, in order, and their log-probabilities; before the first
    /// token of a response to it. `slot`: that of one of its responses.
    fn scored(&mut self, _slot: usize, _token: u32, _logprob: f32, _likeliest: Likeliest<'_>) {}

    /// Called after `scored` with the log-probabilities of the tokens that the request names there.
    fn named(&mut self, _slot: usize, _logprobs: &[f32]) {}

    /// Called before `drawn`, with what could have been drawn.
    fn listed(&mut self, _slot: usize, _likeliest: Likeliest<'_>) {}

    /// Called with a token drawn for the response in `slot`, which keeps it. Returns true to end the response.
    fn drawn(&mut self, slot: usize, token: u32, logprob: f32) -> bool;

    /// Called before the first token of the response in `slot`, with the tokens of its prompt whose keys were there.
    fn begun(&mut self, _slot: usize, _cached_tokens: usize) {}

    /// True if something waits until no pass runs, as a request does: passes then do not run ahead of it.
    fn waits(&self) -> bool {
        false
    }

    /// Writes which tokens the response in `slot` may have next: a bit a token, V / 32 words. Called once a pass for a
    /// response with masks, after the pass's layers were begun. An error ends this response and no other. Without it
    /// responses may have any token.
    fn mask(&mut self, _slot: usize, words: &mut [u32]) -> Result<()> {
        words.fill(u32::MAX);
        Ok(())
    }

    /// Called when the response in `slot` has ended and the slot is free. An error is that of its own logits.
    fn ended(&mut self, slot: usize, how: Result<Finish>);
}

/// An engine with slots for requests that come and go. Its vectors are allocated once and never grow.
pub struct Live<'e, 'a, 'p> {
    model: Model<'e, 'a, 'p>,
    engine: &'e mut Engine,
    out: &'e mut Samples,
    slots: Vec<Slot>,
    prompts: Vec<Vec<u32>>,
    /// Rows that go through the head, each with its slot.
    heads: Vec<(u32, usize)>,
    /// Consecutive rows that are drawn alike.
    runs: Vec<DrawRun>,
    /// Why responses of the pass have no mask.
    unmasked: Vec<(usize, Error)>,
    /// Tokens of prompts whose log-probabilities are computed.
    given: Vec<u32>,
    /// By group, and those of the rows that are scored in a pass.
    named: Vec<Option<Arc<NamedTokens>>>,
    named_ids: Vec<u32>,
    /// Consecutive rows of which the likeliest tokens are listed, by the first of each run.
    listed: Vec<(usize, DrawRun)>,
    next_ticket: u64,
    stats: RolloutStats,
}

#[derive(Clone, Debug)]
struct Slot {
    sample_id: u64,
    max_new_tokens: usize,
    sampling: Sampling,
    ends: Vec<u32>,
    lists: bool,
    masked: bool,
    biases: Vec<(u32, f32)>,
}

impl Slot {
    /// Returns what decides whether two responses are drawn in one run.
    fn alike(&self) -> (bool, bool, [u64; 2]) {
        (self.masked, !self.biases.is_empty(), bits(&self.sampling))
    }

    /// True if the host has no part in how the response is drawn.
    fn has_nothing_of_its_own(&self) -> bool {
        !self.masked && self.biases.is_empty() && !self.lists
    }

    /// Returns a run of this response alone.
    fn run(&self) -> DrawRun {
        let biases = !self.biases.is_empty();
        DrawRun { masks: self.masked, biases, ..DrawRun::plain(1, self.sampling) }
    }
}

/// Asks the listener for masks, and puts the errors of single responses aside.
struct Masker<'m> {
    listener: &'m mut dyn Listener,
    slots: &'m [Slot],
    unmasked: &'m mut Vec<(usize, Error)>,
}

impl StopCondition for Masker<'_> {
    fn stops(&mut self, _: usize, _: &[u32]) -> bool {
        false
    }

    fn mask(&mut self, slot: usize, _: &[u32], words: &mut [u32]) -> Result<bool> {
        Ok(self.listener.mask(slot, words).map_err(|error| self.unmasked.push((slot, error))).is_ok())
    }

    fn biases(&self, slot: usize) -> &[(u32, f32)] {
        &self.slots[slot].biases
    }
}

/// Bytes of a group's place for named tokens, whose ids belong to their request.
const NAMED_BYTES: usize = size_of::<Option<Arc<NamedTokens>>>();

const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };

impl<'e, 'a, 'p> Live<'e, 'a, 'p> {
    /// Starts with every slot free; drops what the engine did before.
    pub fn new(model: Model<'e, 'a, 'p>, engine: &'e mut Engine, out: &'e mut Samples) -> Self {
        let limits = engine.limits;
        let heads = limits.pass().head_rows;
        // A prompt may be as long as a sequence.
        limits.check(limits.context());
        if model.sight.is_some() {
            engine.take_images_of(limits.context());
        } else {
            engine.schedule.places.clear();
        }
        engine.schedule.begin_slots();
        out.reset(limits.samples);
        let (ends, biases) = (Vec::new(), Vec::new());
        let slot = Slot {
            sample_id: 0,
            max_new_tokens: 0,
            sampling: GREEDY,
            ends,
            masked: false,
            biases,
            lists: false,
        };
        let mut live = Live {
            model,
            engine,
            out,
            slots: vec![slot; limits.samples],
            prompts: (0..limits.samples).map(|_| Vec::with_capacity(limits.context())).collect(),
            heads: Vec::with_capacity(heads),
            runs: Vec::with_capacity(heads),
            given: Vec::with_capacity(heads),
            named: vec![None; limits.samples],
            named_ids: Vec::with_capacity(heads * limits.listed),
            listed: Vec::with_capacity(heads),
            unmasked: Vec::new(),
            next_ticket: 0,
            stats: RolloutStats::default(),
        };
        for slot in &mut live.slots {
            slot.ends.reserve_exact(ENDS_MAX);
            slot.biases.reserve_exact(limits.own.biases);
        }
        live
    }

    /// Returns the heap bytes in addition to those of the engine and its samples.
    pub fn host_bytes(limits: &EngineLimits) -> u64 {
        let slot =
            size_of::<Slot>() + ENDS_MAX * 4 + size_of::<Vec<u32>>() + limits.context() * 4 + NAMED_BYTES;
        let slot = slot + limits.own.biases * size_of::<(u32, f32)>();
        let list = size_of::<u32>() * (1 + limits.listed) + size_of::<(usize, DrawRun)>();
        let head = size_of::<(u32, usize)>() + size_of::<DrawRun>() + list;
        let own = limits.samples * slot + limits.pass().head_rows * head;
        own as u64 + Schedule::slots_bytes(limits)
    }

    /// Keeps the full blocks of prompts and responses, and some states of prompts, for prompts that begin alike, from
    /// now on: before the first request. Bits do not depend on it. Does nothing if the model's caches do not allow it.
    pub fn keep_prefixes(&mut self) {
        self.engine.schedule.keep_prefixes();
    }

    /// Returns whether `keep_prefixes` keeps anything: not next to windows shorter than a sequence.
    pub fn can_keep_prefixes(limits: &EngineLimits) -> bool {
        Schedule::shares_prefixes(limits)
    }

    /// Returns the heap bytes that `keep_prefixes` adds.
    pub fn prefix_bytes(limits: &EngineLimits) -> u64 {
        Schedule::prefix_bytes(limits)
    }

    /// Returns the heap bytes that prompts with images add.
    pub fn image_bytes(limits: &EngineLimits) -> u64 {
        Engine::image_bytes_of(limits, limits.context())
    }

    pub fn limits(&self) -> &EngineLimits {
        &self.engine.limits
    }

    /// Admits a request if there is a slot for each response now. Returns the slots in the order of `sample_ids`.
    ///
    /// Panics beyond the limits, which callers must check.
    pub fn admit(&mut self, ask: &Ask<'_>) -> Option<Vec<usize>> {
        let limits = self.engine.limits;
        let count = ask.sample_ids.len();
        assert!(!ask.prompt.is_empty() && ask.max_new_tokens > 0, "a request of no token");
        assert!(ask.max_new_tokens <= limits.new_tokens, "{} new tokens", ask.max_new_tokens);
        assert!(ask.prompt.len() + ask.max_new_tokens <= limits.context(), "beyond the context");
        assert!(ask.ends.len() <= ENDS_MAX, "{} tokens that end a response", ask.ends.len());
        assert!(ask.biases.len() <= limits.own.biases, "{} biases", ask.biases.len());
        assert!(limits.own.masks || !ask.masked, "masks of an engine that has none");
        if self.free_slots() < count {
            return None;
        }
        let opening = Opening {
            prompt_tokens: ask.prompt.len(),
            new_tokens: ask.max_new_tokens,
            count,
            ticket: self.next_ticket,
        };
        self.next_ticket += count as u64;
        let mut slots = Vec::with_capacity(count);
        let group = self.engine.schedule.open(opening, &mut slots);
        self.place(group, ask);
        match self.engine.schedule.adapters.get_mut(group) {
            Some(adapter) => *adapter = ask.adapter.unwrap_or(NO_SLOT),
            None => assert!(ask.adapter.is_none(), "an adapter for a model without slots"),
        }
        let vocab = self.model.decoder.spec.vocab;
        self.engine.schedule.hash_prompt(group, &slots, ask, vocab);
        self.engine.schedule.score_prompt(group, ask.scores_prompt);
        self.named[group] = ask.named.filter(|_| limits.listed > 0).cloned();
        if let Some(named) = &self.named[group] {
            assert!(
                ask.scores_prompt && (1..=limits.listed).contains(&named.per_row),
                "{} tokens",
                named.per_row
            );
            assert_eq!(named.ids.len(), (ask.prompt.len() - 1) * named.per_row, "K tokens in place of each");
        }
        self.prompts[group].clear();
        self.prompts[group].extend_from_slice(ask.prompt);
        for (&s, &sample_id) in slots.iter().zip(ask.sample_ids) {
            self.out.begin(s);
            let slot = &mut self.slots[s];
            (slot.sample_id, slot.max_new_tokens, slot.sampling) =
                (sample_id, ask.max_new_tokens, ask.sampling);
            slot.lists = ask.lists && limits.listed > 0;
            slot.ends.clear();
            slot.ends.extend_from_slice(ask.ends);
            slot.masked = ask.masked;
            slot.biases.clear();
            slot.biases.extend_from_slice(ask.biases);
        }
        Some(slots)
    }

    /// Gives the rows of a group's prompt their places, if the model takes images.
    fn place(&mut self, group: usize, ask: &Ask<'_>) {
        let vocab = self.model.decoder.spec.vocab;
        let Some(places) = self.engine.schedule.places.get_mut(group) else {
            assert!(ask.images.is_empty(), "images for a model of text");
            return;
        };
        let of =
            |&AskImage { first, rows, columns, .. }: &AskImage| TextImage { first, rows, columns, at: first };
        let images: Vec<TextImage> = ask.images.iter().map(of).collect();
        places.fill(ask.prompt, vocab, &images).expect("rows of whole images");
    }

    /// Ends the response in a slot between two passes. Its blocks are free at once.
    pub fn cancel(&mut self, slot: usize) {
        self.engine.schedule.close(slot);
    }

    /// Runs one pass, or some of decoding until the listener waits, and reports their tokens. False if there is nothing
    /// to run.
    ///
    /// Errors: those of the device.
    pub fn step(&mut self, listener: &mut dyn Listener) -> Result<bool> {
        if self.run_ahead(listener)? {
            return Ok(true);
        }
        let Live { engine, out, prompts, .. } = self;
        if engine.schedule.next_pass(|g| &prompts[g], out, &mut engine.index) != Next::Pass {
            return Ok(false);
        }
        self.order_heads();
        self.pass(listener, |model, pass| layers(model.dev, model.decoder, pass))?;
        Ok(true)
    }

    pub fn free_slots(&self) -> usize {
        self.engine.schedule.free_slots()
    }

    /// Returns the number of responses in passes; others wait for blocks.
    pub fn num_running(&self) -> usize {
        self.engine.schedule.num_running()
    }

    /// Returns the free blocks of all caches, and all their blocks.
    pub fn blocks(&self) -> (usize, usize) {
        self.engine.schedule.blocks()
    }

    /// Returns the blocks among the free ones that a prompt may still read.
    pub fn kept_blocks(&self) -> usize {
        self.engine.schedule.num_kept()
    }

    /// Returns the counts since the start.
    pub fn stats(&self) -> RolloutStats {
        RolloutStats { preemptions: self.engine.schedule.preemptions, ..self.stats }
    }

    /// Groups rows with the same sampling. No row's result depends on its place.
    fn order_heads(&mut self) {
        let Engine { index, schedule, .. } = &mut *self.engine;
        self.heads.clear();
        let rows = index.head_rows.iter().zip(&schedule.head_samples);
        self.heads.extend(rows.map(|(&row, &slot)| (row, slot)));
        let slots = &self.slots;
        // Rows with nothing of their own come first, in runs that are drawn as if there were no others.
        let key = |slot: usize| (slots[slot].alike(), slots[slot].lists);
        self.heads.sort_unstable_by_key(|&(row, slot)| (key(slot), row, slot));
        self.runs.clear();
        self.listed.clear();
        for (at, &(row, slot)) in self.heads.iter().enumerate() {
            (index.head_rows[at], schedule.head_samples[at]) = (row, slot);
            let is_like = at > 0 && slots[self.heads[at - 1].1].alike() == slots[slot].alike();
            match self.runs.last_mut().filter(|_| is_like) {
                Some(run) => run.rows += 1,
                None => self.runs.push(slots[slot].run()),
            }
            if slots[slot].lists {
                list_row(&mut self.listed, at, slots[slot].run());
            }
        }
        // Rows of prompts are the last ones.
        self.given.clear();
        self.named_ids.clear();
        let names = schedule.scored.iter().any(|of| self.named[schedule.group(of.sample)].is_some());
        let k = if names { schedule.listed() } else { 0 };
        for (at, of) in (self.heads.len()..).zip(&schedule.scored) {
            index.head_rows.push(of.row);
            self.given.push(of.next);
            if let Some(named) = &self.named[schedule.group(of.sample)].as_ref().filter(|_| names) {
                self.named_ids.extend_from_slice(&named.ids[of.position * named.per_row..][..named.per_row]);
            }
            // Token 0 fills what a row does not name.
            self.named_ids.resize(self.given.len() * k, 0);
            if slots[of.sample].lists {
                list_row(&mut self.listed, at, DrawRun::plain(1, GREEDY));
            }
        }
    }

    /// Returns the likeliest tokens of a head row of the last pass; none for a slot that lists none.
    fn likeliest(engine: &Engine, row: usize, lists: bool) -> Likeliest<'_> {
        let k = engine.limits.listed;
        let (ids, logprobs) = &engine.listed;
        if lists {
            Likeliest { ids: &ids[row * k..][..k], logprobs: &logprobs[row * k..][..k] }
        } else {
            Likeliest::default()
        }
    }

    fn report_scored(&self, listener: &mut dyn Listener) {
        let engine = &*self.engine;
        for (row, of) in (self.heads.len()..).zip(&engine.schedule.scored) {
            let likeliest = Self::likeliest(engine, row, self.slots[of.sample].lists);
            listener.scored(of.sample, of.next, engine.logprobs[row], likeliest);
            if let Some(named) = &self.named[engine.schedule.group(of.sample)] {
                let first = (row - self.heads.len()) * engine.limits.listed;
                listener.named(of.sample, &engine.named[first..][..named.per_row]);
            }
        }
    }

    /// Takes the token drawn in a head row. True if its response has ended.
    fn take(&mut self, row: usize, listener: &mut dyn Listener) -> bool {
        let s = self.heads[row].1;
        if let Some(at) = self.unmasked.iter().position(|(slot, _)| *slot == s) {
            let (_, error) = self.unmasked.swap_remove(at);
            self.engine.schedule.close(s);
            listener.ended(s, Err(error));
            return true;
        }
        let Live { engine, out, slots, .. } = self;
        let how = match engine.take_drawn(row, out) {
            Err(err) => Err(err),
            Ok((_, token, logprob)) => {
                if out.ids(s).len() == 1 {
                    listener.begun(s, engine.schedule.found_tokens(s));
                }
                if slots[s].lists {
                    listener.listed(s, Self::likeliest(engine, row, true));
                }
                let (stops, ends) =
                    (listener.drawn(s, token, logprob), (&*slots[s].ends, slots[s].max_new_tokens));
                let Some(finish) = engine.finish(s, token, ends, out, |_| stops) else { return false };
                Ok(finish)
            }
        };
        // Without a token nothing was drawn, and what was computed is not to be found again.
        if how.is_ok() {
            engine.schedule.keep_up(s, out.ids(s));
        }
        engine.schedule.close(s);
        listener.ended(s, how);
        true
    }
}

/// Adds a row, as a run of its own, to the runs of rows that are listed.
fn list_row(runs: &mut Vec<(usize, DrawRun)>, row: usize, of: DrawRun) {
    let is_next = |(first, last): &&mut (usize, DrawRun)| {
        first.wrapping_add(last.rows) == row && DrawRun { rows: 1, ..*last } == of
    };
    match runs.last_mut().filter(is_next) {
        Some((_, last)) => last.rows += 1,
        None => runs.push((row, of)),
    }
}

/// Returns the fields that decide whether two samplings are alike; a seed is of a row.
fn bits(how: &Sampling) -> [u64; 2] {
    let pair = |a: f32, b: f32| u64::from(a.to_bits()) << 32 | u64::from(b.to_bits());
    [pair(how.temperature, how.top_p), u64::from(how.top_k) << 32 | u64::from(how.min_p.to_bits())]
}
