//! Threads that compute masks while a pass runs: each has the responses of some slots.

use crate::compiled::{Grammar, GrammarMatcher};
use plimsoll_base::{Error, Result};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Threads that compute masks while the engine's pass runs. A mask of 128,000 tokens takes about 50 us, so those of 64
/// responses take 0.8 ms, less than a pass of a small model.
pub const MASK_LANES: usize = 4;

/// What a lane does for a slot next; a slot has two jobs at most.
enum Job {
    Begin(usize, Arc<Grammar>),
    Take(usize, u32),
}

/// A slot's mask for its next token.
#[derive(Default)]
struct Mask {
    words: Vec<u32>,
    failed: Option<Error>,
    /// Jobs whose result the mask does not have yet.
    pending: usize,
}

#[derive(Default)]
struct Slot {
    mask: Mutex<Mask>,
    ready: Condvar,
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Mask> {
        self.mask.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Lane {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// Threads with the matchers of the responses in some slots.
pub struct MaskLanes {
    slots: Arc<[Slot]>,
    lanes: Vec<Lane>,
}

impl std::fmt::Debug for MaskLanes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} lanes of {} slots", self.lanes.len(), self.slots.len())
    }
}

impl MaskLanes {
    /// Starts `lanes` threads for `slots` slots and masks of `words` words.
    ///
    /// Errors: `thread-not-started`.
    pub fn start(lanes: usize, slots: usize, words: usize) -> Result<MaskLanes> {
        let all = (0..slots).map(|_| Slot {
            mask: Mutex::new(Mask { words: vec![0; words], ..Mask::default() }),
            ready: Condvar::new(),
        });
        let mut of = MaskLanes { slots: all.collect(), lanes: Vec::with_capacity(lanes) };
        for lane in 0..lanes {
            let (jobs, inbox) = channel();
            let slots = of.slots.clone();
            let work = move || {
                let mut matchers: Vec<Option<GrammarMatcher>> = (0..slots.len()).map(|_| None).collect();
                let mut words = vec![0; words];
                for job in inbox {
                    do_job(&slots, lane, &mut matchers, &mut words, job);
                }
            };
            let thread = std::thread::Builder::new().name(format!("masks {lane}")).spawn(work);
            let thread = thread
                .map_err(|err| Error::new("thread-not-started", format!("a thread for masks: {err}")))?;
            of.lanes.push(Lane { jobs: Some(jobs), thread: Some(thread) });
        }
        Ok(of)
    }

    /// Begins a response in a slot.
    pub fn begin(&self, slot: usize, grammar: &Arc<Grammar>) {
        self.send(slot, Job::Begin(slot, grammar.clone()));
    }

    /// Takes the token that was drawn in a slot.
    pub fn take(&self, slot: usize, token: u32) {
        self.send(slot, Job::Take(slot, token));
    }

    /// Waits for the mask of a slot's next token and writes it.
    ///
    /// Errors: those of the response's matcher.
    pub fn mask(&self, slot: usize, words: &mut [u32]) -> Result<()> {
        let of = &self.slots[slot];
        let mut mask = of.lock();
        while mask.pending > 0 {
            mask = of.ready.wait(mask).unwrap_or_else(PoisonError::into_inner);
        }
        match &mask.failed {
            Some(error) => Err(error.clone()),
            None => {
                words.copy_from_slice(&mask.words);
                Ok(())
            }
        }
    }

    fn send(&self, slot: usize, job: Job) {
        self.slots[slot].lock().pending += 1;
        let lane = &self.lanes[slot % self.lanes.len()];
        let jobs = lane.jobs.as_ref().expect("lanes run until they are dropped");
        if jobs.send(job).is_err() {
            // The thread has gone: its slots say so, and the engine does not wait for ever.
            let mut mask = self.slots[slot].lock();
            mask.pending -= 1;
            mask.failed = Some(Error::new("internal", "the thread of masks has panicked"));
        }
    }
}

impl Drop for MaskLanes {
    fn drop(&mut self) {
        self.lanes.iter_mut().for_each(|lane| drop(lane.jobs.take()));
        for thread in self.lanes.iter_mut().filter_map(|lane| lane.thread.take()) {
            // What a matcher panicked of is its response's error already.
            let _ = thread.join();
        }
    }
}

fn do_job(slots: &[Slot], lane: usize, matchers: &mut [Option<GrammarMatcher>], words: &mut [u32], job: Job) {
    let (slot, taken) = match job {
        Job::Begin(slot, grammar) => {
            matchers[slot] = Some(grammar.matcher(lane));
            (slot, Ok(()))
        }
        Job::Take(slot, token) => {
            let matcher = matchers[slot].as_mut().expect("a response begins before its tokens");
            (slot, matcher.take(token))
        }
    };
    let matcher = matchers[slot].as_mut().expect("a response of the slot");
    let done = taken.and_then(|()| matcher.mask(words));
    let mut mask = slots[slot].lock();
    match done {
        Ok(()) => {
            mask.failed = None;
            mask.words.copy_from_slice(words);
        }
        Err(error) => mask.failed = Some(error),
    }
    mask.pending -= 1;
    slots[slot].ready.notify_all();
}
