//! Gemma 4: heads of two kinds, each with its rule of rotation; and what of the family is refused.

use crate::configs::{golden, spec, with};
use plimsoll_arch::{Family, GlobalHeads, ModelSpec, RopeScaling, SharedKeys, Values};
use plimsoll_base::DType;
use plimsoll_files::{TokenIds, config_json};
use serde_json::{Value, json};

#[test]
fn heads_of_both_kinds_are_read_in_both_forms() {
    let read = spec(&golden("gemma4")).unwrap();
    let of = |layer: u32| {
        let of = read.layer(layer).attention().unwrap();
        (of.heads, of.kv_heads, of.head_dim, of.window, of.own_theta, of.values, of.scale)
    };
    assert_eq!(of(0), (4, 2, 16, Some(16), Some(100.0), Values::Normed, Some(1.0)));
    assert_eq!(of(3), (4, 1, 32, None, None, Values::OfKeys, Some(1.0)));
    let proportional = |share| RopeScaling::Proportional { share, factor: 1.0 };
    assert_eq!((read.rope_theta, read.rope_scaling), (1e4, proportional(0.5)));
    assert_eq!((read.multipliers.logit_cap, read.tied), (Some(3.0), true));
    // As transformers writes it.
    let by_layer = json!({ "2": { "head_dim": 32, "num_key_value_heads": 1 },
        "3": { "head_dim": 32, "num_key_value_heads": 1 } });
    let change = json!({ "per_layer_config": by_layer, "global_head_dim": "remove",
        "num_global_key_value_heads": "remove" });
    assert_eq!(spec(&with("gemma4", change)).unwrap(), read);
    // Without rules, and without numbers of heads: those of transformers.
    let own = spec(&golden("gemma4_own")).unwrap().file_shape();
    let window = own.attention.window.unwrap();
    assert_eq!((own.rope_theta, own.rope_scaling, window.rope_theta), (1e6, proportional(0.25), Some(1e4)));
    let heads =
        |kv_heads, head_dim, keys_are_values| Some(GlobalHeads { kv_heads, head_dim, keys_are_values });
    assert_eq!(own.attention.global, heads(2, 48, false));
    let global = |change| spec(&with("gemma4", change)).unwrap().file_shape().attention.global;
    assert_eq!(global(json!({ "global_head_dim": "remove" })), heads(1, 512, true));
    assert_eq!(global(json!({ "num_global_key_value_heads": null })), heads(2, 32, true));
    assert_eq!(global(json!({ "attention_k_eq_v": false })), heads(2, 32, false));
    for name in ["gemma4", "gemma4_own", "gemma4_moe", "gemma4_e", "gemma4_unified"] {
        let before = spec(&golden(name)).unwrap();
        let config = config_json(&before, DType::Bf16, &TokenIds::default());
        assert_eq!(spec(&config).unwrap(), before, "{name}: {config}");
        for key in ["rope_theta", "rope_scaling"] {
            assert_eq!(config.get(key), None, "{name}: {config}");
        }
    }
}

