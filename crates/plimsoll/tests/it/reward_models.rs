//! Reward models from outside: `eval` scores with one as a run does, several score in one run, each a role in the plan
//! with its name, its weight and its place in a checkpoint.

use crate::common::{check_refused, one_in_turn, turn};
use crate::made;
use crate::ranks::left;
use crate::run::{Run, json, number, region};
use plimsoll_arch::expected_tensors;
use plimsoll_files::spec_from_config;
use serde_json::{Value, json};
use std::fs;

const REWARD_MODEL: &str = r#"method = "reward_model"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 16
[train]
steps = 2
learning_rate = 1e-3
[eval]
prompts_max = 8
"#;

const GRPO: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 4
group_size = 2
max_new_tokens = 5
REWARDS
[train]
steps = 3
learning_rate = 1e-4
[eval]
prompts_max = 8
[checkpoint]
every = 1
"#;

fn rewards(models: &[(&str, f64)]) -> String {
    let table = |(model, weight): &(&str, f64)| {
        format!("[[reward]]\nkind = \"model\"\nmodel = \"{model}\"\nweight = {weight}\n")
    };
    GRPO.replace("REWARDS", &models.iter().map(table).collect::<String>())
}

/// Trains a reward model; its folder.
fn trained(folder: &Run, name: &str, seed: u32) -> String {
    folder.file("rm.toml").summary(name, &[&format!("seed={seed}"), "eval.prompts_max=4"]);
    folder.text_path(&format!("{name}/checkpoints/latest"))
}

/// Writes a reward model of half the width and two layers, with the tokenizer of another; its folder.
fn smaller(folder: &Run, of: &str) -> String {
    let to = folder.path("small");
    fs::create_dir(&to).expect("a folder");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(format!("{of}/{name}"), to.join(name)).expect("a file");
    }
    let read = fs::read(format!("{of}/config.json")).expect("a file");
    let mut config: Value = serde_json::from_slice(&read).expect("JSON");
    for (key, value) in [("hidden_size", 64), ("intermediate_size", 128), ("num_hidden_layers", 2)] {
        config[key] = json!(value);
    }
    for (key, value) in [("num_attention_heads", 1), ("num_key_value_heads", 1)] {
        config[key] = json!(value);
    }
    fs::write(to.join("config.json"), config.to_string()).expect("a file");
    config["architectures"] = json!(["LlamaForCausalLM"]);
    let spec = spec_from_config(&config, "config.json").expect("a shape");
    let mut tensors = expected_tensors(&spec);
    tensors.retain(|(name, _)| name != "lm_head.weight");
    tensors.push(("score.weight".into(), vec![1, 64]));
    let (header, data) = made::header_and_data(&tensors);
    let file = made::safetensors(&Value::Object(header).to_string(), &data);
    fs::write(to.join("model.safetensors"), file).expect("a file");
    to.to_str().expect("UTF-8").to_string()
}

#[test]
fn eval_scores_with_a_reward_model_as_a_run_does() {
    let folder = Run::named("rm.toml", REWARD_MODEL);
    let model = trained(&folder, "rm", 0);
    folder.write("grpo.toml", &rewards(&[(&model, 1.0)]));
    let in_run = folder.file("grpo.toml").summary("out", &["train.steps=1"]);
    let eval_of = |prompts: &str, more: &[&str]| {
        let args =
            ["eval", "--model", "builtin:nano", "--data", "builtin:addition", "--prompts-max", prompts];
        json(&[&args[..], &["--max-new-tokens", "5", "--json"], more].concat())
    };
    let eval = |more: &[&str]| eval_of("8", more);
    let found = eval(&["--reward-model", &model]);
    assert!(number(&found, "score") != 0.0);
    assert_eq!(found["score"], in_run["eval_before"], "{found}");
    let key = format!("reward.0.model={model}");
    assert_eq!(eval(&["--reward", "model", "--set", &key])["score"], found["score"]);
    // Its memory is planned: its weights, and a pass.
    let without = eval(&[]);
    assert!(number(&found, "arena_bytes") > number(&without, "arena_bytes") + 1.7e6, "{found}");
    assert!(found["examples"][0]["rewards"]["model"].is_number(), "{found}");
    // As many prompts as do not fit a pass, and samples.
    let more = eval_of("300", &["--reward-model", &model, "--samples", "4"]);
    assert!(number(&more, "samples") == 1200.0 && number(&more, "unscored") == 0.0, "{more}");
    check_refused(
        &["eval", "--model", "builtin:nano", "--data", "builtin:addition", "--reward-model", "builtin:nano"],
        1,
        &["error[reward-model-head-missing]: "],
    );
}

