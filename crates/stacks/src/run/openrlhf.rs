//! OpenRLHF's `train_ppo_ray`, from 0.1 to 0.11: which roles share cards, what each takes, and how a model is saved.

use super::deepspeed::Zero;
use super::hazards;
use super::ledger::{Cluster, Item, Per, Phase, Pool};
use super::limits::Limits;
use super::model::{ModelOf, Shape};
use super::options::{Names, Options};
use super::torch::{Pass, Process, file_pages, held, nccl, process};
use super::verdict::Change;
use super::vllm::Engine;
use super::{Draft, contradiction};
use plimsoll_base::{Error, ModelSpec, Result};

pub(super) static NAMES: Names = Names {
    used: &[
        "pretrain|actor.model_name_or_path",
        "critic_pretrain|critic.model_name_or_path",
        "reward_pretrain|reward.model_name_or_path",
        "remote_rm_url|reward.remote_url",
        "advantage_estimator|algo.advantage.estimator",
        "init_kl_coef|algo.kl.init_coef",
        "actor_num_nodes|actor.num_nodes",
        "actor_num_gpus_per_node|actor.num_gpus_per_node",
        "critic_num_nodes|critic.num_nodes",
        "critic_num_gpus_per_node|critic.num_gpus_per_node",
        "ref_num_nodes|ref.num_nodes",
        "ref_num_gpus_per_node|ref.num_gpus_per_node",
        "reward_num_nodes|reward.num_nodes",
        "reward_num_gpus_per_node|reward.num_gpus_per_node",
        "colocate_all_models|train.colocate_all",
        "colocate_actor_ref|train.colocate_actor_ref",
        "colocate_critic_reward|train.colocate_critic_reward",
        "vllm_num_engines|vllm.num_engines",
        "vllm_tensor_parallel_size|vllm.tensor_parallel_size",
        "vllm_gpu_memory_utilization|vllm.gpu_memory_utilization",
        "vllm_enable_sleep|vllm.enable_sleep",
        "vllm_sync_backend|vllm.sync_backend",
        "deepspeed_enable_sleep|ds.enable_sleep",
        "async_train|train.async_enable",
        "zero_stage|ds.zero_stage",
        "adam_offload|ds.adam_offload",
        "ref_reward_offload|ref.offload|reward.offload",
        "grad_accum_dtype|ds.grad_accum_dtype",
        "gradient_checkpointing|actor.gradient_checkpointing_enable",
        "ring_attn_size|ds.ring_attn_size",
        "enable_ema|train.enable_ema",
        "train_batch_size|train.batch_size",
        "micro_train_batch_size|train.micro_batch_size",
        "micro_rollout_batch_size|rollout.micro_batch_size",
        "use_dynamic_batch|train.dynamic_batch_enable",
        "train_max_tokens_per_gpu|train.max_tokens_per_gpu",
        "rollout_max_tokens_per_gpu|rollout.max_tokens_per_gpu",
        "max_len|data.max_len",
        "prompt_max_len",
        "generate_max_len|rollout.max_new_tokens",
        "save_value_network|critic.save_value_network",
        "lora_rank|ds.lora.rank",
    ],
    idle: &[
        "actor_init_on_gpu",
        "actor_learning_rate",
        "adam_betas",
        "agent_func_path",
        "apply_chat_template",
        "async_queue_size",
        "attn_implementation",
        "aux_loss_coef",
        "actor.adam.*",
        "actor.muon.*",
        "actor.optim*",
        "actor.lr_*",
        "actor.min_lr_ratio",
        "actor.max_norm",
        "actor.aux_loss_coef",
        "actor.dual_clip",
        "actor.entropy_coef",
        "actor.eps_clip",
        "actor.eps_clip_low_high",
        "actor.freeze_visual_encoder",
        "actor.gradient_checkpointing_reentrant",
        "actor.policy_loss_type",
        "algo.advantage.gamma",
        "algo.advantage.lambd",
        "algo.advantage.is_correction*",
        "algo.advantage.no_std_norm",
        "algo.dynamic_filtering_enable",
        "algo.dynamic_filtering_range",
        "algo.kl.estimator",
        "algo.kl.horizon",
        "algo.kl.target",
        "algo.kl.use_loss",
        "balancing_loss_coef",
        "best_metric_key",
        "bf16",
        "bos_token",
        "ckpt_path",
        "ckpt.best_metric_key",
        "ckpt.disable_ds",
        "ckpt.load_enable",
        "ckpt.max_mem",
        "ckpt.max_num",
        "ckpt.output_dir",
        "ckpt.path",
        "ckpt.save_hf",
        "ckpt.save_steps",
        "critic_learning_rate",
        "critic.adam.*",
        "critic.muon.*",
        "critic.optim*",
        "critic.lr_*",
        "critic.min_lr_ratio",
        "critic.max_norm",
        "critic.freezing_steps",
        "critic.value_clip",
        "data.apply_chat_template",
        "data.dataloader_num_workers",
        "data.disable_fast_tokenizer",
        "data.image_key",
        "data.input_key",
        "data.input_template",
        "data.label_key",
        "data.max_images_per_prompt",
        "data.max_samples",
        "data.prompt_dataset",
        "data.prompt_probs",
        "data.prompt_split",
        "dataloader_num_workers",
        "disable_ds_ckpt",
        "disable_fast_tokenizer",
        "ds.attn_implementation",
        "ds.packing_samples",
        "ds.param_dtype",
        "ds.use_universal_ckpt",
        "ds.value_head_prefix",
        "ds.ring_attn_head_stride",
        "ds.lora.*",
        "dual_clip",
        "dynamic_filtering*",
        "ema_beta",
        "enable_prefix_caching",
        "enable_vllm_is_correction",
        "enforce_eager",
        "entropy_loss_coef",
        "eos_token",
        "eps_clip*",
        "eval*",
        "flash_attn",
        "freezing_actor_steps",
        "full_determinism",
        "gamma",
        "gradient_checkpointing_use_reentrant",
        "inference_tp_size",
        "input_key",
        "input_template",
        "kl_*",
        "l2",
        "label_key",
        "lambd",
        "load_checkpoint",
        "local_rank",
        "logger.logging_steps",
        "logger.tensorboard_dir",
        "logger.wandb.*",
        "logging_steps",
        "lora_alpha",
        "lora_dropout",
        "lr_*",
        "max_ckpt_*",
        "max_epochs",
        "max_norm",
        "max_samples",
        "n_samples_per_prompt",
        "no_advantage_std_norm",
        "normalize_reward",
        "num_episodes",
        "overlong_*",
        "packing_samples",
        "pad_token",
        "param_dtype",
        "perf",
        "policy_loss_type",
        "prompt_data",
        "prompt_data_probs",
        "prompt_split",
        "pretrain_data*",
        "ptx_coef",
        "reward_clip_range",
        "reward.clip_range",
        "reward.normalize_enable",
        "reward.overlong_*",
        "reward.stop_properly_penalty_coef",
        "ring_head_stride",
        "rollout_batch_size",
        "rollout.batch_size",
        "rollout.n_samples_per_prompt",
        "rollout.temperature",
        "rollout.top_p",
        "save_hf_ckpt",
        "save_path",
        "save_steps",
        "seed",
        "stop_properly_penalty_coef",
        "target_modules",
        "temperature",
        "top_p",
        "train.max_epochs",
        "train.num_episodes",
        "train.seed",
        "train.ema_beta",
        "train.async_queue_size",
        "train.agent_func_path",
        "train.full_determinism_enable",
        "unk_token",
        "use_ds_universal_ckpt",
        "use_kl_loss",
        "use_ms",
        "use_tensorboard",
        "use_wandb",
        "value_clip",
        "value_head_prefix",
        "vllm_sync_with_ray",
        "vllm.sync_with_ray",
        "vllm.enforce_eager",
        "vllm.enable_prefix_caching",
        "vllm_is_*",
        "wandb_*",
    ],
};

