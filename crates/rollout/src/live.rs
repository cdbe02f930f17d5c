//! The engine in serving form: requests arrive, are cancelled and end between two passes, each with its own prompt,
//! sampling, ends and length. A response depends on nothing else that runs.
//!
//! Rows with the same sampling go through the sampler together: a pass has one draw per distinct sampling.

use crate::engine::{Engine, Model, RolloutStats};
use crate::limits::EngineLimits;
use crate::samples::{Finish, Samples};
use crate::schedule::slots::Opening;
use crate::schedule::{Next, Schedule};
use plimsoll_base::Result;
use plimsoll_device::Sampling;
use plimsoll_model::{NO_SLOT, TextImage};

/// Maximum tokens that may end one request.
pub const ENDS_MAX: usize = 128;

/// An image of a prompt: `rows` times `columns` vectors of the table from `first` on, as rows of the prompt name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskImage {
    pub first: u32,
    pub rows: u32,
    pub columns: u32,
}

/// A request: one prompt and its responses.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'r> {
    /// Token ids, at least one; with `max_new_tokens` within `EngineLimits::context`.
    pub prompt: &'r [u32],
    /// The images of the prompt, by their first vectors, ascending. Their vectors stay as they are until all responses
    /// have ended.
    pub images: &'r [AskImage],
    /// One per response: the number whose random numbers it draws with.
    pub sample_ids: &'r [u64],
    /// From 1 to `EngineLimits::new_tokens`.
    pub max_new_tokens: usize,
    pub sampling: Sampling,
    /// Tokens that end a response, at most `ENDS_MAX`.
    pub ends: &'r [u32],
    /// The slot of its adapter, of a model with several; none for the model alone.
    pub adapter: Option<u32>,
}

/// Receives the engine's tokens.
pub trait Listener {
    /// Called with a token drawn for the response in `slot`, which keeps it. Returns true to end the response.
    fn drawn(&mut self, slot: usize, token: u32, logprob: f32) -> bool;

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
    /// Consecutive rows with the same sampling.
    runs: Vec<(usize, Sampling)>,
    next_ticket: u64,
    stats: RolloutStats,
}

#[derive(Clone, Debug)]
struct Slot {
    sample_id: u64,
    max_new_tokens: usize,
    sampling: Sampling,
    ends: Vec<u32>,
}

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
        let slot = Slot { sample_id: 0, max_new_tokens: 0, sampling: GREEDY, ends: Vec::new() };
        let mut live = Live {
            model,
            engine,
            out,
            slots: vec![slot; limits.samples],
            prompts: (0..limits.samples).map(|_| Vec::with_capacity(limits.context())).collect(),
            heads: Vec::with_capacity(heads),
            runs: Vec::with_capacity(heads),
            next_ticket: 0,
            stats: RolloutStats::default(),
        };
        live.slots.iter_mut().for_each(|slot| slot.ends.reserve_exact(ENDS_MAX));
        live
    }

    /// Returns the heap bytes in addition to those of the engine and its samples.
    pub fn host_bytes(limits: &EngineLimits) -> u64 {
        let slot = size_of::<Slot>() + ENDS_MAX * 4 + size_of::<Vec<u32>>() + limits.context() * 4;
        let head = size_of::<(u32, usize)>() + size_of::<(usize, Sampling)>();
        let own = limits.samples * slot + limits.pass().head_rows * head;
        own as u64 + Schedule::slots_bytes(limits)
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
        self.prompts[group].clear();
        self.prompts[group].extend_from_slice(ask.prompt);
        for (&s, &sample_id) in slots.iter().zip(ask.sample_ids) {
            self.out.begin(s);
            let slot = &mut self.slots[s];
            (slot.sample_id, slot.max_new_tokens, slot.sampling) =
                (sample_id, ask.max_new_tokens, ask.sampling);
            slot.ends.clear();
            slot.ends.extend_from_slice(ask.ends);
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
            |&AskImage { first, rows, columns }: &AskImage| TextImage { first, rows, columns, at: first };
        let images: Vec<TextImage> = ask.images.iter().map(of).collect();
        places.fill(ask.prompt, vocab, &images).expect("rows of whole images");
    }

    /// Ends the response in a slot between two passes. Its blocks are free at once.
    pub fn cancel(&mut self, slot: usize) {
        self.engine.schedule.close(slot);
    }

    /// Runs one pass and reports its tokens. False if there is nothing to run.
    ///
    /// Errors: those of the device.
    pub fn step(&mut self, listener: &mut dyn Listener) -> Result<bool> {
        let Live { engine, out, prompts, .. } = self;
        if engine.schedule.next_pass(|g| &prompts[g], out, &mut engine.index) != Next::Pass {
            return Ok(false);
        }
        self.order_heads();
        let Live { model, engine, out, slots, runs, stats, .. } = self;
        engine.pass(*model, runs, |s| slots[s].sample_id, out, stats)?;
        for row in 0..self.heads.len() {
            self.take(row, listener);
        }
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
        self.heads.sort_unstable_by_key(|&(row, slot)| (bits(&slots[slot].sampling), row, slot));
        self.runs.clear();
        for (at, &(row, slot)) in self.heads.iter().enumerate() {
            (index.head_rows[at], schedule.head_samples[at]) = (row, slot);
            let sampling = slots[slot].sampling;
            match self.runs.last_mut().filter(|(_, last)| bits(last) == bits(&sampling)) {
                Some((count, _)) => *count += 1,
                None => self.runs.push((1, sampling)),
            }
        }
    }

    fn take(&mut self, row: usize, listener: &mut dyn Listener) {
        let Live { engine, out, slots, .. } = self;
        let s = self.heads[row].1;
        let how = match engine.take_drawn(row, out) {
            Err(err) => Err(err),
            Ok((_, token, logprob)) => {
                let (stops, ends) =
                    (listener.drawn(s, token, logprob), (&*slots[s].ends, slots[s].max_new_tokens));
                let Some(finish) = engine.finish(s, token, ends, out, |_| stops) else { return };
                Ok(finish)
            }
        };
        engine.schedule.close(s);
        listener.ended(s, how);
    }
}

/// Returns the fields that decide whether two samplings are alike.
fn bits(how: &Sampling) -> [u64; 3] {
    let pair = |a: f32, b: f32| u64::from(a.to_bits()) << 32 | u64::from(b.to_bits());
    [pair(how.temperature, how.top_p), u64::from(how.top_k) << 32 | u64::from(how.min_p.to_bits()), how.seed]
}
