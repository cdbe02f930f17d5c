//! Finds a request's place in its episode: the session that it asks from, and the responses that it takes.

use super::table::EpisodeTable;
use super::tree::{Drawn, Heard};
use crate::refusal::Reply;
use plimsoll_rollout::Finish;
use std::sync::Arc;

/// Identifies an open episode for its requests.
#[derive(Clone)]
pub struct Session {
    pub(super) episodes: Arc<EpisodeTable>,
    pub(super) id: String,
}

/// Identifies a response within its episode.
#[derive(Clone)]
pub struct Place {
    session: Session,
    pub(super) number: usize,
    pub sample_id: u64,
    /// Longest response.
    pub max_new_tokens: usize,
}

impl Session {
    /// Returns the lock that requests of the episode hold one after the other while they are tokenized.
    pub fn turn(&self) -> Arc<tokio::sync::Mutex<()>> {
        self.episodes.turn(&self.id)
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
        let taken = self.episodes.take_places(&self.id, prompt, count, asked, heard)?;
        let place = |(number, sample_id, max_new_tokens)| Place {
            session: self.clone(),
            number,
            sample_id,
            max_new_tokens,
        };
        Ok(taken.into_iter().map(place).collect())
    }
}

impl Place {
    /// Records the drawn response in the episode.
    pub fn record(&self, ids: Vec<u32>, logprobs: Vec<f32>, finish: Finish, text: String) {
        self.session.episodes.record(
            &self.session.id,
            self.number,
            Some(Drawn { ids, logprobs, finish, text }),
        );
    }

    /// Gives up the place: the client has gone, or the response failed.
    pub fn leave(&self) {
        self.session.episodes.record(&self.session.id, self.number, None);
    }
}
