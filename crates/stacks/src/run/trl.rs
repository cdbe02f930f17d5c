//! TRL's GRPO and RLOO under accelerate: plain data parallel, ZeRO, or FSDP; an engine in the same process, or on a server.
//!
//! Legend: P parameters, N ranks, T cards of an engine.

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
use plimsoll_base::{Error, Result};

pub(super) static NAMES: Names = Names {
    used: &[
        "model_name_or_path|model",
        "dtype|torch_dtype|model_init_kwargs.dtype|model_init_kwargs.torch_dtype",
        "bf16",
        "num_processes",
        "num_machines",
        "accelerate_config",
        "deepspeed",
        "fsdp",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "gradient_checkpointing",
        "max_completion_length",
        "max_prompt_length",
        "use_vllm",
        "vllm_mode",
        "vllm_gpu_memory_utilization",
        "vllm_tensor_parallel_size",
        "vllm_enable_sleep_mode",
        "beta",
        "use_peft",
        "use_liger_kernel|use_liger_loss",
        "optim",
        "generation_batch_size",
        "steps_per_generation",
        "num_generations",
        "vllm_max_model_length",
    ],
    idle: &[
        "adam_*",
        "bf16_full_eval",
        "cast_lm_head_to_fp32",
        "chat_template*",
        "config",
        "dataloader*",
        "dataset*",
        "ddp_*",
        "delta",
        "disable_dropout",
        "do_eval",
        "do_train",
        "ds3_*",
        "entropy_*",
        "epsilon*",
        "eval_*",
        "gradient_checkpointing_kwargs*",
        "hub_*",
        "importance_sampling_level",
        "learning_rate",
        "lm_*",
        "log_*",
        "logging*",
        "lora_*",
        "loss_type",
        "lr_scheduler*",
        "main_process*",
        "machine_rank",
        "mask_truncated_completions",
        "max_grad_norm",
        "max_steps",
        "max_tool_calling_iterations",
        "min_p",
        "mixed_precision",
        "model_revision",
        "multi_objective_aggregation",
        "num_completions_to_print",
        "num_generations_eval",
        "num_iterations",
        "num_train_epochs",
        "off_policy_*",
        "output_dir",
        "overwrite_output_dir",
        "pad_to_multiple_of",
        "push_to_hub",
        "ref_model_*",
        "remove_unused_columns",
        "repetition_penalty",
        "report_to",
        "resume_from_checkpoint",
        "reward_*",
        "run_name",
        "sapo_*",
        "save_*",
        "scale_rewards",
        "seed",
        "shuffle_dataset",
        "sync_ref_model",
        "temperature",
        "tf32",
        "top_*",
        "train_dataset",
        "trainer",
        "trust_remote_code",
        "attn_implementation",
        "use_adaptive_entropy",
        "use_bias_correction_kl",
        "vespo_*",
        "vllm_group_port",
        "vllm_importance_*",
        "vllm_model_impl",
        "vllm_server_*",
        "vllm_structured_*",
        "warmup_*",
        "weight_decay",
        "args",
        "processing_class",
        "callbacks",
    ],
};

pub(super) const CHANGES: &[Change] = &[
    Change {
        words: "fewer sequences a pass, more accumulation",
        values: |options| {
            let rows = options.count_or("per_device_train_batch_size", 8).ok()?;
            let steps = options.count_or("gradient_accumulation_steps", 1).ok()?;
            (rows > 1).then(|| {
                vec![
                    ("per_device_train_batch_size", Some((rows / 2).to_string())),
                    ("gradient_accumulation_steps", Some((steps * 2).to_string())),
                ]
            })
        },
    },
    Change {
        words: "a loss that never makes the logits whole",
        values: |options| options.turn("use_liger_kernel", false, true),
    },
    Change {
        words: "the engine asleep while the trainer works",
        values: |options| {
            let colocated = options.flag_or("use_vllm", false) == Ok(true)
                && options.text_or("vllm_mode", "colocate") == Ok("colocate");
            (colocated && options.flag_or("vllm_enable_sleep_mode", false) == Ok(false))
                .then(|| vec![("vllm_enable_sleep_mode", Some("True".into()))])
        },
    },
    Change {
        words: "recompute activations",
        values: |options| options.turn("gradient_checkpointing", true, true),
    },
    Change {
        words: "weights in bf16",
        values: |options| {
            (options.text_or("dtype", "float32") == Ok("float32"))
                .then(|| vec![("dtype", Some("bfloat16".into()))])
        },
    },
    Change {
        words: "states sharded by ZeRO-2",
        values: |options| {
            let shards = options.has("accelerate_config") || options.has("deepspeed") || options.has("fsdp");
            (!shards).then(|| vec![("accelerate_config", Some("zero2".into()))])
        },
    },
    Change {
        words: "weights sharded by ZeRO-3",
        values: |options| {
            let now = options.text("accelerate_config").ok()?.unwrap_or_default().contains("zero3");
            (!now).then(|| vec![("accelerate_config", Some("zero3".into()))])
        },
    },
    Change {
        words: "no reference model",
        values: |options| {
            (options.number_or("beta", 0.0).ok()? > 0.0).then(|| vec![("beta", Some("0".into()))])
        },
    },
];

