//! The keys that `dpo` and `reward_model` read. Keys without effect on them are refused by name.

use super::limits::{bad_value, contradiction};
use super::provenance::Provenance;
use super::sections::{Eval, Loss, Rollout, RunFile};
use super::values::LossType;
use plimsoll_algo::method::Method;
use plimsoll_base::Result;
use serde::Serialize;

/// Keys of `[loss]` that `dpo` reads.
const OF_DPO: [&str; 3] = ["dpo_beta", "loss_type", "label_smoothing"];
/// Keys of `[rollout]` that `reward_model` reads, and those that the planner chooses.
const OF_REWARD_MODEL: [&str; 3] = ["prompts_per_step", "sequences_max", "kv_blocks"];
/// Keys of `[eval]` that an evaluation over pairs reads.
const OF_PAIRS: [&str; 2] = ["every", "prompts_max"];

/// Checks the keys of preference methods, and that no other method sets them.
pub(super) fn check(run: &RunFile, at: &Provenance) -> Result<()> {
    let loss = &run.loss;
    match run.method {
        Method::Dpo => dpo(run, at)?,
        Method::RewardModel => {
            without_meaning(run, at, "loss", loss, &Loss::default(), &[])?;
            without_meaning(run, at, "rollout", &run.rollout, &Rollout::default(), &OF_REWARD_MODEL)?;
            without_meaning(run, at, "eval", &run.eval, &Eval::default(), &OF_PAIRS)?;
            if !run.reward.is_empty() {
                return Err(no_meaning(run, at, "reward"));
            }
        }
        _ => {
            let default = Loss::default();
            let of_dpo =
                [loss.loss_type != default.loss_type, loss.label_smoothing != default.label_smoothing];
            if let Some((name, _)) = ["loss_type", "label_smoothing"].iter().zip(of_dpo).find(|(_, set)| *set)
            {
                return Err(no_meaning(run, at, &format!("loss.{name}")).hint("they are of method = \"dpo\""));
            }
            return Ok(());
        }
    }
    if run.train.mini_batch.is_some() {
        return Err(no_meaning(run, at, "train.mini_batch").hint("a step over pairs is one update"));
    }
    if run.train.epochs_per_rollout != 1 {
        return Err(no_meaning(run, at, "train.epochs_per_rollout").hint("a step over pairs is one update"));
    }
    Ok(())
}

fn dpo(run: &RunFile, at: &Provenance) -> Result<()> {
    let loss = &run.loss;
    if !(loss.dpo_beta.is_finite() && loss.dpo_beta > 0.0) {
        return Err(bad_value(at, "loss.dpo_beta", loss.dpo_beta, "a number above 0, such as 0.1"));
    }
    if !(0.0..0.5).contains(&loss.label_smoothing) {
        let takes = "a number from 0 to below 0.5: at one half the labels say nothing";
        return Err(bad_value(at, "loss.label_smoothing", loss.label_smoothing, takes));
    }
    if loss.loss_type == LossType::Ipo && loss.label_smoothing != 0.0 {
        let message =
            format!("loss.label_smoothing = {} applies to \"sigmoid\", not to IPO", loss.label_smoothing);
        return Err(contradiction(at, "loss.label_smoothing", &message)
            .hint("remove it, or set loss.loss_type = \"sigmoid\""));
    }
    without_meaning(run, at, "loss", loss, &Loss::default(), &OF_DPO)
}

/// Refuses the first key of a section that differs from its default and is not among those that the method reads.
fn without_meaning<T: Serialize>(
    run: &RunFile,
    at: &Provenance,
    section: &str,
    set: &T,
    default: &T,
    read: &[&str],
) -> Result<()> {
    let table = |value: &T| toml::Table::try_from(value).expect("every section is a table");
    let (set, default) = (table(set), table(default));
    let differs = |key: &&String| set.get(*key) != default.get(*key) && !read.contains(&key.as_str());
    match set.keys().find(differs) {
        None => Ok(()),
        Some(key) => Err(no_meaning(run, at, &format!("{section}.{key}"))),
    }
}

fn no_meaning(run: &RunFile, at: &Provenance, key: &str) -> plimsoll_base::Error {
    let message = format!("`{key}` means nothing to method `{}`", run.method);
    contradiction(at, key, &message).hint(format!("remove {key}"))
}
