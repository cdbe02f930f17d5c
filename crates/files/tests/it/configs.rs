//! `config.json` to a spec and back: the golden models, what is refused, what is wrong.

use plimsoll_arch::{
    Attention, ExpertsSpec, Family, FileShape, LayerSet, LayersWith, ModelSpec, Multipliers, QkNorms,
    RopeScaling, Window,
};
use plimsoll_base::DType;
use plimsoll_files::{TokenIds, config_json, generation_config_json, spec_from_config, token_ids};
use serde_json::{Value, json};

pub const GOLDEN: [(&str, &str); 35] = [
    ("llama", include_str!("../configs/llama.json")),
    ("qwen2", include_str!("../configs/qwen2.json")),
    ("qwen3", include_str!("../configs/qwen3.json")),
    ("mistral", include_str!("../configs/mistral.json")),
    ("llama3_rope", include_str!("../configs/llama3_rope.json")),
    ("qwen3_yarn", include_str!("../configs/qwen3_yarn.json")),
    ("qwen2_yarn", include_str!("../configs/qwen2_yarn.json")),
    ("mistral_window", include_str!("../configs/mistral_window.json")),
    ("qwen2_window", include_str!("../configs/qwen2_window.json")),
    ("smollm3", include_str!("../configs/smollm3.json")),
    ("olmo2", include_str!("../configs/olmo2.json")),
    ("olmo3", include_str!("../configs/olmo3.json")),
    ("gemma2", include_str!("../configs/gemma2.json")),
    ("gemma3", include_str!("../configs/gemma3.json")),
    ("granite", include_str!("../configs/granite.json")),
    ("llama_bias", include_str!("../configs/llama_bias.json")),
    ("phi3", include_str!("../configs/phi3.json")),
    ("phi4_mini", include_str!("../configs/phi4_mini.json")),
    ("phi4_mini_long", include_str!("../configs/phi4_mini_long.json")),
    ("qwen3_moe", include_str!("../configs/qwen3_moe.json")),
    ("qwen3_moe_mixed", include_str!("../configs/qwen3_moe_mixed.json")),
    ("qwen3_5", include_str!("../configs/qwen3_5.json")),
    ("qwen3_5_wide", include_str!("../configs/qwen3_5_wide.json")),
    ("qwen3_5_moe", include_str!("../configs/qwen3_5_moe.json")),
    ("qwen3_next", include_str!("../configs/qwen3_next.json")),
    ("glm4_moe", include_str!("../configs/glm4_moe.json")),
    ("glm4_moe_groups", include_str!("../configs/glm4_moe_groups.json")),
    ("ministral3", include_str!("../configs/ministral3.json")),
    ("ministral3_window", include_str!("../configs/ministral3_window.json")),
    ("gemma4", include_str!("../configs/gemma4.json")),
    ("gemma4_own", include_str!("../configs/gemma4_own.json")),
    ("gemma4_moe", include_str!("../configs/gemma4_moe.json")),
    ("gemma4_e", include_str!("../configs/gemma4_e.json")),
    ("gemma4_unified", include_str!("../configs/gemma4_unified.json")),
    ("gpt_oss", include_str!("../configs/gpt_oss.json")),
];

pub fn golden(name: &str) -> Value {
    let (_, text) = GOLDEN.iter().find(|(n, _)| *n == name).expect("one of them");
    serde_json::from_str(text).expect("a golden config is JSON")
}

/// A golden config with some keys replaced; `null` removes a key.
pub fn with(name: &str, change: Value) -> Value {
    let mut config = golden(name);
    let map = config.as_object_mut().unwrap();
    for (key, value) in change.as_object().unwrap() {
        let _old = if value == "remove" { map.remove(key) } else { map.insert(key.clone(), value.clone()) };
    }
    config
}

pub fn spec(config: &Value) -> Result<ModelSpec, (&'static str, String)> {
    spec_from_config(config, "config.json").map_err(|e| (e.slug, e.message))
}

fn shape(config: &Value) -> FileShape {
    spec(config).unwrap().file_shape()
}

