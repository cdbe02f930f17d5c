//! Episodes that clients play: an agent takes one, talks to the model under the episode's own address, and reports a reward.
//! What the model answered becomes sequences to train on, token for token (`tree.rs`).
//!
//! The desk (`desk.rs`) knows which episodes there are; a request finds its place by its seat (`seat.rs`) and its tokens by what was said
//! before (`conversation.rs`); `routes.rs` has the addresses, and `token.rs` what an agent shows to use one.

mod conversation;
mod desk;
mod routes;
mod seat;
mod token;
mod tree;

pub(crate) use desk::named_in;
pub use desk::{Desk, DeskSpec, Played, Round};
pub use routes::router;
pub use seat::{Place, Seat};
pub use tree::{AgentSequence, EpisodeLimits, Heard};
