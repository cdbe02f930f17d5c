//! The thread that drives the engine: between two passes it takes requests, drops those whose clients have gone, and after
//! each pass it writes what was drawn to the clients' outboxes.

use crate::episodes::{Desk, Place};
use crate::house::{Drawing, House, Ticket};
use crate::outbox::{End, Outbox};
use plimsoll_base::{Error, Result};
use plimsoll_rollout::{Ask, Finish, Listener, Live, RolloutStats};
use plimsoll_text::{StopMatcher, StreamDecoder};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often an idle engine looks whether it was asked to stop.
const LOOK: Duration = Duration::from_millis(50);
/// How often an engine without work looks whether the last episode has ended.
const LOOK_AT_DESK: Duration = Duration::from_millis(2);

/// Serves until `stop` has a signal and the running responses have ended, or their time is over.
///
/// Errors: those of the device, which end every response.
pub fn drive(
    live: Live<'_, '_, '_>,
    inbox: &Receiver<Ticket>,
    house: &House,
    stop: &AtomicI32,
) -> Result<()> {
    let mut driver = Driver::new(live, house);
    let mut until = None;
    loop {
        if house.is_abandoned() {
            return Ok(());
        }
        if until.is_none() && stop.load(Ordering::SeqCst) != 0 {
            house.stop();
            until = Some(Instant::now() + house.settings.grace);
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
                house.stop();
                driver.fail_all(&error);
                return Err(error);
            }
        }
    }
}

/// Serves until every episode of the desk has ended. `look` is called between passes, at most every `LOOK`.
///
/// Errors: those of `look` and of the desk; those of the device.
pub fn play(
    live: Live<'_, '_, '_>,
    inbox: &Receiver<Ticket>,
    house: &House,
    desk: &Desk,
    look: &mut dyn FnMut() -> Result<()>,
) -> Result<RolloutStats> {
    let mut driver = Driver::new(live, house);
    let mut looked = Instant::now();
    let played = loop {
        if desk.is_done() {
            break Ok(driver.live.stats());
        }
        if house.is_abandoned() {
            break Err(Error::new("internal", "the thread of connections has ended"));
        }
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            if let Err(error) = desk.look(looked).and_then(|()| look()) {
                break Err(error);
            }
        }
        match driver.turn(inbox) {
            Ok(true) => {}
            Ok(false) => {
                driver.wait(inbox, LOOK_AT_DESK);
            }
            Err(error) => break Err(error),
        }
    };
    // What is still drawn belongs to episodes that are over.
    let over = Error::new("agent-episode-over", "the rollout has ended");
    driver.take_all(inbox);
    driver.fail_all(played.as_ref().err().unwrap_or(&over));
    played
}

struct Driver<'h, 'e, 'a, 'p> {
    live: Live<'e, 'a, 'p>,
    speakers: Speakers<'h>,
    /// In the order of arrival; the permits of its responses bound it.
    queue: VecDeque<Ticket>,
    house: &'h House,
}

impl<'h, 'e, 'a, 'p> Driver<'h, 'e, 'a, 'p> {
    fn new(live: Live<'e, 'a, 'p>, house: &'h House) -> Driver<'h, 'e, 'a, 'p> {
        let slots = live.limits().samples;
        let speakers = Speakers { of_slot: (0..slots).map(|_| None).collect(), house };
        Driver { live, speakers, queue: VecDeque::with_capacity(house.limits.responses()), house }
    }

    /// Takes what has come, and runs one pass. False if there is nothing to run.
    fn turn(&mut self, inbox: &Receiver<Ticket>) -> Result<bool> {
        self.take_all(inbox);
        self.drop_left();
        self.admit();
        self.pass()
    }

