//! The request for episodes, and the record of one episode.

use super::glue::TurnEnd;
use plimsoll_config::Rollout;
use plimsoll_device::Sampling;
use plimsoll_infer::text::TextModel;
use plimsoll_reward::Scored;
use plimsoll_text::Message;
use plimsoll_textenv::Start;
use serde_json::{Map, Value};
use std::ops::Range;

/// The episodes to play, on all ranks together.
pub(crate) struct EpisodesRequest<'q> {
    pub text: &'q TextModel,
    pub rollout: &'q Rollout,
    pub starts: &'q [Start],
    /// Episodes of each start.
    pub group_size: usize,
    pub sampling: Sampling,
    pub eos: &'q [u32],
    /// The step, and the number of steps; 0 for an evaluation.
    pub steps: [u32; 2],
    pub first_sample_id: u64,
    /// Number of the first episodes whose texts are kept for people.
    pub kept: usize,
}

#[derive(Clone, Debug)]
pub(super) struct PlayedTurn {
    /// The response as the environment saw it.
    pub(super) response: String,
    /// Its last tokens; none once it has its answer and came from another rank, step or agent.
    pub(super) end: TurnEnd,
    pub(super) reward: f64,
    /// The environment's answer; empty after the last turn.
    pub(super) said: Vec<Message>,
}

/// An episode, in progress or finished.
#[derive(Clone, Debug)]
pub(super) struct Episode {
    pub(super) start: Start,
    /// All messages before the turn in progress.
    pub(super) messages: Vec<Message>,
    /// Number of `messages` that form the prompt.
    pub(super) num_first: usize,
    pub(super) turns: Vec<PlayedTurn>,
    /// Columns of its row, until they move to its prompt; only if the run's rewards grade it.
    pub(super) columns: Map<String, Value>,
    /// Score by the run's rewards.
    pub(super) scored: Option<Scored>,
    /// Its sequences among the rollout's samples: one, or one per branch of an agent's conversation.
    pub(super) sequences: Range<usize>,
    /// True if a fault ended it: it has no return and is not trained.
    pub(super) has_fault: bool,
    /// True from an answer until the next turn ends.
    pub(super) goes_on: bool,
}
