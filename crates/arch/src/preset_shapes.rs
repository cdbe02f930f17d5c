//! Shapes that presets are made of: those of a family, and what makes others of them.

use crate::{
    Attention, DeltaSpec, ExpertsSpec, Family, FileShape, GlobalHeads, IndexSpec, LatentSpec, LayerSet,
    LayersWith, ModelSpec, Multipliers, QkNorms, RopeFactors, RopeScaling, SharedKeys, SigmoidSpec, Window,
};

#[rustfmt::skip]
#[allow(clippy::too_many_arguments)] // One row of the table of presets.
pub(crate) const fn shape(
    family: Family, vocab: u32, hidden: u32, layers: u32, heads: u32, kv_heads: u32, head_dim: u32, ffn: u32,
    rms_eps: f32, rope_theta: f64, tied: bool, max_positions: u32,
) -> FileShape {
    FileShape {
        family, vocab, hidden, layers, heads, kv_heads, head_dim, ffn, rms_eps, rope_theta,
        tied, max_positions, qkv_bias: family.architecture().qkv_bias, qk_norms: family.architecture().qk_norms,
        ..FileShape::PLAIN
    }
}

pub(crate) const ONES: [f32; 3] = [1.0; 3];

/// Returns `shape` with a factor on scores, and factors on embeddings, residual additions and logits.
pub(crate) const fn scaled(
    shape: FileShape,
    scale: f32,
    [embedding, residual, logits]: [f32; 3],
) -> FileShape {
    let attention = Attention { scale: Some(scale), ..shape.attention };
    FileShape {
        attention,
        multipliers: Multipliers { embedding, residual, logits, logit_cap: None },
        ..shape
    }
}

pub(crate) const OLMO_3_ROPE: RopeScaling = RopeScaling::Yarn {
    factor: 8.0,
    original_max_position_embeddings: 8192,
    beta_fast: 32.0,
    beta_slow: 1.0,
    attention_factor: 1.207_944_154_167_983_6,
    truncate: true,
    query_growth: 0.0,
};

#[rustfmt::skip]
pub(crate) const PHI_4_MINI_ROPE: RopeScaling = RopeScaling::LongRope {
    short_factor: RopeFactors::of(&[1.0; 48]),
    long_factor: RopeFactors::of(&[
        1.0, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897, 1.956131817, 2.187582649, 2.446418898, 2.735880826,
        3.059592084, 3.421605075, 3.826451687, 4.279200023, 4.785517845, 5.351743533, 5.984965424, 6.693110555, 7.485043894, 8.370679318,
        9.36110372, 10.4687158, 11.70738129, 13.09260651, 14.64173252, 16.37415215, 18.31155283, 20.47818807, 22.90118105, 25.61086418,
        28.64115884, 32.03, 32.1, 32.13, 32.23, 32.6, 32.61, 32.64, 32.66, 32.7, 32.71, 32.93, 32.97, 33.28, 33.49, 33.5, 44.16, 47.77,
    ]),
    original_max_position_embeddings: 4096,
};

/// YaRN of Ministral 3, whose attention factor is 1.
pub(crate) const MINISTRAL_3_ROPE: RopeScaling = RopeScaling::Yarn {
    factor: 16.0,
    original_max_position_embeddings: 16384,
    beta_fast: 32.0,
    beta_slow: 1.0,
    attention_factor: 1.0,
    truncate: true,
    query_growth: 0.1,
};

/// Returns a Ministral 3 of nano's size and vocabulary, whose queries grow from the fifth token on.
pub(crate) const fn nano_ministral() -> FileShape {
    let rope_scaling = RopeScaling::Yarn {
        factor: 16.0,
        original_max_position_embeddings: 4,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: 1.0,
        truncate: true,
        query_growth: 0.1,
    };
    let plain = shape(Family::Ministral3, 15, 128, 4, 2, 1, 64, 384, 1e-5, 1e3, true, 64);
    FileShape { rope_scaling, ..plain }
}

/// Returns a Ministral 3.
pub(crate) const fn ministral(hidden: u32, layers: u32, ffn: u32, theta: f64, tied: bool) -> ModelSpec {
    let plain =
        shape(Family::Ministral3, 131_072, hidden, layers, 32, 8, 128, ffn, 1e-5, theta, tied, 262_144);
    FileShape { rope_scaling: MINISTRAL_3_ROPE, ..plain }.spec()
}

/// Returns `shape` with soft caps of scores and logits.
pub(crate) const fn capped(shape: FileShape, scores: f32, logits: f32) -> FileShape {
    let attention = Attention { score_cap: Some(scores), ..shape.attention };
    FileShape {
        attention,
        multipliers: Multipliers { logit_cap: Some(logits), ..shape.multipliers },
        ..shape
    }
}

