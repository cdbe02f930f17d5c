//! Checks of a run file: values out of range, keys that contradict each other, keys that are missing.
//!
//! Each check names one key, points at the place where it was set, and says which values are allowed.

use super::key::Key;
use super::limits::{SEQUENCES_PER_STEP_MAX, bad_value, contradiction, divisor};
use super::provenance::Provenance;
use super::sections::{self, Data, Loss, Reward, Rollout, Run, RunFile, Train, VerbFile};
use super::tree::flatten;
use super::values::{Auto, Curriculum, DynamicSampling};
use crate::{TrainedKind, covariance, eval_metric::EvalMetric, spec::sequences_per_step};
use plimsoll_algo::method::LearnsFrom;
use plimsoll_algo::policy_loss::PolicyLossKind;
use plimsoll_base::{Error, Result};
use serde::Serialize;

/// Largest number of rewards: the plan has room for the scores of this many in a line of `samples/`.
const REWARDS_MAX: usize = 20;
/// Checks a whole run file whose method defaults are filled in.
pub(super) fn run_file(run: &RunFile, at: &Provenance) -> Result<()> {
    given(run, at)?;
    numbers(run, at)?;
    required(run, at)?;
    super::conflicts::check(run, at)?;
    warmup(&run.train, at)?;
    if run.trains() == TrainedKind::Policy {
        super::agent::check(run, at)?;
    } else {
        sampling(&run.rollout, at)?;
        batches(run, at)?;
        super::model_reward::check(&run.reward, at)?;
    }
    super::lora::check(run, at)?;
    loss(&run.loss, at)?;
    critic(run, at)?;
    super::distill::check(run, at)?;
    super::staleness::check(run, at)?;
    rewards(&run.reward, at)?;
    data(&run.data, at)?;
    greedy_samples("eval", run.eval.samples, run.eval.temperature, at)?;
    eval_metric(run, at)?;
    super::track::check(&run.track, at)?;
    run_section(&run.run, at)
}

/// Checks the settings of `generate` and `eval`.
pub(super) fn verb_file(verb: &VerbFile, at: &Provenance) -> Result<()> {
    given(verb, at)?;
    numbers(verb, at)?;
    sampling(&verb.rollout, at)?;
    super::model_reward::check(&verb.reward, at)?;
    rewards(&verb.reward, at)?;
    data(&verb.data, at)?;
    greedy_samples("rollout", verb.eval.samples, verb.rollout.temperature, at)?;
    run_section(&verb.run, at)
}

/// Requires the keys without a default in each section that a file has.
fn given(file: &impl Serialize, at: &Provenance) -> Result<()> {
    let tree = tree_of(file);
    for (section, name) in sections::rows().filter(|row| row.is_required()).map(Key::parts) {
        let tables = match tree.get(section) {
            Some(toml::Value::Array(items)) => {
                (0..items.len()).map(|index| format!("{section}.{index}.")).collect()
            }
            Some(_) => vec![format!("{section}.")],
            None => Vec::new(),
        };
        let lacks = |table: &String| !at.origins.contains_key(&format!("{table}{name}"));
        if let Some(table) = tables.into_iter().find(lacks) {
            let inside = at.origins.iter().find(|(path, _)| path.starts_with(&table));
            let place = inside.map_or(at.of(section), |(_, origin)| origin);
            return Err(super::de::missing_key(&at.source, place, &format!("{table}{name}")));
        }
    }
    Ok(())
}

/// Requires that the numbers that were set are ones that their keys take.
fn numbers(file: &impl Serialize, at: &Provenance) -> Result<()> {
    let mut found = Ok(());
    flatten("", &tree_of(file), &mut |path, value| {
        if found.is_ok() && at.origins.contains_key(path) {
            found = sections::row(path).map_or(Ok(()), |row| row.check(path, value, at));
        }
    });
    found
}

fn tree_of(file: &impl Serialize) -> toml::Value {
    toml::Value::try_from(file).expect("every value of a run file has a form in TOML")
}

