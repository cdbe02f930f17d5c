//! How trainers on several hosts reach each other. Owns what a trainer learns of the others (`address_book.rs`), how it
//! connects (`dial.rs`), whether packets still pass (`path.rs`), what first ranks exchange for their hosts
//! (`host_links.rs`), and how a rank reads memory on another host: it asks (`reach.rs`), and a thread of the other
//! trainer answers (`memory_server.rs`).
//!
//! Only bytes cross the network, no sums: bits do not depend on placement. Unencrypted; the token keeps strangers out.

mod address_book;
mod dial;
mod host_links;
mod memory_server;
mod path;
mod reach;
mod stream;

pub(crate) use address_book::{AddressBook, Posted};
pub(crate) use dial::{Caller, Callers, OPEN_MAX};
pub(crate) use host_links::HostLinks;
pub(crate) use memory_server::MemoryServer;
pub use memory_server::{Memory, Shown};
pub use reach::Reach;

#[cfg(test)]
mod tests;
