//! What follows from a client's choice of an adapter: its factor, how it begins, and which tensors it has.

use plimsoll_model::SeededSlot;
use plimsoll_tinker::AdapterChoice;

/// Alpha of every adapter, as in Tinker's service.
pub const ALPHA: f64 = 32.0;

/// Returns the factor of B (A x).
pub fn scale_of(adapter: &AdapterChoice) -> f32 {
    (ALPHA / f64::from(adapter.rank)) as f32
}

/// Returns how an adapter begins, which also says which tensors it has.
pub fn seeded(adapter: &AdapterChoice) -> SeededSlot {
    SeededSlot { seed: adapter.seed, attention: adapter.train_attn, mlp: adapter.train_mlp }
}