const TRAINER: &str =
    "TRL f2cd57710 (1.10.0) trl/trainer/utils.py:1123-1152 (dtype float32 unless set), grpo_config.py";

/// How states are shared.
#[derive(Clone, Copy, PartialEq)]
enum Sharding {
    None,
    Zero(u64),
    Fsdp,
}

fn sharding(options: &Options, draft: &mut Draft) -> Result<Sharding> {
    let config = options.text("accelerate_config")?.unwrap_or_default().to_ascii_lowercase();
    let deepspeed = options.text("deepspeed")?.unwrap_or_default().to_ascii_lowercase();
    for stage in [1, 2, 3] {
        let named = |text: &str| {
            text.contains(&format!("zero{stage}"))
                || text.contains(&format!("zero_stage_{stage}"))
                || text.contains(&format!("z{stage}"))
        };
        if named(&config) || named(&deepspeed) {
            return Ok(Sharding::Zero(stage));
        }
    }
    if config.contains("fsdp") || options.text("fsdp")?.is_some_and(|text| !text.is_empty()) {
        return Ok(Sharding::Fsdp);
    }
    if !deepspeed.is_empty() || (!config.is_empty() && !config.contains("gpu")) {
        let name = if deepspeed.is_empty() { config } else { deepspeed };
        draft.notes.push(format!("{name}: its stage is not in its name; planned as ZeRO-2. Say --set accelerate_config=zero3 if it is another"));
        return Ok(Sharding::Zero(2));
    }
    Ok(Sharding::None)
}

pub(super) fn draft(options: &Options, limits: &Limits, models: &ModelOf<'_>) -> Result<Draft> {
    let name = options.text("model_name_or_path")?.ok_or_else(|| {
        Error::usage("run-model-unknown", "the file names no model: model_name_or_path")
            .hint("add it with --set model_name_or_path=NAME")
    })?;
    let shape = Shape::policy(models(name)?);
    if options.has("generation_batch_size") && options.has("steps_per_generation") {
        return Err(contradiction(
            "generation_batch_size and steps_per_generation are both given",
            "give one of them: each follows from the other",
        ));
    }
    let mut draft = Draft::default();
    let ranks = match options.count("num_processes")? {
        Some(ranks) => ranks,
        None => limits.cards()?,
    };
    let per_node = limits.gpus.as_ref().map_or(ranks, |known| known.value);
    draft.cluster = Cluster { cards_per_node: per_node, ..Cluster::default() };
    let group = draft.cluster.group("trainer, engine", ranks);
    let sharding = sharding(options, &mut draft)?;
    trained(options, &mut draft, group, &shape, ranks, sharding)?;
    if options.number_or("beta", 0.0)? > 0.0 {
        reference(options, &mut draft, group, &shape, ranks, sharding)?;
    }
    engine(options, limits, &mut draft, group, &shape)?;
    save(options, &mut draft, group, &shape, sharding)?;
    draft.phases = Phase::ALL.iter().copied().filter(|phase| *phase != Phase::Critic).collect();
    Ok(draft)
}

/// Bytes of a weight: float32 unless a dtype is named.
fn element(options: &Options) -> Result<u128> {
    Ok(match options.text_or("dtype", "float32")? {
        "bfloat16" | "bf16" | "float16" => 2,
        _ => 4,
    })
}

fn tokens(options: &Options) -> Result<u64> {
    let prompt = options.count_or("max_prompt_length", 512)?;
    Ok(prompt.saturating_add(options.count_or("max_completion_length", 512)?))
}