#[test]
fn the_golden_configs_give_their_shapes() {
    let llama = FileShape {
        family: Family::Llama,
        vocab: 260,
        hidden: 64,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        ffn: 96,
        rms_eps: 1e-5,
        rope_theta: 1e4,
        tied: true,
        max_positions: 256,
        ..FileShape::PLAIN
    };
    let scaled = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 32,
    };
    for (name, expect) in [
        ("llama", llama),
        ("llama3_rope", FileShape { rope_scaling: scaled, ..llama }),
        ("mistral", FileShape { family: Family::Mistral, ..llama }),
        (
            "qwen2",
            FileShape {
                family: Family::Qwen2,
                rms_eps: 1e-6,
                rope_theta: 1e6,
                tied: false,
                qkv_bias: true,
                ..llama
            },
        ),
        (
            "qwen3",
            FileShape {
                family: Family::Qwen3,
                rms_eps: 1e-6,
                rope_theta: 1e6,
                head_dim: 32,
                qk_norms: Some(QkNorms::Heads),
                ..llama
            },
        ),
    ] {
        assert_eq!(spec(&golden(name)).unwrap(), expect.spec(), "{name}");
    }
}

/// The table is compared with transformers by `bench/defaults.py`.
#[test]
fn a_key_that_is_left_out_is_what_the_table_says() {
    let table: Value = serde_json::from_str(include_str!("../../src/config/defaults.json")).unwrap();
    let written =
        ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"];
    let experts = [
        "num_experts",
        "num_experts_per_tok",
        "n_routed_experts",
        "n_shared_experts",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
    ];
    for (name, _) in GOLDEN {
        let family = spec(&golden(name)).unwrap().family;
        for (key, value) in table[family.name()].as_object().unwrap() {
            let without = spec(&with(name, json!({ key: "remove" })));
            if written.contains(&key.as_str()) || experts.contains(&key.as_str()) {
                let (slug, message) = without.unwrap_err();
                assert_eq!(slug, "model-config-invalid", "{name} without {key}: {message}");
                continue;
            }
            assert_eq!(without, spec(&with(name, json!({ key: value }))), "{name} without {key}");
        }
    }
    let eps = |name: &str| spec(&with(name, json!({ "rms_norm_eps": "remove" }))).unwrap().rms_eps;
    assert_eq!(["olmo2", "olmo3", "phi3", "llama"].map(eps), [1e-5, 1e-5, 1e-5, 1e-6]);
    let olmo = shape(&with("olmo3", json!({ "rope_theta": "remove", "rope_parameters": "remove" })));
    assert_eq!((olmo.rope_theta, olmo.attention.window.unwrap().rope_theta), (5e5, Some(5e5)));
    let gemma = shape(&with("gemma3", json!({ "rope_local_base_freq": "remove" })));
    assert_eq!(gemma.attention.window.unwrap().rope_theta, Some(1e4));
}

#[test]
fn experts_are_counted_under_either_name() {
    let of = |change| spec(&with("qwen3_moe", change));
    let count = |change| of(change).unwrap().file_shape().experts.unwrap().each.count;
    let golden = count(json!({}));
    assert_eq!(count(json!({ "num_experts": "remove", "num_local_experts": golden })), golden);
    assert_eq!(count(json!({ "num_local_experts": golden })), golden);
    let (slug, message) = of(json!({ "num_local_experts": golden + 1 })).unwrap_err();
    assert_eq!(slug, "model-config-invalid");
    assert!(message.contains(&format!("num_experts = {golden}, and num_local_experts")), "{message}");
    let (slug, message) = spec(&with("qwen3", json!({ "num_local_experts": 4 }))).unwrap_err();
    assert_eq!(slug, "model-unsupported", "{message}");
}

#[test]
fn a_window_of_null_is_none() {
    let change = json!({ "sliding_window": null, "layer_types": "remove" });
    assert_eq!(shape(&with("qwen2_window", change)).attention.window, None);
    let change = json!({ "sliding_window": null });
    assert_eq!(shape(&with("mistral_window", change)).attention.window, None);
}

