//! Lets clients play episodes: an agent takes one, talks to the model under the episode's own address, and reports a
//! reward. The model's answers become sequences to train on, token for token (`tree.rs`).
//!
//! The table (`table.rs`) knows which episodes there are; a request finds its place by its session (`session.rs`) and
//! its tokens by the conversation before it (`conversation.rs`); `routes.rs` has the addresses, and `token.rs` the
//! tokens of agents; `play.rs` drives the engine through a rollout. One episode is `episode.rs`; those that take
//! several steps are in `carried.rs`, and `steps.rs` goes on with them.

mod carried;
mod conversation;
mod episode;
mod play;
mod routes;
mod session;
mod steps;
mod table;
mod token;
mod tree;

pub use crate::gate::SampledResponse;
pub use carried::{CarriedRound, EpisodeOfStep};
pub use episode::{Had, Played, Progress};
pub(crate) use routes::router;
pub use table::{EpisodeTable, EpisodesSpec, Round};
pub use tree::{AgentSequence, EpisodeLimits};
