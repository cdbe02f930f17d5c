//! TorchRL's collectors: planned only, because a collector here is a few lines.

mod launch;
mod memory;
mod options;

use crate::stack::Stack;

pub(crate) static STACK: Stack = Stack {
    name: "torchrl",
    looked_for: "a call of a collector such as `MultiSyncDataCollector(...)`, or YAML with a section `collector`",
    read: |source| launch::read(source.text),
    trainer: |_| None,
    planned: &[],
    table: &options::TABLE,
    import: None,
    newest: |_| ("0.14.1", "the newest that was read"),
    rules: memory::rules,
    changes: memory::CHANGES,
    comparisons: |_, _| Vec::new(),
};
