//! Open-Reasoner-Zero: every role on every card under ZeRO-3, states asleep between their phases, weights handed to an
//! engine in the same process by CUDA IPC.

use super::deepspeed::Zero;
use super::hazards;
use super::ledger::{Cluster, Item, Per, Phase, Pool};
use super::limits::Limits;
use super::model::{ModelOf, Shape};
use super::options::{Names, Options};
use super::torch::{Pass, Process, file_pages, held, nccl, pinned, process};
use super::verdict::Change;
use super::vllm::Engine;
use super::{Draft, contradiction};
use plimsoll_base::{Error, Result};

pub(super) static NAMES: Names = Names {
    used: &[
        "pretrain",
        "critic_pretrain",
        "use_grpo",
        "use_kl_loss",
        "init_kl_coef",
        "kl_loss_coef",
        "total_num_nodes",
        "ref_num_nodes",
        "ref_num_gpus_per_node",
        "actor_num_nodes",
        "actor_num_gpus_per_node",
        "critic_num_nodes",
        "critic_num_gpus_per_node",
        "colocate_all",
        "colocate_actor_ref",
        "colocate_critic_reward",
        "vllm_num_engines",
        "vllm_tensor_parallel_size",
        "gpu_memory_utilization",
        "zero_stage",
        "adam_offload",
        "grad_accum_dtype",
        "gradient_checkpointing",
        "packing_max_len",
        "prompt_max_len",
        "generate_max_len",
        "max_len",
        "micro_train_batch_size",
        "micro_forward_batch_size",
        "save_interval",
        "ref_reward_offload",
    ],
    idle: &[
        "actor_learning_rate",
        "actor_loss_coef",
        "adam_betas",
        "advantage_normalize",
        "bf16",
        "ckpt_path",
        "critic_learning_rate",
        "critic_update_steps",
        "disable_fast_tokenizer",
        "enable_eval",
        "enable_prefix_caching",
        "enable_chunked_prefill",
        "enforce_eager",
        "eps_clip",
        "eval_*",
        "flash_attn",
        "freezing_actor_steps",
        "gamma",
        "l2",
        "lambd",
        "max_epochs",
        "max_norm",
        "micro_rollout_batch_size",
        "max_num_batched_tokens",
        "n_policy_evaluator_samples",
        "n_samples_per_prompt",
        "normalize_reward",
        "num_episodes",
        "num_warmup_steps",
        "policy_update_steps",
        "prompt_data",
        "prompt_data_probs",
        "reward_*",
        "remote_rm_url",
        "rollout_batch_size",
        "save_path",
        "seed",
        "skip_eos_token",
        "stop",
        "temperature",
        "tensorboard_log_dir",
        "top_k",
        "top_p",
        "update_ref_every_epoch",
        "use_abs_kl",
        "use_compute_reward_fn",
        "use_kl_estimator_k3",
        "use_orm_score",
        "value_clip",
        "packing_samples",
        "zpg",
        "name",
        "exp_name",
        "total_steps",
        "kl_max_coef",
        "kl_target",
        "train_batch_size",
        "vllm_sync_backend",
        "ckpt*",
    ],
};

pub(super) const CHANGES: &[Change] = &[
    Change {
        words: "a smaller share of the card for the engine",
        values: |options| {
            let share = options.share_or("gpu_memory_utilization", 0.85).ok()?;
            (share > 0.35).then(|| vec![("gpu_memory_utilization", Some(format!("{:.2}", share - 0.2)))])
        },
    },
    Change {
        words: "a shorter pack",
        values: |options| {
            let pack = options.count_or("packing_max_len", 16_384).ok()?;
            Some(vec![("packing_max_len", Some((pack / 2).to_string()))])
        },
    },
    Change {
        words: "recompute activations",
        values: |options| options.turn("gradient_checkpointing", true, true),
    },
    Change {
        words: "bf16 gradients",
        values: |options| {
            (options.text("grad_accum_dtype").ok()? != Some("bf16"))
                .then(|| vec![("grad_accum_dtype", Some("bf16".into()))])
        },
    },
    Change { words: "optimizer on the host", values: |options| options.turn("adam_offload", false, true) },
    Change {
        words: "no critic, advantages from groups; it changes the method",
        values: |options| options.turn("use_grpo", false, true),
    },
];

const SOURCE: &str = "Open-Reasoner-Zero 3fdd9a0 orz/ppo/trainer.py:141-151, 730-742";

pub(super) fn draft(options: &Options, limits: &Limits, models: &ModelOf<'_>) -> Result<Draft> {
    let name = options.text("pretrain")?.ok_or_else(|| {
        Error::usage("run-model-unknown", "the file names no model: `pretrain`")
            .hint("add it with --set pretrain=NAME")
    })?;
    let actor = Shape::policy(models(name)?);
    let has_critic = !options.flag_or("use_grpo", false)?;
    let critic = match (has_critic, options.text("critic_pretrain")?.filter(|text| !text.is_empty())) {
        (false, _) => None,
        (true, Some(name)) => Some(Shape::value(models(name)?)),
        (true, None) => Some(Shape::value(actor.spec)),
    };
    let mut draft = Draft::default();
    let group = place(options, limits, &mut draft)?;
    let ranks = draft.cluster.groups[group].cards;
    let zero = zero(options, ranks)?;
    let longest = options.count_or("max_len", 8192)?;
    trained(options, &mut draft, "actor", group, &actor, &zero)?;
    if let Some(critic) = &critic {
        trained(options, &mut draft, "critic", group, critic, &zero)?;
    }
    // Its loss's coefficient may be 0: it is loaded and asked all the same.
    if options.flag_or("use_kl_loss", true)? || options.number_or("init_kl_coef", 0.0)? > 0.0 {
        reference(options, &mut draft, group, &actor, ranks)?;
    }
    engine(options, limits, &mut draft, group, &actor, longest)?;
    let whole = 2 * u128::from(actor.params);
    let source =
        "Open-Reasoner-Zero 3fdd9a0 orz/ppo/openrlhf_deepspeed.py save_model, v.data.cpu() kept by rank 0";
    let copy = held(
        "actor",
        "gathered model",
        Pool::Host,
        group,
        whole,
        &[Phase::Save],
        "2 B x P on rank 0".into(),
        source,
    );
    draft.add([Item { per: Per::First, ..copy }, file_pages("actor", group, whole)]);
    let goes = |phase: &Phase| *phase != Phase::Critic || has_critic;
    draft.phases = Phase::ALL.iter().copied().filter(goes).collect();
    draft.notes.push(
        "the replay buffer is written to disk every step (trainer.py:124-131): the disk is not planned"
            .into(),
    );
    Ok(draft)
}