fn required(run: &RunFile, at: &Provenance) -> Result<()> {
    let missing = |key: &str| super::de::missing_key(&at.source, &super::Origin::Default, key);
    if run.model.is_empty() {
        return Err(at
            .error("bad-value", "model", "`model` is empty")
            .hint("set model to hf:org/name, a folder, a GGUF file or \"builtin:nano\""));
    }
    if run.trains() == TrainedKind::Policy {
        return super::agent::required(run, at);
    }
    let has_steps = at.origins.contains_key("train.steps");
    if run.train.steps == 0 && !has_steps && run.train.epochs.is_none() {
        return Err(missing("train.steps"));
    }
    if run.environment.is_some() {
        return super::environment::check(run, at);
    }
    if run.data.prompts.is_none() {
        return Err(missing("data.prompts"));
    }
    let needs = run.method.needs();
    if needs.learns_from == LearnsFrom::Samples && !needs.teacher && run.reward.is_empty() {
        return Err(missing("reward").fact(format!("method `{}` learns from a reward", run.method)));
    }
    Ok(())
}

fn warmup(train: &Train, at: &Provenance) -> Result<()> {
    // Passes over the data become steps once it is read.
    if train.epochs.is_none() && train.warmup_steps > train.steps {
        let message =
            format!("train.warmup_steps = {} is more than train.steps = {}", train.warmup_steps, train.steps);
        return Err(contradiction(at, "train.warmup_steps", &message)
            .hint(format!("set train.warmup_steps to at most {}", train.steps)));
    }
    Ok(())
}

fn sampling(rollout: &Rollout, at: &Provenance) -> Result<()> {
    if rollout.stop.iter().any(String::is_empty) {
        let message = "`rollout.stop` holds an empty string, which every response contains";
        return Err(at.error("bad-value", "rollout.stop", message).hint("remove the empty string"));
    }
    let needed = rollout.max_new_tokens.div_ceil(rollout.block_size);
    match rollout.kv_blocks {
        Auto::Value(blocks) if blocks < needed => {
            let message = format!(
                "rollout.kv_blocks = {blocks} cannot hold one response of rollout.max_new_tokens = {} tokens, which takes {needed} blocks of {}",
                rollout.max_new_tokens, rollout.block_size
            );
            Err(contradiction(at, "rollout.kv_blocks", &message).hint("set rollout.kv_blocks = \"auto\""))
        }
        _ => Ok(()),
    }
}

/// Requires that the sequences of a step divide into updates.
fn batches(run: &RunFile, at: &Provenance) -> Result<()> {
    let (prompts, group) = (u64::from(run.rollout.prompts_per_step), u64::from(run.rollout.group_size));
    let (sequences, made_of) = if run.method.needs().learns_from == LearnsFrom::Samples {
        (prompts * group, format!("{prompts} prompts x {group} samples"))
    } else {
        (prompts, "rollout.prompts_per_step".to_string())
    };
    if sequences > SEQUENCES_PER_STEP_MAX {
        let message = format!(
            "a step has {sequences} sequences ({made_of}); at most {SEQUENCES_PER_STEP_MAX} are taken"
        );
        return Err(at
            .error("bad-value", "rollout.prompts_per_step", &message)
            .hint("set a smaller rollout.prompts_per_step"));
    }
    let rollout = sequences.saturating_mul(1 + u64::from(run.asynchrony.reuse));
    if rollout > SEQUENCES_PER_STEP_MAX {
        let message = format!(
            "a rollout for 1 + async.reuse = {} steps has {rollout} sequences; at most {SEQUENCES_PER_STEP_MAX} are taken",
            1 + u64::from(run.asynchrony.reuse)
        );
        return Err(at.error("bad-value", "async.reuse", &message).hint("set a smaller async.reuse"));
    }
    let Some(mini_batch) = run.train.mini_batch else { return Ok(()) };
    if sequences.is_multiple_of(u64::from(mini_batch)) {
        return Ok(());
    }
    let message = format!(
        "train.mini_batch = {mini_batch} does not divide the {sequences} sequences of a step ({made_of})"
    );
    let below = divisor(sequences, u64::from(mini_batch));
    Err(contradiction(at, "train.mini_batch", &message)
        .hint(format!("set train.mini_batch = {below}, or remove it for one update a step")))
}

