//! Models whose routers score by sigmoids: their keys, what they may not say, and the dtype of corrections.

use crate::configs::{golden, spec, with};
use plimsoll_arch::{Family, LayerSet, ModelSpec, SigmoidSpec};
use plimsoll_base::DType;
use plimsoll_files::{OpenModel, TokenIds, check_against, config_json};
use serde_json::{Map, Value, json};
use std::path::Path;

const INVALID: &str = "model-config-invalid";
const UNSUPPORTED: &str = "model-unsupported";

#[test]
fn keys_of_routers_and_of_dense_layers_are_read() {
    let shape = spec(&golden("glm4_moe")).unwrap().file_shape();
    let experts = shape.experts.unwrap();
    assert_eq!(experts.layers, LayerSet::of(2, |layer| layer == 1));
    assert_eq!((experts.each.count, experts.each.chosen, experts.each.ffn), (6, 2, 32));
    assert_eq!((experts.each.shared, experts.each.gates_shared), (Some(32), false));
    assert_eq!(experts.each.sigmoid, Some(SigmoidSpec { groups: 1, groups_chosen: 1, factor: 1.0 }));
    assert_eq!((shape.qkv_bias, shape.output_bias, shape.qk_norms), (true, false, None));
    assert_eq!((shape.head_dim, shape.attention.rotated, shape.rope_theta), (32, Some(16), 1e6));
    let shape = spec(&golden("glm4_moe_groups")).unwrap().file_shape();
    let experts = shape.experts.unwrap();
    assert_eq!(experts.layers, LayerSet::of(4, |layer| layer >= 2));
    assert_eq!(experts.each.shared, Some(2 * 16));
    assert_eq!(experts.each.sigmoid, Some(SigmoidSpec { groups: 4, groups_chosen: 2, factor: 2.5 }));
    assert_eq!((shape.qk_norms.is_some(), shape.attention.rotated, shape.rope_theta), (true, Some(8), 1e4));
    // transformers rotates half of a head where a file does not say.
    let unsaid = spec(&with("glm4_moe", json!({ "partial_rotary_factor": "remove" }))).unwrap();
    assert_eq!(unsaid, spec(&golden("glm4_moe")).unwrap());
}

#[test]
fn what_a_router_of_sigmoids_does_not_compute_is_refused_by_key_and_value() {
    for (change, slug, words) in [
        (
            json!({ "scoring_func": "softmax" }),
            UNSUPPORTED,
            "scoring_func = \"softmax\", built is \"sigmoid\"",
        ),
        (json!({ "topk_method": "greedy" }), UNSUPPORTED, "topk_method = \"greedy\", built is \"noaux_tc\""),
        (json!({ "n_routed_experts": "remove" }), INVALID, "`n_routed_experts` is absent"),
        (json!({ "n_shared_experts": 0 }), INVALID, "n_shared_experts = 0"),
        (json!({ "num_experts": 8 }), UNSUPPORTED, "num_experts = 8"),
        (json!({ "n_group": 3 }), INVALID, "n_routed_experts = 8 is not a multiple of n_group = 3"),
        (json!({ "n_group": 8 }), INVALID, "n_group = 8, wanted is 1 to 4"),
        (json!({ "n_group": 0 }), INVALID, "n_group = 0"),
        (json!({ "topk_group": 5 }), INVALID, "topk_group = 5, wanted is 1 to 4"),
        (json!({ "num_experts_per_tok": 5 }), INVALID, "num_experts_per_tok = 5, wanted is 1 to 4"),
        (json!({ "routed_scaling_factor": 0 }), INVALID, "routed_scaling_factor = 0"),
        (json!({ "routed_scaling_factor": -1.0 }), INVALID, "routed_scaling_factor = -1.0"),
        (
            json!({ "first_k_dense_replace": 4 }),
            INVALID,
            "first_k_dense_replace = 4, expected a number below",
        ),
        (json!({ "first_k_dense_replace": -1 }), INVALID, "first_k_dense_replace = -1"),
        (json!({ "use_qk_norm": 1 }), INVALID, "use_qk_norm = 1"),
        (json!({ "moe_intermediate_size": 24 }), UNSUPPORTED, "moe_intermediate_size = 24"),
        (json!({ "mlp_bias": true }), UNSUPPORTED, "mlp_bias = true"),
        (json!({ "quantization_config": { "quant_method": "fp8" } }), UNSUPPORTED, "quantization_config"),
    ] {
        let (found, message) = spec(&with("glm4_moe_groups", change.clone())).unwrap_err();
        assert!(found == slug && message.contains(words), "{change}: {found}: {message}");
    }
    // The other families have no such keys.
    let (slug, message) = spec(&with("qwen3_moe", json!({ "n_routed_experts": 4 }))).unwrap_err();
    assert!(slug == UNSUPPORTED && message.contains("n_routed_experts = 4"), "{message}");
}

