//! Keeps what the engine has drawn for a request until its client reads it. The engine never waits for a client; what a
//! slow one leaves here is bounded by the tokens that it asked for.

use plimsoll_base::Error;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

#[derive(Clone, Debug)]
pub enum End {
    /// The model's own end of text.
    Eos,
    /// A token of `stop_token_ids`.
    Token(u32),
    /// A string of `stop`.
    String(String),
    Length,
    Failed(Box<Error>),
}

/// A token of a prompt and its log-probability.
#[derive(Clone, Debug)]
pub struct ScoredToken {
    pub id: u32,
    pub logprob: f32,
    /// Its place among the likeliest tokens, from 1 on, if it is one of them.
    pub rank: Option<usize>,
    /// The likeliest tokens in its place.
    pub listed: Vec<(u32, f32)>,
}

/// Holds a part of a response, from the end of the last part.
#[derive(Clone, Debug, Default)]
pub struct Part {
    pub text: String,
    pub ids: Vec<u32>,
    pub logprobs: Vec<f32>,
    /// The likeliest tokens in place of each, with their log-probabilities, if the client gets those.
    pub listed: Vec<Vec<(u32, f32)>>,
    /// The tokens of its prompt after the first, if the client gets those; of the first response to a prompt.
    pub prompt: Vec<ScoredToken>,
    /// Tokens of its prompt whose keys were there; in one part, of the first response to a prompt.
    pub cached_tokens: usize,
    pub end: Option<End>,
}

impl Part {
    fn is_empty(&self) -> bool {
        self.text.is_empty() && self.ids.is_empty() && self.end.is_none()
    }
}

pub struct Outbox {
    state: Mutex<State>,
    /// True if every token wakes the client's task; otherwise the last end does.
    streams: bool,
    ready: Notify,
    /// True once the client has gone.
    gone: AtomicBool,
}

struct State {
    parts: Vec<Part>,
    /// Responses that the engine has not ended.
    open: usize,
    /// Responses whose end was not taken.
    left: usize,
    /// Index at which the next search begins, so that no response waits for the others.
    next: usize,
}

impl Outbox {
    pub fn new(responses: usize, streams: bool) -> Outbox {
        let parts = vec![Part::default(); responses];
        let state = Mutex::new(State { parts, open: responses, left: responses, next: 0 });
        Outbox { state, streams, ready: Notify::new(), gone: AtomicBool::new(false) }
    }

    pub fn write(&self, index: usize, write: impl FnOnce(&mut Part)) {
        let is_done = {
            let mut state = self.lock();
            let part = &mut state.parts[index];
            write(part);
            let ends = part.end.is_some();
            state.open -= usize::from(ends);
            state.open == 0
        };
        if self.streams || is_done {
            self.ready.notify_one();
        }
    }

    /// Returns the next part of some response; none once all of them have been taken to their ends.
    pub async fn next(&self) -> Option<(usize, Part)> {
        loop {
            {
                let mut state = self.lock();
                if state.left == 0 {
                    return None;
                }
                let (count, next) = (state.parts.len(), state.next);
                let found = (0..count).map(|i| (next + i) % count).find(|&i| !state.parts[i].is_empty());
                if let Some(index) = found {
                    state.next = index + 1;
                    let part = std::mem::take(&mut state.parts[index]);
                    state.left -= usize::from(part.end.is_some());
                    return Some((index, part));
                }
            }
            self.ready.notified().await;
        }
    }

    /// Waits until every response has ended, and returns them.
    pub async fn whole(&self) -> Vec<Part> {
        loop {
            {
                let mut state = self.lock();
                if state.open == 0 {
                    state.left = 0;
                    return std::mem::take(&mut state.parts);
                }
            }
            self.ready.notified().await;
        }
    }

    pub fn leave(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    pub fn is_left(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;
