//! Key names that users of TRL, verl and OpenRLHF know, each in the section of our key; the table is complete.

use super::provenance::{Origin, Source};
use super::tree::{Node, Table, Value};
use plimsoll_base::{Error, Result};
use std::collections::BTreeMap;

/// How an alias becomes our keys.
#[derive(Clone, Copy)]
enum Becomes {
    /// Renames the key and keeps its value.
    Key(&'static str),
    /// One number for both clips.
    Clips,
    /// A number of sequences, as a token limit.
    Sequences,
    /// True is `recompute = "layer"`, false `"none"`.
    Recompute,
    /// True is `offload = ["optimizer"]`.
    OffloadOptimizer,
    /// A share of the card.
    CardFraction,
    /// Read and ignored.
    Nothing,
}

use Becomes::{CardFraction, Clips, Key, Nothing, OffloadOptimizer, Recompute, Sequences};

const GROUP: Becomes = Key("rollout.group_size");
const PROMPTS: Becomes = Key("rollout.prompts_per_step");
const RESPONSE: Becomes = Key("rollout.max_new_tokens");
const MICRO_TOKENS: Becomes = Key("train.micro_batch_tokens");
const KL: Becomes = Key("loss.kl_coef");
const PROMPT: Becomes = Key("data.prompt_tokens_max");
const EPOCHS: Becomes = Key("train.epochs_per_rollout");
const KEEP: Becomes = Key("checkpoint.keep");

/// (section, alias, meaning).
const ALIASES: [(&str, &str, Becomes); 57] = [
    ("rollout", "num_generations", GROUP),
    ("rollout", "n", GROUP),
    ("rollout", "n_samples_per_prompt", GROUP),
    ("rollout", "train_batch_size", PROMPTS),
    ("data", "train_batch_size", PROMPTS),
    ("rollout", "rollout_batch_size", PROMPTS),
    ("rollout", "max_completion_length", RESPONSE),
    ("rollout", "max_response_length", RESPONSE),
    ("rollout", "generate_max_len", RESPONSE),
    ("data", "max_prompt_length", PROMPT),
    ("data", "prompt_max_len", PROMPT),
    ("data", "chat_template_kwargs", Key("data.template_args")),
    ("rollout", "free_cache_engine", Nothing),
    ("train", "micro_train_batch_size", Sequences),
    ("train", "ppo_micro_batch_size_per_gpu", Sequences),
    ("train", "per_device_train_batch_size", Sequences),
    ("train", "max_tokens_per_gpu", MICRO_TOKENS),
    ("train", "ppo_max_token_len_per_gpu", MICRO_TOKENS),
    ("train", "grad_accum_dtype", Key("train.grad_dtype")),
    ("train", "gradient_checkpointing", Recompute),
    ("train", "max_grad_norm", Key("train.grad_clip")),
    ("train", "num_iterations", EPOCHS),
    ("train", "ppo_epochs", EPOCHS),
    ("train", "total_training_steps", Key("train.steps")),
    ("run", "output_dir", Key("run.dir")),
    ("run", "default_local_dir", Key("run.dir")),
    ("checkpoint", "save_total_limit", KEEP),
    ("checkpoint", "max_ckpt_num", KEEP),
    ("loss", "epsilon", Clips),
    ("loss", "cliprange", Clips),
    ("loss", "eps_clip", Clips),
    ("loss", "delta", Key("loss.dual_clip")),
    ("loss", "beta", KL),
    ("loss", "kl_loss_coef", KL),
    ("loss", "init_kl_coef", KL),
    ("loss", "filter_groups", Key("loss.dynamic_sampling")),
    ("loss", "dynamic_filtering_reward_range", Key("loss.dynamic_sampling")),
    ("loss", "use_bias_correction_kl", Key("loss.kl_unbiased")),
    ("loss", "mask_truncated_completions", Key("loss.mask_truncated")),
    ("loss", "lam", Key("loss.lambda")),
    ("loss", "lambd", Key("loss.lambda")),
    ("loss", "gae_lambda", Key("loss.lambda")),
    ("loss", "ent_coef", Key("loss.entropy_coef")),
    ("lora", "r", Key("lora.rank")),
    ("lora", "lora_r", Key("lora.rank")),
    ("lora", "lora_rank", Key("lora.rank")),
    ("lora", "lora_alpha", Key("lora.alpha")),
    ("lora", "lora_dropout", Key("lora.dropout")),
    ("lora", "target_modules", Key("lora.targets")),
    ("lora", "lora_target_modules", Key("lora.targets")),
    ("lora", "use_rslora", Key("lora.rslora")),
    ("critic", "vf_coef", Key("critic.value_coef")),
    ("environment", "total_timesteps", Key("environment.total_frames")),
    ("critic", "cliprange_value", Key("critic.value_clip")),
    ("critic", "critic_learning_rate", Key("critic.learning_rate")),
    ("critic", "critic_warmup", Key("critic.warmup_steps")),
    ("critic", "freezing_actor_steps", Key("critic.warmup_steps")),
];

const MEMORY_ALIASES: [(&str, &str, Becomes); 2] =
    [("memory", "adam_offload", OffloadOptimizer), ("memory", "gpu_memory_utilization", CardFraction)];

/// (value, ours): values of other stacks that mean the same here.
const VALUES: [(&str, &str); 13] = [
    ("bfloat16", "bf16"),
    ("torch.bfloat16", "bf16"),
    ("float32", "f32"),
    ("torch.float32", "f32"),
    ("fp32", "f32"),
    ("float", "f32"),
    ("8bit", "int8"),
    ("adamw_8bit", "int8"),
    ("adamw_bnb_8bit", "int8"),
    ("paged_adamw_8bit", "int8"),
    ("gpu", "cuda"),
    ("cuda:0", "cuda"),
    ("full", "layer"),
];

/// Floats of 16 bits with a small range.
const HALF: [&str; 5] = ["float16", "torch.float16", "fp16", "f16", "half"];

/// (name, where it belongs): names of other stacks whose values mean something else here, so that no value is taken
/// over.
const HINTS: [(&str, &str); 31] = [
    ("max_steps", "set `train.steps`: rollouts here, where TRL counts updates"),
    ("num_train_epochs", PASSES),
    ("total_epochs", PASSES),
    ("num_episodes", PASSES),
    ("save_steps", "set `checkpoint.every`: steps are rollouts here, where TRL counts updates"),
    ("save_freq", "set `checkpoint.every`"),
    ("eval_steps", "set `eval.every`: steps are rollouts here, where TRL counts updates"),
    ("test_freq", "set `eval.every`"),
    ("logging_steps", "remove it: every step is a line of events.jsonl"),
    ("report_to", TRACKERS),
    ("logger", TRACKERS),
    ("warmup_ratio", "set `train.warmup_steps`, a number of steps"),
    ("lr_warmup_ratio", "set `train.warmup_steps`, a number of steps"),
    ("lr_scheduler_type", "set `train.schedule` to \"constant\", \"linear\" or \"cosine\""),
    ("lr_scheduler", "set `train.schedule` to \"constant\", \"linear\" or \"cosine\""),
    ("gradient_accumulation_steps", "set `train.mini_batch`, the sequences of one update"),
    ("ppo_mini_batch_size", "set `train.mini_batch`: sequences here, where verl counts prompts"),
    ("adam_beta1", "set `train.betas`, both in one list"),
    ("adam_beta2", "set `train.betas`, both in one list"),
    (
        "optim",
        "set `train.optimizer_dtype`: the optimizer is AdamW, its states \"f32\", \"bf16\" or \"int8\"",
    ),
    ("epsilon_high", "set `loss.clip_low` and `loss.clip_high`"),
    ("bf16", "set `model_options.dtype` to \"bf16\" or \"f32\""),
    ("fp16", "set `model_options.dtype` to \"bf16\" or \"f32\""),
    ("torch_dtype", "set `model_options.dtype` to \"bf16\" or \"f32\""),
    ("model_name_or_path", "set `model`, at the top: hf:org/name, a folder or a GGUF file"),
    ("dataset_name", "set `data.prompts` to a JSONL or Parquet file, or to hf:org/name"),
    ("train_files", "set `data.prompts` to a JSONL or Parquet file, or to hf:org/name"),
    ("reward_funcs", "write a [[reward]] for each, with `kind`: plimsoll explain unknown-reward"),
    ("reward_weights", "set `weight` in each [[reward]]"),
    ("use_peft", "write a section [lora] with `rank`: docs/lora.md"),
    ("load_in_4bit", "remove it: weights are bf16 or f32, quantised ones are not built"),
];
const PASSES: &str = "set `train.epochs`: passes over the data";
const TRACKERS: &str = "set `track.to`, a list such as [\"wandb\"]; every number is in events.jsonl too";

/// Returns the hint for a value that other stacks know, of a key that takes the names `known`.
pub(super) fn value_hint(path: &str, value: &str, known: &[&str]) -> Option<String> {
    let value = value.to_ascii_lowercase();
    if HALF.contains(&&*value) && known.contains(&"bf16") {
        return Some(format!(
            "set `{path}` to \"bf16\", which has the size of a half and the range of f32; halves are not built"
        ));
    }
    let (_, ours) = VALUES.iter().find(|(theirs, _)| *theirs == value)?;
    known.contains(ours).then(|| format!("did you mean \"{ours}\"?"))
}

/// Returns what to write instead of a name of another stack, or the section in which it is read.
pub(super) fn hint(section: &str, name: &str) -> Option<String> {
    if let Some((_, hint)) = HINTS.iter().find(|(theirs, _)| *theirs == name) {
        return Some(hint.to_string());
    }
    let (right, ..) = rows().find(|(right, alias, _)| *alias == name && *right != section)?;
    Some(format!("`{name}` belongs in [{right}]"))
}

fn rows() -> impl Iterator<Item = (&'static str, &'static str, Becomes)> {
    ALIASES.into_iter().chain(MEMORY_ALIASES)
}

/// What the aliases of a run file changed.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Our key and the alias that set it last.
    pub by_key: BTreeMap<&'static str, &'static str>,
    pub notes: Vec<String>,
}