#[test]
fn experts_are_read_with_the_layers_that_have_them() {
    let of = |change| shape(&with("qwen3_moe_mixed", change)).experts.unwrap();
    let mixed = of(json!({}));
    let expect = LayersWith {
        layers: LayerSet::every(2, 4),
        each: ExpertsSpec {
            count: 5,
            chosen: 3,
            ffn: 16,
            normalizes: false,
            sigmoid: None,
            balance: 0.001,
            shared: None,
            gates_shared: true,
            is_fused: false,
            biased: false,
        },
    };
    assert_eq!(mixed, expect);
    let dense = |layers: &[u32]| LayerSet::of(4, |layer| !layers.contains(&layer));
    for (change, layers) in [
        (json!({ "mlp_only_layers": "remove" }), dense(&[])),
        (json!({ "mlp_only_layers": [3], "decoder_sparse_step": 2 }), dense(&[0, 2, 3])),
        (json!({ "mlp_only_layers": null, "decoder_sparse_step": 4 }), dense(&[0, 1, 2])),
    ] {
        assert_eq!(of(change.clone()).layers, layers, "{change}");
    }
    assert_eq!(of(json!({ "router_aux_loss_coef": 0.25 })).each.balance, 0.25);
    assert_eq!(of(json!({ "router_aux_loss_coef": "remove" })).each.balance, 0.001);
    assert!(!of(json!({ "norm_topk_prob": "remove" })).each.normalizes, "as transformers has it");
}

#[test]
fn experts_that_cannot_be_are_named() {
    for (change, slug, words) in [
        (json!({ "num_experts": 0 }), "model-config-invalid", "num_experts = 0, wanted is 1 to 512"),
        (json!({ "num_experts": 513 }), "model-config-invalid", "num_experts = 513"),
        (json!({ "num_experts": "remove" }), "model-config-invalid", "num_experts"),
        (json!({ "num_experts_per_tok": 0 }), "model-config-invalid", "num_experts_per_tok = 0"),
        (
            json!({ "num_experts_per_tok": 7 }),
            "model-config-invalid",
            "num_experts_per_tok = 7, wanted is 1 to 6",
        ),
        (
            json!({ "num_experts": 64, "num_experts_per_tok": 33 }),
            "model-config-invalid",
            "num_experts_per_tok = 33, wanted is 1 to 32",
        ),
        (json!({ "router_aux_loss_coef": "NaN" }), "model-config-invalid", "router_aux_loss_coef = \"NaN\""),
        (json!({ "router_aux_loss_coef": -0.1 }), "model-config-invalid", "router_aux_loss_coef = -0.1"),
        (json!({ "router_aux_loss_coef": 1e300 }), "model-config-invalid", "router_aux_loss_coef"),
        (json!({ "mlp_only_layers": [2] }), "model-config-invalid", "mlp_only_layers = [2]"),
        (json!({ "mlp_only_layers": [-1] }), "model-config-invalid", "mlp_only_layers = [-1]"),
        (json!({ "mlp_only_layers": 1 }), "model-config-invalid", "mlp_only_layers = 1"),
        (json!({ "mlp_only_layers": [0, 1] }), "model-config-invalid", "no layer with experts"),
        (json!({ "decoder_sparse_step": 3 }), "model-config-invalid", "no layer with experts"),
        (json!({ "decoder_sparse_step": 0 }), "model-config-invalid", "decoder_sparse_step = 0"),
        (json!({ "moe_intermediate_size": 0 }), "model-config-invalid", "moe_intermediate_size = 0"),
        (json!({ "moe_intermediate_size": 24 }), "model-unsupported", "moe_intermediate_size = 24"),
        (json!({ "hidden_size": 72 }), "model-unsupported", "hidden_size = 72"),
        (json!({ "norm_topk_prob": 1 }), "model-config-invalid", "norm_topk_prob = 1"),
        (json!({ "use_sliding_window": true }), "model-unsupported", "use_sliding_window = true"),
    ] {
        let error = spec_from_config(&with("qwen3_moe", change.clone()), "config.json").unwrap_err();
        assert_eq!(error.slug, slug, "{change}: {error}");
        assert!(error.message.contains(words) && !error.hints.is_empty(), "{change}: {error}");
    }
}