/// The cheapest first: what costs nothing, then time, then precision, then cards.
pub(super) const CHANGES: &[Change] = &[
    Change {
        words: "a batch of one backward pass, so that no gradients are accumulated; it changes the learning",
        values: |options| {
            let micro = options.count_or("micro_train_batch_size", 4).ok()?;
            let ranks = cards(options, "actor", 8).ok()?.min(cards(options, "critic", 8).ok()?);
            (options.flag_or("adam_offload", false) == Ok(true))
                .then(|| vec![("train_batch_size", Some((micro * ranks).to_string()))])
        },
    },
    Change {
        words: "recompute activations",
        values: |options| {
            (options.flag_or("gradient_checkpointing", false) == Ok(false))
                .then(|| vec![("gradient_checkpointing", Some(String::new()))])
        },
    },
    Change {
        words: "one sequence a backward pass",
        values: |options| {
            (options.count_or("micro_train_batch_size", 4) != Ok(1)).then(|| {
                vec![
                    ("micro_train_batch_size", Some("1".into())),
                    ("micro_rollout_batch_size", Some("1".into())),
                ]
            })
        },
    },
    Change {
        words: "let the engine sleep while the trainer works",
        values: |options| {
            let together = options.flag_or("colocate_all_models", false) == Ok(true);
            (together && options.flag_or("vllm_enable_sleep", false) == Ok(false))
                .then(|| vec![("vllm_enable_sleep", Some(String::new()))])
        },
    },
    Change {
        words: "keep the engine awake: no copy of its weights on the host",
        values: |options| {
            (options.flag_or("vllm_enable_sleep", false) == Ok(true))
                .then(|| vec![("vllm_enable_sleep", None)])
        },
    },
    Change {
        words: "a smaller share of the card for the engine",
        values: |options| {
            let share = options.share_or("vllm_gpu_memory_utilization", 0.95).ok()?;
            (options.has("vllm_num_engines") && share > 0.45)
                .then(|| vec![("vllm_gpu_memory_utilization", Some(format!("{:.2}", share - 0.2)))])
        },
    },
    Change {
        words: "states asleep between updates",
        values: |options| {
            let third = options.whole("zero_stage").ok()? == Some(3);
            let off = options.flag_or("deepspeed_enable_sleep", false) == Ok(false)
                && options.flag_or("adam_offload", false) == Ok(false);
            (third && off).then(|| vec![("deepspeed_enable_sleep", Some(String::new()))])
        },
    },
    Change {
        words: "shard weights too",
        values: |options| {
            (options.whole("zero_stage").ok()?.unwrap_or(2) < 3)
                .then(|| vec![("zero_stage", Some("3".into()))])
        },
    },
    Change {
        words: "bf16 gradients",
        values: |options| {
            (options.text("grad_accum_dtype").ok()? != Some("bf16"))
                .then(|| vec![("grad_accum_dtype", Some("bf16".into()))])
        },
    },
    Change {
        words: "states on the card: the host holds none",
        values: |options| {
            (options.flag_or("adam_offload", false) == Ok(true)).then(|| vec![("adam_offload", None)])
        },
    },
    Change {
        words: "optimizer on the host",
        values: |options| {
            (options.flag_or("adam_offload", false) == Ok(false))
                .then(|| vec![("adam_offload", Some(String::new()))])
        },
    },
    Change {
        words: "no critic, advantages from groups; it changes the method",
        values: |options| {
            (options.text_or("advantage_estimator", "gae") == Ok("gae"))
                .then(|| vec![("advantage_estimator", Some("group_norm".into()))])
        },
    },
];

