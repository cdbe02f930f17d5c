//! What a run learns from, and how: the policy methods, their critic, preference pairs and completions.

pub mod buffers;
pub mod critic;
pub mod dpo;
pub mod metrics;
pub mod pairs;
pub mod policy;
pub mod reward_model;
pub mod sft;
