//! `[lora]` from outside: adapters learn, go on, are dealt to ranks and sampled with, and what does not fit together is
//! named.

use crate::common::{check_refused, every_nth, in_turn, plimsoll, text};
use crate::made::{GGUF_NAMES, Listed, Meta, gguf, gguf_meta, header_and_data, safetensors};
use crate::ranks::left;
use crate::run::{Run, export, json as printed, number, region};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;

/// The recipe with adapters.
const FIRST_LORA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/first-lora.toml");

const RUN: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 4
group_size = 2
max_new_tokens = 5
[[reward]]
kind = "exact"
[lora]
rank = 4
[train]
steps = 4
learning_rate = 1e-3
[eval]
prompts_max = 30
[checkpoint]
every = 1
keep = 4
"#;

const LATEST: &str = "checkpoints/latest";
const WEIGHTS: &str = "adapter_model.safetensors";

/// Returns the adapters after the last step, and their states.
fn result(folder: &Run, dir: &str) -> [Vec<u8>; 2] {
    [WEIGHTS, "state/optimizer.safetensors"].map(|file| folder.saved(dir, file))
}

fn names(folder: &Run, dir: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(folder.path(dir)).unwrap_or_else(|err| panic!("{dir}: {err}"));
    entries.flatten().map(|entry| entry.file_name().into_string().expect("UTF-8")).collect()
}

/// Trains all weights for a step. Returns the folder of that model.
fn whole_model(folder: &Run, name: &str, sets: &[&str]) -> String {
    folder.write("whole.toml", &RUN.replace("[lora]\nrank = 4\n", ""));
    folder.file("whole.toml").train(name, &[&["train.steps=1", "train.learning_rate=1e-5"], sets].concat());
    let to = folder.text_path(&format!("{name}-model"));
    export(folder, name, &to);
    to
}

/// Returns the score of a model on the prompts of `RUN`, and its responses.
fn eval(folder: &Run, model: &str, sets: &[&str]) -> (f64, Vec<Value>) {
    let output = folder.text_path("responses.jsonl");
    let _ = fs::remove_file(&output);
    let args = ["eval", "--model", model, "--data", "builtin:addition", "--prompts-max", "30"];
    let more = ["--max-new-tokens", "5", "--output", &output, "--json"];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", *set]).collect();
    let found = printed(&[&args[..], &more, &sets].concat());
    (number(&found, "score"), folder.read_lines("responses.jsonl"))
}

#[test]
fn the_first_lora_run_learns_and_leaves_an_adapter() {
    let folder = Run::new(&fs::read_to_string(FIRST_LORA).expect("a recipe"));
    let sets = ["train.steps=12", "eval.prompts_max=100", "eval.every=12", "train.mini_batch=128"];
    let summary = folder.summary("out", &sets);
    let (before, after) = (number(&summary, "eval_before"), number(&summary, "eval_after"));
    assert!(after > before + 0.3, "{before} before, {after} after");
    assert_eq!(summary["logprob_mismatch_max"], 0.0);
    assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"]);
    let metrics = folder.metrics("out");
    assert!(metrics.iter().all(|step| step["rollout/logprob_mismatch_max"] == 0.0), "{metrics:?}");
    let files = names(&folder, &format!("out/{LATEST}"));
    let has = |name: &str| files.contains(name);
    assert!(has("adapter_config.json") && has(WEIGHTS) && has("tokenizer.json"), "{files:?}");
    assert!(!has("model.safetensors") && !has("config.json"), "{files:?}");
    let config = folder.read_json(&format!("out/{LATEST}/adapter_config.json"));
    assert_eq!((config["r"].as_u64(), config["lora_alpha"].as_u64()), (Some(8), Some(16)));
    assert_eq!(config["base_model_name_or_path"], "builtin:nano");
}