/// Returns `shape` with experts in all layers, whose weights are divided by their sum.
pub(crate) const fn with_experts(shape: FileShape, count: u32, chosen: u32, ffn: u32) -> FileShape {
    let layers = LayerSet::every(1, shape.layers);
    let architecture = shape.family.architecture();
    let each = ExpertsSpec {
        count,
        chosen,
        ffn,
        normalizes: true,
        sigmoid: None,
        balance: 0.001,
        shared: if architecture.has_shared_expert { Some(ffn) } else { None },
        gates_shared: !architecture.has_biased_experts,
        is_fused: architecture.has_experts_alone,
        biased: architecture.has_biased_experts,
    };
    FileShape { experts: Some(LayersWith { layers, each }), ..shape }
}

/// Returns `shape` with experts of a router of sigmoids, and a shared one as wide, in all layers but the first `dense`.
/// q, k and v have a bias; half of each head is rotated.
pub(crate) const fn with_sigmoid_experts(
    shape: FileShape,
    count: u32,
    ffn: u32,
    dense: u32,
    factor: f32,
) -> FileShape {
    let layers = LayerSet::onwards(dense, shape.layers);
    let sigmoid = SigmoidSpec { groups: 1, groups_chosen: 1, factor };
    let each = ExpertsSpec {
        count,
        chosen: 8,
        ffn,
        normalizes: true,
        sigmoid: Some(sigmoid),
        balance: 0.0,
        shared: Some(ffn),
        gates_shared: false,
        is_fused: false,
        biased: false,
    };
    let attention = Attention { rotated: Some(shape.head_dim / 2), ..shape.attention };
    FileShape { qkv_bias: true, attention, experts: Some(LayersWith { layers, each }), ..shape }
}

/// Returns `shape` with latent attention, and experts of a router of sigmoids in all layers but the first ones. Shared
/// experts are one that is `shared` times as wide.
pub(crate) const fn with_latent(
    shape: FileShape,
    latent: LatentSpec,
    experts: LayersWith<ExpertsSpec>,
) -> FileShape {
    FileShape { qk_norms: None, latent: Some(latent), experts: Some(experts), ..shape }
}

/// Returns latent attention of `heads` heads, with 512 elements of a latent and 64 that are rotated.
pub(crate) const fn latent(
    heads: u32,
    key_dim: u32,
    value_dim: u32,
    query_latent: Option<u32>,
    scale: f32,
    stretch: f32,
) -> LatentSpec {
    LatentSpec {
        heads,
        key_dim,
        rotated: 64,
        value_dim,
        latent: 512,
        query_latent,
        eps: 1e-6,
        scale,
        stretch,
        index: None,
    }
}

/// Returns experts of a router of sigmoids in the layers from `dense` on.
pub(crate) const fn sigmoid_experts(
    layers: u32,
    dense: u32,
    [count, chosen, ffn, shared]: [u32; 4],
    sigmoid: SigmoidSpec,
) -> LayersWith<ExpertsSpec> {
    let each = ExpertsSpec {
        count,
        chosen,
        ffn,
        normalizes: true,
        sigmoid: Some(sigmoid),
        balance: 0.0,
        shared: Some(shared * ffn),
        gates_shared: false,
        is_fused: false,
        biased: false,
    };
    LayersWith { layers: LayerSet::onwards(dense, layers), each }
}

/// Returns DeepSeek V2's experts: those of a softmax, whose weights are not divided.
pub(crate) const fn softmax_experts(layers: u32, dense: u32, sizes: [u32; 4]) -> LayersWith<ExpertsSpec> {
    let LayersWith { layers, each } = sigmoid_experts(layers, dense, sizes, ungrouped(1.0));
    LayersWith { layers, each: ExpertsSpec { sigmoid: None, normalizes: false, ..each } }
}

/// Returns a router of sigmoids without groups.
pub(crate) const fn ungrouped(factor: f32) -> SigmoidSpec {
    SigmoidSpec { groups: 1, groups_chosen: 1, factor }
}

/// Returns a GLM-4.5 of nano's size and vocabulary: a dense layer, then eight experts of which two compute a row.
pub(crate) const fn nano_glm() -> FileShape {
    let plain = shape(Family::Glm4Moe, 15, 128, 4, 2, 1, 64, 256, 1e-5, 1e3, false, 64);
    let experts = sigmoid_experts(4, 1, [8, 2, 64, 1], ungrouped(1.0));
    let attention = Attention { rotated: Some(32), ..plain.attention };
    FileShape { qkv_bias: true, qk_norms: None, attention, experts: Some(experts), ..plain }
}

