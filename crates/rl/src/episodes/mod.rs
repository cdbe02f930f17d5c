//! Episodes of text environments as training samples: which episodes are played, and what their tokens are.
//!
//! An episode is one token sequence: the prompt, sampled tokens, the environment's reply, sampled tokens, ... Sampled
//! tokens are kept as sampled; the environment's words are tokenized once and appended. While one environment computes,
//! other episodes continue; the result does not depend on the order of answers.

mod agents;
mod agents_carried;
mod carried;
mod episode;
mod evaluate;
mod fault;
mod glue;
mod graded;
mod kept;
mod memory;
mod play;
mod round;
mod turn;

pub(crate) use agents_carried::{AgentEpisode, NewTurns, PlayedOn};
pub(crate) use carried::{CarriedTalk, EpisodeSoFar, Events};
pub(crate) use episode::EpisodesRequest;
pub(crate) use evaluate::evaluate_episodes;
pub use kept::{KeptEpisode, KeptTurn};
pub(crate) use memory::first_prompt_tokens;
pub(crate) use play::{Played, play};
pub use round::{Episodes, RoundReport};
pub(crate) use turn::{CarriedTurn, FirstRequest};