/// Requires that the numbers of the loss fit each other.
fn loss(loss: &Loss, at: &Provenance) -> Result<()> {
    clips(loss, at)?;
    covariance::check(loss, at)?;
    if let Some(DynamicSampling::Mean([low, high])) = loss.dynamic_sampling
        && !(low.is_finite() && high.is_finite() && low < high)
    {
        let found = format!("[{low}, {high}]");
        let takes = "two numbers, the smaller first, such as [0.0, 1.0]";
        return Err(bad_value(at, "loss.dynamic_sampling", found, takes));
    }
    match loss.correction_band {
        Some([low, high])
            if !(low.is_finite() && high.is_finite() && (0.0..=1.0).contains(&low) && high >= 1.0) =>
        {
            let takes = "two numbers, from 0 to 1 and from 1 on: a sample of the same policy has weight 1";
            Err(bad_value(at, "loss.correction_band", format!("[{low}, {high}]"), takes))
        }
        _ => Ok(()),
    }
}

/// Requires that the critic's keys are in range.
fn critic(run: &RunFile, at: &Provenance) -> Result<()> {
    let Some(critic) = &run.critic else { return Ok(()) };
    if critic.model.is_empty() {
        return Err(at
            .error("bad-value", "critic.model", "`critic.model` is empty")
            .hint("set critic.model = \"actor\""));
    }
    let (steps, warmup) = (run.train.steps, critic.warmup_steps.unwrap_or(0));
    if run.train.epochs.is_none() && warmup > steps {
        let message = format!("critic.warmup_steps = {warmup} is more than train.steps = {steps}");
        return Err(contradiction(at, "critic.warmup_steps", &message)
            .hint(format!("set critic.warmup_steps to at most {steps}")));
    }
    let rollout = &run.rollout;
    let needs = run.method.needs();
    let sequences = sequences_per_step(needs.learns_from, rollout.prompts_per_step, rollout.group_size);
    match critic.updates_per_rollout.map(u64::from) {
        Some(updates) if !sequences.is_multiple_of(updates) => {
            let message = format!(
                "critic.updates_per_rollout = {updates} does not divide the {sequences} sequences of a step"
            );
            let below = divisor(sequences, updates);
            Err(contradiction(at, "critic.updates_per_rollout", &message)
                .hint(format!("set critic.updates_per_rollout = {below}")))
        }
        _ => Ok(()),
    }
}

fn clips(loss: &Loss, at: &Provenance) -> Result<()> {
    let Some(policy) = loss.policy else { return Ok(()) };
    let (low, high) = (loss.clip_low.unwrap_or(0.0), loss.clip_high.unwrap_or(f64::INFINITY));
    if policy == PolicyLossKind::Cispo && low > high {
        let message = format!("loss.clip_low = {low} is above loss.clip_high = {high}");
        return Err(contradiction(at, "loss.clip_low", &message)
            .hint("for cispo both are absolute: 0 and 5 by default"));
    }
    if policy != PolicyLossKind::Cispo && low > 1.0 {
        let takes = "a number from 0 to 1: the ratio is clipped below 1 - clip_low";
        return Err(bad_value(at, "loss.clip_low", low, takes));
    }
    Ok(())
}

fn rewards(rewards: &[Reward], at: &Provenance) -> Result<()> {
    if rewards.len() > REWARDS_MAX {
        let message = format!("{} [[reward]] tables; a run has at most {REWARDS_MAX}", rewards.len());
        return Err(at
            .error("bad-value", "reward", &message)
            .hint("combine rewards in one function: kind = \"python:FILE.py:FUNCTION\""));
    }
    for (index, reward) in rewards.iter().enumerate() {
        let key = |name: &str| format!("reward.{index}.{name}");
        if reward.kind.is_empty() {
            return Err(at.error("bad-value", &key("kind"), &format!("`{}` is empty", key("kind"))).hint(
                "set kind to a reward of docs/rewards.md, such as \"math\", or to python:FILE.py:FUNCTION",
            ));
        }
        super::judge::check(index, reward, at)?;
        if !reward.is_model() {
            reward_kind(reward, at, &key("kind"))?;
        }
    }
    Ok(())
}

