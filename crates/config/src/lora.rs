//! `[lora]`: keys and names of peft become those of the table of types, or are refused by name.
//!
//! Peft's other kinds of adapter, and settings that would make the policy that samples differ from the one that is
//! trained, are refused before any file is opened.

use super::provenance::{Origin, Provenance, Source};
use super::sections::RunFile;
use super::tree::{Node, Table, Value};
use super::values::Offload;
use plimsoll_arch::{LoraTarget, LoraTargets, Quantization};
use plimsoll_base::{Error, Result, shown};

/// Learning rates of adapters are about ten times those of full fine-tuning, which begin at 1e-6.
const LEARNING_RATE_LOW: f64 = 1e-5;
/// peft's word for all linear layers of a decoder.
const ALL_LINEAR: &str = "all-linear";
/// Layers that a regular expression is tried on: it must match a target in all of them or in none.
const LAYERS_TRIED: usize = 130;
/// Largest size of a compiled expression.
const PATTERN_BYTES_MAX: usize = 1 << 20;
/// Characters that a regular expression has and the name of a module has not.
const PATTERN_CHARS: &[char] = &['*', '^', '$', '|', '(', ')', '[', ']', '+', '?', '\\', '{', '}'];

/// Other words for `quantize = "nf4"`.
const FOUR_BITS: [&str; 2] = ["load_in_4bit", "qlora"];

/// A key, whether a value of it changes nothing, and what other values ask for.
type NotBuilt = (&'static str, fn(&Value) -> bool, &'static str);

/// Keys of peft, and reserved ones, that adapters here have not.
const NOT_BUILT: [NotBuilt; 11] = [
    ("load_in_8bit", is_off, "a base model of 8 bits"),
    ("use_dora", is_off, "DoRA"),
    ("modules_to_save", is_off, "a module that is trained in full"),
    ("bias", is_none_text, "a trained bias"),
    ("lora_bias", is_off, "a bias in B"),
    ("init_lora_weights", is_true, "another initialisation than peft's default"),
    ("layers_to_transform", is_off, "an adapter in some of the layers only"),
    ("layers_pattern", is_off, "an adapter in some of the layers only"),
    ("rank_pattern", is_off, "a rank of its own for some of the layers"),
    ("alpha_pattern", is_off, "an alpha of its own for some of the layers"),
    ("exclude_modules", is_off, "an exception from the targets"),
];

fn is_off(value: &Value) -> bool {
    match value {
        Value::Boolean(on) => !on,
        Value::Text(text) => matches!(text.as_str(), "" | "none" | "None" | "null"),
        Value::Array(items) => items.is_empty(),
        Value::Table(table) => table.0.is_empty(),
        _ => false,
    }
}

fn is_none_text(value: &Value) -> bool {
    matches!(value, Value::Text(text) if text == "none")
}

fn is_true(value: &Value) -> bool {
    matches!(value, Value::Boolean(true))
}

fn unsupported(origin: &Origin, message: &str, source: &Source) -> Error {
    source.error("lora-unsupported", origin, message)
}

/// Turns what all layers of a run file say about `[lora]` into the keys and names of the table of types.
///
/// Errors: `lora-unsupported` for what peft has and this build has not, `bad-value` for targets that no model has.
pub(super) fn settle(root: &mut Table, source: &Source) -> Result<()> {
    let Some(Node { value: Value::Table(lora), .. }) = root.get_mut("lora") else { return Ok(()) };
    for (key, changes_nothing, what) in NOT_BUILT {
        let Some(node) = lora.remove(key) else { continue };
        if !changes_nothing(&node.value) {
            let message = format!("`lora.{key}`: {what} is not built");
            return Err(unsupported(&node.origin, &message, source).hint(format!("remove `lora.{key}`")));
        }
    }
    for key in FOUR_BITS {
        let Some(node) = lora.remove(key) else { continue };
        if is_true(&node.value) {
            let value = Value::Text(Quantization::Nf4.name().into());
            lora.insert("quantize", Node { value, origin: node.origin });
        } else if !is_off(&node.value) {
            let message = format!("`lora.{key}` has {}; it takes true or false", node.kind());
            let error = source.error("bad-type", &node.origin, &message);
            return Err(error.hint("write quantize = \"nf4\", or remove the key"));
        }
    }
    if lora.get_mut("quantize").is_some_and(|node| is_off(&node.value)) {
        lora.remove("quantize");
    }
    let Some(node) = lora.remove("targets") else { return Ok(()) };
    let origin = node.origin.clone();
    let targets = targets(&node, source)?;
    let name = |target: LoraTarget| Node { value: Value::Text(target.name().into()), origin: origin.clone() };
    let value = Value::Array(targets.iter().map(name).collect());
    lora.insert("targets", Node { value, origin: origin.clone() });
    Ok(())
}

