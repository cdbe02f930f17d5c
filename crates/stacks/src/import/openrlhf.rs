//! OpenRLHF's `train_ppo_ray`: the flat flags up to 0.10.1 and the dotted ones since.

use super::draft::Take::*;
use super::draft::{Draft, Names, quoted};
use super::read;
use plimsoll_base::Result;

pub(super) static NAMES: Names = Names {
    title: "OpenRLHF",
    read: settings,
    rows: &[
        ("pretrain|actor.model_name_or_path", Later),
        ("prompt_data|data.prompt_dataset", Later),
        ("eval_dataset|eval.dataset", Later),
        ("input_key|data.input_key", Text("data.prompt_column")),
        ("label_key|data.label_key", Text("data.answer_column")),
        ("apply_chat_template|data.apply_chat_template", Later),
        ("input_template|data.input_template", Lost("write it as data.chat_template, a Jinja template")),
        ("prompt_max_len|data.prompt_max_len", Integer("data.prompt_tokens_max")),
        ("generate_max_len|rollout.max_new_tokens", Later),
        ("max_len|data.max_len", Later),
        ("rollout_batch_size|rollout.batch_size", Integer("rollout.prompts_per_step")),
        ("n_samples_per_prompt|rollout.n_samples_per_prompt", Integer("rollout.group_size")),
        ("temperature|rollout.temperature", Number("rollout.temperature")),
        ("top_p|rollout.top_p", Number("rollout.top_p")),
        ("train_batch_size|train.batch_size", Integer("train.mini_batch")),
        ("micro_train_batch_size|train.micro_batch_size", Later),
        (
            "train_max_tokens_per_gpu|max_tokens_per_gpu|train.max_tokens_per_gpu",
            Integer("train.micro_batch_tokens"),
        ),
        ("max_epochs|train.max_epochs", Integer("train.epochs_per_rollout")),
        ("num_episodes|train.num_episodes", Later),
        ("max_samples|data.max_samples", Later),
        ("actor_learning_rate|actor.adam.lr", Number("train.learning_rate")),
        ("critic_learning_rate|critic.adam.lr", Number("critic.learning_rate")),
        ("lr_scheduler|actor.lr_scheduler", Later),
        ("lr_warmup_ratio|actor.lr_warmup_ratio", Later),
        ("min_lr_ratio|actor.min_lr_ratio", Lost("schedules end at 0 here")),
        ("critic.lr_scheduler", Lost("the critic follows the actor's schedule")),
        ("critic.lr_warmup_ratio", Lost("the critic follows the actor's schedule")),
        ("adam_betas|actor.adam.betas", Betas),
        ("actor.adam.eps", Number("train.adam_epsilon")),
        ("l2|actor.adam.weight_decay", Number("train.weight_decay")),
        ("max_norm|actor.max_norm", Number("train.grad_clip")),
        ("eps_clip|actor.eps_clip", Clips),
        ("eps_clip_low_high|actor.eps_clip_low_high", ClipPair),
        ("dual_clip|actor.dual_clip", Number("loss.dual_clip")),
        ("value_clip|critic.value_clip", Number("critic.value_clip")),
        ("gamma|algo.advantage.gamma", Number("loss.gamma")),
        ("lambd|algo.advantage.lambd", Number("loss.lambda")),
        ("advantage_estimator|algo.advantage.estimator", Later),
        ("policy_loss_type|actor.policy_loss_type", Later),
        ("no_advantage_std_norm|algo.advantage.no_std_norm", On("loss.whiten", "no_std")),
        ("init_kl_coef|algo.kl.init_coef", Number("loss.kl_coef")),
        ("kl_target|algo.kl.target", Number("loss.kl_target")),
        ("kl_horizon|algo.kl.horizon", Number("loss.kl_horizon")),
        (
            "kl_estimator|algo.kl.estimator",
            Names("loss.kl_estimator", &[("k1", "k1"), ("k2", "k2"), ("k3", "k3")]),
        ),
        ("use_kl_loss|algo.kl.use_loss", Later),
        ("entropy_loss_coef|actor.entropy_coef", Number("loss.entropy_coef")),
        ("overlong_buffer_len|reward.overlong_buffer_len", Integer("loss.overlong_buffer")),
        (
            "overlong_penalty_factor|reward.overlong_penalty_factor|reward.overlong_buffer_penalty_factor",
            Number("loss.overlong_factor"),
        ),
        ("freezing_actor_steps|critic.freezing_steps", Every("critic.warmup_steps")),
        ("critic_pretrain|critic.model_name_or_path", Later),
        ("remote_rm_url|reward.remote_url", Later),
        ("reward_pretrain|reward.model_name_or_path", Later),
        ("reward_clip_range|reward.clip_range", Lost("rewards are not clipped here")),
        ("normalize_reward|reward.normalize_enable", Lost("rewards are not normalised here")),
        ("dynamic_filtering|algo.dynamic_filtering_enable", Later),
        ("dynamic_filtering_reward_range|algo.dynamic_filtering_range", Later),
        (
            "enable_vllm_is_correction",
            Lost("rollout and trainer share their weights and kernels: nothing to correct"),
        ),
        ("gradient_checkpointing|actor.gradient_checkpointing_enable", Recompute),
        ("adam_offload|ds.adam_offload", Offload("optimizer")),
        ("ref_reward_offload|ref.offload", Offload("reference")),
        (
            "grad_accum_dtype|ds.grad_accum_dtype",
            Names("train.grad_dtype", &[("bf16", "bf16"), ("fp32", "f32")]),
        ),
        ("bf16", On("model_options.dtype", "bf16")),
        ("param_dtype|ds.param_dtype", Names("model_options.dtype", &[("bf16", "bf16")])),
        ("seed|train.seed", Integer("seed")),
        ("save_path|ckpt.output_dir", Text("run.dir")),
        ("save_steps|ckpt.save_steps", Every("checkpoint.every")),
        ("max_ckpt_num|ckpt.max_num", Integer("checkpoint.keep")),
        ("eval_steps|eval.steps", Every("eval.every")),
        ("load_checkpoint|ckpt.load_enable", Lost("say plimsoll train --resume")),
    ],
    elsewhere: &[
        ("num_gpus", "cluster"),
        ("num_nodes", "cluster"),
        ("vllm", "engine"),
        ("colocate", "placement"),
        ("zero_stage", "sharding"),
        ("zpg", "sharding"),
        ("ring_attn", "sharding"),
        ("tensor_parallel", "sharding"),
        ("ds.enable_sleep", "placement"),
        ("deepspeed_enable_sleep", "placement"),
        ("async", "scheduling"),
        ("micro_rollout_batch_size", "planned"),
        ("rollout.micro_batch_size", "planned"),
        ("dynamic_batch", "planned"),
        ("packing_samples", "always"),
        ("flash_attn", "kernels"),
        ("attn_implementation", "kernels"),
        ("liger", "kernels"),
        ("wandb", "logging"),
        ("tensorboard", "logging"),
        ("logging_steps", "logging"),
        ("logger.", "logging"),
    ],
    defaults: &[
        ("advantage_estimator", "gae"),
        ("input_key", "input"),
        ("rollout_batch_size", "1024"),
        ("n_samples_per_prompt", "1"),
        ("train_batch_size", "128"),
        ("actor_learning_rate", "1e-6"),
        ("critic_learning_rate", "9e-6"),
        ("lr_scheduler", "cosine_with_min_lr"),
        ("lr_warmup_ratio", "0.03"),
        ("value_clip", "0.5"),
        ("init_kl_coef", "0.01"),
        ("kl_estimator", "k1"),
        ("num_episodes", "1"),
        ("max_len", "2048"),
    ],
    combine,
};

