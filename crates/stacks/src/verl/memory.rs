//! verl's memory with FSDP and a colocated engine; and simpleRL-reason's, which reallocates cache and swap per rollout.
//!
//! Legend: P parameters, N ranks of a shard, T cards of an engine, V vocab.

use crate::options::{Change, Options, contradiction, set};
use crate::plan::hazards::{self, Hazard, Verdict};
use crate::plan::ledger::{Holder, Item, Ledger, Per, Phase, When, shown};
use crate::plan::limits::{Limits, Version};
use crate::plan::model::{ModelOf, Shape, named_model};
use crate::plan::pool::Pool;
use crate::rules::torch::{Logits, Pass, Process, file_pages, nccl, pinned, process};
use crate::rules::vllm::{Engine, swap_layer};
use plimsoll_base::{Bytes, Result};

const FREE: &str = "actor_rollout_ref.rollout.free_cache_engine";
const SWAP: &str = "actor_rollout_ref.rollout.swap_space";
const ENGINE_SWAP: &str = "actor_rollout_ref.rollout.engine_kwargs.swap_space";
const UTIL: &str = "actor_rollout_ref.rollout.gpu_memory_utilization";
const DYNAMIC: &str = "actor_rollout_ref.actor.use_dynamic_bsz";
const MAX_TOKENS: &str = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu";
const MICRO: &str = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu";
const CHUNKED: &str = "actor_rollout_ref.actor.entropy_from_logits_with_chunking";
const FUSED: &str = "actor_rollout_ref.model.use_fused_kernels";
const PARAMS: &str = "actor_rollout_ref.actor.fsdp_config.param_offload";
const OPTIMIZER: &str = "actor_rollout_ref.actor.fsdp_config.optimizer_offload";

pub(super) const CHANGES: &[Change] = &[
    ("less swap space a card", |options| options.has(SWAP).then(|| set(SWAP, 4))),
    ("no entropy over all logits at once", |options| options.turn(CHUNKED, false, true)),
    ("logits that are never whole", |options| options.turn(FUSED, false, true)),
    ("fewer tokens a micro-batch", |options| {
        let dynamic = options.flag_or(DYNAMIC, false) == Ok(true);
        let name = if dynamic { MAX_TOKENS } else { MICRO };
        let now = options.count(name).ok()??;
        (now > 1).then(|| set(name, now / 2))
    }),
    ("a smaller share of the card for the engine", |options| options.smaller_share(UTIL, 0.5, 0.35)),
    ("optimizer on the host", |options| options.turn(OPTIMIZER, false, true)),
    ("optimizer on the card", |options| options.turn(OPTIMIZER, false, false)),
    ("weights on the card", |options| options.turn(PARAMS, false, false)),
];

const FSDP: &str =
    "verl b178a3cd5 (0.7.0) verl/workers/engine/fsdp/transformer_impl.py:196-350, config/engine/fsdp.yaml";
const OFFLOAD: &str = "verl b178a3cd5 verl/utils/fsdp_utils.py:144-212";

struct Run<'a> {
    options: &'a Options,
    limits: &'a Limits,
    ledger: Ledger,
    group: usize,
    ranks: u64,
    /// Ranks that share one copy.
    shards: u64,
    /// True for simpleRL-reason's fork, or a verl of its age.
    is_fork: bool,
    longest: u64,
    /// Phase, tokens of a pass if every sequence has the allowed length, and the additional bytes.
    longer: Vec<(Phase, u64, u128)>,
}

