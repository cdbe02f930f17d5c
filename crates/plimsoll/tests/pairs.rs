//! Preference methods from outside: DPO and reward models learn from pairs, go on bit for bit, a trained reward model scores
//! in the plan of another run, and what is wrong with pairs or models is named.

mod common;

use common::{Folder, check_refused, plimsoll, text};
use serde_json::{Value, json};
use std::fs;

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
[checkpoint]
every = 1
keep = 1
"#;

const REWARD_MODEL: &str = r#"method = "reward_model"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 64
[train]
steps = 40
learning_rate = 1e-3
[eval]
prompts_max = 200
[checkpoint]
every = 100
"#;

const GRPO: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 4
group_size = 2
max_new_tokens = 5
[[reward]]
kind = "exact"
[[reward]]
kind = "model"
model = "MODEL"
weight = 0.5
[train]
steps = 3
learning_rate = 1e-4
[eval]
prompts_max = 8
[checkpoint]
every = 1
"#;

impl Folder {
    fn args(&self, verb: &str, file: &str, sets: &[&str], flags: &[&str]) -> Vec<String> {
        let mut args = vec![verb.to_string(), self.text_path(file)];
        for set in sets {
            args.extend(["--set".to_string(), set.to_string()]);
        }
        args.extend(flags.iter().map(|flag| flag.to_string()));
        args
    }

    /// Trains into `dir`; gives the summary.
    fn train(&self, file: &str, dir: &str, sets: &[&str], flags: &[&str]) -> Value {
        let run_dir = format!("run.dir={}", self.text_path(dir));
        let args = self.args("train", file, &[sets, &[&run_dir]].concat(), flags);
        let output = plimsoll(&args.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(0), "{sets:?}: {}", text(&output.stderr));
        self.read_json(&format!("{dir}/summary.json"))
    }

    fn plan(&self, file: &str, sets: &[&str]) -> Value {
        let args = self.args("plan", file, sets, &["--json"]);
        let output = plimsoll(&args.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(0), "{sets:?}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("one object")
    }

    fn refused(&self, file: &str, sets: &[&str], code: i32, contains: &[&str]) {
        let args = self.args("plan", file, sets, &[]);
        check_refused(&args.iter().map(String::as_str).collect::<Vec<_>>(), code, contains);
    }

    fn read_json(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.path(name)).expect(name)).expect("JSON")
    }

    fn metrics(&self, dir: &str) -> Vec<Value> {
        let events = fs::read_to_string(self.path(&format!("{dir}/events.jsonl"))).expect("a log");
        let events = events.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        events.map(|event| event["metrics"].clone()).filter(Value::is_object).collect()
    }

    /// Weights and states after the last step.
    fn result(&self, dir: &str) -> [Vec<u8>; 2] {
        ["model.safetensors", "state/optimizer.safetensors"].map(|file| {
            fs::read(self.path(&format!("{dir}/checkpoints/latest/{file}"))).expect("a checkpoint has it")
        })
    }
}

fn regions(plan: &Value) -> Vec<&str> {
    plan["regions"].as_array().expect("a list").iter().filter_map(|region| region["name"].as_str()).collect()
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} of {value}"))
}

#[test]
fn dpo_raises_margin_and_accuracy_over_held_out_pairs() {
    let folder = Folder::with("x.toml", DPO);
    let summary = folder.train("x.toml", "out", &[], &[]);
    // Before the first step the policy is the reference: nothing is ahead of anything.
    assert_eq!(summary["pairs_before"], json!({ "accuracy": 0.0, "margin": 0.0 }));
    assert!(number(&summary["pairs_after"], "accuracy") > 0.6, "{summary}");
    assert!(number(&summary["pairs_after"], "margin") > 0.2, "{summary}");
    assert_eq!(summary["eval_after"], summary["pairs_after"]["accuracy"]);
    let metrics = folder.metrics("out");
    let first = &metrics[0];
    assert!((number(first, "loss") - 2f64.ln()).abs() < 1e-9, "{first}");
    for name in ["rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"] {
        assert_eq!(number(first, name), 0.0, "{name}");
        assert!(number(&metrics[29], name) != 0.0, "{name}");
    }
    assert!(number(first, "logps/chosen") < 0.0 && number(first, "logps/rejected") < 0.0);
}

