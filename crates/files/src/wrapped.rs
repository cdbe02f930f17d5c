//! Language models inside models of text and images: their part of `config.json`, and their tensors. Ignores the rest.

use crate::config::{defaults, either, unsupported};
use crate::tensors::TensorInfo;
use plimsoll_arch::{ARCHITECTURES, Family, TOWER_PREFIX};
use plimsoll_base::{Error, Result, shown};
use serde_json::{Map, Value};
use std::collections::HashSet;

/// Returns the families of language models in models of a `model_type`. The first is that of a file that names none.
fn text_families(model_type: &str) -> Vec<Family> {
    ARCHITECTURES.iter().filter(|row| row.wrapper == Some(model_type)).map(|row| row.family).collect()
}

/// Returns the `model_type` of a family's language models in such a model.
pub(crate) fn inner_name(family: Family) -> &'static str {
    family.architecture().wrapped_name.unwrap_or(family.name())
}

/// Models whose older files have the language model's keys next to `vision_config`, and no `text_config`.
const FLAT: [&str; 1] = ["qwen2_5_vl"];

/// Returns the language model's part of a file.
pub(crate) fn of_text(config: &Value) -> Option<Map<String, Value>> {
    if let Some(of_text) = config.get("text_config") {
        return of_text.as_object().cloned();
    }
    let is_flat = FLAT.iter().any(|name| config.get("model_type").is_some_and(|own| own == name));
    let mut own = config.as_object().filter(|_| is_flat)?.clone();
    // They say what the whole is.
    for key in ["model_type", "architectures", "vision_config"] {
        own.remove(key);
    }
    Some(own)
}

/// Returns the object with the rule of rope in a language model's part of a file, where places of images are too.
pub(crate) fn rope_rule(of_text: &Map<String, Value>) -> Option<&Map<String, Value>> {
    let rule = |key: &str| of_text.get(key).filter(|value| !value.is_null());
    rule("rope_parameters").or_else(|| rule("rope_scaling"))?.as_object()
}

/// Returns a value of a language model's part of a file. `mrope` rotates a text as the default does.
fn value_of_text(key: &str, value: &Value) -> Value {
    let mut value = value.clone();
    if let ("rope_parameters" | "rope_scaling", Some(rule)) = (key, value.as_object_mut()) {
        let names = ["rope_type", "type"];
        rule.iter_mut().filter(|(key, kind)| names.contains(&key.as_str()) && *kind == "mrope").for_each(
            |(_, kind)| {
                *kind = "default".into();
            },
        );
    }
    value
}

/// What the language model of a family inside of others does whatever its file says.
const ALWAYS: [(Family, &str); 1] = [(Family::Qwen3Moe, "norm_topk_prob")];

/// Returns the defaults of a `text_config`: its family, sizes that other files must contain, and what is not the
/// family's default.
fn unwritten(family: Family) -> Map<String, Value> {
    let (own, inner) = (defaults::of(family.architecture()), defaults::named(inner_name(family)));
    let is_stated = |key: &str, value| defaults::WRITTEN.contains(&key) || own.get(key) != Some(value);
    let stated = inner.iter().filter(|(key, value)| is_stated(key, value));
    let mut unwritten: Map<_, _> = stated.map(|(key, value)| (key.clone(), value.clone())).collect();
    unwritten.insert("model_type".into(), family.name().into());
    unwritten
}

/// Prefixes of the language model's tensors, and their replacements.
const TEXT: [(&str, &str); 2] = [("model.language_model.", "model."), ("language_model.", "")];
/// Prefixes of the tensors of a tower over images.
const TOWERS: [&str; 2] = [TOWER_PREFIX, "visual."];
/// The prefix of what predicts further tokens, of which a run says that it is left out.
const FURTHER: &str = "mtp.";
/// Prefixes of tensors that are ignored: vision, sound and multi-token prediction.
const OTHERS: [&str; 15] = [
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
    "visual.",
    "model.visual.",
    "vision_embedder.",
    "model.vision_embedder.",
    "embed_vision.",
    "model.embed_vision.",
    "audio_tower.",
    "model.audio_tower.",
    "embed_audio.",
    "model.embed_audio.",
    FURTHER,
];

/// Returns the configuration of the language model, if `config` wraps a known one.
///
/// Errors: `model-unsupported` if its family is none of the whole model's.
pub(crate) fn text_config(config: &Value, file: &str) -> Result<Option<Value>> {
    let of_text = of_text(config);
    let families = config.get("model_type").and_then(Value::as_str).map(text_families).unwrap_or_default();
    let (Some(of_text), Some(first)) = (of_text, families.first()) else { return Ok(None) };
    let family = match of_text.get("model_type") {
        None => first,
        Some(name) => families.iter().find(|family| name == inner_name(**family)).ok_or_else(|| {
            let built = either(families.iter().map(|family| inner_name(*family)));
            unsupported(file, "text_config.model_type", name, &built)
        })?,
    };
    let mut whole = unwritten(*family);
    if of_text.contains_key("num_local_experts") {
        whole.remove("num_experts"); // The same number, under the name of transformers 5.
    }
    whole.extend(of_text.iter().map(|(key, value)| (key.clone(), value_of_text(key, value))));
    whole.insert("model_type".into(), family.name().into());
    let always = ALWAYS.iter().filter(|(of, _)| of == family);
    whole.extend(always.map(|(_, key)| (key.to_string(), true.into())));
    // The outer value takes precedence.
    for key in ["tie_word_embeddings", "quantization_config"] {
        whole.extend(config.get(key).map(|value| (key.to_string(), value.clone())));
    }
    Ok(Some(whole.into()))
}

/// Returns true for a tensor of a part that is not the language model.
pub(crate) fn is_of_other_part(name: &str) -> bool {
    OTHERS.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the tensors of a tower over images, under the names of its table.
///
/// Errors: `model-file-corrupt` for two of one name.
pub(crate) fn tower_tensors(tensors: &[TensorInfo]) -> Result<Vec<TensorInfo>> {
    let own = |tensor: &TensorInfo| {
        let name = TOWERS.iter().find_map(|prefix| tensor.name.strip_prefix(prefix))?;
        Some(TensorInfo { name: format!("{TOWER_PREFIX}{name}"), ..tensor.clone() })
    };
    once_each(tensors.iter().filter_map(own), "tower")
}

/// Returns the tensors of the language model, under the names of a plain model.
///
/// Errors: `model-file-corrupt` for two of one name.
pub(crate) fn text_tensors(tensors: Vec<TensorInfo>) -> Result<Vec<TensorInfo>> {
    let is_text = |tensor: &TensorInfo| !is_of_other_part(&tensor.name) || tensor.name.starts_with(FURTHER);
    let named = tensors.into_iter().filter(is_text).map(|mut tensor| {
        let own =
            TEXT.iter().find_map(|(prefix, to)| Some(format!("{to}{}", tensor.name.strip_prefix(prefix)?)));
        tensor.name = own.unwrap_or(tensor.name);
        tensor
    });
    once_each(named, "language model")
}

/// Collects the tensors of a part of a model, whose names must differ.
fn once_each(tensors: impl Iterator<Item = TensorInfo>, part: &str) -> Result<Vec<TensorInfo>> {
    let mut seen = HashSet::new();
    let unlike = tensors.map(|tensor| {
        if seen.insert(tensor.name.clone()) {
            return Ok(tensor);
        }
        let message = format!("two tensors of the {part} are called `{}`", shown(&tensor.name));
        Err(Error::new("model-file-corrupt", message).hint("fetch the model again"))
    });
    unlike.collect()
}
