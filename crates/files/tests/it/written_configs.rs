//! Written configurations that another reader could take for another model's.

use crate::configs::{GOLDEN, golden, spec, with};
use plimsoll_base::DType;
use plimsoll_files::{TokenIds, config_json};
use serde_json::{Value, json};

#[test]
fn a_base_of_layers_with_windows_is_written_where_a_reader_would_take_another() {
    let rules = |full: Value, base: f64| {
        json!({ "rope_theta": "remove", "rope_scaling": "remove", "rope_local_base_freq": "remove",
            "rope_parameters": {
                "full_attention": full, "sliding_attention": { "rope_type": "default", "rope_theta": base } } })
    };
    let plain = |base: f64| json!({ "rope_type": "default", "rope_theta": base });
    let yarn = json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
        "rope_theta": 850_000.0 });
    for (name, change, is_by_type) in [
        ("olmo3", rules(yarn, 30_000.0), true),
        ("olmo3", rules(plain(1e4), 1e4), true),
        ("olmo3", rules(plain(5e5), 5e5), false),
        ("olmo3", rules(plain(1e6), 5e5), true),
        ("gemma3", rules(plain(1e6), 3e4), false),
    ] {
        let before = spec(&with(name, change.clone())).unwrap();
        let config = config_json(&before, DType::F32, &TokenIds::default());
        assert_eq!(spec(&config).unwrap(), before, "{name} {change}");
        assert_eq!(config.get("rope_parameters").is_some(), is_by_type, "{name} {change}: {config}");
        // One place for a base, or readers could take the other.
        assert_eq!(config.get("rope_theta").is_none(), is_by_type, "{name} {change}: {config}");
        if is_by_type {
            assert_eq!(
                config["rope_parameters"]["sliding_attention"]["rope_theta"],
                change["rope_parameters"]["sliding_attention"]["rope_theta"],
            );
        }
    }
}

#[test]
fn a_written_config_says_that_no_layer_has_a_window_and_no_token_pads() {
    for (name, _) in GOLDEN {
        let before = spec(&golden(name)).unwrap();
        let config = config_json(&before, DType::F32, &TokenIds::default());
        assert_eq!(config.get("pad_token_id"), Some(&Value::Null), "{name}");
        let full = vec!["full_attention"; before.layers.len() as usize];
        let Ok(none) = spec(&with(name, json!({ "layer_types": full }))) else { continue };
        let config = config_json(&none, DType::F32, &TokenIds::default());
        assert_eq!(spec(&config).unwrap(), none, "{name} without windows");
    }
}
