//! The thread that drives the engine: between two passes it takes requests, drops those whose clients have gone, and after
//! each pass it writes what was drawn to the clients' outboxes.

use crate::house::{Drawing, House, Ticket};
use crate::outbox::{End, Outbox};
use plimsoll_base::{Error, Result};
use plimsoll_rollout::{Ask, Finish, Listener, Live};
use plimsoll_text::{StopMatcher, StreamDecoder};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often an idle engine looks whether it was asked to stop.
const LOOK: Duration = Duration::from_millis(50);

/// Serves until `stop` has a signal and the running responses have ended, or their time is over.
///
/// Errors: those of the device, which end every response.
pub fn drive(
    live: Live<'_, '_, '_>,
    inbox: &Receiver<Ticket>,
    house: &House,
    stop: &AtomicI32,
) -> Result<()> {
    let slots = live.limits().samples;
    let speakers = Speakers { of_slot: (0..slots).map(|_| None).collect(), house };
    let mut driver =
        Driver { live, speakers, queue: VecDeque::with_capacity(house.limits.responses()), house };
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
        driver.take_all(inbox);
        driver.drop_left();
        driver.admit();
        match driver.pass() {
            Ok(true) => {}
            Ok(false) if until.is_some() => return Ok(()),
            Ok(false) => match inbox.recv_timeout(LOOK) {
                Ok(ticket) => driver.queue.push_back(ticket),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            },
            Err(error) => {
                house.stop();
                driver.fail_all(&error);
                return Err(error);
            }
        }
    }
}

struct Driver<'h, 'e, 'a, 'p> {
    live: Live<'e, 'a, 'p>,
    speakers: Speakers<'h>,
    /// In the order of arrival; the permits of its responses bound it.
    queue: VecDeque<Ticket>,
    house: &'h House,
}

impl Driver<'_, '_, '_, '_> {
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
                *speaker = None;
                metrics.cancelled.add(1);
            }
        }
        self.queue.retain(|ticket| {
            let is_left = ticket.outbox.is_left();
            metrics.cancelled.add(if is_left { ticket.sample_ids.len() as u64 } else { 0 });
            !is_left
        });
    }

    /// Takes requests from the queue as long as they have slots: none passes another.
    fn admit(&mut self) {
        while let Some(ticket) = self.queue.front() {
            let ask = Ask {
                prompt: &ticket.prompt,
                sample_ids: &ticket.sample_ids,
                max_new_tokens: ticket.max_new_tokens,
                sampling: ticket.drawing.sampling,
                ends: &ticket.drawing.ends,
            };
            let Some(slots) = self.live.admit(&ask) else { break };
            for (index, slot) in slots.into_iter().enumerate() {
                self.speakers.of_slot[slot] = Some(Speaker::new(ticket, ticket.first + index));
            }
            self.queue.pop_front();
        }
    }

    fn pass(&mut self) -> Result<bool> {
        let ran = self.live.step(&mut self.speakers)?;
        let (metrics, stats) = (&self.house.metrics, self.live.stats());
        let running = self.live.num_running();
        let admitted = self.speakers.of_slot.len() - self.live.free_slots();
        let queued: usize = self.queue.iter().map(|ticket| ticket.sample_ids.len()).sum();
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
                self.live.cancel(slot);
            }
        }
        for ticket in self.queue.drain(..) {
            (0..ticket.sample_ids.len()).for_each(|index| fail(&ticket.outbox, ticket.first + index));
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
}

impl Speaker {
    fn new(ticket: &Ticket, index: usize) -> Speaker {
        let drawing = ticket.drawing.clone();
        Speaker {
            outbox: ticket.outbox.clone(),
            index,
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
        self.outbox.write(self.index, |part| {
            part.text.push_str(&self.said);
            part.ids.push(token);
            part.logprobs.push(logprob);
        });
        self.stopped.is_some()
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
