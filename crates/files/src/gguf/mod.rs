//! GGUF files, read and written: the container, the model's metadata, and the names that both directions share.

pub(crate) mod experts;
pub(crate) mod header;
pub(crate) mod model;
pub(crate) mod names;
pub(crate) mod rope;
pub(crate) mod write;
