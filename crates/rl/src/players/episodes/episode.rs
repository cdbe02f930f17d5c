//! The request for episodes, and the record of one episode.

use crate::players::groups::{Group, Response};
use crate::players::turn::PlayedTurn;
use plimsoll_config::Rollout;
use plimsoll_device::Sampling;
use plimsoll_infer::album::RowImage;
use plimsoll_infer::text::{Item, TextModel};
use plimsoll_reward::Scored;
use plimsoll_text::Message;
use plimsoll_textenv::Start;
use serde_json::{Map, Value};
use std::ops::Range;
use std::sync::Arc;

/// The episodes to play, on all ranks together.
pub(in crate::players) struct EpisodesRequest<'q> {
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

/// An episode, in progress or finished.
#[derive(Clone, Debug)]
pub(in crate::players) struct Episode {
    pub start: Start,
    /// All messages before the turn in progress.
    pub messages: Vec<Message>,
    /// Number of `messages` that form the prompt.
    pub num_first: usize,
    pub turns: Vec<PlayedTurn>,
    /// The images that its environment's answers brought.
    pub images: Vec<Arc<RowImage>>,
    /// Columns of its row, until they move to its prompt; only if the run's rewards grade it.
    pub columns: Map<String, Value>,
    /// Score by the run's rewards.
    pub scored: Option<Scored>,
    /// Its sequences among the rollout's samples: one, or one per branch of an agent's conversation.
    pub sequences: Range<usize>,
    /// True if a fault ended it: it has no return and is not trained.
    pub has_fault: bool,
}

impl Episode {
    /// Returns an episode that has its first messages and some turns.
    pub(in crate::players) fn new(
        start: Start,
        first: Vec<Message>,
        turns: Vec<PlayedTurn>,
        sequences: Range<usize>,
    ) -> Episode {
        let (num_first, columns) = (first.len(), Map::new());
        Episode {
            start,
            messages: first,
            num_first,
            turns,
            images: Vec::new(),
            columns,
            scored: None,
            sequences,
            has_fault: false,
        }
    }

    /// Returns a group's episode as far as it has come.
    pub(super) fn of(group: &Group, response: &Response, seed: u64, sequences: Range<usize>) -> Episode {
        let (start, asked) = (Start::train(seed, group.position), response.asked.as_ref());
        let first = asked.map_or_else(|| messages_of(&group.item), |asked| asked.messages.clone());
        let mut episode = Episode::new(start, first, response.turns.clone(), sequences);
        for turn in &response.turns {
            episode.messages.push(Message::new("assistant", turn.response.clone()));
            episode.messages.extend_from_slice(&turn.said);
        }
        Episode { has_fault: response.has_fault, ..episode }
    }
}

/// Returns the messages of a prompt.
pub(in crate::players) fn messages_of(item: &Item) -> Vec<Message> {
    let messages = item.messages.as_deref().and_then(Value::as_array);
    let message = |m: &Value| serde_json::from_value(m.clone()).unwrap_or_default();
    messages.into_iter().flatten().map(message).collect()
}
