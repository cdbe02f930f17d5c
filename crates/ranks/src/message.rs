//! What ranks tell one another, one JSON object a message.

use crate::board::Beat;
use crate::errors::Told;
use crate::hello::{Hello, Member};
use crate::verdict::{Ending, Verdict};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Message {
    /// A joiner's first message.
    Hello(Hello),
    /// To those that joined: who is not there yet.
    Wait { missing: Vec<u32> },
    /// To all: who they are.
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
}
