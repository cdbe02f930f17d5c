//! Verifiers and reward functions: a response and its ground truth in, a number out.
//!
//! Built-in verifiers are pure functions with a bound on their work: hostile text costs milliseconds and is wrong.
//! Other people's code (`python:`, `command:`) runs in worker processes; a failure of theirs is a named error or a
//! counted `None`, never a silent 0. This crate never sees a token, a model or a device.

mod external;
mod grade;
mod gsm8k;
pub mod math;
mod rewards;
mod shape;
mod spec;

pub use grade::{Agreement, GraderAgreement, grade_jsonl};
pub use gsm8k::grade_gsm8k;
pub use rewards::{Case, Rewards, Scored};
pub use shape::grade_exact;
pub use spec::{KINDS, OnError, RewardSpec};
