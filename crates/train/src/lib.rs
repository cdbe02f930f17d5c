//! Packing, optimizer, gradient norm, checkpoints.
