//! A request's place in its episode: the seat that it asks from, and the responses that it takes.

use super::desk::Desk;
use super::tree::{Drawn, Heard};
use crate::refusal::Reply;
use plimsoll_rollout::Finish;
use std::sync::Arc;

/// An open episode, as its requests know it.
#[derive(Clone)]
pub struct Seat {
    pub(super) desk: Arc<Desk>,
    pub(super) id: String,
}

/// A response's place in its episode.
#[derive(Clone)]
pub struct Place {
    seat: Seat,
    pub(super) number: usize,
    pub sample_id: u64,
    /// Longest response.
    pub max_new_tokens: usize,
}

impl Seat {
    /// Returns what requests of the episode hold one after the other while they are made into tokens.
    pub fn turn(&self) -> Arc<tokio::sync::Mutex<()>> {
        self.desk.turn(&self.id)
    }

    /// Takes places for `count` responses to a prompt.
    ///
    /// Errors: `agent-limit`, `serve-too-long`, `agent-episode-over`.
    pub fn places(
        &self,
        prompt: &[u32],
        count: usize,
        asked: Option<usize>,
        heard: &Heard,
    ) -> Reply<Vec<Place>> {
        let taken = self.desk.take_places(&self.id, prompt, count, asked, heard)?;
        let place = |(number, sample_id, max_new_tokens)| Place {
            seat: self.clone(),
            number,
            sample_id,
            max_new_tokens,
        };
        Ok(taken.into_iter().map(place).collect())
    }
}

impl Place {
    /// Keeps what was drawn.
    pub fn record(&self, ids: Vec<u32>, logprobs: Vec<f32>, finish: Finish, text: String) {
        self.seat.desk.record(&self.seat.id, self.number, Some(Drawn { ids, logprobs, finish, text }));
    }

    /// The client has gone, or the response failed.
    pub fn leave(&self) {
        self.seat.desk.record(&self.seat.id, self.number, None);
    }
}
