//! Sampling and grading: the rounds of a rollout, what it keeps, and responses as text.

pub mod buffer;
pub(crate) mod counted;
pub(crate) mod exchange;
pub mod gather;
pub(crate) mod packed;
pub mod ranks;
