//! Options of an Open-Reasoner-Zero configuration class.

use crate::table::Memory::{Idle, Used};
use crate::table::Take::*;
use crate::table::{Table, why};
use crate::unbuilt::Unbuilt::Objective;

pub(super) static TABLE: Table = Table {
    stack: "orz",
    rows: &[
        ("use_grpo", Used, Later),
        ("pretrain", Used, Later),
        ("critic_pretrain", Used, Later),
        ("reward_pretrain", Idle, Lost("a reward model: name a verifier or a function as [[reward]]")),
        ("prompt_max_len", Used, Integer("data.prompt_tokens_max")),
        ("generate_max_len", Used, Integer("rollout.max_new_tokens")),
        ("max_len", Used, Lost("prompt and response have a limit each here")),
        ("packing_max_len", Used, Integer("train.micro_batch_tokens")),
        ("rollout_batch_size", Idle, Integer("rollout.prompts_per_step")),
        ("n_samples_per_prompt", Idle, Integer("rollout.group_size")),
        ("temperature", Idle, Number("rollout.temperature")),
        ("top_p", Idle, Number("rollout.top_p")),
        ("top_k", Idle, TopK),
        ("critic_update_steps", Idle, Integer("critic.updates_per_rollout")),
        ("max_epochs", Idle, Integer("train.epochs_per_rollout")),
        ("actor_learning_rate", Idle, Number("train.learning_rate")),
        ("critic_learning_rate", Idle, Number("critic.learning_rate")),
        ("adam_betas", Idle, Betas),
        ("l2", Idle, Number("train.weight_decay")),
        ("max_norm", Idle, Number("train.grad_clip")),
        ("eps_clip", Idle, Clips),
        ("value_clip", Idle, Number("critic.value_clip")),
        ("gamma", Idle, Number("loss.gamma")),
        ("lambd", Idle, Number("loss.lambda")),
        ("use_kl_loss", Used, Later),
        ("kl_loss_coef", Used, Later),
        ("init_kl_coef", Used, Later),
        ("kl_target", Idle, Lost("the coefficient is fixed there, whatever the target")),
        ("kl_max_coef", Idle, Lost("the coefficient is fixed there")),
        ("use_abs_kl", Idle, NotBuilt(Objective)),
        ("actor_loss_coef", Idle, Lost("Adam's steps do not grow with a factor of the whole loss")),
        ("freezing_actor_steps", Idle, Every("critic.warmup_steps")),
        ("update_ref_every_epoch", Idle, Lost("the reference keeps the weights that the run began with")),
        ("gradient_checkpointing", Used, Recompute),
        ("adam_offload", Used, Offload("optimizer")),
        ("grad_accum_dtype", Used, Names("train.grad_dtype", &[("bf16", "bf16"), ("fp32", "f32")])),
        ("bf16", Idle, On("model_options.dtype", "bf16")),
        ("enforce_eager", Idle, Lost(why::EAGER)),
        ("packing_samples", Idle, Lost(why::PACKED)),
        ("seed", Idle, Integer("seed")),
        ("save_path", Idle, Text("run.dir")),
        ("save_interval", Used, Every("checkpoint.every")),
        ("eval_interval", Idle, Every("eval.every")),
    ],
    alike: &[
        (
            Later,
            "
                trainer prompt_data prompt_data_probs eval_prompt_data stop policy_update_steps num_episodes
                num_warmup_steps advantage_normalize use_kl_estimator_k3
            ",
        ),
    ],
    used: "
        total_num_nodes ref_num_nodes ref_num_gpus_per_node actor_num_nodes actor_num_gpus_per_node critic_num_nodes
        critic_num_gpus_per_node colocate_all colocate_actor_ref colocate_critic_reward vllm_num_engines
        vllm_tensor_parallel_size gpu_memory_utilization zero_stage micro_train_batch_size micro_forward_batch_size
        ref_reward_offload
    ",
    idle: "
        ckpt* disable_fast_tokenizer enable_chunked_prefill enable_eval enable_prefix_caching
        eval_* exp_name flash_attn max_num_batched_tokens
        micro_rollout_batch_size n_policy_evaluator_samples name normalize_reward
        remote_rm_url reward_* skip_eos_token tensorboard_log_dir total_steps train_batch_size
        use_compute_reward_fn use_orm_score vllm_sync_backend zpg
    ",
    elsewhere: &[
        (why::CLUSTER, "num_nodes num_gpus total_num"),
        (why::ENGINE, "vllm gpu_memory_utilization enable_prefix_caching"),
        (why::PLACEMENT, "colocate"),
        (why::SHARDING, "zero_stage zpg"),
        (why::PLANNED, "micro_"),
        (why::LOGGING, "tensorboard"),
        (why::CHECKPOINTS, "ckpt_path"),
        (why::KERNELS, "flash_attn"),
    ],
    secrets: "",
};
