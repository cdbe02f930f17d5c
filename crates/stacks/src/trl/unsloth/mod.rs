//! unsloth: its loader, its adapters, and the defaults that it writes into TRL's configurations.

pub(super) mod jobs;
pub(super) mod loader;
