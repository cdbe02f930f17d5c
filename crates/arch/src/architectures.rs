//! The table of families.

use crate::{Architecture, Family, Gate, Norms, QkNorms, ScoreScale, Windows};

/// Norm names of most families.
const PRE_NORMS: Norms = Norms { before: Some(["input_layernorm", "post_attention_layernorm"]), after: None };

/// Names of norms that follow a part.
const POST_NORMS: Norms =
    Norms { before: None, after: Some(["post_attention_layernorm", "post_feedforward_layernorm"]) };

/// Names of norms around each part.
const GEMMA_NORMS: Norms =
    Norms { before: Some(["input_layernorm", "pre_feedforward_layernorm"]), after: POST_NORMS.after };

/// What llama.cpp calls the norm before a feed-forward part in newer families.
const AFTER_ATTENTION: &str = "post_attention_norm";

const LLAMA: Architecture = Architecture {
    family: Family::Llama,
    causal_lm: "LlamaForCausalLM",
    classifier: "LlamaForSequenceClassification",
    gguf: Some("llama"),
    gguf_ffn_norm: "ffn_norm",
    gguf_rope_pairs: true,
    qkv_bias: false,
    qk_norms: None,
    qk_norms_key: None,
    norms: PRE_NORMS,
    norm_offset: 0.0,
    gate: Gate::Silu,
    is_fused: false,
    has_experts: false,
    has_experts_alone: false,
    has_biased_experts: false,
    has_sinks: false,
    joins_dense: false,
    has_shared_expert: false,
    has_delta: false,
    groups_delta: false,
    has_latent: false,
    has_routed_keys: false,
    has_sigmoid_router: false,
    has_partial_rotary: false,
    has_longrope: false,
    grows_queries: false,
    scales_embedding: false,
    has_soft_caps: false,
    caps_logits: false,
    has_global_heads: false,
    scales_layers: false,
    has_multipliers: false,
    reads_attention_bias: true,
    has_plain_output: false,
    reads_mlp_bias: true,
    score_scale: ScoreScale::HeadDim,
    unrotated_every: None,
    windows: Windows::No,
    gguf_window: None,
    has_local_base: false,
    wrapper: None,
    wrapped_name: None,
    config_keys: &[],
};

const GEMMA4: Architecture = Architecture {
    family: Family::Gemma4,
    causal_lm: "Gemma4ForCausalLM",
    classifier: "Gemma4TextForSequenceClassification",
    gguf: None,
    gguf_rope_pairs: false,
    qk_norms: Some(QkNorms::Heads),
    norms: GEMMA_NORMS,
    gate: Gate::GeluTanh,
    has_experts: true,
    joins_dense: true,
    scales_embedding: true,
    caps_logits: true,
    has_global_heads: true,
    scales_layers: true,
    reads_attention_bias: false,
    reads_mlp_bias: false,
    score_scale: ScoreScale::One,
    windows: Windows::AllButEvery { n: 6, own_rope: true },
    wrapper: Some("gemma4"),
    config_keys: &[("enable_moe_block", Some(false)), ("use_double_wide_mlp", Some(false))],
    ..LLAMA
};

/// What families with latent attention have in common.
const LATENT: Architecture = Architecture {
    gguf: None,
    gguf_rope_pairs: false,
    has_experts: true,
    has_routed_keys: true,
    has_sigmoid_router: true,
    has_shared_expert: true,
    has_latent: true,
    reads_attention_bias: false,
    reads_mlp_bias: false,
    ..LLAMA
};

