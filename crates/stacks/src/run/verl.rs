//! verl's `main_ppo` with FSDP and a colocated engine; and simpleRL-reason's fork of it, whose engine takes its cache and
//! its swap space anew at each rollout.
//!
//! Legend: P parameters, N ranks of a shard, T cards of an engine, V vocab.

use super::hazards::{self, Hazard, Verdict};
use super::ledger::{self, Cluster, Item, Per, Phase, Pool};
use super::limits::Limits;
use super::model::{ModelOf, Shape};
use super::options::{Names, Options};
use super::torch::{Pass, Process, file_pages, held, nccl, pinned, process};
use super::verdict::Change;
use super::vllm::{Engine, swap_layer};
use super::{Draft, contradiction};
use plimsoll_base::{Bytes, Error, Result};

pub(super) static NAMES: Names = Names {
    used: &[
        "actor_rollout_ref.model.path",
        "critic.model.path",
        "algorithm.adv_estimator",
        "algorithm.use_kl_in_reward",
        "actor_rollout_ref.actor.use_kl_loss",
        "actor_rollout_ref.actor.strategy",
        "actor_rollout_ref.actor.use_dynamic_bsz",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
        "actor_rollout_ref.actor.ppo_micro_batch_size",
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
        "actor_rollout_ref.actor.entropy_from_logits_with_chunking",
        "actor_rollout_ref.actor.entropy_checkpointing",
        "actor_rollout_ref.actor.fsdp_config.param_offload",
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload",
        "actor_rollout_ref.actor.fsdp_config.fsdp_size",
        "actor_rollout_ref.actor.fsdp_config.model_dtype",
        "actor_rollout_ref.actor.checkpoint.save_contents|actor_rollout_ref.actor.checkpoint.contents",
        "actor_rollout_ref.ref.fsdp_config.param_offload",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
        "actor_rollout_ref.model.enable_gradient_checkpointing",
        "actor_rollout_ref.model.use_fused_kernels",
        "actor_rollout_ref.model.use_remove_padding",
        "actor_rollout_ref.model.lora_rank",
        "actor_rollout_ref.rollout.name",
        "actor_rollout_ref.rollout.n",
        "actor_rollout_ref.rollout.tensor_model_parallel_size",
        "actor_rollout_ref.rollout.gpu_memory_utilization",
        "actor_rollout_ref.rollout.free_cache_engine",
        "actor_rollout_ref.rollout.enforce_eager",
        "actor_rollout_ref.rollout.swap_space",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size",
        "actor_rollout_ref.rollout.engine_kwargs.swap_space|actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space",
        "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes",
        "critic.model.fsdp_config.param_offload",
        "critic.model.fsdp_config.optimizer_offload",
        "critic.model.enable_gradient_checkpointing",
        "critic.ppo_max_token_len_per_gpu",
        "critic.ppo_micro_batch_size_per_gpu",
        "data.train_batch_size",
        "data.max_prompt_length",
        "data.max_response_length",
        "trainer.n_gpus_per_node",
        "trainer.nnodes",
        "trainer.save_freq",
    ],
    idle: &[
        "algorithm.*",
        "data.*",
        "trainer.*",
        "reward*",
        "custom_reward_function.*",
        "global_profiler.*",
        "ray_*",
        "transfer_queue.*",
        "hydra.*",
        "actor_rollout_ref.actor.clip*",
        "actor_rollout_ref.actor.entropy_coeff",
        "actor_rollout_ref.actor.grad_clip",
        "actor_rollout_ref.actor.kl_loss*",
        "actor_rollout_ref.actor.loss*",
        "actor_rollout_ref.actor.optim.*",
        "actor_rollout_ref.actor.policy_loss.*",
        "actor_rollout_ref.actor.ppo_epochs",
        "actor_rollout_ref.actor.ppo_mini_batch_size",
        "actor_rollout_ref.actor.profiler.*",
        "actor_rollout_ref.actor.shuffle",
        "actor_rollout_ref.actor.rollout_n",
        "actor_rollout_ref.actor._target_",
        "actor_rollout_ref.actor.use_torch_compile",
        "actor_rollout_ref.actor.fsdp_config.*",
        "actor_rollout_ref.actor.checkpoint.*",
        "actor_rollout_ref.hybrid_engine",
        "actor_rollout_ref.model.*",
        "actor_rollout_ref.ref.*",
        "actor_rollout_ref.rollout.calculate_log_probs",
        "actor_rollout_ref.rollout.do_sample",
        "actor_rollout_ref.rollout.disable_log_stats",
        "actor_rollout_ref.rollout.dtype",
        "actor_rollout_ref.rollout.enable_chunked_prefill",
        "actor_rollout_ref.rollout.enable_prefix_caching",
        "actor_rollout_ref.rollout.ignore_eos",
        "actor_rollout_ref.rollout.load_format",
        "actor_rollout_ref.rollout.max_*",
        "actor_rollout_ref.rollout.micro_rollout_batch_size",
        "actor_rollout_ref.rollout.mode",
        "actor_rollout_ref.rollout.prompt_length",
        "actor_rollout_ref.rollout.response_length",
        "actor_rollout_ref.rollout.temperature",
        "actor_rollout_ref.rollout.top_*",
        "actor_rollout_ref.rollout.val_kwargs.*",
        "actor_rollout_ref.rollout.log_prob_*",
        "actor_rollout_ref.rollout.multi_turn.*",
        "actor_rollout_ref.rollout.agent.*",
        "actor_rollout_ref.rollout.profiler.*",
        "actor_rollout_ref.rollout.trace.*",
        "critic.*",
        "seed",
    ],
};