#[test]
fn ipo_and_smoothed_labels_are_other_losses_and_a_cut_changes_none() {
    let folder = Folder::with("x.toml", DPO);
    let sets = ["train.steps=2", "checkpoint.every=100", "model_options.dtype=f32"];
    let mut losses = Vec::new();
    for (dir, set) in [
        ("dpo", "loss.dpo_beta=0.1"),
        ("cdpo", "loss.label_smoothing=0.2"),
        ("ipo", "loss.loss_type=ipo"),
        ("beta", "loss.dpo_beta=0.5"),
        ("cut", "train.micro_batch_tokens=60"),
    ] {
        folder.train("x.toml", dir, &[&sets[..], &[set]].concat(), &[]);
        let metrics = folder.metrics(dir);
        losses.push([
            number(&metrics[0], "loss"),
            number(&metrics[0], "grad_norm"),
            number(&metrics[1], "loss"),
        ]);
    }
    let [dpo, cdpo, ipo, beta, cut] = losses[..] else { panic!("five runs") };
    let near = |a: f64, b: f64| (a - b).abs() < 1e-4 * b.abs();
    // At h = 0 the losses are ln 2 and 1 / (2b)^2; their gradients b/2, (1 - 2s) b/2 and 1/b.
    assert!(near(dpo[0], 2f64.ln()) && near(cdpo[0], 2f64.ln()) && near(ipo[0], 25.0), "{losses:?}");
    assert!(near(cdpo[1], 0.6 * dpo[1]) && near(ipo[1], 200.0 * dpo[1]) && near(beta[1], 5.0 * dpo[1]));
    assert!(near(cut[1], dpo[1]) && near(cut[2], dpo[2]), "{losses:?}");
    assert!(folder.metrics("cut").iter().all(|m| number(m, "update/micro_batches") > 5.0));
}

#[test]
fn both_methods_go_on_bit_for_bit() {
    let folder = Folder::with("dpo.toml", DPO);
    folder.write("rm.toml", REWARD_MODEL);
    for (name, file, sets) in [
        ("dpo", "dpo.toml", &["rollout.prompts_per_step=4", "checkpoint.every=1"][..]),
        ("dpo-int8", "dpo.toml", &["rollout.prompts_per_step=4", "train.optimizer_dtype=int8"]),
        ("rm", "rm.toml", &["rollout.prompts_per_step=4", "checkpoint.every=1"]),
        ("rm-bf16", "rm.toml", &["rollout.prompts_per_step=4", "train.optimizer_dtype=bf16"]),
    ] {
        let (long, short) = (format!("{name}-long"), format!("{name}-short"));
        let steps = |n: &'static str| [sets, &[n, "eval.prompts_max=8"]].concat();
        folder.train(file, &long, &steps("train.steps=4"), &[]);
        folder.train(file, &short, &steps("train.steps=2"), &[]);
        let summary = folder.train(file, &short, &steps("train.steps=4"), &["--resume"]);
        assert!(folder.result(&long) == folder.result(&short), "{name}: other bits");
        let whole = folder.read_json(&format!("{long}/summary.json"));
        assert_eq!(
            (&summary["pairs_before"], &summary["pairs_after"]),
            (&whole["pairs_before"], &whole["pairs_after"])
        );
    }
    // Where the reference lies changes no bit.
    let sets = [
        "rollout.prompts_per_step=4",
        "train.steps=4",
        "eval.prompts_max=8",
        "memory.offload=[\"reference\"]",
    ];
    folder.train("dpo.toml", "offloaded", &sets, &[]);
    assert!(folder.result("offloaded") == folder.result("dpo-long"));
}