/// The table, in the order of `Family`; fields that a row does not set are Llama's.
pub const ARCHITECTURES: [Architecture; Family::ALL.len()] = [
    LLAMA,
    Architecture {
        family: Family::Qwen2,
        causal_lm: "Qwen2ForCausalLM",
        classifier: "Qwen2ForSequenceClassification",
        gguf: Some("qwen2"),
        gguf_rope_pairs: false,
        qkv_bias: true,
        reads_attention_bias: false,
        reads_mlp_bias: false,
        wrapper: Some("qwen2_5_vl"),
        wrapped_name: Some("qwen2_5_vl_text"),
        windows: Windows::Asked,
        config_keys: &[("use_sliding_window", Some(false))],
        ..LLAMA
    },
    Architecture {
        family: Family::Qwen3,
        causal_lm: "Qwen3ForCausalLM",
        classifier: "Qwen3ForSequenceClassification",
        gguf: Some("qwen3"),
        gguf_rope_pairs: false,
        qk_norms: Some(QkNorms::Heads),
        reads_mlp_bias: false,
        wrapper: Some("qwen3_vl"),
        wrapped_name: Some("qwen3_vl_text"),
        windows: Windows::Asked,
        config_keys: &[("use_sliding_window", Some(false))],
        ..LLAMA
    },
    Architecture {
        family: Family::Qwen3Moe,
        causal_lm: "Qwen3MoeForCausalLM",
        classifier: "Qwen3MoeForSequenceClassification",
        gguf: Some("qwen3moe"),
        gguf_rope_pairs: false,
        qk_norms: Some(QkNorms::Heads),
        has_experts: true,
        reads_mlp_bias: false,
        wrapper: Some("qwen3_vl_moe"),
        wrapped_name: Some("qwen3_vl_moe_text"),
        config_keys: &[("use_sliding_window", Some(false)), ("output_router_logits", Some(false))],
        ..LLAMA
    },
    Architecture {
        family: Family::Qwen35,
        causal_lm: "Qwen3_5ForCausalLM",
        classifier: "Qwen3_5TextForSequenceClassification",
        gguf: Some("qwen35"),
        gguf_ffn_norm: AFTER_ATTENTION,
        gguf_rope_pairs: false,
        qk_norms: Some(QkNorms::Heads),
        norm_offset: 1.0,
        has_delta: true,
        wrapper: Some("qwen3_5"),
        reads_attention_bias: false,
        reads_mlp_bias: false,
        ..LLAMA
    },
    Architecture {
        family: Family::Qwen35Moe,
        causal_lm: "Qwen3_5MoeForCausalLM",
        classifier: "Qwen3_5MoeForSequenceClassification",
        gguf: Some("qwen35moe"),
        gguf_ffn_norm: AFTER_ATTENTION,
        gguf_rope_pairs: false,
        qk_norms: Some(QkNorms::Heads),
        norm_offset: 1.0,
        has_experts: true,
        has_experts_alone: true,
        has_shared_expert: true,
        has_delta: true,
        wrapper: Some("qwen3_5_moe"),
        reads_attention_bias: false,
        reads_mlp_bias: false,
        config_keys: &[("output_router_logits", Some(false))],
        ..LLAMA
    },
    Architecture {
        family: Family::Qwen3Next,
        causal_lm: "Qwen3NextForCausalLM",
        classifier: "Qwen3NextForSequenceClassification",
        gguf: None,
        gguf_rope_pairs: false,
        qk_norms: Some(QkNorms::Heads),
        norm_offset: 1.0,
        has_experts: true,
        has_shared_expert: true,
        has_delta: true,
        groups_delta: true,
        reads_attention_bias: false,
        reads_mlp_bias: false,
        config_keys: &[("output_router_logits", Some(false))],
        ..LLAMA
    },
    Architecture {
        family: Family::Glm4Moe,
        causal_lm: "Glm4MoeForCausalLM",
        classifier: "Glm4MoeForSequenceClassification",
        gguf: Some("glm4moe"),
        gguf_ffn_norm: AFTER_ATTENTION,
        gguf_rope_pairs: false,
        qk_norms: Some(QkNorms::Heads),
        qk_norms_key: Some("use_qk_norm"),
        has_experts: true,
        has_routed_keys: true,
        has_sigmoid_router: true,
        has_partial_rotary: true,
        has_plain_output: true,
        has_shared_expert: true,
        reads_mlp_bias: false,
        config_keys: &[("output_router_logits", Some(false))],
        ..LLAMA
    },
    Architecture {
        family: Family::Mistral,
        causal_lm: "MistralForCausalLM",
        classifier: "MistralForSequenceClassification",
        gguf_rope_pairs: false,
        reads_attention_bias: false,
        reads_mlp_bias: false,
        windows: Windows::All,
        wrapper: Some("mistral3"),
        config_keys: &[("sliding_window", None)],
        ..LLAMA
    },
    Architecture {
        family: Family::Ministral3,
        causal_lm: "Ministral3ForCausalLM",
        classifier: "Ministral3ForSequenceClassification",
        gguf: None,
        gguf_rope_pairs: false,
        grows_queries: true,
        reads_attention_bias: false,
        reads_mlp_bias: false,
        windows: Windows::All,
        wrapper: Some("mistral3"),
        config_keys: &[("sliding_window", None)],
        ..LLAMA
    },
    Architecture {
        family: Family::SmolLm3,
        causal_lm: "SmolLM3ForCausalLM",
        classifier: "SmolLM3ForSequenceClassification",
        gguf: Some("smollm3"),
        unrotated_every: Some(4),
        ..LLAMA
    },
    Architecture {
        family: Family::Olmo2,
        causal_lm: "Olmo2ForCausalLM",
        classifier: "Olmo2ForSequenceClassification",
        gguf: Some("olmo2"),
        gguf_rope_pairs: false,
        qk_norms: Some(QkNorms::Rows),
        norms: POST_NORMS,
        reads_mlp_bias: false,
        ..LLAMA
    },
    Architecture {
        family: Family::Olmo3,
        causal_lm: "Olmo3ForCausalLM",
        classifier: "Olmo3ForSequenceClassification",
        gguf: None,
        qk_norms: Some(QkNorms::Rows),
        norms: POST_NORMS,
        reads_mlp_bias: false,
        windows: Windows::AllButEvery { n: 4, own_rope: true },
        ..LLAMA
    },
    Architecture {
        family: Family::Gemma2,
        causal_lm: "Gemma2ForCausalLM",
        classifier: "Gemma2ForSequenceClassification",
        gguf: Some("gemma2"),
        gguf_rope_pairs: false,
        norms: GEMMA_NORMS,
        norm_offset: 1.0,
        gate: Gate::GeluTanh,
        scales_embedding: true,
        has_soft_caps: true,
        reads_mlp_bias: false,
        score_scale: ScoreScale::Root { key: "query_pre_attn_scalar", gguf_wide: 46 },
        windows: Windows::AllButEvery { n: 2, own_rope: false },
        gguf_window: Some(4096),
        ..LLAMA
    },
    Architecture {
        family: Family::Gemma3,
        causal_lm: "Gemma3ForCausalLM",
        classifier: "Gemma3TextForSequenceClassification",
        gguf: Some("gemma3"),
        gguf_rope_pairs: false,
        qk_norms: Some(QkNorms::Heads),
        norms: GEMMA_NORMS,
        norm_offset: 1.0,
        gate: Gate::GeluTanh,
        scales_embedding: true,
        reads_mlp_bias: false,
        score_scale: ScoreScale::Root { key: "query_pre_attn_scalar", gguf_wide: 62 },
        windows: Windows::AllButEvery { n: 6, own_rope: true },
        has_local_base: true,
        wrapper: Some("gemma3"),
        ..LLAMA
    },
    GEMMA4,
    Architecture {
        family: Family::Gemma4Unified,
        causal_lm: "Gemma4UnifiedForCausalLM",
        classifier: "Gemma4UnifiedTextForSequenceClassification",
        has_experts: false,
        joins_dense: false,
        wrapper: Some("gemma4_unified"),
        config_keys: &[("use_double_wide_mlp", Some(false))],
        ..GEMMA4
    },
    Architecture {
        family: Family::Granite,
        causal_lm: "GraniteForCausalLM",
        classifier: "GraniteForSequenceClassification",
        gguf: Some("granite"),
        has_multipliers: true,
        score_scale: ScoreScale::Factor("attention_multiplier"),
        ..LLAMA
    },
    Architecture {
        family: Family::Phi3,
        causal_lm: "Phi3ForCausalLM",
        classifier: "Phi3ForSequenceClassification",
        gguf: Some("phi3"),
        gguf_rope_pairs: false,
        is_fused: true,
        has_longrope: true,
        reads_attention_bias: false,
        reads_mlp_bias: false,
        windows: Windows::All,
        config_keys: &[("sliding_window", None)],
        ..LLAMA
    },
    Architecture {
        family: Family::DeepSeekV2,
        causal_lm: "DeepseekV2ForCausalLM",
        classifier: "DeepseekV2ForSequenceClassification",
        has_sigmoid_router: false,
        ..LATENT
    },
    Architecture {
        family: Family::DeepSeekV3,
        causal_lm: "DeepseekV3ForCausalLM",
        classifier: "DeepseekV3ForSequenceClassification",
        ..LATENT
    },
    Architecture {
        family: Family::Glm4MoeLite,
        causal_lm: "Glm4MoeLiteForCausalLM",
        classifier: "Glm4MoeLiteForSequenceClassification",
        ..LATENT
    },
    Architecture {
        family: Family::GptOss,
        causal_lm: "GptOssForCausalLM",
        classifier: "GptOssForSequenceClassification",
        gguf: None,
        gguf_rope_pairs: false,
        gate: Gate::ClampedSilu,
        has_experts: true,
        has_experts_alone: true,
        has_biased_experts: true,
        has_sinks: true,
        reads_mlp_bias: false,
        windows: Windows::AllButEvery { n: 2, own_rope: false },
        config_keys: &[("output_router_logits", Some(false))],
        ..LLAMA
    },
];

impl Family {
    /// Returns its row of the table.
    pub const fn architecture(self) -> &'static Architecture {
        &ARCHITECTURES[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_families_and_no_name_is_given_twice() {
        for (row, family) in ARCHITECTURES.iter().zip(Family::ALL) {
            assert_eq!((row.family, family.architecture()), (family, row));
            let names = |row: &Architecture| [row.causal_lm, row.classifier];
            for other in ARCHITECTURES.iter().filter(|other| other.family != family) {
                assert!(names(row).iter().all(|name| !names(other).contains(name)), "{family}");
            }
        }
    }
}
