//! Options of `swift sft` and `swift rlhf`. The first name of a row is TRL's where its conversion is.

use crate::subject::Subject;
use crate::table::Memory::Idle;
use crate::table::Take::*;
use crate::table::{Table, why};
use crate::unbuilt::Unbuilt::{Adapters, Frozen, Objective, Optimizer, Positions, Trainer, Unknown};

const OF_TURNS: crate::unbuilt::Unbuilt = Unknown(Subject::Turns);

pub(super) static TABLE: Table = Table {
    stack: "swift",
    rows: &[
        ("rlhf_type", Idle, Lost("it is the trainer of the command")),
        ("model_revision", Idle, Text("model_options.revision")),
        ("model_type", Idle, Lost(why::FILES)),
        ("dtype|torch_dtype", Idle, Names("model_options.dtype", &[("bfloat16", "bf16"), ("float32", "f32")])),
        ("fp16", Idle, Lost("weights are stored in bf16 or f32 here: model_options.dtype")),
        ("interleave_prob", Idle, Lost("set a `weight` for each file of data.prompts")),
        ("columns", Idle, Lost("rename the columns in the data, or name them: data.prompt_column, data.answer_column")),
        ("train_dataloader_shuffle", Idle, Lost("data.shuffle is one switch here")),
        ("template", Idle, Lost("a template of ms-swift's by name: unless the model's own is it, write it as data.chat_template, a Jinja template")),
        ("enable_thinking", Idle, Variable("enable_thinking")),
        ("response_prefix", Idle, Lost("write it at the end of a template: data.chat_template")),
        ("agent_template", Idle, Lost("tools of rows are written by the model's own template")),
        ("packing", Idle, Later),
        ("max_epochs", Idle, Lost("num_train_epochs counts the passes")),
        ("learning_rate", Idle, Number("train.learning_rate")),
        ("lr_scheduler_kwargs", Idle, Lost("schedules have no such numbers here")),
        ("adam_epsilon", Idle, Number("train.adam_epsilon")),
        ("weight_decay", Idle, Number("train.weight_decay")),
        ("max_grad_norm", Idle, Number("train.grad_clip")),
        ("gradient_checkpointing", Idle, Recompute),
        ("freeze_vit", Idle, Later),
        ("freeze_aligner", Idle, Later),
        ("rope_scaling", Idle, NotBuilt(Positions)),
        ("max_pixels", Idle, Later),
        ("beta", Idle, Number("loss.kl_coef")),
        ("loss_type", Idle, Later),
        ("desirable_weight", Idle, Later),
        ("undesirable_weight", Idle, Later),
        ("max_completion_length|max_new_tokens|response_length", Idle, Integer("rollout.max_new_tokens")),
        ("num_generations", Idle, Integer("rollout.group_size")),
        ("num_iterations", Idle, Integer("train.epochs_per_rollout")),
        ("temperature", Idle, Number("rollout.temperature")),
        ("top_p", Idle, Number("rollout.top_p")),
        ("top_k", Idle, TopK),
        ("min_p", Idle, Number("rollout.min_p")),
        ("epsilon", Idle, Clips),
        ("epsilon_high", Idle, Number("loss.clip_high")),
        ("delta", Idle, Number("loss.dual_clip")),
        ("reward_model_plugin", Idle, NotBuilt(Unknown(Subject::Judge))),
        ("completion_length_limit_scope", Idle, Lost("an episode has one response, whose length is rollout.max_new_tokens")),
        ("async_generate", Idle, Lost(why::IN_TURN)),
        ("tuner_backend", Idle, Lost(why::ADAPTER)),
        ("lora_dtype", Idle, Lost("gradients and states of adapters are f32")),
        ("callbacks", Idle, NotBuilt(Trainer)),
        ("seed", Idle, Integer("seed")),
        ("data_seed", Idle, Lost("the seed of the run is that of its data too: seed")),
        ("output_dir", Idle, Text("run.dir")),
        ("save_total_limit", Idle, Integer("checkpoint.keep")),
        ("push_to_hub", Idle, Lost(why::PUBLISHING)),
        ("hub_token", Idle, Lost("a key is not carried over: HF_TOKEN holds it, or `hf auth login` stores it")),
        ("merge_lora", Idle, Lost("afterwards: plimsoll checkpoint export --merge")),
    ],
    alike: &[
        (
            Later,
            "
                trainer model_name_or_path|model bf16 task_type dataset_name|dataset eval_dataset|val_dataset
                split_dataset_ratio shuffle_dataset|dataset_shuffle system use_chat_template loss_scale max_length
                truncation_strategy per_device_train_batch_size gradient_accumulation_steps steps_per_generation
                generation_batch_size num_processes|nproc_per_node num_train_epochs max_steps lr_scheduler_type
                warmup_ratio warmup_steps adam_beta1 adam_beta2 optim ref_model|ref_adapters cpo_alpha simpo_gamma
                repetition_penalty stop_words scale_rewards importance_sampling_level advantage_estimator kl_in_reward
                top_entropy_quantile sapo_temperature_pos|tau_pos sapo_temperature_neg|tau_neg dynamic_sample
                max_resample_times mask_truncated_completions|overlong_filter soft_max_length soft_cache_length
                names_of_rewards|reward_funcs weights_of_rewards|reward_weights reward_model_name_or_path|reward_model
                external_plugins tuner_type|train_type|sft_type init_weights quant_bits quant_method save_steps
                eval_steps report_to run_name project hub_model_id use_hf
            ",
        ),
        (Adapter, "lora_rank lora_alpha lora_dropout lora_bias target_modules target_parameters use_rslora adapters load_in_4bit"),
        (NotBuilt(Optimizer), "optimizer use_galore lorap_lr_ratio"),
        (
            NotBuilt(Frozen),
            "
                freeze_parameters freeze_parameters_regex freeze_parameters_ratio trainable_parameters
                trainable_parameters_regex lisa_activated_layers freeze_llm
            ",
        ),
        (
            NotBuilt(Objective),
            "
                loss_weights rpo_alpha ld_alpha label_smoothing label_smoothing_factor neftune_noise_alpha
                enable_dft_loss center_rewards_coefficient off_policy_sequence_mask_delta advantage_reweight
                sdar_loss_coef sync_ref_model chord_sft_dataset
            ",
        ),
        (NotBuilt(OF_TURNS), "multi_turn_scheduler use_gym_env gym_env vllm_server_pass_dataset max_turns"),
        (NotBuilt(Adapters), "target_regex modules_to_save use_dora"),
        (Lost(why::SAME), "rollout_importance_sampling_mode rollout_importance_sampling_threshold"),
        (Lost(why::RESUME), "resume_from_checkpoint resume_only_model"),
    ],
    used: "",
    idle: "
        acc_strategy add_version attn_impl bnb_4bit_* cached_dataset cached_val_dataset create_checkpoint_symlink
        custom_dataset_info custom_register_path dataloader_* dataset_num_proc ddp_* deepspeed device_map do_eval
        download_mode eval_* experts_impl fsdp gradient_checkpointing_kwargs group_by_length lazy_tokenize
        load_args load_data_args load_from_cache_file log_completions log_entropy logging_* master_addr master_port
        max_model_len metric_for_best_model model_author model_name move_model_batches nnodes node_rank
        offload_model offload_optimizer offload_teacher_model overwrite_output_dir padding_free padding_side
        per_device_eval_batch_size remove_unused_columns router_aux_loss_coef save_only_model save_strategy
        sequence_parallel_size sleep_level split_dataset_* stopping_strategy streaming strict swanlab_*
        truncation_* use_flash_ckpt use_liger_kernel use_logits_to_keep use_vllm vit_* vllm_* wandb_* zero_hpz_*
    ",
    elsewhere: &[
        (why::ENGINE, "vllm sleep_level"),
        (why::SHARDING, "deepspeed fsdp sequence_parallel zero_hpz"),
        (why::CLUSTER, "ddp_ master_ nnodes node_rank"),
        (why::PLANNED, "offload_ move_model gradient_checkpointing_kwargs per_device_eval vit_gradient"),
        (why::LOADING, "dataloader dataset_num_proc load_from_cache lazy_tokenize remove_unused streaming cached_ download_mode load_data_args group_by_length"),
        (why::KERNELS, "attn_impl experts_impl liger use_logits_to_keep"),
        (why::LOGGING, "logging log_ wandb_ swanlab"),
        (why::PACKED, "padding_free padding_side"),
        (why::CHECKPOINTS, "save_only save_strategy add_version create_checkpoint overwrite_output use_flash_ckpt"),
        (why::FILES, "device_map custom_register"),
        (why::QUANTISED, "bnb_4bit_"),
    ],
    secrets: "hub_token swanlab_token",
};
