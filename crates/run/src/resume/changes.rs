//! Run file keys that may change on resume, and the run file that then applies.

use crate::withheld;
use plimsoll_base::{Error, Result};
use plimsoll_config::{Resumes, RunFile, resumes, resumes_freely, secret_withheld};
use plimsoll_files::HubData;
use std::collections::BTreeMap;
use toml::Value;

/// Returns the run file to resume with: the recorded one, with values of `asked` that may change.
///
/// If `asked` has `"auto"`, the recorded value applies; with `replan` the planner chooses again. Secrets are compared
/// by their marks, and are those of `asked`.
/// Errors: `run-file-changed` lists what changed and what may; `secret-withheld` if a secret is nowhere.
pub fn merge(asked: &RunFile, recorded: &RunFile, replan: bool) -> Result<RunFile> {
    let merged = merge_marked(&withheld::marked(asked), &withheld::marked(recorded), replan)?;
    let whole = withheld::fill(&merged, asked);
    withheld::first_mark(&whole).map_or(Ok(whole), |key| Err(secret_withheld(&key)))
}

fn merge_marked(asked: &RunFile, recorded: &RunFile, replan: bool) -> Result<RunFile> {
    let (new, old) = (leaves(asked), leaves(recorded));
    let mut merged = Value::try_from(recorded).expect("every value of a run file has a form in TOML");
    let mut changed = Vec::new();
    let keys: std::collections::BTreeSet<&String> = new.keys().chain(old.keys()).collect();
    for key in keys {
        let (value, before) = (new.get(key), old.get(key));
        let is_auto = value.and_then(Value::as_str) == Some("auto");
        let how = resumes(key);
        let free = how == Resumes::Freely && !steps_decide_rates(key, recorded);
        if value == before || is_same_data(value, before) || (is_auto && (!replan || how == Resumes::Stored))
        {
            continue;
        }
        if is_auto || free || (replan && how == Resumes::Replanned) {
            set(&mut merged, key, value.cloned());
            continue;
        }
        let show = |value: Option<&Value>| value.map_or("absent".to_string(), Value::to_string);
        let schedule = old.get("train.schedule").and_then(Value::as_str).unwrap_or_default();
        let why = if steps_decide_rates(key, recorded) {
            format!(": train.schedule = \"{}\" ends there", schedule)
        } else {
            String::new()
        };
        changed.push(format!("{key} is {}, the run began with {}{why}", show(value), show(before)));
    }
    if changed.is_empty() {
        return Ok(merged.try_into().expect("keys of two run files make a run file"));
    }
    let may_change: Vec<String> =
        resumes_freely().into_iter().filter(|key| !steps_decide_rates(key, recorded)).collect();
    let message = format!("{} of the run file changed since the run began", count(changed.len()));
    let error = Error::usage("run-file-changed", message);
    Err(changed
        .into_iter()
        .fold(error, Error::fact)
        .fact(format!("may change: {}", may_change.join(", ")))
        .hint("restore these keys to resume the run")
        .hint("start a separate run from these weights: model = \"RUN_DIR/checkpoints/latest\" and another run.dir"))
}

/// Returns true if a hub data set is asked for without a commit, and the run began with it at one.
fn is_same_data(asked: Option<&Value>, before: Option<&Value>) -> bool {
    let data = |value: Option<&Value>| HubData::parse(value?.as_str()?)?.ok();
    let (Some(asked), Some(before)) = (data(asked), data(before)) else { return false };
    asked.revision.is_none() && asked == before.unpinned()
}

/// Returns true if the key changes the length of a run whose learning-rate schedule depends on it.
fn steps_decide_rates(key: &str, run: &RunFile) -> bool {
    key == "train.steps" && run.train.schedule != plimsoll_config::Schedule::Constant
}

fn count(keys: usize) -> String {
    if keys == 1 { "a key".into() } else { format!("{keys} keys") }
}

/// Returns every key with its value; elements of table lists by index.
fn leaves(run: &RunFile) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    run.visit(&mut |key, value| drop(found.insert(key.to_string(), value.clone())));
    found
}