fn settings(text: &str) -> Vec<super::draft::Given> {
    let is_trainer = |word: &read::Word| {
        word.text.contains("openrlhf.cli.train_ppo_ray") || word.text.ends_with("train_ppo_ray.py")
    };
    for words in read::commands(text) {
        if let Some(at) = words.iter().position(is_trainer) {
            return read::flags(&words[at + 1..]);
        }
    }
    Vec::new()
}

fn combine(draft: &mut Draft) -> Result<()> {
    method(draft)?;
    let where_from = if draft.is_on("use_kl_loss") { "loss" } else { "reward" };
    draft.set_text("loss.kl_in", where_from, "use_kl_loss");
    super::draft::model(draft, "pretrain");
    if let Some(critic) = draft.take("critic_pretrain") {
        let model = super::draft::model_source(&critic.value);
        draft.set_text("critic.model", &model, &critic.from);
    }
    super::draft::data(draft, "prompt_data", "eval_dataset");
    if !draft.is_on("apply_chat_template") {
        draft.set_text("data.chat_template", "none", "apply_chat_template is off");
    }
    filter(draft);
    lengths(draft);
    let samples = draft.take_count("max_samples");
    let episodes = draft.take_count("num_episodes");
    match (samples, episodes, draft.count("rollout.prompts_per_step")) {
        (Some((samples, _)), Some((episodes, _)), Some(prompts)) if prompts > 0 => {
            let steps = (samples.saturating_mul(episodes) / prompts).max(1);
            draft.set_toml(
                "train.steps",
                steps.to_string(),
                "max_samples x num_episodes / rollout_batch_size",
            );
        }
        (samples, episodes, _) => {
            super::draft::unknown_steps(draft);
            for (_, taken) in [samples, episodes].into_iter().flatten() {
                draft.leave(&taken, "steps follow from the size of the data, which the file does not say");
            }
        }
    }
    super::draft::schedule(draft, "lr_scheduler", "lr_warmup_ratio");
    rewards(draft);
    Ok(())
}

