//! Requests for samples, in the engine's live form: prompts and responses of all tenants in one pass, each with the
//! adapter that it names, or none.

use crate::snapshots::Snapshots;
use plimsoll_base::{Error, Result};
use plimsoll_device::Sampling;
use plimsoll_rollout::{Ask, Finish, LISTED, Likeliest, Listener, Live, NamedTokens, PrefixScope};
use plimsoll_serve::Texts;
use plimsoll_text::{StopMatcher, StreamDecoder};
use plimsoll_tinker::{
    Job, JobAnswer, Lane, Ranked, SampleAnswer, SampleEnd, SampleJob, SampledTokens, StopRule, TakenJob,
    Tinker,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// The log-probability of a place without a token.
const NONE: f32 = -99999.0;
/// Passes after which it is asked whether clients have given requests up.
const LOOKS: u64 = 16;

/// A request under way.
struct Drawing {
    taken: TakenJob,
    /// Responses that have a place, and those that have ended.
    begun: u32,
    ended: u32,
    /// The slot of its adapter, which it holds until it ends.
    slot: Option<u32>,
    named: Option<Arc<NamedTokens>>,
    answer: SampleAnswer,
    failed: Option<Error>,
}

/// A response under way.
struct Response {
    drawing: usize,
    index: usize,
    text: Option<TextStops>,
}

struct TextStops {
    decoder: StreamDecoder,
    matcher: StopMatcher,
}

/// All requests under way.
pub struct Requests {
    drawings: Vec<Option<Drawing>>,
    /// Those with responses that have no place yet, in their order.
    waiting: VecDeque<usize>,
    /// By the engine's slot.
    responses: Vec<Option<Response>>,
    texts: Texts,
    passes: u64,
    tinker: Arc<Tinker>,
    /// True if a response has ended since the last pass.
    freed: bool,
}

impl Requests {
    pub fn new(slots: usize, texts: Texts, tinker: Arc<Tinker>) -> Requests {
        let responses = (0..slots).map(|_| None).collect();
        let (drawings, waiting) = (Vec::new(), VecDeque::new());
        Requests { drawings, waiting, responses, texts, passes: 0, tinker, freed: false }
    }

    /// True if no more requests should be taken: some wait for a place.
    pub fn is_full(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes a request, which is answered when all its responses have ended.
    pub fn take(&mut self, taken: TakenJob) {
        let Job::Sample(job) = &taken.job else { unreachable!("the lane has samples alone") };
        if let Err(error) = check(job) {
            return taken.answer(Err(error));
        }
        let (answer, named) = (begun(job), named(job));
        let drawing = Drawing { taken, begun: 0, ended: 0, slot: None, named, answer, failed: None };
        let free = self.drawings.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.drawings.push(None);
            self.drawings.len() - 1
        });
        self.drawings[index] = Some(drawing);
        self.waiting.push_back(index);
    }

    /// Gives waiting responses the places that are free.
    ///
    /// Errors: those of the device.
    pub fn admit(&mut self, live: &mut Live<'_, '_, '_>, snapshots: &mut Snapshots<'_, '_>) -> Result<()> {
        while let Some(&index) = self.waiting.front() {
            let drawing = self.drawings[index].as_mut().expect("it waits");
            let Job::Sample(job) = &drawing.taken.job else { unreachable!("the lane has samples alone") };
            let left = job.num_samples - drawing.begun;
            let count = (left as usize).min(live.free_slots());
            if count == 0 {
                return Ok(());
            }
            if let (Some(store), None) = (job.store, drawing.slot) {
                match snapshots.hold(store) {
                    Ok(None) => return Ok(()),
                    Ok(slot) => drawing.slot = slot,
                    Err(error) => {
                        self.waiting.pop_front();
                        (drawing.failed, drawing.ended) = (Some(error), job.num_samples);
                        self.end_if_all(index, snapshots);
                        continue;
                    }
                }
            }
            let Some(slots) = admit_some(live, drawing, count, &self.texts.eos) else { return Ok(()) };
            for (number, slot) in slots.into_iter().enumerate() {
                let index_of = drawing.begun as usize + number;
                let text = match &job.params.stop {
                    StopRule::Texts(stops) => Some(TextStops {
                        decoder: StreamDecoder::new(false),
                        matcher: StopMatcher::new(stops).expect("it was checked"),
                    }),
                    _ => None,
                };
                self.responses[slot] = Some(Response { drawing: index, index: index_of, text });
            }
            drawing.begun += count as u32;
            if drawing.begun == job.num_samples {
                self.waiting.pop_front();
            }
        }
        Ok(())
    }

    /// Runs one pass. Returns false if there is nothing to run.
    ///
    /// Errors: those of the device.
    pub fn pass(&mut self, live: &mut Live<'_, '_, '_>, snapshots: &mut Snapshots<'_, '_>) -> Result<bool> {
        self.passes += 1;
        if self.passes.is_multiple_of(LOOKS) {
            self.drop_left(live, snapshots);
        }
        self.freed = false;
        let ran = live.step(self)?;
        for index in 0..self.drawings.len() {
            self.end_if_all(index, snapshots);
        }
        Ok(ran)
    }

    /// Ends the requests that their clients have given up.
    fn drop_left(&mut self, live: &mut Live<'_, '_, '_>, snapshots: &mut Snapshots<'_, '_>) {
        for index in 0..self.drawings.len() {
            let Some(drawing) = &mut self.drawings[index] else { continue };
            if !drawing.taken.is_cancelled() {
                continue;
            }
            let Job::Sample(job) = &drawing.taken.job else { unreachable!("the lane has samples alone") };
            drawing.ended = job.num_samples - (drawing.begun - drawing.ended);
            drawing.begun = job.num_samples;
            drawing.failed = Some(Error::new("tinker-future-gone", "the request was cancelled"));
            self.waiting.retain(|other| *other != index);
            for slot in 0..self.responses.len() {
                if self.responses[slot].as_ref().is_some_and(|response| response.drawing == index) {
                    live.cancel(slot);
                    self.responses[slot] = None;
                    drawing.ended += 1;
                }
            }
            self.end_if_all(index, snapshots);
        }
    }

    fn end_if_all(&mut self, index: usize, snapshots: &mut Snapshots<'_, '_>) {
        let Some(drawing) = &self.drawings[index] else { return };
        let Job::Sample(job) = &drawing.taken.job else { unreachable!("the lane has samples alone") };
        if drawing.ended < job.num_samples {
            return;
        }
        let store = job.store;
        let Drawing { taken, answer, failed, slot, .. } = self.drawings[index].take().expect("it was there");
        if let (Some(store), Some(_)) = (store, slot) {
            snapshots.release(store);
        }
        taken.answer(match failed {
            Some(error) => Err(error),
            None => Ok(JobAnswer::Sampled(answer)),
        });
    }

    fn of(&mut self, slot: usize) -> Option<(&mut Drawing, usize)> {
        let response = self.responses[slot].as_ref()?;
        Some((self.drawings[response.drawing].as_mut()?, response.index))
    }
}

