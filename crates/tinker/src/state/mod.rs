//! The state that the protocol needs: tables, requests and results. It changes by records alone (`apply.rs`), so that a
//! restart that reads the journal has the state that was.

mod admit;
mod apply;
mod core;
mod futures;
mod keep;
mod lists;
mod order;
mod types;

pub use apply::stamped;
pub use core::{Core, Shut, not_found, now};
pub use lists::{Page, adapter_json, time_text};
pub use types::{Brief, Poll, Released};
