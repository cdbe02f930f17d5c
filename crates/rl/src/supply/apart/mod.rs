//! `async.rollout_ranks`: the last ranks only sample, and the others only train. While a step is trained, the samples
//! of the step that L later are drawn; then all ranks meet, and exchange the samples for the new weights.
//!
//! What is drawn with which weights is that of a run whose ranks take turns (`supply/ahead.rs`), so the bits are too.
//! Samples wait in the queue of `supply/queue.rs`, which has L places, on every rank.
//!
//! Legend: L steps ahead.

mod message;
mod place;
mod save;
mod supply;
mod weights;

pub use place::{Apart, ApartRanks, check, share_of_trainers};
pub(crate) use save::save;
pub(super) use supply::ApartSupply;
pub(crate) use supply::{QueueFill, whom_at_end};
