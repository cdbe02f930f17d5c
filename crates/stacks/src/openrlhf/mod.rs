//! OpenRLHF's `train_ppo_ray`, from 0.1 to 0.11.

mod import;
mod memory;
mod options;
mod reported;

use crate::launch::shell;
use crate::options::Options;
use crate::setting::Setting;
use crate::stack::Stack;

pub(crate) static STACK: Stack = Stack {
    name: "openrlhf",
    looked_for: "a command `... openrlhf.cli.train_ppo_ray --flag value ...`",
    read,
    table: &options::TABLE,
    import: Some(&import::IMPORT),
    newest,
    rules: memory::rules,
    changes: memory::CHANGES,
    comparisons: reported::comparisons,
};

fn read(text: &str) -> Vec<Setting> {
    let is_trainer =
        |word: &str| word.contains("openrlhf.cli.train_ppo_ray") || word.ends_with("train_ppo_ray.py");
    shell::arguments(text, is_trainer).map(|words| shell::flags(&words)).unwrap_or_default()
}

fn newest(options: &Options) -> (&'static str, &'static str) {
    match options.has_first_names() {
        true => ("0.10.1", "the newest with flat flags"),
        false => ("0.11.2", "the newest that was read"),
    }
}
