//! A language model inside a model of text and images opens as the language model alone.

use crate::common::safetensors;
use plimsoll_arch::{Family, LayerSet, ModelSpec};
use plimsoll_base::Result;
use plimsoll_files::{OpenModel, check_against};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// A family whose models are wrapped: a golden model of it, the configuration of the whole, and tensors of other parts.
struct Wrapper {
    golden: &'static str,
    model_type: &'static str,
    architecture: &'static str,
    others: &'static [&'static str],
}

const GEMMA: Wrapper = Wrapper {
    golden: "gemma3",
    model_type: "gemma3",
    architecture: "Gemma3ForConditionalGeneration",
    others: &["vision_tower.embed.weight", "multi_modal_projector.norm.weight"],
};

const QWEN: Wrapper = Wrapper {
    golden: "qwen3_5",
    model_type: "qwen3_5",
    architecture: "Qwen3_5ForConditionalGeneration",
    others: &[
        "model.visual.patch_embed.proj.weight",
        "model.visual.position_ids",
        "model.visual.blocks.0.attn.qkv.weight",
        "model.visual.merger.linear_fc1.bias",
        "mtp.fc.weight",
        "mtp.layers.0.self_attn.q_proj.weight",
        "mtp.norm.weight",
    ],
};

const QWEN_MOE: Wrapper = Wrapper {
    golden: "qwen3_5_moe",
    model_type: "qwen3_5_moe",
    architecture: "Qwen3_5MoeForConditionalGeneration",
    others: QWEN.others,
};

/// Mistral Small 3.1, 3.2 and Magistral.
const MISTRAL: Wrapper = Wrapper {
    golden: "mistral_window",
    model_type: "mistral3",
    architecture: "Mistral3ForConditionalGeneration",
    others: &[
        "vision_tower.patch_conv.weight",
        "vision_tower.transformer.layers.0.attention.q_proj.weight",
        "multi_modal_projector.linear_1.weight",
        "model.vision_tower.ln_pre.weight",
        "model.multi_modal_projector.patch_merger.merging_layer.weight",
    ],
};

/// Ministral 3, in the same wrapper.
const MINISTRAL: Wrapper = Wrapper { golden: "ministral3", ..MISTRAL };

const GEMMA_4: Wrapper = Wrapper {
    golden: "gemma4",
    model_type: "gemma4",
    architecture: "Gemma4ForConditionalGeneration",
    others: &[
        "model.vision_tower.patch_embedder.input_proj.weight",
        "model.embed_vision.embedding_projection.weight",
        "model.audio_tower.layers.0.norm_out.weight",
        "model.embed_audio.embedding_projection.weight",
    ],
};

const GEMMA_4_E: Wrapper = Wrapper { golden: "gemma4_e", ..GEMMA_4 };

const GEMMA_4_UNIFIED: Wrapper = Wrapper {
    golden: "gemma4_unified",
    model_type: "gemma4_unified",
    architecture: "Gemma4UnifiedForConditionalGeneration",
    others: &[
        "model.vision_embedder.patch_dense.weight",
        "model.embed_vision.pos_embedding",
        "model.embed_audio.embedding_projection.weight",
    ],
};

const GEMMA_4_MOE: Wrapper = Wrapper { golden: "gemma4_moe", ..GEMMA_4 };

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(name)
}

/// Returns the golden model's file with its tensors renamed, and tensors of two elements named `others`.
fn tensors(name: &str, others: &[&str], rename: impl Fn(&str) -> String) -> Vec<u8> {
    let file = std::fs::read(golden(name).join("model.safetensors")).unwrap();
    let (length, rest) = file.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let old: Map<String, Value> = serde_json::from_slice(header).unwrap();
    let tensors = old.into_iter().filter(|(name, _)| name != "__metadata__");
    let mut new: Map<String, Value> = tensors.map(|(name, entry)| (rename(&name), entry)).collect();
    let end = data.len();
    for (i, name) in others.iter().enumerate() {
        let offsets = [end + 8 * i, end + 8 * (i + 1)];
        let entry = match name {
            // A convolution over films has five axes; a buffer of positions holds integers.
            _ if name.ends_with("patch_embed.proj.weight") => ("F32", json!([2, 1, 1, 1, 1])),
            _ if name.ends_with("position_ids") => ("I64", json!([1])),
            _ => ("F32", json!([2])),
        };
        new.insert((*name).into(), json!({ "dtype": entry.0, "shape": entry.1, "data_offsets": offsets }));
    }
    safetensors(&Value::Object(new).to_string(), &[data, &vec![0; 8 * others.len()]].concat())
}

