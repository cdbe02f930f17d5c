//! The models of a run, bound to the arena, and the passes they make: roll out, score, update.
//!
//! A `Role` is a model, such as the actor; `role.rs` and `gradients.rs` hold the pass over packed sequences. The
//! `Trainer` owns the roles, the engine, the packer and the step's arrays. `methods` decides what the passes are for.

mod adapters;
mod chained;
mod files;
mod gradients;
mod phases;
mod reach;
mod role;
mod trainer;
mod update;
mod weights;

pub use role::{Loss, LossFor, LossOf, Passes, Role, Scores, UpdateStats};
pub use trainer::{Sources, Trainer, sampling};
