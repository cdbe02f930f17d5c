//! The ranks of a run: processes on one host or several that train one model. Owns how a rank learns its number (`environment.rs`), how
//! ranks are started (`launch.rs`), find and check one another (`rendezvous.rs`, `hello.rs`, `token.rs`), hear that all live
//! (`link.rs`), reach those of other hosts (`hosts/`), agree on what ended the run (`verdict.rs`), what a trainer gets of it (`place.rs`), what those who watch the
//! run see of all ranks (`board.rs`), and what is measured between hosts before a run (`survey/`).
//!
//! Every message is bounded, every wait has a deadline, every failure has a name. Clocks are monotonic and never compared
//! between processes, but in a survey, which says how far they are apart. It knows no device, file of a model or tensor.

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
mod place;
mod rendezvous;
mod survey;
mod token;
mod verdict;
mod window;
mod wire;

pub use board::{Beat, Row, State, slowest};
pub use environment::{Flags, Found, LAUNCH_VARIABLE, Launch, Launcher, RANKS_MAX, Starts, read};
pub use group::{Group, Waits, Watch};
pub use hello::{Hello, Member, OF_A_CARD};
pub use hosts::{Memory, Reach, Shown};
pub use interface::Interface;
pub use launch::{Start, die_with_launcher, launch};
pub use link::{Link, Order, Outcome};
pub use place::Place;
pub use rendezvous::{Meeting, Waiting, meet};
pub use survey::{CardLink, CardPaths, Directory, Facts, Limits, Network, Read, SharedMemory, survey};
pub use token::{TOKEN_VARIABLE, Token};
pub use verdict::{Cause, Ending, Verdict};
