//! Language models inside models of text and images: their part of `config.json`, and their tensors. The other parts are not read.

use crate::tensors::TensorInfo;
use plimsoll_base::{Error, Result, shown};
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// `model_type` of the whole, and what `text_config` leaves to the defaults of transformers.
fn defaults(model_type: &str) -> Option<Value> {
    // Source: transformers `configuration_gemma3.py`, `Gemma3TextConfig`.
    (model_type == "gemma3").then(|| {
        json!({
            "model_type": "gemma3_text", "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216,
            "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
            "max_position_embeddings": 131_072, "sliding_window": 4096, "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 256,
        })
    })
}

/// Prefixes of the language model's tensors: what files have, and what its own files would have.
const TEXT: [(&str, &str); 2] = [("model.language_model.", "model."), ("language_model.", "")];
/// Of the other parts.
const OTHERS: [&str; 4] =
    ["vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."];

/// The configuration of the language model, if `config` wraps one that is known.
pub(crate) fn text_config(config: &Value) -> Option<Value> {
    let of_text = config.get("text_config")?.as_object()?;
    let mut whole: Map<String, Value> = defaults(config.get("model_type")?.as_str()?)?.as_object()?.clone();
    whole.extend(of_text.iter().map(|(key, value)| (key.clone(), value.clone())));
    // The whole decides it where both speak.
    for key in ["tie_word_embeddings", "quantization_config"] {
        whole.extend(config.get(key).map(|value| (key.to_string(), value.clone())));
    }
    Some(whole.into())
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