/// Renames the aliases of a whole file.
pub(super) fn rename(root: &mut Table, source: &Source, seen: &mut Seen) -> Result<()> {
    for (section, alias, becomes) in rows() {
        let Some(Node { value: Value::Table(table), .. }) = root.get_mut(section) else { continue };
        let Some(node) = table.remove(alias) else { continue };
        let origin = node.origin.clone();
        for (key, node) in translate(section, alias, becomes, node, source, seen)? {
            if root.at(key).is_some() {
                let message = format!("`{section}.{alias}` is another name of `{key}`, which is set too");
                return Err(source
                    .error("duplicate-key", &origin, &message)
                    .hint(format!("keep `{key}` alone")));
            }
            let (target, name) = key.split_once('.').expect("every key of the table has a section");
            match root.table_mut(target, &origin) {
                Some(table) => table.insert(name, node),
                None => return Err(source.error("bad-type", &origin, &format!("`{target}` is not a table"))),
            }
            seen.by_key.insert(key, alias);
        }
    }
    Ok(())
}

/// Returns what `--set path=value` sets: our keys if `path` is an alias, none otherwise.
pub(super) fn rename_one(
    path: &str,
    node: &Node,
    source: &Source,
    seen: &mut Seen,
) -> Result<Option<Vec<(&'static str, Node)>>> {
    let Some((section, alias, becomes)) =
        rows().find(|(section, alias, _)| path == format!("{section}.{alias}"))
    else {
        seen.by_key.remove(path);
        return Ok(None);
    };
    let pairs = translate(section, alias, becomes, node.clone(), source, seen)?;
    for (key, _) in &pairs {
        seen.by_key.insert(key, alias);
    }
    Ok(Some(pairs))
}