#[test]
fn a_reward_model_is_trained_saved_and_scores_in_other_runs() {
    let folder = Folder::with("rm.toml", REWARD_MODEL);
    let summary = folder.train("rm.toml", "rm", &[], &[]);
    let (before, after) = (&summary["pairs_before"], &summary["pairs_after"]);
    assert!(number(after, "accuracy") > number(before, "accuracy") + 0.05, "{summary}");
    assert!(number(after, "margin") > 0.2, "{summary}");
    let rm = folder.text_path("rm/checkpoints/latest");
    let config = folder.read_json("rm/checkpoints/latest/config.json");
    assert_eq!(
        (&config["architectures"][0], &config["num_labels"]),
        (&json!("LlamaForSequenceClassification"), &json!(1))
    );
    // It goes on from itself: what it knew before is what it knew after.
    let again = folder.train("rm.toml", "again", &[&format!("model={rm}"), "train.steps=1"], &[]);
    assert_eq!(again["pairs_before"], *after);

    folder.write("grpo.toml", &GRPO.replace("MODEL", &rm));
    let plan = folder.plan("grpo.toml", &[]);
    let row = |name: &str| plan["regions"].as_array().unwrap().iter().find(|r| r["name"] == name).cloned();
    assert_eq!(row("reward.weights").expect("a row")["phases"], json!(["resident"]));
    assert_eq!(row("reward.head.values").expect("a row")["phases"], json!(["reward"]));
    assert!(row("reward.grads").is_none() && row("reference.weights").is_none());
    let summary = folder.train("grpo.toml", "long", &[], &[]);
    assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"]);
    for metrics in folder.metrics("long") {
        let (exact, model) = (number(&metrics, "rewards/exact/mean"), number(&metrics, "rewards/model/mean"));
        assert!(
            (number(&metrics, "reward") - (exact + 0.5 * model)).abs() < 1e-5 && model != 0.0,
            "{metrics}"
        );
        assert_eq!(metrics["rollout/logprob_mismatch_max"], 0.0);
    }
    folder.train("grpo.toml", "short", &["train.steps=2"], &[]);
    folder.train("grpo.toml", "short", &[], &["--resume"]);
    assert!(folder.result("long") == folder.result("short"));
    // With a critic, a reference and dynamic sampling beside it, and whatever is cut.
    let sets =
        ["method=ppo", "loss.kl_coef=0.01", "memory.offload=[\"reference\"]", "train.micro_batch_tokens=32"];
    folder.train("grpo.toml", "ppo", &sets, &[]);
    assert!(folder.metrics("ppo").iter().all(|m| number(m, "rewards/model/mean").is_finite()));
    // Another reward model than the run began with.
    let other = format!("reward.1.model={}", folder.text_path("again/checkpoints/latest"));
    folder.train("grpo.toml", "moved", &["train.steps=1"], &[]);
    let args = folder.args(
        "train",
        "grpo.toml",
        &[&other, &format!("run.dir={}", folder.text_path("moved"))],
        &["--resume"],
    );
    check_refused(
        &args.iter().map(String::as_str).collect::<Vec<_>>(),
        2,
        &["error[run-file-changed]", "reward.1.model"],
    );
}

