//! Parts of a run file that every stack has under other names: model, data, schedule, micro-batch, rewards.

use super::draft::{Draft, quoted};
use crate::launch::source::home;
use crate::setting::{list, number, one_line};
use crate::unbuilt::{self, Unbuilt};

/// A model's name as `model` takes it: `org/name` is of the hub.
fn model_source(name: &str) -> String {
    let on_hub =
        name.matches('/').count() == 1 && !name.starts_with(['.', '/', '~', '$']) && !name.contains(':');
    if on_hub { format!("hf:{name}") } else { home_path(name) }
}

/// What a user writes as a model.
const MODEL: &str = "hf:org/name, a folder or a GGUF file";

/// `model`, from the setting `name`; one with experts or quantised weights is not built.
pub(crate) fn model(draft: &mut Draft, name: &str) {
    match draft.take_text(name) {
        Some(taken) => {
            draft.set_text("model", &model_source(&taken.value), &taken.from);
            if let Some(what) = unbuilt::of_model(&taken.value) {
                draft.is_not_built(&taken, what);
            }
        }
        None => draft.miss("model", name, MODEL),
    }
}

/// `critic.model`, from the setting `name`.
pub(crate) fn critic_model(draft: &mut Draft, name: &str) {
    if let Some(taken) = draft.take(name) {
        draft.set_text("critic.model", &model_source(&taken.value), &taken.from);
        if let Some(what) = unbuilt::of_model(&taken.value) {
            draft.is_not_built(&taken, what);
        }
    }
}

/// A data set of a list.
struct Set {
    path: String,
    weight: Option<f64>,
}

/// Reads `path`, `path@0.3` (a weight) and `path@folder`.
fn data_set(file: &str) -> Set {
    let (path, after) = file.rsplit_once('@').unwrap_or((file, ""));
    match number(after) {
        _ if after.is_empty() => Set { path: file.to_string(), weight: None },
        Some(weight) => Set { path: path.to_string(), weight: Some(weight) },
        None => Set { path: format!("{path}/{after}"), weight: None },
    }
}

/// `data.prompts` and `data.eval`: Parquet and JSON lines as they are, anything else as a file to be written as JSON lines.
/// `weights` is the setting with the shares of several sets, if there is one.
pub(crate) fn data(draft: &mut Draft, prompts: &str, eval: &str, weights: Option<&str>) {
    for (name, key) in [(prompts, "data.prompts"), (eval, "data.eval")] {
        let Some(taken) = draft.take(name) else { continue };
        let files = list(&taken.value);
        let mut sets: Vec<Set> = files.iter().map(|file| data_set(file)).collect();
        let is_learnt = key == "data.prompts";
        if let Some(weights) = weights.filter(|_| is_learnt) {
            shares(draft, weights, &mut sets);
        }
        let is_as_there = sets.iter().all(|set| data_path(&set.path) == home_path(&set.path));
        sets.iter_mut().for_each(|set| set.path = data_path(&set.path));
        let (count, has_weights) = (sets.len(), sets.iter().any(|set| set.weight.is_some()));
        match sets.as_slice() {
            [] => continue,
            [set] => draft.set_text(key, &set.path, &taken.from),
            sets => draft.set_toml(key, data_list(sets, is_learnt), &taken.from),
        }
        let mut how = Vec::new();
        if count > 1 && is_learnt && !has_weights {
            how.push("the files take turns here: a `weight` for each, such as its number of rows, makes shares of them");
        }
        if !is_as_there {
            how.push("write it as JSON lines: a row a line, the answer in a column of its own");
        }
        if !how.is_empty() {
            draft.change(&taken, &how.join("; "));
        }
    }
    if draft.get("data.prompts").is_none() {
        draft.miss("data.prompts", prompts, "the path of a JSONL or Parquet file");
    }
}

