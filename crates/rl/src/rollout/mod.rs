//! Sampling and grading, dealt among ranks, and what ranks tell each other of it.

pub(crate) mod counted;
pub(crate) mod exchange;
pub(crate) mod message;
pub mod ranks;
