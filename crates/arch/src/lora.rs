//! The shape of a low-rank adapter: which linear layers of a decoder it changes, and its rank.
//!
//! Legend: r rank. A layer y = W x with an adapter is y = W x + scale B (A x), where A is [r, in] and B is [out, r].

use plimsoll_base::Encoding;
use serde::{Deserialize, Serialize};
use std::fmt;

plimsoll_base::names! {
    /// A linear layer of a decoder layer, by its name in peft and transformers.
    #[derive(PartialOrd, Ord)]
    LoraTarget {
        /// Queries.
        Q = "q_proj",
        /// Keys.
        K = "k_proj",
        /// Values.
        V = "v_proj",
        /// Output of attention.
        O = "o_proj",
        /// Gate of the feed-forward part.
        Gate = "gate_proj",
        /// The projection that the gate multiplies.
        Up = "up_proj",
        /// Output of the feed-forward part.
        Down = "down_proj",
        /// The latent of queries.
        QueryDown = "q_a_proj",
        /// Queries from their latent.
        QueryUp = "q_b_proj",
        /// The latent of keys and values, and the rotated key.
        LatentDown = "kv_a_proj_with_mqa",
        /// Keys and values of all heads from their latent.
        LatentUp = "kv_b_proj",
        /// Queries, keys and values of linear attention.
        DeltaQkv = "in_proj_qkv",
        /// Output gates of linear attention.
        DeltaZ = "in_proj_z",
        /// Rates at which linear attention corrects its state.
        DeltaB = "in_proj_b",
        /// Decays of linear attention.
        DeltaA = "in_proj_a",
        /// Queries, keys, values and output gates of linear attention, by key heads.
        DeltaQkvz = "in_proj_qkvz",
        /// Rates and decays of linear attention, by key heads.
        DeltaBa = "in_proj_ba",
        /// Output of linear attention.
        DeltaOut = "out_proj",
        /// Gate of the shared expert.
        SharedGate = "shared_expert.gate_proj",
        /// The projection of the shared expert that the gate multiplies.
        SharedUp = "shared_expert.up_proj",
        /// Output of the shared expert.
        SharedDown = "shared_expert.down_proj",
        /// Gate of several shared experts in one.
        SharedGates = "shared_experts.gate_proj",
        /// The projection of several shared experts in one that the gate multiplies.
        SharedUps = "shared_experts.up_proj",
        /// Output of several shared experts in one.
        SharedDowns = "shared_experts.down_proj",
        /// Gates and ups of all experts as one parameter: one A for both in each expert.
        ExpertsGateUp = "experts.gate_up_proj",
        /// Outputs of all experts as one parameter.
        ExpertsDown = "experts.down_proj",
    }
}

impl LoraTarget {
    /// Returns the target with this name, if there is one.
    pub fn of_name(name: &str) -> Option<LoraTarget> {
        LoraTarget::ALL.into_iter().find(|target| target.name() == name)
    }

