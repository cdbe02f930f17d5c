//! Options of TRL's GRPO and RLOO: of `GRPOConfig`, its script, and `accelerate launch`.

use crate::table::Memory::{Idle, Used};
use crate::table::Table;
use crate::table::Take::*;

pub(super) static TABLE: Table = Table {
    rows: &[
        ("trainer", Idle, Later),
        ("model_name_or_path|model", Used, Later),
        ("model_revision", Idle, Text("model_options.revision")),
        ("dtype|torch_dtype|model_init_kwargs.dtype|model_init_kwargs.torch_dtype", Used, Names("model_options.dtype", &[("bfloat16", "bf16"), ("float32", "f32")])),
        ("bf16", Used, Later),
        ("dataset_name|dataset_path|train_dataset", Idle, Later),
        ("eval_dataset", Idle, Later),
        ("max_prompt_length", Used, Integer("data.prompt_tokens_max")),
        ("shuffle_dataset", Idle, Later),
        ("max_completion_length", Used, Integer("rollout.max_new_tokens")),
        ("num_generations", Used, Integer("rollout.group_size")),
        ("temperature", Idle, Number("rollout.temperature")),
        ("top_p", Idle, Number("rollout.top_p")),
        ("top_k", Idle, TopK),
        ("min_p", Idle, Number("rollout.min_p")),
        ("per_device_train_batch_size", Used, Later),
        ("gradient_accumulation_steps", Used, Later),
        ("steps_per_generation", Used, Later),
        ("generation_batch_size", Used, Later),
        ("num_processes", Used, Later),
        ("num_iterations", Idle, Integer("train.epochs_per_rollout")),
        ("max_steps", Idle, Later),
        ("num_train_epochs", Idle, Later),
        ("learning_rate", Idle, Number("train.learning_rate")),
        ("lr_scheduler_type", Idle, Later),
        ("warmup_ratio", Idle, Later),
        ("warmup_steps", Idle, Later),
        ("adam_beta1", Idle, Later),
        ("adam_beta2", Idle, Later),
        ("adam_epsilon", Idle, Number("train.adam_epsilon")),
        ("weight_decay", Idle, Number("train.weight_decay")),
        ("max_grad_norm", Idle, Number("train.grad_clip")),
        ("gradient_checkpointing", Used, Recompute),
        ("epsilon", Idle, Clips),
        ("epsilon_high", Idle, Number("loss.clip_high")),
        // A bound on the ratio from above: with a negative advantage a dual clip, with a positive one never reached.
        ("delta", Idle, Number("loss.dual_clip")),
        ("beta", Used, Number("loss.kl_coef")),
        ("loss_type", Idle, Later),
        ("scale_rewards", Idle, Later),
        ("importance_sampling_level", Idle, Later),
        ("mask_truncated_completions", Idle, Later),
        ("vllm_importance_sampling_correction", Idle, Lost("rollout and trainer share their weights and kernels: nothing to correct")),
        ("reward_funcs", Idle, Later),
        ("reward_weights", Idle, Later),
        ("reward_model_name_or_path", Idle, Later),
        ("seed", Idle, Integer("seed")),
        ("output_dir", Idle, Text("run.dir")),
        ("save_steps", Idle, Later),
        ("save_total_limit", Idle, Integer("checkpoint.keep")),
        ("eval_steps", Idle, Later),
        ("config", Idle, Lost("a file of its own: import it")),
        ("resume_from_checkpoint", Idle, Lost("say plimsoll train --resume")),
        ("use_peft", Used, Lost("every weight is trained here")),
    ],
    used: "
        num_machines accelerate_config deepspeed fsdp use_vllm vllm_mode vllm_gpu_memory_utilization
        vllm_tensor_parallel_size vllm_enable_sleep_mode use_liger_kernel|use_liger_loss optim vllm_max_model_length
    ",
    idle: "
        adam_* args attn_implementation bf16_full_eval callbacks cast_lm_head_to_fp32 chat_template* dataloader*
        dataset* ddp_* disable_dropout do_eval do_train ds3_* entropy_* epsilon* eval_*
        gradient_checkpointing_kwargs* hub_* lm_* log_* logging* lora_* lr_scheduler* machine_rank main_process*
        max_tool_calling_iterations mixed_precision multi_objective_aggregation num_completions_to_print
        num_generations_eval off_policy_* overwrite_output_dir pad_to_multiple_of processing_class push_to_hub
        ref_model_* remove_unused_columns repetition_penalty report_to reward_* run_name sapo_* save_*
        sync_ref_model tf32 top_* trust_remote_code use_adaptive_entropy use_bias_correction_kl vespo_*
        vllm_group_port vllm_importance_* vllm_model_impl vllm_server_* vllm_structured_* warmup_*
    ",
    elsewhere: &[
        ("engine", "vllm"),
        ("sharding", "deepspeed fsdp ds3_"),
        ("cluster", "accelerate_config num_machines machine_rank main_process ddp_"),
        ("loading", "dataloader"),
        ("kernels", "attn_implementation liger torch_compile"),
        ("logging", "report_to logging log_completions run_name"),
        ("publishing", "push_to_hub hub_"),
        ("adapters", "lora_"),
    ],
};
