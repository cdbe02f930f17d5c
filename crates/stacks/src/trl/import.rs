//! What takes several of TRL's options together: method, batches, steps, rewards.

use crate::import::draft::{Draft, Import, quoted};
use crate::import::parts;
use crate::setting::{flag, integer, list, number};
use plimsoll_base::Result;

pub(super) static IMPORT: Import = Import {
    title: "TRL",
    file: "a shell script with `trl grpo --flag value ...`, YAML or JSON, or Python with `GRPOConfig(...)`",
    defaults: &[
        ("trainer", "grpo"),
        ("max_completion_length", "512"),
        ("num_generations", "8"),
        ("per_device_train_batch_size", "8"),
        ("gradient_accumulation_steps", "1"),
        ("learning_rate", "1e-6"),
        ("lr_scheduler_type", "linear"),
        ("adam_beta1", "0.9"),
        ("adam_beta2", "0.999"),
        ("loss_type", "dapo"),
        ("scale_rewards", "group"),
    ],
    combine,
};

fn combine(draft: &mut Draft) -> Result<()> {
    method(draft)?;
    parts::model(draft, "model_name_or_path");
    if let Some(taken) = draft.take("bf16") {
        match flag(&taken.value) {
            Some(true) => draft.set_text("model_options.dtype", "bf16", &taken.from),
            _ => draft.leave(&taken, "set model_options.dtype = \"f32\" for f32 weights"),
        }
    }
    parts::data(draft, "dataset_name", "eval_dataset");
    if let Some(taken) = draft.take("shuffle_dataset") {
        let on = flag(&taken.value).unwrap_or(true);
        draft.set_toml("data.shuffle", on, &taken.from);
    }
    let updates = batches(draft);
    steps(draft, updates);
    for (name, key) in [
        ("warmup_steps", "train.warmup_steps"),
        ("save_steps", "checkpoint.every"),
        ("eval_steps", "eval.every"),
    ] {
        per_update(draft, name, key, updates);
    }
    parts::schedule(draft, "lr_scheduler_type", "warmup_ratio");
    if let (Some(first), Some(second)) = (draft.take_number("adam_beta1"), draft.take_number("adam_beta2")) {
        draft.set_toml(
            "train.betas",
            format!("[{:?}, {:?}]", first.0, second.0),
            &format!("{}, {}", first.1.from, second.1.from),
        );
    }
    parts::micro_batch(draft, "per_device_train_batch_size");
    rewards(draft);
    Ok(())
}

fn method(draft: &mut Draft) -> Result<()> {
    let trainer = draft.take("trainer").expect("a default");
    let mut method = if trainer.value == "rloo" { "rloo" } else { "grpo" };
    let mut aggregation = None;
    if let Some(loss) = draft.take("loss_type") {
        match (loss.value.as_str(), method) {
            (_, "rloo") => draft.leave(&loss, "of GRPO"),
            ("dapo", _) => aggregation = Some("token_mean"),
            ("bnpo", _) => {
                aggregation = Some("token_mean");
                draft.change(&loss, "over the tokens of a micro-batch there, of the update here");
            }
            ("grpo", _) => aggregation = Some("seq_mean_token_mean"),
            ("dr_grpo", _) => aggregation = Some("seq_mean_token_sum_norm"),
            (name @ ("cispo" | "sapo"), _) => method = if name == "cispo" { "cispo" } else { "sapo" },
            _ => return Err(Draft::no_method(&loss)),
        }
        if let Some(aggregation) = aggregation {
            draft.set_text("loss.aggregation", aggregation, &loss.from);
        }
    }
    if let Some(level) = draft.take("importance_sampling_level") {
        match (level.value.as_str(), method) {
            ("token", _) => {}
            ("sequence", "grpo") => method = "gspo",
            _ => draft.leave(&level, "no method here joins this ratio and this loss"),
        }
    }
    if method == "cispo" {
        // Both bounds are absolute, and theirs has no lower one.
        draft.set_toml("loss.clip_low", "0.0", "no lower bound there");
    }
    draft.set_text("method", method, &trainer.from);
    if let Some(mask) = draft.take("mask_truncated_completions")
        && flag(&mask.value) == Some(true)
    {
        draft.set_toml("loss.mask_truncated", "true", &mask.from);
    }
    if let Some(scale) = draft.take("scale_rewards") {
        match (scale.value.to_ascii_lowercase().as_str(), method) {
            (_, "rloo") => draft.leave(&scale, "of GRPO"),
            ("group" | "true", _) => {}
            ("none" | "false", _) => draft.set_text("loss.advantage", "mean_baseline", &scale.from),
            _ => draft.leave(&scale, "the standard deviation is of the group here"),
        }
    }
    Ok(())
}

