//! Linear attention from outside: every method, any number of ranks, resuming, in less memory; what is refused.

use crate::common::{every_nth, plimsoll, text};
use crate::made::safetensors;
use crate::ranks::left;
use crate::run::{Run, number, region};
use crate::tiny;
use serde_json::{Value, json};

/// A run of a tiny model: linear attention in two layers, then attention over keys in one, and the tokenizer of nano.
pub fn run_of_delta() -> Run {
    let folder = Run::new("");
    tiny::write(
        &folder.path("delta"),
        &json!({
            "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": 64, "num_hidden_layers": 3,
            "intermediate_size": 128, "head_dim": 32, "partial_rotary_factor": 0.5,
            "layer_types": ["linear_attention", "linear_attention", "full_attention"],
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
            "linear_conv_kernel_dim": 4,
        }),
    );
    folder.write("delta.toml", &tiny::run_of(&folder.text_path("delta")));
    folder.file("delta.toml")
}

const FFN: [&str; 2] = ["lora.rank=4", "lora.targets=[\"gate_proj\", \"up_proj\", \"down_proj\"]"];

#[test]
fn the_number_of_ranks_changes_no_bit_of_linear_attention() {
    let folder = run_of_delta();
    for (index, (name, sets)) in every_nth(
        2,
        [
            ("full", &["train.optimizer_dtype=int8", "train.grad_dtype=bf16"][..]),
            ("spread", &["loss.kl_coef=0.05", "run.zero_stage=3", "train.recompute=layer"]),
            ("f32", &["model_options.dtype=f32", "train.recompute=none", "train.mini_batch=4"]),
            ("adapters", &[FFN[0], FFN[1], "loss.kl_coef=0.05", "train.recompute=cheap"]),
            ("muon", &["train.optimizer=muon"]),
        ],
    ) {
        tiny::check_ranks(&folder, index, name, sets);
    }
}

#[test]
fn a_run_of_linear_attention_goes_on_and_what_it_keeps_may_be_elsewhere() {
    let folder = run_of_delta();
    folder.train("whole", &[]);
    folder.train("cut", &["train.steps=2"]);
    folder.train("cut", &["train.steps=3", "--resume"]);
    assert_eq!(left(&folder, "whole"), left(&folder, "cut"));
    folder.train("away", &["memory.offload=[\"optimizer\"]"]);
    folder.train("few", &["rollout.sequences_max=2"]);
    folder.train("kept", &["train.recompute=none"]);
    folder.train("left", &["train.recompute=offload"]);
    for other in ["away", "few", "kept", "left"] {
        assert_eq!(folder.weights("whole"), folder.weights(other), "{other}");
    }
    folder.train("near", &["loss.kl_coef=0.05"]);
    folder.train("far", &["loss.kl_coef=0.05", "memory.offload=[\"reference\"]"]);
    assert_eq!(left(&folder, "near"), left(&folder, "far"));
    // What was saved is a model that opens.
    let again = format!("model={}", folder.text_path("whole/checkpoints/latest"));
    folder.train("again", &[&again, "train.steps=1"]);
}