    /// Returns its path in a decoder layer, such as `self_attn.q_proj`.
    pub const fn module(self) -> &'static str {
        match self {
            LoraTarget::Q => "self_attn.q_proj",
            LoraTarget::K => "self_attn.k_proj",
            LoraTarget::V => "self_attn.v_proj",
            LoraTarget::O => "self_attn.o_proj",
            LoraTarget::Gate => "mlp.gate_proj",
            LoraTarget::Up => "mlp.up_proj",
            LoraTarget::Down => "mlp.down_proj",
            LoraTarget::QueryDown => "self_attn.q_a_proj",
            LoraTarget::QueryUp => "self_attn.q_b_proj",
            LoraTarget::LatentDown => "self_attn.kv_a_proj_with_mqa",
            LoraTarget::LatentUp => "self_attn.kv_b_proj",
            LoraTarget::DeltaQkv => "linear_attn.in_proj_qkv",
            LoraTarget::DeltaZ => "linear_attn.in_proj_z",
            LoraTarget::DeltaB => "linear_attn.in_proj_b",
            LoraTarget::DeltaA => "linear_attn.in_proj_a",
            LoraTarget::DeltaQkvz => "linear_attn.in_proj_qkvz",
            LoraTarget::DeltaBa => "linear_attn.in_proj_ba",
            LoraTarget::DeltaOut => "linear_attn.out_proj",
            LoraTarget::SharedGate => "mlp.shared_expert.gate_proj",
            LoraTarget::SharedUp => "mlp.shared_expert.up_proj",
            LoraTarget::SharedDown => "mlp.shared_expert.down_proj",
            LoraTarget::SharedGates => "mlp.shared_experts.gate_proj",
            LoraTarget::SharedUps => "mlp.shared_experts.up_proj",
            LoraTarget::SharedDowns => "mlp.shared_experts.down_proj",
            LoraTarget::ExpertsGateUp => "mlp.experts.gate_up_proj",
            LoraTarget::ExpertsDown => "mlp.experts.down_proj",
        }
    }

    /// Returns the linear layers of each expert that it changes in one, if it is a parameter with all experts of a
    /// layer: an entry of peft's `target_parameters`. Others are modules of their own, and change none but themselves.
    pub const fn spans(self) -> &'static [LoraTarget] {
        match self {
            LoraTarget::ExpertsGateUp => &[LoraTarget::Gate, LoraTarget::Up],
            LoraTarget::ExpertsDown => &[LoraTarget::Down],
            _ => &[],
        }
    }

    /// Returns whether it is a parameter with all experts of a layer.
    pub const fn is_of_all_experts(self) -> bool {
        !self.spans().is_empty()
    }

    /// Returns the entry of peft's `target_parameters` that is this target, if no name of a module is: the names of
    /// shared experts are taken for those of routed ones, and all experts of a layer are no modules.
    pub const fn parameter(self) -> Option<&'static str> {
        match self {
            LoraTarget::SharedGates => Some("mlp.shared_experts.gate_proj.weight"),
            LoraTarget::SharedUps => Some("mlp.shared_experts.up_proj.weight"),
            LoraTarget::SharedDowns => Some("mlp.shared_experts.down_proj.weight"),
            LoraTarget::ExpertsGateUp | LoraTarget::ExpertsDown => Some(self.module()),
            _ => None,
        }
    }

    /// Returns its path in a decoder layer, or in one of the layer's experts: `mlp.experts.7.gate_proj`.
    pub fn path(self, expert: Option<u32>) -> String {
        match expert {
            Some(expert) => format!("mlp.experts.{expert}.{self}"),
            None => self.module().to_string(),
        }
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// The linear layers that an adapter changes in every decoder layer; at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "Vec<LoraTarget>", try_from = "Vec<LoraTarget>")]
pub struct LoraTargets(u32);

impl LoraTargets {
    /// The four targets of attention: q, k, v, o.
    pub const ATTENTION: LoraTargets = LoraTargets(0x0f);

    /// The seven targets of attention and of a feed-forward part, which most families have.
    pub const ALL: LoraTargets = LoraTargets(0x7f);

    /// Returns the set of `targets`; none if it is empty.
    pub fn new(targets: impl IntoIterator<Item = LoraTarget>) -> Option<LoraTargets> {
        let bits = targets.into_iter().fold(0, |bits, target| bits | target.bit());
        (bits != 0).then_some(LoraTargets(bits))
    }

    /// The three targets of the feed-forward part: gate, up, down.
    pub const FFN: LoraTargets = LoraTargets(0x70);

    /// True if `target` is in the set.
    pub const fn contains(self, target: LoraTarget) -> bool {
        self.0 & target.bit() != 0
    }

    /// Returns the targets in the order of `LoraTarget`.
    pub fn iter(self) -> impl Iterator<Item = LoraTarget> {
        LoraTarget::ALL.into_iter().filter(move |&target| self.contains(target))
    }

    /// Returns the targets' names in peft.
    pub fn names(self) -> Vec<&'static str> {
        self.iter().map(LoraTarget::name).collect()
    }

    /// Returns the value of `lora.targets` in a run file.
    pub fn in_toml(self) -> String {
        if self == LoraTargets::ALL {
            format!("\"{self}\"")
        } else {
            format!("{:?}", self.iter().map(LoraTarget::name).collect::<Vec<_>>())
        }
    }

    /// Returns the number of targets.
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }
}

impl From<LoraTargets> for Vec<LoraTarget> {
    fn from(targets: LoraTargets) -> Vec<LoraTarget> {
        targets.iter().collect()
    }
}

impl TryFrom<Vec<LoraTarget>> for LoraTargets {
    type Error = &'static str;

    fn try_from(targets: Vec<LoraTarget>) -> Result<LoraTargets, &'static str> {
        LoraTargets::new(targets).ok_or("an adapter has at least one target")
    }
}

