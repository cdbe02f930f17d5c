//! `rollout.ahead`: a step draws the samples of the step that many later, and trains on those that were drawn that many
//! steps before. The lag is counted in steps: no clock, thread or number of ranks has a say.
//!
//! A rollout that waits is whole: drawn with one version of the weights, graded, and never changed again.
//!
//! Legend: L steps ahead.

mod queue;
mod report;
mod step;

pub use queue::Ahead;
pub(crate) use queue::{Rollout, RolloutReader};
pub(crate) use report::AheadReport;
pub(crate) use step::{copied, draw, gather, take};
