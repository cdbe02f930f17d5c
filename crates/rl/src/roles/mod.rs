//! The models of a run, bound to the arena, and the passes they make: roll out, score, update.
//!
//! A `Role` is a bound model with what it learns; the pass over packed sequences is written once, in `role.rs` and
//! `gradients.rs`. The `Trainer` owns the roles with the sampler, the packer and the step's arrays. What the passes are
//! for is decided in `methods`.

mod adapters;
mod adding;
mod chained;
mod divergence;
mod files;
mod gradients;
mod in_order;
mod kept;
mod role;
mod tower;
mod tower_adapters;
mod trainer;
mod update;
mod vectors;

pub use in_order::InOrder;
pub use role::{Loss, LossOf, Passes, Role, Scores, UpdateStats};
pub(crate) use tower::tower_file;
pub use trainer::Trainer;