pub(super) fn rules(
    options: &Options,
    version: Version,
    limits: &Limits,
    models: &ModelOf<'_>,
) -> Result<Ledger> {
    let model = "actor_rollout_ref.model.path";
    let actor = Shape::policy(named_model(options, model, model, models)?);
    let strategy = options.text("actor_rollout_ref.actor.strategy")?;
    if let Some(strategy) = strategy.filter(|text| !text.starts_with("fsdp")) {
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
    let (ledger, group) = Ledger::of_one_group("actor, engine, reference, critic", ranks, per_node);
    let shards = options.whole("actor_rollout_ref.actor.fsdp_config.fsdp_size")?.unwrap_or(0);
    let shards = if shards == 0 { ranks } else { shards.min(ranks) };
    let longest = options
        .count_or("data.max_prompt_length", 512)?
        .saturating_add(options.count_or("data.max_response_length", 512)?);
    let is_fork = options.has(SWAP) || version < (0, 3, 0);
    let mut run = Run { options, limits, ledger, group, ranks, shards, is_fork, longest, longer: Vec::new() };
    run.trained("actor", &actor)?;
    let has_critic = options.text_or("algorithm.adv_estimator", "gae")? == "gae";
    if has_critic {
        let spec = options.text("critic.model.path")?.map(models).transpose()?.unwrap_or(actor.spec);
        run.trained("critic", &Shape::value(spec))?;
    }
    let by_loss = options.flag_or("actor_rollout_ref.actor.use_kl_loss", false)?;
    // With adapters the reference is the actor without them, in every version (`ref_in_actor` of main_ppo).
    let adapts = options.whole("actor_rollout_ref.model.lora_rank")?.unwrap_or(0) > 0;
    if !adapts && (by_loss || options.flag_or("algorithm.use_kl_in_reward", false)?) {
        run.reference(&actor);
    }
    run.engine(&actor)?;
    run.batches()?;
    run.save(&actor)?;
    run.judge_longest()?;
    run.ledger.goes_through(|phase| phase != Phase::Critic || has_critic);
    if adapts {
        run.ledger.note("lora_rank: adapters are planned as training of all weights, which is more");
    }
    run.ledger.note("Ray's monitor kills from 95 % of the limit on; its object store keeps every page that it has touched, up to 30 % of memory");
    Ok(run.ledger)
}

impl Run<'_> {
    fn holder(&self, role: &'static str) -> Holder {
        Holder { role, group: self.group }
    }

    /// Returns the part of `shape` that a rank owns.
    fn shard(&self, shape: &Shape) -> u128 {
        u128::from(shape.params).div_ceil(u128::from(self.shards))
    }

    /// Returns the largest unit's bf16 weights, gathered for a pass while the next one is prefetched.
    fn gathered(&self, role: &'static str, shape: &Shape, passes: When) -> Item {
        // Embedding and head are in the root's unit; a layer's experts are in the layer's.
        let unit = u128::from(shape.layer().max(2 * shape.embedding()));
        let formula = format!("2 B x {unit} of the largest unit, twice (prefetch)");
        self.holder(role).card("gathered weights", 4 * unit, passes, formula, FSDP)
    }

    fn micro_tokens(&self, role: &str) -> Result<u64> {
        let options = self.options;
        if options.flag_or(DYNAMIC, false)? {
            let (name, default) = match role {
                "critic" => ("critic.ppo_max_token_len_per_gpu", 32_768),
                _ => (MAX_TOKENS, 16_384),
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
        let micro = own.or(options.count(MICRO)?).or(whole).unwrap_or(1);
        let parallel = options.count_or("actor_rollout_ref.actor.ulysses_sequence_parallel_size", 1)?;
        Ok(micro.saturating_mul(self.longest).div_ceil(parallel))
    }

    /// Adds the rows of a model trained by FSDP: f32 shards, bf16 layers gathered for a pass.
    fn trained(&mut self, role: &'static str, shape: &Shape) -> Result<()> {
        let (options, holder, is_actor) = (self.options, self.holder(role), role == "actor");
        let (params, optimizer) = if is_actor {
            (PARAMS, OPTIMIZER)
        } else {
            ("critic.model.fsdp_config.param_offload", "critic.model.fsdp_config.optimizer_offload")
        };
        let (params, optimizer) = (options.flag_or(params, false)?, options.flag_or(optimizer, false)?);
        let element = match options.text("actor_rollout_ref.actor.fsdp_config.model_dtype")? {
            Some("bf16" | "bfloat16" | "fp16") => 2_u128,
            _ => 4,
        };
        let (update, passes, awake): (When, When, When) = if is_actor {
            (
                &[Phase::Update],
                &[Phase::Experience, Phase::Update],
                &[Phase::Load, Phase::Experience, Phase::Update, Phase::Sync, Phase::Save],
            )
        } else {
            (
                &[Phase::Critic],
                &[Phase::Experience, Phase::Critic],
                &[Phase::Load, Phase::Experience, Phase::Critic, Phase::Save],
            )
        };
        // The fork's actor is in the engine's process.
        let kind = if is_actor && self.is_fork { Process::Engine } else { Process::Trainer };
        self.ledger.add(process(holder, kind));
        self.ledger.add(nccl(holder, self.ranks));
        let shard = self.shard(shape);
        let formula = |each: u128| format!("{each} B x {shard}");
        let card = |name, each, phases| holder.card(name, each * shard, phases, formula(each), FSDP);
        let host = |name, each| holder.host(name, each * shard, Phase::RUNNING, formula(each), OFFLOAD);
        let states = 2 * element;
        let mut items = vec![card("weights", element, if params { awake } else { Phase::ALL })];
        if params {
            items.push(host("weights, offloaded", element));
        }
        items.push(card("gradients", element, update));
        items.push(card("Adam m and v", states, if optimizer { update } else { Phase::RUNNING }));
        if optimizer {
            items.push(host("Adam m and v, offloaded", states));
        }
        items.push(self.gathered(role, shape, passes));
        let (whole, formula) = (4 * u128::from(shape.params), "4 B x P on rank 0, others on meta");
        items.push(holder.host("model as it is read", whole, &[Phase::Load], formula, FSDP).first());
        self.ledger.add(items);
        self.passes(role, shape, update)?;
        self.ledger.models.push((role, shape.params));
        Ok(())
    }

    fn passes(&mut self, role: &'static str, shape: &Shape, update: When) -> Result<()> {
        let (options, is_actor) = (self.options, role == "actor");
        let fused = options.flag_or(FUSED, false)?;
        let chunked = options.flag_or(CHUNKED, false)?;
        let source = "verl b178a3cd5 docs/perf/perf_tuning.rst:213, verl/utils/torch_functional.py:241";
        let logits = |bytes, formula| Logits { bytes, formula, source };
        let (trained, scored) = match (is_actor && !fused, chunked) {
            (false, _) => (Logits::NONE, Logits::NONE),
            (true, true) => {
                (logits(4, "(2 B bf16 + 2 B gradient), entropy by chunks of 2048"), logits(2, "2 B bf16"))
            }
            (true, false) => (
                logits(9, "(4 + 2 + 1 B of logits and entropy + 2 B gradient)"),
                logits(7, "(4 + 2 + 1 B of logits and entropy)"),
            ),
        };
        let recompute = if is_actor {
            "actor_rollout_ref.model.enable_gradient_checkpointing"
        } else {
            "critic.model.enable_gradient_checkpointing"
        };
        let pass = Pass {
            holder: self.holder(role),
            phases: update,
            tokens: self.micro_tokens(role)?,
            trains: true,
            recompute: options.flag_or(recompute, !self.is_fork)?,
            logits: trained,
        };
        let (phases, tokens): (When, u64) = (&[Phase::Experience], self.forward_tokens(role)?);
        let forward = Pass { phases, tokens, trains: false, logits: scored, ..pass };
        // Without padding a micro-batch is as long as its sequences: one of full length will come.
        let is_dynamic = options.flag_or(DYNAMIC, false)?;
        let is_open =
            options.flag_or("actor_rollout_ref.model.use_remove_padding", !self.is_fork)? && !is_dynamic;
        for pass in [pass, forward] {
            let all = pass.tokens;
            let sure = Pass { tokens: if is_open { all.min(self.longest) } else { all }, ..pass };
            let (most, items) = (pass.items(shape), sure.items(shape));
            let bytes = |items: &[Item]| items.iter().map(|item| item.bytes).sum::<u128>();
            if bytes(&most) > bytes(&items) {
                self.longer.push((pass.phases[0], all, bytes(&most) - bytes(&items)));
            }
            self.ledger.add(items);
        }
        Ok(())
    }

    /// Reports micro-batches that would not fit if all their sequences had the allowed length.
    fn judge_longest(&mut self) -> Result<()> {
        let Some(card) = self.limits.gpu_bytes.as_ref().map(|known| known.value) else { return Ok(()) };
        for (phase, tokens, more) in std::mem::take(&mut self.longer) {
            let certain = self.ledger.card(self.group, phase)?.bytes;
            let all = u128::from(certain.0).saturating_add(more);
            if certain > card || all <= u128::from(card.0) {
                continue;
            }
            self.ledger.hazards.push(Hazard {
                slug: "cuda-oom-logits",
                verdict: Verdict::Open,
                finding: format!(
                    "{}: with one sequence of {} tokens it fits, if all of a micro-batch are that long ({tokens} tokens) it takes {} of a card's {card}",
                    phase.name(), self.longest, shown(all)
                ),
                because: "without padding a micro-batch is as long as its responses are, and only the run shows how long those get".into(),
                remedies: vec![
                    "use_dynamic_bsz=True: a budget of tokens in place of a number of sequences".into(),
                    "smaller log_prob_micro_batch_size_per_gpu and ppo_micro_batch_size_per_gpu".into(),
                ],
                source: "verl b178a3cd5 docs/perf/perf_tuning.rst, use_remove_padding",
            });
        }
        Ok(())
    }

    fn forward_tokens(&self, role: &str) -> Result<u64> {
        let each = "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu";
        let whole = self.options.count("actor_rollout_ref.rollout.log_prob_micro_batch_size")?;
        let rows = self.options.count(each)?.or(whole.map(|all| (all / self.ranks).max(1)));
        match (role, rows, self.options.flag_or(DYNAMIC, false)?) {
            ("actor", Some(rows), false) => Ok(rows.saturating_mul(self.longest)),
            _ => self.micro_tokens(role),
        }
    }

    /// Adds a reference model, which FSDP always offloads: its shard is on the host.
    fn reference(&mut self, shape: &Shape) {
        let (element, shard) = (if self.is_fork { 2 } else { 4 }, self.shard(shape));
        let (bytes, formula) = (element * shard, format!("{element} B x {shard}"));
        let host = self.holder("reference").host("weights, offloaded", bytes, Phase::ALL, formula, FSDP);
        self.ledger.add([host, self.gathered("reference", shape, &[Phase::Experience])]);
        self.ledger.models.push(("reference", shape.params));
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
            None if options.has(ENGINE_SWAP) => options.number_or(ENGINE_SWAP, 4.0)?,
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
        self.ledger.add(engine.items(shape));
        self.ledger.hazards.extend(engine.hazard(shape, self.longest));
        if !self.is_fork {
            let megabytes = options.count_or(
                "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes",
                2048,
            )?;
            let source = "verl b178a3cd5 config/rollout/rollout.yaml update_weights_bucket_megabytes";
            let (bytes, formula) = (u128::from(megabytes) << 20, format!("{megabytes} MiB"));
            let actor = self.holder("actor");
            self.ledger.add([actor.card("weight bucket", bytes, &[Phase::Sync], formula, source)]);
            if frees {
                let found = hazards::sleep_mode(self.limits);
                self.ledger.hazards.extend(found.map(|found| Hazard { verdict: Verdict::Note, ..found }));
            }
        }
        if self.is_fork && frees && asked > 0.0 {
            self.ledger.hazards.push(self.regrown(shape, tensor_parallel, asked));
        }
        let words =
            if self.is_fork { "a vLLM 0.6.3 engine in the trainer's process" } else { "the vLLM servers" };
        self.ledger.hazards.push(hazards::illegal_access(words, frees));
        Ok(())
    }

    /// Returns the fork's share, which is of the memory free after weights are loaded, not of the card.
    fn fork_share(&self, shape: &Shape, share: f64, card: Bytes, tensor_parallel: u64) -> f64 {
        let weights = 2.0 * shape.params as f64 / tensor_parallel as f64;
        let shard = 4.0 * shape.params as f64 / self.shards as f64;
        let free = (card.0 as f64 - weights - shard).max(0.0);
        ((weights + share * free) / card.0 as f64).min(1.0)
    }

    /// Returns the hazard of a pinned pool reallocated at each rollout: it grows, since small requests get its blocks.
    fn regrown(&self, shape: &Shape, tensor_parallel: u64, asked: f64) -> Hazard {
        let (_, layer) = swap_layer(&shape.spec, tensor_parallel, asked);
        let block = pinned(layer);
        let cards = self.ranks.min(self.ledger.cluster.cards_per_node);
        let layers = u128::from(shape.spec.layers.len());
        let pool = block * layers * u128::from(cards);
        Hazard {
            slug: "run-pinned-swap-regrown",
            verdict: Verdict::Problem,
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
        }
    }

    /// Adds a rollout batch in Ray's object store: padded rows of ids, mask, positions; five f32 per response token.
    fn batches(&mut self) -> Result<()> {
        let options = self.options;
        let rows = options
            .count_or("data.train_batch_size", 1024)?
            .saturating_mul(options.count_or("actor_rollout_ref.rollout.n", 1)?);
        let prompt = options.count_or("data.max_prompt_length", 512)?;
        let response = options.count_or("data.max_response_length", 512)?;
        let row = 24 * u128::from(self.longest) + 8 * u128::from(prompt) + 28 * u128::from(response);
        let formula = format!("{rows} rows x ({} x 24 B + {prompt} x 8 B + {response} x 28 B)", self.longest);
        let source = "verl b178a3cd5 DataProto: int64 ids, mask, positions of padded rows; f32 log-probs, scores, advantages, returns";
        let phases: When = &[Phase::Experience, Phase::Critic, Phase::Update];
        let item = self.holder("Ray").host("rollout batch", u128::from(rows) * row, phases, formula, source);
        self.ledger.add([Item { pool: Pool::Shm, ..item }.once()]);
        Ok(())
    }

    fn save(&mut self, shape: &Shape) -> Result<()> {
        let (actor, params) = (self.holder("actor"), u128::from(shape.params));
        let save: When = &[Phase::Save];
        let gathered =
            |source| actor.host("gathered model", 4 * params, save, "4 B x P on rank 0", source).first();
        if self.is_fork {
            let source = "verl 0.2 verl/workers/fsdp_workers.py save_checkpoint, FullStateDictConfig(offload_to_cpu, rank0_only)";
            self.ledger.add([gathered(source), file_pages(actor, 4 * params)]);
            return Ok(());
        }
        let shard = self.shard(shape);
        let source = "verl b178a3cd5 verl/utils/checkpoint/fsdp_checkpoint_manager.py:219-247, sharded state with offload_to_cpu";
        let formula = format!("(4 + 8) B x {shard}: weights and Adam of the shard");
        let state = actor.host("sharded state", 12 * shard, save, formula, source);
        self.ledger.add([state, Item { per: Per::Rank, ..file_pages(actor, 12 * shard) }]);
        let contents = self.options.text("actor_rollout_ref.actor.checkpoint.save_contents")?;
        if contents.is_some_and(|contents| contents.contains("hf_model")) {
            let source = "verl b178a3cd5 verl/utils/checkpoint/fsdp_checkpoint_manager.py:300-350, rank 0 gathers hf_model";
            self.ledger.add([gathered(source)]);
        }
        Ok(())
    }
}
