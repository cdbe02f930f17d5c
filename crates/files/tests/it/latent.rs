//! Latent attention: the keys of DeepSeek V2 and V3, Moonlight, Kimi-K2 and GLM-4.7-Flash, and what they may not say.

use crate::configs::spec;
use plimsoll_arch::ModelSpec;
use plimsoll_base::DType;
use plimsoll_files::{TokenIds, config_json};
use serde_json::{Value, json};

/// Returns a golden configuration with other keys; "remove" removes one.
fn with(name: &str, change: &Value) -> Value {
    let path = format!("{}/../model/tests/golden/{name}/config.json", env!("CARGO_MANIFEST_DIR"));
    let mut config: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let map = config.as_object_mut().unwrap();
    for (key, value) in change.as_object().unwrap() {
        if value == "remove" {
            map.remove(key);
        } else {
            map.insert(key.clone(), value.clone());
        }
    }
    config
}

/// Returns YaRN as files of DeepSeek have it.
fn yarn(factor: u32, stretch: f64) -> Value {
    json!({ "beta_fast": if factor == 32 { 1 } else { 32 }, "beta_slow": 1, "factor": factor, "mscale": stretch,
        "mscale_all_dim": stretch, "original_max_position_embeddings": 4096, "type": "yarn" })
}

#[test]
fn published_configurations_give_their_presets_and_are_written_so_that_they_do() {
    let one = json!({
        "first_k_dense_replace": 1, "hidden_size": 2048, "kv_lora_rank": 512, "moe_intermediate_size": 1408,
        "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 16, "num_experts_per_tok": 6,
        "num_hidden_layers": 27, "num_key_value_heads": 16, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "rope_parameters": "remove", "v_head_dim": 128,
    });
    for (preset, golden, own) in [
        (
            "deepseek-v2-lite",
            "deepseek_v2",
            json!({ "aux_loss_alpha": 0.001, "intermediate_size": 10944, "max_position_embeddings": 163_840,
                "n_group": 1, "q_lora_rank": null, "rms_norm_eps": 1e-6, "rope_scaling": yarn(40, 0.707),
                "rope_theta": 10000, "seq_aux": true, "topk_group": 1, "vocab_size": 102_400 }),
        ),
        (
            "moonlight-16b-a3b",
            "moonlight",
            json!({ "intermediate_size": 11264, "max_position_embeddings": 8192, "rope_theta": 50000.0,
                "vocab_size": 163_840 }),
        ),
        (
            "deepseek-v3",
            "deepseek_v3",
            json!({ "first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432,
                "max_position_embeddings": 163_840, "moe_intermediate_size": 2048, "n_group": 8,
                "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128, "num_experts_per_tok": 8,
                "num_hidden_layers": 61, "num_key_value_heads": 128, "q_lora_rank": 1536, "rms_norm_eps": 1e-6,
                "rope_scaling": yarn(40, 1.0), "rope_theta": 10000, "topk_group": 4, "vocab_size": 129_280 }),
        ),
        (
            "kimi-k2",
            "deepseek_v3",
            json!({ "hidden_size": 7168, "intermediate_size": 18432, "max_position_embeddings": 131_072,
                "moe_intermediate_size": 2048, "n_group": 1, "n_routed_experts": 384, "n_shared_experts": 1,
                "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 61,
                "num_key_value_heads": 64, "q_lora_rank": 1536, "rms_norm_eps": 1e-6, "rope_scaling": yarn(32, 1.0),
                "rope_theta": 50000.0, "routed_scaling_factor": 2.827, "topk_group": 1, "vocab_size": 163_840 }),
        ),
        (
            "glm-4.7-flash",
            "glm4_moe_lite",
            json!({ "intermediate_size": 10240, "max_position_embeddings": 202_752, "mlp_layer_types": "remove",
                "moe_intermediate_size": 1536, "n_shared_experts": 1, "num_attention_heads": 20,
                "num_experts_per_tok": 4, "num_hidden_layers": 47, "num_key_value_heads": 20, "q_lora_rank": 768,
                "qk_nope_head_dim": 192, "rope_theta": 1_000_000, "v_head_dim": 256, "vocab_size": 154_880 }),
        ),
    ] {
        let mut published = with(golden, &one);
        let map = published.as_object_mut().unwrap();
        map.extend(own.as_object().unwrap().clone());
        map.retain(|_, value| value != "remove");
        let preset = ModelSpec::preset(preset).unwrap();
        assert_eq!(spec(&published).unwrap(), preset, "{published}");
        let written = config_json(&preset, DType::Bf16, &TokenIds::default());
        assert_eq!(spec(&written).unwrap(), preset, "{written}");
    }
}

#[test]
fn what_latent_attention_and_its_routers_do_not_compute_is_refused_by_key_and_value() {
    for (golden, change, words) in [
        ("deepseek_v2", json!({ "topk_method": "group_limited_greedy" }), "built is \"greedy\""),
        ("deepseek_v2", json!({ "scoring_func": "sigmoid" }), "built is \"softmax\""),
        ("deepseek_v2", json!({ "norm_topk_prob": true }), "norm_topk_prob = true, built is false"),
        ("deepseek_v2", json!({ "routed_scaling_factor": 16.0 }), "routed_scaling_factor = 16.0, built is 1"),
        (
            "deepseek_v2",
            json!({ "qk_nope_head_dim": 24 }),
            "qk_nope_head_dim = 24, built is a multiple of 16",
        ),
        ("deepseek_v3", json!({ "v_head_dim": 8 }), "v_head_dim = 8, built is a multiple of 16"),
        ("deepseek_v3", json!({ "kv_lora_rank": 1024 }), "kv_lora_rank + qk_rope_head_dim = 1032"),
        ("deepseek_v3", json!({ "rope_interleave": false }), "rope_interleave = false, built is true"),
        ("moonlight", json!({ "attention_bias": true }), "attention_bias = true, built is false"),
        ("moonlight", json!({ "topk_method": "greedy" }), "topk_method = \"greedy\""),
    ] {
        let (slug, message) = spec(&with(golden, &change)).unwrap_err();
        assert!(slug == "model-unsupported" && message.contains(words), "{golden}, {change}: {message}");
    }
}
