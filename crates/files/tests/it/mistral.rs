//! Mistral Small 3, and Ministral 3: YaRN with a growth of queries, as files say it.

use crate::configs::{golden, spec, with};
use plimsoll_arch::{Family, ModelSpec, RopeScaling};
use plimsoll_base::DType;
use plimsoll_files::{TokenIds, config_json};
use serde_json::{Value, json};

/// Returns the golden configuration with other keys in its rule.
fn ruled(change: Value) -> Value {
    let mut config = golden("ministral3");
    let rule = config["rope_parameters"].as_object_mut().unwrap();
    for (key, value) in change.as_object().unwrap() {
        if value == "remove" {
            rule.remove(key);
        } else {
            rule.insert(key.clone(), value.clone());
        }
    }
    config
}

#[test]
fn mistral_small_has_heads_of_128_whatever_its_width() {
    // As published: 5,120 / 32 is 160.
    let published = json!({
        "head_dim": 128, "hidden_size": 5120, "intermediate_size": 32768, "max_position_embeddings": 32768,
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "rope_theta": 1e8, "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 131072,
    });
    let small = spec(&with("mistral", published.clone())).unwrap();
    assert_eq!(small, ModelSpec::preset("mistral-small-24b").unwrap());
    let mut text = with("mistral", published);
    let map = text.as_object_mut().unwrap();
    map.extend([("rope_theta".into(), json!(1e9)), ("max_position_embeddings".into(), json!(131_072))]);
    for key in ["architectures", "model_type", "tie_word_embeddings"] {
        map.remove(key);
    }
    let whole = json!({ "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
        "image_token_index": 10, "spatial_merge_size": 2, "text_config": text, "vision_config": {} });
    let wrapped = ModelSpec { is_wrapped: true, ..ModelSpec::preset("mistral-small-3.1-24b").unwrap() };
    assert_eq!(spec(&whole).unwrap(), wrapped);
    let mut coded = whole;
    coded["quantization_config"] = json!({ "quant_method": "fp8" });
    assert_eq!(spec(&coded).unwrap_err().0, "model-unsupported");
}

#[test]
fn the_rule_is_read_and_written_as_published() {
    let grown = RopeScaling::Yarn {
        factor: 16.0,
        original_max_position_embeddings: 16,
        beta_fast: 32.0,
        beta_slow: 1.0,
        // Not 0.1 ln(16) + 1: both stretches are 1.
        attention_factor: 1.0,
        truncate: true,
        query_growth: 0.4,
    };
    let read = spec(&golden("ministral3")).unwrap();
    assert_eq!((read.family, read.rope_theta, read.rope_scaling), (Family::Ministral3, 100.0, grown));
    assert_eq!(read.layer(0).attention().unwrap().head_dim, 32);
    // The type under its other name; the base next to the rule.
    assert_eq!(spec(&ruled(json!({ "rope_type": "remove", "type": "yarn" }))).unwrap(), read);
    let mut outside = ruled(json!({ "rope_theta": "remove" }));
    outside["rope_theta"] = json!(100.0);
    assert_eq!(spec(&outside).unwrap(), read);
    for name in ["ministral3", "ministral3_window"] {
        let before = spec(&golden(name)).unwrap();
        let config = config_json(&before, DType::Bf16, &TokenIds::default());
        assert_eq!(spec(&config).unwrap(), before, "{name}: {config}");
        let rule = &config["rope_parameters"];
        let stretches = ["attention_factor", "mscale", "mscale_all_dim"].map(|key| rule[key].as_f64());
        assert_eq!(stretches, [Some(1.0); 3], "{name}: {config}");
        assert_eq!([config.get("rope_scaling"), config.get("rope_theta")], [None; 2], "{name}: {config}");
    }
}

