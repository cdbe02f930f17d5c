//! A whole run: its plan, its step, its loop, and the verbs of the command line.

pub mod buffers;
pub mod critic;
pub mod dataset;
pub mod diverged;
pub mod dpo;
pub mod eval;
pub mod gather;
pub mod generate;
pub mod grading;
pub mod held;
pub mod import;
pub mod metrics;
pub mod mixture;
pub mod model_reward;
pub mod pairs;
pub mod pass_rates;
pub mod responses;
pub mod reward_model;
pub mod save;
pub mod session;
pub mod sft;
pub mod step;
pub mod train;
pub mod trainer;
pub mod turns;
mod value_passes;
pub mod values;