/// Reads `lora.targets`: `all-linear`, one name, or a list of names.
fn targets(node: &Node, source: &Source) -> Result<LoraTargets> {
    let takes = "\"all-linear\" or a list of names such as [\"q_proj\", \"v_proj\"]";
    let wrong_type = |node: &Node| {
        let message = format!("`lora.targets` has {}; it takes {takes}", node.kind());
        source.error("bad-type", &node.origin, &message).hint(format!("write `targets` as {takes}"))
    };
    let names = match &node.value {
        Value::Text(text) if text.contains(PATTERN_CHARS) => {
            return LoraTargets::new(targets_of_pattern(text, &node.origin, source)?).ok_or_else(|| {
                let message =
                    format!("`lora.targets`: \"{}\" matches no linear layer of a decoder", shown(text));
                let error = source.error("bad-value", &node.origin, &message);
                error
                    .fact(format!("paths are such as {}", path_of(0, LoraTarget::Q)))
                    .hint(format!("or write names: {}", names()))
            });
        }
        Value::Text(_) => std::slice::from_ref(node),
        Value::Array(items) => items,
        _ => return Err(wrong_type(node)),
    };
    let mut found = Vec::new();
    for name in names {
        let Value::Text(text) = &name.value else { return Err(wrong_type(name)) };
        found.extend(targets_of_name(text, &name.origin, source)?);
    }
    LoraTargets::new(found).ok_or_else(|| {
        let message = "`lora.targets` is an empty list, and an adapter has at least one target";
        source.error("bad-value", &node.origin, message).hint(format!("set lora.targets to {takes}"))
    })
}

/// Returns the layers whose whole path a regular expression matches, as in peft. It matches them in every layer of a
/// decoder.
fn targets_of_pattern(pattern: &str, origin: &Origin, source: &Source) -> Result<Vec<LoraTarget>> {
    let whole = format!("^(?:{pattern})$");
    let found = regex::RegexBuilder::new(&whole).size_limit(PATTERN_BYTES_MAX).build();
    let regex = found.map_err(|err| {
        let reason = err.to_string().lines().last().unwrap_or_default().trim().to_string();
        let message = format!("`lora.targets`: \"{}\" is not a regular expression: {reason}", shown(pattern));
        source.error("bad-value", origin, &message).hint(format!("or write names: {}", names()))
    })?;
    let mut targets = Vec::new();
    let is_any = |among: &[LoraTarget]| {
        let is_match = |target: &&LoraTarget| regex.is_match(&path_of(0, **target));
        among.iter().any(|target| is_match(&target))
    };
    let common: Vec<LoraTarget> = LoraTargets::ALL.iter().collect();
    // Those that all families have stand for what other families have of their names.
    let modules = || LoraTarget::ALL.into_iter().filter(|target| target.parameter().is_none());
    let among = if is_any(&common) { common } else { modules().collect() };
    for target in among {
        let count = (0..LAYERS_TRIED).filter(|&layer| regex.is_match(&path_of(layer, target))).count();
        match count {
            0 => {}
            LAYERS_TRIED => targets.push(target),
            _ => {
                let message = format!(
                    "`lora.targets`: \"{}\" matches {target} in some layers only, and a target has an adapter in every layer",
                    shown(pattern)
                );
                let error = unsupported(origin, &message, source);
                return Err(error.hint(format!("write names: {}", names())));
            }
        }
    }
    Ok(targets)
}

fn path_of(layer: usize, target: LoraTarget) -> String {
    format!("model.layers.{layer}.{}", target.module())
}