#[test]
fn what_is_not_said_or_not_so_is_refused_by_name() {
    const INVALID: &str = "model-config-invalid";
    const UNSUPPORTED: &str = "model-unsupported";
    for (change, slug, words) in [
        (json!({ "llama_4_scaling_beta": "remove" }), INVALID, "`llama_4_scaling_beta` is absent"),
        (json!({ "llama_4_scaling_beta": null }), INVALID, "`llama_4_scaling_beta` is absent"),
        (json!({ "llama_4_scaling_beta": 0 }), INVALID, "llama_4_scaling_beta = 0"),
        (json!({ "llama_4_scaling_beta": -0.1 }), INVALID, "llama_4_scaling_beta = -0.1"),
        (json!({ "llama_4_scaling_beta": 1e300 }), INVALID, "llama_4_scaling_beta = 1e+300"),
        (json!({ "llama_4_scaling_beta": "0.1" }), INVALID, "llama_4_scaling_beta"),
        (json!({ "original_max_position_embeddings": 0 }), INVALID, "original_max_position_embeddings = 0"),
        (
            json!({ "original_max_position_embeddings": 1u64 << 40 }),
            INVALID,
            "original_max_position_embeddings",
        ),
        (json!({ "rope_theta": "remove" }), INVALID, "`rope_theta` of rope_parameters is absent"),
        (json!({ "rope_type": "default" }), UNSUPPORTED, "rope_type = \"default\", built is yarn"),
        (json!({ "rope_type": "llama3" }), UNSUPPORTED, "built is yarn"),
        (json!({ "rope_type": "remove" }), UNSUPPORTED, "rope_type = null, built is yarn"),
        (json!({ "partial_rotary_factor": 0.5 }), UNSUPPORTED, "partial_rotary_factor = 0.5"),
    ] {
        let (found, message) = spec(&ruled(change.clone())).unwrap_err();
        assert!(found == slug && message.contains(words), "{change}: {found}: {message}");
    }
    for (change, slug, words) in [
        (json!({ "rope_parameters": "remove" }), INVALID, "`rope_theta` of rope_scaling is absent"),
        (json!({ "rope_parameters": "yarn" }), UNSUPPORTED, "built is an object"),
        (json!({ "quantization_config": { "quant_method": "fp8" } }), UNSUPPORTED, "quantization_config"),
        (json!({ "attention_bias": true }), UNSUPPORTED, "attention_bias = true"),
        (json!({ "n_routed_experts": 4 }), UNSUPPORTED, "n_routed_experts = 4"),
    ] {
        let (found, message) = spec(&with("ministral3", change.clone())).unwrap_err();
        assert!(found == slug && message.contains(words), "{change}: {found}: {message}");
    }
    // The reference does not read the key in other families.
    let rule = json!({ "rope_type": "yarn", "factor": 4.0, "llama_4_scaling_beta": 0.1 });
    for name in ["llama", "mistral", "qwen3"] {
        let (slug, message) = spec(&with(name, json!({ "rope_scaling": rule }))).unwrap_err();
        assert!(slug == UNSUPPORTED && message.contains("llama_4_scaling_beta = 0.1"), "{name}: {message}");
    }
}

#[test]
fn published_configurations_give_their_presets() {
    for (name, own) in [
        ("ministral-3-3b", json!([3072, 26, 9216, 1e6, true])),
        ("ministral-3-8b", json!([4096, 34, 14336, 1e6, false])),
        ("ministral-3-14b", json!([5120, 40, 16384, 1e9, false])),
    ] {
        let text = json!({
            "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": own[0],
            "initializer_range": 0.02, "intermediate_size": own[2], "max_position_embeddings": 262_144,
            "model_type": "ministral3", "num_attention_heads": 32, "num_hidden_layers": own[1],
            "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "sliding_window": null, "use_cache": true,
            "vocab_size": 131_072,
            "rope_parameters": { "beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1,
                "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 16384, "rope_theta": own[3],
                "rope_type": "yarn", "type": "yarn" },
        });
        let whole = json!({
            "architectures": ["Mistral3ForConditionalGeneration"], "dtype": "bfloat16", "image_token_index": 10,
            "model_type": "mistral3", "multimodal_projector_bias": false, "projector_hidden_act": "gelu",
            "spatial_merge_size": 2, "text_config": text, "tie_word_embeddings": own[4], "vision_config": {},
        });
        let preset = ModelSpec::preset(name).unwrap();
        assert_eq!(spec(&whole).unwrap(), ModelSpec { is_wrapped: true, ..preset }, "{name}");
        let written = config_json(&preset, DType::Bf16, &TokenIds::default());
        assert_eq!(spec(&written).unwrap(), preset, "{name}");
    }
}