fn place(options: &Options, limits: &Limits, draft: &mut Draft) -> Result<usize> {
    let nodes = options.count_or("actor_num_nodes", 1)?;
    let cards = nodes.saturating_mul(options.count_or("actor_num_gpus_per_node", 8)?);
    let engines = options.count_or("vllm_num_engines", cards)?;
    let engine_cards = engines.saturating_mul(options.count_or("vllm_tensor_parallel_size", 1)?);
    if !options.flag_or("colocate_all", true)? {
        draft.notes.push(
            "colocate_all is off: planned as if every role were on the actor's cards, which is more".into(),
        );
    } else if engine_cards != cards {
        return Err(contradiction(
            format!("colocate_all: engines have {engine_cards} cards, the actor {cards}"),
            "give vllm_num_engines the number of cards; its tensor parallel size must be 1",
        ));
    }
    draft.cluster = Cluster::default();
    let group = draft.cluster.group("all roles", cards);
    draft.cluster.cards_per_node = limits.gpus.as_ref().map_or(cards.div_ceil(nodes), |known| known.value);
    Ok(group)
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

fn trained(
    options: &Options,
    draft: &mut Draft,
    role: &'static str,
    group: usize,
    shape: &Shape,
    zero: &Zero,
) -> Result<()> {
    let is_actor = role == "actor";
    // The engine wakes while the actor's states are still on the card.
    let update: &'static [Phase] = if is_actor { &[Phase::Update, Phase::Sync] } else { &[Phase::Critic] };
    let own: &'static [Phase] = if is_actor { &[Phase::Update] } else { &[Phase::Critic] };
    draft.add(process(role, group, Process::Trainer));
    draft.add(nccl(role, group, zero.ranks));
    draft.add(zero.training(role, group, shape, update));
    let tokens = options.count_or("packing_max_len", 16_384)?;
    let logits = |bytes| if is_actor { bytes } else { 0 };
    let pass = Pass {
        role,
        group,
        phases: own,
        tokens,
        trains: true,
        recompute: options.flag_or("gradient_checkpointing", true)?,
        logits_bytes: logits(10),
        logits_formula: "(2 B bf16 + 4 B f32 + 4 B gradient)",
        logits_source: "Open-Reasoner-Zero 3fdd9a0 orz/ppo/models.py, logits of the whole pack in f32",
    };
    draft.add(pass.items(shape));
    let forward = Pass {
        phases: &[Phase::Experience],
        trains: false,
        logits_bytes: logits(6),
        logits_formula: "(2 B bf16 + 4 B f32)",
        ..pass
    };
    draft.add(forward.items(shape));
    draft.models.push((role, shape.params));
    Ok(())
}

/// A reference model offloaded by ZeRO-3: its part of the weights is pinned, layers come to the card.
fn reference(options: &Options, draft: &mut Draft, group: usize, shape: &Shape, ranks: u64) -> Result<()> {
    let shard = u128::from(shape.params).div_ceil(u128::from(ranks));
    draft.add(process("reference", group, Process::Trainer));
    let formula = format!("2 B x {shard}, pinned to a power of two");
    draft.add([held(
        "reference",
        "weights",
        Pool::Host,
        group,
        pinned(2 * shard),
        Phase::ALL,
        formula,
        SOURCE,
    )]);
    let pass = Pass {
        role: "reference",
        group,
        phases: &[Phase::Experience],
        tokens: options.count_or("packing_max_len", 16_384)?,
        trains: false,
        recompute: false,
        logits_bytes: 6,
        logits_formula: "(2 B bf16 + 4 B f32)",
        logits_source: "Open-Reasoner-Zero 3fdd9a0 orz/ppo/models.py",
    };
    draft.add(pass.items(shape));
    draft.models.push(("reference", shape.params));
    Ok(())
}

fn engine(
    options: &Options,
    limits: &Limits,
    draft: &mut Draft,
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
        // Its weights are thrown away and come back by the sync (vllm_worker_wrap.py:77-100).
        host_copy: false,
        wakes_in_two: false,
        swap_gib: 4.0,
        own_process: true,
    };
    draft.add(engine.items(shape));
    draft.hazards.extend(engine.hazard(shape, longest));
    if options.flag_or("colocate_all", true)? {
        let source = "Open-Reasoner-Zero 3fdd9a0 orz/ppo/actors.py:692-714; torch 2.6.0 CUDACachingAllocator.cpp:465-521";
        draft.hazards.extend(hazards::cuda_ipc(limits, "weights go to the engines by CUDA IPC", source));
    }
    let words = "vLLM 0.6.5 engines whose weights and cache are freed and made again each step";
    draft.hazards.push(hazards::illegal_access(words, true));
    Ok(())
}
