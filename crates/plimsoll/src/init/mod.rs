//! Run files to start with: those of `runs/`, embedded in the binary, and one made for the user's own model, data and
//! rewards. This module makes texts; `commands/init.rs` writes them.

pub mod columns;
pub mod embedded;
pub mod needs;
pub mod own;