    /// Waits for a request. False if none can come any more.
    fn wait(&mut self, inbox: &Receiver<Ticket>, longest: Duration) -> bool {
        match inbox.recv_timeout(longest) {
            Ok(ticket) => self.queue.push_back(ticket),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        true
    }

    fn take_all(&mut self, inbox: &Receiver<Ticket>) {
        self.queue.extend(inbox.try_iter());
    }

    /// Drops the responses whose clients have gone; their blocks are free before the next pass.
    fn drop_left(&mut self) {
        let metrics = &self.house.metrics;
        for slot in 0..self.speakers.of_slot.len() {
            let speaker = &mut self.speakers.of_slot[slot];
            if speaker.as_ref().is_some_and(|speaker| speaker.outbox.is_left()) {
                self.live.cancel(slot);
                speaker.take().into_iter().for_each(Speaker::leave);
                metrics.cancelled.add(1);
            }
        }
        self.queue.retain(|ticket| {
            let is_left = ticket.outbox.is_left();
            if is_left {
                ticket.asked.places.iter().for_each(Place::leave);
            }
            metrics.cancelled.add(if is_left { ticket.asked.sample_ids.len() as u64 } else { 0 });
            !is_left
        });
    }

    /// Takes requests from the queue as long as they have slots: none passes another.
    fn admit(&mut self) {
        while let Some(ticket) = self.queue.front() {
            let ask = Ask {
                prompt: &ticket.asked.prompt,
                sample_ids: &ticket.asked.sample_ids,
                max_new_tokens: ticket.asked.max_new_tokens,
                sampling: ticket.drawing.sampling,
                ends: &ticket.drawing.ends,
            };
            let Some(slots) = self.live.admit(&ask) else { break };
            for (index, slot) in slots.into_iter().enumerate() {
                self.speakers.of_slot[slot] = Some(Speaker::new(ticket, index));
            }
            self.queue.pop_front();
        }
    }

    fn pass(&mut self) -> Result<bool> {
        let ran = self.live.step(&mut self.speakers)?;
        let (metrics, stats) = (&self.house.metrics, self.live.stats());
        let running = self.live.num_running();
        let admitted = self.speakers.of_slot.len() - self.live.free_slots();
        let queued: usize = self.queue.iter().map(|ticket| ticket.asked.sample_ids.len()).sum();
        metrics.running.set(running as u64);
        metrics.waiting.set((admitted - running.min(admitted) + queued) as u64);
        metrics.passes.set(stats.passes);
        metrics.rows.set(stats.rows);
        metrics.preemptions.set(stats.preemptions);
        let (free, all) = self.live.blocks();
        metrics.kv_blocks_free.set(free as u64);
        metrics.kv_blocks.set(all as u64);
        Ok(ran)
    }

    fn fail_all(&mut self, error: &Error) {
        let fail = |outbox: &Outbox, index: usize| {
            outbox.write(index, |part| part.end = Some(End::Failed(Box::new(error.clone()))));
            self.house.metrics.failed.add(1);
        };
        for (slot, speaker) in self.speakers.of_slot.iter_mut().enumerate() {
            if let Some(speaker) = speaker.take() {
                fail(&speaker.outbox, speaker.index);
                speaker.leave();
                self.live.cancel(slot);
            }
        }
        for ticket in self.queue.drain(..) {
            (0..ticket.asked.sample_ids.len()).for_each(|index| fail(&ticket.outbox, ticket.first + index));
            ticket.asked.places.iter().for_each(Place::leave);
        }
    }
}

/// The speakers of the slots.
struct Speakers<'h> {
    of_slot: Vec<Option<Speaker>>,
    house: &'h House,
}

impl Listener for Speakers<'_> {
    fn drawn(&mut self, slot: usize, token: u32, logprob: f32) -> bool {
        let speaker = self.of_slot[slot].as_mut().expect("a slot that draws has a speaker");
        let metrics = &self.house.metrics;
        metrics.generated_tokens.add(1);
        if speaker.num_tokens == 0 {
            metrics.first_token.add(speaker.arrived.elapsed());
        }
        speaker.speak(self.house, token, logprob)
    }

    fn ended(&mut self, slot: usize, how: Result<Finish>) {
        let mut speaker = self.of_slot[slot].take().expect("a slot ends once");
        let metrics = &self.house.metrics;
        if how.is_ok() {
            metrics.responses.add(1)
        } else {
            metrics.failed.add(1)
        }
        metrics.whole.add(speaker.arrived.elapsed());
        speaker.end(self.house, how);
    }
}

