//! Open-Reasoner-Zero: the literals of a configuration class. What its methods do is code, and is named as such.

use super::draft::Take::*;
use super::draft::{Draft, Names, quoted};
use super::read;
use plimsoll_base::Result;

pub(super) static NAMES: Names = Names {
    title: "Open-Reasoner-Zero",
    read: read::class_fields,
    rows: &[
        ("use_grpo", Later),
        ("pretrain", Later),
        ("critic_pretrain", Later),
        ("reward_pretrain", Lost("a reward model: name a verifier or a function as [[reward]]")),
        ("prompt_data", Later),
        ("eval_prompt_data", Later),
        ("prompt_max_len", Integer("data.prompt_tokens_max")),
        ("generate_max_len", Integer("rollout.max_new_tokens")),
        ("max_len", Lost("prompt and response have a limit each here")),
        ("packing_max_len", Integer("train.micro_batch_tokens")),
        ("rollout_batch_size", Integer("rollout.prompts_per_step")),
        ("n_samples_per_prompt", Integer("rollout.group_size")),
        ("temperature", Number("rollout.temperature")),
        ("top_p", Number("rollout.top_p")),
        ("top_k", TopK),
        ("stop", Later),
        ("policy_update_steps", Later),
        ("critic_update_steps", Integer("critic.updates_per_rollout")),
        ("max_epochs", Integer("train.epochs_per_rollout")),
        ("num_episodes", Later),
        ("actor_learning_rate", Number("train.learning_rate")),
        ("critic_learning_rate", Number("critic.learning_rate")),
        ("num_warmup_steps", Later),
        ("adam_betas", Betas),
        ("l2", Number("train.weight_decay")),
        ("max_norm", Number("train.grad_clip")),
        ("eps_clip", Clips),
        ("value_clip", Number("critic.value_clip")),
        ("gamma", Number("loss.gamma")),
        ("lambd", Number("loss.lambda")),
        ("advantage_normalize", Later),
        ("use_kl_loss", Later),
        ("kl_loss_coef", Later),
        ("init_kl_coef", Later),
        ("use_kl_estimator_k3", Later),
        ("freezing_actor_steps", Every("critic.warmup_steps")),
        ("update_ref_every_epoch", Lost("the reference keeps the weights that the run began with")),
        ("gradient_checkpointing", Recompute),
        ("adam_offload", Offload("optimizer")),
        ("grad_accum_dtype", Names("train.grad_dtype", &[("bf16", "bf16"), ("fp32", "f32")])),
        ("bf16", On("model_options.dtype", "bf16")),
        ("seed", Integer("seed")),
        ("save_path", Text("run.dir")),
        ("save_interval", Every("checkpoint.every")),
        ("eval_interval", Every("eval.every")),
    ],
    elsewhere: &[
        ("num_nodes", "cluster"),
        ("num_gpus", "cluster"),
        ("total_num", "cluster"),
        ("vllm", "engine"),
        ("gpu_memory_utilization", "engine"),
        ("enable_prefix_caching", "engine"),
        ("enforce_eager", "engine"),
        ("colocate", "placement"),
        ("zero_stage", "sharding"),
        ("zpg", "sharding"),
        ("micro_", "planned"),
        ("tensorboard", "logging"),
        ("ckpt_path", "paths"),
        ("flash_attn", "kernels"),
    ],
    defaults: &[
        ("use_grpo", "False"),
        ("actor_learning_rate", "1e-6"),
        ("critic_learning_rate", "5e-6"),
        ("rollout_batch_size", "128"),
        ("n_samples_per_prompt", "64"),
        ("generate_max_len", "8000"),
        ("advantage_normalize", "True"),
    ],
    combine,
};

fn combine(draft: &mut Draft) -> Result<()> {
    let is_grpo = draft.is_on("use_grpo");
    draft.set_text("method", if is_grpo { "grpo" } else { "ppo" }, "use_grpo");
    if is_grpo {
        draft.set_text(
            "loss.advantage",
            "mean_baseline",
            "its division by the standard deviation divides by 1",
        );
    }
    super::draft::model(draft, "pretrain");
    if let Some(critic) = draft.take("critic_pretrain") {
        draft.set_text("critic.model", &super::draft::model_source(&critic.value), &critic.from);
    }
    super::draft::data(draft, "prompt_data", "eval_prompt_data");
    draft.choose("the prompt's template is code there: write it as data.chat_template");
    if let Some(taken) = draft.take("stop") {
        let stops: Vec<String> = read::list(&taken.value).iter().map(|stop| quoted(stop)).collect();
        draft.set_toml("rollout.stop", format!("[{}]", stops.join(", ")), &taken.from);
        draft.set_toml("rollout.keep_stop", "true", "as its engine is called");
    }
    updates(draft);
    if let Some(taken) = draft.take("advantage_normalize") {
        let on = read::flag(&taken.value).unwrap_or(true);
        draft.set_text("loss.whiten", if on { "full" } else { "off" }, &taken.from);
    }
    kl(draft);
    draft.add_reward("chosen", vec![("kind", quoted("math"))]);
    draft.choose(
        "[[reward]] kind = \"math\": its reward is code, 1 for a correct answer that ended by itself",
    );
    Ok(())
}

fn updates(draft: &mut Draft) {
    super::draft::unknown_steps(draft);
    if let Some(taken) = draft.take("num_episodes") {
        draft.leave(&taken, "steps follow from the size of the data, which the file does not say");
    }
    let updates = match draft.take_count("policy_update_steps") {
        Some((updates, taken)) if updates > 1 => {
            let sequences = draft.sequences().unwrap_or(0);
            draft.set_toml("train.mini_batch", (sequences / updates).to_string(), &taken.from);
            updates
        }
        _ => 1,
    };
    if let Some((warmup, taken)) = draft.take_number("num_warmup_steps") {
        let steps = (warmup / updates as f64).ceil().max(0.0);
        draft.set_toml("train.warmup_steps", format!("{steps}"), &taken.from);
    }
}

fn kl(draft: &mut Draft) {
    let in_loss = draft.is_on("use_kl_loss");
    let is_k3 = draft.is_on("use_kl_estimator_k3");
    let (used, unused) =
        if in_loss { ("kl_loss_coef", "init_kl_coef") } else { ("init_kl_coef", "kl_loss_coef") };
    if let Some((coef, taken)) = draft.take_number(used) {
        draft.set_toml("loss.kl_coef", format!("{coef:?}"), &taken.from);
        draft.set_text("loss.kl_in", if in_loss { "loss" } else { "reward" }, "use_kl_loss");
        draft.set_text("loss.kl_estimator", if is_k3 { "k3" } else { "k1" }, "use_kl_estimator_k3");
    }
    if let Some(taken) = draft.take(unused) {
        draft.leave(&taken, "switched off there");
    }
}