/// Formats as `all-linear`, or as names separated by commas.
impl fmt::Display for LoraTargets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == LoraTargets::ALL {
            return f.write_str("all-linear");
        }
        let names: Vec<&str> = self.iter().map(LoraTarget::name).collect();
        f.write_str(&names.join(", "))
    }
}

/// Rank and targets of an adapter: together with the model they decide its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LoraShape {
    /// r: rows of A and columns of B.
    pub rank: u32,
    /// The linear layers that have an A and a B.
    pub targets: LoraTargets,
}

plimsoll_base::names! {
    /// How the frozen weights of linear layers are stored.
    Quantization {
        /// 4 bits per weight and an f32 scale per 64 elements of a row, as bitsandbytes defines it.
        Nf4 = "nf4",
        /// The blocks of the model's GGUF file.
        Gguf = "gguf",
        /// The blocks of experts in the model's file, where other weights are plain numbers.
        Mxfp4 = "mxfp4",
    }
}

impl Quantization {
    /// Elements of a row that share an NF4 scale.
    pub const BLOCK: u32 = Encoding::Nf4.block_values() as u32;

    /// Returns the encoding that linear layers get, in MXFP4 those of experts; none if they keep those of their file.
    pub const fn encoding(self) -> Option<Encoding> {
        match self {
            Quantization::Nf4 => Some(Encoding::Nf4),
            Quantization::Gguf => None,
            Quantization::Mxfp4 => Some(Encoding::Mxfp4),
        }
    }
}

impl LoraShape {
    /// Largest supported rank; full-rank matrices of small models are hardly larger.
    pub const RANK_MAX: u32 = 256;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelSpec;

    #[test]
    fn targets_keep_their_order_and_their_names() {
        let some = LoraTargets::new([LoraTarget::V, LoraTarget::Q, LoraTarget::V]).unwrap();
        assert_eq!((some.to_string().as_str(), some.count()), ("q_proj, v_proj", 2));
        assert!(some.contains(LoraTarget::Q) && !some.contains(LoraTarget::K));
        assert_eq!(LoraTargets::new(LoraTarget::ALL.into_iter().take(7)), Some(LoraTargets::ALL));
        assert_eq!(LoraTargets::ALL.to_string(), "all-linear");
        assert_eq!(LoraTargets::new([]), None);
        let built = |preset| LoraTargets::built_for(&ModelSpec::preset(preset).unwrap());
        assert_eq!(built("qwen3-0.6b"), LoraTargets::ALL);
        assert_eq!(built("qwen3-30b-a3b"), LoraTargets::ALL);
        assert_eq!(built("qwen3.5-4b"), LoraTargets::ALL);
        assert_eq!(built("qwen3.5-35b-a3b"), LoraTargets::ALL);
        assert_eq!(
            built("qwen3-next-80b-a3b").to_string(),
            "q_proj, k_proj, v_proj, o_proj, in_proj_qkvz, in_proj_ba, out_proj, experts.gate_up_proj, \
             experts.down_proj"
        );
        assert_eq!(built("gemma-4-26b-a4b"), LoraTargets::ALL);
        assert_eq!(LoraTargets::ATTENTION.names(), ["q_proj", "k_proj", "v_proj", "o_proj"]);
        assert_eq!(LoraTarget::of_name("down_proj"), Some(LoraTarget::Down));
        assert_eq!(LoraTarget::of_name("lm_head"), None);
        for target in LoraTarget::ALL {
            assert!(target.module().ends_with(&format!(".{target}")), "{target}");
        }
    }

