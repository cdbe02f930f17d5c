//! Converts what needs several of TRL's options together: method, batches, steps, rewards.

use super::options::CONVERSATIONS;
use crate::import::draft::{Draft, Job, Taken, quoted};
use crate::import::{data, parts, track};
use crate::setting::{flag, integer, list, number};
use crate::unbuilt::Unbuilt;
use plimsoll_base::Result;

pub(crate) const GRPO: Job = Job {
    trainers: &["grpo"],
    of: None,
    defaults: &[
        ("max_completion_length", "512"),
        ("num_generations", "8"),
        ("per_device_train_batch_size", "8"),
        ("gradient_accumulation_steps", "1"),
        ("learning_rate", "1e-6"),
        ("lr_scheduler_type", "linear"),
        ("adam_beta1", "0.9"),
        ("adam_beta2", "0.999"),
        ("use_bias_correction_kl", "True"),
        ("loss_type", "dapo"),
        ("scale_rewards", "group"),
    ],
    takes: &[],
    combine,
};

pub(crate) const RLOO: Job = Job {
    trainers: &["rloo"],
    of: None,
    defaults: &[
        ("max_completion_length", "512"),
        ("num_generations", "2"),
        ("per_device_train_batch_size", "8"),
        ("gradient_accumulation_steps", "1"),
        ("learning_rate", "1e-6"),
        ("lr_scheduler_type", "linear"),
        ("adam_beta1", "0.9"),
        ("adam_beta2", "0.999"),
        ("beta", "0.05"),
    ],
    takes: &[],
    combine,
};

fn combine(draft: &mut Draft) -> Result<()> {
    method(draft)?;
    temperatures(draft);
    common(draft);
    let updates = batches(draft);
    steps(draft, updates);
    schedule(draft, updates);
    parts::micro_batch(draft, "per_device_train_batch_size");
    for name in ["top_entropy_quantile", "repetition_penalty"] {
        only_one(draft, name);
    }
    if let Some(taken) = draft.take("multi_objective_aggregation")
        && taken.value != "sum_then_normalize"
    {
        match (taken.value.as_str(), draft.get("loss.advantage")) {
            ("normalize_then_sum", None) => draft.set_text("loss.advantage", "decoupled", &taken.from),
            _ => draft.is_not_built(&taken, Unbuilt::Objective),
        }
    }
    let has_kl = draft.get("loss.kl_coef").and_then(number).is_some_and(|factor| factor != 0.0);
    if let Some(taken) = draft.take("use_bias_correction_kl")
        && has_kl
        && flag(&taken.value) == Some(true)
    {
        draft.set_toml("loss.kl_unbiased", "true", &taken.from);
    }
    let tools = draft.take_text("tools");
    match (draft.take_text("environment_factory"), &tools) {
        (Some(taken), _) => environment(draft, &taken),
        (None, Some(tools)) => {
            draft.set_text("environment.env", "tools", &tools.from);
            rewards(draft);
            episodes(draft);
        }
        (None, None) => {
            raw_strings(draft);
            rewards(draft);
        }
    }
    if let Some(tools) = &tools {
        functions(draft, tools);
    }
    Ok(())
}

const DATA: data::Of = data::Of {
    prompts: "dataset_name",
    eval: "eval_dataset",
    weights: None,
    subset: Some("dataset_config"),
    splits: [Some("dataset_train_split"), Some("dataset_test_split")],
};

