//! Models with sinks, whose experts have biases: their keys, what they may not say, and their tensors.

use crate::configs::{golden, spec, with};
use plimsoll_arch::{Family, LayerSet, ModelSpec, RopeScaling, expected_tensors};
use plimsoll_base::DType;
use plimsoll_files::{TokenIds, config_json};
use serde_json::{Value, json};

const INVALID: &str = "model-config-invalid";
const UNSUPPORTED: &str = "model-unsupported";

#[test]
fn keys_of_sinks_windows_and_experts_are_read() {
    let spec_of_file = spec(&golden("gpt_oss")).unwrap();
    let shape = spec_of_file.file_shape();
    let experts = shape.experts.unwrap();
    assert_eq!(experts.layers, LayerSet::of(2, |_| true));
    assert_eq!((experts.each.count, experts.each.chosen, experts.each.ffn), (5, 2, 32));
    assert!(experts.each.biased && experts.each.normalizes && experts.each.is_fused);
    assert_eq!(experts.each.balance, 0.9);
    assert_eq!((shape.qkv_bias, shape.output_bias, shape.mlp_bias, shape.tied), (true, true, false, false));
    let window = shape.attention.window.unwrap();
    assert_eq!((window.keys, window.layers), (16, LayerSet::of(2, |layer| layer == 0)));
    assert!(shape.attention.sinks && spec_of_file.attentions().all(|of| of.sinks));
    let RopeScaling::Yarn { attention_factor, truncate, .. } = shape.rope_scaling else { panic!("YaRN") };
    assert!(!truncate && (attention_factor - (0.1 * 8f64.ln() + 1.0)).abs() < 1e-12, "{attention_factor}");
    // Without a list every second layer sees all keys, and the numbers of clamped gates are those that are built.
    let change = json!({ "layer_types": "remove", "swiglu_limit": "remove", "swiglu_alpha": 1.702 });
    assert_eq!(spec(&with("gpt_oss", change)).unwrap(), spec_of_file);
    // transformers 5 has the rule and its base in one place.
    let mut rule = golden("gpt_oss")["rope_scaling"].clone();
    rule["rope_theta"] = json!(1000.0);
    let change = json!({ "rope_parameters": rule, "rope_scaling": "remove", "rope_theta": "remove" });
    assert_eq!(spec(&with("gpt_oss", change)).unwrap(), spec_of_file);
}

#[test]
fn what_no_row_has_is_refused_by_key_and_value() {
    for (change, slug, words) in [
        (json!({ "swiglu_limit": 6.0 }), UNSUPPORTED, "swiglu_limit = 6.0, built is 7"),
        (json!({ "swiglu_limit": "7" }), UNSUPPORTED, "swiglu_limit = \"7\", built is 7"),
        (json!({ "swiglu_alpha": 1.0 }), UNSUPPORTED, "swiglu_alpha = 1.0, built is 1.702"),
        (json!({ "hidden_act": "gelu" }), UNSUPPORTED, "hidden_act = \"gelu\""),
        (json!({ "experts_per_token": 3 }), INVALID, "num_experts_per_tok = 2, and experts_per_token = 3"),
        (json!({ "num_experts": 6 }), INVALID, "num_experts = 6, and num_local_experts = 5"),
        (json!({ "num_local_experts": "remove" }), INVALID, "`num_experts` is absent"),
        (json!({ "moe_intermediate_size": 32 }), UNSUPPORTED, "moe_intermediate_size = 32"),
        (json!({ "intermediate_size": 24 }), UNSUPPORTED, "= 24, built is a multiple of 16"),
        (json!({ "norm_topk_prob": false }), UNSUPPORTED, "norm_topk_prob = false, built is true"),
        (json!({ "mlp_only_layers": [0] }), UNSUPPORTED, "mlp_only_layers = [0]"),
        (json!({ "decoder_sparse_step": 2 }), UNSUPPORTED, "decoder_sparse_step = 2"),
        (json!({ "n_routed_experts": 5 }), UNSUPPORTED, "n_routed_experts = 5"),
        (json!({ "mlp_bias": true }), UNSUPPORTED, "mlp_bias = true"),
        (json!({ "attn_logit_softcapping": 30.0 }), UNSUPPORTED, "attn_logit_softcapping = 30.0"),
        (json!({ "partial_rotary_factor": 0.5 }), UNSUPPORTED, "partial_rotary_factor = 0.5"),
        (json!({ "rope_scaling": null }), INVALID, "`rope_parameters` and `rope_scaling` are absent"),
        (
            json!({ "layer_types": ["sliding_attention", "linear_attention"] }),
            UNSUPPORTED,
            "layer_types = \"linear_attention\"",
        ),
        (json!({ "quantization_config": { "quant_method": "fp8" } }), UNSUPPORTED, "quantization_config"),
    ] {
        let (found, message) = spec(&with("gpt_oss", change.clone())).unwrap_err();
        assert!(found == slug && message.contains(words), "{change}: {found}: {message}");
    }
    // The other families have no clamped gates.
    for name in ["qwen3_moe", "llama", "glm4_moe"] {
        let (slug, message) = spec(&with(name, json!({ "swiglu_limit": 7.0 }))).unwrap_err();
        assert!(slug == UNSUPPORTED && message.contains("swiglu_limit = 7.0, built is none"), "{message}");
    }
}

