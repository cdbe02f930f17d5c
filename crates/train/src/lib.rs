//! Packing under hard limits, optimizer states, gradient norm and clipping.
//!
//! The crate owns gradients, optimizer states, and the layout of responses in micro-batches. Rewards and losses are the
//! algorithm's, on the host.

mod buckets;
mod chain;
mod cut;
mod diverged;
mod landing;
mod levels;
mod matrices;
mod muon;
mod near;
mod optimizer;
mod packing;
mod partial;
mod share;
mod sums;

pub use chain::{Links, Part};
pub use cut::{Cut, Units};
pub use diverged::{finite_weights, first_not_finite, gradient_not_finite, name_tensor};
pub use landing::{Landing, LandingShape, Spread, landing_layout};
pub use levels::{Area, Levels};
pub use matrices::{MuonBufs, layout as muon_layout};
pub use optimizer::{Optimizer, OptimizerDType, StateDTypes, States, adamw, layout as optimizer_layout};
pub use packing::{HeadRow, Heads, MicroBatch, PackLimits, Packer, Packing, Sequence};
pub use partial::{LAYER_SLOTS, Partial, layout as partial_layout};
pub use plimsoll_algo::update::UpdateOptions;
pub use share::Share;
pub use sums::{Sum, Summing};