/// Converts model, data and optimizer, which all trainers share.
pub(super) fn common(draft: &mut Draft) {
    if let Some(taken) = draft.take_text(crate::setting::OF_TEXT) {
        let words = "settings are those of this command, in the text at the top of the script: if yours are others, write it to a shell script next to it";
        draft.choose(&format!("`{}`: {words}", taken.value));
    }
    draft.take(CONVERSATIONS);
    if !super::unsloth::loader::sixteen_bits(draft) {
        parts::model(draft, "model_name_or_path");
    }
    if let Some(taken) = draft.take("bf16") {
        match flag(&taken.value) {
            Some(true) => draft.set_text("model_options.dtype", "bf16", &taken.from),
            _ => draft.leave(&taken, "set model_options.dtype = \"f32\" for f32 weights"),
        }
    }
    held_out(draft);
    data::data(draft, &DATA);
    track::trackers(draft, "report_to");
    track::names(draft, Some("project"), "run_name");
    if let Some(taken) = draft.take_text("hub_model_id") {
        let run = draft.get("run.dir").unwrap_or("RUN").trim_matches('"').to_string();
        draft.leave(&taken, &format!("afterwards: plimsoll checkpoint push {run} hf:{}", taken.value));
    }
    if let Some(taken) = draft.take("shuffle_dataset") {
        let on = flag(&taken.value).unwrap_or(true);
        draft.set_toml("data.shuffle", on, &taken.from);
    }
    optimizer(draft);
    if let Some((decay, taken)) = draft.take_number("weight_decay")
        && decay != 0.0
    {
        draft.change(&taken, "norms and biases decay too here; the trainer there leaves them out");
    }
    if let (Some(first), Some(second)) = (draft.take_number("adam_beta1"), draft.take_number("adam_beta2")) {
        draft.set_toml(
            "train.betas",
            format!("[{:?}, {:?}]", first.0, second.0),
            &format!("{}, {}", first.1.from, second.1.from),
        );
    }
}

/// Takes the held-out split: a command line or a YAML file evaluates on the same data set, if at all.
fn held_out(draft: &mut Draft) {
    let Some(taken) = draft.take_text("eval_strategy") else { return };
    let is_off = taken.value == "no" || draft.has("eval_dataset");
    let set = draft.take_text("dataset_name").filter(|set| set.from == "dataset_name" && !is_off);
    let Some(set) = set else { return };
    let subset = draft.take_text("dataset_config").map(|taken| taken.value);
    let split = draft.take_text("dataset_test_split").map_or("test".to_string(), |taken| taken.value);
    match data::hub_name(&set.value, subset.as_deref(), data::split_of(&split), false) {
        Some(name) => draft.set_text("data.eval", &name, "eval_strategy, dataset_name"),
        None => draft.leave(&taken, "name held-out rows as data.eval"),
    }
}

/// Takes functions outside a class that the model may call.
fn functions(draft: &mut Draft, taken: &Taken) {
    let places = list(&taken.value);
    if places.iter().any(|place| !place.starts_with("python:")) {
        return draft.is_not_built(taken, Unbuilt::Turns);
    }
    let places: Vec<String> = places.iter().map(|place| quoted(place)).collect();
    draft.set_toml("environment.tools", format!("[{}]", places.join(", ")), &taken.from);
    draft.change(taken, LOADED);
}

/// Says what workers do with the file of a class or of functions.
const LOADED: &str = "they are used as they are, and a worker that loads their file runs the other lines too, unless they are under `if __name__ == \"__main__\":`";

/// Takes an environment, which plays the episodes and gives their rewards.
fn environment(draft: &mut Draft, taken: &Taken) {
    if !taken.value.starts_with("python:") {
        return draft.is_not_built(taken, Unbuilt::Turns);
    }
    draft.set_text("environment.env", &taken.value, &taken.from);
    draft.change(
        taken,
        "the class is used as it is, and a worker that loads its file runs the other lines too, unless they are under `if __name__ == \"__main__\":`",
    );
    let own =
        "the reward of an episode is what `get_reward()` of the class returns, or its attribute `reward`";
    for name in ["reward_funcs", "reward_weights", "reward_model_name_or_path"] {
        draft.leave_out(name, own);
    }
    episodes(draft);
}

