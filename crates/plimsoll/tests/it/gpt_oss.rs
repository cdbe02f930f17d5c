//! Sinks, and experts with biases and clamped gates, from outside: ranks, resuming, files, and what is refused.

use crate::common::{check_refused, every_nth, plimsoll};
use crate::ranks::left;
use crate::run::{Run, export, number, region};
use crate::shared_experts::check_merged;
use crate::tiny::{self, tensors};
use serde_json::json;

/// A run of a tiny model with windows in every second layer, and the tokenizer of nano.
fn run_of_gpt_oss() -> Run {
    let folder = Run::new("");
    tiny::write(
        &folder.path("model"),
        &json!({
            "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 64, "num_hidden_layers": 3,
            "head_dim": 32, "intermediate_size": 64, "attention_bias": true, "sliding_window": 16,
            "num_local_experts": 6, "num_experts_per_tok": 2, "tie_word_embeddings": false, "swiglu_limit": 7.0,
            "rope_scaling": { "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
                "truncate": false },
        }),
    );
    folder.write("run.toml", &tiny::run_of(&folder.text_path("model")));
    folder.file("run.toml")
}

/// Adapters of both parameters of all experts, and of a module.
const EXPERTS: &str = "lora.targets=[\"q_proj\", \"experts.gate_up_proj\", \"experts.down_proj\"]";

#[test]
fn the_number_of_ranks_changes_no_bit_of_sinks_and_of_biased_experts() {
    let folder = run_of_gpt_oss();
    for (index, (name, sets)) in every_nth(
        2,
        [
            ("full", &["train.optimizer_dtype=int8", "train.grad_dtype=bf16"][..]),
            ("spread", &["loss.kl_coef=0.05", "run.zero_stage=3", "train.recompute=layer"]),
            ("balance", &["loss.balance_coef=0.1", "train.mini_batch=4"]),
            ("adapters", &["lora.rank=4", "loss.kl_coef=0.05"]),
            ("adapters of experts", &["lora.rank=4", EXPERTS]),
        ],
    ) {
        tiny::check_ranks(&folder, index, name, sets);
    }
}

#[test]
fn a_run_goes_on_and_trains_sinks_and_biases_but_not_under_adapters() {
    let folder = run_of_gpt_oss();
    let model = tensors(&folder.read("model/model.safetensors"));
    folder.train("whole", &[]);
    folder.train("cut", &["train.steps=2"]);
    folder.train("cut", &["train.steps=3", "--resume"]);
    assert_eq!(left(&folder, "whole"), left(&folder, "cut"));
    folder.train("away", &["memory.offload=[\"optimizer\"]"]);
    assert_eq!(folder.weights("whole"), folder.weights("away"));
    folder.train("muon", &["train.optimizer=muon"]);
    for run in ["whole", "away", "muon"] {
        let saved = tensors(&folder.read(&format!("{run}/checkpoints/latest/model.safetensors")));
        for ((name, _, new), (of, _, old)) in saved.iter().zip(&model) {
            assert_eq!(name, of, "{run}");
            let is_trained = ["sinks", "_bias", "router.bias"].iter().any(|end| name.ends_with(end));
            assert!(!is_trained || new != old, "{run}: {name} is as it was");
        }
        for step in folder.metrics(run) {
            assert_eq!(number(&step, "rollout/logprob_mismatch_max"), 0.0, "{run}: {step}");
        }
    }
    folder.train("adapters", &["lora.rank=4"]);
    for step in folder.metrics("adapters") {
        assert_eq!(number(&step, "rollout/logprob_mismatch_max"), 0.0, "{step}");
    }
}

/// Those of a file whose matrices of experts are transposed, merged and as peft has them.
#[test]
fn adapters_of_all_experts_are_trained_go_on_and_are_merged() {
    let folder = run_of_gpt_oss();
    let sets = ["lora.rank=4", EXPERTS];
    folder.train("whole", &sets);
    folder.train("cut", &[&sets[..], &["train.steps=2"]].concat());
    folder.train("cut", &[&sets[..], &["train.steps=3", "--resume"]].concat());
    assert_eq!(left(&folder, "whole"), left(&folder, "cut"));
    for step in folder.metrics("whole") {
        assert_eq!(number(&step, "rollout/logprob_mismatch_max"), 0.0, "{step}");
    }
    let (run, merged) = (folder.text_path("whole"), folder.text_path("merged model"));
    let said = plimsoll(&["checkpoint", "export", &run, "--merge", "--to", &merged]);
    assert!(said.status.success(), "{said:?}");
    check_merged(&folder, "gpt_oss", true);
    folder.train("after", &[&format!("model={merged}"), "train.steps=1"]);
}

#[test]
fn a_checkpoint_of_experts_in_one_tensor_at_a_learning_rate_of_0_is_the_model() {
    let folder = run_of_gpt_oss();
    tiny::check_unchanged(&folder);
}

#[test]
fn what_is_not_built_for_sinks_is_refused_by_name() {
    let folder = run_of_gpt_oss();
    folder.train("whole", &["train.steps=1"]);
    let plain = folder.text_path("plain");
    export(&folder, "whole", &plain);
    folder.train("plain on", &[&*format!("model={plain}"), "train.steps=1"]);
    let [whole, to] = ["whole", "model.gguf"].map(|name| folder.text_path(name));
    let said = ["error[model-unsupported]: ", "GptOssForCausalLM has no GGUF form here"];
    check_refused(&["checkpoint", "export", &whole, "--format", "gguf", "--to", &to], 1, &said);
}

/// Experts in their blocks: 20b under 24 GiB, and 120b on one card of 80.
#[test]
fn adapters_of_published_sizes_are_planned_for_one_card() {
    let folder = run_of_gpt_oss();
    let sets = ["lora.rank=16", "lora.quantize=mxfp4", "run.device=cuda"];
    for (size, [layers, experts], memory) in [("20b", [24, 32], "24GiB"), ("120b", [36, 128], "80GiB")] {
        let model = format!("model=random:gpt-oss-{size}");
        let (limit, device) =
            ("--limit=device=141GiB,host=256GiB,disk=2TiB", format!("memory.device={memory}"));
        let plan = folder.plan(&[&sets[..], &[&model, limit, &device]].concat());
        assert_eq!(plan["fits"], true, "{size}: {}", plan["pools"]);
        // Rows of 2880 are 90 blocks of 17 bytes.
        let codes: u64 = layers * experts * (5760 + 2880) * 90 * 17;
        let row = region(&plan, "actor.codes").expect("a row");
        assert_eq!(number(row, "bytes"), codes as f64, "{row}");
    }
}
