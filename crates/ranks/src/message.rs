//! What ranks tell one another, one JSON object a message.

use crate::board::Beat;
use crate::errors::Told;
use crate::hello::{Hello, Member};
use crate::verdict::{Ending, Verdict};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What a connection between trainers is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Way {
    /// For what first ranks of hosts exchange.
    Group,
    /// To read the memory of who is dialled.
    Read,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Message {
    /// A joiner's first message.
    Hello(Box<Hello>),
    /// To those that joined: who is not there yet.
    Wait { missing: Vec<u32> },
    /// To each: who they are, and the window of its host.
    Welcome { members: Vec<Member>, window: PathBuf },
    /// The run does not begin.
    Refuse(Told),
    /// How a trainer does; every half second from each supervisor.
    Beat(Beat),
    /// A user asked for the run's end: how often so far, and by which signal.
    Ask { level: u32, signal: i32 },
    /// A trainer ended.
    Ended(Ending),
    /// The run ends, and why.
    Verdict(Verdict),
    /// A trainer's first message to one of another host: who it is, and what the connection is for.
    Knock { rank: u32, way: Way },
    /// The answer to it.
    Open,
}
