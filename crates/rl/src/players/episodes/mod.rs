//! What episodes of text environments and of agents have in common: the record of a rollout, the rewards of turns, what
//! people see, and what is too many faults.
//!
//! An episode is one token sequence: the prompt, sampled tokens, the environment's reply, sampled tokens, ... Sampled
//! tokens are kept as sampled; the environment's words are tokenized once and appended. While one environment computes,
//! other episodes continue; the result does not depend on the order of answers.

mod episode;
mod evaluate;
mod events;
mod fault;
mod kept;
mod record;
mod rollout;

pub(super) use episode::{Episode, EpisodesRequest, messages_of};
pub(super) use evaluate::evaluate;
pub use events::Events;
pub use kept::{KeptEpisode, KeptTurn};
pub use record::{Episodes, RoundReport};
pub(super) use rollout::{EpisodesPlayer, Played, hand_over, play};
