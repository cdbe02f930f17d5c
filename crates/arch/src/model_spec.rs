//! The shape of a decoder: the part of `config.json` that bytes and arithmetic depend on.
//!
//! Legend: V vocab, L layers, h hidden, a query heads, k key-value heads, d head dim, f feed-forward.

use crate::architecture::{Architecture, QkNorms};
use crate::{Attention, DeltaSpec, ExpertsSpec, Family, LayerSet, Multipliers, RopeFactors, Window};
use serde::{Deserialize, Serialize};

/// Maximum tokens that a device lists of a row of the head: with a tile they are sorted in one block of a card.
pub const LISTED_MAX: u32 = 1024;

/// How rotary frequencies are scaled beyond the trained context.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3's rule: low frequencies divided by `factor`, high ones kept, a ramp between.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of pretraining.
        original_max_position_embeddings: u32,
    },
    /// YaRN: pairs that turn rarely within the first context are divided by `factor`, those that turn often are kept,
    /// with a ramp between; cosines and sines are multiplied by `attention_factor`.
    Yarn {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Context length of pretraining.
        original_max_position_embeddings: u32,
        /// Turns within that context above which a pair is kept.
        beta_fast: f64,
        /// Turns within that context below which a pair is divided.
        beta_slow: f64,
        /// Factor on cosines and sines; scores grow by its square.
        attention_factor: f64,
        /// True if the ends of the ramp are rounded to whole pairs.
        truncate: bool,
    },
    /// The base grows once a sequence is longer than `max_positions`; shorter ones are not scaled.
    Dynamic {
        /// How fast the base grows.
        factor: f64,
    },
    /// One divisor per frequency; cosines and sines are multiplied by a factor computed from the model's positions.
    LongRope {
        /// Divisors for sequences of up to `original_max_position_embeddings` tokens.
        short_factor: RopeFactors,
        /// Divisors for longer sequences.
        long_factor: RopeFactors,
        /// Context length of pretraining.
        original_max_position_embeddings: u32,
    },
}

/// The shape of one decoder.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// Architecture family, which decides names on disk.
    pub family: Family,
    /// V: rows of the embedding.
    pub vocab: u32,
    /// h: width of the residual stream.
    pub hidden: u32,
    /// L: decoder layers.
    pub layers: u32,
    /// a: query heads.
    pub heads: u32,
    /// k: key-value heads.
    pub kv_heads: u32,
    /// d: elements of a head.
    pub head_dim: u32,
    /// f: feed-forward width of the layers without experts.
    pub ffn: u32,
    /// Epsilon of all RMS norms.
    pub rms_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Scaling of the rotary frequencies.
    pub rope_scaling: RopeScaling,
    /// True if the head shares the embedding's weights.
    pub tied: bool,
    /// True if q, k and v have a bias.
    pub qkv_bias: bool,
    /// True if o has a bias.
    #[serde(default, skip_serializing_if = "is_false")]
    pub output_bias: bool,
    /// True if gate, up and down have a bias.
    #[serde(default, skip_serializing_if = "is_false")]
    pub mlp_bias: bool,
    /// How q and k are normalised before rope.
    pub qk_norms: Option<QkNorms>,
    /// Longest sequence that the model supports.
    pub max_positions: u32,
    /// How attention differs from plain causal attention.
    #[serde(default, skip_serializing_if = "Attention::is_plain")]
    pub attention: Attention,
    /// Constant factors.
    #[serde(default, skip_serializing_if = "Multipliers::is_plain")]
    pub multipliers: Multipliers,
    /// True if it is the language model of a vision-language model, whose names its adapters use.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_wrapped: bool,
    /// Experts (MoE models only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<ExpertsSpec>,
    /// Linear attention layers, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta: Option<DeltaSpec>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde asks.
fn is_false(flag: &bool) -> bool {
    !flag
}

impl ModelSpec {
    /// Returns a*d, the width of all query heads.
    pub const fn q_width(&self) -> u32 {
        self.heads * self.head_dim
    }

    /// Returns k*d, the width of all key (or value) heads.
    pub const fn kv_width(&self) -> u32 {
        self.kv_heads * self.head_dim
    }

    /// Returns the number of layers with linear attention.
    pub fn delta_layers(&self) -> u32 {
        self.delta.map_or(0, |delta| delta.layers.len())
    }

