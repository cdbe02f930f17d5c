//! Drives the engine on one thread: takes requests between two passes, drops those whose clients have gone, and writes
//! the tokens of each pass to the clients' outboxes.

use crate::gate::{Admission, Gate, SampledResponse};
use crate::images::{HeldVectors, ImageTower, QueuedImages, Seeing};
use crate::outbox::{End, Outbox, ScoredToken};
use crate::state::{QueuedRequest, SamplingParams, ServerState};
use plimsoll_base::{Error, Result};
use plimsoll_device::{NO_MASS, RowMasks};
use plimsoll_grammar::{Grammar, MASK_LANES, MaskLanes};
use plimsoll_rollout::{Ask, Finish, Likeliest, Listener, Live};
use plimsoll_text::{StopMatcher, StreamDecoder};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Longest time that an idle engine waits before it checks for a signal.
pub const LOOK: Duration = Duration::from_millis(50);

/// Serves until `stop` has a signal and the running responses have ended, or their time is over.
///
/// Errors: those of the device, which end every response.
pub fn drive(
    live: Live<'_, '_, '_>,
    inbox: &Receiver<QueuedRequest>,
    (state, tower): (&ServerState, Option<&mut dyn ImageTower>),
    stop: &AtomicI32,
) -> Result<()> {
    let mut driver = Driver::new(live, state);
    driver.seeing = tower
        .zip(state.texts.images.as_ref())
        .map(|(tower, served)| Seeing::new(tower, served.vectors, state.texts.vocab));
    let mut until = None;
    loop {
        if state.is_abandoned() {
            return Ok(());
        }
        if until.is_none() && stop.load(Ordering::SeqCst) != 0 {
            state.stop();
            until = Some(Instant::now() + state.settings.grace);
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            driver.take_all(inbox);
            driver
                .fail_all(&Error::new("serve-stopping", "the server stopped before the response had ended"));
        }
        match driver.turn(inbox) {
            Ok(true) => {}
            Ok(false) if until.is_some() => return Ok(()),
            Ok(false) if driver.wait(inbox, LOOK) => {}
            Ok(false) => return Ok(()),
            Err(error) => {
                state.stop();
                driver.fail_all(&error);
                return Err(error);
            }
        }
    }
}

impl QueuedRequest {
    /// Decides whether it is drawn in the next pass.
    pub fn admission(&self) -> Admission {
        self.prompt.gates.first().map_or(Admission::Now, |gate| gate.admission())
    }

    /// Ends it with an error.
    pub fn fail(&self, error: &Error) {
        for index in 0..self.prompt.sample_ids.len() {
            self.outbox
                .write(self.first + index, |part| part.end = Some(End::Failed(Box::new(error.clone()))));
        }
        self.leave();
    }

    fn leave(&self) {
        self.prompt.gates.iter().for_each(|gate| gate.leave());
    }
}

/// Drives the engine's slots.
pub struct Driver<'h, 'e, 'a, 'p> {
    pub live: Live<'e, 'a, 'p>,
    streams: ResponseStreams<'h>,
    /// Requests in the order of arrival; the permits of their responses bound them.
    pub queue: VecDeque<QueuedRequest>,
    /// The tower, if requests may bring images.
    seeing: Option<Seeing<'h>>,
    state: &'h ServerState,
}

impl<'h, 'e, 'a, 'p> Driver<'h, 'e, 'a, 'p> {
    /// Takes the engine, which keeps the keys of prompts for others from now on.
    pub fn new(mut live: Live<'e, 'a, 'p>, state: &'h ServerState) -> Driver<'h, 'e, 'a, 'p> {
        live.keep_prefixes();
        let slots = live.limits().samples;
        let streams = ResponseStreams {
            of_slot: (0..slots).map(|_| None).collect(),
            state,
            lanes: None,
            wanted: Wanted::default(),
        };
        let queue = VecDeque::with_capacity(state.limits.responses());
        Driver { live, streams, queue, seeing: None, state }
    }

    /// Takes the requests that have come, sees one image of theirs and runs one pass. Returns false if there is nothing
    /// to run.
    ///
    /// Errors: those of the device.
    pub fn turn(&mut self, inbox: &Receiver<QueuedRequest>) -> Result<bool> {
        self.streams.wanted = Wanted { sent: self.state.sent.load(Ordering::Relaxed), ..Wanted::default() };
        self.take_all(inbox);
        self.drop_left();
        let saw = match &mut self.seeing {
            Some(seeing) => seeing.see_one(&mut self.queue)?,
            None => false,
        };
        self.admit();
        self.streams.wanted.queued = !self.queue.is_empty();
        Ok(self.pass()? || saw)
    }

