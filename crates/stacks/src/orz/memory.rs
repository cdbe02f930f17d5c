//! Open-Reasoner-Zero's memory: every role on every card under ZeRO-3, states asleep between their phases, weights
//! passed by CUDA IPC to an engine in the same process.

use crate::options::{Change, Options, contradiction, set};
use crate::plan::hazards;
use crate::plan::ledger::{Holder, Ledger, Phase, When};
use crate::plan::limits::{Limits, Version};
use crate::plan::model::{ModelOf, Shape, model, named_model};
use crate::rules::deepspeed::Zero;
use crate::rules::torch::{Logits, Pass, Process, file_pages, nccl, pinned, process};
use crate::rules::vllm::Engine;
use plimsoll_base::Result;

pub(super) const CHANGES: &[Change] = &[
    ("a smaller share of the card for the engine", |options| {
        options.smaller_share("gpu_memory_utilization", 0.85, 0.35)
    }),
    ("a shorter pack", |options| {
        let pack = options.count_or("packing_max_len", 16_384).ok()?;
        Some(set("packing_max_len", pack / 2))
    }),
    ("recompute activations", |options| options.turn("gradient_checkpointing", true, true)),
    ("bf16 gradients", |options| {
        (options.text("grad_accum_dtype").ok()? != Some("bf16")).then(|| set("grad_accum_dtype", "bf16"))
    }),
    ("optimizer on the host", |options| options.turn("adam_offload", false, true)),
    ("no critic, advantages from groups; it changes the method", |options| {
        options.turn("use_grpo", false, true)
    }),
];

const SOURCE: &str = "Open-Reasoner-Zero 3fdd9a0 orz/ppo/trainer.py:141-151, 730-742";

pub(super) fn rules(options: &Options, _: Version, limits: &Limits, models: &ModelOf<'_>) -> Result<Ledger> {
    let actor = named_model(options, "pretrain", "`pretrain`", models)?;
    let critic = if options.flag_or("use_grpo", false)? {
        None
    } else {
        Some(Shape::value(model(options, "critic_pretrain", models)?.unwrap_or(actor)))
    };
    let actor = Shape::policy(actor);
    let (mut ledger, group) = place(options, limits)?;
    let ranks = ledger.cluster.groups[group].cards;
    let holder = |role| Holder { role, group };
    let zero = zero(options, ranks)?;
    let longest = options.count_or("max_len", 8192)?;
    trained(options, &mut ledger, holder("actor"), &actor, &zero)?;
    if let Some(critic) = &critic {
        trained(options, &mut ledger, holder("critic"), critic, &zero)?;
    }
    // It is loaded and run even with a coefficient of 0.
    if options.flag_or("use_kl_loss", true)? || options.number_or("init_kl_coef", 0.0)? > 0.0 {
        reference(options, &mut ledger, holder("reference"), &actor, ranks)?;
    }
    engine(options, limits, &mut ledger, group, &actor, longest)?;
    let whole = 2 * u128::from(actor.params);
    let source =
        "Open-Reasoner-Zero 3fdd9a0 orz/ppo/openrlhf_deepspeed.py save_model, v.data.cpu() kept by rank 0";
    let saved = holder("actor").host("gathered model", whole, &[Phase::Save], "2 B x P on rank 0", source);
    ledger.add([saved.first(), file_pages(holder("actor"), whole)]);
    ledger.goes_through(|phase| phase != Phase::Critic || critic.is_some());
    ledger.note(
        "the replay buffer is written to disk every step (trainer.py:124-131): the disk is not planned",
    );
    Ok(ledger)
}

fn place(options: &Options, limits: &Limits) -> Result<(Ledger, usize)> {
    let nodes = options.count_or("actor_num_nodes", 1)?;
    let cards = nodes.saturating_mul(options.count_or("actor_num_gpus_per_node", 8)?);
    let engines = options.count_or("vllm_num_engines", cards)?;
    let engine_cards = engines.saturating_mul(options.count_or("vllm_tensor_parallel_size", 1)?);
    let per_node = limits.gpus.as_ref().map_or(cards.div_ceil(nodes), |known| known.value);
    let (mut ledger, group) = Ledger::of_one_group("all roles", cards, per_node);
    if !options.flag_or("colocate_all", true)? {
        ledger.note("colocate_all is off: planned as if every role were on the actor's cards, which is more");
    } else if engine_cards != cards {
        return Err(contradiction(
            format!("colocate_all: engines have {engine_cards} cards, the actor {cards}"),
            "give vllm_num_engines the number of cards; its tensor parallel size must be 1",
        ));
    }
    Ok((ledger, group))
}

