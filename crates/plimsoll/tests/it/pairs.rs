//! Preference methods from outside: DPO and reward models train on pairs and resume bit for bit, a trained reward
//! model scores in another run's plan, and what is wrong with pairs or models is named.

use crate::common::{check_refused, every_nth};
use crate::run::{Run, export, number, region, regions};
use serde_json::{Value, json};
use std::fs;

const DPO: &str = r#"method = "dpo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 16
[train]
steps = 4
learning_rate = 1e-4
[eval]
prompts_max = 20
[checkpoint]
every = 1
keep = 1
"#;

const REWARD_MODEL: &str = r#"method = "reward_model"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 16
[train]
steps = 4
learning_rate = 1e-3
[eval]
prompts_max = 20
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

#[test]
fn dpo_moves_the_margin_of_held_out_pairs_from_nothing() {
    let folder = Run::new(DPO);
    let summary = folder.summary("out", &[]);
    // Before the first step the policy is the reference: nothing is ahead of anything.
    assert_eq!(summary["pairs_before"], json!({ "accuracy": 0.0, "margin": 0.0 }));
    assert!(number(&summary["pairs_after"], "accuracy") > 0.0, "{summary}");
    assert!(number(&summary["pairs_after"], "margin") != 0.0, "{summary}");
    assert_eq!(summary["eval_after"], summary["pairs_after"]["accuracy"]);
    let metrics = folder.metrics("out");
    let first = &metrics[0];
    assert!((number(first, "loss") - 2f64.ln()).abs() < 1e-9, "{first}");
    for name in ["rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"] {
        assert_eq!(number(first, name), 0.0, "{name}");
        assert!(number(&metrics[3], name) != 0.0, "{name}");
    }
    assert!(number(first, "logps/chosen") < 0.0 && number(first, "logps/rejected") < 0.0);
}