/// Requires what the engine has room for.
///
/// Errors: `tinker-bad-request`, `stop-string-invalid`.
fn check(job: &SampleJob) -> Result<()> {
    let most = job.topk_prompt.max(job.topk_sample);
    let columns = job.target_prompt.as_ref().map_or(0, |(columns, _)| *columns);
    for (what, count) in [("likeliest tokens", most), ("target_prompt_logprobs", columns)] {
        if count as usize > LISTED {
            let message = format!("{count} {what} of a position: {LISTED} is the most here");
            return Err(Error::new("tinker-bad-request", message));
        }
    }
    if let StopRule::Texts(stops) = &job.params.stop {
        StopMatcher::new(stops)?;
    }
    Ok(())
}

/// Returns an answer with nothing in it yet.
fn begun(job: &SampleJob) -> SampleAnswer {
    let scores = scores(job);
    let ranked = |k: u32, holes: usize| Ranked {
        k,
        tokens: vec![0; k as usize * holes],
        logprobs: vec![NONE; k as usize * holes],
    };
    let one = || SampledTokens {
        end: SampleEnd::Length,
        tokens: Vec::new(),
        logprobs: Vec::new(),
        ranked: (job.topk_sample > 0).then(|| ranked(job.topk_sample, 0)),
    };
    SampleAnswer {
        sequences: (0..job.num_samples).map(|_| one()).collect(),
        prompt_logprobs: (scores && job.prompt_logprobs).then(|| vec![f32::NAN]),
        ranked_prompt: (job.topk_prompt > 0).then(|| ranked(job.topk_prompt, 1)),
        target_prompt: job.target_prompt.as_ref().map(|(columns, _)| (*columns, Vec::new())),
        cached_tokens: 0,
    }
}

/// True if the tokens of the prompt are scored.
fn scores(job: &SampleJob) -> bool {
    job.prompt_logprobs || job.topk_prompt > 0 || job.target_prompt.is_some()
}

fn named(job: &SampleJob) -> Option<Arc<NamedTokens>> {
    let (columns, ids) = job.target_prompt.as_ref().filter(|(columns, _)| *columns > 0)?;
    // A place without a token names the first one, whose number is dropped.
    let ids = ids.iter().map(|id| id.unwrap_or(0)).collect();
    Some(Arc::new(NamedTokens { per_row: *columns as usize, ids }))
}