#[test]
fn the_reference_is_the_model_without_its_adapter() {
    let folder = Run::new(RUN);
    let kl = "loss.kl_coef=0.05";
    let [plan, without] = [folder.plan(&[kl]), folder.plan(&[])];
    assert!(region(&plan, "reference.weights").is_none(), "a second copy of the weights");
    let weights = |plan: &Value| region(plan, "actor.weights").expect("a row")["bytes"].as_u64();
    assert_eq!(weights(&plan), weights(&without));
    folder.train("out", &[kl]);
    let kls: Vec<f64> = folder.metrics("out").iter().map(|step| number(step, "kl")).collect();
    assert_eq!(kls[0], 0.0, "{kls:?}");
    assert!(kls[1..].iter().all(|kl| *kl > 0.0), "{kls:?}");
    folder.train("free", &[]);
    assert!(result(&folder, "out") != result(&folder, "free"), "the term does nothing");
}

#[test]
fn the_number_of_ranks_changes_no_bit_of_an_adapter() {
    let folder = Run::new(RUN);
    for (index, (name, sets)) in every_nth(
        2,
        [
            ("kl", &["loss.kl_coef=0.05", "train.mini_batch=4", "train.epochs_per_rollout=2"][..]),
            (
                "f32",
                &["model_options.dtype=f32", "lora.targets=[\"q_proj\", \"down_proj\"]", "lora.rslora=true"],
            ),
            ("ppo", &["method=ppo", "train.steps=2"]),
            ("dpo", &["method=dpo", "train.steps=2"]),
        ],
    ) {
        let mut one = None;
        for ranks in in_turn(index, &[1, 2, 3]) {
            let dir = format!("{name}-{ranks}");
            let flag = format!("--ranks={ranks}");
            let said = folder.train(&dir, &[&[&*flag, "train.cut_multiple=4"], sets].concat());
            assert!(!said.contains("over-the-line"), "{name} on {ranks}: {said}");
            let left = left(&folder, &dir);
            assert!(left.iter().any(|line| line.contains(WEIGHTS)), "{name}: {left:?}");
            assert_eq!(one.get_or_insert_with(|| left.clone()), &left, "{name} on {ranks} ranks");
        }
        // Half the run on three ranks, the rest on two.
        let dir = format!("{name}-less");
        let sets = [&["train.cut_multiple=4"], sets].concat();
        folder.train(&dir, &[&sets[..], &["--ranks=3", "train.steps=1"]].concat());
        folder.train(&dir, &[&sets[..], &["--ranks=2", "--resume"]].concat());
        assert!(result(&folder, &dir) == result(&folder, &format!("{name}-1")), "{name}: other bits");
    }
}