#[test]
fn the_published_configuration_gives_the_preset() {
    let types = (1..=60).map(|layer| if layer % 6 == 0 { "full_attention" } else { "sliding_attention" });
    let text = json!({
        "attention_bias": false, "attention_dropout": 0.0, "attention_k_eq_v": true, "enable_moe_block": false,
        "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 5376, "hidden_size_per_layer_input": 0,
        "intermediate_size": 21504, "layer_types": types.collect::<Vec<_>>(), "max_position_embeddings": 262_144,
        "model_type": "gemma4_text", "moe_intermediate_size": null, "num_attention_heads": 32, "num_experts": null,
        "num_global_key_value_heads": 4, "num_hidden_layers": 60, "num_key_value_heads": 16,
        "num_kv_shared_layers": 0, "rms_norm_eps": 1e-6, "sliding_window": 1024, "tie_word_embeddings": true,
        "top_k_experts": null, "use_bidirectional_attention": "vision", "use_double_wide_mlp": false,
        "vocab_size": 262_144, "vocab_size_per_layer_input": 262_144,
        "rope_parameters": {
            "full_attention": { "partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional" },
            "sliding_attention": { "rope_theta": 1e4, "rope_type": "default" } },
    });
    let whole = json!({ "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4",
        "text_config": text, "tie_word_embeddings": true, "vision_config": {}, "audio_config": null });
    let preset = ModelSpec::preset("gemma-4-31b").unwrap();
    assert_eq!(preset.family, Family::Gemma4);
    assert_eq!(spec(&whole).unwrap(), ModelSpec { is_wrapped: true, ..preset });
    let written = config_json(&preset, DType::Bf16, &TokenIds::default());
    assert_eq!(spec(&written).unwrap(), preset);
    assert_eq!(written["enable_moe_block"], false);

    let mut whole = whole;
    let types = (1..=30).map(|layer| if layer % 6 == 0 { "full_attention" } else { "sliding_attention" });
    for (key, value) in [
        ("enable_moe_block", json!(true)),
        ("hidden_size", json!(2816)),
        ("intermediate_size", json!(2112)),
        ("layer_types", types.collect::<Vec<_>>().into()),
        ("moe_intermediate_size", json!(704)),
        ("num_attention_heads", json!(16)),
        ("num_experts", json!(128)),
        ("num_global_key_value_heads", json!(2)),
        ("num_hidden_layers", json!(30)),
        ("num_key_value_heads", json!(8)),
        ("top_k_experts", json!(8)),
    ] {
        whole["text_config"][key] = value;
    }
    let preset = ModelSpec::preset("gemma-4-26b-a4b").unwrap();
    assert_eq!(spec(&whole).unwrap(), ModelSpec { is_wrapped: true, ..preset });
    let written = config_json(&preset, DType::Bf16, &TokenIds::default());
    assert_eq!(spec(&written).unwrap(), preset);
    assert_eq!(written["enable_moe_block"], true);
}

const INVALID: &str = "model-config-invalid";
const UNSUPPORTED: &str = "model-unsupported";

fn check(changes: Vec<(Value, &str, &str)>) {
    for (change, slug, words) in changes {
        let (found, message) = spec(&with("gemma4", change.clone())).unwrap_err();
        assert!(found == slug && message.contains(words), "{change}: {found}: {message}");
    }
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    check(vec![
        // As published: the table has a row for each of 262,144 tokens.
        (
            json!({ "hidden_size_per_layer_input": "remove" }),
            UNSUPPORTED,
            "vocab_size_per_layer_input = 262144",
        ),
        (json!({ "num_kv_shared_layers": 4 }), INVALID, "num_kv_shared_layers = 4"),
        (json!({ "num_kv_shared_layers": -1 }), INVALID, "num_kv_shared_layers = -1"),
        (json!({ "num_kv_shared_layers": 2 }), UNSUPPORTED, "num_kv_shared_layers = 2"),
        // Experts that the reference does not read.
        (json!({ "num_experts": 128 }), UNSUPPORTED, "num_experts = 128, built is a dense model"),
        (json!({ "moe_intermediate_size": 704 }), UNSUPPORTED, "moe_intermediate_size = 704"),
        (json!({ "use_bidirectional_attention": "all" }), UNSUPPORTED, "use_bidirectional_attention"),
        (json!({ "attention_bias": true }), UNSUPPORTED, "attention_bias = true"),
        (json!({ "attn_logit_softcapping": 50.0 }), UNSUPPORTED, "attn_logit_softcapping = 50"),
        (json!({ "hidden_activation": "silu" }), UNSUPPORTED, "hidden_activation"),
        (json!({ "quantization_config": { "quant_method": "fp8" } }), UNSUPPORTED, "quantization_config"),
    ]);
}

