//! `quantize = "gguf"` from outside: a run over GGUF blocks has the bits of one over full weights, in less memory.

use crate::common::{check_refused, plimsoll, text};
use crate::made::{MIXED, coded_gguf, experts_gguf};
use crate::ranks::left;
use crate::run::{Run, export, json as printed, number, region};
use plimsoll_base::Encoding::{Q4K, Q5K, Q6K, Q8_0};
use serde_json::Value;
use std::fs;

const RUN: &str = r#"method = "grpo"
model = "base.gguf"
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 4
group_size = 2
max_new_tokens = 5
[[reward]]
kind = "hash"
[lora]
rank = 4
[train]
steps = 4
learning_rate = 1e-2
schedule = "constant"
cut_multiple = 4
[eval]
prompts_max = 10
[checkpoint]
every = 1
keep = 4
"#;
const BLOCKS: &str = "lora.quantize=gguf";
const WEIGHTS: &str = "adapter_model.safetensors";
const F32: &str = "model_options.dtype=f32";

fn folder() -> Run {
    let folder = Run::new(RUN);
    let base = folder.write_bytes("base.gguf", coded_gguf(&MIXED));
    let content = RUN.replace("base.gguf", &base);
    folder.write("x.toml", &content);
    folder
}

fn result(folder: &Run, dir: &str) -> [Vec<u8>; 2] {
    [WEIGHTS, "state/optimizer.safetensors"].map(|file| folder.saved(dir, file))
}

/// Returns what a step reports, without times and memory.
fn steps(folder: &Run, dir: &str) -> Vec<[Value; 4]> {
    let of = |step: Value| ["reward", "grad_norm", "entropy", "loss"].map(|key| step[key].clone());
    folder.metrics(dir).into_iter().map(of).collect()
}

fn bytes(plan: &Value, name: &str) -> f64 {
    region(plan, name).map_or(0.0, |row| number(row, "bytes"))
}

#[test]
fn a_run_over_blocks_is_the_run_over_their_numbers_in_the_memory_of_the_file() {
    let folder = folder();
    for dtype in [F32, "model_options.dtype=bf16"] {
        let (whole, coded) = (format!("whole-{dtype}"), format!("coded-{dtype}"));
        folder.train(&whole, &[dtype]);
        let summary = folder.summary(&coded, &[dtype, BLOCKS]);
        assert!(result(&folder, &whole) == result(&folder, &coded), "{dtype}: other bits");
        assert_eq!(steps(&folder, &whole), steps(&folder, &coded));
        assert!(steps(&folder, &coded).iter().any(|step| step[1].as_f64() > Some(0.0)), "nothing is learnt");
        assert_eq!(summary["logprob_mismatch_max"], 0.0);
        assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"]);
        let (full, plan) = (folder.plan(&[dtype]), folder.plan(&[dtype, BLOCKS]));
        // Each tensor in whole words, the region on its boundary.
        let shapes = [256 * 256, 128 * 256, 128 * 256, 256 * 256, 512 * 256, 512 * 256, 512 * 256];
        let stored = MIXED.iter().flat_map(|layer| layer.iter().zip(shapes)).map(|(encoding, elements)| {
            (elements / encoding.block_values() * encoding.block_bytes()).next_multiple_of(4)
        });
        assert_eq!(bytes(&plan, "actor.codes"), stored.sum::<u64>().next_multiple_of(256) as f64);
        assert!(region(&plan, "actor.scales").is_none() && region(&full, "actor.codes").is_none());
        assert!(bytes(&plan, "actor.weights") < bytes(&full, "actor.weights"));
    }
}

/// Gates and ups of all experts of a layer are one matrix, which is kept in the one encoding that they have.
#[test]
fn experts_are_kept_in_the_blocks_of_their_file() {
    let folder = Run::new(RUN);
    let base = folder.write_bytes("base.gguf", experts_gguf(&[[Q4K, Q4K, Q6K], [Q8_0, Q8_0, Q5K]]));
    folder.write("x.toml", &RUN.replace("base.gguf", &base));
    let of_attention = "lora.targets=[\"q_proj\", \"k_proj\", \"v_proj\", \"o_proj\"]";
    for dtype in [F32, "model_options.dtype=bf16"] {
        let (whole, coded) = (format!("whole-{dtype}"), format!("coded-{dtype}"));
        folder.train(&whole, &[dtype, of_attention]);
        let summary = folder.summary(&coded, &[dtype, of_attention, BLOCKS]);
        assert!(result(&folder, &whole) == result(&folder, &coded), "{dtype}: other bits");
        assert_eq!(summary["logprob_mismatch_max"], 0.0);
        assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"]);
        let plan = folder.plan(&[dtype, of_attention, BLOCKS]);
        let attention = 2 * (2 * 256 + 2 * 128) * 144;
        let experts = 3 * 256 * (2 * 144 + 210 + 2 * 272 + 176);
        assert_eq!(bytes(&plan, "actor.codes"), (attention + experts) as f64);
    }
    let other = folder.write_bytes("other.gguf", experts_gguf(&[[Q4K, Q5K, Q6K]]));
    let other = format!("model={other}");
    let said = ["error[lora-unsupported]: ", "in layer 0 gates of experts are q4_k and ups q5_k", "\"nf4\""];
    folder.plan_refused(&[&other, of_attention, BLOCKS], 2, &said);
    folder.train("other", &[&other, of_attention, "train.steps=1"]);
}

