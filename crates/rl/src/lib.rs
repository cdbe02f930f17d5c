//! A whole run: its plan, its step, its loop, and the verbs of the command line.

pub mod bench;
pub mod buffers;
pub mod calibrate;
pub mod checkpoint;
pub mod dataset;
pub mod devices;
pub mod diverged;
pub mod eval;
pub mod events;
pub mod generate;
pub mod metrics;
pub mod objective;
pub mod plan;
pub mod progress;
pub mod responses;
pub mod resume;
pub mod run_dir;
pub mod runfile;
pub mod session;
pub mod sft;
pub mod shape;
pub mod step;
pub mod train;
pub mod trainer;