/// Turns the tokens of one response into text.
struct Speaker {
    outbox: Arc<Outbox>,
    index: usize,
    drawing: Arc<Drawing>,
    decoder: StreamDecoder,
    matcher: StopMatcher,
    /// The text of a token, and what of it can no longer belong to a stop string.
    decoded: String,
    said: String,
    last: u32,
    stopped: Option<usize>,
    num_tokens: usize,
    arrived: Instant,
    /// What an episode keeps of it.
    kept: Option<Kept>,
}

/// A response of an episode, while it is drawn.
struct Kept {
    place: Place,
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    text: String,
}

impl Speaker {
    /// For response `index` of a ticket.
    fn new(ticket: &Ticket, index: usize) -> Speaker {
        let drawing = ticket.drawing.clone();
        let kept = |place: &Place| Kept {
            place: place.clone(),
            ids: Vec::with_capacity(ticket.asked.max_new_tokens),
            logprobs: Vec::with_capacity(ticket.asked.max_new_tokens),
            text: String::new(),
        };
        Speaker {
            kept: ticket.asked.places.get(index).map(kept),
            outbox: ticket.outbox.clone(),
            index: ticket.first + index,
            decoder: StreamDecoder::new(drawing.skip_special),
            matcher: StopMatcher::new(&drawing.stops).expect("the stop strings were checked"),
            drawing,
            decoded: String::new(),
            said: String::new(),
            last: 0,
            stopped: None,
            num_tokens: 0,
            arrived: ticket.arrived,
        }
    }

    /// Passes a token on. True if a stop string ends with it.
    fn speak(&mut self, house: &House, token: u32, logprob: f32) -> bool {
        self.num_tokens += 1;
        self.last = token;
        self.decoded.clear();
        self.said.clear();
        // A token that ends a response is no part of its text, unless the request keeps special tokens.
        let is_end = self.drawing.ends.contains(&token);
        if !is_end || !self.drawing.skip_special {
            self.decoder.push(&house.texts.tokenizer, token, &mut self.decoded);
        }
        if let Some(found) = self.matcher.push(&self.decoded, &mut self.said) {
            self.stopped = Some(found.stop_index);
            if self.drawing.keep_stop {
                self.said.push_str(&self.drawing.stops[found.stop_index]);
            }
        }
        if let Some(kept) = &mut self.kept {
            kept.ids.push(token);
            kept.logprobs.push(logprob);
            kept.text.push_str(&self.said);
        }
        self.outbox.write(self.index, |part| {
            part.text.push_str(&self.said);
            part.ids.push(token);
            part.logprobs.push(logprob);
        });
        self.stopped.is_some()
    }

    /// The response does not reach its end.
    fn leave(self) {
        self.kept.into_iter().for_each(|kept| kept.place.leave());
    }

    /// Passes on the text that was held back, and the end.
    fn end(&mut self, house: &House, how: Result<Finish>) {
        self.said.clear();
        if self.stopped.is_none() {
            self.decoded.clear();
            self.decoder.finish(&house.texts.tokenizer, &mut self.decoded);
            self.matcher.push(&self.decoded, &mut self.said);
            self.matcher.finish(&mut self.said);
        }
        if let Some(mut kept) = self.kept.take() {
            kept.text.push_str(&self.said);
            match &how {
                Ok(finish) => kept.place.record(kept.ids, kept.logprobs, *finish, kept.text),
                Err(_) => kept.place.leave(),
            }
        }
        let end = match (how, self.stopped) {
            (Err(error), _) => End::Failed(Box::new(error)),
            (Ok(Finish::Eos), _) if self.drawing.stop_ids.contains(&self.last) => End::Token(self.last),
            (Ok(Finish::Eos), _) => End::Eos,
            (Ok(Finish::Stop), Some(stop)) => End::String(self.drawing.stops[stop].clone()),
            (Ok(_), _) => End::Length,
        };
        self.outbox.write(self.index, |part| {
            part.text.push_str(&self.said);
            part.end = Some(end);
        });
    }
}
