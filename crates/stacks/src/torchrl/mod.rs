//! TorchRL's collectors: planned only, because a collector here is a few lines.

mod launch;
mod memory;
mod options;

use crate::stack::{Planned, Stack};

pub(crate) static STACK: Stack = Stack {
    name: "torchrl",
    looked_for: "a call of a collector such as `MultiSyncDataCollector(...)`, or YAML with a section `collector`",
    is_of: |source| source.text.contains("torchrl"),
    read: launch::read,
    trainer: |_| None,
    table: &options::TABLE,
    import: None,
    planned: Some(Planned {
        trainers: &[],
        newest: |_| ("0.14.1", "the newest that was read"),
        rules: memory::rules,
        changes: memory::CHANGES,
        comparisons: |_, _| Vec::new(),
    }),
};