/// Requires a known kind with a valid pattern or schema; code is checked when its workers start.
fn reward_kind(reward: &Reward, at: &Provenance, key: &str) -> Result<()> {
    let specs = crate::rewards::reward_specs(std::slice::from_ref(reward), "");
    specs[0].check().map_err(|found| {
        let placed = at.error(found.slug, key, &found.message);
        let placed = found.facts.into_iter().fold(placed, Error::fact);
        found.hints.into_iter().fold(placed, Error::hint)
    })
}

fn data(data: &Data, at: &Provenance) -> Result<()> {
    for (key, sets, weighted) in [("data.prompts", &data.prompts, true), ("data.eval", &data.eval, false)] {
        sets.as_ref().map_or(Ok(()), |sets| super::sources::check(sets, key, weighted, at))?;
    }
    super::data_checks::template_args(data, at)?;
    super::data_checks::images(data, at)?;
    pass_rates(data, at)?;
    for (key, text) in [
        ("data.pass_rate_column", data.pass_rate_column.as_deref()),
        ("data.images", data.images.as_deref()),
        ("data.prompt_column", Some(data.prompt_column.as_str())),
        ("data.answer_column", Some(data.answer_column.as_str())),
    ] {
        if text == Some("") {
            return Err(at
                .error("bad-value", key, &format!("`{key}` is empty"))
                .hint(format!("give `{key}` a value, or remove it")));
        }
    }
    Ok(())
}

/// Requires a column of pass rates where rows are filtered or ordered by them, and a range that leaves rows.
fn pass_rates(data: &Data, at: &Provenance) -> Result<()> {
    let limits = [("data.pass_rate_min", data.pass_rate_min), ("data.pass_rate_max", data.pass_rate_max)];
    let ordered = (data.curriculum != Curriculum::None).then_some(("data.curriculum", 0.0));
    let asked =
        limits.into_iter().filter_map(|(key, limit)| limit.map(|limit| (key, limit))).chain(ordered).next();
    if let (Some((key, _)), None) = (asked, &data.pass_rate_column) {
        let message =
            format!("`{key}` goes by pass rates, and data.pass_rate_column names no column with them");
        return Err(contradiction(at, key, &message)
            .hint("set data.pass_rate_column = \"pass_rate\"; `plimsoll eval --pass-rates FILE` writes such a column"));
    }
    match (data.pass_rate_min, data.pass_rate_max) {
        (Some(min), Some(max)) if min > max => {
            let message = format!("data.pass_rate_min = {min} is above data.pass_rate_max = {max}");
            Err(contradiction(at, "data.pass_rate_min", &message).hint("exchange the two"))
        }
        _ => Ok(()),
    }
}

/// Requires that the metric of the best checkpoint is one of this run's.
fn eval_metric(run: &RunFile, at: &Provenance) -> Result<()> {
    if run.trains() == TrainedKind::Policy || EvalMetric::of(run).is_some() {
        return Ok(());
    }
    let names = EvalMetric::names_of(run);
    let message = format!("`eval.metric` is \"{}\", which this run does not measure", run.eval.metric);
    let error = at.error("unknown-metric", "eval.metric", &message);
    let error = error.fact(format!("it measures {}", names.join(", ")));
    Err(match super::de::nearest(&run.eval.metric, names.iter().map(String::as_str)) {
        Some(name) => error.hint(format!("did you mean \"{name}\"?")),
        None => error.hint("set eval.metric to one of these; eval.samples decides which pass@k there are"),
    })
}

/// Refuses several greedy samples per prompt, which would all be equal.
fn greedy_samples(section: &str, samples: u32, temperature: f64, at: &Provenance) -> Result<()> {
    if samples <= 1 || temperature != 0.0 {
        return Ok(());
    }
    let message =
        format!("eval.samples = {samples} with {section}.temperature = 0: greedy samples are all the same");
    Err(contradiction(at, "eval.samples", &message)
        .hint(format!("set {section}.temperature = 1.0, or eval.samples = 1")))
}

fn run_section(run: &Run, at: &Provenance) -> Result<()> {
    if run.dir.as_deref() == Some("") {
        return Err(at
            .error("bad-value", "run.dir", "`run.dir` is empty")
            .hint("set run.dir = \"runs/out/NAME\""));
    }
    Ok(())
}
