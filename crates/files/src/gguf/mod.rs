//! GGUF files, read and written: the container, what it says about its model, and the names that both directions share.

pub(crate) mod header;
pub(crate) mod model;
pub(crate) mod names;
pub(crate) mod rope;
pub(crate) mod write;