#[test]
fn layers_that_differ_are_read() {
    let of = |name: &str| shape(&golden(name));
    let window = |layers, rope_theta| Some(Window { keys: 16, layers, rope_theta });
    assert_eq!(of("mistral_window").attention.window, window(LayerSet::of(2, |_| true), None));
    assert_eq!(of("qwen2_window").attention.window, window(LayerSet::of(4, |layer| layer >= 2), None));
    let olmo = of("olmo3");
    assert_eq!(olmo.attention.window, window(LayerSet::all_but_every(4, 4), Some(olmo.rope_theta)));
    let gemma = of("gemma2");
    assert_eq!(gemma.attention.window, window(LayerSet::all_but_every(2, 2), None));
    assert_eq!((gemma.attention.score_cap, gemma.multipliers.logit_cap), (Some(5.0), Some(3.0)));
    // Without a key the family's, with null none.
    let caps = |value: Value| {
        let change = json!({ "attn_logit_softcapping": value, "final_logit_softcapping": value });
        let spec = shape(&with("gemma2", change));
        (spec.attention.score_cap, spec.multipliers.logit_cap)
    };
    assert_eq!([caps(json!("remove")), caps(Value::Null)], [(Some(50.0), Some(30.0)), (None, None)]);
    let gemma = of("gemma3");
    assert_eq!(gemma.attention.window.unwrap().rope_theta, Some(1e4));
    assert!((gemma.attention.scale.unwrap() - 24f32.powf(-0.5)).abs() < 1e-7);
    assert_eq!(of("smollm3").attention.unrotated, LayerSet::every(4, 4));
    let granite = of("granite");
    assert_eq!(
        granite.multipliers,
        Multipliers { embedding: 3.0, residual: 0.4, logits: 2.0, logit_cap: None }
    );
    assert_eq!(granite.attention.scale, Some(0.15625));
    // Without the list the family's rule holds; a Mistral without the key has the window of transformers' default.
    for (name, change) in [
        ("olmo3", json!({ "layer_types": "remove" })),
        ("gemma2", json!({ "layer_types": "remove" })),
        ("gemma3", json!({ "layer_types": "remove", "sliding_window_pattern": 2 })),
        ("smollm3", json!({ "no_rope_layers": "remove" })),
        ("qwen2_window", json!({ "layer_types": "remove" })),
    ] {
        assert_eq!(shape(&with(name, change)), of(name), "{name}");
    }
    let unnamed = with("mistral", json!({ "sliding_window": "remove", "max_position_embeddings": 8192 }));
    assert_eq!(spec(&unnamed).unwrap().attentions().next().unwrap().window, Some(4096));
}

#[test]
fn transformers_5_writes_a_rotary_rule_for_each_type_of_layer() {
    let rules = json!({
        "full_attention": { "rope_type": "linear", "factor": 8.0, "rope_theta": 1e6 },
        "sliding_attention": { "rope_type": "default", "rope_theta": 1e4 },
    });
    let change = json!({ "rope_theta": "remove", "rope_scaling": "remove", "rope_local_base_freq": "remove",
        "rope_parameters": rules });
    let spec_of = spec(&with("gemma3", change)).unwrap();
    assert_eq!((spec_of.rope_theta, spec_of.rope_scaling), (1e6, RopeScaling::Linear { factor: 8.0 }));
    assert_eq!(spec_of.file_shape().attention.window.unwrap().rope_theta, Some(1e4));
}

