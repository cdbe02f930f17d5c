//! OpenRLHF's memory: roles that share cards, the memory of each, and of saving a model, by version.

use crate::options::{Change, Options, contradiction, set};
use crate::plan::hazards;
use crate::plan::ledger::{Cluster, Holder, Ledger, Phase, When};
use crate::plan::limits::{Limits, Version};
use crate::plan::model::{ModelOf, Shape, model, named_model};
use crate::plan::pool::Pool;
use crate::rules::deepspeed::Zero;
use crate::rules::torch::{Logits, Pass, Process, file_pages, kv_cache, nccl, pinned, process};
use crate::rules::vllm::Engine;
use plimsoll_base::Result;

/// Cheapest first: changes that cost nothing, then time, then precision, then cards.
pub(super) const CHANGES: &[Change] = &[
    (
        "a batch of one backward pass, so that no gradients are accumulated; it changes the learning",
        |options| {
            let micro = options.count_or("micro_train_batch_size", 4).ok()?;
            let ranks = cards(options, "actor", 8).ok()?.min(cards(options, "critic", 8).ok()?);
            (options.flag_or("adam_offload", false) == Ok(true))
                .then(|| set("train_batch_size", micro.saturating_mul(ranks)))
        },
    ),
    ("recompute activations", |options| options.switch("gradient_checkpointing", true)),
    ("one sequence a backward pass", |options| {
        let sizes = ["micro_train_batch_size", "micro_rollout_batch_size"];
        (options.count_or("micro_train_batch_size", 4) != Ok(1))
            .then(|| sizes.map(|name| (name, Some("1".into()))).into())
    }),
    ("let the engine sleep while the trainer works", |options| {
        let together = options.flag_or("colocate_all_models", false) == Ok(true);
        if together { options.switch("vllm_enable_sleep", true) } else { None }
    }),
    ("keep the engine awake: no copy of its weights on the host", |options| {
        options.switch("vllm_enable_sleep", false)
    }),
    ("a smaller share of the card for the engine", |options| {
        let smaller = options.smaller_share("vllm_gpu_memory_utilization", 0.95, 0.45);
        smaller.filter(|_| options.has("vllm_num_engines"))
    }),
    ("states asleep between updates", |options| {
        let third = options.whole("zero_stage").ok()? == Some(3);
        let may = third && options.flag_or("adam_offload", false) == Ok(false);
        options.switch("deepspeed_enable_sleep", true).filter(|_| may)
    }),
    ("shard weights too", |options| {
        (options.whole("zero_stage").ok()?.unwrap_or(2) < 3).then(|| set("zero_stage", 3))
    }),
    ("bf16 gradients", |options| {
        (options.text("grad_accum_dtype").ok()? != Some("bf16")).then(|| set("grad_accum_dtype", "bf16"))
    }),
    ("states on the card: the host holds none", |options| options.switch("adam_offload", false)),
    ("optimizer on the host", |options| options.switch("adam_offload", true)),
    ("no critic, advantages from groups; it changes the method", |options| {
        (options.text_or("advantage_estimator", "gae") == Ok("gae"))
            .then(|| set("advantage_estimator", "group_norm"))
    }),
];

fn cards(options: &Options, role: &str, default: u64) -> Result<u64> {
    let (nodes, each) = match role {
        "actor" => ("actor_num_nodes", "actor_num_gpus_per_node"),
        "critic" => ("critic_num_nodes", "critic_num_gpus_per_node"),
        "reference" => ("ref_num_nodes", "ref_num_gpus_per_node"),
        _ => ("reward_num_nodes", "reward_num_gpus_per_node"),
    };
    Ok(options.count_or(nodes, 1)?.saturating_mul(options.count_or(each, default)?))
}

