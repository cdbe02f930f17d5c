//! Options of prime-rl's `rl` and `sft`.

use crate::table::Memory::Idle;
use crate::table::Take::*;
use crate::table::{Table, why};
use crate::unbuilt::Unbuilt::{Adapters, Images, Objective, Optimizer, Quantisation};

pub(super) static TABLE: Table = Table {
    stack: "prime-rl",
    rows: &[
        ("settings_of_environments", Idle, Lost("they are read by the environments' packages there")),
        ("orchestrator.model.name", Idle, Lost("the trainer's model is the one that samples")),
        ("trainer.model.quantization.type|model.quantization.type", Idle, NotBuilt(Quantisation)),
        ("trainer.model.lora.modules_to_save|model.lora.modules_to_save", Idle, NotBuilt(Adapters)),
        ("trainer.model.ac.freq|model.ac.freq", Idle, Lost(why::PLANNED)),
        ("trainer.model.freeze_moe_router|model.freeze_moe_router", Idle, Lost("a router stays frozen under an adapter here")),
        ("tokenizer.chat_template|trainer.tokenizer.chat_template|orchestrator.tokenizer.chat_template", Idle, Text("data.chat_template")),
        ("tokenizer.name|trainer.tokenizer.name|orchestrator.tokenizer.name", Idle, Text("model_options.tokenizer")),
        ("orchestrator.renderer.thinking_retention|renderer.thinking_retention", Idle, Lost("a turn stays in the prompt of the next one as it was sampled")),
        ("orchestrator.group_size", Idle, Integer("rollout.group_size")),
        ("orchestrator.max_off_policy_steps", Idle, Lost(why::IN_TURN)),
        ("orchestrator.train.sampling.max_completion_tokens", Idle, Integer("rollout.max_new_tokens")),
        ("orchestrator.train.sampling.temperature", Idle, Number("rollout.temperature")),
        ("orchestrator.train.sampling.extra_body.top_p", Idle, Number("rollout.top_p")),
        ("orchestrator.train.sampling.extra_body.top_k", Idle, TopK),
        ("orchestrator.train.sampling.extra_body.min_p", Idle, Number("rollout.min_p")),
        ("orchestrator.eval.num_examples", Idle, Lost("an evaluation has all rows of its file here")),
        ("orchestrator.eval.sampling.max_completion_tokens", Idle, Lost("an evaluation samples with rollout.max_new_tokens here")),
        ("eval.interval", Idle, Lost("an evaluation of `sft` is of data.eval, by loss")),
        ("eval.num_examples", Idle, Lost("an evaluation of `sft` is of data.eval, by loss")),
        ("eval.sampling.max_completion_tokens", Idle, Lost("an evaluation of `sft` is of data.eval, by loss")),
        ("orchestrator.eval.interval", Idle, Every("eval.every")),
        ("orchestrator.eval.group_size", Idle, Integer("eval.samples")),
        ("orchestrator.eval.sampling.temperature", Idle, Number("eval.temperature")),
        ("trainer.loss.dppo_mask_low", Idle, Number("loss.clip_low")),
        ("trainer.loss.dppo_mask_high", Idle, Number("loss.clip_high")),
        ("trainer.loss.kl_tau", Idle, Lost("it compares the trainer with the sampler, which are one policy here: its gradient is 0")),
        ("trainer.optim.lr|optim.lr", Idle, Number("train.learning_rate")),
        ("trainer.optim.weight_decay|optim.weight_decay", Idle, Number("train.weight_decay")),
        ("trainer.optim.max_norm|optim.max_norm", Idle, Number("train.grad_clip")),
        ("trainer.optim.mu|optim.mu", Idle, NotBuilt(Optimizer)),
        ("trainer.scheduler.warmup_steps|scheduler.warmup_steps", Idle, Every("train.warmup_steps")),
        ("trainer.scheduler.decay_steps|scheduler.decay_steps", Idle, Lost("a schedule falls over all steps here")),
        ("trainer.scheduler.min_lr|scheduler.min_lr", Idle, Lost("schedules end at 0 here")),
        ("data.probabilities", Idle, Lost("set a `weight` for each file of data.prompts")),
        ("data.batch_size", Idle, Integer("rollout.prompts_per_step")),
        ("data.seed", Idle, Integer("seed")),
        ("val.interval", Idle, Every("eval.every")),
        ("ckpt.interval|trainer.ckpt.interval", Idle, Every("checkpoint.every")),
        ("ckpt.keep_last|trainer.ckpt.keep_last", Idle, Integer("checkpoint.keep")),
        ("output_dir|trainer.output_dir", Idle, Text("run.dir")),
        ("resume.step", Idle, Lost(why::RESUME)),
    ],
    alike: &[
        (
            Later,
            "
                trainer taskset_ids model.name|trainer.model.name orchestrator.renderer.name|renderer.name
                max_steps|trainer.max_steps|orchestrator.max_steps
                seq_len|orchestrator.seq_len|trainer.model.seq_len|model.seq_len orchestrator.batch_size
                orchestrator.token_batch_size orchestrator.train.filter_zero_advantages orchestrator.algo.type
                trainer.loss.type trainer.loss.ipo_threshold trainer.loss.adv_tau trainer.optim.type|optim.type
                trainer.optim.betas1|optim.betas1 trainer.optim.betas2|optim.betas2
                trainer.scheduler.type|scheduler.type data.type data.name data.subsets data.splits data.seq_len
                data.micro_batch_size data.shuffle data.loss_mask.system data.loss_mask.user data.loss_mask.assistant
                data.loss_mask.tool val.data.name monitors.wandb.project monitors.wandb.name monitors.wandb.offline
            ",
        ),
        (
            Adapter,
            "
                lora.is_given trainer.model.lora.rank|model.lora.rank trainer.model.lora.alpha|model.lora.alpha
                trainer.model.lora.dropout|model.lora.dropout
                trainer.model.lora.target_modules|model.lora.target_modules
            ",
        ),
        (
            NotBuilt(Images),
            "
                model.vlm.vision_encoder_attr|trainer.model.vlm.vision_encoder_attr
                model.vlm.language_model_attr|trainer.model.vlm.language_model_attr
            ",
        ),
        (
            NotBuilt(Objective),
            "
                orchestrator.algo.length_penalty.type orchestrator.algo.length_penalty.num_output_tokens_weight
                orchestrator.algo.length_penalty.num_input_tokens_weight
                orchestrator.algo.length_penalty.num_turns_weight trainer.loss.import_path
            ",
        ),
        (
            Lost(why::ENGINE),
            "
                orchestrator.model.lora.name orchestrator.model.lora.rank orchestrator.model.lora.alpha
                orchestrator.renderer.reasoning_parser|renderer.reasoning_parser
            ",
        ),
    ],
    used: "",
    idle: "
        bench ckpt.* clean data.fake.* data.num_workers data.stopping_strategy deployment.* dry_run env_vars.* eval.*
        inference.* log.* monitors.* orchestrator.ckpt.* orchestrator.collect_* orchestrator.concurrency.*
        orchestrator.env_vars.* orchestrator.eval.* orchestrator.log.* orchestrator.monitors.* orchestrator.num_train_workers
        orchestrator.train.source.* orchestrator.weight_broadcast.* resume.* rollout_transport.* slurm.* trainer.ckpt.*
        trainer.data.* trainer.dist_timeout_seconds trainer.enable_router_replay trainer.log.* trainer.matmul_precision
        trainer.model.* trainer.monitors.* trainer.weight_broadcast.* model.* run.* weight_broadcast.* val.*
    ",
    elsewhere: &[
        (why::ENGINE, "inference. concurrency. weight_broadcast rollout_transport env_server tasks_per_minute"),
        (why::CLUSTER, "deployment. slurm. dist_timeout num_train_workers"),
        (why::SHARDING, "model.cp model.ep model.dp_replicate fsdp_cpu_offload reshard_after reduce_dtype"),
        (why::PLANNED, "ac_offloading fused_lm_head full_offload optim_cpu_offload optimization_dtype pad_to_multiple"),
        (why::KERNELS, "model.attn model.impl model.compile matmul_precision moe_use_grouped moe_fused"),
        (why::LOGGING, "log. monitors. collect_inference_metrics memory_profiler trace_path metrics_server heartbeat"),
        (why::CHECKPOINTS, "ckpt. clean"),
        (why::LOADING, "num_workers stopping_strategy"),
        (why::IN_TURN, "dry_run"),
        (why::FILES, "trust_remote_code conversion_dir"),
    ],
    secrets: "",
};