/// Cards of a role: nodes x cards a node.
fn cards(options: &Options, role: &str, default: u64) -> Result<u64> {
    let (nodes, each) = match role {
        "actor" => ("actor_num_nodes", "actor_num_gpus_per_node"),
        "critic" => ("critic_num_nodes", "critic_num_gpus_per_node"),
        "reference" => ("ref_num_nodes", "ref_num_gpus_per_node"),
        _ => ("reward_num_nodes", "reward_num_gpus_per_node"),
    };
    Ok(options.count_or(nodes, 1)?.saturating_mul(options.count_or(each, default)?))
}

/// Bytes of an accumulated gradient.
fn grad_bytes(options: &Options, version: (u32, u32, u32)) -> Result<u64> {
    match options.text("grad_accum_dtype")? {
        Some("bf16" | "fp16") => Ok(2),
        Some("fp32") => Ok(4),
        Some(other) => Err(contradiction(format!("grad_accum_dtype = {other}: not a dtype"), "bf16 or fp32")),
        // Until 0.5.4 it was forced to fp32; since then it is the model's own.
        None if version < (0, 5, 4) => Ok(4),
        None => Ok(2),
    }
}

/// One run, as its settings say.
struct Run<'a> {
    options: &'a Options,
    version: (u32, u32, u32),
    limits: &'a Limits,
    draft: Draft,
    zero: Zero,
    recompute: bool,
    offloads_frozen: bool,
    update_tokens: u64,
    forward_tokens: u64,
    longest: u64,
}

