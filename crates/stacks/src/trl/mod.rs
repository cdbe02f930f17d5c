//! TRL's GRPO and RLOO, and its SFT, DPO and reward trainers: the command line, YAML or JSON, or a script in Python.

mod import;
mod memory;
mod options;
mod pairs;
mod read;
mod script;

use crate::import::draft::Import;
use crate::stack::Stack;

pub(crate) static STACK: Stack = Stack {
    name: "trl",
    looked_for: "`trl grpo --flag value ...` or another of its trainers, YAML or JSON with the keys of its configuration, or a script that makes a trainer such as `GRPOTrainer(...)`",
    read: read::read,
    trainer: read::trainer,
    planned: &["grpo", "rloo"],
    table: &options::TABLE,
    import: Some(&IMPORT),
    newest: |_| ("1.10.0", "the newest that was read"),
    rules: memory::rules,
    changes: memory::CHANGES,
    comparisons: |_, _| Vec::new(),
};

static IMPORT: Import = Import {
    title: "TRL",
    file: "a shell script with `trl grpo --flag value ...`, YAML or JSON, or a Python script; also of sft, dpo, reward and rloo",
    jobs: &[import::SAMPLES, pairs::SFT, pairs::DPO, pairs::REWARD],
};