    /// Returns the outputs of the input projection of softmax attention: q, k, v, and output gates if heads have them.
    pub const fn qkv_width(&self) -> u32 {
        let gates = if self.attention.gated { self.q_width() } else { 0 };
        self.q_width() + 2 * self.kv_width() + gates
    }

    /// Returns the largest `first_width` and the largest `mixed_width` of all layers.
    pub fn widest(&self) -> (u32, u32) {
        let most = |width: fn(&ModelSpec, u32) -> u32| (0..self.layers).map(|layer| width(self, layer)).max();
        (most(ModelSpec::first_width).unwrap_or(0), most(ModelSpec::mixed_width).unwrap_or(0))
    }

    /// Returns the number of rotated elements of a head.
    pub fn rotary_width(&self) -> u32 {
        self.attention.rotated.unwrap_or(self.head_dim)
    }

    /// Returns the family's row of the table of architectures.
    pub const fn architecture(&self) -> &'static Architecture {
        self.family.architecture()
    }

    /// Returns the number of layers with experts.
    pub fn expert_layers(&self) -> u32 {
        self.experts.map_or(0, |experts| experts.layers.len())
    }

    /// Returns a divisor of all down projections' inputs: the feed-forward width, the experts' width if all layers have
    /// experts, or the greatest common divisor of the two if only some have.
    pub fn ffn_inputs(&self) -> u32 {
        let Some(experts) = self.experts else { return self.ffn };
        let (mut a, mut b) = (experts.ffn, if experts.layers.len() == self.layers { 0 } else { self.ffn });
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    }

    /// Returns the inputs per row of a layer's down projections, over all experts of the row.
    pub fn product_width(&self, layer: u32) -> u32 {
        self.layer(layer).experts().map_or(self.ffn, |experts| experts.product_width())
    }

    /// A plain decoder whose sizes are all 0, as a base for others.
    pub const PLAIN: ModelSpec = spec(Family::Llama, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, false, 0);

    /// Returns the spec of a preset in `PRESETS`.
    pub fn preset(name: &str) -> Option<ModelSpec> {
        PRESETS.iter().find(|(n, _)| *n == name).map(|(_, spec)| *spec)
    }
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments)] // One row of the table below.
const fn spec(
    family: Family, vocab: u32, hidden: u32, layers: u32, heads: u32, kv_heads: u32, head_dim: u32, ffn: u32,
    rms_eps: f32, rope_theta: f64, tied: bool, max_positions: u32,
) -> ModelSpec {
    ModelSpec {
        family, vocab, hidden, layers, heads, kv_heads, head_dim, ffn, rms_eps, rope_theta,
        rope_scaling: RopeScaling::None, tied, max_positions,
        qkv_bias: family.architecture().qkv_bias, output_bias: false, mlp_bias: false, qk_norms: family.architecture().qk_norms,
        attention: PLAIN, multipliers: Multipliers { embedding: 1.0, residual: 1.0, logits: 1.0, logit_cap: None }, is_wrapped: false, experts: None, delta: None,
    }
}

const PLAIN: Attention = Attention {
    window: None,
    unrotated: LayerSet::every(1, 0),
    scale: None,
    rotated: None,
    score_cap: None,
    gated: false,
};

const ONES: [f32; 3] = [1.0; 3];

/// Returns `spec` with a factor on scores, and factors on embeddings, residual additions and logits.
const fn scaled(spec: ModelSpec, scale: f32, [embedding, residual, logits]: [f32; 3]) -> ModelSpec {
    let attention = Attention { scale: Some(scale), ..spec.attention };
    ModelSpec { attention, multipliers: Multipliers { embedding, residual, logits, logit_cap: None }, ..spec }
}

const OLMO_3_ROPE: RopeScaling = RopeScaling::Yarn {
    factor: 8.0,
    original_max_position_embeddings: 8192,
    beta_fast: 32.0,
    beta_slow: 1.0,
    attention_factor: 1.207_944_154_167_983_6,
    truncate: true,
};

#[rustfmt::skip]
const PHI_4_MINI_ROPE: RopeScaling = RopeScaling::LongRope {
    short_factor: RopeFactors::of(&[1.0; 48]),
    long_factor: RopeFactors::of(&[
        1.0, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897, 1.956131817, 2.187582649, 2.446418898, 2.735880826,
        3.059592084, 3.421605075, 3.826451687, 4.279200023, 4.785517845, 5.351743533, 5.984965424, 6.693110555, 7.485043894, 8.370679318,
        9.36110372, 10.4687158, 11.70738129, 13.09260651, 14.64173252, 16.37415215, 18.31155283, 20.47818807, 22.90118105, 25.61086418,
        28.64115884, 32.03, 32.1, 32.13, 32.23, 32.6, 32.61, 32.64, 32.66, 32.7, 32.71, 32.93, 32.97, 33.28, 33.49, 33.5, 44.16, 47.77,
    ]),
    original_max_position_embeddings: 4096,
};