pub(super) fn draft(
    options: &Options,
    version: (u32, u32, u32),
    limits: &Limits,
    models: &ModelOf<'_>,
) -> Result<Draft> {
    let actor = model(options, "pretrain", models)?.ok_or_else(|| {
        Error::usage("run-model-unknown", "the file names no model: --pretrain or --actor.model_name_or_path")
            .hint("add it with --set pretrain=NAME")
    })?;
    let mut run = Run::read(options, version, limits)?;
    let has_critic = options.text_or("advantage_estimator", "gae")? == "gae";
    let reward = match options.has("remote_rm_url") {
        true => None,
        false => model(options, "reward_pretrain", models)?,
    };
    let critic = match (has_critic, model(options, "critic_pretrain", models)?) {
        (false, _) => None,
        (true, Some(spec)) => Some(spec),
        (true, None) => Some(reward.unwrap_or(actor)),
    };
    let has_reference = options.number_or("init_kl_coef", 0.01)? > 0.0;
    let groups = run.place(critic.is_some(), has_reference, reward.is_some())?;
    run.trained("actor", groups.actor, &Shape::policy(actor))?;
    if let Some(spec) = critic {
        run.trained("critic", groups.critic, &Shape::value(spec))?;
    }
    if has_reference {
        run.frozen("reference", groups.reference, &Shape::policy(actor))?;
    }
    if let Some(spec) = reward {
        run.frozen("reward model", groups.reward, &Shape::value(spec))?;
    }
    run.rollout(&groups, &Shape::policy(actor))?;
    run.saves(&groups, &Shape::policy(actor), critic.map(Shape::value))?;
    run.finish(critic.is_some())
}

fn model(options: &Options, name: &str, models: &ModelOf<'_>) -> Result<Option<ModelSpec>> {
    options.text(name)?.filter(|text| !text.is_empty()).map(models).transpose()
}

/// Indices of the roles' cards.
struct Places {
    actor: usize,
    critic: usize,
    reference: usize,
    reward: usize,
    engine: Option<usize>,
    together: bool,
}

