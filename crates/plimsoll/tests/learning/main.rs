//! Learning, judged by an optimised program: `cargo test --release -p plimsoll --test learning`, as `.ci/full` does.
//! What each of these does exactly, and within its plan, is tested in `it` by a few steps.

#[path = "../common/mod.rs"]
mod common;
#[path = "../it/run.rs"]
#[allow(dead_code, reason = "runs that learn need a part of it")]
mod run;
#[path = "../it/taught.rs"]
mod taught;

use common::{Folder, command, text};
use run::{FIRST, Run, has_python, number};
use serde_json::{Value, json};
use std::fs;
use taught::taught;

const FIRST_REWARD_MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/first-reward-model.toml");
const FIRST_LORA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/first-lora.toml");
const FIRST_PPO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/first-ppo.toml");

/// Three sums in a row, each with a reward of its own.
const GAMES: &str = r#"
import random

class Row:
    def reset(self, seed):
        self.draw = random.Random(seed)
        self.turn = 0
        return self.ask()

    def ask(self):
        self.a, self.b = self.draw.randint(100, 999), self.draw.randint(100, 999)
        return f"{self.a}+{self.b}="

    def step(self, response):
        self.turn += 1
        reward = float(response == str(self.a + self.b))
        return self.ask(), reward, self.turn == 3
"#;

const ROW: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompt_tokens_max = 8
[environment]
turns_max = 3
turn_tokens_max = 8
restarts_max = 1000
credit = "turn"
[rollout]
prompts_per_step = 16
group_size = 8
max_new_tokens = 5
[train]
steps = 40
learning_rate = 1e-4
[eval]
prompts_max = 64
"#;

const DPO: &str = r#"method = "dpo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 32
[train]
steps = 30
learning_rate = 1e-4
[eval]
prompts_max = 100
"#;

/// With this seed 40 steps are enough on every instruction path.
const REWARD_MODEL: &str = r#"method = "reward_model"
model = "builtin:nano"
seed = 1
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 64
[train]
steps = 40
learning_rate = 1e-3
[eval]
prompts_max = 200
"#;

/// The reward of each right digit is a step's; the score is the whole answer's.
const STEPS: &str = r#"
def of(response, answer):
    steps = [[i + 1, float(answer[i : i + 1] == c)] for i, c in enumerate(response)]
    return {"score": float(response == answer), "steps": steps}

def digits(completions, ground_truth, **kwargs):
    return [of(c, str(t)) for c, t in zip(completions, ground_truth)]
"#;

const SUMS: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 16
group_size = 8
max_new_tokens = 5
[loss]
step_credit = "turn"
[[reward]]
kind = "python:FILE:digits"
[train]
steps = 40
learning_rate = 1e-4
[eval]
prompts_max = 64
"#;

/// Returns the mean of a metric over the last three steps: one step of 32 samples is noisy.
fn last(folder: &Run, dir: &str, metric: &str) -> f64 {
    let metrics = folder.metrics(dir);
    metrics[metrics.len() - 3..].iter().map(|step| number(step, metric)).sum::<f64>() / 3.0
}

/// Returns the scores of held-out prompts before and after.
fn scores(summary: &Value) -> [f64; 2] {
    ["eval_before", "eval_after"].map(|name| number(summary, name))
}

#[test]
fn the_first_run_learns_with_muon() {
    let summary = Run::new(&fs::read_to_string(FIRST).expect("a recipe"))
        .summary("out", &["train.optimizer=muon", "train.steps=30", "eval.prompts_max=200"]);
    let [before, after] = scores(&summary);
    assert!(before < 0.4 && after > 0.85, "{before} to {after}");
}

#[test]
fn a_run_file_of_ones_own_learns() {
    let folder = Folder::new();
    let within = |args: &[&str]| {
        let output = command(args).current_dir(folder.path(".")).output().expect("the binary runs");
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        output.stdout
    };
    let names = ["--model", "builtin:nano", "--data", "builtin:addition", "--reward", "exact"];
    within(&[&["init"], &names[..], &["--output", "sums.toml"]].concat());
    let summary = within(&["train", "sums.toml", "--json", "--set", "train.steps=60"]);
    let [before, after] = scores(&serde_json::from_slice(&summary).expect("a summary"));
    assert!(before < 0.45 && after >= 0.9, "{before} to {after}");
}

#[test]
fn a_reward_model_learns_an_adapter_and_a_head() {
    let sets = ["lora={}", "train.steps=80", "train.learning_rate=1e-3", "eval.prompts_max=300"];
    let recipe = fs::read_to_string(FIRST_REWARD_MODEL).expect("a recipe");
    let [before, after] = scores(&Run::new(&recipe).summary("out", &sets));
    assert!(after > before + 0.15, "{before} before, {after} after");
}

#[test]
fn ppo_learns_with_a_critic_that_is_an_adapter() {
    let folder = Run::new(&fs::read_to_string(FIRST_PPO).expect("a recipe"));
    let sets = [
        "lora={rank = 8, critic = \"adapter\"}",
        "train.steps=20",
        "train.learning_rate=1e-3",
        "critic.learning_rate=3e-3",
        "eval.prompts_max=200",
    ];
    let summary = folder.summary("out", &sets);
    let [before, after] = scores(&summary);
    assert!(after > before + 0.2, "{before} before, {after} after");
    assert_eq!(summary["logprob_mismatch_max"], 0.0);
    assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"]);
    let explained = |metrics: &Value| number(metrics, "value/explained_variance");
    let metrics = folder.metrics("out");
    assert!(metrics.iter().all(|step| number(step, "critic/grad_norm") > 0.0), "{metrics:?}");
    assert!(explained(metrics.last().expect("steps")) > 0.1, "{metrics:?}");
}

