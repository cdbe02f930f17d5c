//! Experts of a router of sigmoids, from outside: ranks, resuming, corrections that nothing changes, and files.

use crate::common::every_nth;
use crate::ranks::left;
use crate::run::{Run, export, json as json_of, number};
use crate::tiny::{self, tensors};
use serde_json::json;

/// A run of a tiny model: a dense layer, two with 8 experts in 4 groups, of which a token has 3 in 2 groups, and a
/// shared expert; and the tokenizer of nano.
fn run_of_glm() -> Run {
    let folder = Run::new("");
    tiny::write(
        &folder.path("model"),
        &json!({
            "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_size": 64, "num_hidden_layers": 3,
            "head_dim": 32, "intermediate_size": 128, "attention_bias": true, "use_qk_norm": true,
            "partial_rotary_factor": 0.5, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3,
            "moe_intermediate_size": 32, "n_group": 4, "topk_group": 2, "norm_topk_prob": true,
            "routed_scaling_factor": 2.5, "first_k_dense_replace": 1,
        }),
    );
    folder.write("run.toml", &tiny::run_of(&folder.text_path("model")));
    folder.file("run.toml")
}

/// The corrections in a file of weights, by name.
fn corrections(folder: &Run, file: &str) -> Vec<(String, Vec<u8>)> {
    let all = tensors(&folder.read(file)).into_iter();
    let found: Vec<_> = all
        .filter(|(name, ..)| name.ends_with("e_score_correction_bias"))
        .map(|(name, _, bytes)| (name, bytes))
        .collect();
    assert_eq!(found.len(), 2, "{file}");
    // f32, whatever the dtype of the file.
    assert!(found.iter().all(|(_, bytes)| bytes.len() == 8 * 4 && bytes.iter().any(|byte| *byte != 0)));
    found
}

#[test]
fn the_number_of_ranks_changes_no_bit_of_a_router_of_sigmoids() {
    let folder = run_of_glm();
    for (index, (name, sets)) in every_nth(
        2,
        [
            ("full", &["train.optimizer_dtype=int8", "train.grad_dtype=bf16"][..]),
            ("spread", &["loss.kl_coef=0.05", "run.zero_stage=3", "train.recompute=layer"]),
            ("balance", &["loss.balance_coef=0.1", "train.mini_batch=4"]),
            ("adapters", &["lora.rank=4", "lora.targets=[\"q_proj\", \"o_proj\", \"experts.gate_up_proj\"]"]),
        ],
    ) {
        tiny::check_ranks(&folder, index, name, sets);
    }
}

#[test]
fn no_step_changes_a_correction_and_a_run_goes_on() {
    let folder = run_of_glm();
    let model = corrections(&folder, "model/model.safetensors");
    let decay = ["train.weight_decay=0.1", "train.learning_rate=1e-2"];
    let sets = |more: &[&'static str]| [&decay[..], more].concat();
    folder.train("whole", &sets(&[]));
    folder.train("cut", &sets(&["train.steps=2"]));
    folder.train("cut", &sets(&["train.steps=3", "--resume"]));
    assert_eq!(left(&folder, "whole"), left(&folder, "cut"));
    folder.train("away", &sets(&["memory.offload=[\"optimizer\"]"]));
    assert_eq!(folder.weights("whole"), folder.weights("away"));
    folder.train("codes", &sets(&["train.optimizer_dtype=int8", "model_options.dtype=bf16"]));
    folder.train("spread", &sets(&["--ranks=2", "run.zero_stage=3"]));
    folder.train("muon", &sets(&["train.optimizer=muon"]));
    for run in ["whole", "away", "codes", "spread", "muon"] {
        let saved = format!("{run}/checkpoints/latest/model.safetensors");
        assert!(corrections(&folder, &saved) == model, "{run}");
        assert!(tensors(&folder.read(&saved)) != tensors(&folder.read("model/model.safetensors")), "{run}");
        for step in folder.metrics(run) {
            assert_eq!(number(&step, "rollout/logprob_mismatch_max"), 0.0, "{run}: {step}");
        }
    }
}

#[test]
fn a_checkpoint_at_a_learning_rate_of_0_is_the_model() {
    let folder = run_of_glm();
    tiny::check_unchanged(&folder);
}

#[test]
fn an_export_in_bf16_has_corrections_in_f32() {
    let folder = run_of_glm();
    let model = corrections(&folder, "model/model.safetensors");
    folder.train("whole", &["train.steps=1"]);
    let attention = "lora.targets=[\"q_proj\", \"k_proj\", \"v_proj\", \"o_proj\"]";
    folder.train("adapters", &["train.steps=1", "lora.rank=4", attention]);
    let [plain, merged] = ["plain", "merged"].map(|name| folder.text_path(name));
    export(&folder, "whole", &plain);
    let run = folder.text_path("adapters");
    json_of(&["checkpoint", "export", &run, "--merge", "--dtype", "bf16", "--to", &merged, "--json"]);
    for name in ["plain", "merged"] {
        assert!(corrections(&folder, &format!("{name}/model.safetensors")) == model, "{name}");
        folder
            .train(&format!("{name} on"), &[&*format!("model={}", folder.text_path(name)), "train.steps=1"]);
    }
    let [whole, to] = ["whole", "model.gguf"].map(|name| folder.text_path(name));
    json_of(&["checkpoint", "export", &whole, "--to", &to, "--json"]);
    folder.train("file on", &[&*format!("model={to}"), "train.steps=1"]);
}
