//! The tower of a model that sees: a transformer over the patches of an image, as a value.
//!
//! Patches become rows, layers let all rows of an image see each other, and a merger joins neighbours into the vectors
//! that stand for tokens of the image. `tensors` lists the tensors. Nothing reads files or computes here.
//!
//! Legend: h hidden, f feed-forward, p pixels of a patch's side, s patches of a token's side.

mod counts;
mod presets;
mod sight;
mod spec;
mod tensors;

pub use sight::{RopeAxes, SightSpec, image_places};
pub use spec::*;
pub use tensors::{TOWER_PREFIX, TowerParam, TowerTensor, tower_adapted, tower_tensors};
