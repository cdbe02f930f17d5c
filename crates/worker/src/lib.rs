//! Processes that run other people's code: spawned, limited, supervised.
//!
//! A worker has a limit on its address space, a session of its own, neither network nor GPU (`sandbox.rs`), and dies
//! with the thread that started it. It answers lines of text on its standard output. What it does wrong becomes a named failure with the
//! last words of its standard error; it is killed with its whole group, and started again a bounded number of times.
//! The supervisor of a run is here too: it starts the trainer, passes signals on and says how it ended.
//! Nothing here waits without a deadline, and nothing here knows what the lines mean, `python.rs` excepted.

mod launch;
mod once;
mod pool;
mod process;
mod python;
mod ring;
mod sandbox;
mod status;
mod supervisor;

pub use launch::{Launch, Limits};
pub use once::{Ran, RunEnd, run_once};
pub use pool::{Pool, Request, Stop};
pub use python::{Batch, Columns, PythonFunction, PythonSpec, Scores, Signature};
pub use sandbox::Network;
pub use status::{STATUS_BYTES, StatusNote, run_pid, supervisor_pid};
pub use supervisor::{Ended, SignalPipe, supervise, terminal_columns};