/// Returns a DeepSeek V3 of nano's size and vocabulary: latents of 64 elements, and experts in groups.
pub(crate) const fn nano_deepseek() -> FileShape {
    let plain = shape(Family::DeepSeekV3, 15, 128, 4, 4, 4, 16, 256, 1e-6, 1e3, false, 64);
    let sigmoid = SigmoidSpec { groups: 4, groups_chosen: 2, factor: 1.5 };
    let latent = LatentSpec {
        heads: 4,
        key_dim: 32,
        rotated: 16,
        value_dim: 32,
        latent: 64,
        query_latent: Some(48),
        eps: 1e-6,
        // 1 / sqrt(32 + 16)
        scale: 0.144_337_57,
        stretch: 0.0,
        index: None,
    };
    with_latent(plain, latent, sigmoid_experts(4, 1, [8, 2, 64, 1], sigmoid))
}

/// Returns a DeepSeek V2 of nano's size and vocabulary: queries are products of the input, and experts of a softmax.
pub(crate) const fn nano_deepseek_v2() -> FileShape {
    let v3 = nano_deepseek();
    let Some(latent) = v3.latent else { unreachable!() };
    let latent = Some(LatentSpec { query_latent: None, ..latent });
    let experts = Some(softmax_experts(4, 1, [8, 2, 64, 2]));
    FileShape { family: Family::DeepSeekV2, latent, experts, ..v3 }
}

/// Returns `latent` whose rows see the 2,048 keys that 32 or 64 heads of 128 elements choose.
pub(crate) const fn indexed(latent: LatentSpec, heads: u32) -> LatentSpec {
    LatentSpec { index: Some(IndexSpec { heads, width: 128, keys: 2048 }), ..latent }
}

/// YaRN of DeepSeek V3, as published; scores are multiplied by the square of 0.1 ln(40) + 1.
pub(crate) const DEEPSEEK_ROPE: RopeScaling = RopeScaling::Yarn {
    factor: 40.0,
    original_max_position_embeddings: 4096,
    beta_fast: 32.0,
    beta_slow: 1.0,
    attention_factor: 1.0,
    truncate: true,
    query_growth: 0.0,
};

/// YaRN of Kimi-K2.
pub(crate) const KIMI_K2_ROPE: RopeScaling = RopeScaling::Yarn {
    factor: 32.0,
    original_max_position_embeddings: 4096,
    beta_fast: 1.0,
    beta_slow: 1.0,
    attention_factor: 1.0,
    truncate: true,
    query_growth: 0.0,
};

/// Returns `shape` with linear attention in all layers but every fourth: heads of 128, of which 16 are of keys. A
/// quarter of each head of the other layers is rotated.
pub(crate) const fn with_delta(shape: FileShape, value_heads: u32) -> FileShape {
    let layers = LayerSet::all_but_every(4, shape.layers);
    let each = DeltaSpec { key_heads: 16, value_heads, key_dim: 128, value_dim: 128 };
    let attention = Attention { rotated: Some(shape.head_dim / 4), gated: true, ..shape.attention };
    FileShape { attention, delta: Some(LayersWith { layers, each }), ..shape }
}

/// Returns a decoder of nano's size and vocabulary with experts, and linear attention in all layers but the last.
pub(crate) const fn nano_with_both(family: Family) -> FileShape {
    let plain = shape(family, 15, 128, 4, 2, 1, 64, 64, 1e-6, 1e3, true, 64);
    let attention = Attention { rotated: Some(32), gated: true, ..plain.attention };
    let each = DeltaSpec { key_heads: 2, value_heads: 4, key_dim: 32, value_dim: 32 };
    let layers = LayerSet::all_but_every(4, plain.layers);
    let plain = FileShape { attention, delta: Some(LayersWith { layers, each }), ..plain };
    with_experts(plain, 8, 2, 64)
}

pub(crate) const GPT_OSS_ROPE: RopeScaling = RopeScaling::Yarn {
    factor: 32.0,
    original_max_position_embeddings: 4096,
    beta_fast: 32.0,
    beta_slow: 1.0,
    attention_factor: 1.346_573_590_279_972_7,
    truncate: false,
    query_growth: 0.0,
};

/// Returns gpt-oss with `layers` layers of `count` experts: windows in every second layer, sinks, biases everywhere.
pub(crate) const fn gpt_oss(layers: u32, count: u32) -> FileShape {
    let plain = shape(Family::GptOss, 201_088, 2880, layers, 64, 8, 64, 2880, 1e-5, 1.5e5, false, 131_072);
    let plain = with_sinks(plain, 128);
    with_experts(FileShape { rope_scaling: GPT_OSS_ROPE, ..plain }, count, 4, 2880)
}

/// Returns a decoder of nano's size and vocabulary with sinks, and experts that have biases.
pub(crate) const fn nano_with_sinks() -> FileShape {
    let plain = shape(Family::GptOss, 15, 128, 4, 2, 1, 64, 64, 1e-5, 1e3, false, 64);
    with_experts(with_sinks(plain, 16), 8, 2, 64)
}