fn grad_bytes(options: &Options, version: Version) -> Result<u64> {
    match options.text("grad_accum_dtype")? {
        Some("bf16" | "fp16") => Ok(2),
        Some("fp32") => Ok(4),
        Some(other) => Err(contradiction(format!("grad_accum_dtype = {other}: not a dtype"), "bf16 or fp32")),
        // Forced to fp32 before 0.5.4; since then the model's own.
        None if version < (0, 5, 4) => Ok(4),
        None => Ok(2),
    }
}

struct Run<'a> {
    options: &'a Options,
    version: Version,
    limits: &'a Limits,
    ledger: Ledger,
    zero: Zero,
    recompute: bool,
    offloads_frozen: bool,
    update_tokens: u64,
    forward_tokens: u64,
    longest: u64,
}

pub(super) fn rules(
    options: &Options,
    version: Version,
    limits: &Limits,
    models: &ModelOf<'_>,
) -> Result<Ledger> {
    let actor = named_model(options, "pretrain", "--pretrain or --actor.model_name_or_path", models)?;
    let mut run = Run::read(options, version, limits)?;
    let has_critic = options.text_or("advantage_estimator", "gae")? == "gae";
    let reward = if options.has("remote_rm_url") { None } else { model(options, "reward_pretrain", models)? };
    let critic = match (has_critic, model(options, "critic_pretrain", models)?) {
        (false, _) => None,
        (true, spec) => spec.or(reward).or(Some(actor)),
    };
    let has_reference = options.number_or("init_kl_coef", 0.01)? > 0.0;
    let places = run.place(critic.is_some(), has_reference, reward.is_some())?;
    let actor = Shape::policy(actor);
    run.trained("actor", places.actor, &actor)?;
    if let Some(spec) = critic {
        run.trained("critic", places.critic, &Shape::value(spec))?;
    }
    if has_reference {
        run.frozen("reference", places.reference, &actor)?;
    }
    if let Some(spec) = reward {
        run.frozen("reward model", places.reward, &Shape::value(spec))?;
    }
    run.rollout(&places, &actor)?;
    run.save(Holder { role: "actor", group: places.actor }, &actor);
    if let Some(critic) = critic.filter(|_| options.flag_or("save_value_network", false) == Ok(true)) {
        run.save(Holder { role: "critic", group: places.critic }, &Shape::value(critic));
    }
    run.finish(critic.is_some())
}

/// Indices of each role's cards.
struct Places {
    actor: usize,
    critic: usize,
    reference: usize,
    reward: usize,
    engine: Option<usize>,
    together: bool,
}

