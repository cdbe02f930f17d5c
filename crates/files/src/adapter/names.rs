//! Names of an adapter's tensors, as peft saves them.

use crate::safetensors_dir::TENSORS_MAX;
use plimsoll_arch::{LoraShape, LoraTarget, LoraTargets, ModelSpec};

const PREFIX: &str = "base_model.model.";
/// Prefixes of a layer's number: of a plain model, of one with images, and of the latter before transformers 4.52.
const LAYERS: [&str; 3] = ["model.layers.", "model.language_model.layers.", "language_model.model.layers."];
/// The head of a reward model, which is trained in full next to its adapters.
pub const ADAPTER_SCORE: &str = "base_model.model.score.weight";

/// Most tensors of a trainable adapter: a run saves three sets of their states in one file, which has half as many at
/// most as a file of weights, since names of adapters are longer.
pub const ADAPTER_TENSORS_MAX: usize = TENSORS_MAX / 2 / 3;

/// One of the two matrices of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoraPart {
    /// [rank, in].
    A,
    /// [out, rank].
    B,
}

impl LoraPart {
    /// Both, in the order in which they are saved.
    pub const ALL: [LoraPart; 2] = [LoraPart::A, LoraPart::B];

    const fn name(self) -> &'static str {
        match self {
            LoraPart::A => "lora_A",
            LoraPart::B => "lora_B",
        }
    }
}

/// The module that peft wraps once for each parameter of all experts: the last one wraps the others. Where experts are
/// next to a dense part it is not inside of `mlp`.
const ALL_EXPERTS: [&str; 2] = ["mlp.experts", "experts"];
/// Its first parameter, if it has adapters of both.
const BASE: &str = ".base_layer";

/// Returns a tensor's name in peft's file: `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`.
///
/// peft and vLLM open a model of text and images whole, and find its language model's adapter by this name alone.
/// `expert` is the index of the expert, if the target is an expert's matrix; `targets` are all of the adapter: a name
/// of all experts in one does not say which of the two parameters it is of.
pub fn adapter_tensor_name(
    model: &ModelSpec,
    targets: LoraTargets,
    (layer, expert): (u32, Option<u32>),
    target: LoraTarget,
    part: LoraPart,
) -> String {
    let layers = LAYERS[usize::from(model.is_wrapped)];
    let all = ALL_EXPERTS[usize::from(model.architecture().joins_dense)];
    let path = match target {
        LoraTarget::ExpertsGateUp if targets.contains(LoraTarget::ExpertsDown) => format!("{all}{BASE}"),
        LoraTarget::ExpertsGateUp | LoraTarget::ExpertsDown => all.into(),
        _ => target.path(expert),
    };
    format!("{PREFIX}{layers}{layer}.{path}.{}.weight", part.name())
}

/// Returns the name in peft's file of an adapter's tensor of a linear layer outside of the decoder, from that of its
/// weight: `base_model.model.model.visual.blocks.0.attn.qkv.lora_A.weight`.
pub fn tower_adapter_name(weight: &str, part: LoraPart) -> String {
    let module = weight.strip_suffix(".weight").unwrap_or(weight);
    format!("{PREFIX}{module}.{}.weight", part.name())
}

/// Returns the places of a target's tensors in a layer: an expert's index, or none if a tensor is of the whole layer.
pub(super) fn places(target: LoraTarget, model: &ModelSpec, layer: u32) -> impl Iterator<Item = Option<u32>> {
    let is_one = target.is_of_all_experts();
    let each = target.of_experts(model, layer).take(if is_one { 1 } else { usize::MAX });
    each.map(move |expert| expert.filter(|_| !is_one))
}

/// Returns the shapes of A and B in files: those of all experts have A one after the other, and columns of B by rank,
/// of a rank those of each expert.
pub(super) fn shapes(shape: LoraShape, target: LoraTarget, model: &ModelSpec, layer: u32) -> [[u64; 2]; 2] {
    let (a, b) = shape.shapes(target, model, layer);
    let is_one = target.is_of_all_experts();
    let experts = if is_one { target.of_experts(model, layer).count() as u64 } else { 1 };
    let ([a, b], [inputs, outputs]) = ([a[0], b[1]].map(u64::from), [a[1], b[0]].map(u64::from));
    [[a * experts, inputs], [outputs, b * experts]]
}