#[test]
fn the_rules_of_yarn_are_read() {
    let yarn = |extra: Value| {
        let mut rule = json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64 });
        rule.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        spec(&with("llama", json!({ "rope_scaling": rule })))
    };
    let factor_of = |extra: Value| match yarn(extra).unwrap().rope_scaling {
        RopeScaling::Yarn { attention_factor, original_max_position_embeddings: 64, .. } => attention_factor,
        other => panic!("{other:?}"),
    };
    let published = 0.1 * 4f64.ln() + 1.0;
    assert!((factor_of(json!({})) - published).abs() < 1e-12);
    assert_eq!(factor_of(json!({ "attention_factor": 0.5 })), 0.5);
    // Both or neither.
    assert!((factor_of(json!({ "mscale": 2.0 })) - published).abs() < 1e-12);
    assert!((factor_of(json!({ "mscale": 0.7, "mscale_all_dim": 0.7 })) - 1.0).abs() < 1e-12);
    let without = spec(&with("llama", json!({ "rope_scaling": { "type": "yarn", "factor": 2.0 } }))).unwrap();
    assert!(matches!(without.rope_scaling, RopeScaling::Yarn { original_max_position_embeddings: 256, .. }));
    for (extra, words) in [
        (json!({ "factor": "four" }), "factor"),
        (json!({ "factor": -1.0 }), "factor = -1"),
        (json!({ "beta_fast": 1.0, "beta_slow": 2.0 }), "beta_fast = 1"),
        (json!({ "original_max_position_embeddings": 0 }), "original_max_position_embeddings = 0"),
        (json!({ "truncate": 3 }), "truncate = 3"),
    ] {
        let (slug, message) = yarn(extra.clone()).unwrap_err();
        assert_eq!(slug, "model-config-invalid", "{extra}: {message}");
        assert!(message.contains(words), "{extra}: {message}");
    }
}

#[test]
fn part_of_a_head_is_rotated_by_factors_of_its_own() {
    let of = |name: &str| shape(&golden(name));
    let phi = of("phi4_mini");
    assert_eq!((phi.family, phi.attention.rotated, phi.rotary_width()), (Family::Phi3, Some(12), 12));
    let RopeScaling::LongRope { short_factor, long_factor, original_max_position_embeddings } =
        phi.rope_scaling
    else {
        panic!("{:?}", phi.rope_scaling);
    };
    assert_eq!(original_max_position_embeddings, 64);
    assert_eq!((short_factor.as_slice()[5], long_factor.as_slice()[5]), (1.5, 9.5));
    assert_eq!((of("phi3").attention.rotated, of("phi3").rope_scaling), (None, RopeScaling::None));
    // Older names, and the key where it is not written; a window as long as the context is none.
    let rule = golden("phi4_mini")["rope_scaling"].clone();
    let with_rule = |extra: Value| {
        let mut rule = rule.clone();
        rule.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        spec(&with("phi4_mini", json!({ "rope_scaling": rule })))
    };
    assert_eq!(with_rule(json!({ "type": "su" })).unwrap(), phi.spec());
    assert_eq!(with_rule(json!({ "type": "yarn" })).unwrap(), phi.spec());
    let unset = spec(&with("phi4_mini", json!({ "original_max_position_embeddings": "remove" }))).unwrap();
    assert!(matches!(
        unset.rope_scaling,
        RopeScaling::LongRope { original_max_position_embeddings: 4096, .. }
    ));
    let window = |keys: Value| {
        let spec = spec(&with("phi3", json!({ "sliding_window": keys }))).unwrap();
        spec.layer(1).attention().unwrap().window
    };
    assert_eq!([json!(100), json!(256), json!("remove")].map(window), [Some(100), None, None]);
    for (extra, words) in [
        (json!({ "short_factor": [1.0, 1.0] }), "short_factor = [1.0,1.0], expected 6 positive numbers"),
        (json!({ "long_factor": [1, 1, 1, 1, 1, 1, 1] }), "long_factor"),
        (json!({ "long_factor": [1, 1, "NaN", 1, 1, 1] }), "long_factor"),
        (json!({ "long_factor": [1, 1, null, 1, 1, 1] }), "long_factor"),
        (json!({ "long_factor": [1, 1, 0, 1, 1, 1] }), "long_factor"),
        (json!({ "long_factor": [1, 1, -3, 1, 1, 1] }), "long_factor"),
        (json!({ "long_factor": [1, 1, 1e300, 1, 1, 1] }), "long_factor"),
        (json!({ "long_factor": null }), "`long_factor` is absent"),
        (json!({ "short_factor": 3 }), "short_factor = 3"),
    ] {
        let (slug, message) = with_rule(extra.clone()).unwrap_err();
        assert_eq!(slug, "model-config-invalid", "{extra}: {message}");
        assert!(message.contains(words), "{extra}: {message}");
    }
    let (slug, message) = with_rule(json!({ "attention_factor": 1.5 })).unwrap_err();
    assert_eq!((slug, message.contains("attention_factor = 1.5")), ("model-unsupported", true), "{message}");
    for (factor, words) in [
        (json!(0), "partial_rotary_factor = 0"),
        (json!(-0.5), "partial_rotary_factor = -0.5"),
        (json!(1.5), "partial_rotary_factor = 1.5"),
        (json!("NaN"), "partial_rotary_factor"),
        (json!(0.01), "rotates 0 of 16"),
        (json!(0.7), "rotates 11 of 16"),
    ] {
        let change = json!({ "partial_rotary_factor": factor });
        let (slug, message) = spec(&with("phi4_mini", change)).unwrap_err();
        assert_eq!(slug, "model-config-invalid", "{factor}: {message}");
        assert!(message.contains(words), "{factor}: {message}");
    }
    for original in [json!(0), json!(1), json!("many")] {
        let change = json!({ "original_max_position_embeddings": original });
        let (slug, message) = spec(&with("phi4_mini", change)).unwrap_err();
        assert_eq!(slug, "model-config-invalid", "{message}");
    }
}

