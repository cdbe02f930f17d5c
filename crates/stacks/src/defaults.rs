//! Defaults of other stacks, from their packages by `bench/import_defaults.py`. A default written out changes nothing.

use crate::setting::{flag, list, number};
use serde_json::Value;
use std::sync::LazyLock;

/// Packages, their trainers, and the options of each.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("defaults.json")).expect("a test reads the table that is built in")
});

/// Returns the default of `key` in `trainer` of the stack `stack`; `None` if the table does not have it.
pub(crate) fn default_of(stack: &str, trainer: &str, key: &str) -> Option<&'static str> {
    DEFAULTS.get(stack)?.get("trainers")?.get(trainer)?.get(key)?.as_str()
}

/// Returns true if `value` is the default of `key` in any trainer of the stack.
pub(crate) fn is_default(stack: &str, key: &str, value: &str) -> bool {
    let trainers = DEFAULTS.get(stack).and_then(|package| package["trainers"].as_object());
    let mut names = trainers.into_iter().flat_map(|trainers| trainers.keys());
    names.any(|trainer| default_of(stack, trainer, key).is_some_and(|default| is_same(default, value)))
}

/// Compares two values of launch files: `1e-3` is `0.001`, `False` is `false`, and a list is the same without brackets.
fn is_same(one: &str, other: &str) -> bool {
    let numbers = || number(one).is_some_and(|value| Some(value) == number(other));
    let flags = || !other.is_empty() && flag(one).is_some() && flag(one) == flag(other);
    let lists = || {
        let (one, other) = (list(one), list(other));
        one.len() == other.len() && one.iter().zip(&other).all(|(a, b)| a == b)
    };
    one == other || numbers() || flags() || lists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_at_their_defaults_in_any_spelling() {
        for (stack, key, value, expect) in [
            ("trl", "beta", "0.05", true),
            ("trl", "beta", "5e-2", true),
            ("trl", "beta", "0.04", false),
            ("trl", "normalize_advantages", "false", true),
            ("verl", "actor_rollout_ref.rollout.multi_turn.format", "hermes", true),
            ("verl", "actor_rollout_ref.rollout.multi_turn.format", "", false),
            ("openrlhf", "algo.advantage.is_correction_threshold", "0.5, 5.0", true),
            ("openrlhf", "frobnicate", "1", false),
            ("orz", "use_grpo", "False", false),
        ] {
            assert_eq!(is_default(stack, key, value), expect, "{stack}: {key} = {value}");
        }
        assert_eq!(default_of("trl", "rloo", "beta"), Some("0.05"));
    }

    /// A default that an import writes out is the one of the newest package.
    #[test]
    fn defaults_that_an_import_writes_out_are_those_of_the_packages() {
        let mut wrong = Vec::new();
        for stack in crate::STACKS {
            let jobs = stack.import.map_or(&[][..], |import| import.jobs);
            for (trainer, job) in jobs.iter().flat_map(|job| job.trainers.iter().map(move |name| (name, job)))
            {
                for (name, value) in job.defaults {
                    let names = stack.table.names_of(name).split('|');
                    let there = names.filter_map(|name| default_of(stack.name, trainer, name)).next();
                    if there.is_some_and(|there| !is_same(there, value)) {
                        wrong.push(format!(
                            "{stack:?} {trainer}: {name} = {value}, {} there",
                            there.unwrap_or("")
                        ));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
