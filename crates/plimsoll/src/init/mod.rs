//! Run files to begin with: those of `runs/`, embedded in the binary, and one made for a model, data and rewards of the
//! user's own. This module makes texts; `commands/init.rs` writes them.

pub mod columns;
pub mod embedded;
pub mod needs;
pub mod own;