#[test]
fn the_written_width_of_a_rotation_reads_back() {
    for (head_dim, rotated) in [(96, 94), (80, 32), (112, 58), (100, 58), (14, 10), (128, 96)] {
        let before = shape(&golden("phi3"));
        let attention = Attention { rotated: Some(rotated), ..before.attention };
        let before = FileShape { head_dim, attention, ..before }.spec();
        let config = config_json(&before, DType::F32, &TokenIds::default());
        assert_eq!(spec(&config).unwrap(), before, "{rotated} of {head_dim}");
    }
}

#[test]
fn layers_that_contradict_each_other_are_refused() {
    for (name, change, words) in [
        ("olmo3", json!({ "sliding_window": 0 }), "sliding_window = 0"),
        ("olmo3", json!({ "layer_types": ["full_attention"] }), "layer_types names 1 layers"),
        ("olmo3", json!({ "layer_types": "sliding" }), "layer_types names 0 layers"),
        (
            "olmo3",
            json!({ "layer_types": "remove", "sliding_window_pattern": 0 }),
            "sliding_window_pattern = 0",
        ),
        ("smollm3", json!({ "no_rope_layers": [1, 1] }), "no_rope_layers"),
        ("smollm3", json!({ "no_rope_layers": [1, 1, 1, 7] }), "no_rope_layers"),
        (
            "smollm3",
            json!({ "no_rope_layers": "remove", "no_rope_layer_interval": 0 }),
            "no_rope_layer_interval = 0",
        ),
        (
            "qwen2_window",
            json!({ "layer_types": "remove", "max_window_layers": -1 }),
            "max_window_layers = -1",
        ),
        ("granite", json!({ "residual_multiplier": 0.0 }), "residual_multiplier = 0"),
        ("granite", json!({ "attention_multiplier": "much" }), "attention_multiplier"),
        ("gemma3", json!({ "query_pre_attn_scalar": 0 }), "query_pre_attn_scalar = 0"),
        ("gemma2", json!({ "attn_logit_softcapping": 0 }), "attn_logit_softcapping = 0"),
        ("gemma2", json!({ "final_logit_softcapping": -30.0 }), "final_logit_softcapping = -30"),
    ] {
        let (slug, message) = spec(&with(name, change.clone())).unwrap_err();
        assert_eq!(slug, "model-config-invalid", "{change}: {message}");
        assert!(message.contains(words), "{change}: {message}");
    }
}