/// Returns the layers that `name` means in peft: those whose path in a decoder layer is `name` or ends with `.name`.
fn targets_of_name(name: &str, origin: &Origin, source: &Source) -> Result<Vec<LoraTarget>> {
    if name == ALL_LINEAR {
        return Ok(LoraTargets::ALL.iter().collect());
    }
    let is_meant = |target: &LoraTarget| {
        // `gate_up_proj` alone is a module of other families, and `down_proj` one of each expert.
        let is_short = target.is_of_all_experts() && !name.contains('.');
        let ends = |path: &str| path == name || path.ends_with(&format!(".{name}"));
        let is_path = name.matches('.').count() > 1;
        !is_short && (ends(target.module()) || target.parameter().is_some_and(|path| is_path && ends(path)))
    };
    // `gate_proj` of a shared expert follows from the model: see `LoraTargets::of_model`.
    for among in [LoraTargets::ALL.iter().collect(), LoraTarget::ALL.to_vec()] {
        let meant: Vec<LoraTarget> = among.into_iter().filter(is_meant).collect();
        if !meant.is_empty() {
            return Ok(meant);
        }
    }
    let refused = |what: &str| {
        let message = format!("`lora.targets`: \"{}\" {what}", shown(name));
        unsupported(origin, &message, source)
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    if ["embed_tokens", "lm_head"].contains(&last) {
        let error = refused("has no adapter: embeddings and head are not trained with [lora]");
        return Err(error.hint(format!("remove \"{}\" from lora.targets", shown(name))));
    }
    if name.contains(PATTERN_CHARS) {
        let error = refused("is a regular expression, and a list has names");
        return Err(error.hint(format!("write it as text, not in a list: targets = \"{}\"", shown(name))));
    }
    if LoraTarget::of_name(last).is_some() && name.split('.').any(|part| part.parse::<u32>().is_ok()) {
        let error = refused("is one layer's, and a target has an adapter in every layer");
        return Err(error.hint(format!("set lora.targets = [\"{last}\"]")));
    }
    Err(unknown_target(name, origin, source))
}

fn unknown_target(name: &str, origin: &Origin, source: &Source) -> Error {
    let message = format!("`lora.targets`: \"{}\" matches no linear layer of a decoder", shown(name));
    let error = source.error("bad-value", origin, &message).fact(format!("there are {}", names()));
    let known = LoraTarget::ALL.iter().map(|target| target.name()).chain([ALL_LINEAR]);
    match super::de::nearest(name, known) {
        Some(near) => error.hint(format!("did you mean \"{near}\"?")),
        None => error.hint("set lora.targets to some of these names, or to \"all-linear\""),
    }
}

fn names() -> String {
    LoraTarget::ALL.map(LoraTarget::name).join(", ")
}

/// Fills in the key that follows from another one.
pub(super) fn fill(run: &mut RunFile, provenance: &mut Provenance) {
    let Some(lora) = &mut run.lora else { return };
    if lora.alpha.is_none() {
        lora.alpha = Some(lora.alpha());
        provenance.resolve("lora.alpha", "2 x lora.rank");
    }
}

/// Checks the values of `[lora]`.
pub(super) fn check(run: &RunFile, at: &Provenance) -> Result<()> {
    let Some(lora) = &run.lora else { return Ok(()) };
    if lora.dropout != 0.0 {
        let message = format!(
            "`lora.dropout` = {}: with dropout the policy that is trained is another one than the policy that sampled",
            lora.dropout
        );
        return Err(at.error("lora-unsupported", "lora.dropout", &message).hint("set lora.dropout = 0"));
    }
    if lora.adapter.as_deref() == Some("") {
        return Err(at.error("bad-value", "lora.adapter", "`lora.adapter` is empty").hint(
            "set it to a folder with adapter_config.json and adapter_model.safetensors, or remove it",
        ));
    }
    Ok(())
}

/// Returns notes about a learning rate that is one of full fine-tuning, and about a move to host memory that moves
/// nothing.
pub(super) fn notes(run: &RunFile) -> impl Iterator<Item = String> {
    let has = run.lora.is_some();
    let rate = run.train.learning_rate;
    let low = (has && rate > 0.0 && rate < LEARNING_RATE_LOW).then(|| {
        format!(
            "train.learning_rate = {rate:e} is one of full fine-tuning; adapters learn best at about ten times as much (docs/lora.md)"
        )
    });
    let offloads = |what| run.memory.offloads(what);
    let has_critic = run.method.needs().critic && run.lora.as_ref().is_some_and(|lora| lora.critic.is_full());
    let moves =
        (has && offloads(Offload::Reference)).then_some("the reference is the model without its adapter");
    let states = (has && offloads(Offload::Optimizer)).then_some(if has_critic {
        "it moves the critic's states, and those of adapters stay"
    } else {
        "states of adapters stay on the device"
    });
    let idle = moves.into_iter().chain(states).map(|why| format!("memory.offload with [lora]: {why}"));
    low.into_iter().chain(idle)
}
