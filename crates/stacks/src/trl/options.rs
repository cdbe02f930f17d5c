//! Options of TRL's trainers: of `GRPOConfig` and its kin, their scripts, and `accelerate launch`.

use crate::table::Memory::{Idle, Used};
use crate::table::Take::*;
use crate::table::{Table, why};
use crate::unbuilt::Unbuilt::{Adapters, Objective, Quantisation, Turns};

pub(super) static TABLE: Table = Table {
    rows: &[
        ("trainer", Idle, Later),
        ("model_name_or_path|model", Used, Later),
        ("model_revision", Idle, Text("model_options.revision")),
        ("dtype|torch_dtype|model_init_kwargs.dtype|model_init_kwargs.torch_dtype", Used, Names("model_options.dtype", &[("bfloat16", "bf16"), ("float32", "f32")])),
        ("bf16", Used, Later),
        ("mixed_precision", Idle, Lost("weights are stored in bf16 or f32 here: model_options.dtype")),
        ("fp16", Idle, Lost("weights are stored in bf16 or f32 here: model_options.dtype")),
        ("dataset_name|dataset_path|train_dataset", Idle, Later),
        ("eval_dataset", Idle, Later),
        ("dataset_config", Idle, Lost("data is a file here: export this configuration of the data set")),
        ("dataset_train_split", Idle, Lost("data is a file here: export this part of the data set")),
        ("dataset_test_split", Idle, Lost("data is a file here: export this part of the data set")),
        ("dataset_text_field", Idle, Later),
        ("max_length|max_seq_length", Idle, Later),
        ("packing", Idle, Lost(why::PACKED)),
        ("assistant_only_loss", Idle, Later),
        ("completion_only_loss", Idle, Later),
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
        ("num_processes|nproc_per_node", Used, Later),
        ("num_iterations", Idle, Integer("train.epochs_per_rollout")),
        ("max_steps", Idle, Later),
        ("num_train_epochs", Idle, Later),
        ("learning_rate", Idle, Number("train.learning_rate")),
        ("lr_scheduler_type", Idle, Later),
        ("warmup_ratio", Idle, Later),
        ("warmup_steps", Idle, Later),
        ("adam_beta1", Idle, Later),
        ("adam_beta2", Idle, Later),
        ("optim", Used, Later),
        ("adam_epsilon", Idle, Number("train.adam_epsilon")),
        ("weight_decay", Idle, Number("train.weight_decay")),
        ("max_grad_norm", Idle, Number("train.grad_clip")),
        ("gradient_checkpointing", Used, Recompute),
        ("epsilon", Idle, Clips),
        ("epsilon_high", Idle, Number("loss.clip_high")),
        // A bound on the ratio from above: with a negative advantage a dual clip, with a positive one never reached.
        ("delta", Idle, Number("loss.dual_clip")),
        ("beta", Used, Number("loss.kl_coef")),
        ("entropy_coef", Idle, Number("loss.entropy_coef")),
        ("use_bias_correction_kl", Idle, Later),
        ("use_adaptive_entropy", Idle, NotBuilt(Objective)),
        ("off_policy_mask_threshold", Idle, NotBuilt(Objective)),
        ("top_entropy_quantile", Idle, Later),
        ("repetition_penalty", Idle, Later),
        ("sync_ref_model", Idle, NotBuilt(Objective)),
        ("ref_model|ref_model_name_or_path", Idle, Later),
        ("label_smoothing", Idle, Number("loss.label_smoothing")),
        ("label_smoothing_factor", Idle, NotBuilt(Objective)),
        ("neftune_noise_alpha", Idle, NotBuilt(Objective)),
        ("rpo_alpha", Idle, NotBuilt(Objective)),
        ("ld_alpha", Idle, NotBuilt(Objective)),
        ("loss_weights", Idle, NotBuilt(Objective)),
        ("use_weighting", Idle, NotBuilt(Objective)),
        ("f_divergence_type", Idle, Later),
        ("reference_free", Idle, NotBuilt(Objective)),
        ("center_rewards_coefficient", Idle, NotBuilt(Objective)),
        ("precompute_ref_log_probs", Idle, Lost("the reference scores each step's pairs here; memory.offload = [\"reference\"] makes it small")),
        ("loss_type", Idle, Later),
        ("scale_rewards", Idle, Later),
        ("importance_sampling_level", Idle, Later),
        ("mask_truncated_completions", Idle, Later),
        ("vllm_importance_sampling_correction", Idle, Lost("rollout and trainer share their weights and kernels: there is nothing to correct")),
        ("reward_funcs", Idle, Later),
        ("reward_weights", Idle, Later),
        ("reward_model_name_or_path", Idle, Later),
        ("seed", Idle, Integer("seed")),
        ("output_dir", Idle, Text("run.dir")),
        ("save_steps", Idle, Later),
        ("save_total_limit", Idle, Integer("checkpoint.keep")),
        ("eval_steps", Idle, Later),
        ("config", Idle, Lost("it is a file of its own: import that")),
        ("resume_from_checkpoint", Idle, Lost(why::RESUME)),
        ("processing_class|tokenizer", Idle, Lost(why::TOKENIZER)),
        ("chat_template_path", Idle, Lost("write it as data.chat_template, a Jinja template")),
        ("use_peft", Used, NotBuilt(Adapters)),
        ("peft_config", Used, NotBuilt(Adapters)),
        ("load_in_4bit", Used, NotBuilt(Quantisation)),
        ("load_in_8bit", Used, NotBuilt(Quantisation)),
        ("tools", Idle, NotBuilt(Turns)),
        ("environment_factory", Idle, NotBuilt(Turns)),
    ],
    used: "
        num_machines accelerate_config deepspeed fsdp use_vllm vllm_mode vllm_gpu_memory_utilization
        vllm_tensor_parallel_size vllm_enable_sleep_mode use_liger_kernel|use_liger_loss vllm_max_model_length
    ",
    idle: "
        activation_offloading adam_* args attn_implementation average_tokens_across_devices bf16_full_eval bnb_4bit_*
        callbacks cast_lm_head_to_fp32 chat_template* data_collator dataloader* dataset* ddp_* device_map
        disable_dropout do_eval do_train ds3_* entropy_* eos_token epsilon* eval_* f_alpha_divergence_coef
        formatting_func full_determinism gradient_checkpointing_kwargs* hub_* ignore_bias_buffers lm_* log_*
        logging* lora_* low_cpu_mem_usage lr_scheduler* machine_rank main_process* max_tool_calling_iterations
        multi_gpu multi_objective_aggregation num_completions_to_print num_generations_eval
        off_policy_* overwrite_output_dir packing_strategy pad_to_multiple_of pad_token padding_free
        precompute_ref_batch_size push_to_hub ref_model_* remove_unused_columns report_to reward_* run_name sapo_*
        save_* tf32 top_* torch_* trackio_* truncation_mode trust_remote_code use_bnb_nested_quant use_cache
        use_dora use_rslora vespo_* vllm_group_port vllm_importance_* vllm_model_impl vllm_server_*
        vllm_structured_* warmup_*
    ",
    elsewhere: &[
        (why::ENGINE, "vllm"),
        (why::SHARDING, "deepspeed fsdp ds3_"),
        (why::CLUSTER, "accelerate_config num_machines machine_rank main_process ddp_ multi_gpu"),
        (why::LOADING, "dataloader dataset_num_proc"),
        (why::KERNELS, "attn_implementation liger torch_compile tf32"),
        (why::LOGGING, "report_to logging log_ run_name num_completions_to_print trackio"),
        (why::PUBLISHING, "push_to_hub hub_"),
        (why::ADAPTER, "lora_ use_rslora use_dora"),
        (why::QUANTISED, "bnb_"),
        (why::PACKED, "packing padding_free pad_to_multiple_of"),
        (why::TOKENIZER, "eos_token pad_token"),
    ],
};
