//! The folder of a whole model of text and images: its `config.json`, and the names of its text's tensors.

use crate::config::{TokenIds, config_json};
use crate::open::OpenModel;
use crate::wrapped::inner_name;
use plimsoll_arch::{
    Family, Gelu, ModelSpec, RopeAxes, SightSpec, TOWER_PREFIX, TokenRun, TowerMlp, TowerSpec,
};
use plimsoll_base::DType;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Files that some folders have next to it, of films and of all inputs.
pub const PROCESSOR_FILES: [&str; 2] = ["video_preprocessor_config.json", "processor_config.json"];
/// The file that says how images become patches.
pub const PREPROCESSOR: &str = "preprocessor_config.json";
/// The shards of a whole model, text and tower, and the file that says which tensor is in which.
pub const WHOLE_TEXT: &str = "model-00001-of-00002.safetensors";
pub const WHOLE_TOWER: &str = "model-00002-of-00002.safetensors";
pub const WHOLE_INDEX: &str = "model.safetensors.index.json";

/// Classes of transformers, by the `model_type` of a whole model.
const CLASSES: [(&str, &str); 4] = [
    ("qwen3_vl", "Qwen3VLForConditionalGeneration"),
    ("qwen3_5", "Qwen3_5ForConditionalGeneration"),
    ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration"),
    ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
];

/// Returns whether whole models with a text of this family are written: those whose tensors have the text's form.
pub fn is_written_whole(family: Family) -> bool {
    class_of(family).is_some()
}

fn class_of(family: Family) -> Option<(&'static str, &'static str)> {
    CLASSES.into_iter().find(|(of, _)| family.architecture().wrapper == Some(*of))
}

/// Returns the name of a text's tensor in the whole model. Those of a tower have the same.
pub fn whole_name(name: &str) -> String {
    match name.strip_prefix("model.") {
        Some(rest) if !name.starts_with(TOWER_PREFIX) => format!("model.language_model.{rest}"),
        _ => name.to_string(),
    }
}

/// Returns the index of a whole model's shards. `tensors`: the names in each, and the bytes of all.
pub fn whole_index<'n>(tensors: impl Iterator<Item = (&'n str, &'n str)>, bytes: u64) -> Value {
    let of: BTreeMap<&str, &str> = tensors.collect();
    json!({ "metadata": { "total_size": bytes }, "weight_map": of })
}

/// Returns the `config.json` of the whole model whose text and sight these are, with weights in `dtype`: that of its
/// files, or one for a model that has none. None for families that are not written whole.
pub fn whole_config_json(
    model: &OpenModel,
    spec: &ModelSpec,
    sight: &SightSpec,
    dtype: DType,
    ids: &TokenIds,
) -> Option<Value> {
    let (model_type, class) = class_of(spec.family)?;
    let Some(of_files) = &model.seeing else {
        return Some(made((model_type, class), spec, sight, dtype, ids));
    };
    let mut whole = of_files.clone();
    let name = dtype_name(dtype);
    for part in ["", "text_config", "vision_config"] {
        let part = if part.is_empty() { Some(&mut whole) } else { whole.get_mut(part) };
        let Some(map) = part.and_then(Value::as_object_mut) else { continue };
        for key in ["dtype", "torch_dtype"] {
            if let Some(stated) = map.get_mut(key) {
                *stated = name.into();
            }
        }
    }
    Some(whole)
}

fn dtype_name(dtype: DType) -> &'static str {
    if dtype == DType::Bf16 { "bfloat16" } else { "float32" }
}

/// Returns the configuration of a model that came from no file.
fn made(
    (model_type, class): (&str, &str),
    spec: &ModelSpec,
    sight: &SightSpec,
    dtype: DType,
    ids: &TokenIds,
) -> Value {
    let mut text = config_json(spec, dtype, ids);
    let map = text.as_object_mut().expect("a configuration is an object");
    map.remove("architectures");
    map.insert("model_type".into(), inner_name(spec.family).into());
    map.insert("tie_word_embeddings".into(), spec.tied.into());
    put_axes(map, sight.axes);
    let TokenRun { first, count } = sight.placeholders;
    // A model without films has no token for them, and is given one that no text has.
    let films = if count > 1 { 2 * first + 1 - sight.image_token } else { spec.vocab };
    json!({
        "architectures": [class],
        "model_type": model_type,
        "image_token_id": sight.image_token,
        "video_token_id": films,
        "vision_start_token_id": sight.around[0],
        "vision_end_token_id": sight.around[1],
        "tie_word_embeddings": spec.tied,
        "torch_dtype": dtype_name(dtype),
        "text_config": text,
        "vision_config": vision(model_type, &sight.tower),
    })
}

/// Writes how a text's heads take places into its rule of rope.
fn put_axes(text: &mut Map<String, Value>, axes: RopeAxes) {
    let (pairs, is_woven) = match axes {
        RopeAxes::Runs(pairs) => (pairs, false),
        RopeAxes::Woven(pairs) => (pairs, true),
    };
    let key = if text.get("rope_parameters").is_some_and(Value::is_object) {
        "rope_parameters"
    } else {
        "rope_scaling"
    };
    let rule = text.entry(key).or_insert(Value::Null);
    if !rule.is_object() {
        *rule = json!({ "rope_type": "default" });
    }
    let rule = rule.as_object_mut().expect("it was made one");
    rule.insert("mrope_section".into(), json!(pairs));
    if is_woven {
        rule.insert("mrope_interleaved".into(), true.into());
    }
}

/// Returns a tower's part of the file.
fn vision(model_type: &str, tower: &TowerSpec) -> Value {
    let mut config = json!({
        "model_type": model_type,
        "depth": tower.depth,
        "hidden_size": tower.hidden,
        "intermediate_size": tower.ffn,
        "num_heads": tower.heads,
        "in_channels": 3,
        "patch_size": tower.patch,
        "spatial_merge_size": tower.merge,
        "temporal_patch_size": tower.frames,
        "out_hidden_size": tower.out,
        "initializer_range": 0.02,
    });
    let map = config.as_object_mut().expect("the literal above is an object");
    let act = match tower.mlp {
        TowerMlp::Plain(Gelu::Tanh) => "gelu_pytorch_tanh",
        TowerMlp::Plain(Gelu::Erf) => "gelu",
        TowerMlp::Gated(_) => "silu",
    };
    map.insert("hidden_act".into(), act.into());
    if let Some(window) = tower.window {
        let whole: Vec<u32> = (0..tower.depth).filter(|&layer| window.whole.contains(layer)).collect();
        map.insert("window_size".into(), window.pixels.into());
        map.insert("fullatt_block_indexes".into(), json!(whole));
    }
    if let Some(side) = tower.positions {
        map.insert("num_position_embeddings".into(), (side * side).into());
        map.insert("deepstack_visual_indexes".into(), json!(tower.deep.as_slice()));
    }
    config
}
