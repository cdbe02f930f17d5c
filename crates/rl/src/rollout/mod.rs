//! Sampling and grading: the rounds of a rollout, what it keeps, what it carries over, and responses as text.

pub mod ahead;
pub mod arrivals;
pub mod buffer;
pub mod carry;
pub(crate) mod counted;
pub(crate) mod exchange;
pub mod gather;
pub mod group;
pub(crate) mod message;
pub mod ranks;
