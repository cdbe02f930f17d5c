//! Sampling and grading: the rounds of a rollout, what it keeps, and responses as text.

pub(crate) mod counted;
pub mod dealt;
pub(crate) mod exchange;
pub mod gather;
pub mod held;
pub(crate) mod packed;
