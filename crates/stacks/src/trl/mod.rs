//! TRL's GRPO and RLOO: the command line, YAML or JSON, or a configuration in Python.

mod import;
mod memory;
mod options;

use crate::launch::{config, python, shell};
use crate::setting::Setting;
use crate::stack::{Stack, none_reported};

pub(crate) static STACK: Stack = Stack {
    name: "trl",
    looked_for: "`trl grpo --flag value ...`, YAML or JSON with the keys of GRPOConfig, or a literal `GRPOConfig(...)`",
    read,
    table: &options::TABLE,
    import: Some(&import::IMPORT),
    newest: |_| ("1.10.0", "the newest that was read"),
    rules: memory::rules,
    changes: memory::CHANGES,
    comparisons: none_reported,
};

fn read(text: &str) -> Vec<Setting> {
    if let Some(given) = config::json(text) {
        return given;
    }
    let trainer = |name: &str| Setting::new("trainer", name, 0);
    for (call, name) in [("GRPOConfig", "grpo"), ("RLOOConfig", "rloo")] {
        let given = python::calls(text, &[call, "GRPOTrainer", "RLOOTrainer"]);
        if text.contains(&format!("{call}(")) && !given.is_empty() {
            return given.into_iter().chain([trainer(name)]).collect();
        }
    }
    let names = |word: &str, name: &str| word == name || word.ends_with(&format!("{name}.py"));
    let mut is_script = false;
    for words in shell::commands(text) {
        let at = words.iter().position(|word| names(&word.text, "grpo") || names(&word.text, "rloo"));
        is_script |= words.first().is_some_and(|word| matches!(word.text.as_str(), "trl" | "accelerate"));
        let Some(at) = at.filter(|&at| at > 0) else { continue };
        let name = if names(&words[at].text, "grpo") { "grpo" } else { "rloo" };
        // Earlier words are the launcher's; `accelerate launch --num_processes 8` says how many ranks.
        let is_launcher = |key: &str| matches!(key, "trl" | "accelerate" | "launch" | "python" | "python3");
        let before = shell::flags(&words[..at]).into_iter().filter(|one| !is_launcher(&one.key));
        return before.chain([trainer(name)]).chain(shell::flags(&words[at + 1..])).collect();
    }
    if is_script { Vec::new() } else { config::yaml(text) }
}
