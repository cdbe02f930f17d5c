//! Open-Reasoner-Zero: the literals of a configuration class. Its methods are code, and reported as such.

mod import;
mod memory;
mod options;

use crate::launch::python;
use crate::setting::named_trainer;
use crate::stack::{Planned, Stack};

pub(crate) static STACK: Stack = Stack {
    name: "orz",
    looked_for: "a class with lines `key: type = value`",
    is_of: |_| false,
    read: |source| Ok(python::class_fields(source.text)),
    trainer: |settings| Some(named_trainer(settings).unwrap_or("ppo".into())),
    table: &options::TABLE,
    import: Some(&import::IMPORT),
    planned: Some(Planned {
        trainers: &["ppo"],
        newest: |_| ("3fdd9a0", "the only one that was read"),
        rules: memory::rules,
        changes: memory::CHANGES,
        comparisons: |_, _| Vec::new(),
    }),
};