#[test]
fn ipo_and_smoothed_labels_are_other_losses_and_a_cut_changes_none() {
    let folder = Run::new(DPO);
    let sets =
        ["train.steps=2", "checkpoint.every=100", "model_options.dtype=f32", "rollout.prompts_per_step=32"];
    let mut losses = Vec::new();
    for (dir, set) in [
        ("dpo", "loss.dpo_beta=0.1"),
        ("cdpo", "loss.label_smoothing=0.2"),
        ("ipo", "loss.loss_type=ipo"),
        ("beta", "loss.dpo_beta=0.5"),
        ("cut", "train.micro_batch_tokens=60"),
    ] {
        folder.summary(dir, &[&sets[..], &[set]].concat());
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
    let folder = Run::named("dpo.toml", DPO);
    folder.write("rm.toml", REWARD_MODEL);
    for (_, (name, file, sets)) in every_nth(
        2,
        [
            ("dpo", "dpo.toml", &["rollout.prompts_per_step=4", "checkpoint.every=1"][..]),
            ("dpo-int8", "dpo.toml", &["rollout.prompts_per_step=4", "train.optimizer_dtype=int8"]),
            ("rm", "rm.toml", &["rollout.prompts_per_step=4", "checkpoint.every=1"]),
            ("rm-bf16", "rm.toml", &["rollout.prompts_per_step=4", "train.optimizer_dtype=bf16"]),
        ],
    ) {
        let (long, short) = (format!("{name}-long"), format!("{name}-short"));
        let steps = |n: &'static str| [sets, &[n, "eval.prompts_max=8"]].concat();
        folder.file(file).summary(&long, &steps("train.steps=4"));
        folder.file(file).summary(&short, &steps("train.steps=2"));
        let summary =
            folder.file(file).summary(&short, &[&steps("train.steps=4")[..], &["--resume"]].concat());
        assert!(folder.result(&long) == folder.result(&short), "{name}: other bits");
        if name == "dpo" {
            // Where the reference lies changes no bit.
            let offloaded = [&steps("train.steps=4")[..], &["memory.offload=[\"reference\"]"]].concat();
            folder.file(file).summary("offloaded", &offloaded);
            assert!(folder.result("offloaded") == folder.result(&long));
        }
        let whole = folder.read_json(&format!("{long}/summary.json"));
        assert_eq!(
            (&summary["pairs_before"], &summary["pairs_after"]),
            (&whole["pairs_before"], &whole["pairs_after"])
        );
    }
}

#[test]
fn a_reward_model_is_trained_saved_and_scores_in_other_runs() {
    let folder = Run::named("rm.toml", REWARD_MODEL);
    let summary = folder.file("rm.toml").summary("rm", &[]);
    let (before, after) = (&summary["pairs_before"], &summary["pairs_after"]);
    assert!(before != after && number(after, "accuracy") > 0.0, "{summary}");
    let rm = folder.text_path("rm/checkpoints/latest");
    let config = folder.read_json("rm/checkpoints/latest/config.json");
    assert_eq!(
        (&config["architectures"][0], &config["num_labels"]),
        (&json!("LlamaForSequenceClassification"), &json!(1))
    );
    // It goes on from itself: what it knew before is what it knew after.
    let again = folder.file("rm.toml").summary("again", &[&format!("model={rm}"), "train.steps=1"]);
    assert_eq!(again["pairs_before"], *after);

    folder.write("grpo.toml", &GRPO.replace("MODEL", &rm));
    let plan = folder.file("grpo.toml").plan(&[]);
    let row = |name: &str| region(&plan, name);
    assert_eq!(row("reward.weights").expect("a row")["phases"], json!(["resident"]));
    assert_eq!(row("reward.head.values").expect("a row")["phases"], json!(["reward"]));
    assert!(row("reward.grads").is_none() && row("reference.weights").is_none());
    let summary = folder.file("grpo.toml").summary("long", &[]);
    assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"]);
    for metrics in folder.metrics("long") {
        let (exact, model) = (number(&metrics, "rewards/exact/mean"), number(&metrics, "rewards/model/mean"));
        assert!(
            (number(&metrics, "reward") - (exact + 0.5 * model)).abs() < 1e-5 && model != 0.0,
            "{metrics}"
        );
        assert_eq!(metrics["rollout/logprob_mismatch_max"], 0.0);
    }
    folder.file("grpo.toml").summary("short", &["train.steps=2"]);
    folder.file("grpo.toml").summary("short", &["--resume"]);
    assert!(folder.result("long") == folder.result("short"));
    // Also with a critic, a reference and dynamic sampling, and at every limit.
    let sets =
        ["method=ppo", "loss.kl_coef=0.01", "memory.offload=[\"reference\"]", "train.micro_batch_tokens=32"];
    folder.file("grpo.toml").summary("ppo", &sets);
    assert!(folder.metrics("ppo").iter().all(|m| number(m, "rewards/model/mean").is_finite()));
    // Another reward model than the run began with.
    let other = format!("reward.1.model={}", folder.text_path("again/checkpoints/latest"));
    folder.file("grpo.toml").summary("moved", &["train.steps=1"]);
    let differs = ["error[run-file-changed]", "reward.1.model"];
    folder.file("grpo.toml").train_refused("moved", &[&other, "--resume"], 2, &differs);
}

#[test]
fn the_plan_has_every_role() {
    let folder = Run::named("dpo.toml", DPO);
    folder.write("rm.toml", REWARD_MODEL);
    let plan = folder.file("dpo.toml").plan(&[]);
    let names = regions(&plan);
    for name in
        ["actor.weights", "actor.grads", "reference.weights", "score.head.logprobs", "update.head.d_logprobs"]
    {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    let plan = folder.file("rm.toml").plan(&[]);
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
    let folder = Run::new(DPO);
    folder.write("rm.toml", REWARD_MODEL);
    let check = |rows: &[Value], slug: &str, words: &str| {
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        let data = format!("data.prompts={}", folder.write("pairs.jsonl", &lines));
        for file in ["x.toml", "rm.toml"] {
            let sets = [&*data, "train.micro_batch_tokens=16"];
            folder.file(file).plan_refused(&sets, 1, &[&format!("error[{slug}]: "), words]);
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
    folder.plan_refused(&["data.prompts=nowhere.jsonl"], 1, &["error[data-missing]"]);
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
        let sets = if set.starts_with("eval") { vec![set, "eval.temperature=1"] } else { vec![set] };
        folder.file("rm.toml").plan_refused(
            &sets,
            2,
            &["error[contradictory-keys]", key, "with method = \"reward_model\""],
        );
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
    let folder = Run::named("rm.toml", REWARD_MODEL);
    folder
        .file("rm.toml")
        .summary("rm", &["train.steps=1", "eval.prompts_max=8", "rollout.prompts_per_step=4"]);
    let rm = folder.text_path("model");
    export(&folder, "rm", &rm);
    folder.write("grpo.toml", &GRPO.replace("MODEL", &rm));
    folder.file("grpo.toml").plan(&[]);
    folder.file("grpo.toml").plan_refused(
        &["reward.1.model=builtin:nano"],
        1,
        &["error[reward-model-head-missing]", "causal"],
    );
    // A reward model samples nothing.
    let as_policy = format!("model={rm}");
    folder.file("grpo.toml").plan_refused(&[&as_policy], 1, &["error[model-unsupported]", "it scores"]);
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
    folder.file("grpo.toml").plan_refused(&[], 1, &["error[reward-tokenizer-mismatch]", "token `3`"]);
    fs::write(&path, whole).expect("a file");
    // Two labels, then no head.
    let weights = folder.path("model/model.safetensors");
    rewrite(&weights, "score.weight", |entry, part| {
        entry["shape"][0] = json!(2);
        part.extend(part.clone());
        true
    });
    folder.file("grpo.toml").plan_refused(&[], 1, &["error[reward-model-labels]", "num_labels = 2"]);
    rewrite(&weights, "score.weight", |_, _| false);
    folder.file("grpo.toml").plan_refused(
        &[],
        1,
        &["error[reward-model-head-missing]", "without `score.weight`"],
    );
    folder.file("rm.toml").plan_refused(&[&as_policy], 1, &["error[reward-model-head-missing]"]);
}