fn method(draft: &mut Draft) -> Result<()> {
    let Some(taken) = draft.take("advantage_estimator") else { return Ok(()) };
    let mut method = match taken.value.as_str() {
        "gae" => "ppo",
        "group_norm" | "grpo" => "grpo",
        name @ ("reinforce" | "reinforce_baseline" | "rloo" | "dr_grpo") => name,
        _ => return Err(Draft::no_method(&taken)),
    };
    if let Some(loss) = draft.take("policy_loss_type") {
        match (loss.value.as_str(), method) {
            ("ppo", _) => {}
            ("gspo", "grpo") => method = "gspo",
            _ => draft.leave(&loss, "no method here joins this loss and this advantage"),
        }
    }
    draft.set_text("method", method, &taken.from);
    if method == "dr_grpo" {
        draft.set_text("loss.aggregation", "token_mean", "as there, whatever the estimator");
    }
    if method == "reinforce" {
        draft.change(&taken, "the loss there clips the ratio, the one of `reinforce` here does not");
    }
    Ok(())
}

/// Dynamic sampling: groups whose mean score lies strictly between two numbers.
fn filter(draft: &mut Draft) {
    let (enable, range) = (draft.take("dynamic_filtering"), draft.take("dynamic_filtering_reward_range"));
    match (draft.is_on("dynamic_filtering"), enable, range) {
        (true, Some(enable), range) => {
            let bounds = range.as_ref().map(|taken| super::read::list(&taken.value));
            let numbers: Option<Vec<f64>> =
                bounds.map(|bounds| bounds.iter().filter_map(|bound| bound.parse().ok()).collect());
            match (numbers.as_deref(), range) {
                (Some([low, high]), Some(taken)) => {
                    draft.set_toml("loss.dynamic_sampling", format!("[{low:?}, {high:?}]"), &taken.from);
                }
                (Some(_), Some(taken)) => draft.leave(&taken, "not two numbers"),
                // Its default range.
                _ => draft.set_toml("loss.dynamic_sampling", "[0.0, 1.0]", &enable.from),
            }
            draft.change(&enable, "the rounds of further prompts are bounded here");
        }
        (false, _, Some(range)) => draft.leave(&range, "switched off there"),
        _ => {}
    }
}

/// Longest response and micro-batch, which depend on each other's limits.
fn lengths(draft: &mut Draft) {
    let whole = draft.take_count("max_len");
    let prompt = draft.count("data.prompt_tokens_max");
    match (draft.take_count("generate_max_len"), &whole) {
        (Some((tokens, taken)), whole) => {
            draft.set_toml("rollout.max_new_tokens", tokens.to_string(), &taken.from);
            if let Some((_, whole)) = whole {
                draft.leave(whole, "prompt and response have a limit each here");
            }
        }
        (None, Some((tokens, taken))) => {
            let rest = tokens - prompt.unwrap_or(0).min(tokens - 1);
            draft.set_toml("rollout.max_new_tokens", rest.to_string(), &taken.from);
            draft.change(taken, "prompt and response together there; the response here");
        }
        (None, None) => {}
    }
    super::draft::micro_batch(draft, "micro_train_batch_size");
}

fn rewards(draft: &mut Draft) {
    if let Some(taken) = draft.take("remote_rm_url") {
        let urls = read::list(&taken.value);
        if urls.len() > 1 {
            draft.change(&taken, "the first of several");
        }
        let first = urls.into_iter().next().unwrap_or_default();
        let (kind, is_python) = match first.ends_with(".py") {
            true => (format!("python:{first}:reward_func"), true),
            false => (first, false),
        };
        let mut reward = vec![("kind", quoted(&kind))];
        if is_python {
            reward.push(("signature", quoted("openrlhf")));
        }
        draft.add_reward(&taken.from, reward);
    }
    super::draft::reward_model(draft, "reward_pretrain");
    super::draft::no_reward(draft);
}