/// Returns a folder with the golden model, its tensors renamed, other parts, and a wrapper of its configuration.
fn wrapped(wrapper: &Wrapper, change: &Value, rename: impl Fn(&str) -> String) -> tempfile::TempDir {
    let text = std::fs::read(golden(wrapper.golden).join("config.json")).unwrap();
    let mut text: Map<String, Value> = serde_json::from_slice(&text).unwrap();
    text.remove("architectures");
    for (key, value) in change.as_object().unwrap() {
        if value == "remove" {
            text.remove(key)
        } else {
            text.insert(key.clone(), value.clone())
        };
    }
    let config = json!({
        "architectures": [wrapper.architecture], "model_type": wrapper.model_type, "eos_token_id": [1, 106],
        "text_config": text, "vision_config": { "hidden_size": 8 },
    });
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let file = tensors(wrapper.golden, wrapper.others, rename);
    std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
    folder
}

fn open(folder: &tempfile::TempDir) -> Result<OpenModel> {
    OpenModel::open(folder.path().to_str().unwrap(), None, false)
}

#[test]
fn both_spellings_of_the_tensors_are_read() {
    for wrapper in
        [GEMMA, QWEN, QWEN_MOE, MISTRAL, MINISTRAL, GEMMA_4, GEMMA_4_E, GEMMA_4_MOE, GEMMA_4_UNIFIED]
    {
        let alone = OpenModel::open(golden(wrapper.golden).to_str().unwrap(), None, false).unwrap();
        for prefix in ["language_model.", "model.language_model."] {
            let rename = |name: &str| match prefix {
                "language_model." => format!("language_model.{name}"),
                _ => name.replacen("model.", "model.language_model.", 1),
            };
            let model = open(&wrapped(&wrapper, &json!({}), rename)).unwrap();
            assert_eq!(model.spec, ModelSpec { is_wrapped: true, ..alone.spec }, "{prefix}");
            check_against(&model).unwrap();
            assert_eq!(model.token_ids().eos, [1, 106]);
            let read = |of: &OpenModel| {
                let (mut staging, mut out) = (vec![0; 4096], vec![0.0; 64]);
                of.read_rows("model.layers.1.post_attention_layernorm.weight", 0..64, &mut staging, &mut out)
                    .unwrap();
                out
            };
            assert_eq!(read(&model), read(&alone), "{prefix}");
        }
    }
}

#[test]
fn what_the_inner_configuration_leaves_out_has_the_defaults_of_transformers() {
    let change = json!({ "query_pre_attn_scalar": null, "vocab_size": 97 });
    let spec = open(&wrapped(&GEMMA, &change, str::to_string)).unwrap().spec.file_shape();
    assert_eq!((spec.vocab, spec.attention.scale), (97, Some(0.0625)));
    // As Gemma 3 4B, 12B and 27B are published: a few keys, and none of rotation but the stretching.
    let change = json!({ "rope_theta": "remove", "rope_local_base_freq": "remove", "layer_types": "remove",
        "rms_norm_eps": "remove", "max_position_embeddings": "remove", "vocab_size": "remove",
        "num_hidden_layers": 12, "sliding_window_pattern": "remove", "rope_scaling": { "rope_type": "linear", "factor": 8.0 } });
    let spec = open(&wrapped(&GEMMA, &change, str::to_string)).unwrap().spec.file_shape();
    let window = spec.attention.window.unwrap();
    assert_eq!((spec.rope_theta, window.rope_theta), (1e6, Some(1e4)));
    assert_eq!((spec.vocab, spec.max_positions, spec.rms_eps), (262_208, 131_072, 1e-6));
    assert_eq!(window.layers, LayerSet::all_but_every(6, 12));
    let change = json!({ "vocab_size": "remove", "hidden_size": "remove", "intermediate_size": "remove",
        "num_attention_heads": "remove", "num_key_value_heads": "remove", "head_dim": "remove",
        "num_hidden_layers": "remove", "layer_types": "remove", "model_type": "remove",
        "linear_num_value_heads": "remove", "rms_norm_eps": "remove", "tie_word_embeddings": "remove" });
    let spec = open(&wrapped(&QWEN, &change, str::to_string)).unwrap().spec.file_shape();
    assert_eq!((spec.family, spec.vocab, spec.hidden, spec.ffn), (Family::Qwen35, 248_320, 4096, 12_288));
    assert_eq!((spec.heads, spec.kv_heads, spec.head_dim, spec.layers), (16, 4, 256, 32));
    assert_eq!((spec.delta_layers(), spec.delta.unwrap().each.value_heads, spec.tied), (24, 32, false));
}