/// Gives each set its share, as a setting next to the files says.
fn shares(draft: &mut Draft, name: &str, sets: &mut [Set]) {
    let Some(taken) = draft.take_text(name) else { return };
    let values: Vec<f64> = list(&taken.value).iter().filter_map(|text| number(text)).collect();
    if values.len() != sets.len() || values.iter().any(|value| *value <= 0.0) {
        let why = format!("it is not one number above 0 for each of the {} files", sets.len());
        return draft.leave(&taken, &why);
    }
    sets.iter_mut().zip(values).for_each(|(set, value)| set.weight = Some(value));
}

/// `~/data` as the path that it is.
fn home_path(file: &str) -> String {
    match (file.strip_prefix("~/"), home()) {
        (Some(rest), Some(home)) => format!("{home}/{rest}"),
        _ => file.to_string(),
    }
}

fn data_path(file: &str) -> String {
    let file = &home_path(file);
    let (stem, ending) = file.rsplit_once('.').unwrap_or((file, ""));
    match ending {
        "jsonl" | "parquet" => file.to_string(),
        "json" => format!("{stem}.jsonl"),
        _ => format!("{}.jsonl", file.rsplit('/').next().unwrap_or("data")),
    }
}

/// Several files as a list, each under its own name: `train` of two folders is `gsm8k-train` and `math-train`.
fn data_list(sets: &[Set], weighted: bool) -> String {
    let paths: Vec<&str> = sets.iter().map(|set| set.path.as_str()).collect();
    let plain = |text: &str| -> String {
        text.chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '.' { c } else { '-' })
            .collect()
    };
    let stem = |path: &str| {
        let file = path.rsplit('/').next().unwrap_or(path);
        plain(file.rsplit_once('.').map_or(file, |(stem, _)| stem))
    };
    let mut names: Vec<String> = Vec::with_capacity(paths.len());
    for (i, &path) in paths.iter().enumerate() {
        let folder = path.rsplit('/').nth(1).unwrap_or_default();
        let is_shared = paths.iter().filter(|other| stem(other) == stem(path)).count() > 1;
        let name = match is_shared {
            true => format!("{}-{}", plain(folder), stem(path)),
            false => stem(path),
        };
        let name = name.trim_start_matches(['.', '-']).to_string();
        names.push(if names.contains(&name) || name.is_empty() { format!("set-{}", i + 1) } else { name });
    }
    let table = |(set, name): (&Set, &String)| {
        let weight = set.weight.filter(|_| weighted).map(|weight| format!(", weight = {weight:?}"));
        let weight = weight.unwrap_or_default();
        format!("{{ path = {}, name = {}{weight} }}", quoted(&set.path), quoted(name))
    };
    format!("[{}]", sets.iter().zip(&names).map(table).collect::<Vec<_>>().join(", "))
}

/// An optimizer by its name: AdamW is the one that is built.
pub(crate) fn adamw(draft: &mut Draft, name: &str) {
    if let Some(taken) = draft.take_text(name)
        && !taken.value.to_ascii_lowercase().contains("adam")
    {
        draft.is_not_built(&taken, Unbuilt::Optimizer);
    }
}

/// `train.steps` where it would follow from the size of the data; `epochs` are the settings that say how often it is passed.
pub(crate) fn unknown_steps(draft: &mut Draft, epochs: &[&str]) {
    draft.set_toml("train.steps", 100, "chosen");
    for name in epochs {
        draft.leave_out(name, "steps follow from the size of the data, which the file does not say");
    }
    draft.choose("train.steps = 100: the file says passes over the data and not how much data there is");
}

/// `train.schedule`, and a warm-up that is a share of the steps.
pub(crate) fn schedule(draft: &mut Draft, scheduler: &str, ratio: &str) {
    if let Some(taken) = draft.take(scheduler) {
        let key = "train.schedule";
        match taken.value.as_str() {
            "constant" | "constant_with_warmup" => draft.set_text(key, "constant", &taken.from),
            "linear" => draft.set_text(key, "linear", &taken.from),
            "cosine" | "cosine_with_min_lr" => draft.set_text(key, "cosine", &taken.from),
            _ => draft.leave(&taken, "no such schedule here"),
        }
        if taken.value == "cosine_with_min_lr" {
            draft.change(&taken, "ends at 0 here, at a share of the learning rate there");
        }
    }
    let steps = draft.count("train.steps").unwrap_or(0);
    if let Some((ratio, taken)) = draft.take_number(ratio) {
        match (0.0..=1.0).contains(&ratio) {
            _ if draft.get("train.warmup_steps").is_some() => {
                draft.leave(&taken, "a number of steps is set too, which counts");
            }
            true => {
                let warmup = (ratio * steps as f64).ceil();
                draft.set_toml("train.warmup_steps", format!("{warmup}"), &taken.from);
            }
            false => draft.leave(&taken, "not a share from 0 to 1"),
        }
    }
}

