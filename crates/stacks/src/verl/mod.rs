//! verl's `main_ppo`, and simpleRL-reason's fork of it: overrides of its configuration by their full paths, or the
//! configuration itself as Hydra writes it.

mod import;
mod memory;
mod options;
mod reported;

use crate::launch::{config, shell};
use crate::options::Options;
use crate::setting::Setting;
use crate::stack::Stack;

pub(crate) static STACK: Stack = Stack {
    name: "verl",
    looked_for: "a command `... verl.trainer.main_ppo key=value ...`",
    read,
    table: &options::TABLE,
    import: Some(&import::IMPORT),
    newest,
    rules: memory::rules,
    changes: memory::CHANGES,
    comparisons: reported::comparisons,
};

fn read(text: &str) -> Vec<Setting> {
    let is_trainer = |word: &str| {
        word.contains("verl.trainer.main_ppo") || word.contains(".main_dapo") || word.ends_with("main_ppo.py")
    };
    if let Some(words) = shell::arguments(text, is_trainer) {
        return shell::overrides(&words);
    }
    let given = config::interpolate(config::yaml(text));
    let is_section =
        |key: &str| ["actor_rollout_ref.", "data.", "algorithm."].iter().any(|s| key.starts_with(s));
    if given.iter().any(|one| is_section(&one.key)) { given } else { Vec::new() }
}

fn newest(options: &Options) -> (&'static str, &'static str) {
    match options.has("actor_rollout_ref.rollout.swap_space") {
        true => ("0.2", "simpleRL-reason's fork, by its option swap_space"),
        false => ("0.7.0", "the newest that was read"),
    }
}