/// Sets a key whose section exists, or removes it.
fn set(root: &mut Value, key: &str, value: Option<Value>) {
    let (head, rest) = key.split_once('.').map_or((key, None), |(head, rest)| (head, Some(rest)));
    let next = match root {
        Value::Array(items) => head.parse().ok().and_then(|index: usize| items.get_mut(index)),
        Value::Table(table) if rest.is_some() => table.get_mut(head),
        Value::Table(table) => {
            match value {
                Some(value) => drop(table.insert(head.to_string(), value)),
                None => drop(table.remove(head)),
            }
            return;
        }
        _ => None,
    };
    if let (Some(next), Some(rest)) = (next, rest) {
        set(next, rest, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(rest: &str) -> RunFile {
        toml::from_str(&format!(
            "method = \"grpo\"\nmodel = \"m\"\n{rest}\n[[reward]]\nkind = \"exact\"\n\
             [train]\nsteps = 10\nlearning_rate = 0.1\nmicro_batch_tokens = 512\n"
        ))
        .expect("a run file")
    }

    fn with(change: impl Fn(&mut RunFile)) -> RunFile {
        let mut run = run("");
        change(&mut run);
        run
    }

    #[test]
    fn what_moves_no_bit_may_change() {
        use plimsoll_config::Auto;
        let recorded = run("");
        for change in [
            (|r: &mut RunFile| r.train.steps = 20) as fn(&mut RunFile),
            |r| r.checkpoint.every = Some(3),
            |r| r.checkpoint.keep = 7,
            |r| r.eval.every = Some(2),
            |r| r.run.threads = Auto::Value(3),
            |r| r.reward[0].timeout_ms = 5,
            |r| r.rollout.kv_blocks = Auto::Value(99),
        ] {
            let asked = with(change);
            assert_ne!(asked, recorded);
            assert_eq!(merge(&asked, &recorded, false).unwrap(), asked);
            // And back, which removes keys again.
            assert_eq!(merge(&recorded, &asked, false).unwrap().checkpoint, recorded.checkpoint);
        }
    }

    #[test]
    fn keys_are_those_of_the_users_file_and_another_one_is_another_run() {
        let with_key = |key: &str| with(|r| r.reward[0].kind = format!("http://h/score?token={key}"));
        let asked = with_key("k1x");
        let recorded: RunFile = toml::from_str(&withheld::to_toml(&asked)).expect("a run file");
        assert!(recorded != asked && !recorded.to_toml().contains("k1x"));
        assert_eq!(merge(&asked, &recorded, false).unwrap(), asked);
        // A directory of an earlier version has the key itself.
        assert_eq!(merge(&asked, &asked, false).unwrap(), asked);
        for other in [with_key("k2x"), with(|r| r.reward[0].kind = "http://h/score".into())] {
            let error = merge(&other, &recorded, false).unwrap_err();
            let words = error.to_string();
            assert!(error.slug == "run-file-changed" && words.contains("reward.0.kind"), "{words}");
            assert!(!words.contains("k2x"), "{words}");
        }
        let error = merge(&recorded, &recorded, false).unwrap_err();
        assert!(error.slug == "secret-withheld" && error.message.contains("reward.0.kind"), "{error}");
    }

    #[test]
    fn auto_means_what_was_resolved_until_replan() {
        use plimsoll_config::{Auto, OptimizerDtype};
        let recorded = with(|r| r.train.optimizer_dtype = Auto::Value(OptimizerDtype::Bf16));
        let asked = with(|r| r.train.micro_batch_tokens = Auto::Auto);
        assert_eq!(merge(&asked, &recorded, false).unwrap(), recorded);
        let merged = merge(&asked, &recorded, true).unwrap();
        assert!(merged.train.micro_batch_tokens.is_auto());
        assert_eq!(merged.train.optimizer_dtype, Auto::Value(OptimizerDtype::Bf16));
    }

    #[test]
    fn what_moves_bits_is_refused_by_name() {
        use plimsoll_config::{Auto, Schedule};
        let recorded = run("");
        for (change, key) in [
            ((|r: &mut RunFile| r.seed = 1) as fn(&mut RunFile), "seed is 1, the run began with 0"),
            (|r| r.train.learning_rate = 0.2, "train.learning_rate is 0.2"),
            (|r| r.reward[0].kind = "math".into(), "reward.0.kind"),
            (|r| r.reward.push(r.reward[0].clone()), "reward.1.kind"),
            (|r| r.data.prompts = Some("p".into()), "data.prompts is \"p\", the run began with absent"),
            (|r| r.train.micro_batch_tokens = Auto::Value(256), "train.micro_batch_tokens"),
        ] {
            let error = merge(&with(change), &recorded, false).unwrap_err();
            assert!(error.slug == "run-file-changed" && error.to_string().contains(key), "{error}");
            assert!(error.to_string().contains("may change: train.steps"), "{error}");
        }
        let asked = with(|r| r.train.micro_batch_tokens = Auto::Value(256));
        assert_eq!(merge(&asked, &recorded, true).unwrap(), asked);
        let linear = |r: &mut RunFile| r.train.schedule = Schedule::Linear;
        let error = merge(
            &with(|r| {
                linear(r);
                r.train.steps = 20
            }),
            &with(linear),
            false,
        )
        .unwrap_err();
        // It said that this very key may change.
        let words = error.to_string();
        assert!(
            words.contains("train.steps is 20, the run began with")
                && words.contains("train.schedule = \"linear\" ends there"),
            "{error}"
        );
        assert!(words.contains("may change: train.dead_steps_max"), "{error}");
    }
}
