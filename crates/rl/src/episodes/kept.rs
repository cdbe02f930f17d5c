//! Episodes that are kept for people: lines of `samples/*.jsonl`.

use super::Episodes;
use plimsoll_rollout::{Finish, Samples};
use plimsoll_text::Message;
use serde::Serialize;

/// An episode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeptEpisode {
    /// Steps done.
    pub step: u32,
    /// Which episode; those of a group have the same.
    pub episode: u64,
    /// The last of the messages that the environment began with.
    pub prompt: String,
    /// All of them.
    pub messages: Vec<Message>,
    /// The model's turns, one below the other.
    pub response: String,
    /// Sum of the turns' rewards; null where a fault ended the episode.
    pub reward: Option<f32>,
    /// Turns, in order.
    pub turns: Vec<KeptTurn>,
    /// Tokens behind the prompt.
    pub tokens: Vec<u32>,
    /// One entry a token: 1 if it was drawn and is trained, 0 if the environment said it.
    pub mask: Vec<u8>,
}

/// A turn of the model and what the environment said to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeptTurn {
    /// As the environment saw it.
    pub response: String,
    /// Why it ended.
    pub finish: Finish,
    /// Its tokens: first, and one past the last.
    pub tokens: [u32; 2],
    /// One entry a token, as the rollout recorded it.
    pub logprobs: Vec<f32>,
    /// Updates of the weights that it was drawn with.
    pub policy_version: u64,
    /// Its reward.
    pub reward: f64,
    /// What stands behind it; empty behind the last.
    pub said: Vec<Message>,
}

impl Episodes {
    /// Episode `index` of the last rollout, which gave `samples`.
    pub fn kept(&self, step: u32, samples: &Samples, index: usize) -> KeptEpisode {
        let episode = &self.played[index];
        let mut mask = vec![0; samples.ids(index).len()];
        let mut turns = Vec::with_capacity(episode.turns.len());
        for (turn, played) in samples.turns(index).iter().zip(&episode.turns) {
            mask[turn.tokens()].fill(1);
            turns.push(KeptTurn {
                response: played.response.clone(),
                finish: turn.finish,
                tokens: [turn.start, turn.end],
                logprobs: samples.logprobs(index)[turn.tokens()].to_vec(),
                policy_version: self.policy_version,
                reward: played.reward,
                said: played.said.clone(),
            });
        }
        let messages = episode.messages[..episode.num_first].to_vec();
        let said: Vec<&str> = episode.turns.iter().map(|turn| turn.response.as_str()).collect();
        KeptEpisode {
            step,
            episode: episode.start.index,
            prompt: messages.last().map(|message| message.content.clone()).unwrap_or_default(),
            messages,
            response: said.join("\n"),
            reward: self.returns()[index],
            turns,
            tokens: samples.ids(index).to_vec(),
            mask,
        }
    }
}
