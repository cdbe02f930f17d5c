//! Processes that run other people's code: spawned, limited, supervised.
//!
//! A worker has a limit on its address space, its own session, neither network nor GPU (`sandbox.rs`), and dies
//! with the thread that started it. It answers with lines on stdout. A failure has a name and the last
//! words of its stderr; a failed worker is killed with its process group and restarted a bounded number of times.
//! The supervisor of a run is here too: it starts the trainer, passes signals on and reports how it ended.
//! Workers of environments are sessions (`session.rs`): a message socket, shared memory, and a verb of this binary
//! (`enter.rs`) that starts the user's interpreter and keeps it (`keeper.rs`), in its own memory cgroup where one can be
//! made (`groups.rs`).
//! Every wait has a deadline. Only `python.rs` and `episodes.rs` know what the lines mean.

mod bell;
mod enter;
mod episodes;
mod groups;
mod keeper;
mod launch;
mod once;
mod pool;
mod process;
pub mod procs;
mod python;
mod ring;
mod sandbox;
pub mod session;
mod shared;
mod status;
mod supervisor;

pub use bell::Bell;
pub use enter::{Confined, ENV_WORKER, become_env_worker, exec_env_worker};
pub use episodes::{EpisodesSpec, Messages, PythonEpisodes, Turn};
pub use groups::{GroupHome, GroupKill, WorkerGroup};
pub use launch::{Launch, Limits};
pub use once::{Ran, RunEnd, run_once};
pub use pool::{Pool, Request, Stop};
pub use python::{Batch, Columns, PythonFunction, PythonSpec, Scores, Signature};
pub use sandbox::{Gpu, Network};
pub use session::{Session, find_python};
pub use shared::SharedMemory;
pub use status::{STATUS_BYTES, StatusNote, run_pid, supervisor_pid};
pub use supervisor::{Ended, SignalPipe, supervise, terminal_columns};