fn translate(
    section: &str,
    alias: &str,
    becomes: Becomes,
    node: Node,
    source: &Source,
    seen: &mut Seen,
) -> Result<Vec<(&'static str, Node)>> {
    let origin = node.origin.clone();
    let flag = |node: &Node| match node.value {
        Value::Boolean(value) => Ok(value),
        _ => Err(source.error(
            "bad-type",
            &origin,
            &format!("`{section}.{alias}` is {}; it takes true or false", node.kind()),
        )),
    };
    let text = |text: &str| Node { value: Value::Text(text.into()), origin: origin.clone() };
    Ok(match becomes {
        Key(key) => vec![(key, node)],
        Clips => vec![("loss.clip_low", node.clone()), ("loss.clip_high", node)],
        Sequences => match node.value {
            Value::Integer(count) if count > 0 => {
                vec![("train.micro_batch_tokens", text(&format!("{count}{SEQUENCES}")))]
            }
            _ => {
                let message = format!("`{section}.{alias}` is a number of sequences above 0");
                return Err(source
                    .error("bad-value", &origin, &message)
                    .hint("set train.micro_batch_tokens"));
            }
        },
        Recompute => vec![("train.recompute", text(if flag(&node)? { "layer" } else { "none" }))],
        OffloadOptimizer => {
            let items = if flag(&node)? { vec![text("optimizer")] } else { Vec::new() };
            vec![("memory.offload", Node { value: Value::Array(items), origin })]
        }
        CardFraction => return Err(card_fraction(section, alias, source, &origin)),
        Nothing => {
            seen.notes.push(format!(
                "`{section}.{alias}` is ignored: the KV cache has a fixed address in the plan and is never freed or rebuilt"
            ));
            Vec::new()
        }
    })
}

