//! Options of axolotl's YAML. The first name of a row is TRL's, whose trainers read most of them.

use crate::subject::Subject;
use crate::table::Memory::Idle;
use crate::table::Take::*;
use crate::table::{Table, why};
use crate::unbuilt::Unbuilt::{
    Adapters, Frozen, Images, Objective, Optimizer, PlainText, Positions, Quantisation, Trainer, Unknown,
};

const OF_COLUMNS: &str =
    "the column is called `messages` here, and its turns have `role` and `content`: rename them in the data";
const OF_PAIRS: &str =
    "the columns are called `prompt`, `chosen` and `rejected` here: rename them in the data";
const OF_STEPS: &str = "a run here counts steps: checkpoint.every, eval.every";

pub(super) static TABLE: Table = Table {
    stack: "axolotl",
    rows: &[
        ("model_revision|revision_of_model", Idle, Text("model_options.revision")),
        ("dtype|torch_dtype", Idle, Names("model_options.dtype", &[("bfloat16", "bf16"), ("float32", "f32")])),
        ("fp16|float16", Idle, Lost("weights are stored in bf16 or f32 here: model_options.dtype")),
        ("pretraining_dataset", Idle, NotBuilt(PlainText)),
        ("streaming", Idle, Lost(why::LOADING)),
        ("dataset_exact_deduplication", Idle, Lost("rows are as the file has them here: leave out the double ones in the data")),
        ("curriculum_sampling", Idle, Lost("set data.shuffle = false for the order of the file")),
        ("chat_template_jinja", Idle, Text("data.chat_template")),
        ("packing|sample_packing", Idle, Later),
        ("batch_size", Idle, Lost("it follows from micro_batch_size and gradient_accumulation_steps there")),
        ("learning_rate", Idle, Number("train.learning_rate")),
        ("lr_scheduler_kwargs", Idle, Lost("schedules have no such numbers here")),
        ("cosine_min_lr_ratio", Idle, Lost("schedules end at 0 here")),
        ("cosine_constant_lr_ratio", Idle, Lost("schedules end at 0 here")),
        ("eta_min", Idle, Lost("schedules end at 0 here")),
        ("num_labels", Idle, Lost("a reward model gives one number here")),
        ("datasets.drop_system_message", Idle, Lost("write the rows without their system message")),
        ("lr_quadratic_warmup", Idle, Lost("a warm-up is linear here")),
        ("adam_epsilon", Idle, Number("train.adam_epsilon")),
        ("weight_decay", Idle, Number("train.weight_decay")),
        ("max_grad_norm", Idle, Number("train.grad_clip")),
        ("gradient_checkpointing", Idle, Recompute),
        ("beta|trl.beta|rl_beta|orpo_alpha", Idle, Number("loss.kl_coef")),
        ("loss_type|trl.loss_type|dpo_loss_type", Idle, Later),
        ("label_smoothing|dpo_label_smoothing", Idle, Lost("TRL applies it with loss_type robust and exo_pair alone; loss.label_smoothing smooths the sigmoid loss, as older TRL did")),
        ("precompute_ref_log_probs", Idle, Lost("the reference scores each step's pairs here; memory.offload = [\"reference\"] makes it small")),
        ("desirable_weight|kto_desirable_weight", Idle, Later),
        ("undesirable_weight|kto_undesirable_weight", Idle, Later),
        ("max_completion_length|trl.max_completion_length", Idle, Integer("rollout.max_new_tokens")),
        ("num_generations|trl.num_generations", Idle, Integer("rollout.group_size")),
        ("num_iterations|trl.num_iterations", Idle, Integer("train.epochs_per_rollout")),
        ("temperature|trl.temperature", Idle, Number("rollout.temperature")),
        ("top_p|trl.top_p", Idle, Number("rollout.top_p")),
        ("top_k|trl.top_k", Idle, TopK),
        ("min_p|trl.min_p", Idle, Number("rollout.min_p")),
        ("epsilon|trl.epsilon", Idle, Clips),
        ("epsilon_high|trl.epsilon_high", Idle, Number("loss.clip_high")),
        ("trl.rollout_func", Idle, NotBuilt(Unknown(Subject::Turns))),
        ("trl.skip_zero_advantage_batches", Idle, Lost("a batch without an advantage moves no weight here either")),
        ("chat_template_kwargs.enable_thinking|trl.chat_template_kwargs.enable_thinking", Idle, Variable("enable_thinking")),
        ("lora_target_linear", Idle, Lost("its layers are those of lora_target_modules = all-linear")),
        ("peft_init_lora_weights", Idle, Lost("A is random and B is 0 at the start here, as by default in peft")),
        ("lora_fan_in_fan_out", Idle, Lost(why::ADAPTER)),
        ("loss_watchdog_threshold", Idle, Lost("a loss that is not finite ends a run here")),
        ("loss_watchdog_patience", Idle, Lost("a loss that is not finite ends a run here")),
        ("fp8", Idle, Lost("matrices are multiplied in bf16 or f32 here, as model_options.dtype says")),
        ("processor_type", Idle, NotBuilt(Images)),
        ("trainer_cls", Idle, NotBuilt(Trainer)),
        ("seed", Idle, Integer("seed")),
        ("output_dir", Idle, Text("run.dir")),
        ("save_total_limit", Idle, Integer("checkpoint.keep")),
        ("resume_from_checkpoint", Idle, Lost(why::RESUME)),
        ("wandb_entity", Idle, Lost("W&B's client takes it from WANDB_ENTITY")),
        ("hf_use_auth_token", Idle, Lost("HF_TOKEN holds a key, or `hf auth login` stores it")),
        ("early_stopping_patience", Idle, Lost("a run here has the steps that it is given")),
        ("resize_token_embeddings_to_32x", Idle, Lost("the vocabulary is the model's own here")),
        ("tokenizer_type", Idle, Lost(why::TOKENIZER)),
        ("tokenizer_config", Idle, Text("model_options.tokenizer")),
    ],
    alike: &[
        (
            Later,
            "
                trainer model_name_or_path|base_model bf16|bfloat16 dataset_name|datasets datasets.type
                datasets.roles_to_train datasets.train_on_eos datasets.chat_template eval_dataset|test_datasets
                val_set_size shuffle_dataset|shuffle_merged_datasets train_on_inputs chat_template
                max_length|sequence_len excess_length_strategy per_device_train_batch_size|micro_batch_size
                gradient_accumulation_steps num_train_epochs|num_epochs max_steps lr_scheduler_type|lr_scheduler
                warmup_ratio warmup_steps adam_beta1 adam_beta2 optim|optimizer cpo_alpha simpo_gamma eaft_alpha
                generation_batch_size|trl.generation_batch_size repetition_penalty|trl.repetition_penalty
                use_bias_correction_kl|trl.use_bias_correction_kl scale_rewards|trl.scale_rewards
                importance_sampling_level|trl.importance_sampling_level
                mask_truncated_completions|trl.mask_truncated_completions
                multi_objective_aggregation|trl.multi_objective_aggregation reward_funcs|trl.reward_funcs
                reward_weights|trl.reward_weights adapter plugins save_steps eval_steps hub_model_id use_wandb
                project|wandb_project run_name|wandb_name use_tensorboard
            ",
        ),
        (
            Adapter,
            "
                lora_r lora_alpha lora_dropout lora_target_modules lora_target_parameters lora_model_dir
                use_rslora|peft_use_rslora load_in_4bit
            ",
        ),
        (NotBuilt(Optimizer), "embedding_lr embedding_lr_scale lr_groups loraplus_lr_ratio optim_args"),
        (NotBuilt(Positions), "rope_scaling overrides_of_model_config.rope_scaling.type"),
        (NotBuilt(Frozen), "unfrozen_parameters lisa_n_layers"),
        (
            NotBuilt(Adapters),
            "
                relora relora_steps peft_use_dora peft_layers_to_transform lora_modules_to_save
            ",
        ),
        (
            NotBuilt(Objective),
            "
                loss_weights|dpo_loss_weights use_weighting|dpo_use_weighting center_rewards_coefficient
                neftune_noise_alpha|noisy_embedding_alpha label_smoothing_factor use_eaft trl.sync_ref_model
                trl.off_policy_mask_threshold
            ",
        ),
        (NotBuilt(Unknown(Subject::Samples)), "trl.replay_buffer_size trl.reroll_max_groups"),
        (
            NotBuilt(Quantisation),
            "
                load_in_8bit gptq quantize_moe_experts qat.weight_dtype qat.activation_dtype model_quantization_config
                use_onebitllms
            ",
        ),
        (
            Lost(OF_COLUMNS),
            "
                datasets.field_messages datasets.message_property_mappings.role|datasets.message_field_role
                datasets.message_property_mappings.content|datasets.message_field_content
            ",
        ),
        (Lost(OF_PAIRS), "datasets.field_chosen datasets.field_rejected"),
        (Lost(why::IN_TURN), "trl.async_prefetch trl.use_data_producer"),
        (
            Lost(why::KERNELS),
            "
                trl.use_liger_loss lora_mlp_kernel lora_qkv_kernel lora_o_kernel lora_embedding_kernel
                liger_fused_linear_cross_entropy liger_cross_entropy cut_cross_entropy chunked_cross_entropy
                flash_attn_cross_entropy
            ",
        ),
        (
            Lost(why::SAME),
            "
                trl.vllm_importance_sampling_correction trl.vllm_importance_sampling_mode
                trl.vllm_importance_sampling_cap
            ",
        ),
        (Lost(OF_STEPS), "saves_per_epoch evals_per_epoch"),
        (Lost(why::FILES), "model_type trust_remote_code"),
    ],
    used: "",
    idle: "
        activation_offloading attn_implementation bnb_config_kwargs.* context_parallel_size
        dataset_num_proc dataset_prepared_path dataset_processes ddp* debug deepspeed device_map dp_replicate_size
        dp_shard_size eot_tokens eval_batch_size eval_sample_packing eval_table_size expert_parallel_size
        experts_implementation flash_attention flash_attn_* flex_attention fsdp* fused_attn_kernel group_by_length
        gradient_checkpointing_kwargs.* hub_strategy liger_* local_rank logging_steps low_cpu_mem_usage
        max_packed_sequence_len mlflow_* pad_to_sequence_len push_dataset_to_hub remove_unused_columns
        sample_packing_* save_first_step save_only_model save_safetensors save_strategy sdp_attention skip_prepare_dataset
        special_tokens.* strict swanlab_* tensor_parallel_size tf32 tiled_mlp tokenizer_* tokens torch_compile*
        torchdistx_path trackio_* use_kernels use_ray use_scattermoe use_sonicmoe use_swanlab vllm.* wandb_*
        xformers_attention
        trl.log_completions trl.num_completions_to_print trl.prefetch_depth trl.use_vllm trl.vllm_* trl.reward_num_workers
        datasets.*
    ",
    elsewhere: &[
        (why::ENGINE, "vllm"),
        (why::SHARDING, "deepspeed fsdp tensor_parallel context_parallel dp_shard dp_replicate expert_parallel"),
        (why::CLUSTER, "ddp use_ray local_rank"),
        (why::LOADING, "dataset_prepared dataset_num_proc dataset_processes skip_prepare remove_unused_columns group_by_length push_dataset trl.reward_num_workers"),
        (why::PLANNED, "activation_offloading gradient_checkpointing_kwargs eval_batch_size tiled_mlp"),
        (why::KERNELS, "attn flash_ sdp_ xformers flex_ liger torch_compile tf32 use_kernels scattermoe sonicmoe experts_implementation fused_attn"),
        (why::LOGGING, "logging wandb mlflow trackio swanlab log_completions num_completions_to_print eval_table"),
        (why::PACKED, "packing pad_to_sequence_len max_packed"),
        (why::TOKENIZER, "special_tokens eot_tokens tokenizer_ tokens"),
        (why::QUANTISED, "bnb_config"),
        (why::FILES, "low_cpu_mem_usage device_map"),
        (why::CHECKPOINTS, "save_only save_safetensors save_first save_strategy"),
        (why::IN_TURN, "prefetch_depth"),
    ],
    secrets: "hf_use_auth_token",
};