const FREE: &str = "actor_rollout_ref.rollout.free_cache_engine";
const SWAP: &str = "actor_rollout_ref.rollout.swap_space";
const UTIL: &str = "actor_rollout_ref.rollout.gpu_memory_utilization";

pub(super) const CHANGES: &[Change] = &[
    Change {
        words: "less swap space a card",
        values: |options| options.has(SWAP).then(|| vec![(SWAP, Some("4".into()))]),
    },
    Change {
        words: "no entropy over all logits at once",
        values: |options| {
            options.turn("actor_rollout_ref.actor.entropy_from_logits_with_chunking", false, true)
        },
    },
    Change {
        words: "logits that are never whole",
        values: |options| options.turn("actor_rollout_ref.model.use_fused_kernels", false, true),
    },
    Change {
        words: "fewer tokens a micro-batch",
        values: |options| {
            let dynamic = options.flag_or("actor_rollout_ref.actor.use_dynamic_bsz", false) == Ok(true);
            let name = if dynamic {
                "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
            } else {
                "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
            };
            let now = options.count(name).ok()??;
            (now > 1).then(|| vec![(name, Some((now / 2).to_string()))])
        },
    },
    Change {
        words: "a smaller share of the card for the engine",
        values: |options| {
            let share = options.share_or(UTIL, 0.5).ok()?;
            (share > 0.35).then(|| vec![(UTIL, Some(format!("{:.2}", share - 0.2)))])
        },
    },
    Change {
        words: "optimizer on the host",
        values: |options| options.turn("actor_rollout_ref.actor.fsdp_config.optimizer_offload", false, true),
    },
    Change {
        words: "optimizer on the card",
        values: |options| options.turn("actor_rollout_ref.actor.fsdp_config.optimizer_offload", false, false),
    },
    Change {
        words: "weights on the card",
        values: |options| options.turn("actor_rollout_ref.actor.fsdp_config.param_offload", false, false),
    },
];

const FSDP: &str =
    "verl b178a3cd5 (0.7.0) verl/workers/engine/fsdp/transformer_impl.py:196-350, config/engine/fsdp.yaml";
const OFFLOAD: &str = "verl b178a3cd5 verl/utils/fsdp_utils.py:144-212";

/// One run, as its settings say.
struct Run<'a> {
    options: &'a Options,
    limits: &'a Limits,
    draft: Draft,
    group: usize,
    ranks: u64,
    /// Ranks that share one copy.
    shards: u64,
    /// simpleRL-reason's fork, or a verl as old.
    is_fork: bool,
    longest: u64,
    /// Phase, tokens of a pass if every sequence is as long as allowed, and the bytes that it takes more then.
    longer: Vec<(Phase, u64, u128)>,
}

