//! Options of OpenRLHF's trainers: flat flags up to 0.10.1 and dotted ones since.

use crate::table::Memory::{Idle, Used};
use crate::table::Take::*;
use crate::table::{Table, why};
use crate::unbuilt::Unbuilt::Objective;

pub(super) static TABLE: Table = Table {
    stack: "openrlhf",
    rows: &[
        ("pretrain|actor.model_name_or_path|model.model_name_or_path", Used, Later),
        ("tokenizer_chat_template|data.tokenizer_chat_template", Idle, Text("data.chat_template")),
        ("data.image_key", Idle, Later),
        ("actor.freeze_visual_encoder", Idle, Later),
        ("input_key|data.input_key", Idle, Text("data.prompt_column")),
        ("label_key|data.label_key", Idle, Text("data.answer_column")),
        ("input_template|data.input_template", Idle, Lost("write it as data.chat_template, a Jinja template")),
        ("prompt_max_len|data.prompt_max_len", Used, Integer("data.prompt_tokens_max")),
        ("generate_max_len|rollout.max_new_tokens", Used, Later),
        ("max_len|data.max_len", Used, Later),
        ("rollout_batch_size|rollout.batch_size", Idle, Integer("rollout.prompts_per_step")),
        ("n_samples_per_prompt|rollout.n_samples_per_prompt", Idle, Integer("rollout.group_size")),
        ("temperature|rollout.temperature", Idle, Number("rollout.temperature")),
        ("top_p|rollout.top_p", Idle, Number("rollout.top_p")),
        ("train_batch_size|train.batch_size", Used, Integer("train.mini_batch")),
        ("micro_train_batch_size|train.micro_batch_size", Used, Later),
        ("train_max_tokens_per_gpu|max_tokens_per_gpu|train.max_tokens_per_gpu", Used, Integer("train.micro_batch_tokens")),
        ("max_epochs|train.max_epochs", Idle, Integer("train.epochs_per_rollout")),
        ("actor_learning_rate|actor.adam.lr", Idle, Number("train.learning_rate")),
        ("critic_learning_rate|critic.adam.lr", Idle, Number("critic.learning_rate")),
        ("learning_rate|adam.lr", Idle, Number("train.learning_rate")),
        ("min_lr_ratio|actor.min_lr_ratio", Idle, Lost("schedules end at 0 here")),
        ("critic.lr_scheduler", Idle, Lost("the critic follows the actor's schedule")),
        ("critic.lr_warmup_ratio", Idle, Lost("the critic follows the actor's schedule")),
        ("adam_betas|actor.adam.betas|adam.betas", Idle, Betas),
        ("actor.adam.eps|adam.eps", Idle, Number("train.adam_epsilon")),
        ("l2|actor.adam.weight_decay|adam.weight_decay", Idle, Number("train.weight_decay")),
        ("max_norm|actor.max_norm", Idle, Number("train.grad_clip")),
        ("eps_clip|actor.eps_clip", Idle, Clips),
        ("eps_clip_low_high|actor.eps_clip_low_high", Idle, ClipPair),
        ("dual_clip|actor.dual_clip", Idle, Number("loss.dual_clip")),
        ("value_clip|critic.value_clip", Idle, Number("critic.value_clip")),
        ("gamma|algo.advantage.gamma", Idle, Number("loss.gamma")),
        ("lambd|algo.advantage.lambd", Idle, Number("loss.lambda")),
        ("advantage_estimator|algo.advantage.estimator", Used, Later),
        ("no_advantage_std_norm|algo.advantage.no_std_norm", Idle, On("loss.whiten", "no_std")),
        ("init_kl_coef|algo.kl.init_coef", Used, Number("loss.kl_coef")),
        ("kl_target|algo.kl.target", Idle, Number("loss.kl_target")),
        ("kl_horizon|algo.kl.horizon", Idle, Number("loss.kl_horizon")),
        ("kl_estimator|algo.kl.estimator", Idle, Names("loss.kl_estimator", &[("k1", "k1"), ("k2", "k2"), ("k3", "k3")])),
        ("beta|model.beta", Idle, Number("loss.dpo_beta")),
        ("ipo|model.ipo_enable", Idle, On("loss.loss_type", "ipo")),
        ("label_smoothing|model.label_smoothing", Idle, Number("loss.label_smoothing")),
        ("margin_loss|model.margin_loss_enable", Idle, Lost("a column `margin` is read here if the pairs have one")),
        ("compute_fp32_loss|model.compute_fp32_loss_enable", Idle, Lost("the loss is always f32 here")),
        ("aux_loss_coef|actor.aux_loss_coef|model.aux_loss_coef", Idle, Lost("it is `loss.balance_coef` here, which a model with experts takes")),
        ("lora_rank|ds.lora.rank", Used, Adapter),
        ("load_in_4bit|ds.load_in_4bit", Used, Adapter),
        ("enforce_eager|vllm.enforce_eager", Idle, Lost(why::EAGER)),
        ("packing_samples|ds.packing_samples", Idle, Lost(why::PACKED)),
        ("entropy_loss_coef|actor.entropy_coef", Idle, Number("loss.entropy_coef")),
        ("overlong_buffer_len|reward.overlong_buffer_len", Idle, Integer("loss.overlong_buffer")),
        ("overlong_penalty_factor|reward.overlong_penalty_factor|reward.overlong_buffer_penalty_factor", Idle, Number("loss.overlong_factor")),
        ("freezing_actor_steps|critic.freezing_steps", Idle, Every("critic.warmup_steps")),
        ("critic_pretrain|critic.model_name_or_path", Used, Later),
        ("remote_rm_url|reward.remote_url", Used, Later),
        ("reward_pretrain|reward.model_name_or_path", Used, Later),
        ("actor.loss_agg_mode", Idle, Names("loss.aggregation", &[("token-mean", "token_mean"), ("seq-mean-token-mean", "seq_mean_token_mean")])),
        ("balancing_loss_coef", Idle, Lost("it is `loss.balance_coef` here, which a model with experts takes")),
        ("gradient_checkpointing|actor.gradient_checkpointing_enable|model.gradient_checkpointing_enable", Used, Recompute),
        ("adam_offload|ds.adam_offload", Used, Offload("optimizer")),
        ("ref_reward_offload|ref.offload", Used, Offload("reference")),
        ("grad_accum_dtype|ds.grad_accum_dtype", Used, Names("train.grad_dtype", &[("bf16", "bf16"), ("fp32", "f32")])),
        ("bf16", Idle, On("model_options.dtype", "bf16")),
        ("param_dtype|ds.param_dtype", Idle, Names("model_options.dtype", &[("bf16", "bf16")])),
        ("seed|train.seed", Idle, Integer("seed")),
        ("save_path|ckpt.output_dir", Idle, Text("run.dir")),
        ("save_steps|ckpt.save_steps", Idle, Every("checkpoint.every")),
        ("max_ckpt_num|ckpt.max_num", Idle, Integer("checkpoint.keep")),
        ("eval_steps|eval.steps", Idle, Every("eval.every")),
        ("eval_temperature|eval.temperature", Idle, Number("eval.temperature")),
        ("eval_n_samples_per_prompt|eval.n_samples_per_prompt", Idle, Integer("eval.samples")),
        ("load_checkpoint|ckpt.load_enable", Idle, Lost(why::RESUME)),
        ("wandb_group|logger.wandb.group", Idle, Lost("W&B's client takes it from WANDB_RUN_GROUP")),
        ("wandb_org|logger.wandb.org", Idle, Lost("W&B's client takes it from WANDB_ENTITY")),
    ],
    alike: &[
        (
            Later,
            "
                trainer prompt_data|data.prompt_dataset prompt_data_probs|data.prompt_probs
                prompt_split|data.prompt_split dataset_split|data.dataset_split eval_split|eval.split
                dataset|data.dataset dataset_probs|data.dataset_probs output_key|data.output_key
                prompt_key|data.prompt_key chosen_key|data.chosen_key rejected_key|data.rejected_key
                multiturn|data.multiturn agent_func_path|train.agent_func_path eval_dataset|eval.dataset
                apply_chat_template|data.apply_chat_template num_episodes|train.num_episodes
                max_samples|data.max_samples optim|actor.optim muon.lr|actor.muon.lr muon.momentum|actor.muon.momentum
                lr_scheduler|actor.lr_scheduler lr_warmup_ratio|actor.lr_warmup_ratio
                policy_loss_type|actor.policy_loss_type use_kl_loss|algo.kl.use_loss ref_pretrain|ref.model_name_or_path
                loss|model.loss_type reward_clip_range|reward.clip_range normalize_reward|reward.normalize_enable
                dynamic_filtering|algo.dynamic_filtering_enable
                dynamic_filtering_reward_range|algo.dynamic_filtering_range
                stop_properly_penalty_coef|reward.stop_properly_penalty_coef use_wandb|logger.wandb.key
                wandb_project|logger.wandb.project wandb_run_name|logger.wandb.run_name
                use_tensorboard|logger.tensorboard_dir
            ",
        ),
        (Adapter, "lora_alpha|ds.lora.alpha lora_dropout|ds.lora.dropout target_modules|ds.lora.target_modules"),
        (
            NotBuilt(Objective),
            "
                nll_loss_coef|model.nll_loss_coef pretrain_mode|model.pretrain_mode_enable pretrain_data ptx_coef
            ",
        ),
        (
            Lost(why::SAME),
            "
                enable_vllm_is_correction|algo.advantage.is_correction_enable
                vllm_is_truncated_threshold|algo.advantage.is_correction_threshold
                vllm_is_correction_type|algo.advantage.is_correction_type algo.advantage.is_correction_mode
                algo.advantage.is_correction_level algo.advantage.is_correction_gating
            ",
        ),
    ],
    used: "
        actor_num_nodes|actor.num_nodes actor_num_gpus_per_node|actor.num_gpus_per_node
        critic_num_nodes|critic.num_nodes critic_num_gpus_per_node|critic.num_gpus_per_node
        ref_num_nodes|ref.num_nodes ref_num_gpus_per_node|ref.num_gpus_per_node reward_num_nodes|reward.num_nodes
        reward_num_gpus_per_node|reward.num_gpus_per_node colocate_all_models|train.colocate_all
        colocate_actor_ref|train.colocate_actor_ref colocate_critic_reward|train.colocate_critic_reward
        vllm_num_engines|vllm.num_engines vllm_tensor_parallel_size|vllm.tensor_parallel_size
        vllm_gpu_memory_utilization|vllm.gpu_memory_utilization vllm_enable_sleep|vllm.enable_sleep
        vllm_sync_backend|vllm.sync_backend deepspeed_enable_sleep|ds.enable_sleep async_train|train.async_enable
        zero_stage|ds.zero_stage reward.offload ring_attn_size|ds.ring_attn_size enable_ema|train.enable_ema
        micro_rollout_batch_size|rollout.micro_batch_size use_dynamic_batch|train.dynamic_batch_enable
        rollout_max_tokens_per_gpu|rollout.max_tokens_per_gpu save_value_network|critic.save_value_network
    ",
    idle: "
        actor.adam.* actor.gradient_checkpointing_reentrant actor.lr_* actor.muon.*
        actor.optim* actor_init_on_gpu async_queue_size attn_implementation
        best_metric_key bos_token ckpt.best_metric_key ckpt.disable_ds ckpt.max_mem ckpt.path
        ckpt.save_hf ckpt_path critic.adam.* critic.lr_* critic.max_norm critic.min_lr_ratio critic.muon.*
        critic.optim* data.dataloader_num_workers data.disable_fast_tokenizer
        data.max_images_per_prompt dataloader_num_workers deepcompile disable_ds_ckpt
        disable_fast_tokenizer ds.attn_implementation ds.deepcompile ds.experts_implementation ds.lora.*
        ds.overlap_comm ds.ring_attn_head_stride ds.tensor_parallel_size ds.use_liger_kernel ds.use_universal_ckpt
        ds.value_head_prefix ds.zpg ds_tensor_parallel_size dynamic_filtering* ema_beta enable_prefix_caching
        eos_token eps_clip* eval* flash_attn full_determinism gradient_checkpointing_use_reentrant
        inference_tp_size kl_* local_rank logger.logging_steps logging_steps
        lr_* max_ckpt_* max_ckpt_mem model.gradient_checkpointing_reentrant muon.*
        overlap_comm overlong_* pad_token perf pretrain_data_* pretrain_split reward.overlong_*
        ring_head_stride save_hf_ckpt
        train.async_queue_size train.ema_beta train.full_determinism_enable train_split unk_token
        use_ds_universal_ckpt use_liger_kernel use_ms value_head_prefix
        vllm.enable_prefix_caching vllm.sync_with_ray vllm_is_* vllm_sync_with_ray zpg
    ",
    elsewhere: &[
        (why::CLUSTER, "num_gpus num_nodes"),
        (why::ENGINE, "vllm enable_prefix_caching"),
        (why::PLACEMENT, "colocate"),
        (why::SHARDING, "zero_stage zpg ring_attn tensor_parallel overlap_comm"),
        (why::PLACEMENT, "ds.enable_sleep deepspeed_enable_sleep"),
        (why::IN_TURN, "async"),
        (why::PLANNED, "micro_rollout_batch_size rollout.micro_batch_size dynamic_batch"),
        (why::KERNELS, "flash_attn attn_implementation liger deepcompile"),
        (why::LOGGING, "logging_steps"),
        (why::ADAPTER, "lora"),
        (why::TOKENIZER, "bos_token eos_token pad_token unk_token fast_tokenizer"),
        (why::PART, "_split"),
        (why::CHECKPOINTS, "save_hf ckpt.path ckpt_path"),
        (why::LOADING, "dataloader"),
    ],
    secrets: "use_wandb logger.wandb.key",
};
