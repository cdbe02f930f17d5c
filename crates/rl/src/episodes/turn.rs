//! A turn of an episode that takes several steps, as steps, ranks and checkpoints hand it on.

use plimsoll_rollout::Turn;
use plimsoll_text::Message;
use serde::{Deserialize, Serialize};

/// A turn that has its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CarriedTurn {
    /// Its tokens among those of the episode, and how it ended.
    pub turn: Turn,
    /// The response as the environment saw it.
    pub response: String,
    /// The bits of its reward.
    pub reward: u64,
    /// The environment's answer; empty after the last turn.
    pub said: Vec<Message>,
    /// The updates of the weights that drew it.
    pub version: u64,
}

/// What an agent asked first in an episode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FirstRequest {
    pub prompt: Vec<u32>,
    pub messages: Vec<Message>,
}
