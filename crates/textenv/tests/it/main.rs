//! Text environments with real programs and real workers.

mod harbor;
mod mcp;
mod rows;
mod shapes;
mod tool;

use plimsoll_base::Bytes;
use plimsoll_textenv::{ContainerTasks, ReplyLimits, Settings};
use plimsoll_worker::Network;
use std::time::Duration;

/// Settings of one worker, which a keeper of this crate's holds.
fn settings() -> Settings {
    plimsoll_worker::keep_with(env!("CARGO_BIN_EXE_plimsoll-textenv-keeper").into());
    let timeout = Duration::from_secs(20);
    Settings {
        tools: Vec::new(),
        servers: Vec::new(),
        rows: None,
        eval_rows: None,
        tasks: ContainerTasks::default(),
        prompt_column: "prompt".to_string(),
        drops_answers: false,
        ignored: Vec::new(),
        action: "message".to_string(),
        observation: None,
        reply: ReplyLimits::of(128),
        images: None,
        python: None,
        num_workers: 1,
        worker_memory: Bytes::mib(1024),
        network: Network::Deny,
        step_timeout: timeout,
        reset_timeout: timeout,
    }
}
