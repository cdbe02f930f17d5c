//! `config.json` of models with linear attention: what is read, what is wrong, and what is not built.

use crate::configs::{golden, spec, with};
use plimsoll_arch::{DeltaSpec, Family, FileShape, LayerSet, LayersWith, ModelSpec, RopeScaling};
use plimsoll_base::DType;
use plimsoll_files::{TokenIds, config_json, spec_from_config};
use serde_json::{Value, json};

#[test]
fn layers_with_linear_attention_are_read() {
    let of = |change| spec(&with("qwen3_5", change)).unwrap().file_shape();
    let plain = of(json!({}));
    let delta = LayersWith {
        layers: LayerSet::all_but_every(4, 4),
        each: DeltaSpec { key_heads: 2, value_heads: 2, key_dim: 48, value_dim: 32 },
    };
    assert_eq!((plain.family, plain.delta), (Family::Qwen35, Some(delta)));
    assert!(plain.attention.gated && plain.tied && !plain.is_wrapped);
    assert_eq!((plain.head_dim, plain.attention.rotated, plain.rope_theta), (32, Some(8), 1e4));
    assert_eq!((plain.rope_scaling, plain.attention.window), (RopeScaling::None, None));
    let wide = spec(&golden("qwen3_5_wide")).unwrap().file_shape();
    let expect = LayersWith {
        layers: LayerSet::every(2, 4),
        each: DeltaSpec { key_heads: 2, value_heads: 4, key_dim: 16, value_dim: 32 },
    };
    assert_eq!((wide.delta, wide.attention.rotated, wide.tied), (Some(expect), Some(8), false));
    // What is left out is as transformers has it.
    let unset = of(
        json!({ "layer_types": "remove", "full_attention_interval": "remove", "num_attention_heads": 8,
        "linear_conv_kernel_dim": "remove", "attn_output_gate": "remove", "linear_num_key_heads": "remove",
        "linear_num_value_heads": "remove", "linear_key_head_dim": "remove", "linear_value_head_dim": "remove",
        "head_dim": "remove", "num_key_value_heads": "remove", "max_position_embeddings": "remove",
        "rope_parameters": "remove", "tie_word_embeddings": "remove" }),
    );
    let each = DeltaSpec { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128 };
    let published = LayersWith { each, ..delta };
    assert_eq!((unset.delta, unset.head_dim, unset.kv_heads), (Some(published), 256, 4));
    assert_eq!((unset.attention.rotated, unset.max_positions, unset.tied), (Some(64), 32768, false));
    // The list decides it where both are there, and a rule in `rope_parameters` wins over the keys next to it.
    let every_second = json!({ "layer_types": "remove", "full_attention_interval": 2 });
    assert_eq!(of(every_second).delta.unwrap().layers, LayerSet::all_but_every(2, 4));
    assert_eq!(of(json!({ "full_attention_interval": 2 })).delta, Some(delta));
    let rule = |change: Value| {
        let mut rule = golden("qwen3_5")["rope_parameters"].clone();
        rule.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        rule
    };
    for (change, rotated) in [
        (json!({ "partial_rotary_factor": 0.5 }), Some(8)),
        (json!({ "rope_parameters": rule(json!({ "partial_rotary_factor": 0.5 })) }), Some(16)),
        (json!({ "rope_parameters": rule(json!({ "partial_rotary_factor": 1.0 })) }), None),
        (json!({ "rope_parameters": rule(json!({ "partial_rotary_factor": null })) }), Some(8)),
        (json!({ "rope_parameters": "remove", "rope_theta": 1e4, "partial_rotary_factor": 1 }), None),
        (json!({ "rope_parameters": "remove", "rope_theta": 1e4, "partial_rotary_factor": 0.75 }), Some(24)),
    ] {
        let read = of(change.clone());
        assert_eq!((read.attention.rotated, read.rope_theta), (rotated, 1e4), "{change}");
        let written = config_json(&read.spec(), DType::Bf16, &TokenIds::default());
        assert_eq!(spec(&written).unwrap(), read.spec(), "{change}");
    }
    let yarn = rule(json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64 }));
    let read = of(json!({ "rope_parameters": yarn }));
    assert!(matches!(read.rope_scaling, RopeScaling::Yarn { original_max_position_embeddings: 64, .. }));
    let read = read.spec();
    assert_eq!(spec(&config_json(&read, DType::F32, &TokenIds::default())).unwrap(), read);
}