#[test]
fn a_written_config_reads_back_as_the_same_spec() {
    let ids = TokenIds { eos: vec![257, 3], bos: Some(256), pad: Some(0) };
    for (name, _) in GOLDEN {
        let before = spec(&golden(name)).unwrap();
        let config = config_json(&before, DType::Bf16, &ids);
        assert_eq!(spec(&config).unwrap(), before, "{name}");
        assert_eq!(token_ids(&config, None), ids);
        assert_eq!(config["architectures"], golden(name)["architectures"], "{name}");
        assert_eq!(config["rms_norm_eps"].to_string(), golden(name)["rms_norm_eps"].to_string(), "{name}");
    }
    assert_eq!(token_ids(&json!({}), Some(&generation_config_json(&ids))), ids);
}

#[test]
fn both_spellings_of_rope_are_read() {
    let linear = RopeScaling::Linear { factor: 2.0 };
    for (change, theta, scaling) in [
        (json!({ "rope_scaling": { "type": "linear", "factor": 2.0 } }), 1e4, linear),
        (json!({ "rope_scaling": { "rope_type": "default" } }), 1e4, RopeScaling::None),
        (
            json!({ "rope_scaling": { "type": "dynamic", "factor": 2.0 } }),
            1e4,
            RopeScaling::Dynamic { factor: 2.0 },
        ),
        (json!({ "rope_theta": "remove" }), 1e4, RopeScaling::None),
        (
            json!({ "rope_theta": "remove", "rope_scaling": "remove",
                    "rope_parameters": { "rope_type": "linear", "factor": 2, "rope_theta": 5e5 } }),
            5e5,
            linear,
        ),
        (json!({ "rope_parameters": { "rope_theta": 7.0 } }), 7.0, RopeScaling::None),
    ] {
        let spec = spec(&with("llama", change.clone())).unwrap();
        assert_eq!((spec.rope_theta, spec.rope_scaling), (theta, scaling), "{change}");
    }
}

#[test]
fn what_is_not_built_is_refused_by_key_and_value() {
    for (name, change, words) in [
        ("llama", json!({ "model_type": "gemma3" }), "model_type = \"gemma3\""),
        (
            "llama",
            json!({ "architectures": ["LlamaForSequenceClassification"] }),
            "LlamaForSequenceClassification",
        ),
        ("llama", json!({ "model_type": "remove", "architectures": ["GPT2LMHeadModel"] }), "GPT2LMHeadModel"),
        ("llama", json!({ "hidden_act": "gelu" }), "hidden_act = \"gelu\""),
        ("mistral", json!({ "attention_bias": true }), "attention_bias = true"),
        ("qwen3", json!({ "mlp_bias": true }), "mlp_bias = true"),
        ("llama", json!({ "head_dim": 15 }), "head_dim = 15"),
        ("llama", json!({ "num_local_experts": 8 }), "num_local_experts = 8"),
        ("qwen3", json!({ "num_experts": 128 }), "num_experts = 128"),
        ("llama", json!({ "quantization_config": { "bits": 4 } }), "quantization_config"),
        (
            "llama",
            json!({ "rope_scaling": { "rope_type": "longrope", "factor": 4.0 } }),
            "rope_type = \"longrope\"",
        ),
        ("phi3", json!({ "rope_scaling": { "type": "dynamic", "factor": 4.0 } }), "rope_type = \"dynamic\""),
        ("phi3", json!({ "rope_scaling": { "type": "linear", "factor": 4.0 } }), "rope_type = \"linear\""),
        ("phi3", json!({ "attention_bias": true }), "attention_bias = true"),
        (
            "llama",
            json!({ "rope_parameters": { "full_attention": { "rope_theta": 1e4 } } }),
            "rope_parameters",
        ),
        ("llama", json!({ "partial_rotary_factor": 0.5 }), "partial_rotary_factor = 0.5"),
        ("llama", json!({ "use_sliding_window": true, "sliding_window": 128 }), "use_sliding_window = true"),
        ("gemma3", json!({ "final_logit_softcapping": 30.0 }), "final_logit_softcapping = 30"),
        ("llama", json!({ "attn_logit_softcapping": 50.0 }), "attn_logit_softcapping = 50"),
        ("gemma3", json!({ "hidden_activation": "silu" }), "hidden_activation = \"silu\""),
        ("gemma3", json!({ "use_bidirectional_attention": true }), "use_bidirectional_attention = true"),
        (
            "olmo3",
            json!({ "layer_types": ["full_attention", "linear_attention", "full_attention", "full_attention"] }),
            "layer_types = \"linear_attention\"",
        ),
        ("smollm3", json!({ "use_sliding_window": true }), "use_sliding_window = true"),
        ("qwen2", json!({ "layer_types": ["full_attention", "sliding_attention"] }), "layer_types"),
    ] {
        let (slug, message) = spec(&with(name, change.clone())).unwrap_err();
        assert_eq!(slug, "model-unsupported", "{change}: {message}");
        assert!(message.contains(words), "{change}: {message}");
    }
}

