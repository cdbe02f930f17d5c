//! Options of TRL's trainers: `GRPOConfig` and the like, their scripts, and `accelerate launch`.

use crate::setting::OF_TEXT;
use crate::table::Memory::{Idle, Used};
use crate::table::Take::*;
use crate::table::{Table, why};
use crate::unbuilt::Unbuilt::{Adapters, Objective, Optimizer, Positions, Quantisation, Trainer};

/// The setting that says that code of the file makes conversations of its rows.
pub(super) const CONVERSATIONS: &str = "rows_as_conversations";

pub(super) static TABLE: Table = Table {
    stack: "trl",
    rows: &[
        (OF_TEXT, Idle, Later),
        (CONVERSATIONS, Idle, Later),
        ("model_name_or_path|model", Used, Later),
        ("model_revision", Idle, Text("model_options.revision")),
        ("dtype|torch_dtype|model_init_kwargs.dtype|model_init_kwargs.torch_dtype", Used, Names("model_options.dtype", &[("bfloat16", "bf16"), ("float32", "f32")])),
        ("bf16", Used, Later),
        ("mixed_precision", Idle, Lost("weights are stored in bf16 or f32 here: model_options.dtype")),
        ("fp16", Idle, Lost("weights are stored in bf16 or f32 here: model_options.dtype")),
        // Of open-r1's scripts, which make a conversation of the column and the system prompt.
        ("dataset_prompt_column", Idle, Text("data.prompt_column")),
        ("system_prompt", Idle, Text("data.system_prompt")),
        ("chat_template", Idle, Text("data.chat_template")),
        ("packing", Idle, Lost(why::PACKED)),
        ("max_prompt_length", Used, Integer("data.prompt_tokens_max")),
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
        ("learning_rate", Idle, Number("train.learning_rate")),
        ("optim", Used, Later),
        ("adam_epsilon", Idle, Number("train.adam_epsilon")),
        ("weight_decay", Idle, Number("train.weight_decay")),
        ("max_grad_norm", Idle, Number("train.grad_clip")),
        ("gradient_checkpointing", Used, Recompute),
        ("epsilon", Idle, Clips),
        ("epsilon_high", Idle, Number("loss.clip_high")),
        // An upper bound on the ratio: a dual clip for a negative advantage, never reached for a positive one.
        ("delta", Idle, Number("loss.dual_clip")),
        ("beta", Used, Number("loss.kl_coef")),
        ("entropy_coef", Idle, Number("loss.entropy_coef")),
        ("label_smoothing", Idle, Lost("TRL applies it with loss_type robust and exo_pair alone; loss.label_smoothing smooths the sigmoid loss, as older TRL did")),
        ("precompute_ref_log_probs", Idle, Lost("the reference scores each step's pairs here; memory.offload = [\"reference\"] makes it small")),
        ("loss_type", Idle, Later),
        ("desirable_weight", Idle, Later),
        ("undesirable_weight", Idle, Later),
        ("use_liger_kernel|use_liger_loss", Used, Lost(why::KERNELS)),
        ("router_aux_loss_coef", Idle, Lost("it is `loss.balance_coef` here, which a model with experts takes")),
        ("seed", Idle, Integer("seed")),
        ("output_dir", Idle, Text("run.dir")),
        ("save_total_limit", Idle, Integer("checkpoint.keep")),
        ("config", Idle, Lost("it is a file of its own: import that")),
        ("resume_from_checkpoint", Idle, Lost(why::RESUME)),
        ("processing_class|tokenizer", Idle, Lost(why::TOKENIZER)),
        ("chat_template_kwargs", Idle, Variables),
        ("chat_template_kwargs.enable_thinking", Idle, Variable("enable_thinking")),
        ("chat_template_path", Idle, Lost("write it as data.chat_template, a Jinja template")),
        ("use_peft", Used, Adapter),
        ("peft_config", Used, NotBuilt(Adapters)),
        ("peft_config.peft_type", Used, Adapter),
        ("peft_config.random_state", Idle, Lost("the adapter's first values follow from `seed` here")),
        ("peft_config.finetune_vision_layers", Idle, Later),
        ("peft_config.finetune_language_layers", Idle, Lost("the layers of text are those that are trained here")),
        ("peft_config.max_seq_length", Idle, Lost("an adapter has no length")),
        ("rope_scaling", Idle, NotBuilt(Positions)),
        ("vllm_sampling_params", Idle, Lost("of these unsloth takes only lists, such as `stop`, into its sampling: temperature, top_p, top_k and min_p are those of the configuration")),
        ("lora_task_type|peft_config.task_type", Idle, Lost("the method says it here")),
        ("peft_config.init_lora_weights", Idle, Lost("A is random and B is 0 at the start here, as by default in peft")),
        ("peft_config.inference_mode", Idle, Lost("a run trains the adapter")),
        ("load_in_4bit", Used, Adapter),
        ("quantization_config", Idle, Lost("experts in MXFP4 are widened exactly as they are read here, and lora.quantize stores frozen weights in 4 bits")),
        ("lr_scheduler_kwargs", Idle, Lost("a schedule ends at 0 here")),
        ("chat_template_kwargs.reasoning_effort", Idle, Variable("reasoning_effort")),
        ("load_in_8bit", Used, NotBuilt(Quantisation)),
        ("images", Idle, Later),
        ("trainer_class", Idle, NotBuilt(Trainer)),
        ("trackio_space_id", Idle, Lost("Trackio's client takes it from TRACKIO_SPACE_ID")),
        ("push_to_hub", Idle, Lost(why::PUBLISHING)),
        ("hub_private_repo", Idle, Lost("`plimsoll checkpoint push` makes a private repository, unless --public is given")),
        ("hub_token", Idle, Lost("a key is not carried over: HF_TOKEN holds it, or `hf auth login` stores it")),
    ],
    alike: &[
        (
            Later,
            "
                trainer dataset_name|dataset_path|train_dataset eval_dataset dataset_config dataset_train_split
                dataset_test_split eval_strategy|evaluation_strategy dataset_text_field max_length|max_seq_length
                assistant_only_loss completion_only_loss shuffle_dataset max_steps num_train_epochs lr_scheduler_type
                warmup_ratio warmup_steps adam_beta1 adam_beta2 use_bias_correction_kl top_entropy_quantile
                repetition_penalty ref_model|ref_model_name_or_path f_divergence_type sapo_temperature_pos
                sapo_temperature_neg cpo_alpha simpo_gamma alpha vespo_k_pos vespo_lambda_pos vespo_k_neg
                vespo_lambda_neg scale_rewards importance_sampling_level mask_truncated_completions
                multi_objective_aggregation reward_funcs reward_weights reward_model_name_or_path save_steps eval_steps
                max_tool_calling_iterations report_to run_name|wandb.init.name project|wandb.init.project hub_model_id
            ",
        ),
        (
            Adapter,
            "
                peft_config.unsloth peft_config.adapter_path lora_r|peft_config.r lora_alpha|peft_config.lora_alpha
                lora_dropout|peft_config.lora_dropout lora_target_modules|peft_config.target_modules
                lora_target_parameters|peft_config.target_parameters use_rslora|peft_config.use_rslora peft_config.bias
            ",
        ),
        (Environment, "tools environment_factory"),
        (NotBuilt(Optimizer), "optimizers optimizer_cls_and_kwargs"),
        (
            NotBuilt(Objective),
            "
                use_adaptive_entropy off_policy_mask_threshold sync_ref_model label_smoothing_factor neftune_noise_alpha
                rpo_alpha ld_alpha loss_weights use_weighting reference_free center_rewards_coefficient
                normalize_advantages reward_clip_range
            ",
        ),
        (
            NotBuilt(Adapters),
            "
                peft_config.layers_to_transform peft_config.finetune_last_n_layers peft_config.loftq_config
                use_dora|peft_config.use_dora lora_modules_to_save|peft_config.modules_to_save
            ",
        ),
        (NotBuilt(Quantisation), "qat_scheme peft_config.qat_scheme load_in_fp8"),
        (
            Lost(why::SAME),
            "
                vllm_importance_sampling_correction vllm_importance_sampling_mode
                vllm_importance_sampling_cap|vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min
            ",
        ),
        (Lost(why::ENGINE), "max_lora_rank fast_inference gpu_memory_utilization unsloth_vllm_standby float8_kv_cache"),
        (Lost(why::PLANNED), "unsloth_num_chunks unsloth_grpo_mini_batch unsloth_tiled_mlp offload_embedding"),
    ],
    used: "
        num_machines accelerate_config deepspeed fsdp use_vllm vllm_mode vllm_gpu_memory_utilization
        vllm_tensor_parallel_size vllm_enable_sleep_mode vllm_max_model_length
    ",
    idle: "
        activation_offloading adam_* args attn_implementation average_tokens_across_devices bf16_full_eval bnb_4bit_*
        callbacks cast_lm_head_to_fp32 chat_template* data_collator dataloader* dataset* train_dataset.* eval_dataset.* ddp_* device_map
        disable_dropout do_eval do_train ds3_* entropy_* eos_token epsilon* eval_* f_alpha_divergence_coef
        formatting_func full_determinism gradient_checkpointing_kwargs* hub_* ignore_bias_buffers lm_* log_*
        logging* lora_* low_cpu_mem_usage lr_scheduler* machine_rank main_process*
        multi_gpu num_completions_to_print num_generations_eval
        off_policy_* overwrite_output_dir packing_strategy pad_to_multiple_of pad_token padding_free peft_config.*
        precompute_ref_batch_size ref_model_* remove_unused_columns reward_*
        save_* tf32 top_* torch_* trackio_* truncation_mode trust_remote_code use_bnb_nested_quant use_cache
        wandb.init.* vllm_group_port vllm_importance_* vllm_model_impl vllm_server_*
        vllm_structured_* warmup_*
    ",
    elsewhere: &[
        (why::ENGINE, "vllm"),
        (why::SHARDING, "deepspeed fsdp ds3_"),
        (why::CLUSTER, "config_file accelerate_config num_machines machine_rank main_process ddp_ multi_gpu"),
        (why::LOADING, "dataloader dataset_num_proc remove_unused_columns"),
        (why::FILES, "trust_remote_code device_map low_cpu_mem_usage use_cache"),
        (why::PLANNED, "gradient_checkpointing_kwargs activation_offloading per_device_eval_batch_size"),
        (why::CHECKPOINTS, "overwrite_output_dir"),
        (why::KERNELS, "attn_implementation liger torch_compile tf32"),
        (why::LOGGING, "logging log_ num_completions_to_print trackio wandb.init"),
        (why::PUBLISHING, "hub_"),
        (why::ADAPTER, "lora_ peft_config."),
        (why::QUANTISED, "bnb_"),
        (why::PACKED, "packing padding_free pad_to_multiple_of"),
        (why::TOKENIZER, "eos_token pad_token"),
    ],
    secrets: "hub_token",
};
