//! Cuts keys and passwords out of launch files as soon as they are read, so nothing later can repeat them. An option
//! that no table knows is not shown at all: its name says too little about its content.

use crate::defaults::is_default;
use crate::launch::config::NOT_YAML;
use crate::setting::{SURROUNDINGS, Setting, TRAINER, number};
use crate::table::Table;
use plimsoll_base::{WITHHELD, is_name_of_secret, without_secrets};
use std::collections::{HashMap, HashSet};

/// Longest number shown for an option known by a part of its name.
const COUNT_CHARS_MAX: usize = 5;
/// Fewest characters of a word with digits that may be a key.
const KEY_CHARS_MIN: usize = 12;

/// Withholds the values of secrets and unknown options, and cuts secrets out of all others. Switches stay.
pub(crate) fn withhold(table: &Table, settings: Vec<Setting>) -> Vec<Setting> {
    let names: HashSet<&str> = table.names().collect();
    // By key: a script may set one variable on every line.
    let mut known: HashMap<String, bool> = HashMap::new();
    let is_named = |key: &str| names.contains(key);
    let mut is_hidden = |key: &str| match known.get(key) {
        Some(is_hidden) => *is_hidden,
        None => {
            let is_hidden =
                if is_named(key) { table.is_secret(key) } else { !is_ours(key) || is_name_of_secret(key) };
            known.insert(key.into(), is_hidden);
            is_hidden
        }
    };
    let one = |given: Setting| {
        let is_hidden = is_hidden(&given.key);
        let key = if is_named(&given.key) || is_ours(&given.key) {
            given.key.clone()
        } else if given.unreadable == Some(NOT_YAML) {
            given.place()
        } else {
            name_of(&given.key)
        };
        // `logging_steps = 1`: an option known by a part of its name, and a number too short for a secret.
        let is_count = || {
            given.value.len() <= COUNT_CHARS_MAX
                && number(&given.value).is_some()
                && !is_name_of_secret(&given.key)
                && table.reason_of_part(&given.key).is_some()
        };
        // The defaults of the stack's own package are not the user's secrets.
        let is_public = || !table.is_secret(&given.key) && is_default(table.stack, &given.key, &given.value);
        if is_hidden && !is_switch(&given.value) && !is_count() && !is_public() {
            // Its value is not read, so it does not matter whether it can be.
            return Setting { key, value: WITHHELD.into(), unreadable: None, is_withheld: true, ..given };
        }
        let value = without_secrets(&given.value);
        Setting { key, is_withheld: value != given.value, value, ..given }
    };
    settings.into_iter().map(one).collect()
}

fn is_ours(key: &str) -> bool {
    key == TRAINER || SURROUNDINGS.iter().any(|start| key.starts_with(start))
}

/// Returns an unknown key's name, without the text after it on a line that was not understood.
fn name_of(key: &str) -> String {
    let clean = without_secrets(key);
    let end = clean.find([' ', '\t', '=', ':', '"', '\'', '{', '[']).filter(|end| *end > 0);
    // A word alone is no option: it may be the argument of a program before it.
    let is_word = clean.len() >= KEY_CHARS_MIN
        && clean.chars().all(|c| c.is_ascii_alphanumeric())
        && clean.contains(|c: char| c.is_ascii_digit());
    match end.filter(|_| clean != WITHHELD) {
        Some(end) => format!("{}...", &clean[..end]),
        None if is_word => WITHHELD.into(),
        None => clean,
    }
}

fn is_switch(value: &str) -> bool {
    ["", "true", "false", "none", "null", "~", "0", "0.0"]
        .contains(&value.trim().to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    static TABLE: Table = Table {
        stack: "trl",
        rows: &[],
        alike: &[],
        used: "judge_url prompt_key",
        idle: "pad_token log_*",
        elsewhere: &[("why", "_gpus")],
        secrets: "use_wandb",
    };

    #[test]
    fn values_are_shown_of_known_options_only_and_without_secrets() {
        for (key, value, expect) in [
            ("judge_url", "http://me:k@host/x?key=k", "http://host/x"),
            ("judge_url", "http://host/x", "http://host/x"),
            ("judge_url", "f(token=\"k\", split=\"train\")", "f(token=\"(not shown)\", split=\"train\")"),
            ("judge_url", "a, WANDB_API_KEY=k", "a, WANDB_API_KEY=(not shown)"),
            ("judge_url", "a, -u, me:k", "a, -u, (not shown)"),
            ("prompt_key", "question", "question"),
            ("pad_token", "<pad>", "<pad>"),
            ("use_wandb", "k", "(not shown)"),
            ("use_wandb", "True", "True"),
            ("log_every", "5", "(not shown)"),
            ("openai", "k", "(not shown)"),
            ("headers", "X: k", "(not shown)"),
            ("pin", "123456", "(not shown)"),
            ("all_gpus", "8", "8"),
            ("all_gpus", "12345678", "(not shown)"),
            ("all_gpus", "a", "(not shown)"),
            ("verbose", "false", "false"),
            ("factor", "0", "0"),
            // A default of TRL's.
            ("entropy_target", "0.2", "0.2"),
            ("entropy_target", "0.3", "(not shown)"),
            ("trainer", "grpo", "grpo"),
            ("env.WANDB_API_KEY", "k", "(not shown)"),
            ("env.CUDA_VISIBLE_DEVICES", "0,1", "0,1"),
        ] {
            let one = withhold(&TABLE, vec![Setting::new(key, value, 1)]).remove(0);
            assert_eq!((one.key.as_str(), one.value.as_str()), (key, expect));
            assert_eq!(one.is_withheld, value != expect, "{key}");
        }
        for (key, expect) in [
            ("env: {API: k}", "env..."),
            ("- [token, k]", "-..."),
            ("sk-k0123456789abcdefghij", "(not shown)"),
            ("config.yaml", "config.yaml"),
            ("num_generations_2", "num_generations_2"),
            ("a0b1c2d3e4f5g6", "(not shown)"),
        ] {
            let one = withhold(&TABLE, vec![Setting::new(key, "", 1)]).remove(0);
            assert_eq!(one.key, expect);
        }
    }
}
