//! Options of verl's `main_ppo`, simpleRL-reason's fork, and the SFT trainer, by full path.

use crate::table::Memory::{Idle, Used};
use crate::table::Take::*;
use crate::table::{Table, why};
use crate::unbuilt::Unbuilt::{Objective, Turns};

pub(super) static TABLE: Table = Table {
    stack: "verl",
    rows: &[
        ("actor_rollout_ref.model.path", Used, Later),
        ("actor_rollout_ref.model.lora_rank|actor_rollout_ref.model.lora.rank|model.lora_rank", Used, Adapter),
        ("actor_rollout_ref.model.exclude_modules|actor_rollout_ref.model.lora.exclude_modules", Idle, Later),
        ("actor_rollout_ref.model.lora.merge", Idle, Lost("rollout and update use the same weights and kernels here, merged or not")),
        ("data.prompt_key", Idle, Text("data.prompt_column")),
        ("data.apply_chat_template_kwargs", Idle, Variables),
        ("data.apply_chat_template_kwargs.enable_thinking", Idle, Variable("enable_thinking")),
        ("data.apply_chat_template_kwargs.reasoning_effort", Idle, Variable("reasoning_effort")),
        ("data.max_prompt_length", Used, Integer("data.prompt_tokens_max")),
        ("data.max_response_length", Used, Integer("rollout.max_new_tokens")),
        ("data.train_batch_size", Used, Integer("rollout.prompts_per_step")),
        ("data.gen_batch_size", Idle, Lost("further prompts come in rounds of whole steps here: loss.dynamic_sampling_retries bounds them")),
        ("data.filter_overlong_prompts", Idle, On("data.overlong", "drop")),
        ("data.seed", Idle, Integer("seed")),
        ("data.return_raw_chat", Idle, Lost("conversations reach rewards and environments as they are here")),
        ("actor_rollout_ref.rollout.n", Used, Integer("rollout.group_size")),
        ("actor_rollout_ref.rollout.temperature", Idle, Number("rollout.temperature")),
        ("actor_rollout_ref.rollout.top_p", Idle, Number("rollout.top_p")),
        ("actor_rollout_ref.rollout.top_k", Idle, TopK),
        ("actor_rollout_ref.rollout.val_kwargs.temperature", Idle, Number("eval.temperature")),
        ("actor_rollout_ref.rollout.val_kwargs.n", Idle, Integer("eval.samples")),
        ("actor_rollout_ref.rollout.val_kwargs.top_p", Idle, Lost("an evaluation samples with rollout.top_p here")),
        ("actor_rollout_ref.rollout.val_kwargs.top_k", Idle, Lost("an evaluation samples with rollout.top_k here")),
        ("actor_rollout_ref.rollout.val_kwargs.do_sample", Idle, Lost("an evaluation with eval.temperature = 0 is greedy here")),
        ("actor_rollout_ref.rollout.free_cache_engine", Used, Lost("the KV cache has a fixed address in the plan, and is never freed or rebuilt")),
        ("actor_rollout_ref.rollout.multi_turn.enable", Idle, NotBuilt(Turns)),
        ("actor_rollout_ref.rollout.agent.num_workers", Idle, Lost(why::ENGINE)),
        ("data.image_key", Idle, Later),
        ("actor_rollout_ref.actor.freeze_vision_tower", Idle, Later),
        ("actor_rollout_ref.rollout.limit_images", Idle, Lost("a row has all of its images here, at most 256, and the plan sizes what they take")),
        ("actor_rollout_ref.rollout.enforce_eager", Used, Lost(why::EAGER)),
        ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", Used, Integer("train.micro_batch_tokens")),
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", Used, Later),
        ("actor_rollout_ref.actor.ppo_micro_batch_size", Used, As("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu")),
        ("actor_rollout_ref.actor.ppo_epochs", Idle, Integer("train.epochs_per_rollout")),
        ("actor_rollout_ref.actor.clip_ratio_low", Idle, Number("loss.clip_low")),
        ("actor_rollout_ref.actor.clip_ratio_high", Idle, Number("loss.clip_high")),
        ("actor_rollout_ref.actor.clip_ratio_c", Idle, Number("loss.dual_clip")),
        ("actor_rollout_ref.actor.entropy_coeff", Idle, Number("loss.entropy_coef")),
        ("actor_rollout_ref.actor.use_kl_loss", Used, Later),
        ("actor_rollout_ref.actor.loss_agg_mode", Idle, Names( "loss.aggregation", &[ ("token-mean", "token_mean"), ("seq-mean-token-mean", "seq_mean_token_mean"), ("seq-mean-token-sum", "seq_mean_token_sum"), ("seq-mean-token-sum-norm", "seq_mean_token_sum_norm"), ], )),
        ("actor_rollout_ref.model.mtp.enable_train", Idle, NotBuilt(Objective)),
        ("actor_rollout_ref.actor.megatron.override_transformer_config.moe_aux_loss_coeff", Idle, Lost("it is `loss.balance_coef` here, a mean over layers, which a model with experts takes")),
        ("actor_rollout_ref.actor.megatron.override_transformer_config.moe_z_loss_coeff", Idle, NotBuilt(Objective)),
        ("critic.enable", Idle, Lost("the method says whether there is a critic")),
        ("actor_rollout_ref.actor.entropy_checkpointing", Used, Lost("logits and entropy are computed in tiles here")),
        ("actor_rollout_ref.actor.grad_clip|actor_rollout_ref.actor.optim.clip_grad", Idle, Number("train.grad_clip")),
        ("actor_rollout_ref.actor.optim.lr", Idle, Number("train.learning_rate")),
        ("actor_rollout_ref.actor.optim.lr_warmup_steps", Idle, Every("train.warmup_steps")),
        ("actor_rollout_ref.actor.optim.weight_decay", Idle, Number("train.weight_decay")),
        ("actor_rollout_ref.actor.optim.betas", Idle, Betas),
        ("actor_rollout_ref.actor.fsdp_config.optimizer_offload", Used, Offload("optimizer")),
        ("actor_rollout_ref.ref.fsdp_config.param_offload", Used, Offload("reference")),
        ("actor_rollout_ref.model.enable_gradient_checkpointing", Used, Recompute),
        ("critic.model.path", Used, Later),
        ("critic.optim.lr", Idle, Number("critic.learning_rate")),
        ("critic.cliprange_value", Idle, Number("critic.value_clip")),
        ("critic.ppo_mini_batch_size", Idle, Lost("the critic has the actor's parts; critic.updates_per_rollout says otherwise")),
        ("algorithm.adv_estimator", Used, Later),
        ("algorithm.gamma", Idle, Number("loss.gamma")),
        ("algorithm.lam", Idle, Number("loss.lambda")),
        ("algorithm.use_kl_in_reward", Used, Later),
        ("reward_model.reward_kwargs.max_resp_len|reward.reward_kwargs.max_resp_len", Idle, Lost("the penalty of long responses counts back from rollout.max_new_tokens here")),
        ("reward_model.reward_kwargs.overlong_buffer_cfg.log|reward.reward_kwargs.overlong_buffer_cfg.log", Idle, Lost(why::LOGGING)),
        ("trainer.critic_warmup", Idle, Every("critic.warmup_steps")),
        ("trainer.save_freq", Used, Every("checkpoint.every")),
        ("trainer.test_freq", Idle, Every("eval.every")),
        ("trainer.max_actor_ckpt_to_keep", Idle, Integer("checkpoint.keep")),
        ("trainer.default_local_dir", Idle, Text("run.dir")),
        ("trainer.val_before_train", Idle, Lost("there is always an evaluation before and after a run here")),
        ("config-path|config-name", Idle, Lost("it is a file of its own: import the YAML that Hydra writes for a run")),
        ("model.enable_gradient_checkpointing", Idle, Recompute),
        ("data.response_key", Idle, Lost("a row has `messages`, or `prompt` and `completion` here")),
        ("data.prompt_dict_keys", Idle, Lost("a row has `messages`, or `prompt` and `completion` here")),
        ("data.response_dict_keys", Idle, Lost("a row has `messages`, or `prompt` and `completion` here")),
        ("data.multiturn.messages_key|data.messages_key", Idle, Lost("the column is called `messages` here")),
        ("optim.lr", Idle, Number("train.learning_rate")),
        ("optim.betas", Idle, Betas),
        ("optim.weight_decay", Idle, Number("train.weight_decay")),
        ("optim.clip_grad", Idle, Number("train.grad_clip")),
        ("optim.lr_warmup_steps", Idle, Every("train.warmup_steps")),
        ("trainer.seed", Idle, Integer("seed")),
        ("trainer.max_ckpt_to_keep", Idle, Integer("checkpoint.keep")),
        ("trainer.resume_mode", Idle, Lost(why::RESUME)),
    ],
    alike: &[
        (
            Later,
            "
                trainer data.train_files data.val_files data.truncation data.shuffle
                actor_rollout_ref.rollout.agent.default_agent_loop actor_rollout_ref.actor.ppo_mini_batch_size
                actor_rollout_ref.actor.clip_ratio actor_rollout_ref.actor.kl_loss_coef
                actor_rollout_ref.actor.kl_loss_type actor_rollout_ref.actor.policy_loss.loss_mode
                actor_rollout_ref.actor.tau_pos|actor_rollout_ref.actor.policy_loss.tau_pos
                actor_rollout_ref.actor.tau_neg|actor_rollout_ref.actor.policy_loss.tau_neg
                actor_rollout_ref.actor.policy_loss.clip_cov_ratio actor_rollout_ref.actor.policy_loss.clip_cov_lb
                actor_rollout_ref.actor.policy_loss.clip_cov_ub actor_rollout_ref.actor.policy_loss.kl_cov_ratio
                actor_rollout_ref.actor.policy_loss.ppo_kl_coef algorithm.rollout_correction.loss_type
                actor_rollout_ref.actor.optim.optimizer actor_rollout_ref.actor.optim.lr_warmup_steps_ratio
                actor_rollout_ref.actor.optim.lr_scheduler_type|actor_rollout_ref.actor.optim.warmup_style
                algorithm.norm_adv_by_std_in_grpo algorithm.gdpo_reward_keys algorithm.gdpo_reward_weights
                algorithm.kl_ctrl.kl_coef algorithm.kl_ctrl.type algorithm.kl_ctrl.target_kl algorithm.kl_ctrl.horizon
                algorithm.kl_penalty algorithm.filter_groups.enable algorithm.filter_groups.metric
                algorithm.filter_groups.max_num_gen_batches
                reward_model.overlong_buffer.enable|reward_model.reward_kwargs.overlong_buffer_cfg.enable|reward.reward_kwargs.overlong_buffer_cfg.enable
                reward_model.overlong_buffer.len|reward_model.reward_kwargs.overlong_buffer_cfg.len|reward.reward_kwargs.overlong_buffer_cfg.len
                reward_model.overlong_buffer.penalty_factor|reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor|reward.reward_kwargs.overlong_buffer_cfg.penalty_factor
                reward_model.reward_manager|reward.reward_manager.name reward_model.enable|reward.reward_model.enable
                reward_model.model.path|reward.reward_model.model_path
                custom_reward_function.path|reward.custom_reward_function.path
                custom_reward_function.name|reward.custom_reward_function.name trainer.total_training_steps
                trainer.total_epochs model.partial_pretrain|model.path data.max_length
                data.micro_batch_size_per_gpu|data.micro_batch_size data.multiturn.enable
                optim.warmup_steps_ratio|optim.lr_warmup_steps_ratio optim.lr_scheduler|optim.lr_scheduler_type
                optim.optimizer trainer.logger trainer.project_name trainer.experiment_name
            ",
        ),
        (
            Adapter,
            "
                actor_rollout_ref.model.lora_alpha|actor_rollout_ref.model.lora.alpha|model.lora_alpha
                actor_rollout_ref.model.lora_adapter_path|actor_rollout_ref.model.lora.adapter_path|model.lora_adapter_path
                actor_rollout_ref.model.lora.dropout
                actor_rollout_ref.model.target_modules|actor_rollout_ref.model.lora.target_modules|model.target_modules
                actor_rollout_ref.model.target_parameters|model.target_parameters
            ",
        ),
    ],
    used: "
        actor_rollout_ref.actor.strategy actor_rollout_ref.actor.use_dynamic_bsz
        actor_rollout_ref.actor.ulysses_sequence_parallel_size
        actor_rollout_ref.actor.entropy_from_logits_with_chunking
        actor_rollout_ref.actor.fsdp_config.param_offload actor_rollout_ref.actor.fsdp_config.fsdp_size
        actor_rollout_ref.actor.fsdp_config.model_dtype
        actor_rollout_ref.actor.checkpoint.save_contents|actor_rollout_ref.actor.checkpoint.contents
        actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu actor_rollout_ref.model.use_fused_kernels
        actor_rollout_ref.model.use_remove_padding actor_rollout_ref.rollout.name
        actor_rollout_ref.rollout.tensor_model_parallel_size actor_rollout_ref.rollout.gpu_memory_utilization
        actor_rollout_ref.rollout.swap_space
        actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu
        actor_rollout_ref.rollout.log_prob_micro_batch_size
        actor_rollout_ref.rollout.engine_kwargs.swap_space|actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space
        actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes
        critic.model.fsdp_config.param_offload critic.model.fsdp_config.optimizer_offload
        critic.model.enable_gradient_checkpointing critic.ppo_max_token_len_per_gpu
        critic.ppo_micro_batch_size_per_gpu trainer.n_gpus_per_node trainer.nnodes
    ",
    idle: "
        actor_rollout_ref.actor._target_ actor_rollout_ref.actor.checkpoint.* actor_rollout_ref.actor.clip*
        actor_rollout_ref.actor.fsdp_config.* actor_rollout_ref.actor.kl_loss* actor_rollout_ref.actor.loss*
        actor_rollout_ref.actor.optim.* actor_rollout_ref.actor.policy_loss.* actor_rollout_ref.actor.profiler.*
        actor_rollout_ref.actor.rollout_n actor_rollout_ref.actor.shuffle actor_rollout_ref.actor.use_torch_compile
        actor_rollout_ref.hybrid_engine actor_rollout_ref.model.* actor_rollout_ref.ref.*
        actor_rollout_ref.rollout.agent.* actor_rollout_ref.rollout.calculate_log_probs
        actor_rollout_ref.rollout.disable_log_stats actor_rollout_ref.rollout.do_sample
        actor_rollout_ref.rollout.dtype actor_rollout_ref.rollout.enable_chunked_prefill
        actor_rollout_ref.rollout.enable_prefix_caching actor_rollout_ref.rollout.ignore_eos
        actor_rollout_ref.rollout.load_format actor_rollout_ref.rollout.log_prob_* actor_rollout_ref.rollout.max_*
        actor_rollout_ref.rollout.micro_rollout_batch_size actor_rollout_ref.rollout.mode
        actor_rollout_ref.rollout.multi_turn.* actor_rollout_ref.rollout.profiler.*
        actor_rollout_ref.rollout.prompt_length actor_rollout_ref.rollout.response_length
        actor_rollout_ref.rollout.top_* actor_rollout_ref.rollout.trace.* actor_rollout_ref.rollout.val_kwargs.*
        algorithm.rollout_correction.bypass_mode algorithm.rollout_correction.rollout_is
        algorithm.rollout_correction.rollout_is_batch_normalize algorithm.rollout_correction.rollout_is_threshold
        algorithm.rollout_correction.rollout_rs algorithm.rollout_correction.rollout_rs_threshold
        algorithm.* critic.* custom_reward_function.* data.* global_profiler.* hydra.* model.* optim.* ray_* reward* seed
        trainer.* transfer_queue.* ulysses_sequence_parallel_size use_remove_padding
    ",
    elsewhere: &[
        (why::CLUSTER, "nccl_timeout trainer.device"),
        (why::SHARDING, ".veomni. actor.engine. ref.engine. actor.strategy ref.strategy critic.strategy"),
        (why::PLANNED, "enable_activation_offload optimizer_cpu_offload offload_fraction overlap_cpu_optimizer"),
        (why::KERNELS, "entropy_from_logits ref.entropy_checkpointing use_precision_aware_optimizer"),
        (why::CHECKPOINTS, "checkpoint.save_contents checkpoint.load_contents"),
        (why::RESUME, "trainer.resume_from_path"),
        ("it is a file of its own: import the YAML that Hydra writes for a run", "hydra.searchpath actor@"),
        (why::SAME, "rollout_correction."),
        (why::CLUSTER, "reward_model.n_gpus reward_model.nnodes reward_model.num_workers reward_model.enable_resource_pool"),
        (why::PLANNED, "reward_model.micro_batch_size reward_model.forward_max reward_model.max_length"),
        (why::ENGINE, "reward_model.rollout. reward_model.strategy reward_model.launch_reward_fn_async reward_model.sandbox_fusion"),
        (why::TOKENIZER, "reward_model.model.input_tokenizer"),
        (why::CLUSTER, "trainer.n_gpus_per_node trainer.nnodes ray_"),
        (why::CLUSTER, "reward.num_workers reward.reward_model.n_gpus reward.reward_model.nnodes"),
        (why::LOGGING, "trainer.log_val"),
        (why::LOADING, "filter_overlong_prompts_workers dataloader_num_workers"),
        (why::FILES, "trust_remote_code"),
        (why::PLANNED, "balance_batch use_prefix_grouper"),
        (why::ENGINE, "use_legacy_worker_impl model_engine"),
        (why::IN_TURN, "trainer.use_v1 trainer.v1. transfer_queue"),
        (why::ENGINE, "gpu_memory_utilization"),
        (why::SHARDING, "tensor_model_parallel_size ulysses_sequence_parallel_size megatron fsdp"),
        (why::PLANNED, "log_prob_ use_dynamic_bsz ppo_micro_batch_size ppo_max_token_len forward_max_token_len"),
        (why::PACKED, "use_remove_padding"),
        (why::ADAPTER, "model.lora lora_"),
        (why::PUBLISHING, "default_hdfs_dir"),
        (why::KERNELS, "use_liger use_fused_kernels use_torch_compile"),
        (why::ENGINE, "actor_rollout_ref.rollout."),
    ],
    secrets: "",
};
