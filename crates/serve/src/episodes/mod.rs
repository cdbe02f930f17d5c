//! Episodes that clients play: an agent takes one, talks to the model under the episode's own address, and reports a reward.
//! What the model answered becomes sequences to train on, token for token (`tree.rs`).
//!
//! The desk (`desk.rs`) knows which episodes there are; a request finds its place by its seat (`seat.rs`); `routes.rs` has
//! the addresses.

mod desk;
mod routes;
mod seat;
mod tree;

pub use desk::{Desk, Played, Round};
pub use routes::router;
pub use seat::{Heard, Place, Seat};
pub use tree::{AgentSequence, EpisodeLimits};
