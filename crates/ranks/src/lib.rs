//! The ranks of a run: processes on one or several hosts that train one model. Owns how ranks are numbered
//! (`environment.rs`), start (`launch.rs`), keep strangers out (`secret.rs`, `token.rs`, `knock.rs`, `strangers.rs`),
//! meet and check each other (`rendezvous.rs`, `hello.rs`), stay in touch (`link.rs`), reach other hosts (`hosts/`) and
//! agree on what ended the run (`verdict.rs`); what trainers learn of it (`place.rs`) and observers see (`board.rs`);
//! and surveys between hosts (`survey/`).
//!
//! Every message is bounded, every wait has a deadline, every failure has a name. Clocks are monotonic and never
//! compared between processes, except in a survey. It knows no device, model file or tensor.

mod board;
mod environment;
mod errors;
mod group;
mod hello;
mod hosts;
mod interface;
mod knock;
mod launch;
mod lines;
mod link;
mod message;
mod notice;
mod pieces;
mod place;
mod rendezvous;
mod secret;
mod strangers;
mod survey;
mod token;
mod verdict;
mod welcome;
mod window;
mod wire;

pub use board::{Beat, Row, State, slowest};
pub use environment::{
    Flags, Found, HostLauncher, LAUNCH_VARIABLE, Launch, Launcher, RANKS_MAX, Starts, read,
};
pub use group::{Group, Waits, Watch};
pub use hello::{Hello, Member, OF_A_CARD};
pub use hosts::{Memory, Reach, Shown};
pub use interface::Interface;
pub use launch::{Start, die_with_launcher, launch};
pub use link::{Link, Order, Outcome};
pub use notice::{NOTICE_VARIABLE, Notice};
pub use place::Place;
pub use rendezvous::{Meeting, Waiting, meet};
pub use secret::{SECRET_BYTES_MIN, TOKEN_VARIABLE};
pub use survey::{CardLink, CardPaths, Directory, Facts, Limits, Network, Read, SharedMemory, survey};
pub use token::Token;
pub use verdict::{Cause, Ending, Verdict};