#[test]
fn an_adapter_that_goes_on_equals_one_that_never_stopped() {
    let folder = Run::new(RUN);
    for (_, (name, sets)) in every_nth(
        2,
        [
            ("kl", &["loss.kl_coef=0.05", "loss.kl_target=0.01", "train.mini_batch=4"][..]),
            (
                "f32",
                &["model_options.dtype=f32", "lora.rslora=true", "lora.targets=[\"k_proj\", \"up_proj\"]"],
            ),
            ("layer", &["train.recompute=layer", "lora.rank=16"]),
            ("sft", &["method=sft"]),
            ("dpo", &["method=dpo"]),
            ("ppo", &["method=ppo", "critic.warmup_steps=1", "loss.kl_coef=0.05"]),
        ],
    ) {
        let (long, short) = (format!("{name}-long"), format!("{name}-short"));
        folder.train(&long, &[sets, &["checkpoint.every=100"]].concat());
        folder.train(&short, &[sets, &["train.steps=2"]].concat());
        let said = folder.train(&short, &[sets, &["--resume"]].concat());
        assert!(said.starts_with("resumes after step 2 from "), "{name}: {said}");
        assert!(result(&folder, &long) == result(&folder, &short), "{name}: other bits");
        assert!(!names(&folder, &format!("{long}/{LATEST}")).contains("model.safetensors"), "{name}");
        if name == "ppo" {
            // The critic has a new head, so it is trained in full.
            let critic = "state/critic.safetensors";
            assert!(folder.saved(&long, critic) == folder.saved(&short, critic), "another critic");
            assert!(folder.metrics(&long).iter().all(|step| number(step, "critic/grad_norm") > 0.0));
        }
        // Where states are changes none either: those of adapters stay, and a critic's move.
        let offload = match name {
            "kl" => Some("memory.offload=[\"optimizer\", \"reference\"]"),
            "ppo" => Some("memory.offload=[\"optimizer\"]"),
            _ => None,
        };
        if let Some(offload) = offload {
            let dir = format!("{name}-offloaded");
            let said = folder.train(&dir, &[sets, &[offload]].concat());
            assert!(said.contains("note: memory.offload with [lora]: "), "{said}");
            assert!(result(&folder, &dir) == result(&folder, &long), "{name}: other bits");
            let plan = folder.plan(&[sets, &[offload]].concat());
            assert_eq!(plan["resolved"]["offload"]["optimizer"], name == "ppo", "{}", plan["resolved"]);
        }
        if name == "layer" {
            // What is computed again in the backward pass has the same bits, adapters included.
            let sets = ["lora.rank=16", "train.recompute=none", "checkpoint.every=100"];
            folder.train("none", &sets);
            assert!(result(&folder, "none") == result(&folder, &long));
        }
    }
}

#[test]
fn a_run_goes_on_with_its_own_lora_alone() {
    let folder = Run::new(RUN);
    folder.train("out", &["train.steps=2"]);
    let before = (result(&folder, "out"), folder.read("out/run.toml"), folder.read("out/events.jsonl"));
    let changed = "error[run-file-changed]: ";
    let refused = |file: &Run, dir: &str, set: &str, named: &[&str]| {
        file.train_refused(dir, &["--resume", set], 2, &[&[changed], named].concat());
    };
    refused(&folder, "out", "lora.rank=8", &["lora.rank is 8, the run began with 4"]);
    refused(&folder, "out", "lora.alpha=4", &["lora.alpha is 4.0, the run began with 8.0"]);
    refused(&folder, "out", "lora.rslora=true", &["lora.rslora is true"]);
    refused(&folder, "out", "lora.targets=q_proj", &["lora.targets is "]);
    folder.write("whole.toml", &RUN.replace("[lora]\nrank = 4\n", ""));
    let whole = folder.file("whole.toml");
    refused(&whole, "out", "train.steps=4", &["lora.rank is absent, the run began with 4"]);
    let after = (result(&folder, "out"), folder.read("out/run.toml"), folder.read("out/events.jsonl"));
    assert!(before == after, "a refusal changed the run");
    // And the reverse.
    whole.train("whole", &["train.steps=2"]);
    let weights = folder.weights("whole");
    refused(&folder, "whole", "train.steps=4", &["lora.rank is 4, the run began with absent"]);
    assert!(weights == folder.weights("whole"));
    // Nothing was lost: both go on.
    folder.train("out", &["--resume"]);
    folder.train("long", &[]);
    assert!(result(&folder, "out") == result(&folder, "long"));
    whole.train("whole", &["--resume"]);
}