/// Returns `spec` with soft caps of scores and logits.
const fn capped(spec: ModelSpec, scores: f32, logits: f32) -> ModelSpec {
    let attention = Attention { score_cap: Some(scores), ..spec.attention };
    ModelSpec { attention, multipliers: Multipliers { logit_cap: Some(logits), ..spec.multipliers }, ..spec }
}

/// Returns `spec` with experts in all layers, whose weights are divided by their sum.
const fn with_experts(spec: ModelSpec, count: u32, chosen: u32, ffn: u32) -> ModelSpec {
    let layers = LayerSet::every(1, spec.layers);
    let experts = ExpertsSpec { count, chosen, ffn, normalizes: true, layers, balance: 0.001 };
    ModelSpec { experts: Some(experts), ..spec }
}

/// Returns `spec` with linear attention in all layers but every fourth: heads of 128, of which 16 are of keys. A
/// quarter of each head of the other layers is rotated.
const fn with_delta(spec: ModelSpec, value_heads: u32) -> ModelSpec {
    let layers = LayerSet::all_but_every(4, spec.layers);
    let delta = DeltaSpec { layers, key_heads: 16, value_heads, key_dim: 128, value_dim: 128 };
    let attention = Attention { rotated: Some(spec.head_dim / 4), gated: true, ..spec.attention };
    ModelSpec { attention, delta: Some(delta), ..spec }
}

/// Returns `spec` with windows in all layers but every n-th.
const fn with_windows(spec: ModelSpec, keys: u32, n: u32, rope_theta: Option<f64>) -> ModelSpec {
    let window = Window { keys, layers: LayerSet::all_but_every(n, spec.layers), rope_theta };
    ModelSpec { attention: Attention { window: Some(window), ..spec.attention }, ..spec }
}

const LLAMA_3_2_ROPE: RopeScaling = RopeScaling::Llama3 {
    factor: 32.0,
    low_freq_factor: 1.0,
    high_freq_factor: 4.0,
    original_max_position_embeddings: 8192,
};

const LLAMA_3_1_ROPE: RopeScaling = RopeScaling::Llama3 {
    factor: 8.0,
    low_freq_factor: 1.0,
    high_freq_factor: 4.0,
    original_max_position_embeddings: 8192,
};

/// Returns `spec` with experts in all layers and without qk-norm.
const fn mixtral(spec: ModelSpec, count: u32, chosen: u32) -> ModelSpec {
    with_experts(ModelSpec { qk_norms: None, ..spec }, count, chosen, spec.ffn)
}

/// Presets that are planned only: Baichuan's attention has position biases, which the decoder lacks; files of the
/// others are not read. Each has the family whose layers have its shape.
pub const PLAN_ONLY: &[&str] = &["baichuan-13b", "mixtral-8x7b", "mixtral-8x22b", "olmoe-1b-7b"];

