//! Names and values that users of TRL, verl and OpenRLHF know. Names that become a key are in the key's row.

use super::key::{Becomes, Fact, Key};
use super::provenance::{Origin, Source};
use super::sections::rows;
use super::tree::{Node, Table, Value};
use plimsoll_base::{Error, Result};
use std::collections::BTreeMap;

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
const HINTS: [(&str, &str); 32] = [
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
    ("wandb", TRACKERS),
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
        "set `train.optimizer` to \"adamw\" or \"muon\", and `train.optimizer_dtype` to \"f32\", \"bf16\" or \"int8\"",
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
    if path == "run.device" && (value.starts_with("cuda:") || value.starts_with("gpu:")) {
        let number = value.split(':').nth(1).unwrap_or_default();
        return Some(format!(
            "set `{path}` to \"cuda\", and choose the card outside: CUDA_VISIBLE_DEVICES={number} plimsoll train ..."
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
    let right = aliases().find(|alias| alias.name == name && alias.section != section)?.section;
    Some(format!("`{name}` belongs in [{right}]"))
}

/// A name of another stack, the section in which it is read, and the key that it becomes.
struct Alias {
    section: &'static str,
    name: &'static str,
    key: &'static Key,
    becomes: Becomes,
}

fn aliases() -> impl Iterator<Item = Alias> {
    let of_fact = |key: &'static Key, fact: &'static Fact| {
        let (becomes, names) = if let Fact::Also(becomes, names) = fact {
            (*becomes, *names)
        } else {
            (Becomes::Nothing, &[][..])
        };
        names.iter().map(move |name| {
            let (section, name) = name.split_once('.').unwrap_or((key.parts().0, name));
            Alias { section, name, key, becomes }
        })
    };
    rows().flat_map(move |key| key.facts.iter().flat_map(move |fact| of_fact(key, fact)))
}

/// The keys that aliases of a run file set.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Our key and the alias that set it last.
    pub by_key: BTreeMap<&'static str, &'static str>,
    pub notes: Vec<String>,
}

/// Renames the aliases of a whole file.
pub(super) fn rename(root: &mut Table, source: &Source, seen: &mut Seen) -> Result<()> {
    for alias in aliases() {
        let Some(Node { value: Value::Table(table), .. }) = root.get_mut(alias.section) else { continue };
        let Some(node) = table.remove(alias.name) else { continue };
        let origin = node.origin.clone();
        for (key, node) in translate(&alias, node, source, seen)? {
            if root.at(key).is_some() {
                let message = format!("`{}` is another name of `{key}`, which is set too", alias.path());
                return Err(source
                    .error("duplicate-key", &origin, &message)
                    .hint(format!("keep `{key}` alone")));
            }
            let (target, name) = key.split_once('.').expect("every key of the table has a section");
            match root.table_mut(target, &origin) {
                Some(table) => table.insert(name, node),
                None => return Err(source.error("bad-type", &origin, &format!("`{target}` is not a table"))),
            }
            seen.by_key.insert(key, alias.name);
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
    let Some(alias) = aliases().find(|alias| path == alias.path()) else {
        seen.by_key.remove(path);
        return Ok(None);
    };
    let pairs = translate(&alias, node.clone(), source, seen)?;
    for (key, _) in &pairs {
        seen.by_key.insert(key, alias.name);
    }
    Ok(Some(pairs))
}

impl Alias {
    fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }
}

fn translate(
    alias: &Alias,
    node: Node,
    source: &Source,
    seen: &mut Seen,
) -> Result<Vec<(&'static str, Node)>> {
    let (key, path) = (alias.key.path, alias.path());
    let origin = node.origin.clone();
    let flag = |node: &Node| match node.value {
        Value::Boolean(value) => Ok(value),
        _ => Err(source.error(
            "bad-type",
            &origin,
            &format!("`{path}` is {}; it takes true or false", node.kind()),
        )),
    };
    let text = |text: &str| Node { value: Value::Text(text.into()), origin: origin.clone() };
    Ok(match alias.becomes {
        Becomes::Key => vec![(key, node)],
        Becomes::Renamed => {
            seen.notes.push(format!("`{path}` is called `{key}` now"));
            vec![(key, node)]
        }
        Becomes::Clips => vec![("loss.clip_low", node.clone()), ("loss.clip_high", node)],
        Becomes::Sequences => match node.value {
            Value::Integer(count) if count > 0 => {
                vec![(key, text(&format!("{count}{SEQUENCES}")))]
            }
            _ => {
                let message = format!("`{path}` is a number of sequences above 0");
                return Err(source.error("bad-value", &origin, &message).hint(format!("set {key}")));
            }
        },
        Becomes::Recompute => vec![(key, text(if flag(&node)? { "layer" } else { "none" }))],
        Becomes::OffloadOptimizer => {
            let items = if flag(&node)? { vec![text("optimizer")] } else { Vec::new() };
            vec![(key, Node { value: Value::Array(items), origin })]
        }
        Becomes::CardFraction => return Err(card_fraction(&path, source, &origin)),
        Becomes::Nothing => {
            seen.notes.push(format!(
                "`{path}` is ignored: the KV cache has a fixed address in the plan and is never freed or rebuilt"
            ));
            Vec::new()
        }
    })
}

fn card_fraction(path: &str, source: &Source, origin: &Origin) -> Error {
    let message = format!("`{path}` is a share of a GPU's memory; a run here is given bytes");
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
