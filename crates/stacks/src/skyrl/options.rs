//! Options of SkyRL's `main_base`, by full path.

use crate::subject::Subject;
use crate::table::Memory::Idle;
use crate::table::Take::*;
use crate::table::{Table, why};
use crate::unbuilt::Unbuilt::{Adapters, Images, Objective, Quantisation, Unknown};

const OF_SAMPLES: crate::unbuilt::Unbuilt = Unknown(Subject::Samples);

pub(super) static TABLE: Table = Table {
    stack: "skyrl",
    rows: &[
        ("trainer.policy.model.lora.init_method", Idle, Lost("A is random and B is 0 at the start here, as by default in peft")),
        ("trainer.critic.model.lora.alpha", Idle, Lost(why::ADAPTER)),
        ("trainer.policy.megatron_config.lora_config.merge_lora", Idle, Lost("rollout and update use the same weights and kernels here, merged or not")),
        ("trainer.policy.model.fake_int4_qat.enabled", Idle, NotBuilt(Quantisation)),
        ("trainer.policy.language_model_only", Idle, Lost("prompts are text, which moves no layer of pictures")),
        ("trainer.max_prompt_length", Idle, Integer("data.prompt_tokens_max")),
        ("generator.max_input_length", Idle, Lost("an episode has one prompt, whose length is data.prompt_tokens_max")),
        ("generator.sampling_params.max_generate_length", Idle, Integer("rollout.max_new_tokens")),
        ("generator.sampling_params.temperature", Idle, Number("rollout.temperature")),
        ("generator.sampling_params.top_p", Idle, Number("rollout.top_p")),
        ("generator.sampling_params.top_k", Idle, TopK),
        ("generator.sampling_params.min_p", Idle, Number("rollout.min_p")),
        ("generator.eval_sampling_params.temperature", Idle, Number("eval.temperature")),
        ("generator.eval_sampling_params.max_generate_length", Idle, Lost("an evaluation samples with rollout.max_new_tokens here")),
        ("generator.eval_sampling_params.top_p", Idle, Lost("an evaluation samples with rollout.top_p here")),
        ("generator.eval_sampling_params.top_k", Idle, Lost("an evaluation samples with rollout.top_k here")),
        ("generator.eval_sampling_params.stop", Idle, Lost("an evaluation samples with rollout.stop here")),
        ("generator.eval_n_samples_per_prompt", Idle, Integer("eval.samples")),
        ("generator.n_samples_per_prompt", Idle, Integer("rollout.group_size")),
        ("generator.chat_template_kwargs.enable_thinking", Idle, Variable("enable_thinking")),
        ("generator.chat_template_kwargs", Idle, Variables),
        ("generator.chat_template.source", Idle, Lost("it says what name_or_path is")),
        ("generator.use_conversation_multi_turn", Idle, Lost("an episode is one response here")),
        ("generator.append_eos_token_after_stop_str_in_multi_turn", Idle, Lost("an episode is one response here")),
        ("generator.vision_language_generator", Idle, NotBuilt(Images)),
        ("trainer.algorithm.zero_variance_filter", Idle, NotBuilt(OF_SAMPLES)),
        ("trainer.algorithm.gamma", Idle, Number("loss.gamma")),
        ("trainer.algorithm.lambd", Idle, Number("loss.lambda")),
        ("trainer.algorithm.value_clip", Idle, Number("critic.value_clip")),
        ("trainer.algorithm.temperature", Idle, Lost("log-probabilities are those of rollout.temperature here")),
        ("trainer.train_batch_size", Idle, Integer("rollout.prompts_per_step")),
        ("trainer.critic_mini_batch_size", Idle, Lost("the critic has the actor's parts; critic.updates_per_rollout says otherwise")),
        ("trainer.update_epochs_per_batch", Idle, Integer("train.epochs_per_rollout")),
        ("trainer.policy.optimizer_config.lr", Idle, Number("train.learning_rate")),
        ("trainer.policy.optimizer_config.adam_betas", Idle, Betas),
        ("trainer.policy.optimizer_config.weight_decay", Idle, Number("train.weight_decay")),
        ("trainer.policy.optimizer_config.max_grad_norm", Idle, Number("train.grad_clip")),
        ("trainer.policy.optimizer_config.num_warmup_steps", Idle, Every("train.warmup_steps")),
        ("trainer.critic.optimizer_config.lr", Idle, Number("critic.learning_rate")),
        ("trainer.gradient_checkpointing", Idle, Recompute),
        ("trainer.bf16", Idle, On("model_options.dtype", "bf16")),
        ("trainer.ckpt_interval", Idle, Every("checkpoint.every")),
        ("trainer.max_ckpts_to_keep", Idle, Every("checkpoint.keep")),
        ("trainer.ckpt_path", Idle, Text("run.dir")),
        ("trainer.export_path", Idle, Lost("afterwards: plimsoll checkpoint export")),
        ("trainer.hf_save_interval", Idle, Lost("afterwards: plimsoll checkpoint export")),
        ("trainer.eval_interval", Idle, Every("eval.every")),
        ("trainer.eval_before_train", Idle, Lost("there is always an evaluation before and after a run here")),
        ("trainer.seed", Idle, Integer("seed")),
        ("trainer.fully_async.enabled", Idle, Lost(why::IN_TURN)),
    ],
    alike: &[
        (
            Later,
            "
                trainer trainer.policy.model.path trainer.ref.model.path trainer.critic.model.path
                trainer.policy.megatron_config.lora_config.lora_type data.train_data data.val_data
                generator.sampling_params.repetition_penalty generator.sampling_params.stop
                generator.chat_template.name_or_path generator.max_turns generator.apply_overlong_filtering
                environment.env_class trainer.algorithm.advantage_estimator trainer.algorithm.policy_loss_type
                trainer.algorithm.loss_reduction trainer.algorithm.max_seq_len trainer.algorithm.grpo_norm_by_std
                trainer.algorithm.eps_clip_low trainer.algorithm.eps_clip_high trainer.algorithm.clip_ratio_c
                trainer.algorithm.sapo.tau_pos trainer.algorithm.sapo.tau_neg trainer.algorithm.cispo.cispo_eps_clip_low
                trainer.algorithm.cispo.cispo_eps_clip_high trainer.algorithm.clip_cov.clip_ratio
                trainer.algorithm.clip_cov.clip_cov_lb trainer.algorithm.clip_cov.clip_cov_ub
                trainer.algorithm.kl_cov.kl_cov_frac trainer.algorithm.kl_cov.ppo_kl_coef
                trainer.algorithm.dppo.dppo_type trainer.algorithm.dppo.delta_low trainer.algorithm.dppo.delta_high
                trainer.algorithm.use_kl_loss trainer.algorithm.use_kl_in_reward trainer.algorithm.kl_loss_coef
                trainer.algorithm.kl_estimator_type|trainer.algorithm.kl_estimator trainer.algorithm.kl_ctrl.type
                trainer.algorithm.kl_ctrl.kl_target trainer.algorithm.kl_ctrl.horizon trainer.algorithm.use_entropy_loss
                trainer.algorithm.entropy_loss_coef trainer.algorithm.dynamic_sampling.type
                trainer.algorithm.dynamic_sampling.max_sample_batches
                trainer.algorithm.dynamic_sampling.min_replace_ratio trainer.algorithm.overlong_buffer_len
                trainer.algorithm.overlong_buffer_penalty_factor trainer.policy_mini_batch_size
                trainer.micro_train_batch_size_per_gpu trainer.max_tokens_per_microbatch trainer.epochs
                trainer.max_training_steps trainer.policy.optimizer_config.scheduler trainer.logger trainer.project_name
                trainer.run_name
            ",
        ),
        (
            Adapter,
            "
                trainer.policy.model.lora.rank trainer.policy.model.lora.alpha trainer.policy.model.lora.dropout
                trainer.policy.model.lora.target_modules
            ",
        ),
        (NotBuilt(Adapters), "trainer.policy.model.lora.exclude_modules trainer.critic.model.lora.rank"),
        (
            NotBuilt(Objective),
            "
                generator.sampling_params.additional_kwargs generator.zero_reward_on_non_stop
                trainer.algorithm.advantage_batch_normalize trainer.mtp.enabled trainer.update_ref_every_epoch
            ",
        ),
        (NotBuilt(Unknown(Subject::Turns)), "generator.step_wise_trajectories generator.merge_stepwise_output"),
        (
            Lost(why::ENGINE),
            "
                trainer.policy.model.lora.lora_sync_path trainer.policy.model.lora.max_loras
                trainer.policy.model.lora.max_cpu_loras
            ",
        ),
        (
            Lost(why::SAME),
            "
                generator.sampling_params.logprobs trainer.algorithm.use_tis trainer.algorithm.tis_imp_ratio_cap
            ",
        ),
        (Lost(why::RESUME), "trainer.resume_mode trainer.resume_path"),
    ],
    used: "",
    idle: "
        data.dataloader.* environment.skyrl_gym.* generator.batched generator.eval_sampling_params.*
        generator.inference_engine.* generator.use_cache_salt trainer.algorithm.off_policy_correction.*
        trainer.critic.* trainer.disable_fast_tokenizer trainer.dump_* trainer.enable_ray_gpu_monitor trainer.eval_batch_size
        trainer.flash_attn trainer.fully_async.* trainer.fused_lm_head_logprob trainer.gradient_checkpointing_use_reentrant
        trainer.log_* trainer.micro_forward_batch_size_per_gpu trainer.num_logger_* trainer.placement.* trainer.policy.*
        trainer.print_example_interval trainer.recompute_old_logprobs_per_minibatch trainer.ref.* trainer.remove_microbatch_padding
        trainer.sequence_parallel_backend trainer.strategy trainer.tags trainer.use_expandable_segments
    ",
    elsewhere: &[
        (why::SAME, "off_policy_correction."),
        (why::IN_TURN, "fully_async. recompute_old_logprobs"),
        (why::PLACEMENT, "placement.colocate"),
        (why::CLUSTER, "placement."),
        (why::ENGINE, "inference_engine. generator.batched use_cache_salt"),
        (why::SHARDING, "megatron fsdp sequence_parallel trainer.strategy"),
        (why::PLANNED, "micro_forward eval_batch_size use_expandable gradient_checkpointing_use"),
        (why::KERNELS, "flash_attn fused_lm_head use_torch_compile"),
        (why::PACKED, "remove_microbatch_padding"),
        (why::LOGGING, "trainer.log_ dump_ num_logger print_example ray_gpu_monitor trainer.tags profiler record_memory"),
        (why::LOADING, "data.dataloader"),
        (why::TOKENIZER, "fast_tokenizer"),
    ],
    secrets: "",
};