/// Sets how long episodes are, and the rows that they begin with.
fn episodes(draft: &mut Draft) {
    match draft.take_count("max_tool_calling_iterations") {
        // The last turn has no calls.
        Some((count, taken)) => draft.set_toml("environment.turns_max", count.saturating_add(1), &taken.from),
        None => draft.choose("environment.turns_max = 8: the file sets no limit on turns"),
    }
    if let Some(tokens) = draft.count("rollout.max_new_tokens") {
        let from = "max_completion_length counts all turns there";
        draft.set_toml("environment.episode_tokens_max", tokens, from);
    }
    for (key, rows) in [("data.prompts", "environment.rows"), ("data.eval", "environment.eval_rows")] {
        // One set: neither a list nor the empty text of a missing one.
        if draft.get(key).is_some_and(|path| path.starts_with('"') && path != "\"\"") {
            draft.rename(key, rows);
        }
    }
    if draft.get("environment.rows").is_none() {
        draft.drop_line("environment.eval_rows");
        if draft.get("environment.env") == Some("\"tools\"") {
            draft.miss(
                "environment.rows",
                "which data set holds its prompts",
                "a JSONL or Parquet file with the column `prompt`, or hf:org/name",
            );
        }
    }
    if draft.get("data.prompt_tokens_max").is_none() {
        draft.miss("data.prompt_tokens_max", "max_prompt_length", "the most tokens of a first message");
    }
}

/// Keeps strings raw: TRL applies a chat template only to conversations, which a script makes of its prompts where it
/// is given their column, a system prompt or a template.
pub(super) fn raw_strings(draft: &mut Draft) {
    let makes_conversations = ["data.prompt_column", "data.system_prompt", "data.chat_template"];
    let has_conversations = draft.take(CONVERSATIONS).is_some();
    if has_conversations || makes_conversations.iter().any(|key| draft.get(key).is_some()) {
        return;
    }
    let from = "string prompts are raw there; remove it if yours are conversations";
    draft.set_text("data.chat_template", "none", from);
}

fn optimizer(draft: &mut Draft) {
    let Some(taken) = draft.take("optim") else { return };
    let name = taken.value.as_str();
    match name {
        "adamw_torch" | "adamw_torch_fused" | "adamw_hf" | "adamw_apex_fused" | "adamw" => {}
        "adamw_8bit" | "adamw_bnb_8bit" | "adamw_torch_8bit" | "paged_adamw_8bit" => {
            draft.set_text("train.optimizer_dtype", "int8", &taken.from);
        }
        "adamw_torch_4bit" => {
            draft.set_text("train.optimizer_dtype", "int8", &taken.from);
            draft.change(&taken, "its states have 4 bits there, 8 here");
        }
        "paged_adamw" | "paged_adamw_32bit" => {}
        _ => return draft.is_not_built(&taken, Unbuilt::Optimizer),
    }
    if name.starts_with("paged") {
        draft.change(
            &taken,
            "its states move to the host as they must; here memory.offload = [\"optimizer\"] says so",
        );
    }
}

/// Refuses an unbuilt factor of sampling or of the loss other than 1.
fn only_one(draft: &mut Draft, name: &str) {
    if let Some((value, taken)) = draft.take_number(name)
        && value != 1.0
    {
        draft.is_not_built(&taken, Unbuilt::Objective);
    }
}

/// Converts warm-up, checkpoints, evaluations and the schedule; `updates` of theirs are one step here.
pub(super) fn schedule(draft: &mut Draft, updates: i64) {
    warmup_share(draft);
    for (name, key) in [
        ("warmup_steps", "train.warmup_steps"),
        ("save_steps", "checkpoint.every"),
        ("eval_steps", "eval.every"),
    ] {
        per_update(draft, name, key, updates);
    }
    parts::schedule(draft, "lr_scheduler_type", "warmup_ratio");
}

/// Converts `warmup_steps` below 1, which is a share of the steps since transformers 5.
fn warmup_share(draft: &mut Draft) {
    let Some(taken) = draft.take("warmup_steps").filter(|taken| is_share(&taken.value)) else { return };
    match (number(&taken.value), draft.count("train.steps")) {
        (Some(share), Some(steps)) => {
            draft.set_toml("train.warmup_steps", format!("{}", (share * steps as f64).ceil()), &taken.from);
            draft.change(&taken, &format!("a share of the {steps} steps"));
        }
        _ => draft.leave(
            &taken,
            "a share of the steps, which follow from the rows: set train.warmup_steps to it of those that `plan` says",
        ),
    }
}

