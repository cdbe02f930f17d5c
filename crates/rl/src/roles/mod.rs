//! The models of a run, bound to the arena, and the passes they make: roll out, score, update.
//!
//! A `Role` is a model with a purpose; the pass over packed sequences is written once, in `role.rs` and `gradients.rs`. The `Trainer` owns the
//! roles with the engine, the packer and the step's arrays. What the passes are for is decided in `methods`.

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