/// Prompts a step and sequences an update, from TRL's batch vocabulary; returns updates a step.
fn batches(draft: &mut Draft) -> i64 {
    let ranks = draft.take_count("num_processes");
    let processes = ranks.as_ref().map_or(1, |(count, _)| *count);
    let device = draft.take_count("per_device_train_batch_size").map_or(8, |(count, _)| count);
    let accumulated = draft.take_count("gradient_accumulation_steps").map_or(1, |(count, _)| count);
    let update = device.saturating_mul(accumulated).saturating_mul(processes);
    let per_generation = draft.take_count("steps_per_generation").map_or(accumulated, |(count, _)| count);
    let whole = match draft.take_count("generation_batch_size") {
        Some((count, _)) => count,
        None => device.saturating_mul(per_generation).saturating_mul(processes),
    };
    let group = draft.count("rollout.group_size").unwrap_or(8).max(1);
    let prompts = (whole / group).max(1);
    let from = "per_device_train_batch_size x steps_per_generation x num_processes / num_generations";
    draft.set_toml("rollout.prompts_per_step", prompts, from);
    let from = "per_device_train_batch_size x gradient_accumulation_steps x num_processes";
    if update < whole {
        draft.set_toml("train.mini_batch", update, from);
    }
    if ranks.is_none() {
        draft.choose(
            "one process: the file does not say how many; multiply rollout.prompts_per_step by theirs",
        );
    }
    if whole % group != 0 {
        draft.choose(&format!(
            "{prompts} prompts a step: {whole} sequences do not divide into groups of {group}"
        ));
    }
    (whole / update.max(1)).max(1).saturating_mul(draft.count("train.epochs_per_rollout").unwrap_or(1).max(1))
}

/// Their steps are updates, ours are rollouts.
fn steps(draft: &mut Draft, updates: i64) {
    let limit = draft.take("max_steps").filter(|taken| integer(&taken.value).is_some_and(|steps| steps > 0));
    match limit {
        Some(_) => {
            per_update(draft, "max_steps", "train.steps", updates);
            draft.leave_out("num_train_epochs", "max_steps counts");
        }
        None => parts::unknown_steps(draft, &["num_train_epochs"]),
    }
}

fn per_update(draft: &mut Draft, name: &str, key: &str, updates: i64) {
    let Some(taken) = draft.take(name) else { return };
    match integer(&taken.value) {
        Some(0) => {}
        Some(count) if count > 0 => {
            draft.set_toml(key, (count + updates - 1) / updates, &taken.from);
            if updates > 1 {
                draft.change(&taken, &format!("{updates} updates there are one step here"));
            }
        }
        _ => draft.leave(&taken, "not a whole number of steps"),
    }
}

fn rewards(draft: &mut Draft) {
    let functions = draft.take("reward_funcs");
    let names = functions.as_ref().map(|taken| list(&taken.value)).unwrap_or_default();
    let mut remarks: Vec<String> = Vec::new();
    let mut complete = true;
    for name in &names {
        match name.rsplit_once('.') {
            _ if name == "accuracy_reward" || name == "reasoning_accuracy_reward" => {
                let column = ("answer_column", quoted("solution"));
                draft.add_reward("reward_funcs", vec![("kind", quoted("math")), column]);
            }
            _ if name == "think_format_reward" => {
                draft.add_reward("reward_funcs", vec![("kind", quoted("regex:(?s)^<think>.*</think>"))]);
                remarks.push(format!("{name} is a regular expression here, which allows a second <think>"));
            }
            Some((module, function)) => {
                let kind = format!("python:{}.py:{function}", module.replace('.', "/"));
                draft.add_reward("reward_funcs", vec![("kind", quoted(&kind))]);
                remarks.push(format!("{name} is a file here, from the folder that the run starts in"));
            }
            None => {
                complete = false;
                remarks.push(match name.as_str() {
                    "get_soft_overlong_punishment" => format!("{name} is left out: set loss.overlong_buffer"),
                    _ => format!("{name} is left out: no verifier here has that name"),
                });
            }
        }
    }
    if let Some(weights) = draft.take("reward_weights") {
        let values: Vec<f64> = list(&weights.value).iter().filter_map(|text| number(text)).collect();
        match complete && values.len() == names.len() {
            true => parts::weigh_rewards(draft, &values, &weights.from),
            false => draft.leave(&weights, "not one weight for each reward that was carried over"),
        }
    }
    if let Some(taken) = functions
        && !remarks.is_empty()
    {
        draft.change(&taken, &remarks.join("; "));
    }
    parts::reward_model(draft, "reward_model_name_or_path");
    parts::no_reward(draft);
}
