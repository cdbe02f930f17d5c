//! Parts of a run file that every stack names differently: model, schedule, micro-batch, rewards.

use super::draft::{Draft, quoted};
use crate::setting::{flag, one_line};
use crate::unbuilt::{self, Unbuilt};

/// Converts a model's name for `model`: `org/name` is on the hub.
fn model_source(name: &str) -> String {
    let on_hub =
        name.matches('/').count() == 1 && !name.starts_with(['.', '/', '~', '$']) && !name.contains(':');
    if on_hub { format!("hf:{name}") } else { name.to_string() }
}

/// Says what no option there says: a limit of shaped rewards.
pub(crate) const BOUNDED: &str = "a shaped reward counts as 10 at most and as -10 at least, which the trainer there does not bound: scale rewards that are larger";

/// The forms of a model in a run file.
const MODEL: &str = "hf:org/name, a folder or a GGUF file";

/// Sets `model` from the setting `name`; reports unbuilt experts and quantised weights.
pub(crate) fn model(draft: &mut Draft, name: &str) {
    match draft.take_text(name) {
        Some(taken) => {
            draft.set_text("model", &model_source(&taken.value), &taken.from);
            if let Some(what) = unbuilt::of_model(&taken.value) {
                draft.is_not_built(&taken, what);
            }
        }
        None => {
            // The last part of a path with an unknown part still shows what it is.
            if let Some((taken, what)) =
                draft.unread(name).and_then(|one| Some((one.clone(), unbuilt::of_model(&one.value)?)))
            {
                draft.refuse(&taken, what);
            }
            draft.miss("model", name, MODEL);
        }
    }
}

/// Sets `critic.model` from the setting `name`.
pub(crate) fn critic_model(draft: &mut Draft, name: &str) {
    if let Some(taken) = draft.take(name) {
        draft.set_text("critic.model", &model_source(&taken.value), &taken.from);
        if let Some(what) = unbuilt::of_model(&taken.value) {
            draft.is_not_built(&taken, what);
        }
    }
}

/// Checks an optimizer by name: only AdamW is built.
pub(crate) fn adamw(draft: &mut Draft, name: &str) {
    if let Some(taken) = draft.take_text(name)
        && !taken.value.to_ascii_lowercase().contains("adam")
    {
        draft.is_not_built(&taken, Unbuilt::Optimizer);
    }
}

/// Sets `train.epochs` from the setting `name`, or the `usual` passes over the data where the file is silent. Sets with
/// weights have no passes here.
pub(crate) fn passes(draft: &mut Draft, name: &str, usual: Option<f64>) {
    if draft.get("data.prompts").is_some_and(|sets| sets.starts_with('[')) {
        return chosen_steps(draft, name, "several sets have weights here, and no passes");
    }
    let given = draft.take_number(name).filter(|(passes, _)| *passes > 0.0);
    let title = draft.import.title;
    match (given, usual) {
        (Some((passes, taken)), _) => draft.set_toml("train.epochs", passes, &taken.from),
        (None, Some(usual)) => draft.set_toml("train.epochs", usual, &format!("default of {title}: {name}")),
        (None, None) => chosen_steps(draft, name, "the file does not say how long the run is"),
    }
}

/// Sets `train.steps` to 100, as `why` leaves nothing else to go by; `name` is the setting of passes over the data.
pub(crate) fn chosen_steps(draft: &mut Draft, name: &str, why: &str) {
    draft.set_toml("train.steps", 100, "chosen");
    draft.leave_out(name, why);
    draft.choose(&format!("train.steps = 100: {why}"));
}

/// Sets `train.schedule`, and a warm-up that is a share of the steps.
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
    if let Some((ratio, taken)) = draft.take_number(ratio).filter(|(ratio, _)| *ratio != 0.0) {
        if draft.get("train.warmup_steps").is_some() {
            draft.leave(&taken, "a number of steps is set too, which counts");
        } else if !(0.0..=1.0).contains(&ratio) {
            draft.leave(&taken, "not a share from 0 to 1");
        } else if draft.get("train.epochs").is_some() {
            let words = "a share of the steps, which follow from the rows: set train.warmup_steps to it of those that `plan` says";
            draft.leave(&taken, words);
            if taken.from.starts_with("default of ") {
                draft.remark(format!("left out: {} = {ratio}: {words}", taken.from));
            }
        } else {
            let warmup = (ratio * steps as f64).ceil();
            draft.set_toml("train.warmup_steps", format!("{warmup}"), &taken.from);
        }
    }
}

/// Sets `train.micro_batch_tokens` from a number of sequences, each as long as prompt and response may be.
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

/// Sets `train.micro_batch_tokens` from a number of rows of up to `tokens` tokens each, twice that for pairs.
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

/// Takes a switch that trains every turn of a conversation; true if it is on.
pub(crate) fn every_turn(draft: &mut Draft, name: &str) -> bool {
    let taken = draft.take(name).filter(|taken| flag(&taken.value) == Some(true));
    if let Some(taken) = &taken {
        draft.set_text("data.train_on", "assistant", &taken.from);
    }
    taken.is_some()
}

/// Writes a reward model, whose tokens must be the actor's.
pub(crate) fn reward_model(draft: &mut Draft, name: &str) {
    if let Some(taken) = draft.take_text(name) {
        add_reward_model(draft, &taken.value, &taken.from);
    }
}

pub(crate) fn add_reward_model(draft: &mut Draft, name: &str, from: &str) {
    let model = quoted(&model_source(name));
    draft.add_reward(from, vec![("kind", quoted("model")), ("model", model)]);
}

/// The forms of a reward in a run file.
pub(crate) const REWARD: &str = "a kind of docs/rewards.md, such as math, or python:FILE.py:FUNCTION";

/// Writes a reward without a kind, which a plan refuses by name: a stand-in would train for something else.
pub(crate) fn miss_reward(draft: &mut Draft, why: &str, write: &str) {
    let place = format!("reward.{}.kind", draft.rewards.len());
    draft.missing.push(format!("{place}: {why}: write {write}"));
    let line = one_line(&format!("{why}: write {write}"));
    draft.add_reward(why, vec![("kind", format!("\"\"  # {line}"))]);
}

/// Reports a missing reward; `name` is the setting that would name one.
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