const INVALID: &str = "model-config-invalid";
const UNSUPPORTED: &str = "model-unsupported";

fn check(cases: &[(Value, &str, &str)]) {
    for (change, slug, words) in cases {
        let error = spec_from_config(&with("qwen3_5", change.clone()), "config.json").unwrap_err();
        assert_eq!(error.slug, *slug, "{change}: {error}");
        assert!(error.message.contains(words) && !error.hints.is_empty(), "{change}: {error}");
    }
}

#[test]
fn linear_attention_that_cannot_be_is_named() {
    let kinds = |kind: &str| json!({ "layer_types": vec![kind; 4] });
    check(&[
        (json!({ "layer_types": ["linear_attention"] }), INVALID, "layer_types names 1 layers"),
        (json!({ "layer_types": "linear_attention" }), INVALID, "layer_types names 0 layers"),
        (kinds("sliding_attention"), UNSUPPORTED, "layer_types = \"sliding_attention\""),
        (
            json!({ "layer_types": ["full_attention", 7, "linear_attention", null] }),
            UNSUPPORTED,
            "layer_types = 7",
        ),
        (kinds("linear_attention"), UNSUPPORTED, "layer_types of all 4 layers = \"linear_attention\""),
        (kinds("full_attention"), UNSUPPORTED, "layer_types of all 4 layers = \"full_attention\""),
        (
            json!({ "layer_types": null, "full_attention_interval": 0 }),
            INVALID,
            "full_attention_interval = 0",
        ),
        (json!({ "layer_types": null, "full_attention_interval": 1 }), UNSUPPORTED, "\"full_attention\""),
        (json!({ "layer_types": null, "full_attention_interval": 5 }), UNSUPPORTED, "\"linear_attention\""),
        (
            json!({ "layer_types": null, "full_attention_interval": -4 }),
            INVALID,
            "full_attention_interval = -4",
        ),
        (json!({ "linear_num_key_heads": 0 }), INVALID, "linear_num_key_heads = 0"),
        (json!({ "linear_num_value_heads": 0 }), INVALID, "linear_num_value_heads = 0"),
        (json!({ "linear_num_value_heads": 1u64 << 40 }), INVALID, "linear_num_value_heads = 1099511627776"),
        (
            json!({ "linear_num_value_heads": 3 }),
            INVALID,
            "linear_num_value_heads = 3 is not a multiple of linear_num_key_heads = 2",
        ),
        (json!({ "linear_num_value_heads": 1 }), INVALID, "linear_num_value_heads = 1"),
        (json!({ "linear_key_head_dim": 0 }), INVALID, "linear_key_head_dim = 0"),
        (json!({ "linear_value_head_dim": 0 }), INVALID, "linear_value_head_dim = 0"),
        (
            json!({ "linear_key_head_dim": 20 }),
            UNSUPPORTED,
            "linear_key_head_dim = 20, built is a multiple of 16, at most 128",
        ),
        (json!({ "linear_value_head_dim": 24 }), UNSUPPORTED, "linear_value_head_dim = 24"),
        (json!({ "linear_key_head_dim": 256 }), UNSUPPORTED, "linear_key_head_dim = 256"),
        (json!({ "linear_value_head_dim": 144 }), UNSUPPORTED, "linear_value_head_dim = 144"),
        (
            json!({ "linear_num_key_heads": 4096, "linear_num_value_heads": 4096, "linear_key_head_dim": 48 }),
            INVALID,
            "linear_num_key_heads * linear_key_head_dim = 196608",
        ),
    ]);
}