/// `train.micro_batch_tokens` from a number of sequences, each as long as prompt and response may be.
pub(crate) fn micro_batch(draft: &mut Draft, name: &str) {
    let Some((count, taken)) = draft.take_count(name) else { return };
    let lengths = (draft.count("data.prompt_tokens_max"), draft.count("rollout.max_new_tokens"));
    match (draft.get("train.micro_batch_tokens"), lengths) {
        (Some(_), _) => draft.leave(&taken, "a limit in tokens is set too, which counts"),
        (None, (Some(prompt), Some(response))) => {
            let tokens = count.saturating_mul(prompt.saturating_add(response)).min(i64::from(u32::MAX));
            draft.set_toml("train.micro_batch_tokens", tokens, &taken.from);
            draft.change(&taken, &format!("{count} sequences of {prompt} + {response} tokens"));
        }
        (None, _) => draft.leave(
            &taken,
            "the plan chooses train.micro_batch_tokens: the file does not say how long a prompt may be",
        ),
    }
}

/// `train.micro_batch_tokens` from a number of rows of up to `tokens` tokens each, twice that for pairs.
pub(crate) fn micro_batch_of_rows(draft: &mut Draft, name: &str, tokens: Option<i64>, texts: i64) {
    let Some((count, taken)) = draft.take_count(name) else { return };
    let Some(tokens) = tokens else {
        return draft.leave(
            &taken,
            "the plan chooses train.micro_batch_tokens: the file does not say how long a row may be",
        );
    };
    let limit = count.saturating_mul(texts).saturating_mul(tokens).min(i64::from(u32::MAX));
    draft.set_toml("train.micro_batch_tokens", limit, &taken.from);
    let what = if texts == 1 { "rows" } else { "pairs" };
    draft.change(&taken, &format!("{what} of up to {tokens} tokens a text: {limit} tokens here"));
}

/// A reward model, whose tokens must be the actor's.
pub(crate) fn reward_model(draft: &mut Draft, name: &str) {
    if let Some(taken) = draft.take_text(name) {
        add_reward_model(draft, &taken.value, &taken.from);
    }
}

pub(crate) fn add_reward_model(draft: &mut Draft, name: &str, from: &str) {
    let model = quoted(&model_source(name));
    draft.add_reward(from, vec![("kind", quoted("model")), ("model", model)]);
}

/// What a user writes as a reward.
pub(crate) const REWARD: &str = "a kind of docs/rewards.md, such as math, or python:FILE.py:FUNCTION";

/// Writes a reward without a kind, which a plan refuses by its name: a stand-in would train for something else.
pub(crate) fn miss_reward(draft: &mut Draft, why: &str, write: &str) {
    let place = format!("reward.{}.kind", draft.rewards.len());
    draft.missing.push(format!("{place}: {why}: write {write}"));
    let line = one_line(&format!("{why}: write {write}"));
    draft.add_reward(why, vec![("kind", format!("\"\"  # {line}"))]);
}

/// Asks for a reward if none was taken; `name` is the setting that would name one.
pub(crate) fn no_reward(draft: &mut Draft, name: &str) {
    if !draft.has_reward() {
        let why = draft.why_missing(name);
        miss_reward(draft, &why, REWARD);
    }
}

/// Writes the weights of the rewards, in their order.
pub(crate) fn weigh_rewards(draft: &mut Draft, weights: &[f64], from: &str) {
    for ((_, reward), weight) in draft.rewards.iter_mut().zip(weights) {
        reward.push(("weight", format!("{weight:?}  # {}", one_line(from))));
    }
}
