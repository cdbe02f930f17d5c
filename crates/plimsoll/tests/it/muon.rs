//! `train.optimizer = "muon"` from outside: it is exact, its regions are planned, and messages name what it is not for.

use crate::ranks::left;
use crate::run::{Run, region};

/// The settings of runs/first.toml, shorter.
const RUN: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 32
group_size = 8
max_new_tokens = 5
[[reward]]
kind = "exact"
[train]
steps = 30
learning_rate = 1e-4
schedule = "linear"
optimizer = "muon"
optimizer_dtype = "f32"
recompute = "none"
[eval]
prompts_max = 200
"#;

#[test]
fn steps_with_muon_are_exact_and_within_the_plan() {
    let folder = Run::new(RUN);
    let summary =
        folder.summary("out", &["train.steps=3", "eval.prompts_max=8", "rollout.prompts_per_step=8"]);
    assert_eq!(summary["logprob_mismatch_max"], 0.0);
    assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"]);
}

#[test]
fn a_run_goes_on_with_another_number_of_ranks_and_another_stage() {
    let folder = Run::new(RUN);
    let same =
        ["train.schedule=constant", "train.cut_multiple=4", "data.eval=none", "rollout.prompts_per_step=4"];
    let train = |dir: &str, sets: &[&str]| drop(folder.train(dir, &[&same[..], sets].concat()));
    train("whole", &["train.steps=4"]);
    train("out", &["--ranks=3", "run.zero_stage=3", "train.steps=2"]);
    train("out", &["--ranks=2", "run.zero_stage=2", "train.steps=4", "--resume"]);
    assert_eq!(left(&folder, "out"), left(&folder, "whole"));
}

#[test]
fn a_plan_has_what_a_matrix_passes_through() {
    let folder = Run::new(RUN);
    let plan = folder.plan(&["memory.offload=auto", "train.optimizer_dtype=auto"]);
    for name in ["direction", "rows", "squares", "matrix"] {
        assert!(region(&plan, &format!("actor.muon_{name}")).is_some(), "{name}");
    }
    assert!(region(&plan, "actor.muon_taken").is_none(), "one rank has all of a matrix");
    let of_ranks = folder.plan(&["--ranks=2"]);
    assert!(region(&of_ranks, "actor.muon_taken").is_some(), "two have halves");
    let adamw = folder.plan(&["train.optimizer=adamw"]);
    assert!(region(&adamw, "actor.muon_rows").is_none());
    let ppo = folder.plan(&["method=ppo"]);
    assert!(region(&ppo, "critic.muon_rows").is_none(), "a critic keeps AdamW");
}

#[test]
fn what_muon_is_not_for_is_named() {
    let folder = Run::new(RUN);
    for (set, words) in [
        ("lora={}", "adapters are trained by AdamW"),
        ("train.optimizer_dtype=int8", "momentum and weights are f32"),
        ("memory.offload=[\"optimizer\"]", "stay on the device"),
    ] {
        folder.plan_refused(&[set], 2, &["error[contradictory-keys]: ", words, "\nhint: "]);
    }
}