#[test]
fn windows_and_experts_that_are_off_are_no_obstacle() {
    for (name, change) in [
        ("qwen2", json!({ "sliding_window": 128, "use_sliding_window": false })),
        ("mistral", json!({ "sliding_window": 256 })),
        ("qwen3", json!({ "layer_types": ["full_attention", "full_attention"], "num_experts": 0 })),
        ("llama", json!({ "mlp_bias": "remove", "attention_bias": "remove", "hidden_act": "remove" })),
    ] {
        spec(&with(name, change)).unwrap();
    }
}

#[test]
fn wrong_and_absurd_values_are_named() {
    for (change, words) in [
        (json!({ "vocab_size": 0 }), "vocab_size = 0"),
        (json!({ "vocab_size": 4194305 }), "vocab_size = 4194305"),
        (json!({ "vocab_size": -5 }), "vocab_size = -5"),
        (json!({ "vocab_size": 1.5 }), "vocab_size = 1.5"),
        (json!({ "vocab_size": "remove" }), "vocab_size"),
        (json!({ "hidden_size": "many" }), "hidden_size"),
        (json!({ "hidden_size": 18446744073709551615u64 }), "hidden_size"),
        (json!({ "num_hidden_layers": 1025 }), "num_hidden_layers = 1025"),
        (json!({ "num_key_value_heads": 3 }), "num_attention_heads = 4"),
        (json!({ "head_dim": 131072 }), "num_attention_heads * head_dim = 524288"),
        (json!({ "head_dim": null, "num_attention_heads": 6 }), "not a multiple"),
        (json!({ "rms_norm_eps": 0.0 }), "rms_norm_eps = 0"),
        (json!({ "rms_norm_eps": 1e-60 }), "rms_norm_eps"),
        (json!({ "rope_theta": -1 }), "rope_theta = -1"),
        (json!({ "tie_word_embeddings": 1 }), "tie_word_embeddings = 1"),
        (json!({ "attention_bias": 1 }), "attention_bias = 1"),
        (json!({ "mlp_bias": "yes" }), "mlp_bias"),
        (json!({ "rope_scaling": { "rope_type": "linear" } }), "factor"),
        (json!({ "model_type": "remove", "architectures": "remove" }), "model_type"),
    ] {
        let (slug, message) = spec(&with("llama", change.clone())).unwrap_err();
        assert_eq!(slug, "model-config-invalid", "{change}: {message}");
        assert!(message.contains(words), "{change}: {message}");
    }
    assert_eq!(spec(&json!([])).unwrap_err().0, "model-config-invalid");
}

#[test]
fn both_files_end_a_response_and_lists_are_read() {
    let config = json!({ "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": null });
    let expect = TokenIds { eos: vec![2], bos: Some(1), pad: None };
    assert_eq!(token_ids(&config, None), expect);
    let generation = json!({ "eos_token_id": [7, 8], "pad_token_id": 9 });
    assert_eq!(
        token_ids(&config, Some(&generation)),
        TokenIds { eos: vec![7, 8, 2], bos: Some(1), pad: Some(9) }
    );
    // What both name is there once.
    let generation = json!({ "eos_token_id": [2, 7] });
    assert_eq!(token_ids(&config, Some(&generation)).eos, [2, 7]);
}