impl<'a> Run<'a> {
    fn read(options: &'a Options, version: Version, limits: &'a Limits) -> Result<Run<'a>> {
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
            ledger: Ledger::default(),
            zero,
            recompute: options.flag_or("gradient_checkpointing", false)?,
            // The flat spelling has one flag for both frozen models, the dotted one has one each.
            offloads_frozen: options.flag_or(options.later("ref_reward_offload", "reward.offload"), false)?,
            update_tokens,
            forward_tokens,
            longest,
        })
    }

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
            for (role, _) in all.into_iter().filter(|(_, is_loaded)| *is_loaded) {
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
            let critic_group = if critic {
                cluster.group(if with_reward { "critic, reward model" } else { "critic" }, of("critic")?)
            } else {
                actor
            };
            let reference = if reference && !with_reference {
                cluster.group("reference", of("reference")?)
            } else {
                actor
            };
            let reward = if reward && !with_reward {
                cluster.group("reward model", of("reward")?)
            } else {
                critic_group
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
        self.ledger.cluster = cluster;
        Ok(places)
    }

    fn same_cards(&self, role: &str, theirs: u64, actor: u64) -> Result<()> {
        if theirs == actor {
            return Ok(());
        }
        let message = format!("colocate_all: {role} has {theirs} cards, the actor {actor}");
        let hint = "give all roles the same nodes and cards, engines x tensor parallel included";
        Err(contradiction(message, hint))
    }

    fn ranks(&self, group: usize) -> u64 {
        self.ledger.cluster.groups[group].cards
    }

    fn trained(&mut self, role: &'static str, group: usize, shape: &Shape) -> Result<()> {
        let (holder, is_actor) = (Holder { role, group }, role == "actor");
        let update: When = if is_actor { &[Phase::Update] } else { &[Phase::Critic] };
        let ranks = self.ranks(group);
        let micro = self.options.count_or("micro_train_batch_size", 4)?;
        let passes = self.options.count_or("train_batch_size", 128)? / micro.saturating_mul(ranks).max(1);
        let accumulates = passes > 1 || self.options.flag_or("use_dynamic_batch", false)?;
        let zero = Zero { ranks, accumulates, ..self.zero };
        self.ledger.add(process(holder, Process::Trainer));
        self.ledger.add(nccl(holder, ranks));
        self.ledger.add(zero.training(holder, shape, update));
        // The critic's head has one column, the actor's the vocabulary.
        let logits = |logits| if is_actor { logits } else { Logits::NONE };
        let source = "OpenRLHF 0.11.2 models/actor.py:267, logits.to(float32) of the whole batch";
        let pass = Pass {
            holder,
            phases: update,
            tokens: self.update_tokens,
            trains: true,
            recompute: self.recompute,
            logits: logits(Logits::trained(source)),
        };
        self.ledger.add(pass.items(shape));
        let (phases, tokens): (When, u64) = (&[Phase::Experience], self.forward_tokens);
        let forward = Pass { phases, tokens, trains: false, logits: logits(Logits::scored(source)), ..pass };
        self.ledger.add(forward.items(shape));
        self.ledger.models.push((role, shape.params));
        if is_actor && self.options.flag_or("enable_ema", false)? {
            let bytes = 2 * u128::from(shape.params).div_ceil(u128::from(ranks));
            let source = "OpenRLHF 0.11.2 utils/deepspeed/deepspeed.py:503-517";
            let average = Holder { role: "moving average", group };
            let formula = format!("2 B x P / {ranks}");
            self.ledger.add([average.host("weights", bytes, Phase::ALL, formula, source)]);
        }
        Ok(())
    }

    fn frozen(&mut self, role: &'static str, group: usize, shape: &Shape) -> Result<()> {
        let holder = Holder { role, group };
        let stage = if self.zero.stage == 3 { 3 } else { 0 };
        let zero = Zero { ranks: self.ranks(group), stage, ..self.zero };
        self.ledger.add(process(holder, Process::Trainer));
        self.ledger.add([zero.loading(holder, shape)]);
        let mut weights = zero.weights(holder, shape);
        if self.offloads_frozen && stage == 3 {
            let source =
                "OpenRLHF 0.11.2 utils/deepspeed/deepspeed_utils.py:95-110, offload_param cpu, pinned";
            for item in weights.iter_mut().filter(|item| item.name == "weights") {
                (item.pool, item.bytes, item.source) = (Pool::Host, pinned(item.bytes), source);
            }
        }
        self.ledger.add(weights);
        let pass = Pass {
            holder,
            phases: &[Phase::Experience],
            tokens: self.forward_tokens,
            trains: false,
            recompute: false,
            logits: match role {
                "reference" => Logits::scored("OpenRLHF 0.11.2 models/actor.py:267"),
                _ => Logits::NONE,
            },
        };
        self.ledger.add(pass.items(shape));
        self.ledger.models.push((role, shape.params));
        Ok(())
    }

    fn rollout(&mut self, places: &Places, shape: &Shape) -> Result<()> {
        let Some(group) = places.engine else {
            let micro = self.options.count_or("micro_rollout_batch_size", 8)?;
            let source = "transformers generate(): keys and values of a whole micro-batch, bf16";
            let actor = Holder { role: "actor", group: places.actor };
            self.ledger.add([kv_cache(actor, (micro, "sequences"), self.longest, shape, source)]);
            return Ok(());
        };
        let asked = self.options.flag_or("vllm_enable_sleep", false)?;
        let sleeps = asked && places.together;
        if asked && !places.together {
            self.ledger
                .note("vllm_enable_sleep is switched off without colocate_all (cli/train_ppo_ray.py:707)");
        }
        let engine = Engine {
            group,
            tensor_parallel: self.options.count_or("vllm_tensor_parallel_size", 1)?,
            share: self.options.share_or("vllm_gpu_memory_utilization", 0.95)?,
            card: self.limits.card()?,
            sleeps,
            host_copy: sleeps,
            wakes_in_two: self.version >= (0, 9, 2),
            // The first engine has swap space.
            swap_gib: if self.version < (0, 7, 0) { 4.0 } else { 0.0 },
            own_process: true,
        };
        self.ledger.add(engine.items(shape));
        self.ledger.hazards.extend(engine.hazard(shape, self.longest));
        let backend = self.options.text_or("vllm_sync_backend", "nccl")?;
        if places.together && backend == "nccl" && !self.options.flag_or("async_train", false)? {
            let source = "OpenRLHF 0.11.2 trainer/ray/ppo_actor.py:101, 439-466; torch 2.6.0 CUDACachingAllocator.cpp:465-521";
            let found = hazards::cuda_ipc(self.limits, "colocated engines take weights by CUDA IPC", source);
            self.ledger.hazards.extend(found);
        }
        if sleeps {
            self.ledger.hazards.extend(hazards::sleep_mode(self.limits));
        }
        let engines = self.options.whole("vllm_num_engines")?.unwrap_or(0);
        self.ledger.hazards.push(hazards::illegal_access(&format!("{engines} vLLM engines"), sleeps));
        Ok(())
    }

    /// Adds the memory of saving a Hugging Face copy, which differs between versions.
    fn save(&mut self, holder: Holder, shape: &Shape) {
        let whole = 2 * u128::from(shape.params);
        let (name, bytes, formula, source) = match (self.zero.stage, self.version) {
            (3, _) => (
                "gathered model",
                whole,
                "2 B x P on rank 0",
                "OpenRLHF 0.11.2 utils/deepspeed/deepspeed.py:536-560",
            ),
            (_, version) if version >= (0, 7, 5) => (
                "copy of the model",
                whole,
                "2 B x P on every rank",
                "OpenRLHF 0.11.2 utils/deepspeed/deepspeed.py:541-552, clone_tensors_for_torch_save outside is_rank_0",
            ),
            (_, version) if version >= (0, 2, 0) => (
                "copy of the model",
                whole,
                "2 B x P on rank 0",
                "OpenRLHF 0.2.0 utils/deepspeed.py save_model, v.data.cpu() into one dictionary",
            ),
            _ => (
                "shard that is written",
                whole.min(5_000_000_000),
                "min(2 B x P, 5 GB) as bytes on rank 0",
                "OpenRLHF 0.1.0 utils/deepspeed.py:267-292, save_pretrained from the card; transformers max_shard_size",
            ),
        };
        let copy = holder.host(name, bytes, &[Phase::Save], formula, source);
        let on_every_rank = self.zero.stage != 3 && self.version >= (0, 7, 5);
        self.ledger.add([if on_every_rank { copy } else { copy.first() }, file_pages(holder, whole)]);
    }

    fn finish(mut self, has_critic: bool) -> Result<Ledger> {
        let engines = self.options.whole("vllm_num_engines")?.unwrap_or(0);
        self.ledger.goes_through(|phase| match phase {
            Phase::Critic => has_critic,
            Phase::Sync => engines > 0,
            _ => true,
        });
        if self.options.whole("lora_rank")?.unwrap_or(0) > 0 {
            self.ledger.note("lora_rank: adapters are planned as training of all weights, which is more");
        }
        if self.options.flag_or("load_in_4bit", false)? {
            self.ledger.note("load_in_4bit: weights are planned in bf16, which is more");
        }
        self.ledger.note("Ray's monitor kills from 95 % of the limit on; its object store and the batches in it are not in the rows");
        Ok(self.ledger)
    }
}
