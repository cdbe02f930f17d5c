//! Gradients and updates against references, differences, and themselves in other cuts.

#[path = "../common/mod.rs"]
mod common;

mod adamw;
mod adapters;
mod critic;
mod gradients;
mod muon;
mod quantized;
mod score_adapters;
