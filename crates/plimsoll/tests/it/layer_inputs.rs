//! Inputs that layers have of their own, and keys of earlier layers, from outside: any number of ranks, resuming, and
//! what is refused.

use crate::common::every_nth;
use crate::ranks::left;
use crate::run::{Run, number};
use crate::tiny;
use serde_json::json;

/// A run of a tiny model with the tokenizer of nano: two layers with keys of their own, and two that have those.
fn run_of_gemma() -> Run {
    let folder = Run::new("");
    tiny::write(
        &folder.path("model"),
        &json!({
            "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "hidden_size": 64,
            "num_hidden_layers": 4, "head_dim": 32, "intermediate_size": 64, "hidden_act": "gelu_pytorch_tanh",
            "sliding_window": 8, "global_head_dim": 64, "hidden_size_per_layer_input": 32,
            "vocab_size_per_layer_input": 15, "num_kv_shared_layers": 2, "use_double_wide_mlp": true,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        }),
    );
    folder.write("run.toml", &tiny::run_of(&folder.text_path("model")));
    folder.file("run.toml")
}

#[test]
fn the_number_of_ranks_changes_no_bit_of_adapters_over_shared_keys() {
    let folder = run_of_gemma();
    for (index, (name, sets)) in every_nth(
        2,
        [
            ("apart", &["lora.rank=4", "train.recompute=layer", "run.zero_stage=3"][..]),
            ("merged", &["lora.rank=4", "lora.merge=true", "loss.kl_coef=0.05"]),
            ("again", &["lora.rank=4", "train.recompute=cheap"]),
        ],
    ) {
        tiny::check_ranks(&folder, index, name, sets);
    }
}

#[test]
fn a_run_of_adapters_goes_on_and_all_weights_are_refused_by_name() {
    let folder = run_of_gemma();
    folder.train("whole", &["lora.rank=4"]);
    folder.train("cut", &["lora.rank=4", "train.steps=2"]);
    folder.train("cut", &["lora.rank=4", "train.steps=3", "--resume"]);
    assert_eq!(left(&folder, "whole"), left(&folder, "cut"));
    folder.train("away", &["lora.rank=4", "memory.offload=[\"optimizer\"]"]);
    for step in folder.metrics("whole").into_iter().chain(folder.metrics("away")) {
        assert_eq!(number(&step, "rollout/logprob_mismatch_max"), 0.0, "{step}");
        assert!(number(&step, "grad_norm") > 0.0, "{step}");
    }
    let said = ["error[model-unsupported]: ", "inputs of each token for its layers", "hint: add [lora]"];
    folder.train_refused("all", &[], 2, &said);
}
