//! Messages between ranks, one JSON object each.

use crate::board::Beat;
use crate::errors::WireError;
use crate::hello::{Hello, Member};
use crate::verdict::{Ending, Verdict};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Says what a connection between trainers is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Way {
    /// Exchange between the first ranks of hosts.
    Group,
    /// The same, within a part of the ranks.
    Part,
    /// Reads of the listener's memory.
    Read,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Message {
    /// First message of a rank that joins.
    Hello(Box<Hello>),
    /// To ranks that joined: who is still missing.
    Wait {
        missing: Vec<u32>,
    },
    /// To each rank: all members, and the window of its host.
    Welcome {
        members: Vec<Member>,
        window: PathBuf,
    },
    /// The run will not begin.
    Refuse(WireError),
    /// State of a trainer; five times a second from each supervisor.
    Beat(Beat),
    /// A user asked the run to end: how often so far, and by which signal.
    Ask {
        level: u32,
        signal: i32,
    },
    Ended(Ending),
    /// The run is ending, and why.
    Verdict(Verdict),
    /// First message of a trainer to one of another host: its rank, and what the connection is for.
    Knock {
        rank: u32,
        way: Way,
    },
    /// The answer to `Knock`.
    Open,
}
