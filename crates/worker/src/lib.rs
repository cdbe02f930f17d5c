//! Processes that run other people's code: started, limited and supervised.
//!
//! Between this process and a worker is its keeper (`keeper.rs`), a verb of this binary. It starts the worker in its
//! own session under limits (`child.rs`, `sandbox.rs`, `landlock.rs`), answers the calls that its filter asks about
//! (`broker.rs`), counts what its processes hold (`budget.rs`), ends them together and removes what they left
//! (`tree.rs`). The worker dies with its keeper, and the keeper with the process that started it. A worker of rewards
//! answers in lines on stdout (`process.rs`, `pool.rs`), a program for a test runs once (`once.rs`), apart from its
//! tests (`judged.rs`), and a worker of environments is a session (`session.rs`) with a message socket and shared
//! memory; each has its own memory cgroup where possible (`groups.rs`). A failure has a name and the worker's last
//! words; restarts are bounded. `agents.rs` runs programs that play episodes; `supervisor.rs` runs the trainer. Waits
//! have deadlines. Only `python.rs`, `episodes.rs` and
//! `estimator.rs` know what lines mean.

mod agents;
mod bell;
mod broker;
mod budget;
mod calls;
mod child;
mod enter;
mod episodes;
mod estimator;
mod filter;
mod folder;
mod groups;
mod ids;
mod images;
mod inherited;
mod interpreter;
mod job;
mod judged;
mod keeper;
mod kept;
mod landlock;
mod launch;
pub mod message;
mod notify;
mod objects;
mod offered;
mod once;
mod oom_scores;
mod pool;
mod process;
pub mod procs;
mod python;
mod raised;
mod reply;
mod ring;
mod sandbox;
pub mod session;
mod shared;
mod stand_in;
mod status;
mod steps;
mod supervisor;
mod tree;
mod words;

pub use agents::{AgentEnd, Agents, AgentsSpec};
pub use bell::Bell;
pub use budget::Over;
pub use enter::{Confined, ENV_WORKER, become_env_worker};
pub use episodes::{
    About, ContainerTasks, EpisodesOf, EpisodesSpec, Messages, PythonEpisodes, REPLY_IMAGE_BYTES_MAX,
    ReplyImages, ReplyLimits, ToolFunction, Turn,
};
pub use estimator::{EstimatorInputs, EstimatorSpec, PythonEstimator};
pub use groups::{GroupHome, GroupKill, WorkerGroup};
pub use ids::Ids;
pub use images::{SampleImage, image_lists};
pub use inherited::inherited_listener;
pub use interpreter::{default_python, find_python};
pub use judged::{Judge, Judged};
pub use keeper::{KEEPER, OVER_WORDS, become_keeper};
pub use kept::keep_with;
pub use launch::{Launch, Limits};
pub use offered::{Offered, offered};
pub use once::{ProgramFolder, Ran, RunEnd, Runner};
pub use oom_scores::Raise;
pub use pool::{Pool, Request, Stop};
pub use python::{Batch, Columns, PythonFunction, PythonSpec, Scores, Signature};
pub use sandbox::{Gpu, Network};
pub use session::Session;
pub use shared::SharedMemory;
pub use status::{STATUS_BYTES, StatusNote, run_pid, supervisor_pid};
pub use steps::{RewardStep, STEPS_MAX, read_steps, read_steps_of};
pub use supervisor::{Ended, Order, Others, Seen, SignalPipe, Trainer, supervise, terminal_columns};
pub use words::{WORDS_BYTES_MAX, Words};