/// The last layers have neither keys nor values; a file may have them all the same.
#[test]
fn layers_with_keys_of_others_are_those_of_the_file() {
    let own = spec(&golden("gemma4_e")).unwrap();
    assert_eq!((own.inputs, own.file_shape().shared), (Some(16), Some(SharedKeys { layers: 2, wide: true })));
    assert_eq!([0, 1, 2, 3].map(|layer| own.donor(layer)), [None, None, Some(0), Some(1)]);
    assert_eq!([1, 3].map(|layer| own.layer(layer).dense().unwrap().width), [96, 192]);
    let narrow = spec(&with("gemma4_e", json!({ "use_double_wide_mlp": false }))).unwrap();
    assert_eq!(narrow.layer(3).dense().unwrap().width, 96);
    let unified = spec(&with("gemma4_unified", json!({ "num_kv_shared_layers": 1 })));
    assert!(unified.unwrap_err().1.contains("num_kv_shared_layers = 1, built is a layer of each kind"));
}

/// The class without encoders has fewer keys: a file that has them is of another model.
#[test]
fn a_model_without_encoders_has_neither_experts_nor_per_layer_inputs() {
    let [own, plain] = ["gemma4_unified", "gemma4"].map(|name| spec(&golden(name)).unwrap());
    assert_eq!(
        (own.family, own.layer(0), own.layer(1)),
        (Family::Gemma4Unified, plain.layer(0), plain.layer(3))
    );
    for (change, words) in [
        (json!({ "hidden_size_per_layer_input": 256 }), "hidden_size_per_layer_input = 256"),
        (json!({ "num_experts": 128 }), "num_experts = 128, built is a dense model"),
    ] {
        let (found, message) = spec(&with("gemma4_unified", change.clone())).unwrap_err();
        assert!(found == UNSUPPORTED && message.contains(words), "{change}: {found}: {message}");
    }
}

#[test]
fn experts_that_no_decoder_has_are_refused_by_name() {
    for (change, slug, words) in [
        (json!({ "num_experts": 0 }), INVALID, "num_experts = 0"),
        (json!({ "num_experts": null }), INVALID, "num_experts"),
        (json!({ "num_local_experts": 6 }), UNSUPPORTED, "num_local_experts = 6"),
        (json!({ "top_k_experts": 7 }), INVALID, "top_k_experts = 7"),
        (json!({ "top_k_experts": null }), INVALID, "top_k_experts"),
        (json!({ "moe_intermediate_size": 24 }), UNSUPPORTED, "moe_intermediate_size = 24"),
        (json!({ "enable_moe_block": 1 }), INVALID, "enable_moe_block = 1"),
        (json!({ "enable_moe_block": false }), UNSUPPORTED, "num_experts = 6, built is a dense model"),
    ] {
        let (found, message) = spec(&with("gemma4_moe", change.clone())).unwrap_err();
        assert!(found == slug && message.contains(words), "{change}: {found}: {message}");
    }
}