#[test]
fn a_checkpoint_of_another_base_model_is_refused() {
    let folder = Run::new(RUN);
    let base = whole_model(&folder, "made", &[]);
    let model = format!("model={base}");
    folder.train("long", &[&model]);
    folder.train("out", &[&model, "train.steps=2"]);
    let file = "made-model/model.safetensors";
    let good = folder.read(file);
    let mut other = good.clone();
    // A bit of a weight's exponent near the end.
    let last = other.len() - 1;
    other[last] ^= 1;
    folder.write_bytes(file, &other);
    let differs = ["error[resume-differs]: ", "the weights of `model`", "what the adapters change"];
    folder.train_fails("out", &[&model, "--resume"], 1, &differs);
    folder.write_bytes(file, &good);
    folder.train("out", &[&model, "--resume"]);
    assert!(result(&folder, "out") == result(&folder, "long"));
    // Without its base model an adapter is nothing.
    fs::rename(folder.path("made-model"), folder.path("moved")).expect("it is there");
    folder.train_fails("out", &[&model, "--resume", "train.steps=5"], 1, &["made-model"]);
    let adapter = folder.text_path(&format!("out/{LATEST}"));
    let args = ["eval", "--model", &adapter, "--data", "builtin:addition"];
    check_refused(&args, 1, &["made-model", "it is the base of the adapter "]);
}

#[test]
fn eval_and_generate_sample_with_an_adapter() {
    let folder = Run::new(&fs::read_to_string(FIRST_LORA).expect("a recipe"));
    let summary = folder.summary("out", &["train.steps=10", "eval.prompts_max=30", "eval.every=10"]);
    let adapter = folder.text_path(&format!("out/{LATEST}"));
    let (score, responses) = eval(&folder, &adapter, &[]);
    assert_eq!(score, number(&summary, "eval_after"));
    assert!(score > number(&summary, "eval_before") + 0.2, "{summary}");
    assert!(score > eval(&folder, "builtin:nano", &[]).0 + 0.2, "the adapter is not there");
    // With the bits of the run's own evaluation.
    let own = folder.read_lines("out/samples/eval-000010.jsonl");
    for (here, there) in responses.iter().zip(&own) {
        for key in ["prompt", "response", "logprobs"] {
            assert_eq!(here[key], there[key], "{key}");
        }
    }
    let prompt = responses[0]["prompt"].as_str().expect("text");
    let args = ["generate", "--model", &adapter, "--prompt", prompt, "--max-new-tokens", "5"];
    let output = plimsoll(&args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).trim(), responses[0]["response"].as_str().expect("text"));
}

#[test]
fn an_adapter_is_trained_on_from_either_place_and_only_as_itself() {
    let folder = Run::new(RUN);
    let last = folder.summary("first", &["train.steps=2"]);
    let at = folder.text_path(&format!("first/{LATEST}"));
    let (model, adapter) = (format!("model={at}"), format!("lora.adapter={at}"));
    // Both begin with what the first run ended with, and teach the same.
    for (dir, start) in [("as-model", &model), ("as-adapter", &adapter)] {
        let summary = folder.summary(dir, &[start]);
        assert_eq!(summary["eval_before"], last["eval_after"], "{dir}");
        let config = folder.read_json(&format!("{dir}/{LATEST}/adapter_config.json"));
        assert_eq!(config["base_model_name_or_path"], "builtin:nano", "{dir}");
    }
    assert!(result(&folder, "as-model") == result(&folder, "as-adapter"));
    // What they began with may go: a checkpoint has it.
    for (dir, start) in [("model-again", &model), ("adapter-again", &adapter)] {
        let kl = "loss.kl_coef=0.05";
        folder.train("long", &[start, kl]);
        folder.train(dir, &[start, kl, "train.steps=2"]);
        fs::rename(folder.path("first"), folder.path("aside")).expect("it is there");
        let said = folder.train(dir, &[start, kl, "--resume"]);
        assert!(said.contains("weights, configuration and tokenizer are the checkpoint's"), "{said}");
        assert!(result(&folder, dir) == result(&folder, "long"), "{dir}: other bits");
        fs::rename(folder.path("aside"), folder.path("first")).expect("it is there");
        fs::remove_dir_all(folder.path("long")).expect("it is there");
    }
    // Not as another adapter.
    let slug = "error[adapter-differs]: ";
    for wrong in ["lora.rank=8", "lora.alpha=4", "lora.targets=[\"q_proj\"]", "lora.rslora=true"] {
        for start in [&model, &adapter] {
            let has =
                "it has lora.rank = 4, lora.alpha = 8, lora.rslora = false, lora.targets = \"all-linear\"";
            folder.plan_refused(&[start, wrong], 2, &[slug, &at, has]);
            folder.check_train(&[start, wrong], 2, &[slug, has]);
        }
    }
    folder.check_train(&[&model, &adapter], 2, &[slug, "lora.adapter names another"]);
    // Not as a whole model.
    folder.write("whole.toml", &RUN.replace("[lora]\nrank = 4\n", ""));
    folder.file("whole.toml").check_train(&[&model], 2, &[slug, "has no [lora]", "--merge"]);
    // Not of a model of another shape, and not from what is no adapter.
    let golden = format!("model={}/../model/tests/golden/qwen3", env!("CARGO_MANIFEST_DIR"));
    let other = [&*golden, "model_options.tokenizer=bytes", &adapter];
    folder.check_train(&other, 1, &["error[adapter-other-base]: ", "trained on builtin:nano"]);
    let nowhere = format!("lora.adapter={}", folder.text_path("nowhere"));
    folder.check_train(&[&nowhere], 1, &["error[model-file-missing]: ", "adapter_config.json"]);
}

