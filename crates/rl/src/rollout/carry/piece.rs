//! What a rank draws in a step, as it tells the others.

use crate::episodes::{CarriedTurn, Events};
use crate::rollout::exchange::SentStats;
use crate::rollout::packed::packed;
use plimsoll_rollout::Finish;

/// The tokens of a response that a step drew.
pub(super) struct Piece {
    pub ids: Vec<u32>,
    pub logprobs: Vec<f32>,
    /// How the response ended, if it did.
    pub finish: Option<Finish>,
    /// The turns of an episode.
    pub turns: Vec<CarriedTurn>,
    pub has_fault: bool,
}
packed!(Piece {
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    finish: Option<Finish>,
    turns: Vec<CarriedTurn>,
    has_fault: bool
});

/// What one rank drew.
pub(super) struct RankDrawn {
    pub pieces: Vec<Piece>,
    pub stats: SentStats,
    pub events: Events,
}
packed!(RankDrawn { pieces: Vec<Piece>, stats: SentStats, events: Events });
