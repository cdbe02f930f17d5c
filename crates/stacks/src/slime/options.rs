//! Options of slime's `train.py`, with `_` for the `-` of its flags. Those of the model's shape are Megatron's, and the
//! model's own configuration has them.

use crate::subject::Subject;
use crate::table::Memory::Idle;
use crate::table::Take::*;
use crate::table::{Table, why};
use crate::unbuilt::Unbuilt::{Agent, Objective, Turns, Unknown};

/// A filter of samples or groups that is a function.
pub(super) const FILTER: crate::unbuilt::Unbuilt = Unknown(Subject::Samples);
const SHAPE: &str = "the model's own config.json says it";
const NO_DROPOUT: &str = "no layer has dropout here";

pub(super) static TABLE: Table = Table {
    stack: "slime",
    rows: &[
        ("ref_load", Idle, Lost("the reference is the model that the run begins with")),
        ("load", Idle, Lost(why::RESUME)),
        ("save", Idle, Text("run.dir")),
        ("save_interval", Idle, Every("checkpoint.every")),
        ("save_hf", Idle, Lost("afterwards: plimsoll checkpoint export")),
        ("input_key", Idle, Text("data.prompt_column")),
        ("label_key", Idle, Text("data.answer_column")),
        ("tool_key", Idle, Lost("the column is called `tools` here")),
        ("metadata_key", Idle, Lost("rewards get every column of a row here")),
        ("multimodal_keys", Idle, Later),
        ("apply_chat_template_kwargs", Idle, Variables),
        ("rollout_max_prompt_len", Idle, Integer("data.prompt_tokens_max")),
        ("rollout_max_response_len", Idle, Integer("rollout.max_new_tokens")),
        ("rollout_max_context_len", Idle, Lost("prompt and response have a limit each here")),
        ("rollout_batch_size", Idle, Integer("rollout.prompts_per_step")),
        ("n_samples_per_prompt", Idle, Integer("rollout.group_size")),
        ("rollout_temperature", Idle, Number("rollout.temperature")),
        ("rollout_top_p", Idle, Number("rollout.top_p")),
        ("rollout_top_k", Idle, TopK),
        ("rollout_stop", Idle, Lost("write it as rollout.stop")),
        ("rollout_stop_token_ids", Idle, Lost("the model's own ends of text end a response; a string does as rollout.stop")),
        ("rollout_seed", Idle, Lost("one `seed` is for everything here")),
        ("over_sampling_batch_size", Idle, Lost("further prompts come in rounds of whole steps here: loss.dynamic_sampling_retries bounds them")),
        ("partial_rollout", Idle, Lost("write it as async.partial_rollouts")),
        ("global_batch_size", Idle, Integer("train.mini_batch")),
        ("max_tokens_per_gpu", Idle, Integer("train.micro_batch_tokens")),
        ("recompute_granularity", Idle, Names("train.recompute", &[("full", "layer"), ("selective", "none")])),
        ("lr", Idle, Number("train.learning_rate")),
        ("min_lr", Idle, Lost("schedules end at 0 here")),
        ("lr_warmup_iters", Idle, Every("train.warmup_steps")),
        ("weight_decay", Idle, Number("train.weight_decay")),
        ("adam_eps", Idle, Number("train.adam_epsilon")),
        ("clip_grad", Idle, Number("train.grad_clip")),
        ("seed", Idle, Integer("seed")),
        ("eps_clip", Idle, Clips),
        ("eps_clip_high", Idle, Number("loss.clip_high")),
        ("eps_clip_c", Idle, Number("loss.dual_clip")),
        ("value_clip", Idle, Number("critic.value_clip")),
        ("entropy_coef", Idle, Number("loss.entropy_coef")),
        ("gamma", Idle, Number("loss.gamma")),
        ("lambd", Idle, Number("loss.lambda")),
        ("num_critic_only_steps", Idle, Every("critic.warmup_steps")),
        ("recompute_loss_function", Idle, Lost(why::PLANNED)),
        ("moe_aux_loss_coeff", Idle, Lost("it is `loss.balance_coef` here, a mean over layers, which a model with experts takes")),
        ("reward_key", Idle, Lost("a reward is one number here")),
        ("rm_url", Idle, Lost("a server of slime's has a protocol of its own")),
        ("no_check_for_nan_in_loss_and_grad", Idle, Lost("a loss that is no number ends a run here")),
        ("eval_interval", Idle, Every("eval.every")),
        ("n_samples_per_eval_prompt", Idle, Integer("eval.samples")),
        ("eval_temperature", Idle, Number("eval.temperature")),
        ("eval_top_p", Idle, Lost("an evaluation samples with rollout.top_p here")),
        ("eval_top_k", Idle, Lost("an evaluation samples with rollout.top_k here")),
        ("eval_max_response_len", Idle, Lost("an evaluation samples with rollout.max_new_tokens here")),
        ("skip_eval_before_train", Idle, Lost("there is always an evaluation before and after a run here")),
        ("eval_config", Idle, Lost("it is a file of its own: write its sets as data.eval")),
        ("loss_mask_type", Idle, Lost("drawn tokens are what is learnt here")),
        ("calculate_per_token_loss", Idle, On("loss.aggregation", "token_mean")),
        ("update_weights_interval", Idle, Lost(why::IN_TURN)),
        ("rollout_skip_special_tokens", Idle, Lost("rewards see a response without special tokens, but for the marks of its format")),
    ],
    alike: &[
        (
            Later,
            "
                trainer hf_checkpoint prompt_data eval_prompt_data apply_chat_template rollout_shuffle num_rollout
                num_epoch num_steps_per_rollout micro_batch_size optimizer adam_beta1 adam_beta2 lr_decay_style
                lr_warmup_fraction advantage_estimator use_kl_loss kl_loss_coef kl_loss_type kl_coef
                disable_grpo_std_normalization dynamic_sampling_filter_path rm_type custom_rm_path use_wandb
                use_tensorboard wandb_project wandb_group loss_type
            ",
        ),
        (NotBuilt(Turns), "custom_generate_function_path"),
        (NotBuilt(Agent), "rollout_function_path"),
        (
            NotBuilt(Objective),
            "
                normalize_advantages disable_rewards_normalization custom_loss_function_path
                custom_advantage_function_path custom_reward_post_process_path custom_pg_loss_reducer_function_path
                use_unbiased_kl use_opsm use_opd opd_kl_coef opd_type enable_mtp_training disable_compute_advantages_and_returns
            ",
        ),
        (
            NotBuilt(FILTER),
            "buffer_filter_path rollout_sample_filter_path custom_convert_samples_to_train_data_path",
        ),
        (
            Lost(why::SAME),
            "
                use_tis tis_clip tis_clip_low custom_tis_function_path use_rollout_logprobs get_mismatch_metrics
                use_routing_replay use_rollout_routing_replay use_rollout_entropy
            ",
        ),
        (
            Lost(SHAPE),
            "
                disable_bias_linear num_layers hidden_size ffn_hidden_size num_attention_heads kv_channels normalization
                position_embedding_type norm_epsilon rotary_percent rotary_base swiglu vocab_size qk_layernorm
                untie_embeddings_and_output_weights group_query_attention num_query_groups add_qkv_bias
                multi_latent_attention num_experts padded_vocab_size
            ",
        ),
        (Lost(NO_DROPOUT), "attention_dropout hidden_dropout"),
        (
            Lost("nothing trains what predicts further tokens here, and checkpoints leave it out"),
            "mtp_num_layers mtp_loss_scaling_factor",
        ),
        (Lost(why::ENGINE), "sglang_tool_call_parser sglang_reasoning_parser"),
    ],
    used: "",
    idle: "",
    elsewhere: &[
        (why::ENGINE, "sglang_ prefill_num_servers rollout_num_gpus update_weight rollout_health use_fault_tolerance router_ rollout_external"),
        (why::SHARDING, "parallel moe_token_dispatcher moe_enable_deepep decoder_last_pipeline decoder_first_pipeline use_distributed_optimizer context_ allgather"),
        (why::CLUSTER, "actor_num_ num_gpus_per_node distributed_ train_env_vars runtime_env"),
        (why::PLACEMENT, "colocate offload"),
        (why::PLANNED, "use_dynamic_batch_size balance_ log_probs_ recompute_ optimizer_cpu overlap_cpu data_pad data_parallel"),
        (why::KERNELS, "attention_backend attention_softmax accumulate_allreduce precision_aware grouped_gemm permute_fusion fusion moe_router_dtype qwen_gdn deterministic"),
        (why::LOGGING, "wandb_ tb_ log_ debug_ dump_ memory_snapshot record_memory profile check_for_nan"),
        (why::CHECKPOINTS, "async_save no_save_optim ref_ckpt"),
        (SHAPE, "moe_ mscale qk_ v_head kv_lora q_lora rotary_ model_name rope apply_layernorm attention_output_gate linear_ use_gated"),
        (why::LOADING, "rollout_data_ data_source rollout_global_dataset"),
        ("it is a file of its own: write its keys in a copy of the script", "custom_config_path megatron_config_path"),
    ],
    secrets: "wandb_key",
};