/// An adapter of one model that is trained on with another one of its shape is the other one's from then on.
#[test]
fn an_adapter_names_the_model_that_it_was_trained_on_last() {
    let folder = Run::new(RUN);
    folder.train("first", &["train.steps=1"]);
    let adapter = format!("lora.adapter={}", folder.text_path(&format!("first/{LATEST}")));
    let base = whole_model(&folder, "made", &["train.learning_rate=1e-2"]);
    folder.train("out", &[&adapter, &format!("model={base}"), "train.steps=2"]);
    let config = folder.read_json(&format!("out/{LATEST}/adapter_config.json"));
    let found = config["base_model_name_or_path"].as_str().expect("a path");
    assert_eq!(found, fs::canonicalize(&base).expect("it is there").to_str().expect("UTF-8"));
    let before = folder.read_json("out/summary.json");
    let (score, _) = eval(&folder, &folder.text_path(&format!("out/{LATEST}")), &[]);
    assert_eq!(score, number(&before, "eval_after"));
}

#[test]
fn an_adapter_is_exported_as_it_is_and_merged() {
    let folder = Run::new(RUN);
    let base = whole_model(&folder, "made", &["model_options.dtype=f32"]);
    let (model, f32) = (format!("model={base}"), "model_options.dtype=f32");
    folder.train("out", &[&model, f32, "train.steps=8", "rollout.prompts_per_step=16"]);
    let [run, adapter, merged] = ["out", "adapter", "merged"].map(|name| folder.text_path(name));
    export(&folder, "out", &adapter);
    let files = names(&folder, "adapter");
    assert!(files.contains("adapter_config.json") && files.contains(WEIGHTS), "{files:?}");
    assert!(!files.contains("state") && !files.contains("manifest.json"), "{files:?}");
    assert!(folder.read(&format!("adapter/{WEIGHTS}")) == folder.saved("out", WEIGHTS));
    let found = printed(&["checkpoint", "export", &run, "--merge", "--to", &merged, "--json"]);
    let of = &found["merged"];
    // f32 in f32: no element is rounded away, and all seven products of each layer have changed.
    assert!(number(of, "change_max") > 1e-4 && number(of, "rounding_max") == 0.0, "{found}");
    assert_eq!(of["tensors"].as_u64().expect("a count") % 7, 0, "{found}");
    let files = names(&folder, "merged");
    assert!(files.contains("model.safetensors") && files.contains("config.json"), "{files:?}");
    assert!(!files.contains("adapter_config.json"), "{files:?}");
    // One policy in two forms.
    let (score, of_adapter) = eval(&folder, &adapter, &[f32]);
    let (merged_score, of_merged) = eval(&folder, &merged, &[f32]);
    let (_, of_base) = eval(&folder, &base, &[f32]);
    assert_eq!(score, merged_score);
    let logprobs = |of: &[Value]| -> Vec<f64> {
        let all = of.iter().flat_map(|line| line["logprobs"].as_array().expect("a list"));
        all.map(|value| value.as_f64().expect("a number")).collect()
    };
    let responses = |of: &[Value]| of.iter().map(|line| line["response"].clone()).collect::<Vec<_>>();
    assert_eq!(responses(&of_adapter), responses(&of_merged));
    let [with, of_merged, without] = [&of_adapter, &of_merged, &of_base].map(|of| logprobs(of));
    let furthest = with.iter().zip(&of_merged).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(furthest < 1e-4, "log-probabilities differ by {furthest}");
    let moved = with.iter().zip(&without).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(moved > 100.0 * furthest && moved > 1e-2, "the adapter moved them by {moved}");
    // Also from peft's folder, and rounded once where the base is bf16.
    let again = folder.text_path("again");
    printed(&["checkpoint", "export", &adapter, "--merge", "--to", &again, "--json"]);
    assert!(folder.read("again/model.safetensors") == folder.read("merged/model.safetensors"));
    check_refused(&["checkpoint", "export", &run, "--merge", "--to", &again], 2, &["error[export-exists]: "]);
    check_refused(&["checkpoint", "export", &run, "--to", &adapter], 2, &["error[export-exists]: "]);
    // A checkpoint with a flipped bit is not merged.
    let weights = std::fs::read_dir(folder.path("out/checkpoints")).unwrap();
    for step in weights.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()) {
        let path = step.join("adapter_model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    let damaged = folder.text_path("damaged");
    let refused = ["error[checkpoint-damaged]: ", "adapter_model.safetensors"];
    check_refused(&["checkpoint", "export", &run, "--merge", "--to", &damaged], 1, &refused);
    assert!(!folder.path("damaged").exists());
    // A whole model has nothing to merge.
    let (made, to) = (folder.text_path("made"), folder.text_path("never"));
    let refused = ["error[merge-refused]: ", "leave out --merge"];
    check_refused(&["checkpoint", "export", &made, "--merge", "--to", &to], 2, &refused);
    assert!(!folder.path("never").exists());
    // The merged model is trained on in full.
    folder.file("whole.toml").train("on", &[&format!("model={merged}"), "train.steps=1"]);
}

#[test]
fn a_bf16_base_is_rounded_once_and_what_that_undid_is_counted() {
    let folder = Run::new(&fs::read_to_string(FIRST_LORA).expect("a recipe"));
    let summary = folder.summary("out", &["train.steps=12", "eval.prompts_max=30", "eval.every=12"]);
    let (run, merged) = (folder.text_path("out"), folder.text_path("merged"));
    let output = plimsoll(&["checkpoint", "export", &run, "--merge", "--to", &merged]);
    let said = text(&output.stdout);
    assert!(said.contains("largest rounding error ") && said.contains("tensors changed"), "{said}");
    let (score, _) = eval(&folder, &merged, &[]);
    assert!((score - number(&summary, "eval_after")).abs() <= 0.1, "{score}: {summary}");
}

#[test]
fn a_random_base_is_not_merged_into_and_a_quantised_one_is() {
    // Random weights have no files to add to.
    let folder = Run::new(&RUN.replace("builtin:nano", "random:nano"));
    folder.train("out", &["train.steps=1", "data.eval=none", "reward.0.kind=hash"]);
    let to = folder.text_path("merged");
    let refused = ["error[merge-refused]: ", "the base model is random"];
    check_refused(&["checkpoint", "export", &folder.text_path("out"), "--merge", "--to", &to], 1, &refused);
    // Weights of 8 bits are what a run decodes them to.
    let base = folder.write_bytes("base.gguf", quantised());
    fs::create_dir(folder.path("adapter")).expect("a folder");
    let config = json!({ "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"],
        "base_model_name_or_path": base });
    folder.write("adapter/adapter_config.json", &config.to_string());
    let tensor = |part| format!("base_model.model.model.layers.0.self_attn.q_proj.lora_{part}.weight");
    let (header, data) = header_and_data(&[(tensor("A"), vec![2, 32]), (tensor("B"), vec![32, 2])]);
    folder.write_bytes(
        "adapter/adapter_model.safetensors",
        safetensors(&Value::Object(header).to_string(), &data),
    );
    let adapter = folder.text_path("adapter");
    let found = printed(&["checkpoint", "export", &adapter, "--merge", "--to", &to, "--json"]);
    assert_eq!(
        (&found["merged"]["decoded"], &found["merged"]["tensors"]),
        (&json!("bf16"), &json!(1)),
        "{found}"
    );
}

