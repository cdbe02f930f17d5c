//! Nothing fails silently: steps that teach nothing, means of nothing, prompts that reach the model in an unexpected
//! form, sequences beyond the model, and directories of runs that never began.

use crate::common::{check_refused, plimsoll, text};
use crate::run::{Run, has_python};
use serde_json::{Value, json};

const RUN: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 4
group_size = 4
max_new_tokens = 4
[[reward]]
kind = "exact"
[train]
steps = 8
learning_rate = 1e-5
dead_steps_max = 5
[eval]
prompts_max = 8
"#;

const REWARDS: &str = "\
def none(prompts, completions, **columns):
    return [None] * len(completions)

def same(prompts, completions, **columns):
    return [0.5] * len(completions)

def broken(prompts, completions, **columns):
    raise ValueError(\"typo\")
";

fn with_rewards() -> Run {
    let folder = Run::new(RUN);
    folder.write("rewards.py", REWARDS);
    folder
}

fn reward(folder: &Run, name: &str) -> String {
    format!("reward.0.kind=python:{}:{name}", folder.text_path("rewards.py"))
}

#[test]
fn a_run_without_scores_says_so_at_once_and_ends_with_its_weights_saved() {
    if !has_python() {
        return;
    }
    let folder = with_rewards();
    let none = reward(&folder, "none");
    let output = folder.output("out", &[&none]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("warning[no-score]: no sample has a score in this step"), "{said}");
    assert!(said.contains("\nerror[no-score]: no sample has a score in the last 5 steps"), "{said}");
    assert!(said.contains("eval at step 0: no score on 8"), "{said}");
    assert!(!said.contains("reward 0") && !said.contains("update tok/s 0"), "{said}");
    assert!(folder.path("out/checkpoints/latest/model.safetensors").is_file());
    let events = folder.events("out");
    let steps: Vec<&Value> = events.iter().filter(|event| event["event"] == "step").collect();
    assert_eq!(steps.len(), 5);
    assert!(steps.iter().all(|step| step["reward"].is_null() && step["metrics"]["reward"].is_null()));
    let warnings: Vec<&Value> = events.iter().filter(|event| event["event"] == "warning").collect();
    assert_eq!(
        (warnings.len(), &warnings[0]["slug"], &warnings[0]["step"]),
        (1, &json!("no-score"), &json!(1))
    );

    // The count is part of the checkpoint, and the limit may be raised.
    let on = folder.output("out", &["--resume", &none, "train.dead_steps_max=7"]);
    let said = text(&on.stderr);
    assert!(said.contains("error[no-score]: no sample has a score in the last 7 steps"), "{said}");
    let summary = folder.summary("out", &["--resume", &none, "train.dead_steps_max=0"]);
    for key in ["eval_before", "eval_after", "reward_first", "reward_last", "tokens_per_second_update"] {
        assert!(summary[key].is_null(), "{key} is {}", summary[key]);
    }
}

#[test]
fn equal_rewards_and_destroyed_weights_are_named() {
    let folder = with_rewards();
    if has_python() {
        let same = reward(&folder, "same");
        let words = ["error[no-advantage]: ", "their mean in the last step is 0.500"];
        folder.train_fails("same", &[&same], 1, &words);
    }
    folder.train_fails(
        "lr",
        &["train.learning_rate=1000"],
        1,
        &["error[no-advantage]: ", "last good weights: "],
    );
    // A run that learns says nothing.
    let output = folder.output("fine", &["train.steps=3"]);
    assert!(!text(&output.stderr).contains("warning["), "{}", text(&output.stderr));
}

#[test]
fn sequences_beyond_the_models_positions_are_refused_by_every_command() {
    let folder = Run::new(RUN);
    let long = json!({ "prompt": "1".repeat(300), "ground_truth": "1" });
    let prompts = format!("data.prompts={}", folder.write("long.jsonl", &format!("{long}\n")));
    let words = ["error[positions-beyond-model]: ", "64 positions"];
    folder.train_refused("out", &[&prompts], 2, &words);
    folder.plan_refused(&[&prompts], 2, &words);
    folder.plan_refused(&["rollout.max_new_tokens=100000"], 2, &words);
    let data = folder.text_path("long.jsonl");
    check_refused(&["eval", "--model", "builtin:nano", "--data", &data], 2, &words);
    let prompt = "1".repeat(64);
    check_refused(&["generate", "--model", "builtin:nano", "--prompt", &prompt], 2, &words);
    // The default length of a response is beyond this model, which is no reason to refuse.
    let output = plimsoll(&[
        "eval",
        "--model",
        "builtin:nano",
        "--data",
        "builtin:addition",
        "--prompts-max",
        "4",
        "--json",
    ]);
    let found: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(found["max_new_tokens"], 64 - 8, "{found}");
    let said = folder.train("out", &[&prompts, "model_options.positions=extend", "train.steps=1"]);
    assert!(said.contains("sequences reach 304 positions; the model was trained for 64"), "{said}");
}

#[test]
fn a_run_shows_its_first_prompt_and_counts_empty_and_cut_responses() {
    let folder = Run::new(RUN);
    let said = folder.train("out", &["train.steps=1", "rollout.max_new_tokens=1"]);
    assert!(said.contains("prompts are taken as they are; the first: \""), "{said}");
    assert!(said.contains("step 1: 16 responses, ") && said.contains(" cut by the length limit"), "{said}");
    let template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}<|im_start|>";
    let template = format!("data.chat_template={template}");
    let model = concat!("model=", env!("CARGO_MANIFEST_DIR"), "/../model/tests/golden/llama");
    let bytes = "model_options.tokenizer=bytes";
    let set = [model, bytes, "train.steps=1", "model_options.positions=extend", &template];
    let said = folder.train("chat", &set);
    assert!(said.contains("each prompt is a user message in the chat template"), "{said}");
    assert!(said.contains("the first: \"<|im_start|>"), "{said}");
}

