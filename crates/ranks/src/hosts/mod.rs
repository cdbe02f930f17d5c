//! Ranks of several hosts: how their trainers reach one another. Owns what a trainer gets to know of the others (`letter.rs`), how it finds
//! them (`dial.rs`), what first ranks of hosts exchange for all of theirs (`between.rs`), and how a rank reads the memory of one on
//! another host: it asks (`reach.rs`), and a thread of that rank's trainer answers (`door.rs`).
//!
//! Bytes alone cross the network, never sums, so that no bit depends on where ranks are. Nothing is encrypted; the token keeps
//! strangers out.

mod between;
mod dial;
mod door;
mod letter;
mod reach;
mod stream;

pub(crate) use between::Between;
pub(crate) use dial::{Caller, Callers, OPEN_MAX};
pub(crate) use door::Door;
pub use door::{Memory, Shown};
pub(crate) use letter::{Letter, Posted};
pub use reach::Reach;

#[cfg(test)]
mod tests;