/// Returns names and shapes of an adapter's tensors, in the order in which they are saved.
pub fn adapter_tensors(shape: LoraShape, model: &ModelSpec) -> Vec<(String, Vec<u64>)> {
    let mut list = Vec::new();
    for layer in 0..model.layers.len() {
        for target in shape.targets.iter() {
            for expert in places(target, model, layer) {
                for (part, axes) in LoraPart::ALL.into_iter().zip(shapes(shape, target, model, layer)) {
                    let name = adapter_tensor_name(model, shape.targets, (layer, expert), target, part);
                    list.push((name, axes.to_vec()));
                }
            }
        }
    }
    list
}

/// The place of a tensor in an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub layer: u32,
    pub expert: Option<u32>,
    pub target: LoraTarget,
    pub part: LoraPart,
}

/// The meaning of a tensor's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Of(Part),
    Score,
    /// A tensor of an adapter that is not low-rank.
    NotBuilt(&'static str),
    Unknown,
}

/// Parses a name; `last` is the parameter of all experts that peft wrapped last.
pub(super) fn parse(name: &str, last: LoraTarget) -> Name {
    let words: [(&str, &str); 13] = [
        ("lora_magnitude_vector", "DoRA"),
        ("lora_embedding_", "an adapter of an embedding"),
        ("embed_tokens.", "an adapter of an embedding"),
        ("lm_head.", "an adapter of the head"),
        (".mlp.gate.lora_", "an adapter of a router"),
        (".router.proj.lora_", "an adapter of a router"),
        ("modules_to_save", "a module that was trained in full"),
        (".lora_A.bias", "a bias in A"),
        (".lora_B.bias", "a bias in B"),
        (".mlp.shared_expert_gate.", "an adapter of a shared expert's gate"),
        (".linear_attn.", "an adapter of linear attention by other names"),
        (".qkv_proj.", "an adapter of q, k and v in one"),
        (".gate_up_proj.", "an adapter of gate and up in one"),
    ];
    if name == ADAPTER_SCORE {
        return Name::Score;
    }
    if let Some(part) = parse_part(name, last) {
        return Name::Of(part);
    }
    match words.into_iter().find(|(word, _)| name.contains(word)) {
        Some((_, what)) => Name::NotBuilt(what),
        None => Name::Unknown,
    }
}

fn parse_part(name: &str, last: LoraTarget) -> Option<Part> {
    let own = name.strip_prefix(PREFIX)?;
    let (layer, rest) = LAYERS.iter().find_map(|layers| own.strip_prefix(layers))?.split_once('.')?;
    let (module, part) = rest.strip_suffix(".weight")?.rsplit_once('.')?;
    let (expert, target) = match module {
        all if ALL_EXPERTS.contains(&all) => (None, last),
        all if all.strip_suffix(BASE).is_some_and(|all| ALL_EXPERTS.contains(&all)) => {
            (None, LoraTarget::ExpertsGateUp)
        }
        _ => {
            let of_expert = module.strip_prefix("mlp.experts.").and_then(|rest| rest.split('.').next());
            let expert = of_expert.map(str::parse).transpose().ok()?;
            // Compares the whole path: `07` is not an expert's number.
            let is_one = |target: &LoraTarget| target.path(expert) == module && !target.is_of_all_experts();
            (expert, LoraTarget::ALL.into_iter().find(is_one)?)
        }
    };
    let found = Part {
        layer: layer.parse().ok()?,
        expert,
        target,
        part: LoraPart::ALL.into_iter().find(|known| known.name() == part)?,
    };
    // `01` and `+1` parse as numbers, but are not names of layers.
    (layer == found.layer.to_string()).then_some(found)
}
