//! PPO from outside: the plan has both roles, the critic may be another model, and one of other tokens is refused.

mod common;

use common::{Folder, check_refused, plimsoll, text};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

const RUN: &str = r#"method = "ppo"
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
steps = 3
learning_rate = 1e-4
mini_batch = 4
[eval]
prompts_max = 8
"#;

impl Folder {
    fn args(&self, verb: &str, sets: &[&str], flags: &[&str]) -> Vec<String> {
        let mut args = vec![verb.to_string(), self.text_path("x.toml")];
        for set in sets {
            args.extend(["--set".to_string(), set.to_string()]);
        }
        args.extend(flags.iter().map(|flag| flag.to_string()));
        args
    }

    fn json(&self, verb: &str, sets: &[&str]) -> Value {
        let args = self.args(verb, sets, &["--json"]);
        let output = plimsoll(&args.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(0), "{sets:?}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("one object")
    }

    fn train(&self, dir: &str, sets: &[&str], flags: &[&str]) {
        let dir = format!("run.dir={}", self.text_path(dir));
        let args = self.args("train", &[sets, &[&dir]].concat(), flags);
        let output = plimsoll(&args.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(0), "{sets:?}: {}", text(&output.stderr));
    }

    fn check_refused(&self, sets: &[&str], code: i32, contains: &[&str]) {
        let args = self.args("plan", sets, &[]);
        check_refused(&args.iter().map(String::as_str).collect::<Vec<_>>(), code, contains);
    }

    /// Metrics of each step of a run.
    fn metrics(&self, dir: &str) -> Vec<Value> {
        let events = fs::read_to_string(self.text_path(&format!("{dir}/events.jsonl"))).expect("a log");
        let events = events.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        events.map(|event| event["metrics"].clone()).filter(Value::is_object).collect()
    }

    fn checkpoint(&self, dir: &str, file: &str) -> Vec<u8> {
        fs::read(self.text_path(&format!("{dir}/checkpoints/latest/{file}"))).expect("a checkpoint has it")
    }
}

/// A tiny model of another shape than `builtin:nano`.
fn golden(name: &str) -> String {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/golden")).join(name);
    path.to_str().expect("UTF-8").to_string()
}

#[test]
fn the_plan_has_actor_critic_and_both_optimizers() {
    let folder = Folder::with("x.toml", RUN);
    let plan = folder.json("plan", &[]);
    let region = |plan: &Value, name: &str| {
        let regions = plan["regions"].as_array().expect("a list").clone();
        regions.into_iter().find(|region| region["name"] == name)
    };
    for part in ["weights", "grads", "master", "adam_m", "adam_v"] {
        let [actor, critic] = ["actor", "critic"].map(|role| {
            let region = region(&plan, &format!("{role}.{part}")).expect("both roles have it");
            assert_eq!(region["phases"], serde_json::json!(["resident"]), "{region}");
            region["bytes"].as_u64().expect("bytes")
        });
        // The same body, and a value head in its own elements.
        assert!(critic > actor && critic < actor + actor / 50, "{part}: {actor}, {critic}");
    }
    for name in ["critic.head.values", "critic.head.d_values", "critic.gate_up"] {
        let region = region(&plan, name).expect("the critic's passes have regions");
        assert_eq!(region["phases"], serde_json::json!(["critic"]), "{region}");
    }
    // Its phase takes the bytes that the actor's update takes: the arena is as large as the larger of the two.
    let phases = &plan["pools"]["host"]["phase_bytes"];
    let peak = plan["pools"]["host"]["peak_bytes"].as_u64();
    assert_eq!(peak, phases["critic"].as_u64().max(phases["update"].as_u64()), "{phases}");
    let offloaded = folder.json("plan", &["memory.offload=[\"optimizer\"]"]);
    assert!(region(&offloaded, "offload.critic.adam_m").is_some());
    assert_eq!(region(&offloaded, "critic.adam_m").expect("slots")["phases"], serde_json::json!(["critic"]));
    let grpo = folder.json("plan", &["method=grpo"]);
    assert!(
        region(&grpo, "critic.weights").is_none() && grpo["pools"]["host"]["phase_bytes"]["critic"].is_null()
    );
}

#[test]
fn a_step_says_what_the_critic_did_and_a_warm_up_moves_it_alone() {
    let folder = Folder::with("x.toml", RUN);
    folder.train("out", &["critic.warmup_steps=2", "train.steps=2"], &[]);
    let metrics = folder.metrics("out");
    assert_eq!(metrics.len(), 2);
    for name in
        ["loss/value", "value/mean", "value/explained_variance", "value/clip_ratio", "critic/grad_norm"]
    {
        assert!(metrics.iter().all(|m| m[name].as_f64().is_some_and(f64::is_finite)), "{name}: {metrics:?}");
    }
    let step = |n: usize, name: &str| metrics[n][name].as_f64().expect("a number");
    assert!(step(0, "critic/grad_norm") > 0.0 && step(0, "grad_norm") == 0.0, "{metrics:?}");
    assert_ne!(step(0, "value/mean"), step(1, "value/mean"));
    // Two steps with frozen weights leave the model that the run began with.
    folder.train("longer", &["critic.warmup_steps=3"], &[]);
    folder.train("moved", &[], &[]);
    let weights = |dir| folder.checkpoint(dir, "model.safetensors");
    assert!(weights("out") == weights("longer"));
    assert!(weights("moved") != weights("longer"));
    let moved = folder.metrics("moved");
    assert!(moved.iter().all(|m| m["rollout/logprob_mismatch_max"] == 0.0), "{moved:?}");
    // With one update a rollout every ratio is exactly 1; a second mini-batch sees weights that have moved.
    folder.train("once", &["train.mini_batch=8"], &[]);
    assert!(folder.metrics("once").iter().all(|m| m["ratio/mean"] == 1.0));
    assert!(moved.iter().any(|m| m["ratio/mean"] != 1.0), "{moved:?}");
}

#[test]
fn offloaded_states_of_a_critic_change_no_bit() {
    let folder = Folder::with("x.toml", RUN);
    folder.train("resident", &[], &[]);
    folder.train("offloaded", &["memory.offload=[\"optimizer\"]"], &[]);
    for file in ["model.safetensors", "state/critic.safetensors", "state/critic_optimizer.safetensors"] {
        assert!(folder.checkpoint("resident", file) == folder.checkpoint("offloaded", file), "{file}");
    }
}

#[test]
fn a_critic_of_another_model_trains_and_resumes() {
    let folder = Folder::with("x.toml", RUN);
    let (actor, critic) =
        (format!("model={}", golden("qwen3")), format!("critic.model={}", golden("llama3_rope")));
    let sets = [&actor, &critic, "model_options.tokenizer=bytes", "checkpoint.every=1"];
    folder.train("long", &sets, &[]);
    folder.train("short", &[&sets[..], &["train.steps=2"]].concat(), &[]);
    folder.train("short", &sets, &["--resume"]);
    for file in ["model.safetensors", "state/critic.safetensors", "state/critic_optimizer.safetensors"] {
        assert!(folder.checkpoint("long", file) == folder.checkpoint("short", file), "{file}");
    }
    let plan = folder.json("plan", &sets);
    let names: Vec<&str> =
        plan["regions"].as_array().expect("a list").iter().filter_map(|r| r["name"].as_str()).collect();
    assert!(names.contains(&"critic.rope"), "{names:?}");
}

#[test]
fn a_critic_of_other_tokens_is_refused() {
    let folder = Folder::with("x.toml", RUN);
    folder.train("made", &["method=grpo", "train.steps=1"], &[]);
    let model = folder.text_path("model");
    let exported = plimsoll(&["checkpoint", "export", &folder.text_path("made"), "--to", &model]);
    assert_eq!(exported.status.code(), Some(0), "{}", text(&exported.stderr));
    let critic = format!("critic.model={model}");
    folder.json("plan", &[&critic]);
    // Two tokens change places.
    let path = format!("{model}/tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).expect("a tokenizer")).expect("JSON");
    let vocab = tokenizer["model"]["vocab"].as_object_mut().expect("a vocabulary");
    let (three, seven) = (vocab["3"].clone(), vocab["7"].clone());
    (vocab["3"], vocab["7"]) = (seven, three);
    fs::write(&path, tokenizer.to_string()).expect("a file in it");
    folder.check_refused(&[&critic], 1, &["critic-tokenizer-mismatch", "they differ in token `3`"]);
    // An embedding with too few rows.
    let large = format!("model={}", golden("qwen3"));
    let sets = [&large, "model_options.tokenizer=bytes", "critic.model=builtin:nano"];
    folder.check_refused(&sets, 1, &["critic-tokenizer-mismatch", "its embedding has 15 rows"]);
}
