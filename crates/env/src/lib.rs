//! Environments: their observations and actions (spaces, flattened into slots of fixed bytes), resets and steps, the
//! seeds of their episodes, and native environments with Gymnasium's exact dynamics.
//!
//! An environment is a value that one thread owns. Nothing here starts a thread or a process: `collect` steps it.

#![warn(missing_docs)]

mod environment;
pub mod flags;
pub mod native;
pub mod seed;
mod slot;
mod space;

pub use environment::{Environment, Spec, Step};
pub use slot::{Domain, Leaf, OutOfSpace, SLOT_BYTES_MAX, Slot};
pub use space::{ElementType, Space};