/// Returns a GGUF file of one layer of two heads of 16, its matrices in blocks of 8 bits.
fn quantised() -> Vec<u8> {
    let meta: Vec<(&str, Meta)> = gguf_meta("llama")
        .into_iter()
        .map(|(key, value)| match key {
            "llama.embedding_length" | "llama.feed_forward_length" => (key, Meta::U32(32)),
            _ => (key, value),
        })
        .collect();
    let (mut listed, mut data) = (Vec::new(), Vec::<u8>::new());
    for (name, rows) in GGUF_NAMES.iter().zip([6, 0, 32, 16, 16, 32, 0, 32, 32, 32, 0]) {
        data.resize(data.len().next_multiple_of(32), 0);
        let (shape, kind) = if rows == 0 { (vec![32], 0) } else { (vec![rows, 32], 8) };
        listed.push(Listed { name: name.to_string(), shape, kind, offset: data.len() as u64 });
        // A norm of ones, or for each row a scale of 1/16 as f16 and 32 bytes.
        match rows {
            0 => (0..32).for_each(|_| data.extend(1f32.to_le_bytes())),
            _ => (0..rows).for_each(|row| {
                data.extend([0x00, 0x2c]);
                data.extend((0..32).map(|column| (row + column) as u8 % 16));
            }),
        }
    }
    gguf(&meta, &listed, &data)
}

