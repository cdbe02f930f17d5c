//! A whole run: its plan, its step, its loop, and the verbs of the command line.

pub mod events;
pub mod run_dir;
pub mod runfile;