#[test]
fn every_method_trains_linear_attention() {
    let folder = run_of_delta();
    let model = format!("model={}", folder.text_path("delta"));
    let teacher = format!("distill.teacher={}", folder.text_path("delta"));
    for (name, more) in [
        ("first-ppo", &["critic.warmup_steps=0"][..]),
        ("first-dpo", &["train.warmup_steps=0"]),
        ("first-reward-model", &["train.warmup_steps=0"]),
        ("first-distill", &[&*teacher]),
    ] {
        let recipe = format!("{}/../../runs/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        let run = Run::new(&std::fs::read_to_string(recipe).expect("a recipe"));
        run.train(
            name,
            &[&[&*model, "train.steps=2", "eval.prompts_max=8", "rollout.prompts_per_step=8"], more].concat(),
        );
        let steps = run.metrics(name);
        // A teacher of the same weights says what the student does, to the bit.
        let learns = name != "first-distill";
        assert!(steps.iter().all(|step| (number(step, "grad_norm") > 0.0) == learns), "{name}: {steps:?}");
    }
}

/// All that adapters may change in such a model.
const ALL: [&str; 2] = [
    "lora.rank=4",
    "lora.targets=[\"q_proj\", \"k_proj\", \"v_proj\", \"o_proj\", \"gate_proj\", \"up_proj\", \"down_proj\", \"in_proj_qkv\", \
     \"in_proj_z\", \"in_proj_b\", \"in_proj_a\", \"out_proj\"]",
];

#[test]
fn adapters_are_trained_in_every_form_in_layers_of_both_kinds() {
    let folder = run_of_delta();
    for (name, sets) in [
        ("ffn", &FFN[..]),
        ("seven", &["lora.rank=4"]),
        ("all", &ALL),
        ("merged", &[ALL[0], ALL[1], "lora.merge=true"]),
        ("in codes", &[ALL[0], ALL[1], "lora.quantize=nf4"]),
        ("bf16", &[ALL[0], ALL[1], "model_options.dtype=bf16", "train.recompute=layer"]),
        ("linear alone", &["lora.rank=4", "lora.targets=[\"in_proj_b\", \"out_proj\"]"]),
    ] {
        folder.train(name, &[sets, &["train.steps=2"]].concat());
        for step in folder.metrics(name) {
            assert_eq!(number(&step, "rollout/logprob_mismatch_max"), 0.0, "{name}: {step}");
            assert!(number(&step, "grad_norm") > 0.0, "{name}: {step}");
        }
    }
    folder.train_refused(
        "absent",
        &["lora.rank=4", "lora.targets=[\"q_proj\", \"in_proj_ba\"]"],
        2,
        &[
            "error[lora-unsupported]: in_proj_ba of a qwen3_5_text model are in none of its layers",
            "hint: set lora.targets = \"all-linear\"",
        ],
    );
}

#[test]
fn adapters_of_both_kinds_go_on_and_are_exported_and_merged() {
    let folder = run_of_delta();
    let sets = |more: &[&'static str]| [&ALL[..], &["train.learning_rate=1e-2"], more].concat();
    folder.train("whole", &sets(&[]));
    folder.train("cut", &sets(&["train.steps=2"]));
    folder.train("cut", &sets(&["train.steps=3", "--resume"]));
    assert_eq!(left(&folder, "whole"), left(&folder, "cut"));
    let (run, adapter, merged) =
        (folder.text_path("whole"), folder.text_path("adapter"), folder.text_path("merged"));
    let said = plimsoll(&["checkpoint", "export", &run, "--to", &adapter]);
    assert!(said.status.success(), "{said:?}");
    let bytes = folder.read("adapter/adapter_model.safetensors");
    let names = String::from_utf8_lossy(&bytes);
    // Two layers with five linear layers of linear attention, one with four of attention, and three in each.
    assert_eq!(names.matches(".lora_").count(), 2 * (2 * 5 + 4 + 3 * 3));
    assert!(names.contains("base_model.model.model.layers.1.linear_attn.in_proj_a.lora_B.weight"));
    let on = format!("lora.adapter={adapter}");
    folder.train("on", &[&ALL[..], &["train.learning_rate=1e-2", &on, "train.steps=1"]].concat());
    let said = plimsoll(&["checkpoint", "export", &run, "--merge", "--to", &merged]);
    assert!(said.status.success(), "{said:?}");
    folder.train("after", &[&format!("model={merged}"), "train.steps=1"]);
}

/// Multi-token prediction was trained with the old layers, and a checkpoint's config.json has no key of it.
#[test]
fn a_merged_model_has_nothing_that_predicts_further_tokens_of_other_layers() {
    let folder = run_of_delta();
    let path = folder.path("delta/model.safetensors");
    let file = std::fs::read(&path).expect("a file");
    let (length, rest) = file.split_first_chunk::<8>().expect("a length");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut header: Value = serde_json::from_slice(header).expect("JSON");
    let offsets = [data.len(), data.len() + 16];
    header["mtp.fc.weight"] = json!({ "dtype": "F32", "shape": [2, 2], "data_offsets": offsets });
    std::fs::write(&path, safetensors(&header.to_string(), &[data, &[0; 16]].concat())).expect("written");
    let stderr = folder.train("run", &[FFN[0], FFN[1], "train.steps=1"]);
    assert!(
        stderr.contains("1 tensors of the model predict further tokens (MTP): nothing trains"),
        "{stderr}"
    );
    let (run, merged) = (folder.text_path("run"), folder.text_path("merged"));
    let said = plimsoll(&["checkpoint", "export", &run, "--merge", "--to", &merged]);
    assert!(
        text(&said.stdout).contains("left out: 1 tensors that predict further tokens (`mtp.*`"),
        "{said:?}"
    );
    let written = std::fs::read(folder.path("merged/model.safetensors")).expect("a file");
    assert!(!written.windows(4).any(|part| part == b"mtp."));
    folder.train("again", &[&format!("model={merged}"), "train.steps=1"]);
}

#[test]
fn states_of_a_4b_model_are_planned() {
    let folder = run_of_delta();
    let plan =
        folder.plan(&["model=random:qwen3.5-4b", "--limit=host=2TiB,disk=8TiB", "rollout.sequences_max=8"]);
    let bytes = |name: &str| number(region(&plan, name).expect("a row"), "bytes");
    // Eight responses in groups of four, three groups in flight: 24 layers of 32 heads of 128 x 128 f32.
    assert_eq!(bytes("rollout.delta.states"), 11.0 * 24.0 * 32.0 * 65_536.0);
    // An evaluation with groups of two may have five of them in flight.
    let evaluated = folder.plan(&[
        "model=random:qwen3.5-4b",
        "--limit=host=2TiB,disk=8TiB",
        "rollout.sequences_max=8",
        "data.eval=builtin:addition",
        "eval.prompts_max=4",
        "eval.samples=2",
        "eval.temperature=1.0",
    ]);
    let states = number(region(&evaluated, "rollout.delta.states").expect("a row"), "bytes");
    assert_eq!(states, 13.0 * 24.0 * 32.0 * 65_536.0);
    // The last three inputs of 2 x 16 x 128 + 32 x 128 channels.
    assert_eq!(bytes("rollout.delta.tails"), 11.0 * 24.0 * 3.0 * 8192.0 * 2.0);
    // Of 32 layers 8 have keys.
    let of_keys: Value = region(&plan, "rollout.keys").expect("a row")["shape"].clone();
    assert_eq!(of_keys[0], 8, "{of_keys}");
}
