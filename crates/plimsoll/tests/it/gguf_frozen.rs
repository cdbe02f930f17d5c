//! `model_options.quantize = "gguf"` from outside: models that nothing trains stay in the blocks of their GGUF files,
//! have the bits of widened ones, and take less memory.

use crate::common::{check_refused, every_nth, plimsoll};
use crate::made::{MIXED, coded_gguf, experts_gguf};
use crate::run::{Run, json as printed, number, region};
use crate::serve::client::Server;
use plimsoll_base::Encoding::{Q4_1, Q4K, Q5K, Q6K, Q8_0};
use serde_json::{Value, json};

/// All weights are trained, and compared with those of before.
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
[loss]
kl_coef = 0.1
[train]
steps = 3
learning_rate = 1e-3
schedule = "constant"
cut_multiple = 4
[eval]
prompts_max = 10
[checkpoint]
every = 1
keep = 4
"#;
const BLOCKS: &str = "model_options.quantize=gguf";
const FULL: &str = "model_options.quantize=full";
const DTYPES: [&str; 2] = ["model_options.dtype=f32", "model_options.dtype=bf16"];

fn folder() -> Run {
    let folder = Run::new(RUN);
    let base = folder.write_bytes("base.gguf", coded_gguf(&MIXED));
    folder.write("x.toml", &RUN.replace("base.gguf", &base));
    folder
}

fn bytes(plan: &Value, name: &str) -> f64 {
    region(plan, name).map_or(0.0, |row| number(row, "bytes"))
}

fn host_peak(plan: &Value) -> f64 {
    number(&plan["pools"]["host"], "peak_bytes")
}

#[test]
fn what_is_sampled_from_blocks_is_what_the_widened_model_samples() {
    let folder = folder();
    let model = folder.text_path("base.gguf");
    for dtype in DTYPES {
        let generated = |how| {
            let args = ["generate", "--model", &model, "--raw", "--prompt", "12+34=", "--json", "--quiet"];
            let sets = ["--max-new-tokens", "8", "--set", dtype, "--set", how];
            let found = printed(&[&args[..], &sets, &["--set", "rollout.temperature=1.0"]].concat());
            (["tokens", "text", "logprobs"].map(|key| found[key].clone()), number(&found, "arena_bytes"))
        };
        let ((full, whole), (coded, less)) = (generated(FULL), generated(BLOCKS));
        assert!(coded == full && !coded[0].as_array().expect("tokens").is_empty(), "{dtype}: {coded:?}");
        assert!(less < whole, "{dtype}: {less} and {whole}");
        assert_eq!(generated("model_options.quantize=auto"), (full, whole), "auto is full");
        let evaluated = |how| {
            let args =
                ["eval", "--model", &model, "--data", "builtin:addition", "--prompts-max", "10", "--json"];
            let sets = ["--max-new-tokens", "5", "--set", "reward.0.kind=hash", "--set", dtype, "--set", how];
            let found = printed(&[&args[..], &sets].concat());
            (["score", "samples"].map(|key| found[key].clone()), number(&found, "arena_bytes"))
        };
        let ((full, whole), (coded, less)) = (evaluated(FULL), evaluated(BLOCKS));
        assert!(full == coded && less < whole, "{dtype}: {coded:?} in {less} of {whole}");
    }
}

#[test]
fn a_client_is_served_from_blocks() {
    let folder = folder();
    let model = folder.text_path("base.gguf");
    let of = |how| {
        let args = [&model, "--seed", "7", "--set", how, "--sequences", "4", "--prompt-tokens", "16"];
        let (server, words) = Server::start_with_words(&[&args[..], &["--max-new-tokens", "16"]].concat());
        let body = json!({ "prompt": "12+34=", "max_tokens": 8, "temperature": 1.0, "seed": 0, "logprobs": 0,
            "return_token_ids": true, "n": 3 });
        let (before, _) = words.split_once(" MiB planned").unwrap_or_else(|| panic!("{words}"));
        let planned: f64 = before.rsplit(' ').next().and_then(|word| word.parse().ok()).expect("a number");
        (server.post("/v1/completions", &body).json()["choices"].clone(), planned)
    };
    let ((full, whole), (coded, less)) = (of(FULL), of(BLOCKS));
    assert!(less < whole, "{less} and {whole} MiB");
    assert_eq!(coded.as_array().map(Vec::len), Some(3));
    assert_eq!(full, coded);
}

#[test]
fn memory_is_measured_below_its_plan() {
    let folder = Run::new(RUN);
    let model = folder.write_bytes("base.gguf", coded_gguf(&[[Q4_1; 7]; 24]));
    let of = |how| {
        let args = ["bench", "rollout", "--model", &model, "--sequences", "4", "--prompt-tokens", "8"];
        let more = ["--new-tokens", "8", "--repeats", "1", "--threads", "2", "--json", "--quantize", how];
        let found = printed(&[&args[..], &more].concat());
        ["planned_bytes", "peak_bytes"].map(|key| number(&found, key))
    };
    let ([planned, peak], [whole, peak_of_whole]) = (of("gguf"), of("full"));
    assert!(peak <= planned && peak_of_whole <= whole, "{peak} of {planned}, {peak_of_whole} of {whole}");
    // 589,824 weights a layer of 2 bytes, or 20 for 32, less the room for gate and up widened.
    let saved = 24.0 * 589_824.0 * (2.0 - 20.0 / 32.0) - 2.0 * 1024.0 * 256.0;
    assert!(whole - planned > 0.9 * saved, "{planned} and {whole}");
    assert!(peak_of_whole - peak > 0.5 * saved, "{peak} and {peak_of_whole}");
}