#[test]
fn heads_that_no_decoder_has_are_refused_by_name() {
    let last = json!(["full_attention", "full_attention", "full_attention", "sliding_attention"]);
    let by_layer = |by_layer: Value| {
        json!({ "per_layer_config": by_layer, "global_head_dim": "remove",
            "num_global_key_value_heads": "remove" })
    };
    let own = || json!({ "head_dim": 32, "num_key_value_heads": 1 });
    check(vec![
        (json!({ "layer_types": last }), UNSUPPORTED, "built is full_attention in the last layer"),
        (json!({ "layer_types": "remove" }), UNSUPPORTED, "built is full_attention in the last layer"),
        (json!({ "global_head_dim": 0 }), INVALID, "global_head_dim = 0"),
        (json!({ "global_head_dim": 33 }), UNSUPPORTED, "global_head_dim = 33"),
        (json!({ "global_head_dim": 1 << 17 }), INVALID, "global_head_dim = 131072"),
        (json!({ "global_head_dim": 2 }), UNSUPPORTED, "partial_rotary_factor = 0.5"),
        (json!({ "num_global_key_value_heads": 3 }), UNSUPPORTED, "num_global_key_value_heads = 3"),
        (json!({ "num_global_key_value_heads": 8 }), INVALID, "num_global_key_value_heads = 8"),
        (json!({ "num_global_key_value_heads": 0 }), INVALID, "num_global_key_value_heads = 0"),
        (json!({ "attention_k_eq_v": 1 }), INVALID, "attention_k_eq_v = 1"),
        (by_layer(json!({ "2": own() })), UNSUPPORTED, "per_layer_config"),
        (by_layer(json!({ "2": own(), "3": own(), "0": own() })), UNSUPPORTED, "per_layer_config"),
        (by_layer(json!({ "2": own(), "3": own(), "9": own() })), UNSUPPORTED, "per_layer_config"),
        (by_layer(json!({ "2": own(), "3": { "rms_norm_eps": 1.0 } })), UNSUPPORTED, "per_layer_config"),
        (by_layer(json!([1])), UNSUPPORTED, "per_layer_config"),
        (by_layer(json!({ "2": 1, "3": 1 })), UNSUPPORTED, "per_layer_config"),
    ]);
}

#[test]
fn rules_of_rotation_that_are_not_built_are_refused_by_name() {
    let full = json!({ "partial_rotary_factor": 0.5, "rope_theta": 1e4, "rope_type": "proportional" });
    let local = json!({ "rope_theta": 100.0, "rope_type": "default" });
    let rules = |full: &Value, local: &Value| json!({ "rope_parameters": { "full_attention": full, "sliding_attention": local } });
    let changed = |of: &Value, key: &str, value: Value| {
        let mut of = of.clone();
        of[key] = value;
        of
    };
    let of_full = |key: &str, value: Value| rules(&changed(&full, key, value), &local);
    let of_local = |key: &str, value: Value| rules(&full, &changed(&local, key, value));
    assert_eq!(spec(&with("gemma4", rules(&full, &local))), spec(&golden("gemma4")));
    // A whole head.
    let whole = of_full("partial_rotary_factor", json!(1.0));
    let scaling = spec(&with("gemma4", whole)).unwrap().rope_scaling;
    assert_eq!(scaling, RopeScaling::Proportional { share: 1.0, factor: 1.0 });
    check(vec![
        (of_full("rope_type", json!("yarn")), UNSUPPORTED, "rope_type = \"yarn\""),
        (of_full("rope_type", json!(null)), UNSUPPORTED, "rope_type = null"),
        (of_full("rope_type", json!("default")), UNSUPPORTED, "partial_rotary_factor = 0.5, built is 1"),
        (of_full("partial_rotary_factor", json!(0)), INVALID, "partial_rotary_factor = 0"),
        (of_full("partial_rotary_factor", json!(1.5)), INVALID, "partial_rotary_factor = 1.5"),
        (of_full("partial_rotary_factor", json!(0.01)), UNSUPPORTED, "partial_rotary_factor = 0.01"),
        (of_full("factor", json!(-1)), INVALID, "factor = -1"),
        (of_full("rope_theta", json!(null)), INVALID, "`rope_theta` is absent"),
        (of_local("rope_type", json!("proportional")), UNSUPPORTED, "sliding_attention: rope_type"),
        (of_local("partial_rotary_factor", json!(0.5)), UNSUPPORTED, "partial_rotary_factor = 0.5"),
        (of_local("rope_theta", json!("far")), INVALID, "rope_theta"),
        (json!({ "rope_parameters": { "full_attention": full } }), INVALID, "`sliding_attention` is absent"),
        (json!({ "rope_parameters": full }), INVALID, "`full_attention` is absent"),
        (json!({ "rope_scaling": full }), UNSUPPORTED, "rope_scaling"),
    ]);
}