pub(super) fn draft(
    options: &Options,
    version: (u32, u32, u32),
    limits: &Limits,
    models: &ModelOf<'_>,
) -> Result<Draft> {
    let name = options.text("actor_rollout_ref.model.path")?.ok_or_else(|| {
        Error::usage("run-model-unknown", "the file names no model: actor_rollout_ref.model.path")
            .hint("add it with --set actor_rollout_ref.model.path=NAME")
    })?;
    let actor = Shape::policy(models(name)?);
    let is_fork = options.has(SWAP) || version < (0, 3, 0);
    if let Some(strategy) =
        options.text("actor_rollout_ref.actor.strategy")?.filter(|text| !text.starts_with("fsdp"))
    {
        return Err(contradiction(
            format!("actor.strategy = {strategy}: only fsdp and fsdp2 are planned"),
            "plan it with --set actor_rollout_ref.actor.strategy=fsdp to see the difference",
        ));
    }
    let default = limits.gpus.as_ref().map_or(8, |known| known.value);
    let per_node = options.count_or("trainer.n_gpus_per_node", default)?;
    let ranks = per_node.saturating_mul(options.count_or("trainer.nnodes", 1)?);
    if limits.gpus.as_ref().is_some_and(|known| known.value < per_node) {
        return Err(contradiction(
            format!("trainer.n_gpus_per_node = {per_node}, a node has {}", limits.cards()?),
            "give --gpus, or lower it",
        ));
    }
    let mut cluster = Cluster { cards_per_node: per_node, ..Cluster::default() };
    let group = cluster.group("actor, engine, reference, critic", ranks);
    let shards = options.whole("actor_rollout_ref.actor.fsdp_config.fsdp_size")?.unwrap_or(0);
    let shards = if shards == 0 { ranks } else { shards.min(ranks) };
    let longest = options
        .count_or("data.max_prompt_length", 512)?
        .saturating_add(options.count_or("data.max_response_length", 512)?);
    let draft = Draft { cluster, ..Draft::default() };
    let mut run = Run { options, limits, draft, group, ranks, shards, is_fork, longest, longer: Vec::new() };
    run.trained("actor", &actor)?;
    let has_critic = options.text_or("algorithm.adv_estimator", "gae")? == "gae";
    if has_critic {
        let spec = options.text("critic.model.path")?.map(models).transpose()?.unwrap_or(actor.spec);
        run.trained("critic", &Shape::value(spec))?;
    }
    let by_loss = options.flag_or("actor_rollout_ref.actor.use_kl_loss", false)?;
    if by_loss || options.flag_or("algorithm.use_kl_in_reward", false)? {
        run.reference(&actor)?;
    }
    run.engine(&actor)?;
    run.batches()?;
    run.save(&actor)?;
    run.judge_longest()?;
    let goes = |phase: &Phase| *phase != Phase::Critic || has_critic;
    run.draft.phases = Phase::ALL.iter().copied().filter(goes).collect();
    run.draft.notes.push("Ray's monitor kills from 95 % of the limit on; its object store keeps every page that it has touched, up to 30 % of memory".into());
    Ok(run.draft)
}