#[test]
fn what_lora_cannot_train_is_refused_before_the_run() {
    let folder = Run::new(RUN);
    let slug = "error[lora-unsupported]: ";
    let narrow =
        [slug, "lora.rank = 200", "k_proj [128, 128]", "down_proj [128, 384]", "lora.rank to at most 128"];
    folder.plan_refused(&["lora.rank=200"], 2, &narrow);
    folder.check_train(&["lora.rank=200"], 2, &narrow);
    folder.plan(&["lora.rank=128"]);
    // Some layers of a model with few key-value heads are narrower than the others, which the hint names. Its shape is
    // known also where the model is elsewhere.
    let narrow = [
        slug,
        "k_proj [128, 896], v_proj [128, 896]",
        "[\"q_proj\", \"o_proj\", \"gate_proj\", \"up_proj\", \"down_proj\"]",
    ];
    for model in ["model=random:qwen2.5-0.5b", "model=hf:Qwen/Qwen2.5-0.5B"] {
        let sets = [model, "data.prompt_tokens_max=16", "data.eval=none", "lora.rank=200"];
        folder.plan_refused(&sets, 2, &narrow);
    }
    let folded = ["error[contradictory-keys]: ", "train.fold = 2 with [lora]", "remove train.fold"];
    folder.plan_refused(&["train.fold=2"], 2, &folded);
    // A critic begins with a whole model.
    folder.train("out", &["train.steps=1"]);
    let critic = format!("critic.model={}", folder.text_path(&format!("out/{LATEST}")));
    let whole = ["error[role-is-adapter]: critic.model = ", "--merge"];
    folder.plan_refused(&["method=ppo", &critic], 1, &whole);
}