fn is_share(text: &str) -> bool {
    number(text).is_some_and(|share| share > 0.0 && share < 1.0)
}

fn method(draft: &mut Draft) -> Result<()> {
    let trainer = draft.take("trainer");
    let is_rloo = trainer.as_ref().is_some_and(|taken| taken.value == "rloo");
    let mut method = if is_rloo { "rloo" } else { "grpo" };
    let mut aggregation = None;
    let loss_type = draft.take("loss_type");
    if let Some(loss) = &loss_type {
        match (loss.value.as_str(), method) {
            (_, "rloo") => draft.leave(loss, "only GRPO has it"),
            ("dapo", _) => aggregation = Some("token_mean"),
            ("bnpo", _) => {
                aggregation = Some("token_mean");
                draft.change(loss, "over the tokens of a micro-batch there, of the update here");
            }
            ("grpo", _) => aggregation = Some("seq_mean_token_mean"),
            ("dr_grpo", _) => aggregation = Some("seq_mean_token_sum_norm"),
            ("cispo", _) => method = "cispo",
            ("sapo", _) => method = "sapo",
            ("luspo", _) => method = "luspo",
            ("vespo", _) => method = "vespo",
            _ => return Err(Draft::no_method(loss)),
        }
        if let Some(aggregation) = aggregation {
            draft.set_text("loss.aggregation", aggregation, &loss.from);
        }
    }
    let level = draft.take("importance_sampling_level");
    let is_of_sequences = level.as_ref().is_some_and(|level| level.value == "sequence");
    if let Some(level) = level {
        match (level.value.as_str(), method) {
            ("token", _) => {}
            ("sequence", "luspo") => {}
            ("sequence", "grpo") => method = "gspo",
            _ => draft.is_not_built(&level, Unbuilt::Objective),
        }
    }
    if let Some(loss) = loss_type.filter(|_| method == "luspo" && !is_of_sequences) {
        // Its ratio is of tokens there unless importance_sampling_level says otherwise.
        draft.is_not_built(&loss, Unbuilt::Objective);
    }
    clips(draft, method);
    let from = trainer.as_ref().map_or("its keys are those of GRPOConfig", |taken| &taken.from);
    draft.set_text("method", method, from);
    if let Some(taken) = trainer.filter(|_| is_rloo) {
        rloo(draft, &taken);
    }
    if let Some(mask) = draft.take("mask_truncated_completions")
        && flag(&mask.value) == Some(true)
    {
        draft.set_toml("loss.mask_truncated", "true", &mask.from);
    }
    if let Some(scale) = draft.take("scale_rewards") {
        match (scale.value.to_ascii_lowercase().as_str(), method) {
            (_, "rloo") => draft.leave(&scale, "only GRPO has it"),
            ("group" | "true", _) => {}
            ("none" | "false", _) => {
                draft.set_text("loss.advantage", "mean_baseline", &scale.from);
                draft.choose(parts::BOUNDED);
            }
            // The deviation of a batch is another advantage.
            _ => draft.is_not_built(&scale, Unbuilt::Objective),
        }
    }
    Ok(())
}

/// Writes the clips of losses that have others here: 0.2 on each side there.
fn clips(draft: &mut Draft, method: &str) {
    let (low, high) = ("loss.clip_low", "loss.clip_high");
    let from = "default of TRL: epsilon";
    match method {
        "gspo" | "luspo" => {
            for key in [low, high] {
                if draft.get(key).is_none() {
                    draft.set_toml(key, "0.2", from);
                }
            }
            // With a ratio of sequences it is no dual clip here.
            if let Some(taken) = draft.take_text("delta") {
                draft.is_not_built(&taken, Unbuilt::Objective);
            }
        }
        "cispo" => {
            // Both bounds are absolute, and theirs has no lower one.
            draft.set_toml(low, "0.0", "no lower bound there");
            if draft.get(high).is_none() {
                draft.set_toml(
                    high,
                    "0.2",
                    "default of TRL: epsilon_high is epsilon, a bound of the ratio itself",
                );
            }
        }
        _ => {}
    }
}

