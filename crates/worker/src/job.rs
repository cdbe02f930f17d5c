//! What a process and its keepers say to each other: one JSON message for each order and each report, over a socket of
//! whole messages.

use crate::budget::Over;
use crate::child::Bounds;
use serde::{Deserialize, Serialize};

/// An order to a keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Starts a worker; standard input, output and error come with the message.
    Run(Job),
    /// Ends the worker, if there is one.
    End,
}

/// A program and its limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Looked up in PATH.
    pub program: String,
    pub args: Vec<String>,
    /// Added to the environment.
    pub env: Vec<(String, String)>,
    pub bounds: Bounds,
}

/// What a keeper reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The id of the worker's first process.
    Started(u32),
    /// It could not be started, with the system's words.
    Refused(String),
    Ended(JobEnd),
}

/// How a worker ended. Neither a code nor a signal: its keeper was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobEnd {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// Why the keeper ended it, if it did so by itself.
    pub over: Option<Over>,
    /// Whether it was refused a process because it had too many.
    pub was_full: bool,
}