fn trained(
    options: &Options,
    draft: &mut Draft,
    group: usize,
    shape: &Shape,
    ranks: u64,
    sharding: Sharding,
) -> Result<()> {
    let adapters = options.flag_or("use_peft", false)?;
    draft.add(process("trainer", group, Process::Trainer));
    draft.add(nccl("trainer", group, ranks));
    match sharding {
        Sharding::Zero(stage) => {
            let accumulates = options.count_or("gradient_accumulation_steps", 1)? > 1;
            let zero = Zero {
                stage,
                ranks,
                offload: false,
                pin: true,
                pin_master: true,
                grad_bytes: 2,
                accumulates,
                sleep: false,
            };
            draft.add(match adapters {
                true => zero.weights("trainer", group, shape),
                false => zero.training("trainer", group, shape, &[Phase::Update]),
            });
        }
        Sharding::None => plain(options, draft, group, shape, ranks)?,
        Sharding::Fsdp => {
            let owned = u128::from(shape.params).div_ceil(u128::from(ranks));
            draft.add(states(group, owned, element(options)?, adapters));
        }
    }
    if adapters {
        draft.notes.push(
            "use_peft: gradients and states of the adapters, a few per cent of the weights, are left out"
                .into(),
        );
    }
    passes(options, draft, group, shape)?;
    draft.models.push(("trainer", shape.params));
    Ok(())
}

/// Weights, gradients and Adam's states of `owned` parameters, all in the weights' type.
fn states(group: usize, owned: u128, element: u128, adapters: bool) -> Vec<Item> {
    let row = |name, each: u128, phases| {
        let formula = format!("{each} B x {owned}");
        held("trainer", name, Pool::Device, group, each * owned, phases, formula, TRAINER)
    };
    let mut items = vec![row("weights", element, Phase::ALL)];
    if !adapters {
        items.push(row("gradients", element, &[Phase::Update]));
        items.push(row("Adam m and v", 2 * element, Phase::TRAINED));
    }
    items
}

/// Plain data parallel: every rank holds everything.
fn plain(options: &Options, draft: &mut Draft, group: usize, shape: &Shape, ranks: u64) -> Result<()> {
    let (element, adapters) = (element(options)?, options.flag_or("use_peft", false)?);
    let params = u128::from(shape.params);
    let row = |name, each: u128, source| {
        let formula = format!("{each} B x P");
        held("trainer", name, Pool::Device, group, each * params, &[Phase::Update], formula, source)
    };
    draft.add(states(group, params, element, adapters));
    if element == 4 {
        let source = "torch.autocast caches bf16 copies of f32 weights within a pass";
        draft.add([row("autocast copies", 2, source)]);
    }
    if ranks > 1 && !adapters {
        let source =
            "torch 2.6.0 DistributedDataParallel, gradient_as_bucket_view=False: beside the gradients";
        draft.add([row("reduce buckets", element, source)]);
    }
    Ok(())
}

/// Logits of completions only, whole unless Liger's loss is on.
fn passes(options: &Options, draft: &mut Draft, group: usize, shape: &Shape) -> Result<()> {
    let rows = options.count_or("per_device_train_batch_size", 8)?;
    let fused = options.flag_or("use_liger_kernel", false)?;
    let pass = Pass {
        role: "trainer",
        group,
        phases: &[Phase::Update],
        tokens: rows.saturating_mul(tokens(options)?),
        trains: true,
        recompute: options.flag_or("gradient_checkpointing", true)?,
        logits_bytes: 0,
        logits_formula: "",
        logits_source: "TRL f2cd57710 trl/trainer/grpo_trainer.py:1440-1520, logits_to_keep + 1 of each row",
    };
    draft.add(pass.items(shape));
    let forward = Pass { phases: &[Phase::Experience], trains: false, ..pass };
    draft.add(forward.items(shape));
    if !fused {
        let kept = rows.saturating_mul(options.count_or("max_completion_length", 512)?.saturating_add(1));
        let logits = |pass: Pass| pass.items(shape).into_iter().filter(|item| item.name == "logits");
        draft.add(logits(Pass {
            tokens: kept,
            logits_bytes: 10,
            logits_formula: "(2 B bf16 + 4 B f32 + 4 B gradient)",
            ..pass
        }));
        draft.add(logits(Pass {
            tokens: kept,
            logits_bytes: 6,
            logits_formula: "(2 B bf16 + 4 B f32)",
            ..forward
        }));
    }
    Ok(())
}

