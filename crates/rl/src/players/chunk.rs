//! What a rank draws in a step, as it tells the others.

use super::episodes::Events;
use super::turn::PlayedTurn;
use crate::rollout::message::as_json;
use plimsoll_rollout::{Finish, RolloutStats};
use serde::{Deserialize, Serialize};

/// The tokens of a response that a step drew.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct ResponseChunk {
    pub ids: Vec<u32>,
    pub logprobs: Vec<f32>,
    /// How the response ended, if it did.
    pub finish: Option<Finish>,
    /// The turns of an episode.
    #[serde(with = "as_json")]
    pub turns: Vec<PlayedTurn>,
    pub has_fault: bool,
}

impl ResponseChunk {
    /// Returns the number of its tokens that weights drew.
    pub(super) fn drawn(&self) -> usize {
        if self.turns.is_empty() {
            self.ids.len()
        } else {
            self.turns.iter().map(|of| of.turn.tokens().len()).sum()
        }
    }

    /// Returns the number of tokens that an environment said between its turns. `start`: the tokens before it.
    pub(super) fn said_between(&self, start: usize) -> usize {
        self.turns.last().map_or(0, |last| last.turn.end as usize - start - self.drawn())
    }
}

/// The tokens that one rank drew, with their counts.
#[derive(Serialize, Deserialize)]
pub(crate) struct RankChunks {
    pub pieces: Vec<ResponseChunk>,
    pub stats: RolloutStats,
    /// Tokens after the step's tick.
    pub dropped: u64,
    pub events: Events,
}
