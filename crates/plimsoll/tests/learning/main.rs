//! Learning, judged by an optimised program: `cargo test --release -p plimsoll --test learning`, as `.ci/full` does.
//! What each of these does exactly, and within its plan, is tested in `it` by a few steps.

#[path = "../common/mod.rs"]
mod common;
#[path = "../it/run.rs"]
#[allow(dead_code, reason = "runs that learn need a part of it")]
mod run;

use common::{Folder, command, text};
use run::{FIRST, Run, number, python_is_there};
use serde_json::Value;
use std::fs;

const FIRST_REWARD_MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/first-reward-model.toml");
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
    if !python_is_there() {
        return;
    }
    let folder = Run::new(ROW);
    folder.write("games.py", GAMES);
    let env = format!("environment.env=python:{}:Row", folder.text_path("games.py"));
    let [before, after] = scores(&folder.summary("out", &[&env]));
    // 0.36 and 0.98 where it was written.
    assert!(before < 0.5 && after > 0.8, "right sums of three: {before} before, {after} after");
}