/// Admits responses of a request, the first of them with the numbers of its prompt.
fn admit_some(
    live: &mut Live<'_, '_, '_>,
    drawing: &Drawing,
    count: usize,
    eos: &[u32],
) -> Option<Vec<usize>> {
    let Job::Sample(job) = &drawing.taken.job else { unreachable!("the lane has samples alone") };
    let limits = live.limits();
    let room = (limits.context() - job.prompt.len()).min(limits.new_tokens);
    let wanted = job.params.max_tokens.map_or(room, |most| (most as usize).min(room)).max(1);
    let numbers: Vec<u64> = (u64::from(drawing.begun)..).take(count).collect();
    let ends: &[u32] = match &job.params.stop {
        StopRule::EndOfText => eos,
        StopRule::Tokens(ids) => ids,
        StopRule::Texts(_) => &[],
    };
    let is_first = drawing.begun == 0;
    live.admit(&Ask {
        prompt: &job.prompt,
        images: &[],
        sample_ids: &numbers,
        max_new_tokens: wanted,
        sampling: Sampling {
            temperature: job.params.temperature,
            top_k: job.params.top_k,
            top_p: job.params.top_p,
            min_p: 0.0,
            seed: job.params.seed,
        },
        ends,
        masked: false,
        biases: &[],
        adapter: drawing.slot,
        prefix: scope(&drawing.taken, job),
        scores_prompt: is_first && scores(job),
        named: drawing.named.as_ref().filter(|_| is_first),
        lists: job.topk_sample > 0 || (is_first && job.topk_prompt > 0),
    })
}

/// Returns who shares the keys of a prompt: requests of one tenant with the same saved adapter, whose number is used
/// once.
fn scope(taken: &TakenJob, job: &SampleJob) -> PrefixScope {
    let mut weights = [0; 32];
    if let Some(store) = job.store {
        weights[..8].copy_from_slice(&store.to_le_bytes());
        weights[31] = 1;
    }
    PrefixScope { weights, salt: taken.salt() }
}

/// Appends the first k of the likeliest tokens.
fn push(to: &mut Ranked, likeliest: Likeliest<'_>) {
    let k = to.k as usize;
    for at in 0..k {
        to.tokens.push(likeliest.ids.get(at).copied().unwrap_or(0));
        to.logprobs.push(likeliest.logprobs.get(at).copied().unwrap_or(NONE));
    }
}

impl Listener for Requests {
    fn waits(&self) -> bool {
        if self.is_full() { self.freed } else { self.tinker.waiting(Lane::Sampling) > 0 }
    }

    fn scored(&mut self, slot: usize, _: u32, logprob: f32, likeliest: Likeliest<'_>) {
        let Some((drawing, _)) = self.of(slot) else { return };
        let SampleAnswer { prompt_logprobs, ranked_prompt, .. } = &mut drawing.answer;
        if let Some(all) = prompt_logprobs {
            all.push(logprob);
        }
        if let Some(ranked) = ranked_prompt {
            push(ranked, likeliest);
        }
    }

    fn named(&mut self, slot: usize, logprobs: &[f32]) {
        let Some((drawing, _)) = self.of(slot) else { return };
        let Job::Sample(job) = &drawing.taken.job else { return };
        let Some(((columns, ids), (_, out))) =
            job.target_prompt.as_ref().zip(drawing.answer.target_prompt.as_mut())
        else {
            return;
        };
        let ids = &ids[out.len()..][..*columns as usize];
        out.extend(ids.iter().zip(logprobs).map(|(id, logprob)| id.map_or(f32::NAN, |_| *logprob)));
    }

    fn begun(&mut self, slot: usize, cached_tokens: usize) {
        let Some((drawing, index)) = self.of(slot) else { return };
        if index == 0 {
            drawing.answer.cached_tokens = cached_tokens as u32;
        }
    }

    fn listed(&mut self, slot: usize, likeliest: Likeliest<'_>) {
        let Some((drawing, index)) = self.of(slot) else { return };
        if let Some(ranked) = &mut drawing.answer.sequences[index].ranked {
            push(ranked, likeliest);
        }
    }

    fn drawn(&mut self, slot: usize, token: u32, logprob: f32) -> bool {
        let Some((drawing, index)) = self.of(slot) else { return true };
        let sequence = &mut drawing.answer.sequences[index];
        sequence.tokens.push(token);
        sequence.logprobs.push(logprob);
        let tokenizer = &self.texts.tokenizer;
        let Some(TextStops { decoder, matcher }) =
            self.responses[slot].as_mut().and_then(|response| response.text.as_mut())
        else {
            return false;
        };
        let (mut text, mut shown) = (String::new(), String::new());
        decoder.push(tokenizer, token, &mut text);
        matcher.push(&text, &mut shown).is_some()
    }

    fn ended(&mut self, slot: usize, how: Result<Finish>) {
        self.freed = true;
        let Some(response) = self.responses[slot].take() else { return };
        let Some(drawing) = &mut self.drawings[response.drawing] else { return };
        drawing.ended += 1;
        match how {
            Ok(Finish::Length) => {}
            Ok(Finish::Eos | Finish::Stop) => drawing.answer.sequences[response.index].end = SampleEnd::Stop,
            Err(error) => drawing.failed = Some(error),
        }
    }
}