#[test]
fn a_row_of_sums_is_learned_turn_by_turn() {
    if !has_python() {
        return;
    }
    let folder = Run::new(ROW);
    folder.write("games.py", GAMES);
    let env = format!("environment.env=python:{}:Row", folder.text_path("games.py"));
    let [before, after] = scores(&folder.summary("out", &[&env]));
    // 0.36 and 0.98 where it was written.
    assert!(before < 0.5 && after > 0.8, "right sums of three: {before} before, {after} after");
}

#[test]
fn the_first_run_learns_with_8_bit_moments() {
    let summary = Run::new(&fs::read_to_string(FIRST).expect("a recipe"))
        .summary("out", &["train.optimizer_dtype=int8", "train.steps=40"]);
    let [before, after] = scores(&summary);
    assert!(after > before + 0.05, "{before} before, {after} after");
}

#[test]
fn each_form_of_an_adapter_learns() {
    let folder = Run::new(&fs::read_to_string(FIRST_LORA).expect("a recipe"));
    for form in ["lora.merge=true", "lora.quantize=nf4"] {
        let sets = ["train.steps=12", "eval.prompts_max=100", "eval.every=12", "loss.kl_coef=0.001", form];
        let [before, after] = scores(&folder.summary(form, &sets));
        assert!(after > before + 0.3, "{form}: {before} before, {after} after");
    }
}

#[test]
fn dpo_raises_margin_and_accuracy_over_held_out_pairs() {
    let summary = Run::new(DPO).summary("out", &[]);
    assert_eq!(summary["pairs_before"], json!({ "accuracy": 0.0, "margin": 0.0 }));
    assert!(number(&summary["pairs_after"], "accuracy") > 0.6, "{summary}");
    assert!(number(&summary["pairs_after"], "margin") > 0.2, "{summary}");
}

#[test]
fn a_reward_model_of_all_weights_learns() {
    let summary = Run::new(REWARD_MODEL).summary("out", &[]);
    let (before, after) = (&summary["pairs_before"], &summary["pairs_after"]);
    assert!(number(after, "accuracy") > number(before, "accuracy") + 0.05, "{summary}");
    assert!(number(after, "margin") > 0.2, "{summary}");
}

#[test]
fn sums_are_learned_digit_by_digit() {
    if !has_python() {
        return;
    }
    let folder = Run::new("");
    let file = folder.write("steps.py", STEPS);
    folder.write("x.toml", &SUMS.replace("FILE", &file));
    let [before, after] = scores(&folder.summary("out", &[]));
    assert!(before < 0.5 && after > 0.5, "{before} before, {after} after");
}

#[test]
fn a_student_nears_its_teacher_without_a_reward() {
    let folder = taught();
    // Samples differ by instruction path: 20 steps are enough on some alone.
    let sets =
        ["train.steps=30", "rollout.prompts_per_step=32", "rollout.group_size=4", "checkpoint.every=100"];
    folder.train("out", &sets);
    let first = number(&folder.metrics("out")[0], "distill/reverse_kl");
    let last = last(&folder, "out", "distill/reverse_kl");
    assert!(first > 0.05 && last < 0.4 * first, "{first} to {last}");
}

#[test]
fn a_student_nears_its_teacher_faster_by_a_divergence_than_by_sampled_tokens() {
    let folder = taught();
    let sets =
        ["train.steps=16", "rollout.prompts_per_step=16", "rollout.group_size=2", "checkpoint.every=100"];
    folder.train("sampled", &sets);
    let sampled = last(&folder, "sampled", "distill/reverse_kl");
    for divergence in ["reverse", "forward", "jsd"] {
        let how = format!("distill.divergence={divergence}");
        folder.train(divergence, &[&sets[..], &[&how, "distill.top_k=8"]].concat());
        // With the sums of AVX2, 0.31, 0.13 and 0.29 of the first.
        let first = number(&folder.metrics(divergence)[0], "distill/divergence");
        let end = last(&folder, divergence, "distill/divergence");
        assert!(first > 0.0 && end < 0.5 * first, "{divergence}: {first} to {end}");
        let kl = last(&folder, divergence, "distill/reverse_kl");
        assert!(kl < sampled, "{divergence}: {kl} against {sampled} by sampled tokens");
    }
}

#[test]
fn a_student_learns_the_whole_vocabulary_of_its_teacher() {
    let folder = taught();
    let sets =
        ["train.steps=12", "rollout.prompts_per_step=16", "rollout.group_size=2", "checkpoint.every=100"];
    for divergence in ["reverse", "forward", "jsd"] {
        let how = format!("distill.divergence={divergence}");
        folder.train(divergence, &[&sets[..], &[&how]].concat());
        let all: Vec<f64> =
            folder.metrics(divergence).iter().map(|step| number(step, "distill/divergence")).collect();
        assert!(all[0] > 0.0 && all[11] < 0.5 * all[0], "{divergence}: {all:?}");
    }
}
