//! Finds a request's place in its episode: the session that it asks from, and the responses that it takes.

use super::table::{EpisodeTable, carried_in};
use crate::gate::{Admission, Gate, SampledResponse};
use crate::owner::Heard;
use crate::protocol::refusal::Reply;
use std::sync::Arc;

/// Identifies an open episode for its requests.
#[derive(Clone)]
pub struct Session {
    pub(super) episodes: Arc<EpisodeTable>,
    pub(super) id: String,
}

/// Identifies a response within its episode.
pub struct Place {
    session: Session,
    pub(super) number: usize,
    pub sample_id: u64,
    pub max_new_tokens: usize,
    /// Name of its episode, if that takes several steps.
    pub carried: Option<u64>,
}

impl Session {
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

impl Gate for Place {
    fn admission(&self) -> Admission {
        let episodes = &self.session.episodes;
        self.carried.map_or(Admission::Now, |name| episodes.admission(name, episodes.floor()))
    }

    fn begin(&self) {
        self.advance(0);
    }

    fn advance(&self, num_tokens: usize) {
        self.carried.into_iter().for_each(|name| self.session.episodes.draws(name, num_tokens as u64));
    }

    fn record(&self, drawn: SampledResponse) {
        self.session.episodes.record(&self.session.id, self.number, Some(drawn));
    }

    fn leave(&self) {
        self.session.episodes.record(&self.session.id, self.number, None);
    }
}