#[test]
fn an_evaluation_writes_every_response_with_its_prompt_and_reason_to_end() {
    let folder = Run::new(RUN);
    let to = folder.text_path("responses.jsonl");
    let args = ["eval", "--model", "builtin:nano", "--data", "builtin:addition", "--prompts-max", "20"];
    let output = plimsoll(&[&args[..], &["--samples", "3", "--output", &to]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("\nprompts are taken as they are; the first: "));
    let rows = folder.read_lines("responses.jsonl");
    assert_eq!(rows.len(), 60);
    for (i, row) in rows.iter().enumerate() {
        let place = (row["prompt_index"].as_u64(), row["sample"].as_u64());
        assert_eq!(place, (Some(i as u64 / 3), Some(i as u64 % 3)));
        assert!(
            row["ground_truth"].is_string() && row["finish"].is_string() && row["reward"].is_number(),
            "{row}"
        );
    }
    let nowhere = folder.text_path("no/such/folder.jsonl");
    check_refused(&[&args[..], &["--output", &nowhere]].concat(), 1, &["error[output-unwritable]: "]);
}

#[test]
fn a_run_that_failed_before_its_first_step_is_no_obstacle_and_another_is_replaced_on_request() {
    let folder = with_rewards();
    if has_python() {
        let broken = reward(&folder, "broken");
        folder.train_fails("out", &[&broken, "data.eval=none"], 1, &["error[reward-function-raised]: "]);
    }
    folder.train("out", &["train.steps=1"]);
    folder.train_refused("out", &["train.steps=1"], 2, &["error[run-dir-not-empty]: ", "--overwrite"]);
    folder.write("out/thesis.tex", "mine");
    folder.train_refused("out", &["train.steps=1", "--overwrite"], 2, &["error[run-dir-not-empty]: "]);
    std::fs::remove_file(folder.path("out/thesis.tex")).unwrap();
    folder.train("out", &["train.steps=2", "--overwrite"]);
    assert_eq!(folder.read_json("out/summary.json")["steps"], 2);
    assert!(!folder.path("out/checkpoints/step-000001").exists());
}

#[test]
fn an_unknown_flag_names_the_key_that_it_was_meant_for() {
    let folder = Run::new(RUN);
    let run = folder.text_path("x.toml");
    for (flag, key) in [
        ("--steps", "train.steps"),
        ("--learning-rate", "train.learning_rate"),
        ("--train.steps=3", "train.steps"),
    ] {
        let hint = format!("--set {key}=VALUE");
        check_refused(&["train", &run, flag], 2, &["error[bad-usage]: ", &hint]);
    }
}