    /// Waits for a request. Returns false if none can come any more.
    pub fn wait(&mut self, inbox: &Receiver<QueuedRequest>, longest: Duration) -> bool {
        match inbox.recv_timeout(longest) {
            Ok(request) => self.queue.push_back(request),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        true
    }

    pub fn take_all(&mut self, inbox: &Receiver<QueuedRequest>) {
        self.queue.extend(inbox.try_iter());
    }

    /// Drops the responses whose clients have gone; their blocks are free before the next pass.
    fn drop_left(&mut self) {
        let metrics = &self.state.metrics;
        for slot in 0..self.streams.of_slot.len() {
            let stream = &mut self.streams.of_slot[slot];
            if stream.as_ref().is_some_and(|stream| stream.outbox.is_left()) {
                self.live.cancel(slot);
                stream.take().into_iter().for_each(ResponseStream::leave);
                metrics.cancelled.add(1);
            }
        }
        self.queue.retain(|request| {
            let is_left = request.outbox.is_left();
            if is_left {
                request.leave();
            }
            metrics.cancelled.add(if is_left { request.prompt.sample_ids.len() as u64 } else { 0 });
            !is_left
        });
    }

    /// Takes requests from the queue as long as they have slots: none passes another, but those whose gate
    /// says later, or whose images are still to be seen.
    fn admit(&mut self) {
        if !self.queue.is_empty() {
            self.streams.advance();
        }
        let mut at = 0;
        while let Some(request) = self.queue.get(at) {
            match request.admission() {
                Admission::Now => {}
                Admission::Later => {
                    self.streams.wanted.soon = true;
                    at += 1;
                    continue;
                }
                Admission::Drawn(drawn) => {
                    let mut stream = ResponseStream::new(request, 0);
                    for (token, logprob) in drawn.ids.into_iter().zip(drawn.logprobs) {
                        stream.speak(self.state, token, logprob);
                    }
                    stream.end(self.state, Ok(drawn.finish));
                    self.queue.remove(at);
                    continue;
                }
                Admission::Never(error) => {
                    request.fail(&error);
                    self.queue.remove(at);
                    continue;
                }
            }
            if request.prompt.images.as_ref().is_some_and(QueuedImages::waits) {
                self.streams.wanted.soon = true;
                at += 1;
                continue;
            }
            let images = request.prompt.images.as_ref().map(QueuedImages::ask).unwrap_or_default();
            let ask = Ask {
                prompt: &request.prompt.token_ids,
                images: &images,
                sample_ids: &request.prompt.sample_ids,
                max_new_tokens: request.prompt.max_new_tokens,
                sampling: request.params.sampling,
                ends: &request.params.ends,
                adapter: request.params.adapter,
                prefix: request.params.prefix,
                scores_prompt: request.params.prompt_top.is_some(),
                named: None,
                lists: request.params.top.max(request.params.prompt_top.unwrap_or(0)) > 0,
                masked: request.params.grammar.is_some(),
                biases: &request.params.biases,
            };
            let Some(slots) = self.live.admit(&ask) else { break };
            for (index, slot) in slots.into_iter().enumerate() {
                self.streams.of_slot[slot] = Some(ResponseStream::new(request, index));
                self.streams.hold(slot, request.params.grammar.as_ref());
            }
            request.prompt.gates.iter().for_each(|gate| gate.begin());
            self.queue.remove(at);
        }
    }

    fn pass(&mut self) -> Result<bool> {
        let ran = self.live.step(&mut self.streams)?;
        let (metrics, stats) = (&self.state.metrics, self.live.stats());
        let running = self.live.num_running();
        let admitted = self.streams.of_slot.len() - self.live.free_slots();
        let queued: usize = self.queue.iter().map(|request| request.prompt.sample_ids.len()).sum();
        metrics.running.set(running as u64);
        metrics.waiting.set((admitted - running.min(admitted) + queued) as u64);
        metrics.passes.set(stats.passes);
        metrics.rows.set(stats.rows);
        metrics.preemptions.set(stats.preemptions);
        let (free, all) = self.live.blocks();
        metrics.kv_blocks_free.set(free as u64);
        metrics.kv_blocks.set(all as u64);
        metrics.kv_blocks_kept.set(self.live.kept_blocks() as u64);
        Ok(ran)
    }

    /// Ends every response with an error.
    pub fn fail_all(&mut self, error: &Error) {
        let fail = |outbox: &Outbox, index: usize| {
            outbox.write(index, |part| part.end = Some(End::Failed(Box::new(error.clone()))));
            self.state.metrics.failed.add(1);
        };
        for (slot, stream) in self.streams.of_slot.iter_mut().enumerate() {
            if let Some(stream) = stream.take() {
                fail(&stream.outbox, stream.index);
                stream.leave();
                self.live.cancel(slot);
            }
        }
        for request in self.queue.drain(..) {
            request.fail(error);
            self.state.metrics.failed.add(request.prompt.sample_ids.len() as u64);
        }
    }
}

/// Holds the response that each slot of the engine works on.
struct ResponseStreams<'h> {
    of_slot: Vec<Option<ResponseStream>>,
    state: &'h ServerState,
    /// The threads of masks, once a response needs one, or why there are none.
    lanes: Option<Result<MaskLanes>>,
    wanted: Wanted,
}

