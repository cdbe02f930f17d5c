//! A checkpoint at learning rate 0 is the model, to the bit: of every family, in the form of `config.json` that files
//! had before transformers 5 and in the one of transformers 5.

use crate::common::text;
use crate::run::Run;
use crate::tiny;
use plimsoll_files::{spec_from_config, token_ids};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const RUN: &str = r#"method = "sft"
model = "MODEL"
[model_options]
dtype = "f32"
[data]
prompts = "builtin:addition"
eval = "none"
[rollout]
prompts_per_step = 2
[train]
steps = 1
learning_rate = 0
"#;

/// Keys of a tiny model of each family, in the older form.
fn families() -> Vec<(&'static str, Value)> {
    let yarn = json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16 });
    let grown = json!({
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.25,
    });
    let llama3 = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    });
    let longrope = json!({
        "type": "longrope", "short_factor": vec![1.25; 24],
        "long_factor": (1..=24).map(|i| 1.0 + 0.25 * f64::from(i)).collect::<Vec<_>>(),
    });
    let gelu = "gelu_pytorch_tanh";
    let mut all = with_experts();
    all.push(gemma4());
    all.extend(vec![
        (
            "llama",
            json!({ "architectures": ["LlamaForCausalLM"], "rope_scaling": llama3, "attention_bias": true,
            "mlp_bias": true }),
        ),
        (
            "qwen2",
            json!({ "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": true, "sliding_window": 8,
            "max_window_layers": 2, "rope_scaling": yarn }),
        ),
        (
            "qwen3",
            json!({ "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": false, "attention_bias": true }),
        ),
        ("mistral", json!({ "architectures": ["MistralForCausalLM"], "sliding_window": 8 })),
        (
            "ministral3",
            json!({ "architectures": ["Ministral3ForCausalLM"], "rope_scaling": grown, "tie_word_embeddings": false }),
        ),
        ("smollm3", json!({ "architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 0, 1, 1] })),
        ("olmo2", json!({ "architectures": ["Olmo2ForCausalLM"], "rms_norm_eps": 1e-5 })),
        (
            "olmo3",
            json!({ "architectures": ["Olmo3ForCausalLM"], "sliding_window": 8, "rope_scaling": yarn }),
        ),
        (
            "gemma2",
            json!({ "architectures": ["Gemma2ForCausalLM"], "hidden_act": gelu, "sliding_window": 8,
            "query_pre_attn_scalar": 24, "attn_logit_softcapping": 20.0, "final_logit_softcapping": null }),
        ),
        (
            "gemma3_text",
            json!({ "architectures": ["Gemma3ForCausalLM"], "hidden_act": gelu, "sliding_window": 8,
            "query_pre_attn_scalar": 24, "sliding_window_pattern": 2, "rope_local_base_freq": 300.0,
            "rope_scaling": { "rope_type": "linear", "factor": 2.0 } }),
        ),
        (
            "granite",
            json!({ "architectures": ["GraniteForCausalLM"], "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4, "logits_scaling": 2.0, "attention_multiplier": 0.15625 }),
        ),
        (
            "phi3",
            json!({ "architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": 0.75, "rope_scaling": longrope,
            "original_max_position_embeddings": 16, "sliding_window": null }),
        ),
    ]);
    all
}

fn gemma4() -> (&'static str, Value) {
    (
        "gemma4_text",
        json!({ "architectures": ["Gemma4ForCausalLM"], "hidden_act": "gelu_pytorch_tanh", "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "attention_k_eq_v": true, "num_global_key_value_heads": 1, "global_head_dim": 128,
            "hidden_size_per_layer_input": 0, "final_logit_softcapping": 20.0 }),
    )
}

/// Those with experts or linear attention.
fn with_experts() -> Vec<(&'static str, Value)> {
    vec![
        (
            "qwen3_moe",
            json!({ "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 6, "num_experts_per_tok": 2,
            "moe_intermediate_size": 64, "norm_topk_prob": false, "mlp_only_layers": [1] }),
        ),
        (
            "qwen3_5_text",
            json!({ "architectures": ["Qwen3_5ForCausalLM"], "head_dim": 32, "partial_rotary_factor": 0.5,
            "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
            "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4 }),
        ),
        (
            "glm4_moe",
            json!({ "architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "partial_rotary_factor": 0.5,
            "n_routed_experts": 6, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
            "n_group": 3, "topk_group": 2, "routed_scaling_factor": 1.5, "first_k_dense_replace": 2 }),
        ),
    ]
}

/// Returns keys in the form of transformers 5: the rules of rotation are in `rope_parameters`, by type of layer where a
/// family has two.
fn newer(family: &str, keys: &Value) -> Value {
    let mut rule = keys["rope_scaling"].as_object().cloned().unwrap_or_else(Map::new);
    rule.entry("rope_type")
        .or_insert_with(|| keys["rope_scaling"].get("type").cloned().unwrap_or(json!("default")));
    rule.insert("rope_theta".into(), json!(1000.0));
    if let Some(factor) = keys.get("partial_rotary_factor") {
        rule.insert("partial_rotary_factor".into(), factor.clone());
    }
    let local = keys.get("rope_local_base_freq").cloned().unwrap_or(json!(1000.0));
    let rules = match family {
        "gemma4_text" => json!({
            "full_attention": { "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6 },
            "sliding_attention": { "rope_type": "default", "rope_theta": 1e4 },
        }),
        "olmo3" | "gemma3_text" => json!({
            "full_attention": rule, "sliding_attention": { "rope_type": "default", "rope_theta": local },
        }),
        _ => Value::Object(rule),
    };
    let mut keys = keys.clone();
    for key in ["rope_theta", "rope_scaling", "torch_dtype", "rope_local_base_freq"] {
        keys[key] = Value::Null;
    }
    keys["rope_parameters"] = rules;
    keys["dtype"] = json!("float32");
    keys
}

/// Returns the tensors of a safetensors file: shapes and bytes by name.
fn tensors(file: &[u8]) -> BTreeMap<String, (Value, Vec<u8>)> {
    let length = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&file[8..8 + length]).expect("JSON");
    let data = &file[8 + length..];
    let of = |(name, tensor): (String, Value)| {
        let at = |i: usize| tensor["data_offsets"][i].as_u64().expect("an offset") as usize;
        (name, (json!([tensor["dtype"], tensor["shape"]]), data[at(0)..at(1)].to_vec()))
    };
    header.into_iter().filter(|(name, _)| name != "__metadata__").map(of).collect()
}

/// Trains a step at learning rate 0: what it leaves has the shape, the weights and the special tokens of the model, and
/// trains to the same loss. Returns the shape, written out.
fn check(folder: &Run, name: &str, keys: &Value) -> String {
    let model = folder.path(name);
    tiny::write(&model, keys);
    let read = |path: &str| folder.read_json(path);
    let (dir, again) = (format!("{name}-out"), format!("{name}-again"));
    folder.train(&dir, &[&format!("model={}", folder.text_path(name))]);
    let left = format!("{dir}/checkpoints/latest");
    let (before, after) = (read(&format!("{name}/config.json")), read(&format!("{left}/config.json")));
    let spec = |config: &Value| spec_from_config(config, "config.json").expect("a shape");
    assert_eq!(spec(&before), spec(&after), "{name}: {after}");
    let ids = token_ids(&before, None);
    assert_eq!(ids, token_ids(&after, Some(&read(&format!("{left}/generation_config.json")))), "{name}");
    let of = |file: String| tensors(&folder.read(&file));
    let (own, saved) = (of(format!("{name}/model.safetensors")), of(format!("{left}/model.safetensors")));
    assert_eq!(own.keys().collect::<Vec<_>>(), saved.keys().collect::<Vec<_>>(), "{name}");
    for (tensor, values) in &own {
        assert!(saved[tensor] == *values, "{name}: {tensor} is another");
    }
    folder.train(&again, &[&format!("model={}", folder.text_path(&left))]);
    let loss = |dir: &str| folder.metrics(dir)[0]["loss"].as_f64().expect("a loss").to_bits();
    assert_eq!(loss(&dir), loss(&again), "{name}: another loss");
    assert_eq!(folder.weights(&dir), folder.weights(&again), "{name}");
    // What is written once is written again as it was.
    assert_eq!(
        text(&folder.saved(&dir, "config.json")),
        text(&folder.saved(&again, "config.json")),
        "{name}"
    );
    format!("{:?}", spec(&before))
}

#[test]
fn a_checkpoint_at_learning_rate_0_is_the_model_of_every_family_in_both_forms() {
    let folder = Run::named("x.toml", &RUN.replace("MODEL", "builtin:nano"));
    for (family, mut keys) in families() {
        keys["model_type"] = json!(family);
        let older = check(&folder, family, &keys);
        let newer = check(&folder, &format!("{family}-5"), &newer(family, &keys));
        assert_eq!(older, newer, "{family}: both forms are one model");
    }
}

/// Shows what only one of the forms expresses.
#[test]
fn a_checkpoint_at_learning_rate_0_keeps_bases_of_types_of_layers_and_layers_without_windows() {
    let folder = Run::named("x.toml", &RUN.replace("MODEL", "builtin:nano"));
    let all = families();
    for family in ["olmo3", "gemma3_text"] {
        let (_, keys) = all.iter().find(|(name, _)| *name == family).expect("a family");
        let mut keys = newer(family, keys);
        keys["model_type"] = json!(family);
        keys["rope_parameters"]["full_attention"]["rope_theta"] = json!(850_000.0);
        keys["rope_parameters"]["sliding_attention"]["rope_theta"] = json!(30_000.0);
        let bases = check(&folder, &format!("{family}-bases"), &keys);
        assert!(bases.contains("30000.0") && bases.contains("850000.0"), "{bases}");
        keys["layer_types"] = json!(["full_attention", "full_attention", "full_attention", "full_attention"]);
        let full = check(&folder, &format!("{family}-full"), &keys);
        assert!(full != bases && full.contains("window: None"), "{full}");
    }
}
