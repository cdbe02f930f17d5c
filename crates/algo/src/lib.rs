//! The formulas: advantages, losses with their gradients, KL estimators and controllers. Slices in, slices out.
//!
//! A packed batch concatenates the response positions of its sequences: every per-token slice has `N` entries, and
//! `packed::Packed` holds the mask and the sequences' offsets. Masked positions are never read and get exactly 0.
//!
//! Storage is f32, arithmetic f64 in a fixed order, with `plimsoll_base::math` for `exp` and `ln`, so bits do not
//! depend on the machine. Nothing here allocates; functions that run per micro-batch write into the caller's slices.
//! This crate knows nothing of tensors, devices, tokens or text. `docs/methods.md` lists the formulas with sources.

#![warn(missing_docs)]

pub mod action;
pub mod advantage;
pub mod aggregation;
pub mod correction;
pub mod covariance;
pub mod distill;
pub mod divergence;
pub mod entropy;
pub mod kl;
pub mod labelled;
pub mod method;
pub mod optimal_token;
pub mod packed;
pub mod pass_at_k;
pub mod policy_loss;
pub mod preference;
pub mod shaping;
pub mod spans;
pub mod sum_loss;
pub mod supervised;
pub mod turns;
pub mod update;
pub mod value_loss;

/// Results of OpenRLHF 0.11.2 and Open-Reasoner-Zero for hand-chosen inputs, as JSON: `tests/it/golden.rs` and
/// `plimsoll bench methods` compare the formulas with them.
pub const GOLDEN: &str = include_str!("../tests/golden/rl_formulas.json");

/// Losses and advantages of GRPO's kin, by the code of verl 0.9.1 and TRL 1.16 in f64 (`tests/golden/kin.py`).
pub const KIN: &str = include_str!("../tests/golden/kin.json");

/// Values of KTO, by the lines of TRL 1.16.0 in f64 (`tests/golden/kto.py`).
pub const KTO: &str = include_str!("../tests/golden/kto.json");