#[test]
fn what_is_not_built_next_to_linear_attention_is_refused_by_key_and_value() {
    let factor =
        |value: Value| json!({ "rope_parameters": { "rope_theta": 1e4, "partial_rotary_factor": value } });
    check(&[
        (json!({ "linear_conv_kernel_dim": 3 }), UNSUPPORTED, "linear_conv_kernel_dim = 3, built is 4"),
        (json!({ "linear_conv_kernel_dim": "4" }), UNSUPPORTED, "linear_conv_kernel_dim"),
        (json!({ "attn_output_gate": false }), UNSUPPORTED, "attn_output_gate = false, built is true"),
        (json!({ "output_gate_type": "sigmoid" }), UNSUPPORTED, "output_gate_type = \"sigmoid\""),
        (json!({ "attention_bias": true }), UNSUPPORTED, "attention_bias = true"),
        (json!({ "use_sliding_window": true }), UNSUPPORTED, "use_sliding_window = true"),
        (json!({ "num_experts": 256 }), UNSUPPORTED, "num_experts = 256"),
        (json!({ "hidden_act": "gelu" }), UNSUPPORTED, "hidden_act"),
        (json!({ "model_type": "qwen4_exp_text", "architectures": null }), UNSUPPORTED, "qwen4_exp_text"),
        (json!({ "model_type": "qwen3_5_moe", "architectures": null }), UNSUPPORTED, "qwen3_5_moe"),
        (json!({ "rope_parameters": { "rope_type": "longrope" } }), UNSUPPORTED, "rope_type = \"longrope\""),
        (json!({ "rope_parameters": 3 }), UNSUPPORTED, "rope_parameters = 3"),
        (factor(json!("NaN")), INVALID, "partial_rotary_factor = \"NaN\""),
        (factor(json!(0)), INVALID, "partial_rotary_factor = 0"),
        (factor(json!(-0.25)), INVALID, "partial_rotary_factor = -0.25"),
        (factor(json!(1.5)), INVALID, "partial_rotary_factor = 1.5"),
        (factor(json!(0.01)), INVALID, "rotates 0 of 32"),
        (factor(json!(0.3)), INVALID, "rotates 9 of 32"),
        (json!({ "head_dim": 20 }), INVALID, "rotates 5 of 20"),
    ]);
    let moe = json!({ "model_type": "qwen3_5_omni", "text_config": golden("qwen3_5") });
    let error = spec_from_config(&moe, "config.json").unwrap_err();
    assert!(error.hints.iter().any(|hint| hint.contains("qwen3_5_text is closest")), "{error}");
    // The text of a model with experts inside one without.
    let mixed = json!({ "model_type": "qwen3_5_moe", "text_config": golden("qwen3_5") });
    let error = spec_from_config(&mixed, "config.json").unwrap_err();
    assert!(error.message.contains("text_config.model_type = \"qwen3_5_text\""), "{error}");
}

#[test]
fn published_configurations_give_their_presets() {
    // The keys that were published with 27B; the other models differ in sizes alone.
    let of = |spec: &FileShape| {
        let delta = spec.delta.unwrap().each;
        json!({
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "image_token_id": 248_056,
            "model_type": "qwen3_5",
            "text_config": {
                "attention_bias": false,
                "attention_dropout": 0.0,
                "attn_output_gate": true,
                "dtype": "bfloat16",
                "eos_token_id": 248_044,
                "full_attention_interval": 4,
                "head_dim": 256,
                "hidden_act": "silu",
                "hidden_size": spec.hidden,
                "initializer_range": 0.02,
                "intermediate_size": spec.ffn,
                "linear_conv_kernel_dim": 4,
                "linear_key_head_dim": 128,
                "linear_num_key_heads": 16,
                "linear_num_value_heads": delta.value_heads,
                "linear_value_head_dim": 128,
                "mamba_ssm_dtype": "float32",
                "max_position_embeddings": 262_144,
                "mlp_only_layers": [],
                "model_type": "qwen3_5_text",
                "mtp_num_hidden_layers": 1,
                "mtp_use_dedicated_embeddings": false,
                "num_attention_heads": spec.heads,
                "num_hidden_layers": spec.layers,
                "num_key_value_heads": spec.kv_heads,
                "output_gate_type": "swish",
                "partial_rotary_factor": 0.25,
                "rms_norm_eps": 1e-6,
                "rope_parameters": {
                    "mrope_interleaved": true,
                    "mrope_section": [11, 11, 10],
                    "partial_rotary_factor": 0.25,
                    "rope_theta": 10_000_000,
                    "rope_type": "default",
                },
                "tie_word_embeddings": spec.tied,
                "use_cache": true,
                "vocab_size": 248_320,
            },
            "tie_word_embeddings": spec.tied,
            "vision_config": { "depth": 27, "hidden_size": 1152, "model_type": "qwen3_5_vision" },
        })
    };
    for name in ["qwen3.5-0.8b", "qwen3.5-2b", "qwen3.5-4b", "qwen3.5-9b", "qwen3.5-27b"] {
        let preset = ModelSpec::preset(name).unwrap();
        assert_eq!(
            spec(&of(&preset.file_shape())).unwrap(),
            ModelSpec { is_wrapped: true, ..preset },
            "{name}"
        );
        let written = config_json(&preset, DType::Bf16, &TokenIds::default());
        assert_eq!(spec(&written).unwrap(), preset, "{name}");
    }
}

