//! The formulas, against references, finite differences and random inputs.

mod distill;
mod divergence;
mod finite_difference;
mod golden;
mod kin;
mod kto;
mod properties;
mod spans;
mod sum_loss;
mod turns;