    #[test]
    fn names_reach_in_a_model_what_they_reach_in_peft() {
        let of = |preset: &str, targets: LoraTargets| {
            let model = ModelSpec::preset(preset).unwrap();
            let targets = targets.of_model(&model);
            (targets.to_string(), LoraShape { rank: 4, targets }.reach(&model))
        };
        assert_eq!(of("qwen3-30b-a3b", LoraTargets::ALL), ("all-linear".into(), None));
        let (reached, words) = of("qwen3.5-35b-a3b", LoraTargets::ALL);
        let shared = "shared_expert.gate_proj, shared_expert.up_proj, shared_expert.down_proj";
        assert_eq!(reached, format!("q_proj, k_proj, v_proj, o_proj, {shared}"));
        let words = words.unwrap();
        assert!(words.starts_with("adapters of q_proj (10 layers), k_proj (10 layers)"), "{words}");
        let frozen = words.split_once("; frozen: ").unwrap().1;
        assert!(frozen.starts_with("each expert's gate_proj (40 layers)"), "{words}");
        assert!(frozen.ends_with("in_proj_a (30 layers), out_proj (30 layers)"), "{words}");
        // What was reached reaches the same again.
        let resolved = LoraTargets::ALL.of_model(&ModelSpec::preset("qwen3.5-35b-a3b").unwrap());
        assert_eq!(of("qwen3.5-35b-a3b", resolved).0, reached);
        assert_eq!(of("qwen3.5-4b", LoraTargets::FFN).0, "gate_proj, up_proj, down_proj");
        let delta = LoraTargets::new([LoraTarget::DeltaQkv]).unwrap();
        let next = ModelSpec::preset("qwen3-next-80b-a3b").unwrap();
        assert_eq!(delta.unfit(&next), Some(crate::Unfit::InNoLayer(delta)));
        let ffn = LoraTargets::FFN.of_model(&next);
        assert_eq!(ffn.unfit(&next), Some(crate::Unfit::OtherInPeft(ffn)));
        assert_eq!(delta.unfit(&ModelSpec::preset("qwen3.5-4b").unwrap()), None);
        // A dense part next to experts has other weights than these.
        let both = LoraTargets::new([LoraTarget::Up, LoraTarget::Down, LoraTarget::ExpertsDown]).unwrap();
        let (gemma, large) = ("gemma-4-26b-a4b", "qwen3-30b-a3b");
        let unfit = |preset: &str| {
            both.of_model(&ModelSpec::preset(preset).unwrap()).unfit(&ModelSpec::preset(preset).unwrap())
        };
        assert_eq!(
            (unfit(gemma), unfit(large)),
            (None, LoraTargets::new([LoraTarget::Down]).map(crate::Unfit::Twice))
        );
    }

    #[test]
    fn targets_are_a_list_of_names_in_files() {
        let some = LoraTargets::new([LoraTarget::Q, LoraTarget::Down]).unwrap();
        let text = serde_json::to_string(&some).unwrap();
        assert_eq!(text, r#"["q_proj","down_proj"]"#);
        assert_eq!(serde_json::from_str::<LoraTargets>(&text).unwrap(), some);
        assert!(serde_json::from_str::<LoraTargets>("[]").is_err());
        assert!(serde_json::from_str::<LoraTargets>(r#"["lm_head"]"#).is_err());
    }

    /// 28 layers x 32 x (2 (3584 + 3584) + 2 (3584 + 512) + 3 (3584 + 18944)).
    #[test]
    fn an_adapter_of_a_7b_model_at_rank_32_has_81_million_parameters() {
        let model = ModelSpec::preset("qwen2.5-7b").unwrap();
        let shape = LoraShape { rank: 32, targets: LoraTargets::ALL };
        assert_eq!(shape.parameters(&model), 80_740_352);
        let (a, b) = shape.shapes(LoraTarget::Gate, &model, 0);
        assert_eq!((a, b), ([32, 3584], [18944, 32]));
        let each: u64 = (LoraTarget::ALL.into_iter())
            .map(|target| {
                let (a, b) = shape.shapes(target, &model, 0);
                u64::from(a[0]) * u64::from(a[1]) + u64::from(b[0]) * u64::from(b[1])
            })
            .sum();
        assert_eq!(shape.parameters(&model), each * u64::from(model.layers.len()));
        assert_eq!(shape.active_parameters(&model), shape.parameters(&model));
    }

    /// 48 layers x 16 x (2 (2048 + 4096) + 2 (2048 + 512) + 128 x 3 (2048 + 768)); 8 of 128 experts compute a row.
    #[test]
    fn every_expert_has_an_adapter_of_its_own() {
        let model = ModelSpec::preset("qwen3-30b-a3b").unwrap();
        let shape = LoraShape { rank: 16, targets: LoraTargets::ALL };
        let (attention, expert) = (2 * (2048 + 4096) + 2 * (2048 + 512), 3 * (2048 + 768));
        assert_eq!(shape.parameters(&model), 48 * 16 * (attention + 128 * expert));
        assert_eq!(shape.active_parameters(&model), 48 * 16 * (attention + 8 * expert));
        assert_eq!(LoraTarget::Down.path(Some(7)), "mlp.experts.7.down_proj");
        assert_eq!(LoraTarget::Q.of_experts(&model, 0).collect::<Vec<_>>(), [None]);
        assert_eq!(LoraTarget::Up.narrowest(&model), (2048, 768));
    }
}