/// What would be done if no pass ran.
#[derive(Default)]
struct Wanted {
    /// Requests that were sent before the last look at them.
    sent: u64,
    /// True if requests wait for a slot.
    queued: bool,
    /// True if one of them waits for something else.
    soon: bool,
    /// True if a slot became free since.
    freed: bool,
}

impl ResponseStreams<'_> {
    /// Begins a response's masks, if it has some.
    fn hold(&mut self, slot: usize, grammar: Option<&Arc<Grammar>>) {
        let Some(grammar) = grammar else { return };
        let (slots, words) = (self.of_slot.len(), RowMasks::words_of(self.state.texts.vocab as usize));
        if let Ok(lanes) = self.lanes.get_or_insert_with(|| MaskLanes::start(MASK_LANES, slots, words)) {
            lanes.begin(slot, grammar);
        }
    }

    /// Tells gates how far their responses have come.
    fn advance(&self) {
        for stream in self.of_slot.iter().flatten() {
            stream.kept.iter().for_each(|kept| kept.gate.advance(stream.num_tokens));
        }
    }
}

impl Listener for ResponseStreams<'_> {
    fn waits(&self) -> bool {
        let Wanted { sent, queued, soon, freed } = self.wanted;
        soon || (queued && freed) || self.state.sent.load(Ordering::Relaxed) != sent
    }

    fn begun(&mut self, slot: usize, cached_tokens: usize) {
        let stream = self.of_slot[slot].as_ref().expect("a slot that begins has a stream");
        if stream.is_first && cached_tokens > 0 {
            self.state.metrics.cached_tokens.add(cached_tokens as u64);
            stream.outbox.write(stream.index, |part| part.cached_tokens = cached_tokens);
        }
    }

    fn scored(&mut self, slot: usize, id: u32, logprob: f32, likeliest: Likeliest<'_>) {
        let stream = self.of_slot[slot].as_ref().expect("a slot with a prompt has a stream");
        let rank = likeliest.ids.iter().position(|&other| other == id).map(|at| at + 1);
        let listed = entries(likeliest, stream.params.prompt_top.unwrap_or(0));
        let token = ScoredToken { id, logprob, rank, listed };
        stream.outbox.write(stream.first, |part| part.prompt.push(token));
    }

    fn listed(&mut self, slot: usize, likeliest: Likeliest<'_>) {
        let stream = self.of_slot[slot].as_mut().expect("a slot that draws has a stream");
        stream.listed = entries(likeliest, stream.params.top);
    }

    fn mask(&mut self, slot: usize, words: &mut [u32]) -> Result<()> {
        match &self.lanes {
            Some(Ok(lanes)) => lanes.mask(slot, words),
            Some(Err(error)) => Err(error.clone()),
            None => unreachable!("a response with a grammar has a lane"),
        }
    }

    fn drawn(&mut self, slot: usize, token: u32, logprob: f32) -> bool {
        let stream = self.of_slot[slot].as_mut().expect("a slot that draws has a stream");
        let metrics = &self.state.metrics;
        metrics.generated_tokens.add(1);
        if stream.num_tokens == 0 {
            metrics.first_token.add(stream.arrived.elapsed());
        }
        if let (Some(_), Some(Ok(lanes))) = (&stream.params.grammar, &self.lanes)
            && !stream.params.ends.contains(&token)
        {
            lanes.take(slot, token);
        }
        stream.speak(self.state, token, logprob)
    }

    fn ended(&mut self, slot: usize, how: Result<Finish>) {
        self.wanted.freed = true;
        let mut stream = self.of_slot[slot].take().expect("a slot ends once");
        let metrics = &self.state.metrics;
        if how.is_ok() {
            metrics.responses.add(1)
        } else {
            metrics.failed.add(1)
        }
        metrics.whole.add(stream.arrived.elapsed());
        stream.end(self.state, how);
    }
}

/// Returns the first of the likeliest tokens, without those that a mask leaves out.
fn entries(likeliest: Likeliest<'_>, most: usize) -> Vec<(u32, f32)> {
    let all = likeliest.ids.iter().copied().zip(likeliest.logprobs.iter().copied());
    all.take(most).filter(|(_, logprob)| *logprob > NO_MASS / 1e10).collect()
}