/// Known shapes for `random:PRESET`, from the published `config.json` files.
#[rustfmt::skip]
pub const PRESETS: &[(&str, ModelSpec)] = &[
    ("nano", spec(Family::Llama, 15, 128, 4, 2, 2, 64, 384, 1e-6, 1e3, true, 64)),
    ("smollm2-135m", spec(Family::Llama, 49152, 576, 30, 9, 3, 64, 1536, 1e-5, 1e5, true, 8192)),
    ("smollm2-360m", spec(Family::Llama, 49152, 960, 32, 15, 5, 64, 2560, 1e-5, 1e5, true, 8192)),
    ("smollm2-1.7b", spec(Family::Llama, 49152, 2048, 24, 32, 32, 64, 8192, 1e-5, 1.3e5, true, 8192)),
    ("qwen2.5-0.5b", spec(Family::Qwen2, 151936, 896, 24, 14, 2, 64, 4864, 1e-6, 1e6, true, 32768)),
    ("qwen2.5-1.5b", spec(Family::Qwen2, 151936, 1536, 28, 12, 2, 128, 8960, 1e-6, 1e6, true, 32768)),
    ("qwen2.5-3b", spec(Family::Qwen2, 151936, 2048, 36, 16, 2, 128, 11008, 1e-6, 1e6, true, 32768)),
    ("qwen2.5-7b", spec(Family::Qwen2, 152064, 3584, 28, 28, 4, 128, 18944, 1e-6, 1e6, false, 32768)),
    ("qwen2.5-14b", spec(Family::Qwen2, 152064, 5120, 48, 40, 8, 128, 13824, 1e-6, 1e6, false, 131072)),
    ("qwen2.5-32b", spec(Family::Qwen2, 152064, 5120, 64, 40, 8, 128, 27648, 1e-6, 1e6, false, 131072)),
    ("qwen2.5-72b", spec(Family::Qwen2, 152064, 8192, 80, 64, 8, 128, 29568, 1e-6, 1e6, false, 131072)),
    ("qwen3-0.6b", spec(Family::Qwen3, 151936, 1024, 28, 16, 8, 128, 3072, 1e-6, 1e6, true, 40960)),
    ("qwen3-1.7b", spec(Family::Qwen3, 151936, 2048, 28, 16, 8, 128, 6144, 1e-6, 1e6, true, 40960)),
    ("qwen3-4b", spec(Family::Qwen3, 151936, 2560, 36, 32, 8, 128, 9728, 1e-6, 1e6, true, 40960)),
    ("qwen3-8b", spec(Family::Qwen3, 151936, 4096, 36, 32, 8, 128, 12288, 1e-6, 1e6, false, 40960)),
    ("qwen3-14b", spec(Family::Qwen3, 151936, 5120, 40, 40, 8, 128, 17408, 1e-6, 1e6, false, 40960)),
    ("qwen3-32b", spec(Family::Qwen3, 151936, 5120, 64, 64, 8, 128, 25600, 1e-6, 1e6, false, 40960)),
    ("qwen3-30b-a3b", with_experts(spec(Family::Qwen3Moe, 151936, 2048, 48, 32, 4, 128, 6144, 1e-6, 1e6, false, 40960), 128, 8, 768)),
    ("qwen3-235b-a22b", with_experts(spec(Family::Qwen3Moe, 151936, 4096, 94, 64, 4, 128, 12288, 1e-6, 1e6, false, 40960), 128, 8, 1536)),
    ("qwen3.5-0.8b", with_delta(spec(Family::Qwen35, 248320, 1024, 24, 8, 2, 256, 3584, 1e-6, 1e7, true, 262144), 16)),
    ("qwen3.5-2b", with_delta(spec(Family::Qwen35, 248320, 2048, 24, 8, 2, 256, 6144, 1e-6, 1e7, true, 262144), 16)),
    ("qwen3.5-4b", with_delta(spec(Family::Qwen35, 248320, 2560, 32, 16, 4, 256, 9216, 1e-6, 1e7, true, 262144), 32)),
    ("qwen3.5-9b", with_delta(spec(Family::Qwen35, 248320, 4096, 32, 16, 4, 256, 12288, 1e-6, 1e7, false, 262144), 32)),
    ("qwen3.5-27b", with_delta(spec(Family::Qwen35, 248320, 5120, 64, 24, 4, 256, 17408, 1e-6, 1e7, false, 262144), 48)),
    ("llama-2-7b", spec(Family::Llama, 32000, 4096, 32, 32, 32, 128, 11008, 1e-5, 1e4, false, 4096)),
    ("llama-2-13b", spec(Family::Llama, 32000, 5120, 40, 40, 40, 128, 13824, 1e-5, 1e4, false, 4096)),
    ("llama-2-70b", spec(Family::Llama, 32000, 8192, 80, 64, 8, 128, 28672, 1e-5, 1e4, false, 4096)),
    ("llama-3-8b", spec(Family::Llama, 128256, 4096, 32, 32, 8, 128, 14336, 1e-5, 5e5, false, 8192)),
    ("llama-3-70b", spec(Family::Llama, 128256, 8192, 80, 64, 8, 128, 28672, 1e-5, 5e5, false, 8192)),
    ("llama-3.1-8b", ModelSpec { rope_scaling: LLAMA_3_1_ROPE, ..spec(Family::Llama, 128256, 4096, 32, 32, 8, 128, 14336, 1e-5, 5e5, false, 131072) }),
    ("llama-3.1-70b", ModelSpec { rope_scaling: LLAMA_3_1_ROPE, ..spec(Family::Llama, 128256, 8192, 80, 64, 8, 128, 28672, 1e-5, 5e5, false, 131072) }),
    ("llama-3.2-1b", ModelSpec { rope_scaling: LLAMA_3_2_ROPE, ..spec(Family::Llama, 128256, 2048, 16, 32, 8, 64, 8192, 1e-5, 5e5, true, 131072) }),
    ("llama-3.2-3b", ModelSpec { rope_scaling: LLAMA_3_2_ROPE, ..spec(Family::Llama, 128256, 3072, 28, 24, 8, 128, 8192, 1e-5, 5e5, true, 131072) }),
    ("baichuan-13b", spec(Family::Llama, 64000, 5120, 40, 40, 40, 128, 13696, 1e-6, 1e4, false, 4096)),
    ("smollm3-3b", ModelSpec { attention: Attention { unrotated: LayerSet::every(4, 36), ..PLAIN }, ..spec(Family::SmolLm3, 128256, 2048, 36, 16, 4, 128, 11008, 1e-6, 5e6, true, 65536) }),
    ("olmo-2-1b", spec(Family::Olmo2, 100352, 2048, 16, 16, 16, 128, 8192, 1e-6, 5e5, false, 4096)),
    ("olmo-2-7b", spec(Family::Olmo2, 100352, 4096, 32, 32, 32, 128, 11008, 1e-6, 5e5, false, 4096)),
    ("olmo-3-7b", with_windows(ModelSpec { rope_scaling: OLMO_3_ROPE, ..spec(Family::Olmo3, 100278, 4096, 32, 32, 32, 128, 11008, 1e-6, 5e5, false, 65536) }, 4096, 4, Some(5e5))),
    ("gemma-2-2b", with_windows(capped(scaled(spec(Family::Gemma2, 256000, 2304, 26, 8, 4, 256, 9216, 1e-6, 1e4, true, 8192), 0.0625, ONES), 50.0, 30.0), 4096, 2, None)),
    ("gemma-2-9b", with_windows(capped(scaled(spec(Family::Gemma2, 256000, 3584, 42, 16, 8, 256, 14336, 1e-6, 1e4, true, 8192), 0.0625, ONES), 50.0, 30.0), 4096, 2, None)),
    ("gemma-3-1b", with_windows(scaled(spec(Family::Gemma3, 262144, 1152, 26, 4, 1, 256, 6912, 1e-6, 1e6, true, 32768), 0.0625, ONES), 512, 6, Some(1e4))),
    ("gemma-3-4b", with_windows(ModelSpec { rope_scaling: RopeScaling::Linear { factor: 8.0 }, ..scaled(spec(Family::Gemma3, 262208, 2560, 34, 8, 4, 256, 10240, 1e-6, 1e6, true, 131072), 0.0625, ONES) }, 1024, 6, Some(1e4))),
    ("granite-3.3-2b", scaled(spec(Family::Granite, 49159, 2048, 40, 32, 8, 64, 8192, 1e-5, 1e7, true, 131072), 0.015625, [12.0, 0.22, 8.0])),
    ("granite-3.3-8b", scaled(spec(Family::Granite, 49159, 4096, 40, 32, 8, 128, 12800, 1e-5, 1e7, true, 131072), 0.0078125, [12.0, 0.22, 16.0])),
    ("phi-4-mini", ModelSpec { rope_scaling: PHI_4_MINI_ROPE, attention: Attention { rotated: Some(96), ..PLAIN }, ..spec(Family::Phi3, 200064, 3072, 32, 24, 8, 128, 8192, 1e-5, 1e4, true, 131072) }),
    ("mixtral-8x7b", mixtral(spec(Family::Qwen3Moe, 32000, 4096, 32, 32, 8, 128, 14336, 1e-5, 1e6, false, 32768), 8, 2)),
    ("mixtral-8x22b", mixtral(spec(Family::Qwen3Moe, 32000, 6144, 56, 48, 8, 128, 16384, 1e-5, 1e6, false, 65536), 8, 2)),
    ("olmoe-1b-7b", ModelSpec { qk_norms: Some(QkNorms::Rows), ..with_experts(spec(Family::Qwen3Moe, 50304, 2048, 16, 16, 16, 128, 1024, 1e-5, 1e4, false, 4096), 64, 8, 1024) }),
    ("mistral-7b", spec(Family::Mistral, 32768, 4096, 32, 32, 8, 128, 14336, 1e-5, 1e6, false, 32768)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_survives_json() {
        let dynamic = RopeScaling::Dynamic { factor: 2.0 };
        let biased = ModelSpec { output_bias: true, mlp_bias: true, rope_scaling: dynamic, ..PRESETS[0].1 };
        for spec in PRESETS.iter().map(|(_, spec)| *spec).chain([biased]) {
            let text = serde_json::to_string(&spec).unwrap();
            assert_eq!(serde_json::from_str::<ModelSpec>(&text).unwrap(), spec, "{text}");
        }
        // What earlier versions wrote has no such keys, and they write it as they did.
        assert!(!serde_json::to_string(&PRESETS[0].1).unwrap().contains("output_bias"));
    }

    #[test]
    fn parameter_counts_match_the_published_ones() {
        for (name, expect) in [
            ("qwen2.5-0.5b", 494_032_768),
            ("qwen2.5-1.5b", 1_543_714_304),
            ("qwen2.5-7b", 7_615_616_512),
            ("smollm2-135m", 134_515_008),
            ("qwen3-0.6b", 596_049_920),
            ("llama-3.2-1b", 1_235_814_400),
            ("baichuan-13b", 13_264_901_120),
            ("qwen2.5-14b", 14_770_033_664),
            ("qwen2.5-32b", 32_763_876_352),
            ("qwen2.5-72b", 72_706_203_648),
            ("llama-2-7b", 6_738_415_616),
            ("llama-2-13b", 13_015_864_320),
            ("llama-2-70b", 68_976_648_192),
            ("llama-3-8b", 8_030_261_248),
            ("llama-3-70b", 70_553_706_496),
            ("llama-3.1-8b", 8_030_261_248),
            ("qwen3-14b", 14_768_307_200),
            ("qwen3-32b", 32_762_123_264),
            ("gemma-2-2b", 2_614_341_888),
            ("gemma-2-9b", 9_241_705_984),
            ("gemma-3-1b", 999_885_952),
            ("smollm3-3b", 3_075_098_624),
            ("olmo-2-1b", 1_484_916_736),
            ("olmo-2-7b", 7_298_617_344),
            ("granite-3.3-8b", 8_170_864_640),
            ("phi-4-mini", 3_836_021_760),
            ("qwen3-30b-a3b", 30_532_122_624),
            ("qwen3-235b-a22b", 235_093_634_560),
            // As transformers counts them.
            ("mixtral-8x7b", 46_702_792_704),
            ("mixtral-8x22b", 140_620_634_112),
            ("olmoe-1b-7b", 6_919_161_856),
            // Of the language models alone.
            ("qwen3.5-0.8b", 752_393_024),
            ("qwen3.5-2b", 1_881_825_088),
            ("qwen3.5-4b", 4_205_751_296),
            ("qwen3.5-9b", 8_953_803_264),
            ("qwen3.5-27b", 26_895_998_464),
        ] {
            assert_eq!(ModelSpec::preset(name).unwrap().parameters(), expect, "{name}");
        }
    }

    #[test]
    fn a_token_is_computed_by_its_experts_alone() {
        let spec = ModelSpec::preset("qwen3-30b-a3b").unwrap();
        // 48 layers lack 120 of 128 experts of 3 x 2,048 x 768.
        assert_eq!(spec.active_parameters(), 30_532_122_624 - 48 * 120 * 3 * 2048 * 768);
        let embeddings = 2 * 151_936 * 2048;
        let norms = 48 * (2 * 2048 + 2 * 128) + 2048;
        assert_eq!(spec.layer_flops(0), 2 * (spec.active_parameters() - embeddings - norms));
        let dense = ModelSpec::preset("qwen3-8b").unwrap();
        assert_eq!(dense.active_parameters(), dense.parameters());
        // Every second layer is as wide as the dense part, which is narrower than 8 experts.
        let experts = spec.experts.unwrap();
        let mixed =
            ModelSpec { experts: Some(ExpertsSpec { layers: LayerSet::every(2, 48), ..experts }), ..spec };
        assert_eq!(
            (mixed.expert_layers(), mixed.layer(0).experts(), mixed.layer(1).experts()),
            (24, None, mixed.experts)
        );
        assert_eq!([mixed.product_width(0), mixed.product_width(1)], [6144; 2]);
        let lost = 24 * (128 * 2048 + 3 * 2048 * (128 * 768 - 6144));
        assert_eq!(mixed.parameters(), spec.parameters() - lost);
    }
}
