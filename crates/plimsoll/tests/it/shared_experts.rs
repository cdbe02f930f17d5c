//! Shared experts next to routed ones, in layers with linear attention too, from outside: any number of ranks,
//! resuming, adapters, and files in the order and the form in which they were read.

use crate::common::{every_nth, plimsoll};
use crate::ranks::left;
use crate::run::{Run, number};
use crate::tiny::{self, tensors};
use serde_json::{Value, json};

/// A run of a tiny model of a family, and the tokenizer of nano: linear attention in two layers, then attention over
/// keys in one, and in Qwen3-Next a dense layer.
fn run_of(family: &str) -> Run {
    let folder = Run::new("");
    let mut keys = json!({
        "model_type": family, "hidden_size": 64, "num_hidden_layers": 3, "head_dim": 32, "partial_rotary_factor": 0.5,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64, "router_aux_loss_coef": 0.001,
    });
    if family == GEMMA {
        let own = json!({ "architectures": ["Gemma4ForCausalLM"], "hidden_act": "gelu_pytorch_tanh",
            "partial_rotary_factor": null, "sliding_window": 8, "attention_k_eq_v": true, "global_head_dim": 64,
            "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0, "intermediate_size": 128,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "enable_moe_block": true,
            "top_k_experts": 2 });
        keys.as_object_mut().expect("keys").extend(own.as_object().expect("keys").clone());
    } else if family == "qwen3_next" {
        let own = json!({ "architectures": ["Qwen3NextForCausalLM"], "intermediate_size": 128, "mlp_only_layers": [0] });
        keys.as_object_mut().expect("keys").extend(own.as_object().expect("keys").clone());
    } else {
        keys["architectures"] = json!(["Qwen3_5MoeForCausalLM"]);
    }
    tiny::write(&folder.path("model"), &keys);
    folder.write("run.toml", &tiny::run_of(&folder.text_path("model")));
    folder.file("run.toml")
}

/// Its experts are next to a dense part.
const GEMMA: &str = "gemma4_text";
const FAMILIES: [&str; 3] = ["qwen3_5_moe_text", "qwen3_next", GEMMA];

#[test]
fn the_number_of_ranks_changes_no_bit_of_shared_experts() {
    for family in FAMILIES {
        let folder = run_of(family);
        for (index, (name, sets)) in every_nth(
            2,
            [
                ("full", &["train.optimizer_dtype=int8", "train.grad_dtype=bf16"][..]),
                ("spread", &["loss.kl_coef=0.05", "run.zero_stage=3", "train.recompute=layer"]),
                ("f32", &["model_options.dtype=f32", "train.recompute=none", "train.mini_batch=4"]),
                ("balance", &["loss.balance_coef=0.1", "run.zero_stage=2", "train.recompute=cheap"]),
            ],
        ) {
            tiny::check_ranks(&folder, index, name, sets);
        }
    }
}

#[test]
fn a_run_of_shared_experts_goes_on_and_its_weights_may_be_elsewhere() {
    for family in FAMILIES {
        let folder = run_of(family);
        folder.train("whole", &[]);
        folder.train("cut", &["train.steps=2"]);
        folder.train("cut", &["train.steps=3", "--resume"]);
        assert_eq!(left(&folder, "whole"), left(&folder, "cut"), "{family}");
        folder.train("away", &["memory.offload=[\"optimizer\"]"]);
        folder.train("kept", &["train.recompute=none"]);
        for other in ["away", "kept"] {
            assert_eq!(folder.weights("whole"), folder.weights(other), "{family} {other}");
        }
        folder.train("near", &["loss.kl_coef=0.05"]);
        folder.train("far", &["loss.kl_coef=0.05", "memory.offload=[\"reference\"]"]);
        assert_eq!(left(&folder, "near"), left(&folder, "far"), "{family}");
    }
}

#[test]
fn a_checkpoint_at_a_learning_rate_of_0_is_the_model() {
    for family in FAMILIES {
        let folder = run_of(family);
        tiny::check_unchanged(&folder);
    }
}