#[test]
fn reward_models_score_where_ranks_only_sample() {
    let folder = Run::named("rm.toml", REWARD_MODEL);
    let model = trained(&folder, "rm", 0);
    let small = smaller(&folder, &model);
    folder.write("grpo.toml", &rewards(&[(&model, 0.5), (&small, 2.0)]));
    let folder = folder.file("grpo.toml");
    let sets = ["async.staleness=1", "train.steps=5", "train.cut_multiple=2", "train.learning_rate=1e-3"];
    folder.train("turns", &sets);
    let ways = [["--ranks=2", "async.rollout_ranks=1"], ["--ranks=3", "async.rollout_ranks=2"]];
    for ways in one_in_turn(turn(), &ways) {
        let dir = ways.join("-");
        folder.train(&dir, &[&sets[..], ways].concat());
        assert_eq!(left(&folder, &dir), left(&folder, "turns"), "{dir}");
    }
    // By the clock, and on one rank by what the clock decided.
    let midway = [&sets[..], &["async.staleness=2"]].concat();
    let clock = ["--ranks=2", "async.rollout_ranks=1", "async.weight_sync=tick"];
    folder.train("clock", &[&midway[..], &clock].concat());
    let follows = format!("async.weight_sync={}", folder.text_path("clock/schedule.jsonl"));
    folder.train("follows", &[&midway[..], &[&*follows]].concat());
    assert_eq!(left(&folder, "follows"), left(&folder, "clock"));
}

#[test]
fn several_reward_models_score_in_one_run_and_each_is_a_role() {
    let folder = Run::named("rm.toml", REWARD_MODEL);
    let (first, second) = (trained(&folder, "one", 0), trained(&folder, "two", 1));
    let small = smaller(&folder, &first);
    let three = [(first.as_str(), 0.5), (second.as_str(), 0.25), (small.as_str(), 2.0)];
    folder.write("grpo.toml", &rewards(&three));
    let plan = folder.file("grpo.toml").plan(&[]);
    let bytes = |name: &str| number(region(&plan, name).unwrap_or_else(|| panic!("no {name}")), "bytes");
    assert_eq!(bytes("reward.weights"), bytes("reward2.weights"));
    assert!(bytes("reward3.weights") < 0.5 * bytes("reward.weights"));
    // The first two have one shape and share their passes; the third has its own.
    assert!(region(&plan, "reward2.resid").is_none());
    assert_eq!(2.0 * bytes("reward3.resid"), bytes("reward.resid"));
    let summary = folder.file("grpo.toml").summary("long", &[]);
    assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"]);
    for metrics in folder.metrics("long") {
        let means =
            ["model", "model_2", "model_3"].map(|name| number(&metrics, &format!("rewards/{name}/mean")));
        assert!(means[0] != means[1] && means[1] != means[2], "{metrics}");
        let sum = 0.5 * means[0] + 0.25 * means[1] + 2.0 * means[2];
        assert!((number(&metrics, "reward") - sum).abs() < 1e-4 * sum.abs().max(1.0), "{metrics}");
    }
    // Each gives the scores that it gives alone.
    folder.write("alone.toml", &rewards(&[(&small, 2.0)]));
    let alone = folder.file("alone.toml").summary("alone", &["train.steps=1"]);
    let parts = folder.events("long");
    let before = parts.iter().find(|event| event["event"] == "eval").expect("an evaluation");
    let others = [(&first, 0.5), (&second, 0.25)].map(|(model, weight)| {
        folder.write("other.toml", &rewards(&[(model, weight)]));
        let name = format!("other-{weight}");
        number(&folder.file("other.toml").summary(&name, &["train.steps=1"]), "eval_before")
    });
    let sum = number(&alone, "eval_before") + others[0] + others[1];
    assert!((number(before, "score") - sum).abs() < 1e-5 * sum.abs().max(1.0), "{before}: {sum}");
    // Resumed bit for bit; and not with other weights of the second.
    folder.file("grpo.toml").summary("short", &["train.steps=2"]);
    folder.file("grpo.toml").summary("short", &["--resume"]);
    assert!(folder.result("long") == folder.result("short"));
    folder.file("grpo.toml").summary("moved", &["train.steps=1"]);
    fs::copy(format!("{first}/model.safetensors"), format!("{second}/model.safetensors")).expect("a file");
    let refused = ["error[resume-differs]", "the reward model"];
    folder.file("grpo.toml").train_fails("moved", &["--resume", "train.steps=2"], 1, &refused);
    // A critic, a reference and the tightest micro-batches next to them.
    folder.write("grpo.toml", &rewards(&[(&first, 0.5), (&small, 2.0)]));
    let sets = ["method=ppo", "loss.kl_coef=0.01", "train.micro_batch_tokens=32", "train.steps=1"];
    folder.file("grpo.toml").summary("ppo", &sets);
}