#[test]
fn a_reference_stays_in_blocks_while_the_policy_is_trained_in_full() {
    let folder = folder();
    for (_, dtype) in every_nth(2, DTYPES) {
        let (whole, coded) = (format!("whole-{dtype}"), format!("coded-{dtype}"));
        folder.train(&whole, &[dtype]);
        let summary = folder.summary(&coded, &[dtype, BLOCKS]);
        assert!(folder.result(&whole) == folder.result(&coded), "{dtype}: other bits");
        assert!(folder.metric(&coded, "kl") != 0.0, "no divergence from the reference");
        assert_eq!(summary["logprob_mismatch_max"], 0.0);
        assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"]);
        let (full, plan) = (folder.plan(&[dtype]), folder.plan(&[dtype, BLOCKS]));
        assert!(bytes(&plan, "reference.codes") > 0.0 && bytes(&full, "reference.codes") == 0.0);
        assert!(region(&plan, "actor.codes").is_none());
        let [slower, seconds] = [&plan, &full].map(|plan| number(plan, "predicted_run_s"));
        assert!(slower > seconds, "widening blocks takes time: {slower} and {seconds}");
        assert_eq!(bytes(&plan, "actor.weights"), bytes(&full, "actor.weights"));
        let all =
            |plan| ["weights", "codes", "widened"].map(|what| bytes(plan, &format!("reference.{what}")));
        let [of_plan, of_full] = [all(&plan), all(&full)].map(|rows| rows.iter().sum::<f64>());
        assert!(of_plan < of_full, "{dtype}: {of_plan} and {of_full}");
    }
}

#[test]
fn a_reference_in_blocks_goes_on_and_is_one_of_several_ranks() {
    let folder = folder();
    folder.train("one", &[BLOCKS]);
    folder.train("two", &[BLOCKS, "--ranks=2"]);
    assert!(folder.result("one") == folder.result("two"), "on 2 ranks: other bits");
    folder.train("less", &[BLOCKS, "train.steps=2", "--ranks=2"]);
    folder.train("less", &[BLOCKS, "--resume"]);
    assert!(folder.result("one") == folder.result("less"), "resumed: other bits");
    let said = ["error[run-file-changed]: ", "model_options.quantize"];
    folder.train_refused("one", &["--resume"], 2, &said);
    // What was trained is in full, whatever its reference was.
    let (server, _) = Server::start_with_words(&[&folder.text_path("one")]);
    assert_eq!(server.post("/v1/completions", &json!({ "prompt": "1+1=" })).status, 200);
}

