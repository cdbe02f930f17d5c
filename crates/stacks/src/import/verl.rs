//! verl's `main_ppo`: overrides of its configuration by their full paths, or the configuration itself as Hydra writes it.

use super::draft::Take::*;
use super::draft::{Draft, Names, quoted};
use super::read;
use plimsoll_base::Result;

const BUILT: &str = "not built here";

pub(super) static NAMES: Names = Names {
    title: "verl",
    read: settings,
    rows: &[
        ("actor_rollout_ref.model.path", Later),
        ("data.train_files", Later),
        ("data.val_files", Later),
        ("data.prompt_key", Text("data.prompt_column")),
        ("data.max_prompt_length", Integer("data.prompt_tokens_max")),
        ("data.max_response_length", Integer("rollout.max_new_tokens")),
        ("data.train_batch_size", Integer("rollout.prompts_per_step")),
        ("data.gen_batch_size", Lost(BUILT)),
        ("data.truncation", Later),
        ("data.filter_overlong_prompts", On("data.overlong", "drop")),
        ("data.shuffle", Later),
        ("data.seed", Integer("seed")),
        ("data.return_raw_chat", Lost("has no use here")),
        ("actor_rollout_ref.rollout.n", Integer("rollout.group_size")),
        ("actor_rollout_ref.rollout.temperature", Number("rollout.temperature")),
        ("actor_rollout_ref.rollout.top_p", Number("rollout.top_p")),
        ("actor_rollout_ref.rollout.top_k", TopK),
        ("actor_rollout_ref.rollout.val_kwargs.temperature", Number("eval.temperature")),
        ("actor_rollout_ref.rollout.val_kwargs.n", Integer("eval.samples")),
        ("actor_rollout_ref.rollout.val_kwargs.top_p", Lost("an evaluation samples with rollout.top_p")),
        ("actor_rollout_ref.rollout.val_kwargs.top_k", Lost("an evaluation samples with rollout.top_k")),
        ("actor_rollout_ref.rollout.val_kwargs.do_sample", Lost("eval.temperature = 0 is greedy")),
        ("actor_rollout_ref.rollout.free_cache_engine", Lost("the KV cache has a fixed address in the plan")),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", Later),
        ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", Integer("train.micro_batch_tokens")),
        (
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu|actor_rollout_ref.actor.ppo_micro_batch_size",
            Later,
        ),
        ("actor_rollout_ref.actor.ppo_epochs", Integer("train.epochs_per_rollout")),
        ("actor_rollout_ref.actor.clip_ratio", Clips),
        ("actor_rollout_ref.actor.clip_ratio_low", Number("loss.clip_low")),
        ("actor_rollout_ref.actor.clip_ratio_high", Number("loss.clip_high")),
        ("actor_rollout_ref.actor.clip_ratio_c", Number("loss.dual_clip")),
        ("actor_rollout_ref.actor.entropy_coeff", Number("loss.entropy_coef")),
        ("actor_rollout_ref.actor.use_kl_loss", Later),
        ("actor_rollout_ref.actor.kl_loss_coef", Later),
        ("actor_rollout_ref.actor.kl_loss_type", Later),
        (
            "actor_rollout_ref.actor.loss_agg_mode",
            Names(
                "loss.aggregation",
                &[
                    ("token-mean", "token_mean"),
                    ("seq-mean-token-mean", "seq_mean_token_mean"),
                    ("seq-mean-token-sum", "seq_mean_token_sum"),
                    ("seq-mean-token-sum-norm", "seq_mean_token_sum_norm"),
                ],
            ),
        ),
        ("actor_rollout_ref.actor.policy_loss.loss_mode", Later),
        ("actor_rollout_ref.actor.grad_clip", Number("train.grad_clip")),
        ("actor_rollout_ref.actor.optim.lr", Number("train.learning_rate")),
        ("actor_rollout_ref.actor.optim.lr_warmup_steps_ratio", Later),
        ("actor_rollout_ref.actor.optim.lr_warmup_steps", Every("train.warmup_steps")),
        ("actor_rollout_ref.actor.optim.weight_decay", Number("train.weight_decay")),
        ("actor_rollout_ref.actor.optim.betas", Betas),
        ("actor_rollout_ref.actor.optim.lr_scheduler_type|actor_rollout_ref.actor.optim.warmup_style", Later),
        ("actor_rollout_ref.actor.fsdp_config.optimizer_offload", Offload("optimizer")),
        ("actor_rollout_ref.ref.fsdp_config.param_offload", Offload("reference")),
        ("actor_rollout_ref.model.enable_gradient_checkpointing", Recompute),
        ("critic.model.path", Later),
        ("critic.optim.lr", Number("critic.learning_rate")),
        ("critic.cliprange_value", Number("critic.value_clip")),
        (
            "critic.ppo_mini_batch_size",
            Lost("the critic has the actor's parts; critic.updates_per_rollout says otherwise"),
        ),
        ("algorithm.adv_estimator", Later),
        ("algorithm.norm_adv_by_std_in_grpo", Later),
        ("algorithm.gamma", Number("loss.gamma")),
        ("algorithm.lam", Number("loss.lambda")),
        ("algorithm.use_kl_in_reward", Later),
        ("algorithm.kl_ctrl.kl_coef", Later),
        ("algorithm.kl_ctrl.type", Later),
        ("algorithm.kl_ctrl.target_kl", Later),
        ("algorithm.kl_ctrl.horizon", Later),
        ("algorithm.kl_penalty", Later),
        ("algorithm.filter_groups.enable", Later),
        ("algorithm.filter_groups.metric", Later),
        ("algorithm.filter_groups.max_num_gen_batches", Later),
        ("reward_model.overlong_buffer.enable", Later),
        ("reward_model.overlong_buffer.len", Later),
        ("reward_model.overlong_buffer.penalty_factor", Later),
        ("reward_model.enable", Later),
        ("reward_model.model.path", Later),
        ("custom_reward_function.path|reward.custom_reward_function.path", Later),
        ("custom_reward_function.name|reward.custom_reward_function.name", Later),
        ("trainer.total_training_steps", Later),
        ("trainer.total_epochs", Later),
        ("trainer.critic_warmup", Every("critic.warmup_steps")),
        ("trainer.save_freq", Every("checkpoint.every")),
        ("trainer.test_freq", Every("eval.every")),
        ("trainer.max_actor_ckpt_to_keep", Integer("checkpoint.keep")),
        ("trainer.default_local_dir", Text("run.dir")),
        ("trainer.val_before_train", Lost("there is always an evaluation before and after")),
        ("trainer.resume_mode", Lost("say plimsoll train --resume")),
    ],
    elsewhere: &[
        ("trainer.n_gpus_per_node", "cluster"),
        ("trainer.nnodes", "cluster"),
        ("ray_", "cluster"),
        ("trainer.logger", "logging"),
        ("trainer.project_name", "logging"),
        ("trainer.experiment_name", "logging"),
        ("trainer.log_val", "logging"),
        ("gpu_memory_utilization", "engine"),
        ("tensor_model_parallel_size", "sharding"),
        ("ulysses_sequence_parallel_size", "sharding"),
        ("megatron", "sharding"),
        ("fsdp", "sharding"),
        ("log_prob_", "planned"),
        ("use_dynamic_bsz", "planned"),
        ("ppo_micro_batch_size", "planned"),
        ("ppo_max_token_len", "planned"),
        ("forward_max_token_len", "planned"),
        ("use_remove_padding", "always"),
        ("actor_rollout_ref.rollout.", "engine"),
    ],
    defaults: &[
        ("algorithm.adv_estimator", "gae"),
        ("data.max_prompt_length", "512"),
        ("data.max_response_length", "512"),
        ("data.train_batch_size", "1024"),
        ("actor_rollout_ref.rollout.n", "1"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", "256"),
        ("actor_rollout_ref.actor.clip_ratio_c", "3.0"),
        ("actor_rollout_ref.actor.kl_loss_coef", "0.001"),
        ("actor_rollout_ref.actor.loss_agg_mode", "token-mean"),
        ("actor_rollout_ref.actor.optim.lr", "1e-6"),
        ("actor_rollout_ref.actor.optim.weight_decay", "0.01"),
        ("actor_rollout_ref.actor.optim.betas", "[0.9, 0.999]"),
        ("critic.optim.lr", "1e-5"),
        ("critic.cliprange_value", "0.5"),
        ("algorithm.kl_ctrl.kl_coef", "0.001"),
    ],
    combine,
};

fn settings(text: &str) -> Vec<super::draft::Given> {
    let is_trainer = |word: &read::Word| {
        word.text.contains("verl.trainer.main_ppo")
            || word.text.contains(".main_dapo")
            || word.text.ends_with("main_ppo.py")
    };
    for words in read::commands(text) {
        if let Some(at) = words.iter().position(is_trainer) {
            return read::overrides(&words[at + 1..]);
        }
    }
    let given = read::interpolate(read::yaml(text));
    let is_section =
        |key: &str| ["actor_rollout_ref.", "data.", "algorithm."].iter().any(|s| key.starts_with(s));
    if given.iter().any(|one| is_section(&one.key)) { given } else { Vec::new() }
}

fn combine(draft: &mut Draft) -> Result<()> {
    method(draft)?;
    super::draft::model(draft, "actor_rollout_ref.model.path");
    if let Some(taken) = draft.take("critic.model.path") {
        draft.set_text("critic.model", &super::draft::model_source(&taken.value), &taken.from);
    }
    super::draft::data(draft, "data.train_files", "data.val_files");
    data(draft);
    batches(draft);
    steps(draft);
    let scheduler = "actor_rollout_ref.actor.optim.lr_scheduler_type";
    super::draft::schedule(draft, scheduler, "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio");
    kl(draft);
    filter(draft);
    rewards(draft);
    Ok(())
}

/// Dynamic sampling: groups whose scores differ, whatever the metric's name.
fn filter(draft: &mut Draft) {
    let enable = draft.take("algorithm.filter_groups.enable");
    let metric = draft.take("algorithm.filter_groups.metric");
    let batches = draft.take_count("algorithm.filter_groups.max_num_gen_batches");
    if !draft.is_on("algorithm.filter_groups.enable") {
        for taken in [metric, batches.map(|(_, taken)| taken)].into_iter().flatten() {
            draft.leave(&taken, "switched off there");
        }
        return;
    }
    if let Some(taken) = enable {
        draft.set_toml("loss.dynamic_sampling", "true", &taken.from);
    }
    if let Some(taken) = metric.filter(|taken| !["score", "seq_reward"].contains(&taken.value.as_str())) {
        draft.change(&taken, "groups are kept by the sum of their rewards here");
    }
    if let Some((count, taken)) = batches {
        // The first batch is no retry.
        draft.set_toml("loss.dynamic_sampling_retries", (count - 1).to_string(), &taken.from);
    }
}

fn method(draft: &mut Draft) -> Result<()> {
    let Some(taken) = draft.take("algorithm.adv_estimator") else { return Ok(()) };
    let mut method = match taken.value.as_str() {
        "gae" => "ppo",
        "grpo" => "grpo",
        "rloo" => "rloo",
        "reinforce_plus_plus" => "reinforce",
        "reinforce_plus_plus_baseline" => "reinforce_baseline",
        _ => return Err(Draft::no_method(&taken)),
    };
    if method == "reinforce" {
        draft.change(&taken, "the loss there clips the ratio, the one of `reinforce` here does not");
    }
    if let Some(loss) = draft.take("actor_rollout_ref.actor.policy_loss.loss_mode") {
        match (loss.value.as_str(), method) {
            ("vanilla", _) => {}
            ("gspo", "grpo") => method = "gspo",
            _ => draft.leave(&loss, "no method here joins this loss and this advantage"),
        }
    }
    draft.set_text("method", method, &taken.from);
    if let Some(norm) = draft.take("algorithm.norm_adv_by_std_in_grpo")
        && read::flag(&norm.value) == Some(false)
    {
        match method {
            "grpo" | "gspo" => draft.set_text("loss.advantage", "mean_baseline", &norm.from),
            _ => draft.leave(&norm, "only of grpo"),
        }
    }
    Ok(())
}

fn data(draft: &mut Draft) {
    if let Some(taken) = draft.take("data.truncation") {
        match (taken.value.as_str(), draft.get("data.overlong").is_some()) {
            (_, true) => draft.leave(&taken, "longer prompts are dropped before it"),
            ("error", _) => draft.set_text("data.overlong", "error", &taken.from),
            ("left", _) => draft.set_text("data.overlong", "truncate-left", &taken.from),
            _ => draft.leave(&taken, "prompts keep their last tokens here, or are dropped"),
        }
    }
    if let Some(taken) = draft.take("data.shuffle") {
        match read::flag(&taken.value) {
            Some(on) => draft.set_toml("data.shuffle", on.to_string(), &taken.from),
            None => draft.leave(&taken, "not true or false"),
        }
    }
}

/// Their mini-batch counts prompts, ours sequences.
fn batches(draft: &mut Draft) {
    let group = draft.count("rollout.group_size").unwrap_or(1);
    if let Some((prompts, taken)) = draft.take_count("actor_rollout_ref.actor.ppo_mini_batch_size") {
        let sequences = prompts.saturating_mul(group);
        draft.set_toml("train.mini_batch", sequences.to_string(), &taken.from);
        draft.change(&taken, &format!("{prompts} prompts there, {sequences} sequences here"));
    }
    super::draft::micro_batch(draft, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu");
}

fn steps(draft: &mut Draft) {
    let epochs = draft.take("trainer.total_epochs");
    match (draft.take_count("trainer.total_training_steps"), epochs) {
        (Some((steps, taken)), epochs) => {
            draft.set_toml("train.steps", steps.to_string(), &taken.from);
            if let Some(epochs) = epochs {
                draft.leave(&epochs, "total_training_steps counts");
            }
        }
        (None, epochs) => {
            super::draft::unknown_steps(draft);
            if let Some(epochs) = epochs {
                draft.leave(&epochs, "steps follow from the size of the data, which the file does not say");
            }
        }
    }
}

fn kl(draft: &mut Draft) {
    let in_loss = draft.is_on("actor_rollout_ref.actor.use_kl_loss");
    let in_reward = draft.is_on("algorithm.use_kl_in_reward");
    let (loss_keys, reward_keys) = (
        ["actor_rollout_ref.actor.kl_loss_coef", "actor_rollout_ref.actor.kl_loss_type"],
        ["algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty"],
    );
    let (used, unused) = if in_loss { (loss_keys, reward_keys) } else { (reward_keys, loss_keys) };
    for name in unused {
        if let Some(taken) = draft.take(name) {
            let why = if in_loss && in_reward {
                "one KL term here: the one in the loss"
            } else {
                "switched off there"
            };
            draft.leave(&taken, why);
        }
    }
    for name in ["algorithm.kl_ctrl.type", "algorithm.kl_ctrl.target_kl", "algorithm.kl_ctrl.horizon"] {
        let Some(taken) = draft.take(name) else { continue };
        draft.leave(&taken, "set loss.kl_target and loss.kl_horizon for a coefficient that adapts");
    }
    if !in_loss && !in_reward {
        for name in used {
            if let Some(taken) = draft.take(name) {
                draft.leave(&taken, "switched off there");
            }
        }
        return;
    }
    draft.set_text(
        "loss.kl_in",
        if in_loss { "loss" } else { "reward" },
        if in_loss { "use_kl_loss" } else { "use_kl_in_reward" },
    );
    if let Some((coef, taken)) = draft.take_number(used[0]) {
        draft.set_toml("loss.kl_coef", format!("{coef:?}"), &taken.from);
    }
    if let Some(taken) = draft.take(used[1]) {
        match taken.value.as_str() {
            "low_var_kl" | "k3" => draft.set_text("loss.kl_estimator", "k3", &taken.from),
            "mse" | "k2" => draft.set_text("loss.kl_estimator", "k2", &taken.from),
            "kl" | "k1" => draft.set_text("loss.kl_estimator", "k1", &taken.from),
            _ => draft.leave(&taken, "no such estimator here"),
        }
    }
}

fn rewards(draft: &mut Draft) {
    let is_on = draft.is_on("reward_model.overlong_buffer.enable");
    for (name, key) in [
        ("reward_model.overlong_buffer.len", "loss.overlong_buffer"),
        ("reward_model.overlong_buffer.penalty_factor", "loss.overlong_factor"),
    ] {
        match (draft.take_number(name), is_on) {
            (Some((value, taken)), true) if key == "loss.overlong_factor" => {
                draft.set_toml(key, format!("{value:?}"), &taken.from);
            }
            (Some((value, taken)), true) => draft.set_toml(key, format!("{value:.0}"), &taken.from),
            (Some((_, taken)), false) => draft.leave(&taken, "switched off there"),
            (None, _) => {}
        }
    }
    let function = draft.take("custom_reward_function.name");
    match (draft.take("custom_reward_function.path"), function) {
        (Some(path), function) => {
            let name = function.map_or("compute_score".to_string(), |taken| taken.value);
            let kind = quoted(&format!("python:{}:{name}", path.value));
            draft.add_reward(&path.from, vec![("kind", kind), ("signature", quoted("verl"))]);
        }
        (None, Some(function)) => draft.leave(&function, "the function has no file"),
        (None, None) => {}
    }
    match draft.is_on("reward_model.enable") {
        true => super::draft::reward_model(draft, "reward_model.model.path"),
        false => {
            if let Some(path) = draft.take("reward_model.model.path") {
                draft.leave(&path, "switched off there");
            }
        }
    }
    super::draft::no_reward(draft);
}