#[test]
fn contradictions_are_refused() {
    for (wrapper, change, slug) in [
        (GEMMA, json!({ "layer_types": ["full_attention"] }), "model-config-invalid"),
        (GEMMA, json!({ "model_type": "qwen9" }), "model-unsupported"),
        (GEMMA, json!({ "model_type": "llama" }), "model-unsupported"),
        (GEMMA, json!({ "final_logit_softcapping": 30.0 }), "model-unsupported"),
        (QWEN, json!({ "layer_types": ["full_attention"] }), "model-config-invalid"),
        (QWEN, json!({ "num_hidden_layers": 5 }), "model-config-invalid"),
        (QWEN, json!({ "model_type": "qwen3" }), "model-unsupported"),
        (QWEN, json!({ "model_type": "qwen3_5_moe_text" }), "model-unsupported"),
        (QWEN, json!({ "architectures": ["Qwen3ForCausalLM"] }), "model-unsupported"),
        (MISTRAL, json!({ "model_type": "mistral4" }), "model-unsupported"),
        (MISTRAL, json!({ "model_type": 3 }), "model-unsupported"),
        // Its rule of rotation is another family's.
        (MINISTRAL, json!({ "model_type": "mistral" }), "model-unsupported"),
        (MINISTRAL, json!({ "model_type": "remove" }), "model-unsupported"),
    ] {
        let error = open(&wrapped(&wrapper, &change, |name| format!("language_model.{name}"))).unwrap_err();
        assert_eq!(error.slug, slug, "{change}: {error}");
    }
    // A configuration of other shapes than the tensors have.
    let change = json!({ "linear_value_head_dim": 16 });
    let model = open(&wrapped(&QWEN, &change, |name| format!("language_model.{name}"))).unwrap();
    assert_eq!(check_against(&model).unwrap_err().slug, "model-tensor-shape");
    // Names that are one name without their prefixes.
    let twice = |name: &str| match name {
        "model.norm.weight" => "model.language_model.layers.0.input_layernorm.weight".to_string(),
        name => format!("language_model.{name}"),
    };
    assert_eq!(open(&wrapped(&GEMMA, &json!({}), twice)).unwrap_err().slug, "model-file-corrupt");
}

#[test]
fn what_predicts_further_tokens_is_left_alone_in_a_language_models_own_files() {
    for (name, other, slug) in [
        ("qwen3_5", "mtp.layers.0.mlp.up_proj.weight", None),
        ("qwen3_5", "model.visual.merger.norm.weight", Some("model-tensor-unexpected")),
        ("qwen3_moe", "mtp.layers.0.mlp.up_proj.weight", Some("model-tensor-unexpected")),
        ("qwen3_5_moe", "mtp.layers.0.mlp.shared_expert.up_proj.weight", None),
        ("qwen3_next", "mtp.layers.0.mlp.experts.0.up_proj.weight", None),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(golden(name).join("config.json"), folder.path().join("config.json")).unwrap();
        let file = tensors(name, &[other], str::to_string);
        std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
        let checked = check_against(&open(&folder).unwrap());
        assert_eq!(checked.map_err(|error| error.slug).err(), slug, "{name}: {other}");
    }
}