#[test]
fn the_plan_has_every_role() {
    let folder = Folder::with("dpo.toml", DPO);
    folder.write("rm.toml", REWARD_MODEL);
    let plan = folder.plan("dpo.toml", &[]);
    let names = regions(&plan);
    for name in
        ["actor.weights", "actor.grads", "reference.weights", "score.head.logprobs", "update.head.d_logprobs"]
    {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    let plan = folder.plan("rm.toml", &[]);
    let names = regions(&plan);
    for name in
        ["reward.weights", "reward.grads", "reward.adam_m", "update.head.values", "update.head.d_values"]
    {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    // Nothing is sampled, nothing is over the vocabulary, and no other model is there.
    let none = |part: &str| !names.iter().any(|name| name.starts_with(part));
    assert!(
        none("actor.") && none("rollout.keys") && none("reference.") && none("update.head.tile"),
        "{names:?}"
    );
}

#[test]
fn what_is_wrong_with_pairs_is_named_before_the_run() {
    let folder = Folder::with("x.toml", DPO);
    folder.write("rm.toml", REWARD_MODEL);
    let check = |rows: &[Value], slug: &str, words: &str| {
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        let data = format!("data.prompts={}", folder.write("pairs.jsonl", &lines));
        for file in ["x.toml", "rm.toml"] {
            let sets = [&*data, "train.micro_batch_tokens=16"];
            folder.refused(file, &sets, 1, &[&format!("error[{slug}]: "), words]);
        }
    };
    let good = json!({"prompt": "1+1=", "chosen": "2", "rejected": "3"});
    let row = |p: &str, c: &str, r: &str| json!({"prompt": p, "chosen": c, "rejected": r});
    check(&[good.clone(), row("1+1=", "2", "2")], "pair-equal", "pairs.jsonl:2");
    check(&[good.clone(), row("1+1=", "", "2")], "pair-empty", "chosen is empty");
    check(&[good.clone(), row("", "1", "2")], "pair-empty", "prompt is empty");
    check(&[json!({"prompt": "1+1=", "chosen": "2"})], "data-column-missing", "`rejected`");
    check(&[json!({"prompt": "1+1=", "rejected": "2"})], "data-column-missing", "`chosen`");
    check(&[good, row("1000+100=", "1100", "1101")], "pair-too-long", "pair 2 has 19 tokens");
    folder.refused("x.toml", &["data.prompts=nowhere.jsonl"], 1, &["error[data-missing]"]);
    let without = folder.write("without.toml", &DPO.replace("prompts = \"builtin:addition\"", ""));
    check_refused(&["plan", &without], 2, &["error[missing-key]", "data.prompts"]);
    for (set, key) in [
        ("loss.kl_coef=0.1", "loss.kl_coef"),
        ("loss.dpo_beta=0.2", "loss.dpo_beta"),
        ("rollout.temperature=0.5", "rollout.temperature"),
        ("rollout.max_new_tokens=5", "rollout.max_new_tokens"),
        ("reward.0.kind=exact", "reward"),
        ("eval.samples=2", "eval."),
        ("train.mini_batch=8", "train.mini_batch"),
    ] {
        let words = format!("`{key}");
        let sets = if set.starts_with("eval") { vec![set, "eval.temperature=1"] } else { vec![set] };
        folder.refused("rm.toml", &sets, 2, &["error[contradictory-keys]", &words, "method `reward_model`"]);
    }
}

/// A safetensors file with the same tensors but for one, which `change` makes anew or takes away.
fn rewrite(path: &std::path::Path, name: &str, change: impl Fn(&mut Value, &mut Vec<u8>) -> bool) {
    let bytes = fs::read(path).expect("a file");
    let end = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&bytes[8..end]).expect("JSON");
    let (mut entries, mut data) = (serde_json::Map::new(), Vec::new());
    for (key, mut entry) in header {
        if key == "__metadata__" {
            continue;
        }
        let at = |i: usize| end + entry["data_offsets"][i].as_u64().expect("an offset") as usize;
        let mut part = bytes[at(0)..at(1)].to_vec();
        if key == name && !change(&mut entry, &mut part) {
            continue;
        }
        entry["data_offsets"] = json!([data.len(), data.len() + part.len()]);
        data.extend(part);
        entries.insert(key, entry);
    }
    let header = serde_json::to_vec(&entries).expect("JSON");
    let out = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    fs::write(path, out).expect("a file");
}

#[test]
fn models_that_cannot_score_are_named() {
    let folder = Folder::with("rm.toml", REWARD_MODEL);
    folder.train(
        "rm.toml",
        "rm",
        &["train.steps=1", "eval.prompts_max=8", "rollout.prompts_per_step=4"],
        &[],
    );
    let rm = folder.text_path("model");
    let exported = plimsoll(&["checkpoint", "export", &folder.text_path("rm"), "--to", &rm]);
    assert_eq!(exported.status.code(), Some(0), "{}", text(&exported.stderr));
    folder.write("grpo.toml", &GRPO.replace("MODEL", &rm));
    folder.plan("grpo.toml", &[]);
    folder.refused(
        "grpo.toml",
        &["reward.1.model=builtin:nano"],
        1,
        &["error[reward-model-head-missing]", "causal"],
    );
    // A reward model samples nothing.
    let as_policy = format!("model={rm}");
    folder.refused("grpo.toml", &[&as_policy], 1, &["error[model-unsupported]", "it scores"]);
    check_refused(
        &["generate", "--model", &rm, "--prompt", "1+1="],
        1,
        &["error[model-unsupported]", "it scores"],
    );
    // Another tokenizer: two tokens change places.
    let path = folder.path("model/tokenizer.json");
    let whole = fs::read(&path).expect("a tokenizer");
    let mut tokenizer: Value = serde_json::from_slice(&whole).expect("JSON");
    let vocab = tokenizer["model"]["vocab"].as_object_mut().expect("a vocabulary");
    let (three, seven) = (vocab["3"].clone(), vocab["7"].clone());
    (vocab["3"], vocab["7"]) = (seven, three);
    fs::write(&path, tokenizer.to_string()).expect("a file");
    folder.refused("grpo.toml", &[], 1, &["error[reward-tokenizer-mismatch]", "token `3`"]);
    fs::write(&path, whole).expect("a file");
    // Two labels, then no head.
    let weights = folder.path("model/model.safetensors");
    rewrite(&weights, "score.weight", |entry, part| {
        entry["shape"][0] = json!(2);
        part.extend(part.clone());
        true
    });
    folder.refused("grpo.toml", &[], 1, &["error[reward-model-labels]", "num_labels = 2"]);
    rewrite(&weights, "score.weight", |_, _| false);
    folder.refused("grpo.toml", &[], 1, &["error[reward-model-head-missing]", "without `score.weight`"]);
    folder.refused("rm.toml", &[&as_policy], 1, &["error[reward-model-head-missing]"]);
}