/// Turns the tokens of one response into text.
struct ResponseStream {
    outbox: Arc<Outbox>,
    index: usize,
    /// True of the first response to its prompt.
    is_first: bool,
    /// Index of that one in the outbox.
    first: usize,
    /// What could have been drawn in place of the next token.
    listed: Vec<(u32, f32)>,
    params: Arc<SamplingParams>,
    decoder: StreamDecoder,
    matcher: StopMatcher,
    /// Text of the last token, and the part of it that can no longer belong to a stop string.
    decoded: String,
    said: String,
    last: u32,
    stopped: Option<usize>,
    num_tokens: usize,
    arrived: Instant,
    /// Response so far, if its gate will keep it.
    kept: Option<GatedResponse>,
    /// Keeps the vectors of its prompt's images.
    _vectors: Option<Arc<HeldVectors>>,
}

/// Collects a response with a gate while it is drawn.
struct GatedResponse {
    gate: Arc<dyn Gate>,
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    text: String,
}

impl ResponseStream {
    /// Begins response `index` of a request.
    fn new(request: &QueuedRequest, index: usize) -> ResponseStream {
        let params = request.params.clone();
        let kept = |gate: &Arc<dyn Gate>| GatedResponse {
            gate: gate.clone(),
            ids: Vec::with_capacity(request.prompt.max_new_tokens),
            logprobs: Vec::with_capacity(request.prompt.max_new_tokens),
            text: String::new(),
        };
        ResponseStream {
            kept: request.prompt.gates.get(index).map(kept),
            _vectors: request.prompt.images.as_ref().and_then(|images| images.held.clone()),
            outbox: request.outbox.clone(),
            index: request.first + index,
            is_first: index == 0,
            first: request.first,
            listed: Vec::new(),
            decoder: StreamDecoder::new(params.skip_special),
            matcher: StopMatcher::new(&params.stops).expect("the stop strings were checked"),
            params,
            decoded: String::new(),
            said: String::new(),
            last: 0,
            stopped: None,
            num_tokens: 0,
            arrived: request.arrived,
        }
    }

    /// Passes a token on. Returns true if a stop string ends with it.
    fn speak(&mut self, state: &ServerState, token: u32, logprob: f32) -> bool {
        self.num_tokens += 1;
        self.last = token;
        self.decoded.clear();
        self.said.clear();
        // A token that ends a response is no part of its text, unless the request keeps special tokens.
        let is_end = self.params.ends.contains(&token);
        if !is_end || !self.params.skip_special {
            self.decoder.push(&state.texts.tokenizer, token, &mut self.decoded);
        }
        if let Some(found) = self.matcher.push(&self.decoded, &mut self.said) {
            self.stopped = Some(found.stop_index);
            if self.params.keep_stop {
                self.said.push_str(&self.params.stops[found.stop_index]);
            }
        }
        if let Some(kept) = &mut self.kept {
            kept.ids.push(token);
            kept.logprobs.push(logprob);
            kept.text.push_str(&self.said);
        }
        // The drawn token has one log-probability wherever it is written; the list's may differ in its last bit.
        self.listed.iter_mut().filter(|(id, _)| *id == token).for_each(|(_, of)| *of = logprob);
        let listed = std::mem::take(&mut self.listed);
        self.outbox.write(self.index, |part| {
            part.text.push_str(&self.said);
            part.ids.push(token);
            part.logprobs.push(logprob);
            if self.params.top > 0 {
                part.listed.push(listed);
            }
        });
        self.stopped.is_some()
    }

    /// Gives up a response that does not reach its end.
    fn leave(self) {
        self.kept.into_iter().for_each(|kept| kept.gate.leave());
    }

    /// Passes on the text that was held back for stop strings, and the end.
    fn end(&mut self, state: &ServerState, how: Result<Finish>) {
        self.said.clear();
        if self.stopped.is_none() {
            self.decoded.clear();
            self.decoder.finish(&state.texts.tokenizer, &mut self.decoded);
            self.matcher.push(&self.decoded, &mut self.said);
            self.matcher.finish(&mut self.said);
        }
        if let Some(mut kept) = self.kept.take() {
            kept.text.push_str(&self.said);
            match &how {
                Ok(finish) => {
                    let GatedResponse { gate, ids, logprobs, text } = kept;
                    gate.record(SampledResponse { ids, logprobs, finish: *finish, text });
                }
                Err(_) => kept.gate.leave(),
            }
        }
        let end = match (how, self.stopped) {
            (Err(error), _) => End::Failed(Box::new(error)),
            (Ok(Finish::Eos), _) if self.params.stop_ids.contains(&self.last) => End::Token(self.last),
            (Ok(Finish::Eos), _) => End::Eos,
            (Ok(Finish::Stop), Some(stop)) => End::String(self.params.stops[stop].clone()),
            (Ok(_), _) => End::Length,
        };
        self.outbox.write(self.index, |part| {
            part.text.push_str(&self.said);
            part.end = Some(end);
        });
    }
}