/// Converts RLOO: its KL term is in its rewards, and its ratio is that of a whole sequence.
fn rloo(draft: &mut Draft, taken: &Taken) {
    draft.choose(parts::BOUNDED);
    draft.set_text("loss.kl_in", "reward", "as RLOO has it in TRL");
    draft.set_text("loss.kl_estimator", "k1", "as RLOO has it in TRL");
    draft.set_text(
        "loss.aggregation",
        "seq_mean_token_sum",
        "as RLOO has it in TRL: its loss is of whole sequences",
    );
    draft.change(
        taken,
        "the clipped ratio is of the whole sequence there, of each token here, the same with one update a step; the KL term joins a reward before its baseline there, after it here",
    );
}

/// Checks the constants of SAPO and VESPO, which are the papers' here.
fn temperatures(draft: &mut Draft) {
    for (name, method, value) in [
        ("sapo_temperature_pos", "\"sapo\"", 1.0),
        ("sapo_temperature_neg", "\"sapo\"", 1.05),
        ("vespo_k_pos", "\"vespo\"", 2.0),
        ("vespo_lambda_pos", "\"vespo\"", 3.0),
        ("vespo_k_neg", "\"vespo\"", 3.0),
        ("vespo_lambda_neg", "\"vespo\"", 2.0),
    ] {
        if let Some((given, taken)) = draft.take_number(name)
            && given != value
            && draft.get("method") == Some(method)
        {
            draft.is_not_built(&taken, Unbuilt::Objective);
        }
    }
}

/// Converts TRL's batch sizes to prompts per step and sequences per update; returns updates per step.
fn batches(draft: &mut Draft) -> i64 {
    let processes = processes(draft, "rollout.prompts_per_step");
    let mut device = draft.take_count("per_device_train_batch_size").map_or(8, |(count, _)| count);
    let accumulated = draft.take_count("gradient_accumulation_steps").map_or(1, |(count, _)| count);
    let group = draft.count("rollout.group_size").unwrap_or(8).max(1);
    let is_free =
        !["steps_per_generation", "generation_batch_size"].iter().any(|name| draft.is_written(name));
    let of_all = |device: i64| device.saturating_mul(accumulated).saturating_mul(processes);
    if draft.defaults_of() == Some("unsloth") && is_free && of_all(device) % group != 0 {
        draft.choose(&format!(
            "a batch of {group} a device: unsloth makes it num_generations where groups do not fit"
        ));
        device = group;
    }
    let update = of_all(device);
    let per_generation = draft.take_count("steps_per_generation").map_or(accumulated, |(count, _)| count);
    let whole = match draft.take_count("generation_batch_size") {
        Some((count, _)) => count,
        None => device.saturating_mul(per_generation).saturating_mul(processes),
    };
    let prompts = (whole / group).max(1);
    let from = "per_device_train_batch_size x steps_per_generation x num_processes / num_generations";
    let of_batch = [
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "steps_per_generation",
        "generation_batch_size",
    ];
    if draft.misses("rollout.prompts_per_step", &of_batch) {
        return 1;
    }
    draft.set_toml("rollout.prompts_per_step", prompts, from);
    let from = "per_device_train_batch_size x gradient_accumulation_steps x num_processes";
    if update < whole {
        draft.set_toml("train.mini_batch", update, from);
    }
    if whole % group != 0 {
        draft.choose(&format!(
            "{prompts} prompts a step: {whole} sequences do not divide into groups of {group}"
        ));
    }
    (whole / update.max(1)).max(1).saturating_mul(draft.count("train.epochs_per_rollout").unwrap_or(1).max(1))
}

/// Returns the number of processes, each with its own batch: `key` grows with it.
pub(super) fn processes(draft: &mut Draft, key: &str) -> i64 {
    let ranks = draft.take_count("num_processes");
    if ranks.is_none() {
        draft.choose(&format!("one process: the file does not say how many; multiply {key} by theirs"));
    }
    ranks.map_or(1, |(count, _)| count)
}

