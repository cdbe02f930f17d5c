//! Finds a request's place in its episode: the session that it asks from, and the responses that it takes.

use super::carried::Pass;
use super::table::{EpisodeTable, carried_in};
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
    /// Name of its episode, if that takes several steps.
    pub carried: Option<u64>,
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
            carried: carried_in(&self.id),
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

    /// Returns a tick that the end of the step is not before. `drawn`: the tokens so far of responses, by episode.
    pub fn floor(&self, drawn: &[(u64, u64)]) -> u64 {
        self.session.episodes.floor(drawn)
    }

    /// Decides whether the response is drawn where the step goes on beyond tick `floor`.
    pub fn pass(&self, floor: u64) -> Pass {
        self.carried.map_or(Pass::Now, |name| self.session.episodes.pass(name, floor))
    }

    /// Notes that the response begins to be drawn.
    pub fn draws(&self) {
        self.carried.into_iter().for_each(|name| self.session.episodes.draws(name));
    }

    /// Gives up the place: the client has gone, or the response failed.
    pub fn leave(&self) {
        self.session.episodes.record(&self.session.id, self.number, None);
    }
}
