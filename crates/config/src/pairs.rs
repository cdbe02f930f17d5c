//! The keys that methods read which learn from their data alone: `dpo`, `reward_model` and `sft`. Keys without effect
//! on them are refused by name.

use super::limits::contradiction;
use super::provenance::Provenance;
use super::sections::{Eval, Loss, Rollout, RunFile};
use super::values::LossType;
use plimsoll_algo::method::{LearnsFrom, Method};
use plimsoll_base::Result;
use serde::Serialize;

/// Keys of `[rollout]` that a method without tokens reads, and those that the planner chooses.
const OF_SCORES: [&str; 3] = ["prompts_per_step", "sequences_max", "kv_blocks"];
/// Keys of `[eval]` that an evaluation over pairs reads.
const OF_PAIRS: [&str; 2] = ["every", "prompts_max"];

/// Returns the keys of `[loss]` that a method over pairs reads.
fn loss_keys(method: Method) -> &'static [&'static str] {
    match method {
        Method::Dpo => &["dpo_beta", "loss_type", "label_smoothing"],
        Method::Simpo => &["dpo_beta", "simpo_gamma"],
        Method::Cpo => &["dpo_beta", "nll_coef", "label_smoothing"],
        Method::Orpo => &["dpo_beta"],
        Method::Kto => &["dpo_beta", "desirable_weight", "undesirable_weight"],
        _ => &[],
    }
}

/// Checks the keys of methods that sample nothing, and that no other method sets those of preferences.
pub(super) fn check(run: &RunFile, at: &Provenance) -> Result<()> {
    let (loss, needs, default) = (&run.loss, run.method.needs(), Loss::default());
    if needs.learns_from != LearnsFrom::Completions && !run.data.train_on.is_last() {
        return Err(no_meaning(run, at, "data.train_on").hint("it is of method = \"sft\""));
    }
    // Held-out prompts of `sft` are sampled from.
    let samples = matches!(needs.learns_from, LearnsFrom::Samples | LearnsFrom::Completions);
    if !samples && !run.data.answered.is_error() {
        return Err(no_meaning(run, at, "data.answered").hint("it is of methods that sample"));
    }
    match needs.learns_from {
        LearnsFrom::Samples => return of_other_methods(run, at),
        LearnsFrom::Completions => {}
        LearnsFrom::Labels => labels(run, at)?,
        LearnsFrom::Pairs if needs.scores => {
            without_meaning(run, at, "rollout", &run.rollout, &Rollout::default(), &OF_SCORES)?;
            without_meaning(run, at, "eval", &run.eval, &Eval::default(), &OF_PAIRS)?;
            if !run.reward.is_empty() {
                return Err(no_meaning(run, at, "reward"));
            }
        }
        LearnsFrom::Pairs => preference(loss, at)?,
    }
    without_meaning(run, at, "loss", loss, &default, loss_keys(run.method))?;
    let of_samples = [
        ("train.mini_batch", run.train.mini_batch.is_some()),
        ("train.epochs_per_rollout", run.train.epochs_per_rollout != 1),
    ];
    match of_samples.into_iter().find(|(_, is_set)| *is_set) {
        None => Ok(()),
        Some((key, _)) => Err(no_meaning(run, at, key).hint("a step over rows of data is one update")),
    }
}

/// Refuses the keys of preferences in a method that samples.
fn of_other_methods(run: &RunFile, at: &Provenance) -> Result<()> {
    let (loss, default) = (&run.loss, Loss::default());
    let of_dpo = [
        ("dpo_beta", loss.dpo_beta != default.dpo_beta),
        ("loss_type", loss.loss_type != default.loss_type),
        ("label_smoothing", loss.label_smoothing != default.label_smoothing),
        ("simpo_gamma", loss.simpo_gamma != default.simpo_gamma),
        ("nll_coef", loss.nll_coef != default.nll_coef),
        ("desirable_weight", loss.desirable_weight != default.desirable_weight),
        ("undesirable_weight", loss.undesirable_weight != default.undesirable_weight),
    ];
    match of_dpo.into_iter().find(|(_, is_set)| *is_set) {
        None => Ok(()),
        Some((key, _)) => Err(no_meaning(run, at, &format!("loss.{key}")).hint("it is of method = \"dpo\"")),
    }
}

/// Requires two answers a step, since each prompt is also scored with the answer of another row.
fn labels(run: &RunFile, at: &Provenance) -> Result<()> {
    if run.rollout.prompts_per_step > 1 {
        return Ok(());
    }
    let message =
        "rollout.prompts_per_step = 1 with method `kto`, whose KL is of prompts with other rows' answers";
    Err(at
        .error("group-too-small", "rollout.prompts_per_step", message)
        .hint("set rollout.prompts_per_step to at least 2; TRL's batches have 8 or more"))
}

/// Checks the values of the keys of preference losses.
fn preference(loss: &Loss, at: &Provenance) -> Result<()> {
    if loss.loss_type == LossType::Ipo && loss.label_smoothing != 0.0 {
        let message =
            format!("loss.label_smoothing = {} applies to \"sigmoid\", not to IPO", loss.label_smoothing);
        return Err(contradiction(at, "loss.label_smoothing", &message)
            .hint("remove it, or set loss.loss_type = \"sigmoid\""));
    }
    Ok(())
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