fn zero(options: &Options, ranks: u64) -> Result<Zero> {
    let stage = options.whole("zero_stage")?.unwrap_or(3);
    if stage != 3 {
        return Err(contradiction(
            format!(
                "zero_stage = {stage}: states of stages below 3 are not moved off the card between phases"
            ),
            "set zero_stage = 3",
        ));
    }
    let offload = options.flag_or("adam_offload", false)?;
    // Unset, it is forced to fp32 (orz/ppo/utils.py:63).
    let grad_bytes = if options.text("grad_accum_dtype")? == Some("bf16") { 2 } else { 4 };
    Ok(Zero {
        stage,
        ranks,
        offload,
        pin: true,
        pin_master: true,
        grad_bytes,
        accumulates: true,
        sleep: !offload,
    })
}

fn trained(options: &Options, ledger: &mut Ledger, holder: Holder, shape: &Shape, zero: &Zero) -> Result<()> {
    let is_actor = holder.role == "actor";
    // The engine wakes while the actor's states are still on the card.
    let update: When = if is_actor { &[Phase::Update, Phase::Sync] } else { &[Phase::Critic] };
    let own: When = if is_actor { &[Phase::Update] } else { &[Phase::Critic] };
    ledger.add(process(holder, Process::Trainer));
    ledger.add(nccl(holder, zero.ranks));
    ledger.add(zero.training(holder, shape, update));
    let logits = |logits| if is_actor { logits } else { Logits::NONE };
    let source = "Open-Reasoner-Zero 3fdd9a0 orz/ppo/models.py, logits of the whole pack in f32";
    let pass = Pass {
        holder,
        phases: own,
        tokens: options.count_or("packing_max_len", 16_384)?,
        trains: true,
        recompute: options.flag_or("gradient_checkpointing", true)?,
        logits: logits(Logits::trained(source)),
    };
    ledger.add(pass.items(shape));
    let (phases, logits): (When, Logits) = (&[Phase::Experience], logits(Logits::scored(source)));
    ledger.add(Pass { phases, trains: false, logits, ..pass }.items(shape));
    ledger.models.push((holder.role, shape.params));
    Ok(())
}

/// Adds a reference model offloaded by ZeRO-3: its part of the weights is pinned, layers come to the card.
fn reference(
    options: &Options,
    ledger: &mut Ledger,
    holder: Holder,
    shape: &Shape,
    ranks: u64,
) -> Result<()> {
    let shard = u128::from(shape.params).div_ceil(u128::from(ranks));
    ledger.add(process(holder, Process::Trainer));
    let formula = format!("2 B x {shard}, pinned to a power of two");
    ledger.add([holder.host("weights", pinned(2 * shard), Phase::ALL, formula, SOURCE)]);
    let pass = Pass {
        holder,
        phases: &[Phase::Experience],
        tokens: options.count_or("packing_max_len", 16_384)?,
        trains: false,
        recompute: false,
        logits: Logits::scored("Open-Reasoner-Zero 3fdd9a0 orz/ppo/models.py"),
    };
    ledger.add(pass.items(shape));
    ledger.models.push(("reference", shape.params));
    Ok(())
}

fn engine(
    options: &Options,
    limits: &Limits,
    ledger: &mut Ledger,
    group: usize,
    shape: &Shape,
    longest: u64,
) -> Result<()> {
    let engine = Engine {
        group,
        tensor_parallel: options.count_or("vllm_tensor_parallel_size", 1)?,
        share: options.share_or("gpu_memory_utilization", 0.85)?,
        card: limits.card()?,
        sleeps: true,
        // Its weights are discarded and come back with the sync (vllm_worker_wrap.py:77-100).
        host_copy: false,
        wakes_in_two: false,
        swap_gib: 4.0,
        own_process: true,
    };
    ledger.add(engine.items(shape));
    ledger.hazards.extend(engine.hazard(shape, longest));
    if options.flag_or("colocate_all", true)? {
        let source = "Open-Reasoner-Zero 3fdd9a0 orz/ppo/actors.py:692-714; torch 2.6.0 CUDACachingAllocator.cpp:465-521";
        ledger.hazards.extend(hazards::cuda_ipc(limits, "weights go to the engines by CUDA IPC", source));
    }
    let words = "vLLM 0.6.5 engines whose weights and cache are freed and made again each step";
    ledger.hazards.push(hazards::illegal_access(words, true));
    Ok(())
}