/// Requires that each expert's output projection in the merged model is W + scale B A of that expert; files may have
/// all matrices of a layer transposed.
pub fn check_merged(folder: &Run, family: &str, is_transposed: bool) {
    let layer = if family == GEMMA { "layers.1.experts." } else { "layers.1.mlp.experts." };
    let all = |file: &str| tensors(&folder.read(file));
    let [model, merged, adapter] = [
        "model/model.safetensors",
        "merged model/model.safetensors",
        "whole/checkpoints/latest/adapter_model.safetensors",
    ]
    .map(all);
    let values = |of: &[(String, Value, Vec<u8>)], name: &str| -> Vec<f32> {
        let (.., bytes) = of.iter().find(|(found, ..)| found.ends_with(name)).expect(name);
        bytes.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().expect("four"))).collect()
    };
    let of_experts = |of: &[(String, Value, Vec<u8>)]| -> Vec<f32> {
        let is_one = of.iter().any(|(name, ..)| name.ends_with(&format!("{layer}down_proj")));
        let each = |expert| values(of, &format!("{layer}{expert}.down_proj.weight"));
        if is_one { values(of, &format!("{layer}down_proj")) } else { (0..6).flat_map(each).collect() }
    };
    let [old, new] = [of_experts(&model), of_experts(&merged)];
    let [a, b] = ["A", "B"].map(|part| values(&adapter, &format!("{layer}lora_{part}.weight")));
    let said = folder.read_json("whole/checkpoints/latest/adapter_config.json");
    let scale = said["lora_alpha"].as_f64().expect("alpha") / said["r"].as_f64().expect("r");
    let (experts, rank, width, rows) = (6, 4, 64, 64);
    let mut largest = 0f64;
    for (at, (old, new)) in old.iter().zip(&new).enumerate() {
        // Both widths are 64.
        let (expert, [row, column]) = (at / (rows * width), [at / width % rows, at % width]);
        let [row, column] = if is_transposed { [column, row] } else { [row, column] };
        let term = |j: usize| {
            f64::from(b[(row * rank + j) * experts + expert])
                * f64::from(a[(expert * rank + j) * width + column])
        };
        let change = scale * (0..rank).map(term).sum::<f64>();
        largest = largest.max(change.abs());
        let d = f64::from(*new) - f64::from(*old) - change;
        // One rounding of a weight below 1.
        assert!(d.abs() < 1e-6, "{family}: expert {expert}, row {row}, column {column}: off by {d}");
    }
    assert!(largest > 1e-4, "{family}: the adapters changed by {largest}");
}

const MOE: [&str; 2] = [
    "lora.rank=4",
    "lora.targets=[\"q_proj\", \"v_proj\", \"o_proj\", \"gate_proj\", \"up_proj\", \"down_proj\", \"in_proj_qkv\", \"in_proj_z\", \
     \"in_proj_b\", \"in_proj_a\", \"out_proj\", \"experts.down_proj\"]",
];
const NEXT: [&str; 2] = [
    "lora.rank=4",
    "lora.targets=[\"q_proj\", \"k_proj\", \"v_proj\", \"o_proj\", \"in_proj_qkvz\", \"in_proj_ba\", \"out_proj\", \
     \"experts.gate_up_proj\", \"experts.down_proj\"]",
];
const JOINED: [&str; 2] = [
    "lora.rank=4",
    "lora.targets=[\"q_proj\", \"k_proj\", \"o_proj\", \"gate_proj\", \"up_proj\", \"down_proj\", \"experts.gate_up_proj\", \
     \"experts.down_proj\"]",
];

#[test]
fn adapters_of_shared_experts_and_grouped_rows_are_trained_in_every_form() {
    for (family, own) in FAMILIES.into_iter().zip([MOE, NEXT, JOINED]) {
        let folder = run_of(family);
        for (name, more) in [
            ("apart", &["train.recompute=layer"][..]),
            ("merged", &["lora.merge=true"]),
            ("in codes", &["lora.quantize=nf4"]),
            ("bf16", &["model_options.dtype=bf16", "loss.kl_coef=0.05"]),
        ] {
            folder.train(name, &[&own[..], more, &["train.steps=2"]].concat());
            for step in folder.metrics(name) {
                assert_eq!(number(&step, "rollout/logprob_mismatch_max"), 0.0, "{family} {name}: {step}");
                assert!(number(&step, "grad_norm") > 0.0, "{family} {name}: {step}");
            }
        }
        for (index, (name, more)) in every_nth(
            2,
            [("two", &["run.zero_stage=3"][..]), ("two merged", &["lora.merge=true", "run.zero_stage=2"])],
        ) {
            tiny::check_ranks(&folder, index, name, &[&own[..], more].concat());
        }
        let rate = "train.learning_rate=1e-2";
        folder.train("whole", &[own[0], own[1], rate]);
        folder.train("cut", &[own[0], own[1], rate, "train.steps=2"]);
        folder.train("cut", &[own[0], own[1], rate, "--resume"]);
        assert_eq!(left(&folder, "whole"), left(&folder, "cut"), "{family}");
        let (run, merged) = (folder.text_path("whole"), folder.text_path("merged model"));
        let said = plimsoll(&["checkpoint", "export", &run, "--merge", "--to", &merged]);
        assert!(said.status.success(), "{family}: {said:?}");
        check_merged(&folder, family, false);
        folder.train("after", &[&format!("model={merged}"), "train.steps=1"]);
    }
}

#[test]
fn names_that_peft_takes_for_other_layers_are_refused() {
    let folder = run_of("qwen3_next");
    let refused = [
        "error[lora-unsupported]: gate_proj, up_proj, down_proj, shared_expert.gate_proj",
        "what peft turns into adapters of all routed experts in one",
        "hint: set lora.targets = [\"q_proj\", \"k_proj\", \"v_proj\", \"o_proj\", \"in_proj_qkvz\"",
    ];
    folder.train_refused("seven", &["lora.rank=4"], 2, &refused);
}
