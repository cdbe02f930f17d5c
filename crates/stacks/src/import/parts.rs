//! Parts of a run file that every stack has under other names: model, data, schedule, micro-batch, rewards.

use super::draft::{Draft, quoted};
use super::write::one_line;
use crate::setting::list;

/// A model's name as `model` takes it: `org/name` is of the hub.
fn model_source(name: &str) -> String {
    let on_hub =
        name.matches('/').count() == 1 && !name.starts_with(['.', '/', '~', '$']) && !name.contains(':');
    if on_hub { format!("hf:{name}") } else { name.to_string() }
}

/// `model`, from the setting `name`.
pub(crate) fn model(draft: &mut Draft, name: &str) {
    match draft.take_text(name) {
        Some(taken) => draft.set_text("model", &model_source(&taken.value), &taken.from),
        None => {
            draft.set_text("model", "builtin:nano", "chosen");
            draft.choose("model = \"builtin:nano\": the file names no model");
        }
    }
}

/// `critic.model`, from the setting `name`.
pub(crate) fn critic_model(draft: &mut Draft, name: &str) {
    if let Some(taken) = draft.take(name) {
        draft.set_text("critic.model", &model_source(&taken.value), &taken.from);
    }
}

/// `data.prompts` and `data.eval`: Parquet and JSON lines as they are, anything else as a file to be written as JSON lines.
pub(crate) fn data(draft: &mut Draft, prompts: &str, eval: &str) {
    for (name, key) in [(prompts, "data.prompts"), (eval, "data.eval")] {
        let Some(taken) = draft.take(name) else { continue };
        let files = list(&taken.value);
        let paths: Vec<String> = files.iter().map(|file| data_path(file)).collect();
        match paths.as_slice() {
            [] => continue,
            [path] => draft.set_text(key, path, &taken.from),
            paths => draft.set_toml(key, data_list(paths), &taken.from),
        }
        let mut how = Vec::new();
        if paths.len() > 1 && key == "data.prompts" {
            how.push("the files take turns here: a `weight` for each, such as its number of rows, makes shares of them");
        }
        if paths != files {
            how.push("write it as JSON lines: a row a line, the answer in a column of its own");
        }
        if !how.is_empty() {
            draft.change(&taken, &how.join("; "));
        }
    }
    if draft.get("data.prompts").is_none() {
        draft.set_text("data.prompts", "data.jsonl", "chosen");
        draft.choose("data.prompts = \"data.jsonl\": the file names no data");
    }
}

/// A data file as it is read here.
fn data_path(file: &str) -> String {
    let (stem, ending) = file.rsplit_once('.').unwrap_or((file, ""));
    match ending {
        "jsonl" | "parquet" => file.to_string(),
        "json" => format!("{stem}.jsonl"),
        _ => format!("{}.jsonl", file.rsplit('/').next().unwrap_or("data")),
    }
}

/// Several files as a list, each under its own name: `train` of two folders is `gsm8k-train` and `math-train`.
fn data_list(paths: &[String]) -> String {
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
    for (i, path) in paths.iter().enumerate() {
        let folder = path.rsplit('/').nth(1).unwrap_or_default();
        let is_shared = paths.iter().filter(|other| stem(other) == stem(path)).count() > 1;
        let name = match is_shared {
            true => format!("{}-{}", plain(folder), stem(path)),
            false => stem(path),
        };
        let name = name.trim_start_matches(['.', '-']).to_string();
        names.push(if names.contains(&name) || name.is_empty() { format!("set-{}", i + 1) } else { name });
    }
    let table =
        |(path, name): (&String, &String)| format!("{{ path = {}, name = {} }}", quoted(path), quoted(name));
    format!("[{}]", paths.iter().zip(&names).map(table).collect::<Vec<_>>().join(", "))
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
        let name = match taken.value.as_str() {
            "constant" | "constant_with_warmup" => Some("constant"),
            "linear" => Some("linear"),
            "cosine" | "cosine_with_min_lr" => Some("cosine"),
            _ => None,
        };
        match name {
            Some(name) => draft.set_text("train.schedule", name, &taken.from),
            None => draft.leave(&taken, "no such schedule here"),
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
        (None, _) => draft.leave(&taken, "planned: sequences have no longest prompt to count tokens by"),
    }
}

/// A reward model, whose tokens must be the actor's.
pub(crate) fn reward_model(draft: &mut Draft, name: &str) {
    let Some(taken) = draft.take_text(name) else { return };
    let model = quoted(&model_source(&taken.value));
    draft.add_reward(&taken.from, vec![("kind", quoted("model")), ("model", model)]);
}

/// A verifier where the file names none.
pub(crate) fn no_reward(draft: &mut Draft) {
    if draft.rewards.is_empty() {
        draft.add_reward("chosen", vec![("kind", quoted("math"))]);
        draft.choose("[[reward]] kind = \"math\": the file names no reward that can be called");
    }
}

/// Writes the weights of the rewards, in their order.
pub(crate) fn weigh_rewards(draft: &mut Draft, weights: &[f64], from: &str) {
    for ((_, reward), weight) in draft.rewards.iter_mut().zip(weights) {
        reward.push(("weight", format!("{weight:?}  # {}", one_line(from))));
    }
}
