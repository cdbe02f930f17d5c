//! A language model inside a model of text and images opens as the language model alone.

use crate::common::safetensors;
use plimsoll_base::ModelSpec;
use plimsoll_files::{OpenModel, check_against};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden/gemma3")
}

/// The golden model with its tensors under other names, and two of other parts, in a folder whose configuration wraps its own.
fn wrapped(change: &Value, rename: impl Fn(&str) -> String) -> tempfile::TempDir {
    let file = std::fs::read(golden().join("model.safetensors")).unwrap();
    let (length, rest) = file.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let old: Map<String, Value> = serde_json::from_slice(header).unwrap();
    let tensors = old.into_iter().filter(|(name, _)| name != "__metadata__");
    let mut new: Map<String, Value> = tensors.map(|(name, entry)| (rename(&name), entry)).collect();
    let end = data.len();
    for (i, name) in
        ["vision_tower.embed.weight", "multi_modal_projector.norm.weight"].into_iter().enumerate()
    {
        let offsets = [end + 8 * i, end + 8 * (i + 1)];
        new.insert(name.into(), json!({ "dtype": "F32", "shape": [2], "data_offsets": offsets }));
    }
    let data = [data, &[0; 16]].concat();
    let text: Value = serde_json::from_slice(&std::fs::read(golden().join("config.json")).unwrap()).unwrap();
    let mut text = text.as_object().unwrap().clone();
    text.remove("architectures");
    text.extend(change.as_object().unwrap().clone());
    let config = json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "eos_token_id": [1, 106],
        "text_config": text, "vision_config": { "hidden_size": 8 },
    });
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let header = Value::Object(new).to_string();
    std::fs::write(folder.path().join("model.safetensors"), safetensors(&header, &data)).unwrap();
    folder
}

#[test]
fn both_spellings_of_the_tensors_are_read() {
    let alone = OpenModel::open(golden().to_str().unwrap(), None, false).unwrap();
    for prefix in ["language_model.", "model.language_model."] {
        let rename = |name: &str| match prefix {
            "language_model." => format!("language_model.{name}"),
            _ => name.replacen("model.", "model.language_model.", 1),
        };
        let folder = wrapped(&json!({}), rename);
        let model = OpenModel::open(folder.path().to_str().unwrap(), None, false).unwrap();
        assert_eq!(model.spec, ModelSpec { is_wrapped: true, ..alone.spec }, "{prefix}");
        check_against(&model).unwrap();
        assert_eq!(model.token_ids().eos, [1, 106]);
        let read = |of: &OpenModel| {
            let (mut staging, mut out) = (vec![0; 4096], vec![0.0; 64]);
            of.read_rows("model.layers.1.mlp.up_proj.weight", 3..4, &mut staging, &mut out).unwrap();
            out
        };
        assert_eq!(read(&model), read(&alone), "{prefix}");
    }
}

#[test]
fn what_the_inner_configuration_leaves_out_has_the_defaults_of_transformers() {
    let folder = wrapped(&json!({ "query_pre_attn_scalar": null, "vocab_size": 97 }), str::to_string);
    let spec = OpenModel::open(folder.path().to_str().unwrap(), None, false).unwrap().spec;
    assert_eq!((spec.vocab, spec.attention.scale), (97, Some(0.0625)));
}

#[test]
fn contradictions_are_refused() {
    let open = |folder: &tempfile::TempDir| OpenModel::open(folder.path().to_str().unwrap(), None, false);
    for (change, slug) in [
        (json!({ "layer_types": ["full_attention"] }), "model-config-invalid"),
        (json!({ "model_type": "qwen9" }), "model-unsupported"),
        (json!({ "final_logit_softcapping": 30.0 }), "model-unsupported"),
    ] {
        let error = open(&wrapped(&change, |name| format!("language_model.{name}"))).unwrap_err();
        assert_eq!(error.slug, slug, "{change}: {error}");
    }
    // Names that are one name without their prefixes.
    let twice = |name: &str| match name {
        "model.norm.weight" => "model.language_model.layers.0.input_layernorm.weight".to_string(),
        name => format!("language_model.{name}"),
    };
    assert_eq!(open(&wrapped(&json!({}), twice)).unwrap_err().slug, "model-file-corrupt");
}