#[test]
fn written_configurations_are_read_again_and_name_no_further_tokens() {
    for name in ["glm4_moe", "glm4_moe_groups"] {
        let before = spec(&golden(name)).unwrap();
        let config = config_json(&before, DType::Bf16, &TokenIds::default());
        assert_eq!(spec(&config).unwrap(), before, "{name}: {config}");
        assert_eq!(config["num_nextn_predict_layers"], 0, "{name}");
        for key in ["num_experts", "decoder_sparse_step", "mlp_only_layers", "router_aux_loss_coef"] {
            assert_eq!(config.get(key), None, "{name}: {key}");
        }
    }
}

/// As published, with the layer that predicts a further token.
#[test]
fn published_configurations_give_their_presets() {
    let published = |own: Value| {
        let mut all = json!({
            "architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "attention_dropout": 0.0, "head_dim": 128,
            "hidden_act": "silu", "initializer_range": 0.02, "max_position_embeddings": 131_072,
            "model_type": "glm4_moe", "n_group": 1, "n_shared_experts": 1, "norm_topk_prob": true,
            "num_attention_heads": 96, "num_experts_per_tok": 8, "num_key_value_heads": 8,
            "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5, "rope_scaling": null,
            "rope_theta": 1_000_000, "tie_word_embeddings": false, "topk_group": 1, "torch_dtype": "bfloat16",
            "use_cache": true, "vocab_size": 151_552,
        });
        all.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        all
    };
    for (name, own) in [
        (
            "glm-4.5-air",
            json!({ "first_k_dense_replace": 1, "hidden_size": 4096, "intermediate_size": 10944,
                "moe_intermediate_size": 1408, "n_routed_experts": 128, "num_hidden_layers": 46,
                "routed_scaling_factor": 1.0, "use_qk_norm": false }),
        ),
        (
            "glm-4.5",
            json!({ "first_k_dense_replace": 3, "hidden_size": 5120, "intermediate_size": 12288,
                "moe_intermediate_size": 1536, "n_routed_experts": 160, "num_hidden_layers": 92,
                "routed_scaling_factor": 2.5, "use_qk_norm": true }),
        ),
    ] {
        let preset = ModelSpec::preset(name).unwrap();
        assert_eq!(preset.family, Family::Glm4Moe);
        assert_eq!(spec(&published(own)).unwrap(), preset, "{name}");
        let written = config_json(&preset, DType::Bf16, &TokenIds::default());
        assert_eq!(spec(&written).unwrap(), preset, "{name}");
    }
}

/// A tensor of a file: its name, dtype, shape and bytes.
type Stored = (String, String, Value, Vec<u8>);

/// Writes the golden model with tensors that `change` changes.
fn changed(change: impl FnOnce(&mut Vec<Stored>)) -> tempfile::TempDir {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden/glm4_moe");
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(from.join("config.json"), folder.path().join("config.json")).unwrap();
    let file = std::fs::read(from.join("model.safetensors")).unwrap();
    let (length, rest) = file.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: Map<String, Value> = serde_json::from_slice(header).unwrap();
    let mut tensors: Vec<Stored> = (header.into_iter())
        .filter(|(name, _)| name != "__metadata__")
        .map(|(name, entry)| {
            let at = |i: usize| entry["data_offsets"][i].as_u64().unwrap() as usize;
            let dtype = entry["dtype"].as_str().unwrap().to_string();
            (name, dtype, entry["shape"].clone(), data[at(0)..at(1)].to_vec())
        })
        .collect();
    change(&mut tensors);
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let ends = [data.len(), data.len() + bytes.len()];
        header.insert(name, json!({ "dtype": dtype, "shape": shape, "data_offsets": ends }));
        data.extend(bytes);
    }
    let text = Value::Object(header).to_string();
    let file = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &data].concat();
    std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
    folder
}

/// Opens a model and compares its tensors with its shape.
fn check(folder: &tempfile::TempDir) -> plimsoll_base::Result<()> {
    check_against(&OpenModel::open(folder.path().to_str().unwrap(), None, false)?)
}

#[test]
fn a_correction_in_bf16_is_refused_by_name() {
    let name = "model.layers.1.mlp.gate.e_score_correction_bias";
    assert_eq!(check(&changed(|_| {})).map_err(|error| error.to_string()), Ok(()));
    let folder = changed(|tensors| {
        let (_, dtype, _, bytes) = tensors.iter_mut().find(|(of, ..)| of == name).unwrap();
        (*dtype, *bytes) = ("BF16".into(), vec![0; 12]);
    });
    let error = check(&folder).unwrap_err();
    let text = error.to_string();
    assert!(error.slug == UNSUPPORTED && text.contains(name) && text.contains("built is f32"), "{text}");
}

#[test]
fn layers_after_the_last_predict_further_tokens_and_are_not_read() {
    let of = |name: &str| {
        let more = (name.to_string(), "F32".to_string(), json!([4]), vec![0; 16]);
        check(&changed(|tensors| tensors.push(more)))
    };
    assert_eq!(of("model.layers.2.enorm.weight").map_err(|error| error.to_string()), Ok(()));
    for name in ["model.layers.1.enorm.weight", "mtp.norm.weight"] {
        let error = of(name).unwrap_err();
        assert_eq!(error.slug, "model-tensor-unexpected", "{name}: {error}");
    }
}
