//! `train` and `eval` from outside: the run directory, what may not happen to it, and hostile data.

use crate::common::{check_refused, command, plimsoll, text};
use crate::run::{FIRST, Run, Started, kill, number, refs, region};
use serde_json::{Value, json};

const RUN: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 4
group_size = 2
max_new_tokens = 4
[[reward]]
kind = "exact"
[train]
steps = 2
learning_rate = 1e-5
[eval]
prompts_max = 8
"#;

#[test]
fn a_run_leaves_its_directory_and_one_object_on_stdout() {
    let folder = Run::new(RUN);
    let output = folder.output("out", &["--json"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let summary: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(summary, folder.read_json("out/summary.json"));
    assert_eq!(summary["steps"], 2);
    assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"]);
    assert_eq!(summary["logprob_mismatch_max"], 0.0);
    assert!(stderr.contains("step 1/2  reward ") && stderr.contains("eval at step 2: "), "{stderr}");
    assert!(!stderr.contains('\x1b') && !stderr.contains('\r'), "a live line in a pipe: {stderr:?}");

    let plan = folder.read_json("out/plan.json");
    assert_eq!(plan["arena_bytes"], summary["arena_planned_bytes"]);
    assert_eq!(folder.metrics("out").len(), 2);
    assert!(folder.path("out/checkpoints/latest/model.safetensors").is_file());
    assert!(folder.path("out/samples/step-000001.jsonl").is_file());
    assert!(!folder.path("out/crash.json").exists());

    // The resolved run file plans the same bytes.
    assert_eq!(folder.file("out/run.toml").plan(&[])["arena_bytes"], plan["arena_bytes"]);

    folder.train_refused("out", &[], 2, &["error[run-dir-not-empty]: ", "out-2"]);
}

#[test]
fn a_place_that_cannot_be_written_is_refused() {
    let folder = Run::new(RUN);
    folder.write("file", "x");
    folder.train_refused("file/out", &[], 1, &["error[run-dir-unwritable]: "]);
    folder.train_refused("file", &[], 1, &["error[run-dir-unwritable]: "]);
    assert!(folder.path("file").is_file());
}

#[test]
fn an_interrupted_run_saves_and_a_live_one_is_locked() {
    let folder = Run::new(RUN);
    let run = Started::new(command(&refs(&folder.train_args("out", &["train.steps=100000"]))));
    let pid = run.child.id();
    folder.train_refused("out", &[], 1, &["error[run-dir-locked]: ", &pid.to_string()]);
    kill("-TERM", pid);
    let output = run.end();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(143), "{said}");
    assert!(said.contains("\nerror[interrupted]: "), "{said}");
    assert!(folder.path("out/checkpoints/latest/model.safetensors").is_file());
    assert!(!folder.path("out/crash.json").exists());
}

#[test]
fn hostile_data_is_named_and_leaves_no_directory() {
    let folder = Run::new(RUN);
    let good = "{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}\n";
    for (data, sets, slug, contains) in [
        ("", &[][..], "data-empty", "data.jsonl"),
        ("\n\n", &[], "data-empty", "data.jsonl"),
        ("{\"prompt\": \"1+2=\"", &[], "data-bad-json", "1"),
        ("[1]\n", &[], "data-bad-json", "1"),
        ("{\"question\": \"1+2=\"}\n", &[], "data-column-missing", "prompt"),
        ("{\"prompt\": \"1+2=\"}\n", &[], "data-column-missing", "ground_truth"),
        (good, &["data.answer_column=target"], "data-column-missing", "target"),
        (good, &["data.prompt_tokens_max=2"], "prompt-too-long", "2"),
    ] {
        let path = folder.write("data.jsonl", data);
        let prompts = format!("data.prompts={path}");
        let sets: Vec<&str> = [&[prompts.as_str()], sets].concat();
        let slug = format!("error[{slug}]: ");
        let output = folder.output("out", &sets);
        let stderr = text(&output.stderr);
        assert!(matches!(output.status.code(), Some(1 | 2)), "{data:?} {sets:?}: {stderr}");
        assert!(stderr.starts_with(&slug) && stderr.contains(contains), "{data:?} {sets:?}: {stderr}");
        assert!(stderr.contains("\nhint: "), "{data:?} has no hint: {stderr}");
        assert!(!folder.path("out").exists(), "{data:?} left a run directory");
    }
    let missing = format!("data.prompts={}", folder.text_path("no-such.jsonl"));
    let output = folder.output("out", &[&missing]);
    assert!(text(&output.stderr).starts_with("error[data-missing]: "), "{}", text(&output.stderr));
}

#[test]
fn a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_weights() {
    let folder = Run::new(RUN);
    // Every weight overflows at the first update; the second step meets it.
    let output = folder.output("out", &["train.learning_rate=1e38", "train.steps=4", "train.grad_clip=0"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("not-finite]: "), "{stderr}");
    assert!(folder.path("out/crash.json").is_file());
}

#[test]
fn a_run_that_does_not_fit_is_refused_before_anything_is_made() {
    let folder = Run::new(RUN);
    let output = folder.output("out", &["memory.host=20MiB"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(
        stderr.starts_with("error[host-pool-exceeded]: ") && stderr.contains("\nhint: --set memory.host="),
        "{stderr}"
    );
    assert!(!folder.path("out").exists());
}

#[test]
fn eval_prints_a_score() {
    let args = [
        "eval",
        "--model",
        "builtin:nano",
        "--data",
        "builtin:addition",
        "--prompts-max",
        "8",
        "--max-new-tokens",
        "5",
    ];
    let output = plimsoll(&[&args[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert!(found["score"].as_f64().is_some_and(|score| (0.0..=1.0).contains(&score)), "{found}");
    assert!(text(&plimsoll(&args).stdout).starts_with("score "));
    check_refused(&[&args[..], &["--set", "train.steps=1"]].concat(), 2, &["error[unknown-key]: "]);
    check_refused(&["eval", "--model", "no/such", "--data", "builtin:addition"], 1, &["error[model-"]);
    check_refused(
        &["eval", "--model", "builtin:nano", "--data", "builtin:nothing"],
        2,
        &["error[unknown-task]: "],
    );
}

#[test]
fn eval_of_several_samples_prints_pass_at_k() {
    let args =
        "eval --model builtin:nano --data builtin:addition --prompts-max 6 --max-new-tokens 5 --samples 4";
    let args: Vec<&str> = args.split(' ').collect();
    let output = plimsoll(&[&args[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!((&found["samples"], &found["samples_per_prompt"]), (&json!(24), &json!(4)));
    let number = |value: &Value| value.as_f64().expect("a number");
    let pass: Vec<f64> = ["1", "2", "4"].iter().map(|k| number(&found["pass_at_k"][k])).collect();
    // `exact` gives 0 or 1: one sample is right as often as the mean says, four if the best of them is.
    assert!((pass[0] - number(&found["score"])).abs() < 1e-12, "{found}");
    assert!((pass[2] - number(&found["best"])).abs() < 1e-12, "{found}");
    assert!(pass[0] < pass[1] && pass[1] < pass[2], "{found}");
    let words = text(&plimsoll(&args).stdout);
    let expect = format!("pass@1 {:.4}, pass@2 {:.4}, pass@4 {:.4}, best of 4 ", pass[0], pass[1], pass[2]);
    assert!(words.contains(&expect), "{words}");
}

#[test]
fn all_samples_of_kept_prompts_are_kept_and_give_the_pass_at_k_that_was_said() {
    let folder = Run::new(RUN);
    let sets = ["eval.samples=4", "eval.temperature=1.0", "eval.prompts_max=8"];
    let output = folder.output("out", &sets);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let summary = folder.read_json("out/summary.json");
    let evals: Vec<Value> =
        folder.events("out").into_iter().filter(|event| event["event"] == "eval").collect();
    assert_eq!(evals.len(), 2);
    for (eval, key) in evals.iter().zip(["pass_at_k_before", "pass_at_k_after"]) {
        assert_eq!(summary[key], eval["pass_at_k"]);
        let name = format!("out/samples/eval-{:06}.jsonl", eval["step"].as_u64().expect("a step"));
        let rows = folder.read_lines(&name);
        assert_eq!(rows.len(), 32);
        let mut any = 0;
        for group in rows.chunks(4) {
            assert!(
                group.iter().all(|row| row["prompt"] == group[0]["prompt"] && row["step"] == eval["step"])
            );
            any += u32::from(group.iter().any(|row| row["reward"] == 1.0));
        }
        for row in &rows {
            let logprobs = row["logprobs"].as_array().expect("log-probs").len();
            assert_eq!(row["response_tokens"], logprobs, "{row}");
        }
        assert_eq!(eval["pass_at_k"]["4"], f64::from(any) / 8.0);
        assert!(stderr.contains(&format!(", pass@4 {:.3}, ", f64::from(any) / 8.0)), "{stderr}");
    }
}

#[test]
fn samples_that_an_evaluation_keeps_are_planned() {
    let folder = Run::new(RUN);
    let bytes = |samples: &str| {
        let samples = format!("eval.samples={samples}");
        let plan = folder.plan(&[&samples, "eval.temperature=1.0"]);
        ["rl.kept", "rl.records", "rl.text"]
            .map(|name| region(&plan, name).map_or(0, |row| row["bytes"].as_u64().expect("bytes")))
    };
    let [few, many, more] = ["4", "512", "1024"].map(bytes);
    assert_eq!(few[0], 0);
    assert!(many[0] > 0 && more[0] > 2 * many[0], "{many:?} {more:?}");
    assert!(few[1] < many[1] && many[1] < more[1], "{few:?} {many:?} {more:?}");
    // 8 prompts of 4 samples go together, and as few as one of more than 256.
    assert_eq!((many[2], more[2]), (512 / 32 * few[2], 1024 / 32 * few[2]));
}

#[test]
fn generate_streams_the_text_that_it_reports() {
    let args = ["generate", "--model", "builtin:nano", "--prompt", "123+456=", "--max-new-tokens", "5"];
    let streamed = plimsoll(&args);
    assert_eq!(streamed.status.code(), Some(0), "{}", text(&streamed.stderr));
    let output = plimsoll(&[&args[..], &["--json"]].concat());
    let found: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(text(&streamed.stdout), format!("{}\n", found["text"].as_str().expect("text")));
    assert!(text(&streamed.stderr).contains("tokens/s"));
    check_refused(&["generate", "--model", "builtin:nano", "--prompt", ""], 1, &["error[prompt-empty]: "]);
    check_refused(&[&args[..], &["--set", "rollout.top_p=2"]].concat(), 2, &["error[bad-value]: "]);
    check_refused(&["generate", "--model", "nano", "--prompt", "1"], 1, &["error[model-"]);
}

#[test]
fn exactness_finds_no_mismatch_and_sees_a_perturbed_order() {
    let args = ["bench", "exactness", "--model", "builtin:nano", "--tokens", "500", "--json"];
    for (perturb, exact) in [(false, true), (true, false)] {
        let extra: &[&str] = if perturb { &["--perturb"] } else { &[] };
        let output = plimsoll(&[&args[..], extra].concat());
        let found: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
        assert!(found["tokens"].as_u64().is_some_and(|tokens| tokens >= 500), "{found}");
        assert_eq!(found["mismatches"] == 0, exact, "{found}");
    }
    check_refused(&["bench", "rollout", "--repeats", "0"], 2, &["error[bad-usage]: "]);
    check_refused(&["bench", "rolout"], 2, &["error[bad-usage]: ", "rollout"]);
}

/// The README's first run, a few of its steps, with AdamW's moments in 8 bits.
#[test]
fn a_run_with_8_bit_moments_is_exact_and_its_plan_counts_them() {
    let folder = Run::new(RUN);
    let folder = folder.file(FIRST);
    let sets =
        ["train.optimizer_dtype=int8", "train.steps=2", "eval.prompts_max=8", "rollout.prompts_per_step=8"];
    let plan = folder.plan(&sets);
    let bytes = |name: &str| region(&plan, name).and_then(|row| row["bytes"].as_u64()).expect(name);
    let elements = region(&plan, "actor.weights").expect("weights")["shape"][0].as_u64().expect("a number");
    let moment = bytes("actor.adam_m") + bytes("actor.adam_m_scales");
    // 1.016 bytes each, and what rounds a region up.
    assert!(
        moment >= elements + elements / 64 && moment <= elements + elements / 64 + 512,
        "{moment} of {elements}"
    );
    assert_eq!(moment, bytes("actor.adam_v") + bytes("actor.adam_v_scales"));
    let summary = folder.summary("out", &sets);
    assert_eq!(summary["logprob_mismatch_max"], 0.0);
    assert!(folder.metrics("out").iter().all(|step| number(step, "grad_norm") > 0.0));
}
