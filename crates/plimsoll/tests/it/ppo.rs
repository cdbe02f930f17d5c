//! PPO from outside: the plan has both roles, the critic may be another model, and one of other tokens is refused.

use crate::common::every_nth;
use crate::ranks::ended;
use crate::run::{Run, export, region, regions};
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

/// A tiny model of another shape than `builtin:nano`.
fn golden(name: &str) -> String {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/golden")).join(name);
    path.to_str().expect("UTF-8").to_string()
}

/// Layer inputs that wait in host memory: of actor and critic, on one rank and, also with sharded weights, on two.
#[test]
fn inputs_of_layers_wait_elsewhere_and_change_no_bit() {
    let folder = Run::new(RUN);
    let sets = |level: &'static str| [level, "train.micro_batch_tokens=64", "train.cut_multiple=2"];
    let [layer, offload] = ["train.recompute=layer", "train.recompute=offload"].map(sets);
    let plan = folder.plan(&offload);
    for role in ["update", "critic"] {
        let [slots, host] = ["", "offload."]
            .map(|of| region(&plan, &format!("{of}{role}.resid")).expect("both")["shape"].clone());
        // Three of five in the arena; of four layers the first two leave their inputs.
        assert_eq!((&slots[0], &host[0]), (&Value::from(3), &Value::from(2)), "{slots} {host}");
    }
    folder.train("layer", &layer);
    folder.train("offload", &offload);
    assert_eq!(folder.weights("layer"), folder.weights("offload"));
    let stage = "run.zero_stage=3";
    let ways = [("two", &["--ranks=2"][..]), ("spread", &["--ranks=2", stage])];
    for (_, (name, more)) in every_nth(2, ways) {
        let (code, said) = ended(folder.output(name, &[&offload[..], more].concat()));
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(folder.weights("layer"), folder.weights(name), "{name}");
    }
}

#[test]
fn the_plan_has_actor_critic_and_both_optimizers() {
    let folder = Run::new(RUN);
    let plan = folder.plan(&[]);
    for part in ["weights", "grads", "master", "adam_m", "adam_v"] {
        let [actor, critic] = ["actor", "critic"].map(|role| {
            let region = region(&plan, &format!("{role}.{part}")).expect("both roles have it");
            // Gradients exist while their role is updated.
            let phase = if part != "grads" {
                "resident"
            } else if role == "actor" {
                "update"
            } else {
                "critic"
            };
            assert_eq!(region["phases"], serde_json::json!([phase]), "{region}");
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
    let offloaded = folder.plan(&["memory.offload=[\"optimizer\"]"]);
    assert!(region(&offloaded, "offload.critic.adam_m").is_some());
    assert_eq!(region(&offloaded, "critic.adam_m").expect("slots")["phases"], serde_json::json!(["critic"]));
    let grpo = folder.plan(&["method=grpo"]);
    assert!(
        region(&grpo, "critic.weights").is_none() && grpo["pools"]["host"]["phase_bytes"]["critic"].is_null()
    );
}

#[test]
fn a_step_says_what_the_critic_did_and_a_warm_up_moves_it_alone() {
    let folder = Run::new(RUN);
    folder.train("out", &["critic.warmup_steps=2", "train.steps=2"]);
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
    folder.train("longer", &["critic.warmup_steps=3"]);
    folder.train("moved", &[]);
    let weights = |dir| folder.saved(dir, "model.safetensors");
    assert!(weights("out") == weights("longer"));
    assert!(weights("moved") != weights("longer"));
    let moved = folder.metrics("moved");
    assert!(moved.iter().all(|m| m["rollout/logprob_mismatch_max"] == 0.0), "{moved:?}");
    // With one update a rollout every ratio is exactly 1; a second mini-batch sees weights that have moved.
    folder.train("once", &["train.mini_batch=8"]);
    assert!(folder.metrics("once").iter().all(|m| m["ratio/mean"] == 1.0));
    assert!(moved.iter().any(|m| m["ratio/mean"] != 1.0), "{moved:?}");
}

#[test]
fn offloaded_states_of_a_critic_change_no_bit() {
    let folder = Run::new(RUN);
    folder.train("resident", &[]);
    folder.train("offloaded", &["memory.offload=[\"optimizer\"]"]);
    for file in ["model.safetensors", "state/critic.safetensors", "state/critic_optimizer.safetensors"] {
        assert!(folder.saved("resident", file) == folder.saved("offloaded", file), "{file}");
    }
}

#[test]
fn a_critic_of_another_model_trains_and_resumes() {
    let folder = Run::new(RUN);
    let (actor, critic) =
        (format!("model={}", golden("qwen3")), format!("critic.model={}", golden("llama3_rope")));
    let sets = [&actor, &critic, "model_options.tokenizer=bytes", "checkpoint.every=1"];
    folder.train("long", &sets);
    folder.train("short", &[&sets[..], &["train.steps=2"]].concat());
    folder.train("short", &[&sets[..], &["--resume"]].concat());
    for file in ["model.safetensors", "state/critic.safetensors", "state/critic_optimizer.safetensors"] {
        assert!(folder.saved("long", file) == folder.saved("short", file), "{file}");
    }
    let plan = folder.plan(&sets);
    let names = regions(&plan);
    assert!(names.contains(&"critic.rope"), "{names:?}");
}

#[test]
fn a_critic_of_other_tokens_is_refused() {
    let folder = Run::new(RUN);
    folder.train("made", &["method=grpo", "train.steps=1"]);
    let model = folder.text_path("model");
    export(&folder, "made", &model);
    let critic = format!("critic.model={model}");
    folder.plan(&[&critic]);
    // Two tokens change places.
    let path = format!("{model}/tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).expect("a tokenizer")).expect("JSON");
    let vocab = tokenizer["model"]["vocab"].as_object_mut().expect("a vocabulary");
    let (three, seven) = (vocab["3"].clone(), vocab["7"].clone());
    (vocab["3"], vocab["7"]) = (seven, three);
    fs::write(&path, tokenizer.to_string()).expect("a file in it");
    folder.plan_refused(&[&critic], 1, &["critic-tokenizer-mismatch", "they differ in token `3`"]);
    // An embedding with too few rows.
    let large = format!("model={}", golden("qwen3"));
    let sets = [&large, "model_options.tokenizer=bytes", "critic.model=builtin:nano"];
    folder.plan_refused(&sets, 1, &["critic-tokenizer-mismatch", "its embedding has 15 rows"]);
}
