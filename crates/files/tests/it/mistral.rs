//! Mistral Small 3, alone and inside a model of text and images.

use crate::configs::{spec, with};
use plimsoll_arch::ModelSpec;
use serde_json::json;

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
