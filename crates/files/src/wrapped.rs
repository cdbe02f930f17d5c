//! Language models inside models of text and images: their part of `config.json`, and their tensors. The other parts are not read.

use crate::config::unsupported;
use crate::tensors::TensorInfo;
use plimsoll_base::{Error, Result, shown};
use serde_json::{Value, json};
use std::collections::HashSet;

/// What `text_config` of a `model_type` leaves to the defaults of transformers, if such models are read.
fn defaults(model_type: &str) -> Option<Value> {
    match model_type {
        // Source: transformers `configuration_gemma3.py`, `Gemma3TextConfig`.
        "gemma3" => Some(json!({
            "model_type": "gemma3_text", "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216,
            "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
            "max_position_embeddings": 131_072, "sliding_window": 4096, "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 256,
        })),
        // Source: transformers `configuration_qwen3_5.py`, `Qwen3_5TextConfig`; what is not here is the reader's own default.
        "qwen3_5" => Some(json!({
            "model_type": "qwen3_5_text", "vocab_size": 248_320, "hidden_size": 4096, "intermediate_size": 12_288,
            "num_hidden_layers": 32, "num_attention_heads": 16,
        })),
        _ => None,
    }
}

/// Prefixes of the language model's tensors: what files have, and what its own files would have.
const TEXT: [(&str, &str); 2] = [("model.language_model.", "model."), ("language_model.", "")];
/// Of the other parts: what sees images, and what predicts further tokens.
const OTHERS: [&str; 7] = [
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
    "visual.",
    "model.visual.",
    "mtp.",
];

/// The configuration of the language model, if `config` wraps one that is known.
///
/// Errors: `model-unsupported` for one of another family than the whole has.
pub(crate) fn text_config(config: &Value, file: &str) -> Result<Option<Value>> {
    let of_text = config.get("text_config").and_then(Value::as_object);
    let of_whole = config.get("model_type").and_then(Value::as_str).and_then(defaults);
    let (Some(of_text), Some(Value::Object(mut whole))) = (of_text, of_whole) else { return Ok(None) };
    let family = whole["model_type"].clone();
    whole.extend(of_text.iter().map(|(key, value)| (key.clone(), value.clone())));
    if whole["model_type"] != family {
        let built = family.as_str().unwrap_or_default();
        return Err(unsupported(file, "text_config.model_type", &whole["model_type"], built));
    }
    // The whole decides it where both speak.
    for key in ["tie_word_embeddings", "quantization_config"] {
        whole.extend(config.get(key).map(|value| (key.to_string(), value.clone())));
    }
    Ok(Some(whole.into()))
}

/// The tensors of the language model, under the names that its own files would have.
///
/// Errors: `model-file-corrupt` for two of one name.
pub(crate) fn text_tensors(tensors: Vec<TensorInfo>) -> Result<Vec<TensorInfo>> {
    let mut seen = HashSet::new();
    let is_text = |tensor: &TensorInfo| !OTHERS.iter().any(|prefix| tensor.name.starts_with(prefix));
    let named = tensors.into_iter().filter(is_text).map(|mut tensor| {
        let own =
            TEXT.iter().find_map(|(prefix, to)| Some(format!("{to}{}", tensor.name.strip_prefix(prefix)?)));
        tensor.name = own.unwrap_or(tensor.name);
        if seen.insert(tensor.name.clone()) {
            return Ok(tensor);
        }
        let message = format!("two tensors of the language model are called `{}`", shown(&tensor.name));
        Err(Error::new("model-file-corrupt", message).hint("fetch the model again"))
    });
    named.collect()
}