#[test]
fn written_configurations_are_read_again() {
    let nano = ModelSpec::preset("nano-gpt-oss").unwrap();
    for before in [spec(&golden("gpt_oss")).unwrap(), nano] {
        let config = config_json(&before, DType::Bf16, &TokenIds::default());
        assert_eq!(spec(&config).unwrap(), before, "{config}");
        for key in ["num_experts", "moe_intermediate_size", "rope_theta", "rope_scaling"] {
            assert_eq!(config.get(key), None, "{key}: {config}");
        }
        assert_eq!(config["num_local_experts"], before.layer(0).experts().unwrap().count, "{config}");
    }
}

/// As published, but for the blocks of its experts.
#[test]
fn published_configurations_give_their_presets() {
    for (name, layers, experts) in [("gpt-oss-20b", 24, 32), ("gpt-oss-120b", 36, 128)] {
        let kinds: Vec<Value> = (0..layers)
            .map(|layer| json!(if layer % 2 == 0 { "sliding_attention" } else { "full_attention" }))
            .collect();
        let published = json!({
            "architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
            "eos_token_id": 200_002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
            "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880, "layer_types": kinds,
            "max_position_embeddings": 131_072, "model_type": "gpt_oss", "num_attention_heads": 64,
            "num_experts_per_tok": 4, "num_hidden_layers": layers, "num_key_value_heads": 8,
            "num_local_experts": experts, "output_router_logits": false, "pad_token_id": 199_999, "rms_norm_eps": 1e-5,
            "rope_scaling": { "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
                "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false },
            "rope_theta": 150_000, "router_aux_loss_coef": 0.001, "sliding_window": 128, "swiglu_limit": 7.0,
            "tie_word_embeddings": false, "transformers_version": "4.55.0.dev0", "use_cache": true,
            "vocab_size": 201_088,
        });
        let preset = ModelSpec::preset(name).unwrap();
        assert_eq!(preset.family, Family::GptOss);
        assert_eq!(spec(&published).unwrap(), preset, "{name}");
        let written = config_json(&preset, DType::Bf16, &TokenIds::default());
        assert_eq!(spec(&written).unwrap(), preset, "{name}");
    }
}

#[test]
fn tensors_of_experts_are_those_of_all_transposed() {
    let names = expected_tensors(&spec(&golden("gpt_oss")).unwrap());
    for (name, shape) in [
        ("self_attn.sinks", vec![4]),
        ("self_attn.o_proj.bias", vec![64]),
        ("mlp.router.weight", vec![5, 64]),
        ("mlp.router.bias", vec![5]),
        ("mlp.experts.gate_up_proj", vec![5, 64, 64]),
        ("mlp.experts.gate_up_proj_bias", vec![5, 64]),
        ("mlp.experts.down_proj", vec![5, 32, 64]),
        ("mlp.experts.down_proj_bias", vec![5, 64]),
    ] {
        let name = format!("model.layers.1.{name}");
        assert!(names.contains(&(name.clone(), shape)), "{name}: {names:?}");
    }
    assert_eq!(names.len(), 3 + 2 * 17);
}
