//! Messages between a process and its keepers: JSON orders and reports over a socket of whole messages.

use crate::budget::Over;
use crate::child::Bounds;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Starts a worker; its standard input, output and error come with the message.
    Run(Job),
    /// Ends the worker, if there is one.
    End,
}

/// A program and its limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Path, or a name to look up in PATH.
    pub program: String,
    pub args: Vec<String>,
    /// Variables added to the environment.
    pub env: Vec<(String, String)>,
    pub bounds: Bounds,
}

/// Says what a keeper reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Report {
    /// Process id of the worker's first process.
    Started(u32),
    /// It could not be started, with the system's message.
    Refused(String),
    Ended(JobEnd),
}

/// How a worker ended. If neither a code nor a signal is set, its keeper was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobEnd {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// The limit for which the keeper ended it, if it did.
    pub over: Option<Over>,
    /// True if a process was refused because it had too many.
    pub was_full: bool,
}