fn card_fraction(section: &str, alias: &str, source: &Source, origin: &Origin) -> Error {
    let message = format!("`{section}.{alias}` is a share of a GPU's memory; a run here is given bytes");
    source.error("not-built", origin, &message).hint(
        "remove it; memory.device = \"80GiB\" limits a run on a card, memory.host = \"8GiB\" one on the CPU",
    )
}

/// Marks a micro-batch that was given in sequences until all layers are read.
const SEQUENCES: &str = " sequences";

/// Turns a micro-batch of n sequences into n times the longest sequence, and refuses clips whose meaning is unclear.
pub(super) fn finish(root: &mut Table, source: &Source, seen: &mut Seen) -> Result<()> {
    let says = |key: &str| match root.at(key).map(|node| &node.value) {
        Some(Value::Text(text)) => Some(text.as_str()),
        _ => None,
    };
    if let Some(alias) = seen.by_key.get("loss.clip_low")
        && says("loss.policy").or(says("method")) == Some("cispo")
    {
        let origin = root.at("loss.clip_low").map(|node| node.origin.clone()).unwrap_or_default();
        let message = format!(
            "`loss.{alias}` means different bounds in different stacks when the loss is that of cispo"
        );
        return Err(source.error("contradictory-keys", &origin, &message).hint(
            "set loss.clip_low and loss.clip_high, the absolute bounds on the ratio (0 and 5 by default)",
        ));
    }
    let Some(alias) = seen.by_key.get("train.micro_batch_tokens") else { return Ok(()) };
    let number = |path: &str| match root.at(path).map(|node| &node.value) {
        Some(Value::Integer(number)) if *number > 0 => Some(*number),
        _ => None,
    };
    let (prompt, response) = (number("data.prompt_tokens_max"), number("rollout.max_new_tokens"));
    let Some(Node { value: Value::Table(train), .. }) = root.get_mut("train") else { return Ok(()) };
    let Some(Node { value: Value::Text(text), origin }) = train.get_mut("micro_batch_tokens") else {
        return Ok(());
    };
    let Some(count) = text.strip_suffix(SEQUENCES).and_then(|count| count.parse::<i64>().ok()) else {
        return Ok(());
    };
    let (Some(prompt), Some(response)) = (prompt, response) else {
        let message = format!("`train.{alias}` counts sequences, whose length is not given");
        return Err(source.error("missing-key", origin, &message).hint(
            "set data.prompt_tokens_max and rollout.max_new_tokens, or set train.micro_batch_tokens instead",
        ));
    };
    let tokens = count.saturating_mul(prompt.saturating_add(response));
    seen.notes.push(format!(
        "`train.{alias}` = {count} is read as train.micro_batch_tokens = {tokens} ({count} sequences of {prompt} + {response} tokens)"
    ));
    let origin = origin.clone();
    train.insert("micro_batch_tokens", Node { value: Value::Integer(tokens), origin });
    Ok(())
}