/// Converts steps: theirs are updates, ours are rollouts.
pub(super) fn steps(draft: &mut Draft, updates: i64) {
    if draft.misses("train.steps", &["max_steps"]) {
        return draft.leave_out("num_train_epochs", "max_steps is set too, which counts");
    }
    let limit = draft.take("max_steps").filter(|taken| integer(&taken.value).is_some_and(|steps| steps > 0));
    match limit {
        Some(_) => {
            per_update(draft, "max_steps", "train.steps", updates);
            draft.leave_out("num_train_epochs", "max_steps is set too, which counts");
        }
        None if ["tools", "environment_factory"].iter().any(|name| draft.has(name)) => {
            parts::chosen_steps(
                draft,
                "num_train_epochs",
                "an environment has no end here, and so no passes",
            );
        }
        None => parts::passes(draft, "num_train_epochs", Some(3.0)),
    }
}

fn per_update(draft: &mut Draft, name: &str, key: &str, updates: i64) {
    // A share has been converted before.
    let Some(taken) = draft.take(name).filter(|taken| name != "warmup_steps" || !is_share(&taken.value))
    else {
        return;
    };
    match integer(&taken.value) {
        Some(0) => {}
        Some(count) if count > 0 => {
            draft.set_toml(key, (count - 1) / updates + 1, &taken.from);
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
    let mut remarks: Vec<String> = names.iter().filter_map(|name| reward(draft, name)).collect();
    remarks.dedup();
    if let Some(weights) = draft.take("reward_weights") {
        let values: Vec<f64> = list(&weights.value).iter().filter_map(|text| number(text)).collect();
        if !names.is_empty() && values.len() == names.len() {
            parts::weigh_rewards(draft, &values, &weights.from)
        } else {
            draft.leave(&weights, "it is not one weight for each reward")
        }
    }
    if let Some(taken) = functions
        && !remarks.is_empty()
    {
        draft.change(&taken, &remarks.join("; "));
    }
    parts::reward_model(draft, "reward_model_name_or_path");
    parts::no_reward(draft, "reward_funcs");
}

/// Adds one of TRL's rewards by name, a function, or a model; returns what differs here.
fn reward(draft: &mut Draft, name: &str) -> Option<String> {
    let from = "reward_funcs";
    let mut words = name.split(' ');
    match (words.next().unwrap_or_default(), name.rsplit_once('.')) {
        ("accuracy_reward" | "reasoning_accuracy_reward", _) => {
            draft.add_reward(from, vec![("kind", quoted("math")), ("answer_column", quoted("solution"))]);
            None
        }
        ("think_format_reward", _) => {
            draft.add_reward(from, vec![("kind", quoted("regex:(?s)^<think>.*</think>"))]);
            Some(format!("{name} is a regular expression here, which allows a second <think>"))
        }
        ("get_soft_overlong_punishment", _) => {
            let longest = words.next().and_then(integer).unwrap_or(1280);
            let buffer = words.next().and_then(integer).unwrap_or(256);
            let lines = vec![("kind", quoted("length")), ("overlong_buffer", buffer.to_string())];
            draft.add_reward(from, lines);
            (draft.count("rollout.max_new_tokens") != Some(longest)).then(|| {
                format!("it counts back from {longest} tokens there, from rollout.max_new_tokens here")
            })
        }
        _ if name.starts_with("python:") => {
            draft.add_reward(from, vec![("kind", quoted(name))]);
            let words = "its file is loaded by reward workers, which runs its other lines too, unless they are under `if __name__ == \"__main__\":`";
            Some(words.to_string())
        }
        // A model of the hub, or a folder.
        _ if name.contains('/') => {
            parts::add_reward_model(draft, name, from);
            None
        }
        (_, Some((module, function))) if is_path(module) && is_path(function) => {
            let kind = format!("python:{}.py:{function}", module.replace('.', "/"));
            draft.add_reward(from, vec![("kind", quoted(&kind))]);
            Some(format!("{name} is a file here, from the folder that the run starts in"))
        }
        _ => {
            parts::miss_reward(draft, &format!("no reward here is called {name}"), parts::REWARD);
            None
        }
    }
}

fn is_path(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.')
}
