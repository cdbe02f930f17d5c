//! Per-token host arrays of a step that the passes of its roles fill or read, allocated once.
//!
//! What a part of a method computes for itself it owns itself: `methods/parts.rs` and `teachers`.

mod divergence;
mod tokens;
mod values;

pub use divergence::DivergenceArrays;
pub use tokens::{MicroArrays, TokenArrays};
pub use values::ValueArrays;
pub(crate) use values::zero;