#[test]
fn published_configurations_with_experts_give_their_presets() {
    let text = |spec: &FileShape| {
        let (delta, experts) = (spec.delta.unwrap().each, spec.experts.unwrap().each);
        json!({
            "attention_bias": false,
            "full_attention_interval": 4,
            "head_dim": 256,
            "hidden_act": "silu",
            "hidden_size": spec.hidden,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": delta.value_heads,
            "linear_value_head_dim": 128,
            "max_position_embeddings": 262_144,
            "moe_intermediate_size": experts.ffn,
            "num_attention_heads": spec.heads,
            "num_experts": experts.count,
            "num_experts_per_tok": experts.chosen,
            "num_hidden_layers": spec.layers,
            "num_key_value_heads": spec.kv_heads,
            "output_router_logits": false,
            "rms_norm_eps": 1e-6,
            "router_aux_loss_coef": 0.001,
            "shared_expert_intermediate_size": experts.shared,
            "vocab_size": spec.vocab,
        })
    };
    let and = |one: Value, more: Value| {
        let mut all = one.as_object().unwrap().clone();
        all.extend(more.as_object().unwrap().clone());
        Value::Object(all)
    };
    for name in ["qwen3.5-35b-a3b", "qwen3.5-122b-a10b", "qwen3-next-80b-a3b"] {
        let preset = ModelSpec::preset(name).unwrap();
        let (shape, is_wrapped) = (preset.file_shape(), preset.family == Family::Qwen35Moe);
        let config = if is_wrapped {
            let rule = json!({ "mrope_interleaved": true, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
                "rope_theta": 10_000_000, "rope_type": "default" });
            let own = json!({ "model_type": "qwen3_5_moe_text", "rope_parameters": rule, "mamba_ssm_dtype": "float32",
                "mtp_num_hidden_layers": 1, "attn_output_gate": true });
            json!({ "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
                "text_config": and(text(&shape), own), "tie_word_embeddings": false, "vision_config": { "depth": 27 } })
        } else {
            let own = json!({ "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next",
                "decoder_sparse_step": 1, "intermediate_size": 5120, "mlp_only_layers": [], "norm_topk_prob": true,
                "partial_rotary_factor": 0.25, "rope_scaling": null, "rope_theta": 10_000_000 });
            and(text(&shape), own)
        };
        assert_eq!(spec(&config).unwrap(), ModelSpec { is_wrapped, ..preset }, "{name}");
        let written = config_json(&preset, DType::Bf16, &TokenIds::default());
        assert_eq!(spec(&written).unwrap(), preset, "{name}");
        assert_eq!(written.get("intermediate_size").is_none(), is_wrapped, "{name}");
    }
}

#[test]
fn keys_that_a_family_with_experts_alone_does_not_have_are_refused_where_they_differ() {
    let of = |change| spec(&with("qwen3_5_moe", change));
    let plain = of(json!({})).unwrap();
    assert!(plain.file_shape().experts.unwrap().each.normalizes);
    assert_eq!(
        of(json!({ "norm_topk_prob": true, "mlp_only_layers": [], "intermediate_size": 7 })).unwrap(),
        plain
    );
    for (change, slug, words) in [
        (json!({ "norm_topk_prob": false }), UNSUPPORTED, "norm_topk_prob = false, built is true"),
        (json!({ "mlp_only_layers": [1] }), UNSUPPORTED, "mlp_only_layers = [1], built is []"),
        (json!({ "decoder_sparse_step": 2 }), UNSUPPORTED, "decoder_sparse_step = 2, built is 1"),
        (json!({ "shared_expert_intermediate_size": 0 }), INVALID, "shared_expert_intermediate_size = 0"),
        (json!({ "shared_expert_intermediate_size": "remove" }), INVALID, "shared_expert_intermediate_size"),
        (json!({ "attention_bias": true }), UNSUPPORTED, "attention_bias = true"),
    ] {
        let (found, message) = of(change.clone()).unwrap_err();
        assert!(found == slug && message.contains(words), "{change}: {message}");
    }
}