impl<'a> Run<'a> {
    fn read(options: &'a Options, version: (u32, u32, u32), limits: &'a Limits) -> Result<Run<'a>> {
        let is_new = version >= (0, 10, 2);
        let micro = options.count_or("micro_train_batch_size", if is_new { 1 } else { 4 })?;
        let micro_forward = options.count_or("micro_rollout_batch_size", if is_new { 1 } else { 8 })?;
        let longest = match (options.count("max_len")?, options.count("prompt_max_len")?) {
            (Some(longest), _) => longest,
            (None, prompt) if prompt.is_some() || options.has("generate_max_len") => {
                prompt.unwrap_or(1024).saturating_add(options.count_or("generate_max_len", 1024)?)
            }
            (None, _) => options.count_or("max_len", 2048)?,
        };
        let ring = options.count_or("ring_attn_size", 1)?;
        let (update_tokens, forward_tokens) = if options.flag_or("use_dynamic_batch", false)? {
            let update = options.count_or("train_max_tokens_per_gpu", 16_192)?;
            (update.max(longest), options.count("rollout_max_tokens_per_gpu")?.unwrap_or(update).max(longest))
        } else {
            (
                (micro.saturating_mul(longest)).div_ceil(ring),
                (micro_forward.saturating_mul(longest)).div_ceil(ring),
            )
        };
        let stage = options.whole("zero_stage")?.unwrap_or(2);
        if stage > 3 {
            return Err(contradiction(
                format!("zero_stage = {stage}: there are stages 0 to 3"),
                "set it to 2 or 3",
            ));
        }
        let offload = options.flag_or("adam_offload", false)?;
        if offload && stage == 0 {
            return Err(contradiction(
                "adam_offload with zero_stage 0: only sharded states are offloaded",
                "set zero_stage to 2 or 3, or leave adam_offload out",
            ));
        }
        let grad_bytes = grad_bytes(options, version)?;
        let zero = Zero {
            stage,
            ranks: 1,
            offload,
            pin: version >= (0, 1, 5),
            pin_master: version >= (0, 2, 6),
            grad_bytes,
            accumulates: false,
            sleep: options.flag_or("deepspeed_enable_sleep", false)? && stage == 3,
        };
        Ok(Run {
            options,
            version,
            limits,
            draft: Draft::default(),
            zero,
            recompute: options.flag_or("gradient_checkpointing", false)?,
            offloads_frozen: options.flag_or("ref_reward_offload", false)?,
            update_tokens,
            forward_tokens,
            longest,
        })
    }

    /// Which roles share cards.
    fn place(&mut self, critic: bool, reference: bool, reward: bool) -> Result<Places> {
        let default = if self.version < (0, 2, 0) { 1 } else { 8 };
        let of = |role| cards(self.options, role, default);
        let actor_cards = of("actor")?;
        let engines = self.options.whole("vllm_num_engines")?.unwrap_or(0);
        let engine_cards = engines.saturating_mul(self.options.count_or("vllm_tensor_parallel_size", 1)?);
        let together = self.options.flag_or("colocate_all_models", false)?;
        let mut cluster = Cluster::default();
        let places = if together {
            let all = [("critic", critic), ("reference", reference), ("reward", reward)];
            for (role, _) in all.into_iter().filter(|(_, is_there)| *is_there) {
                self.same_cards(role, of(role)?, actor_cards)?;
            }
            if engines > 0 {
                self.same_cards("engine", engine_cards, actor_cards)?;
            }
            let group = cluster.group("all roles", actor_cards);
            let engine = (engines > 0).then_some(group);
            Places { actor: group, critic: group, reference: group, reward: group, engine, together }
        } else {
            let with_reference = reference && self.options.flag_or("colocate_actor_ref", false)?;
            let with_reward = reward && self.options.flag_or("colocate_critic_reward", false)?;
            let actor = cluster.group(if with_reference { "actor, reference" } else { "actor" }, actor_cards);
            let critic_group = match critic {
                true => {
                    cluster.group(if with_reward { "critic, reward model" } else { "critic" }, of("critic")?)
                }
                false => actor,
            };
            let reference = match reference && !with_reference {
                true => cluster.group("reference", of("reference")?),
                false => actor,
            };
            let reward = match reward && !with_reward {
                true => cluster.group("reward model", of("reward")?),
                false => critic_group,
            };
            let engine = (engines > 0).then(|| cluster.group("engine", engine_cards));
            Places { actor, critic: critic_group, reference, reward, engine, together }
        };
        cluster.cards_per_node = self.limits.gpus.as_ref().map_or(cluster.cards(), |known| known.value);
        let largest = self.options.count_or("actor_num_gpus_per_node", default)?;
        if largest > cluster.cards_per_node {
            return Err(contradiction(
                format!(
                    "the actor asks for {largest} cards of a node, a node has {}",
                    cluster.cards_per_node
                ),
                "give --gpus, or lower actor_num_gpus_per_node",
            ));
        }
        self.draft.cluster = cluster;
        Ok(places)
    }

    fn same_cards(&self, role: &str, theirs: u64, actor: u64) -> Result<()> {
        match theirs == actor {
            true => Ok(()),
            false => Err(contradiction(
                format!("colocate_all: {role} has {theirs} cards, the actor {actor}"),
                "give all roles the same nodes and cards, engines x tensor parallel included",
            )),
        }
    }

    fn ranks(&self, group: usize) -> u64 {
        self.draft.cluster.groups[group].cards
    }

    fn trained(&mut self, role: &'static str, group: usize, shape: &Shape) -> Result<()> {
        let is_actor = role == "actor";
        let update: &'static [Phase] = if is_actor { &[Phase::Update] } else { &[Phase::Critic] };
        let ranks = self.ranks(group);
        let micro = self.options.count_or("micro_train_batch_size", 4)?;
        let passes = self.options.count_or("train_batch_size", 128)? / micro.saturating_mul(ranks).max(1);
        let accumulates = passes > 1 || self.options.flag_or("use_dynamic_batch", false)?;
        let zero = Zero { ranks, accumulates, ..self.zero };
        self.draft.add(process(role, group, Process::Trainer));
        self.draft.add(nccl(role, group, ranks));
        self.draft.add(zero.training(role, group, shape, update));
        // The critic has a column in the place of the vocabulary.
        let logits = |bytes| if is_actor { bytes } else { 0 };
        let source = "OpenRLHF 0.11.2 models/actor.py:267, logits.to(float32) of the whole batch";
        let pass = Pass {
            role,
            group,
            phases: update,
            tokens: self.update_tokens,
            trains: true,
            recompute: self.recompute,
            logits_bytes: logits(10),
            logits_formula: "(2 B bf16 + 4 B f32 + 4 B gradient)",
            logits_source: source,
        };
        self.draft.add(pass.items(shape));
        let forward = Pass {
            phases: &[Phase::Experience],
            tokens: self.forward_tokens,
            trains: false,
            logits_bytes: logits(6),
            logits_formula: "(2 B bf16 + 4 B f32)",
            ..pass
        };
        self.draft.add(forward.items(shape));
        self.draft.models.push((role, shape.params));
        if is_actor && self.options.flag_or("enable_ema", false)? {
            let bytes = 2 * u128::from(shape.params).div_ceil(u128::from(ranks));
            let source = "OpenRLHF 0.11.2 utils/deepspeed/deepspeed.py:503-517";
            let phases = Phase::ALL;
            self.draft.add([held(
                "moving average",
                "weights",
                Pool::Host,
                group,
                bytes,
                phases,
                format!("2 B x P / {ranks}"),
                source,
            )]);
        }
        Ok(())
    }

    fn frozen(&mut self, role: &'static str, group: usize, shape: &Shape) -> Result<()> {
        let ranks = self.ranks(group);
        let stage = if self.zero.stage == 3 { 3 } else { 0 };
        let zero = Zero { ranks, stage, ..self.zero };
        self.draft.add(process(role, group, Process::Trainer));
        self.draft.add(zero.loading(role, group, shape));
        let weights = zero.weights(role, group, shape);
        if self.offloads_frozen && stage == 3 {
            let source =
                "OpenRLHF 0.11.2 utils/deepspeed/deepspeed_utils.py:95-110, offload_param cpu, pinned";
            let onto_host = |item: Item| match item.name {
                "weights" => {
                    Item { pool: Pool::Host, bytes: super::torch::pinned(item.bytes), source, ..item }
                }
                _ => item,
            };
            self.draft.add(weights.into_iter().map(onto_host));
        } else {
            self.draft.add(weights);
        }
        let pass = Pass {
            role,
            group,
            phases: &[Phase::Experience],
            tokens: self.forward_tokens,
            trains: false,
            recompute: false,
            logits_bytes: if role == "reference" { 6 } else { 0 },
            logits_formula: "(2 B bf16 + 4 B f32)",
            logits_source: "OpenRLHF 0.11.2 models/actor.py:267",
        };
        self.draft.add(pass.items(shape));
        self.draft.models.push((role, shape.params));
        Ok(())
    }

    fn rollout(&mut self, places: &Places, shape: &Shape) -> Result<()> {
        let Some(group) = places.engine else {
            let micro = self.options.count_or("micro_rollout_batch_size", 8)?;
            let tokens = u128::from(micro.saturating_mul(self.longest));
            let bytes = tokens * u128::from(shape.kv_token());
            let formula = format!("{micro} sequences x {} tokens x {} B", self.longest, shape.kv_token());
            let source = "transformers generate(): keys and values of a whole micro-batch, bf16";
            self.draft.add([held(
                "actor",
                "KV cache",
                Pool::Device,
                places.actor,
                bytes,
                &[Phase::Rollout],
                formula,
                source,
            )]);
            return Ok(());
        };
        let asked = self.options.flag_or("vllm_enable_sleep", false)?;
        let sleeps = asked && places.together;
        if asked && !places.together {
            self.draft.notes.push(
                "vllm_enable_sleep is switched off without colocate_all (cli/train_ppo_ray.py:707)".into(),
            );
        }
        let is_first_engine = self.version < (0, 7, 0);
        let engine = Engine {
            group,
            tensor_parallel: self.options.count_or("vllm_tensor_parallel_size", 1)?,
            share: self.options.share_or("vllm_gpu_memory_utilization", 0.95)?,
            card: self.limits.card()?,
            sleeps,
            host_copy: sleeps,
            wakes_in_two: self.version >= (0, 9, 2),
            swap_gib: if is_first_engine { 4.0 } else { 0.0 },
            own_process: true,
        };
        self.draft.add(engine.items(shape));
        self.draft.hazards.extend(engine.hazard(shape, self.longest));
        let backend = self.options.text_or("vllm_sync_backend", "nccl")?;
        if places.together && backend == "nccl" && !self.options.flag_or("async_train", false)? {
            let source = "OpenRLHF 0.11.2 trainer/ray/ppo_actor.py:101, 439-466; torch 2.6.0 CUDACachingAllocator.cpp:465-521";
            let found = hazards::cuda_ipc(self.limits, "colocated engines take weights by CUDA IPC", source);
            self.draft.hazards.extend(found);
        }
        if sleeps {
            self.draft.hazards.extend(hazards::sleep_mode(self.limits));
        }
        let engines = self.options.whole("vllm_num_engines")?.unwrap_or(0);
        self.draft.hazards.push(hazards::illegal_access(&format!("{engines} vLLM engines"), sleeps));
        Ok(())
    }

    fn saves(&mut self, places: &Places, actor: &Shape, critic: Option<Shape>) -> Result<()> {
        self.save("actor", places.actor, actor);
        if let Some(critic) = critic.filter(|_| self.options.flag_or("save_value_network", false) == Ok(true))
        {
            self.save("critic", places.critic, &critic);
        }
        Ok(())
    }

    /// How a Hugging Face copy is written, which changed with the versions.
    fn save(&mut self, role: &'static str, group: usize, shape: &Shape) {
        let whole = 2 * u128::from(shape.params);
        let row = |name, bytes, per, formula: &str, source| Item {
            per,
            ..held(role, name, Pool::Host, group, bytes, &[Phase::Save], formula.into(), source)
        };
        let copy = match (self.zero.stage, self.version) {
            (3, _) => row(
                "gathered model",
                whole,
                Per::First,
                "2 B x P on rank 0",
                "OpenRLHF 0.11.2 utils/deepspeed/deepspeed.py:536-560",
            ),
            (_, version) if version >= (0, 7, 5) => row(
                "copy of the model",
                whole,
                Per::Rank,
                "2 B x P on every rank",
                "OpenRLHF 0.11.2 utils/deepspeed/deepspeed.py:541-552, clone_tensors_for_torch_save outside is_rank_0",
            ),
            (_, version) if version >= (0, 2, 0) => row(
                "copy of the model",
                whole,
                Per::First,
                "2 B x P on rank 0",
                "OpenRLHF 0.2.0 utils/deepspeed.py save_model, v.data.cpu() into one dictionary",
            ),
            _ => row(
                "shard that is written",
                whole.min(5_000_000_000),
                Per::First,
                "min(2 B x P, 5 GB) as bytes on rank 0",
                "OpenRLHF 0.1.0 utils/deepspeed.py:267-292, save_pretrained from the card; transformers max_shard_size",
            ),
        };
        self.draft.add([copy, file_pages(role, group, whole)]);
    }

    fn finish(mut self, has_critic: bool) -> Result<Draft> {
        let engines = self.options.whole("vllm_num_engines")?.unwrap_or(0);
        let goes = |phase: &Phase| match phase {
            Phase::Critic => has_critic,
            Phase::Sync => engines > 0,
            _ => true,
        };
        self.draft.phases = Phase::ALL.iter().copied().filter(goes).collect();
        if self.options.whole("lora_rank")?.unwrap_or(0) > 0 {
            self.draft
                .notes
                .push("lora_rank: adapters are planned as training of all weights, which is more".into());
        }
        self.draft.notes.push("Ray's monitor kills from 95 % of the limit on; its object store and the batches in it are not in the rows".into());
        Ok(self.draft)
    }
}
