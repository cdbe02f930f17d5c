//! How trainers on several hosts reach each other. Owns what a trainer learns of the others (`letter.rs`), how it
//! connects (`dial.rs`), whether packets still pass (`path.rs`), what first ranks exchange for their hosts
//! (`between.rs`), and how a rank reads memory on another host: it asks (`reach.rs`), and a thread of the other trainer
//! answers (`door.rs`).
//!
//! Only bytes cross the network, no sums: bits do not depend on placement. Unencrypted; the token keeps strangers out.

mod between;
mod dial;
mod door;
mod letter;
mod path;
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