#[test]
fn it_goes_on_with_its_bits_and_on_any_number_of_ranks() {
    let folder = folder();
    let mut one = None;
    for ranks in ["1", "2"] {
        folder.train(ranks, &[BLOCKS, &format!("--ranks={ranks}")]);
        let left = left(&folder, ranks);
        assert_eq!(one.get_or_insert_with(|| left.clone()), &left, "on {ranks} ranks");
    }
    folder.train("less", &[BLOCKS, "train.steps=2", "--ranks=2"]);
    folder.train("less", &[BLOCKS, "--resume"]);
    assert!(result(&folder, "less") == result(&folder, "1"), "other bits");
    let said = ["error[run-file-changed]: ", "lora.quantize is absent, the run began with \"gguf\""];
    folder.train_refused("1", &["--resume"], 2, &said);
}

#[test]
fn a_critic_reads_the_blocks_of_its_actor_or_its_own() {
    let folder = folder();
    let sets = ["method=ppo", "lora.critic=adapter", "rollout.group_size=1", "critic.learning_rate=1e-2"];
    folder.train("whole", &sets);
    folder.train("coded", &[&sets[..], &[BLOCKS]].concat());
    let of = |dir: &str| folder.saved(dir, WEIGHTS);
    assert!(of("whole") == of("coded"), "other bits");
    let other = folder.write_bytes("critic.gguf", coded_gguf(&[MIXED[0]; 3]));
    let other = format!("critic.model={other}");
    let own = [&sets[..], &[BLOCKS, &other]].concat();
    let plan = folder.plan(&own);
    let [critic, actor] = ["critic.codes", "actor.codes"].map(|name| bytes(&plan, name));
    assert!(critic > 0.0 && critic != actor, "{critic} and {actor}");
    let summary = folder.summary("own", &own);
    assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"]);
    let said = ["error[model-not-gguf]: ", "critic.model", "lora.critic = \"adapter\""];
    folder.plan_refused(&[&sets[..], &[BLOCKS, "critic.model=random:nano"]].concat(), 2, &said);
}

#[test]
fn an_adapter_over_blocks_is_sampled_with_and_merged_as_it_was_trained() {
    let folder = folder();
    let summary = folder.summary("out", &[BLOCKS, "eval.every=4"]);
    let config = folder.read_json("out/checkpoints/latest/adapter_config.json");
    assert_eq!(config["base_quantization"], "gguf");
    let output = folder.text_path("responses.jsonl");
    let adapter = folder.text_path("out/checkpoints/latest");
    let args = ["eval", "--model", &adapter, "--data", "builtin:addition", "--prompts-max", "10"];
    let more = ["--max-new-tokens", "5", "--output", &output, "--json", "--set", "reward.0.kind=hash"];
    let found = printed(&[&args[..], &more].concat());
    assert_eq!(found["score"], summary["eval_after"]);
    let own = folder.read_lines("out/samples/eval-000004.jsonl");
    for (here, there) in folder.read_lines("responses.jsonl").iter().zip(&own) {
        assert_eq!((&here["response"], &here["logprobs"]), (&there["response"], &there["logprobs"]));
    }
    // Merged, and the same as a file for llama.cpp.
    let (run, merged, file) =
        (folder.text_path("out"), folder.text_path("merged"), folder.text_path("m.gguf"));
    let said = plimsoll(&["checkpoint", "export", &run, "--merge", "--to", &merged]);
    assert!(text(&said.stdout).contains("whose linear layers are what its blocks stand for"), "{said:?}");
    let args = ["checkpoint", "export", &run, "--merge", "--format", "gguf", "--output", &file, "--json"];
    assert!(number(&printed(&args)["merged"], "change_max") > 0.0);
    for model in [&merged, &file] {
        printed(&["generate", "--model", model, "--raw", "--prompt", "1+2=", "--json", "--quiet"]);
    }
    // Another base is not what it was trained on.
    let mut config = config;
    folder.train("nano", &["model=builtin:nano", "train.steps=1"]);
    export(&folder, "nano", &folder.text_path("nano-adapter"));
    let path = folder.text_path("nano-adapter/adapter_config.json");
    config["base_model_name_or_path"] = "builtin:nano".into();
    fs::write(&path, config.to_string()).expect("written");
    let args =
        ["generate", "--model", &folder.text_path("nano-adapter"), "--raw", "--prompt", "1", "--quiet"];
    check_refused(&args, 2, &["error[model-not-gguf]: ", "base_quantization", "safetensors, as bf16"]);
}

