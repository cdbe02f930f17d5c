//! A whole run: its plan, its step, its loop, and the verbs of the command line.

pub mod buffers;
pub mod dataset;
pub mod events;
pub mod objective;
pub mod plan;
pub mod responses;
pub mod run_dir;
pub mod runfile;
pub mod session;
pub mod sft;
pub mod shape;
pub mod step;
pub mod trainer;
pub mod checkpoint;
pub mod eval;
pub mod metrics;
pub mod train;
