//! Latent attention from outside: ranks, resuming, adapters of its products, and files.

use crate::common::every_nth;
use crate::ranks::left;
use crate::run::{Run, json as json_of, number};
use crate::tiny::{self, tensors};
use serde_json::{Value, json};

/// A run of a tiny model of a family: a dense layer, then two with 6 experts and shared ones, and nano's tokenizer.
fn run_of(family: &str) -> Run {
    let folder = Run::new("");
    let own: Value = match family {
        "deepseek_v2" => json!({
            "architectures": ["DeepseekV2ForCausalLM"], "q_lora_rank": null, "topk_method": "greedy",
            "routed_scaling_factor": 1.0, "rope_scaling": { "type": "yarn", "factor": 8.0, "mscale": 0.707,
                "mscale_all_dim": 0.707, "original_max_position_embeddings": 32 },
        }),
        _ => json!({
            "architectures": ["DeepseekV3ForCausalLM"], "q_lora_rank": 64, "n_group": 2, "topk_group": 1,
            "routed_scaling_factor": 2.5, "norm_topk_prob": true,
        }),
    };
    let mut keys = json!({
        "model_type": family, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2,
        "num_key_value_heads": 2, "intermediate_size": 128, "kv_lora_rank": 64, "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 6, "n_shared_experts": 2,
        "num_experts_per_tok": 2, "moe_intermediate_size": 64, "first_k_dense_replace": 1,
        "tie_word_embeddings": false,
    });
    keys.as_object_mut().expect("keys").extend(own.as_object().expect("keys").clone());
    tiny::write(&folder.path("model"), &keys);
    folder.write("run.toml", &tiny::run_of(&folder.text_path("model")));
    folder.file("run.toml")
}

const FAMILIES: [&str; 2] = ["deepseek_v2", "deepseek_v3"];

#[test]
fn the_number_of_ranks_changes_no_bit_of_latent_attention() {
    for family in FAMILIES {
        let folder = run_of(family);
        for (index, (name, sets)) in every_nth(
            2,
            [
                ("full", &["train.optimizer_dtype=int8", "train.grad_dtype=bf16"][..]),
                ("spread", &["loss.kl_coef=0.05", "run.zero_stage=3", "train.recompute=layer"]),
            ],
        ) {
            tiny::check_ranks(&folder, index, name, sets);
        }
    }
}

#[test]
fn a_run_of_latent_attention_goes_on_and_a_rate_of_0_leaves_the_model() {
    for family in FAMILIES {
        let folder = run_of(family);
        folder.train("whole", &[]);
        folder.train("cut", &["train.steps=2"]);
        folder.train("cut", &["train.steps=3", "--resume"]);
        assert_eq!(left(&folder, "whole"), left(&folder, "cut"), "{family}");
        folder.train("away", &["memory.offload=[\"optimizer\"]", "train.recompute=none"]);
        assert_eq!(folder.weights("whole"), folder.weights("away"), "{family}");
        for step in folder.metrics("whole") {
            assert_eq!(number(&step, "rollout/logprob_mismatch_max"), 0.0, "{family}: {step}");
        }
        tiny::check_unchanged(&folder);
    }
}

const V2: &str = "lora.targets=[\"q_proj\", \"kv_a_proj_with_mqa\", \"kv_b_proj\", \"o_proj\", \"shared_experts.gate_proj\", \
                  \"shared_experts.up_proj\", \"shared_experts.down_proj\"]";
const V3: &str = "lora.targets=[\"q_a_proj\", \"q_b_proj\", \"kv_b_proj\", \"experts.gate_up_proj\", \"shared_experts.up_proj\"]";

#[test]
fn adapters_of_latent_products_and_of_shared_experts_are_trained_in_every_form() {
    for (family, targets) in FAMILIES.into_iter().zip([V2, V3]) {
        let (folder, own) = (run_of(family), ["lora.rank=4", targets]);
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
        folder.train("whole", &own);
        folder.train("cut", &[&own[..], &["train.steps=2"]].concat());
        folder.train("cut", &[&own[..], &["--resume"]].concat());
        assert_eq!(left(&folder, "whole"), left(&folder, "cut"), "{family}");
        let (run, merged) = (folder.text_path("whole"), folder.text_path("merged model"));
        json_of(&["checkpoint", "export", &run, "--merge", "--to", &merged, "--json"]);
        let [old, new] =
            ["model", "merged model"].map(|of| tensors(&folder.read(&format!("{of}/model.safetensors"))));
        let changed = old.iter().zip(&new).filter(|(old, new)| old != new).map(|(old, _)| old.0.as_str());
        let changed: Vec<&str> = changed.collect();
        for part in ["self_attn.kv_b_proj", "mlp.shared_experts.up_proj"] {
            assert!(changed.iter().any(|name| name.contains(part)), "{family}: {part} of {changed:?}");
        }
        folder.train("after", &[&format!("model={merged}"), "train.steps=1"]);
    }
}

#[test]
fn targets_reach_what_peft_reaches_or_are_refused_by_name() {
    let folder = run_of("deepseek_v3");
    for (name, targets, said) in [
        ("all", "all-linear", "q_proj, k_proj, v_proj of a deepseek_v3 model are in none of its layers"),
        ("query", "[\"q_proj\"]", "q_proj of a deepseek_v3 model are in none of its layers"),
        ("gates", "[\"gate_proj\"]", "what peft turns into adapters of all routed experts in one"),
        ("one", "[\"shared_expert.gate_proj\"]", "are in none of its layers"),
    ] {
        let refused =
            ["error[lora-unsupported]: ", said, "hint: set lora.targets = [\"o_proj\", \"q_a_proj\""];
        folder.train_refused(name, &["lora.rank=4", &format!("lora.targets={targets}")], 2, &refused);
    }
}