impl Run<'_> {
    #[allow(clippy::too_many_arguments)] // The columns of a row.
    fn row(
        &self,
        role: &'static str,
        name: &'static str,
        pool: Pool,
        bytes: u128,
        phases: &'static [Phase],
        formula: String,
        source: &'static str,
    ) -> Item {
        held(role, name, pool, self.group, bytes, phases, formula, source)
    }

    fn micro_tokens(&self, role: &str) -> Result<u64> {
        let options = self.options;
        if options.flag_or("actor_rollout_ref.actor.use_dynamic_bsz", false)? {
            let (name, default) = match role {
                "critic" => ("critic.ppo_max_token_len_per_gpu", 32_768),
                _ => ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", 16_384),
            };
            return Ok(options.count_or(name, default)?.max(self.longest));
        }
        let own = match role {
            "critic" => options.count("critic.ppo_micro_batch_size_per_gpu")?,
            _ => None,
        };
        let whole = options
            .count("actor_rollout_ref.actor.ppo_micro_batch_size")?
            .map(|all| (all / self.ranks).max(1));
        let micro = own
            .or(options.count("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu")?)
            .or(whole)
            .unwrap_or(1);
        let parallel = options.count_or("actor_rollout_ref.actor.ulysses_sequence_parallel_size", 1)?;
        Ok(micro.saturating_mul(self.longest).div_ceil(parallel))
    }

    /// Rows of a model that FSDP trains: f32 shards, bf16 layers gathered for a pass.
    fn trained(&mut self, role: &'static str, shape: &Shape) -> Result<()> {
        let options = self.options;
        let is_actor = role == "actor";
        let of = |actor: &'static str, critic: &'static str| if is_actor { actor } else { critic };
        let params =
            of("actor_rollout_ref.actor.fsdp_config.param_offload", "critic.model.fsdp_config.param_offload");
        let optimizer = of(
            "actor_rollout_ref.actor.fsdp_config.optimizer_offload",
            "critic.model.fsdp_config.optimizer_offload",
        );
        let (params, optimizer) = (options.flag_or(params, false)?, options.flag_or(optimizer, false)?);
        let element = match options.text("actor_rollout_ref.actor.fsdp_config.model_dtype")? {
            Some("bf16" | "bfloat16" | "fp16") => 2_u128,
            _ => 4,
        };
        let shard = u128::from(shape.params).div_ceil(u128::from(self.shards));
        let update: &'static [Phase] = if is_actor { &[Phase::Update] } else { &[Phase::Critic] };
        let awake: &'static [Phase] = match is_actor {
            true => &[Phase::Load, Phase::Experience, Phase::Update, Phase::Sync, Phase::Save],
            false => &[Phase::Load, Phase::Experience, Phase::Critic, Phase::Save],
        };
        // The actor's and the critic's process is one in the fork's and in later versions' colocated workers.
        let kind = if is_actor && self.is_fork { Process::Engine } else { Process::Trainer };
        self.draft.add(process(role, self.group, kind));
        self.draft.add(nccl(role, self.group, self.ranks));
        let sharded = |name, pool, bytes_each: u128, phases, source| {
            self.row(
                role,
                name,
                pool,
                bytes_each * shard,
                phases,
                format!("{bytes_each} B x {shard}"),
                source,
            )
        };
        let mut items =
            vec![sharded("weights", Pool::Device, element, if params { awake } else { Phase::ALL }, FSDP)];
        if params {
            items.push(sharded("weights, offloaded", Pool::Host, element, Phase::RUNNING, OFFLOAD));
        }
        items.push(sharded("gradients", Pool::Device, element, update, FSDP));
        let states = 2 * element;
        if optimizer {
            items.push(sharded("Adam m and v", Pool::Device, states, update, FSDP));
            items.push(sharded("Adam m and v, offloaded", Pool::Host, states, Phase::TRAINED, OFFLOAD));
        } else {
            items.push(sharded("Adam m and v", Pool::Device, states, Phase::TRAINED, FSDP));
        }
        let unit = u128::from(shape.layer().max(2 * shape.largest()));
        let passes: &'static [Phase] =
            if is_actor { &[Phase::Experience, Phase::Update] } else { &[Phase::Experience, Phase::Critic] };
        let formula = format!("2 B x {unit} of the largest unit, twice (prefetch)");
        items.push(self.row(role, "gathered weights", Pool::Device, 4 * unit, passes, formula, FSDP));
        let whole = 4 * u128::from(shape.params);
        let load = self.row(
            role,
            "model as it is read",
            Pool::Host,
            whole,
            &[Phase::Load],
            "4 B x P on rank 0, others on meta".into(),
            FSDP,
        );
        items.push(Item { per: Per::First, ..load });
        self.draft.add(items);
        self.passes(role, shape, update)?;
        self.draft.models.push((role, shape.params));
        Ok(())
    }

    fn passes(&mut self, role: &'static str, shape: &Shape, update: &'static [Phase]) -> Result<()> {
        let options = self.options;
        let is_actor = role == "actor";
        let fused = options.flag_or("actor_rollout_ref.model.use_fused_kernels", false)?;
        let chunked = options.flag_or("actor_rollout_ref.actor.entropy_from_logits_with_chunking", false)?;
        let (logits, formula) = match (is_actor && !fused, chunked) {
            (false, _) => (0, ""),
            (true, true) => (4, "(2 B bf16 + 2 B gradient), entropy by chunks of 2048"),
            (true, false) => (9, "(4 + 2 + 1 B of logits and entropy + 2 B gradient)"),
        };
        let recompute = match is_actor {
            true => "actor_rollout_ref.model.enable_gradient_checkpointing",
            false => "critic.model.enable_gradient_checkpointing",
        };
        let pass = Pass {
            role,
            group: self.group,
            phases: update,
            tokens: self.micro_tokens(role)?,
            trains: true,
            recompute: options.flag_or(recompute, !self.is_fork)?,
            logits_bytes: logits,
            logits_formula: formula,
            logits_source: "verl b178a3cd5 docs/perf/perf_tuning.rst:213, verl/utils/torch_functional.py:241",
        };
        let forward = Pass {
            phases: &[Phase::Experience],
            trains: false,
            tokens: self.forward_tokens(role)?,
            logits_bytes: logits.saturating_sub(2),
            logits_formula: if chunked { "2 B bf16" } else { "(4 + 2 + 1 B of logits and entropy)" },
            ..pass
        };
        // Without padding a micro-batch is as long as its sequences are: one of full length is certain to come.
        let is_dynamic = options.flag_or("actor_rollout_ref.actor.use_dynamic_bsz", false)?;
        let is_open =
            options.flag_or("actor_rollout_ref.model.use_remove_padding", !self.is_fork)? && !is_dynamic;
        for pass in [pass, forward] {
            let all = pass.tokens;
            let sure = Pass { tokens: if is_open { all.min(self.longest) } else { all }, ..pass };
            let (most, items) = (Pass { tokens: all, ..sure }.items(shape), sure.items(shape));
            let bytes = |items: &[Item]| items.iter().map(|item| item.bytes).sum::<u128>();
            if bytes(&most) > bytes(&items) {
                self.longer.push((pass.phases[0], all, bytes(&most) - bytes(&items)));
            }
            self.draft.add(items);
        }
        Ok(())
    }

    /// Micro-batches that would not fit if all their sequences were as long as they may be.
    fn judge_longest(&mut self) -> Result<()> {
        let Some(card) = self.limits.gpu_bytes.as_ref().map(|known| known.value) else { return Ok(()) };
        for (phase, tokens, more) in std::mem::take(&mut self.longer) {
            let certain = ledger::card(&self.draft.items, self.group, phase)?.bytes;
            let all = u128::from(certain.0).saturating_add(more);
            if certain <= card && all > u128::from(card.0) {
                let shown = Bytes(u64::try_from(all).unwrap_or(u64::MAX));
                self.draft.hazards.push(Hazard {
                    slug: "cuda-oom-logits",
                    verdict: Verdict::Open,
                    finding: format!(
                        "{}: with one sequence of {} tokens it fits, if all of a micro-batch are that long ({tokens} tokens) it takes {shown} of a card's {card}",
                        phase.name(), self.longest
                    ),
                    because: "without padding a micro-batch is as long as its responses are, and only the run shows how long those get".into(),
                    remedies: vec![
                        "use_dynamic_bsz=True: a budget of tokens in place of a number of sequences".into(),
                        "smaller log_prob_micro_batch_size_per_gpu and ppo_micro_batch_size_per_gpu".into(),
                    ],
                    source: "verl b178a3cd5 docs/perf/perf_tuning.rst, use_remove_padding",
                });
            }
        }
        Ok(())
    }

    fn forward_tokens(&self, role: &str) -> Result<u64> {
        let each = "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu";
        let whole = self.options.count("actor_rollout_ref.rollout.log_prob_micro_batch_size")?;
        let rows = self.options.count(each)?.or(whole.map(|all| (all / self.ranks).max(1)));
        match (role, rows, self.options.flag_or("actor_rollout_ref.actor.use_dynamic_bsz", false)?) {
            ("actor", Some(rows), false) => Ok(rows.saturating_mul(self.longest)),
            _ => self.micro_tokens(role),
        }
    }

    /// A reference model is always offloaded by FSDP: its shard lies on the host.
    fn reference(&mut self, shape: &Shape) -> Result<()> {
        let element = if self.is_fork { 2 } else { 4 };
        let shard = u128::from(shape.params).div_ceil(u128::from(self.shards));
        let formula = format!("{element} B x {shard}");
        let host = self.row(
            "reference",
            "weights, offloaded",
            Pool::Host,
            element * shard,
            Phase::ALL,
            formula,
            FSDP,
        );
        let unit = u128::from(shape.layer().max(2 * shape.largest()));
        let formula = format!("2 B x {unit} of the largest unit, twice (prefetch)");
        let device = self.row(
            "reference",
            "gathered weights",
            Pool::Device,
            4 * unit,
            &[Phase::Experience],
            formula,
            FSDP,
        );
        self.draft.add([host, device]);
        self.draft.models.push(("reference", shape.params));
        Ok(())
    }

    fn engine(&mut self, shape: &Shape) -> Result<()> {
        let options = self.options;
        let tensor_parallel = options.count_or("actor_rollout_ref.rollout.tensor_model_parallel_size", 2)?;
        if tensor_parallel > self.ranks {
            return Err(contradiction(
                format!("an engine of {tensor_parallel} cards, there are {}", self.ranks),
                "lower tensor_model_parallel_size",
            ));
        }
        let share = options.share_or(UTIL, 0.5)?;
        let frees = options.flag_or(FREE, true)?;
        let eager = options.flag_or("actor_rollout_ref.rollout.enforce_eager", self.is_fork)?;
        if self.is_fork && frees && !eager {
            return Err(contradiction(
                "free_cache_engine without enforce_eager: captured graphs hold addresses of the cache",
                "set enforce_eager=True, or free_cache_engine=False",
            ));
        }
        let asked = match options.text(SWAP)? {
            Some(_) => options.number_or(SWAP, 4.0)?,
            None if options.has("actor_rollout_ref.rollout.engine_kwargs.swap_space") => {
                options.number_or("actor_rollout_ref.rollout.engine_kwargs.swap_space", 4.0)?
            }
            None if self.is_fork => 4.0,
            None => 0.0,
        };
        let card = self.limits.card()?;
        let share = if self.is_fork { self.fork_share(shape, share, card, tensor_parallel) } else { share };
        let engine = Engine {
            group: self.group,
            tensor_parallel,
            share,
            card,
            sleeps: frees,
            host_copy: false,
            wakes_in_two: !self.is_fork,
            swap_gib: asked.min(1e9),
            own_process: !self.is_fork,
        };
        let items = engine.items(shape);
        self.draft.add(items);
        self.draft.hazards.extend(engine.hazard(shape, self.longest));
        if !self.is_fork {
            let megabytes = options.count_or(
                "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes",
                2048,
            )?;
            let formula = format!("{megabytes} MiB");
            let source = "verl b178a3cd5 config/rollout/rollout.yaml update_weights_bucket_megabytes";
            let bytes = u128::from(megabytes) << 20;
            let bucket =
                self.row("actor", "weight bucket", Pool::Device, bytes, &[Phase::Sync], formula, source);
            self.draft.add([bucket]);
            if frees {
                self.draft.hazards.extend(
                    hazards::sleep_mode(self.limits)
                        .map(|hazard| Hazard { verdict: Verdict::Note, ..hazard }),
                );
            }
        }
        self.draft.hazards.extend(self.regrown(shape, tensor_parallel, asked, frees)?);
        let words =
            if self.is_fork { "a vLLM 0.6.3 engine in the trainer's process" } else { "the vLLM servers" };
        self.draft.hazards.push(hazards::illegal_access(words, frees));
        Ok(())
    }

    /// The fork takes its share of what is free after weights are loaded, not of the card.
    fn fork_share(&self, shape: &Shape, share: f64, card: Bytes, tensor_parallel: u64) -> f64 {
        let weights = 2.0 * shape.params as f64 / tensor_parallel as f64;
        let shard = 4.0 * shape.params as f64 / self.shards as f64;
        let free = (card.0 as f64 - weights - shard).max(0.0);
        ((weights + share * free) / card.0 as f64).min(1.0)
    }

    /// A pinned pool that is dropped and taken again at each rollout grows: its blocks are handed to small requests.
    fn regrown(
        &self,
        shape: &Shape,
        tensor_parallel: u64,
        asked: f64,
        frees: bool,
    ) -> Result<Option<Hazard>> {
        if !(self.is_fork && frees && asked > 0.0) {
            return Ok(None);
        }
        let (_, layer) = swap_layer(&shape.spec, tensor_parallel, asked);
        let block = pinned(layer);
        let cards = self.ranks.min(self.draft.cluster.cards_per_node);
        let layers = u128::from(shape.spec.layers);
        let pool = block * layers * u128::from(cards);
        let shown = |bytes: u128| Bytes(u64::try_from(bytes).unwrap_or(u64::MAX));
        Ok(Some(Hazard {
            slug: "run-pinned-swap-regrown",
            verdict: Verdict::Bites,
            finding: format!(
                "swap_space = {asked} GiB a card is pinned as {} on {cards} cards ({layers} layers x {} x {cards}), dropped and taken again at every rollout: a block that a small pinned tensor holds in between costs {} more each time, {} a step if every rank loses one",
                shown(pool), shown(block), shown(block), shown(block * u128::from(cards))
            ),
            because: "PyTorch 2.4 keeps freed pinned blocks and serves any request with the smallest that is large enough, unsplit; nothing gives them back".into(),
            remedies: vec![
                format!("{FREE}=False: the pool is taken once"),
                format!("{SWAP}=0 or 4: frees up to {}", shown(pool)),
                "a vLLM with recompute preemption alone (0.8 or newer) and PyTorch 2.5 or newer".into(),
            ],
            source: "simpleRL-reason cf1c785 vllm_rollout.py; vLLM 0.6.3 worker/cache_engine.py; torch 2.4.0 CachingHostAllocator (lower_bound without a bound)",
        }))
    }

    /// A rollout batch in Ray's object store: padded rows of ids, mask and positions, and five f32 of each response token.
    fn batches(&mut self) -> Result<()> {
        let rows = self
            .options
            .count_or("data.train_batch_size", 1024)?
            .saturating_mul(self.options.count_or("actor_rollout_ref.rollout.n", 1)?);
        let prompt = self.options.count_or("data.max_prompt_length", 512)?;
        let response = self.options.count_or("data.max_response_length", 512)?;
        let row = 24 * u128::from(self.longest)
            + 8 * u128::from(prompt)
            + 8 * u128::from(response)
            + 20 * u128::from(response);
        let formula = format!("{rows} rows x ({} x 24 B + {prompt} x 8 B + {response} x 28 B)", self.longest);
        let source = "verl b178a3cd5 DataProto: int64 ids, mask, positions of padded rows; f32 log-probs, scores, advantages, returns";
        let item = self.row(
            "Ray",
            "rollout batch",
            Pool::Shm,
            u128::from(rows) * row,
            &[Phase::Experience, Phase::Critic, Phase::Update],
            formula,
            source,
        );
        self.draft.add([Item { per: Per::Run, ..item }]);
        Ok(())
    }

    fn save(&mut self, shape: &Shape) -> Result<()> {
        let params = u128::from(shape.params);
        let shard = params.div_ceil(u128::from(self.shards));
        if self.is_fork {
            let source = "verl 0.2 verl/workers/fsdp_workers.py save_checkpoint, FullStateDictConfig(offload_to_cpu, rank0_only)";
            let item = self.row(
                "actor",
                "gathered model",
                Pool::Host,
                4 * params,
                &[Phase::Save],
                "4 B x P on rank 0".into(),
                source,
            );
            self.draft.add([Item { per: Per::First, ..item }, file_pages("actor", self.group, 4 * params)]);
            return Ok(());
        }
        let source = "verl b178a3cd5 verl/utils/checkpoint/fsdp_checkpoint_manager.py:219-247, sharded state with offload_to_cpu";
        let formula = format!("(4 + 8) B x {shard}: weights and Adam of the shard");
        let item =
            self.row("actor", "sharded state", Pool::Host, 12 * shard, &[Phase::Save], formula, source);
        let pages = Item { per: Per::Rank, ..file_pages("actor", self.group, 12 * shard) };
        self.draft.add([item, pages]);
        let contents =
            self.options.text("actor_rollout_ref.actor.checkpoint.save_contents")?.unwrap_or_default();
        if contents.contains("hf_model") {
            let source = "verl b178a3cd5 verl/utils/checkpoint/fsdp_checkpoint_manager.py:300-350, rank 0 gathers hf_model";
            let item = self.row(
                "actor",
                "gathered model",
                Pool::Host,
                4 * params,
                &[Phase::Save],
                "4 B x P on rank 0".into(),
                source,
            );
            self.draft.add([Item { per: Per::First, ..item }]);
        }
        Ok(())
    }
}
