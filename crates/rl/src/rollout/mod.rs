//! Sampling and grading: the rounds of a rollout, what it keeps, and responses as text.

pub(crate) mod counted;
pub mod dealt;
pub(crate) mod exchange;
pub mod gather;
pub mod grading;
pub mod held;
pub mod model_reward;
pub(crate) mod packed;
pub mod responses;
