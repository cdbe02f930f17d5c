//! Episodes that are kept for people: lines of `samples/*.jsonl`.

use super::record::Episodes;
use plimsoll_infer::album::Album;
use plimsoll_infer::responses::KeptImage;
use plimsoll_rollout::{Finish, Samples};
use plimsoll_text::Message;
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeptEpisode {
    pub step: u32,
    /// Number of the episode; those of a group have the same.
    pub episode: u64,
    /// The last of the environment's first messages.
    pub prompt: String,
    pub messages: Vec<Message>,
    /// The images of the first messages.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<KeptImage>,
    /// The model's turns, one per line.
    pub response: String,
    pub reward: Option<f32>,
    pub turns: Vec<KeptTurn>,
    /// Tokens after the prompt.
    pub tokens: Vec<u32>,
    /// One entry per token: 1 if it was sampled and is trained, 0 if it came from the environment.
    pub mask: Vec<u8>,
    /// The further sequences of an agent's episode.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub branches: Vec<KeptBranch>,
}

/// A further sequence of an episode: its tokens and mask, as in `KeptEpisode`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KeptBranch {
    pub tokens: Vec<u32>,
    pub mask: Vec<u8>,
}

/// A turn of the model and the environment's answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeptTurn {
    /// The sequence that it is in: 0, or one more than its place in `branches`.
    #[serde(skip_serializing_if = "is_zero")]
    pub branch: usize,
    /// The response as the environment saw it.
    pub response: String,
    pub finish: Finish,
    /// Range of its tokens: the first, and one past the last.
    pub tokens: [u32; 2],
    /// One entry per token, as the rollout recorded it.
    pub logprobs: Vec<f32>,
    /// Number of optimizer updates of the weights that sampled it.
    pub policy_version: u64,
    pub reward: f64,
    /// The environment's answer; empty after the last turn.
    pub said: Vec<Message>,
}

fn is_zero(branch: &usize) -> bool {
    *branch == 0
}

impl KeptEpisode {
    /// Returns it with placeholders where its tokens are numbers of images, which mean nothing to who reads the line.
    pub fn with_placeholders(mut self, album: Option<&Album>) -> KeptEpisode {
        if let Some(album) = album {
            let of_branches = self.branches.iter_mut().flat_map(|branch| &mut branch.tokens);
            let numbers = self.tokens.iter_mut().chain(of_branches).filter(|id| **id >= album.vocab());
            numbers.for_each(|id| *id = album.sight.image_token);
        }
        self
    }
}

impl Episodes {
    /// Returns episode `index` of the last rollout, which produced `samples`.
    pub fn kept(&self, step: u32, samples: &Samples, index: usize) -> KeptEpisode {
        let episode = &self.played[index];
        let mut turns = Vec::with_capacity(episode.turns.len());
        let mut branches = Vec::with_capacity(episode.sequences.len());
        let mut played = episode.turns.iter();
        for (branch, s) in episode.sequences.clone().enumerate() {
            let mut mask = vec![0; samples.ids(s).len()];
            for (turn, played) in samples.turns(s).iter().zip(&mut played) {
                mask[turn.tokens()].fill(1);
                turns.push(KeptTurn {
                    branch,
                    response: played.response.clone(),
                    finish: turn.finish,
                    tokens: [turn.start, turn.end],
                    logprobs: samples.logprobs(s)[turn.tokens()].to_vec(),
                    policy_version: played.version,
                    reward: played.reward,
                    said: played.said.clone(),
                });
            }
            branches.push(KeptBranch { tokens: samples.ids(s).to_vec(), mask });
        }
        let first = if branches.is_empty() { KeptBranch::default() } else { branches.remove(0) };
        let messages = episode.messages[..episode.num_first].to_vec();
        let said: Vec<&str> = episode.turns.iter().map(|turn| turn.response.as_str()).collect();
        KeptEpisode {
            step,
            episode: episode.start.index,
            prompt: messages.last().map(|message| message.content.clone()).unwrap_or_default(),
            messages,
            images: Vec::new(),
            response: said.join("\n"),
            reward: self.returns()[index],
            turns,
            tokens: first.tokens,
            mask: first.mask,
            branches,
        }
    }
}