fn reference(
    options: &Options,
    draft: &mut Draft,
    group: usize,
    shape: &Shape,
    ranks: u64,
    sharding: Sharding,
) -> Result<()> {
    if options.flag_or("use_peft", false)? {
        draft.notes.push(
            "beta with use_peft: the reference is the model without its adapter, no second copy".into(),
        );
        return Ok(());
    }
    let (each, owned) = match sharding {
        Sharding::Zero(3) => (2, u128::from(shape.params).div_ceil(u128::from(ranks))),
        Sharding::Fsdp => (element(options)?, u128::from(shape.params).div_ceil(u128::from(ranks))),
        Sharding::Zero(_) => (2, u128::from(shape.params)),
        Sharding::None => (element(options)?, u128::from(shape.params)),
    };
    let formula = format!("{each} B x {owned}");
    draft.add([held(
        "reference",
        "weights",
        Pool::Device,
        group,
        each * owned,
        Phase::ALL,
        formula,
        TRAINER,
    )]);
    draft.models.push(("reference", shape.params));
    Ok(())
}

fn engine(options: &Options, limits: &Limits, draft: &mut Draft, group: usize, shape: &Shape) -> Result<()> {
    let longest = options.count("vllm_max_model_length")?.map_or_else(|| tokens(options), Ok)?;
    if !options.flag_or("use_vllm", false)? {
        let rows = options.count_or("per_device_train_batch_size", 8)?;
        let rows = rows.saturating_mul(options.count_or("gradient_accumulation_steps", 1)?);
        let bytes = u128::from(rows.saturating_mul(longest)) * u128::from(shape.kv_token());
        let formula = format!("{rows} rows x {longest} tokens x {} B", shape.kv_token());
        let source = "transformers generate(): keys and values of the rank's whole batch, bf16";
        draft.add([held(
            "trainer",
            "KV cache",
            Pool::Device,
            group,
            bytes,
            &[Phase::Rollout],
            formula,
            source,
        )]);
        return Ok(());
    }
    if options.text_or("vllm_mode", "colocate")? == "server" {
        draft.notes.push(
            "vllm_mode = server: the server's cards are not among these; its own command plans its share"
                .into(),
        );
        return Ok(());
    }
    let sleeps = options.flag_or("vllm_enable_sleep_mode", false)?;
    let engine = Engine {
        group,
        tensor_parallel: options.count_or("vllm_tensor_parallel_size", 1)?,
        share: options.share_or("vllm_gpu_memory_utilization", 0.3)?,
        card: limits.card()?,
        sleeps,
        // Sleep level 2: weights come back by the sync.
        host_copy: false,
        wakes_in_two: false,
        swap_gib: 0.0,
        own_process: false,
    };
    draft.add(engine.items(shape));
    draft.hazards.extend(engine.hazard(shape, longest));
    if sleeps {
        draft.hazards.extend(hazards::sleep_mode(limits));
    }
    draft.hazards.push(hazards::illegal_access("a vLLM engine in the trainer's process", sleeps));
    Ok(())
}

fn save(options: &Options, draft: &mut Draft, group: usize, shape: &Shape, sharding: Sharding) -> Result<()> {
    let each = if matches!(sharding, Sharding::Zero(_)) { 2 } else { element(options)? };
    let whole = each * u128::from(shape.params);
    let gathers = matches!(sharding, Sharding::Zero(3) | Sharding::Fsdp);
    let (name, bytes, formula, source) = match gathers {
        true => (
            "gathered model",
            whole,
            format!("{each} B x P on rank 0"),
            "accelerate: zero3_save_16bit_model gathers the whole dictionary on rank 0",
        ),
        false => (
            "shard that is written",
            whole.min(5_000_000_000),
            "min(model, 5 GB) as bytes on rank 0".into(),
            "transformers save_pretrained, max_shard_size 5GB",
        ),
    };
    let item = held("trainer", name, Pool::Host, group, bytes, &[Phase::Save], formula, source);
    // Weights and states: a checkpoint of the Trainer holds both.
    draft.add([Item { per: Per::First, ..item }, file_pages("trainer", group, whole)]);
    Ok(())
}