/// Returns `shape` with sinks, biases of all projections of attention, and windows in every second layer.
pub(crate) const fn with_sinks(shape: FileShape, keys: u32) -> FileShape {
    let shape = with_windows(shape, keys, 2, None);
    let attention = Attention { sinks: true, ..shape.attention };
    FileShape { attention, qkv_bias: true, output_bias: true, ..shape }
}

/// Returns `shape` with windows in all layers but every n-th.
pub(crate) const fn with_windows(shape: FileShape, keys: u32, n: u32, rope_theta: Option<f64>) -> FileShape {
    let window = Window { keys, layers: LayerSet::all_but_every(n, shape.layers), rope_theta };
    FileShape { attention: Attention { window: Some(window), ..shape.attention }, ..shape }
}

/// Returns `shape` with Gemma 4's heads in every sixth layer: keys that are values, a quarter of whose pairs turns.
pub(crate) const fn gemma_4(shape: FileShape, keys: u32, kv_heads: u32, head_dim: u32) -> FileShape {
    let windowed = with_windows(shape, keys, 6, Some(1e4));
    let global = Some(GlobalHeads { kv_heads, head_dim, keys_are_values: true });
    FileShape {
        attention: Attention { global, scale: Some(1.0), ..windowed.attention },
        multipliers: Multipliers { logit_cap: Some(30.0), ..windowed.multipliers },
        rope_scaling: RopeScaling::Proportional { share: 0.25, factor: 1.0 },
        ..windowed
    }
}

/// Returns Gemma 4 with windows of 512 in all layers but every n-th, whose values are products of their own.
pub(crate) const fn gemma_4_small(shape: FileShape, n: u32) -> FileShape {
    let windowed = with_windows(shape, 512, n, Some(1e4));
    let global = Some(GlobalHeads { kv_heads: shape.kv_heads, head_dim: 512, keys_are_values: false });
    FileShape {
        attention: Attention { global, scale: Some(1.0), ..windowed.attention },
        multipliers: Multipliers { logit_cap: Some(30.0), ..windowed.multipliers },
        rope_scaling: RopeScaling::Proportional { share: 0.25, factor: 1.0 },
        ..windowed
    }
}

/// Returns `shape` with inputs of layers of their own, and keys of earlier layers in the last ones.
pub(crate) const fn with_inputs(shape: FileShape, shared: u32, wide: bool) -> FileShape {
    FileShape { inputs: Some(256), shared: Some(SharedKeys { layers: shared, wide }), ..shape }
}

/// Returns Gemma 4 with `count` experts next to the dense part of each layer, of which eight, or two of eight, compute
/// a row.
pub(crate) const fn joined(shape: FileShape, count: u32, ffn: u32) -> FileShape {
    let each = ExpertsSpec {
        count,
        chosen: if count > 8 { 8 } else { 2 },
        ffn,
        normalizes: true,
        sigmoid: None,
        balance: 0.0,
        shared: Some(shape.ffn),
        gates_shared: false,
        is_fused: true,
        biased: false,
    };
    FileShape { experts: Some(LayersWith { layers: LayerSet::every(1, shape.layers), each }), ..shape }
}

pub(crate) const LLAMA_3_2_ROPE: RopeScaling = RopeScaling::Llama3 {
    factor: 32.0,
    low_freq_factor: 1.0,
    high_freq_factor: 4.0,
    original_max_position_embeddings: 8192,
};

pub(crate) const LLAMA_3_1_ROPE: RopeScaling = RopeScaling::Llama3 {
    factor: 8.0,
    low_freq_factor: 1.0,
    high_freq_factor: 4.0,
    original_max_position_embeddings: 8192,
};

/// Returns `shape` with experts in all layers and without qk-norm.
pub(crate) const fn mixtral(shape: FileShape, count: u32, chosen: u32) -> FileShape {
    with_experts(FileShape { qk_norms: None, ..shape }, count, chosen, shape.ffn)
}

/// Returns MiniMax-M2: experts of a router of sigmoids in all layers, half of a head rotated, and norms of rows.
pub(crate) const fn minimax() -> FileShape {
    let plain = shape(Family::Qwen3Moe, 200_064, 3072, 62, 48, 8, 128, 1536, 1e-6, 5e6, false, 196_608);
    let LayersWith { layers, each } = sigmoid_experts(62, 0, [256, 8, 1536, 1], ungrouped(1.0));
    let experts = LayersWith { layers, each: ExpertsSpec { shared: None, ..each } };
    let attention = Attention { rotated: Some(64), ..plain.attention };
    FileShape { qk_norms: Some(QkNorms::Rows), attention, experts: Some(experts), ..plain }
}