#[test]
fn what_is_no_gguf_file_is_refused_before_the_run() {
    let folder = folder();
    let slug = "error[model-not-gguf]: lora.quantize = \"gguf\" needs a GGUF file";
    for (model, found) in [
        ("builtin:nano", "has its weights in safetensors, as bf16"),
        ("random:nano", "is random and has no file"),
    ] {
        let set = format!("model={model}");
        let said = [slug, found, "hint: name a .gguf file, set lora.quantize = \"nf4\", or remove"];
        folder.plan_refused(&[BLOCKS, &set], 2, &said);
        folder.check_train(&[BLOCKS, &set], 2, &said);
    }
    // A shape that is known without its file has no encodings.
    let elsewhere = ["model=hf:Qwen/Qwen2.5-0.5B", "data.prompt_tokens_max=32", BLOCKS];
    folder.plan_refused(&elsewhere, 2, &[slug, "is not on this machine"]);
    folder.plan_refused(&[BLOCKS, "lora.merge=true"], 2, &["error[contradictory-keys]: "]);
}

#[test]
fn a_teacher_teaches_with_the_blocks_of_its_file() {
    let folder = folder();
    let teacher = format!("distill.teacher={}", folder.text_path("base.gguf"));
    let student = ["method=distill", "model=random:nano", &teacher, "rollout.group_size=1"];
    let whole = Run::new(&RUN.replace("[lora]\nrank = 4\n", ""));
    let of = |more: &[&'static str]| [&student[..], more].concat();
    whole.train("whole", &of(&[]));
    whole.train("coded", &of(&["distill.quantize=gguf"]));
    assert!(whole.weights("whole") == whole.weights("coded"), "other bits");
    assert!(bytes(&whole.plan(&of(&["distill.quantize=gguf"])), "teacher.codes") > 0.0);
    let nano = of(&["distill.quantize=gguf", "distill.teacher=builtin:nano"]);
    whole.plan_refused(&nano, 2, &["error[model-not-gguf]: distill.quantize = \"gguf\" needs a GGUF file"]);
}

#[test]
fn a_plan_offers_what_the_file_allows() {
    let folder = folder();
    let peak = |plan: &Value| number(&plan["pools"]["host"], "peak_bytes");
    let fixed = ["train.micro_batch_tokens=256", "train.recompute=layer", "memory.staging=1MiB", F32];
    let sets = |more: &[&'static str]| [&fixed[..], more].concat();
    let [whole, coded] = [folder.plan(&sets(&[])), folder.plan(&sets(&[BLOCKS]))];
    assert!(peak(&coded) < peak(&whole), "{} and {}", peak(&coded), peak(&whole));
    let between = format!("memory.host={}", ((peak(&whole) + peak(&coded)) / 2.0) as u64);
    let args = folder.args("plan", &[&sets(&[])[..], &[&between, "--json"]].concat());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let tight: Value = serde_json::from_slice(&plimsoll(&args).stdout).expect("an object");
    let hints = tight["hints"].as_array().expect("hints");
    let offer = hints.iter().find(|hint| hint["set"] == BLOCKS).unwrap_or_else(|| panic!("{hints:?}"));
    assert_eq!(offer["changes_result"], false, "{offer}");
}

#[test]
fn rollout_and_trainer_agree_over_blocks() {
    let folder = folder();
    let model = folder.text_path("base.gguf");
    let args = ["bench", "exactness", "--model", &model, "--lora-rank", "8", "--lora-quantize", "gguf"];
    let found = printed(&[&args[..], &["--tokens", "500", "--threads", "2", "--json"]].concat());
    assert_eq!((&found["mismatches"], &found["lora_quantize"]), (&0.into(), &"gguf".into()), "{found}");
    let args =
        ["bench", "exactness", "--model", "builtin:nano", "--lora-rank", "8", "--lora-quantize", "gguf"];
    check_refused(&args, 2, &["error[model-not-gguf]: "]);
}