#[test]
fn a_teacher_and_the_base_of_a_reward_model_stay_in_blocks() {
    let folder = folder();
    let base = folder.text_path("base.gguf");
    let student = Run::new(&RUN.replace("base.gguf", "random:nano").replace("[loss]\nkl_coef = 0.1\n", ""));
    let teacher = format!("distill.teacher={base}");
    let of =
        |more: &[&'static str]| [&["method=distill", &teacher, "rollout.group_size=1"][..], more].concat();
    student.train("whole", &of(&[]));
    student.train("coded", &of(&[BLOCKS]));
    assert!(student.weights("whole") == student.weights("coded"), "other bits");
    assert!(bytes(&student.plan(&of(&[BLOCKS])), "teacher.codes") > 0.0);
    // Its own key is about it alone, and no other model is frozen.
    let said = ["error[contradictory-keys]: ", "no model of this run is frozen: all "];
    student.plan_refused(&of(&["distill.quantize=nf4", BLOCKS]), 2, &said);

    let reward = Run::new(&format!(
        "method = \"reward_model\"\nmodel = \"{base}\"\n[data]\nprompts = \"builtin:addition\"\n[rollout]\n\
         prompts_per_step = 8\n[lora]\nrank = 4\n[train]\nsteps = 2\nlearning_rate = 1e-3\n[eval]\nprompts_max = 8\n"
    ));
    reward.train("out", &[]);
    let adapter = reward.text_path("out/checkpoints/latest");
    let eval = |how| {
        let (kind, of) = ("reward.0.kind=model", format!("reward.0.model={adapter}"));
        let args = ["eval", "--model", &base, "--data", "builtin:addition", "--prompts-max", "6", "--json"];
        // What a plan would choose by what a path costs.
        let sizes = ["--set", "rollout.sequences_max=6"];
        let sets = ["--max-new-tokens", "5", "--set", kind, "--set", &of, "--set", how];
        let found = printed(&[&args[..], &sizes, &sets].concat());
        (found["score"].clone(), number(&found, "arena_bytes"))
    };
    let ((full, whole), (coded, less)) = (eval(FULL), eval(BLOCKS));
    assert!(full == coded && full.is_number() && less < whole, "{coded} in {less} of {whole}, {full}");
}

/// An adapter is read over what it was trained on, which blocks and widened weights both are.
#[test]
fn an_adapter_is_sampled_with_over_blocks_or_over_widened_weights() {
    let folder = folder();
    let adapted = ["lora.rank=4", "loss.kl_coef=0", "train.steps=2", "train.learning_rate=1e-2"];
    for (dir, how) in
        [("full", "lora.rank=4"), ("blocks", "lora.quantize=gguf"), ("nf4", "lora.quantize=nf4")]
    {
        folder.train(dir, &[&adapted[..], &[how]].concat());
    }
    let generated = |dir: &str, how| {
        let model = folder.text_path(&format!("{dir}/checkpoints/latest"));
        let args = ["generate", "--model", &model, "--raw", "--prompt", "12+34=", "--json", "--quiet"];
        let found = printed(&[&args[..], &["--max-new-tokens", "8", "--set", how]].concat());
        (["tokens", "logprobs"].map(|key| found[key].clone()), number(&found, "arena_bytes"))
    };
    for dir in ["full", "blocks"] {
        let ((full, whole), (coded, less)) = (generated(dir, FULL), generated(dir, BLOCKS));
        assert!(full == coded && less < whole, "{dir}: {coded:?} in {less} of {whole}");
    }
    let model = folder.text_path("nf4/checkpoints/latest");
    let args = ["generate", "--model", &model, "--raw", "--prompt", "1", "--set", BLOCKS, "--quiet"];
    check_refused(&args, 2, &["error[contradictory-keys]: ", "was trained on a base in 4 bits (nf4)"]);
}

#[test]
fn what_cannot_stay_in_blocks_is_refused_by_name() {
    let folder = folder();
    let slug = "error[model-not-gguf]: model_options.quantize = \"gguf\" needs a GGUF file";
    for (model, found) in [
        ("builtin:nano", "has its weights in safetensors, as bf16"),
        ("random:nano", "is random and has no file"),
    ] {
        let said = [slug, found, "hint: name a .gguf file, or remove model_options.quantize"];
        let args = ["generate", "--model", model, "--raw", "--prompt", "1", "--set", BLOCKS, "--quiet"];
        check_refused(&args, 2, &said);
        folder.plan_refused(&[BLOCKS, &format!("model={model}")], 2, &said);
    }
    let refused =
        |sets: &[&'static str], said: &[&str]| folder.plan_refused(&[&[BLOCKS], sets].concat(), 2, said);
    let slug = "error[contradictory-keys]: model_options.quantize = \"gguf\": ";
    // [15, 256] of tokens, two layers of 589,824 and norms.
    let count = (15 * 256 + 2 * (589_824 + 2 * 256) + 256).to_string();
    let said =
        ["no model of this run is frozen: all ", &count, "are trained", "hint: train adapters, with [lora]"];
    refused(&["loss.kl_coef=0"], &[&[slug], &said[..]].concat());
    let said = [slug, "the only frozen weights are the ", "hint: set lora.quantize = \"gguf\" instead"];
    refused(&["lora.rank=4"], &said);
    refused(&["lora.rank=4", "lora.quantize=gguf"], &said);
    refused(&["memory.offload=[\"reference\"]"], &["error[contradictory-keys]: ", "weights in blocks stay"]);
    refused(&["model_options.quantize=nf4"], &["error[", "\"gguf\" or \"full\""]);
    let other = folder.write_bytes("other.gguf", experts_gguf(&[[Q4K, Q5K, Q6K]]));
    let said = ["error[bad-value]: ", "in layer 0 gates of experts are q4_k and ups q5_k"];
    folder.plan_refused(&[BLOCKS, &format!("model={other}")], 2, &said);
    let alike = folder.write_bytes("alike.gguf", experts_gguf(&[[Q4K, Q4K, Q6K], [Q8_0, Q8_0, Q5K]]));
    assert!(bytes(&folder.plan(&[BLOCKS, &format!("model={alike}")]), "reference.codes") > 0.0);
}

#[test]
fn a_plan_that_is_too_large_offers_blocks() {
    let folder = folder();
    let fixed = ["train.micro_batch_tokens=256", "train.recompute=layer", "memory.staging=1MiB", DTYPES[0]];
    let [whole, coded] =
        [&[][..], &[BLOCKS][..]].map(|more| host_peak(&folder.plan(&[&fixed[..], more].concat())));
    assert!(coded < whole, "{coded} and {whole}");
    let between = format!("memory.host={}", ((whole + coded) / 2.0) as u64);
    let args = folder.args("plan", &[&fixed[..], &[&between, "--json"]].concat());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let tight: Value = serde_json::from_slice(&plimsoll(&args).stdout).expect("an object");
    let hints = tight["hints"].as_array().expect("hints");
    let offer = hints.iter().find(|hint| hint["set"] == BLOCKS).unwrap_or_else(|| panic!("{hints:?}"));
    assert_eq!(offer["changes_result"], false, "{offer}");
}
