//! `model_options.compute = "fp8"`, from outside: one policy in rollout, scoring and update, which its files name.

use crate::carry::{as_after, long};
use crate::common::{in_turn, plimsoll, text, turn};
use crate::ranks::left;
use crate::run::{Run, SMALL, json, number, region};

const FP8: &str = "model_options.compute=fp8";

#[test]
fn rollout_is_trainer_on_any_ranks_and_after_a_stop() {
    let folder = Run::new(SMALL);
    let sets = |more: &[&'static str]| long(&[&[FP8, "train.cut_multiple=4"], more].concat());
    folder.train("whole", &sets(&["checkpoint.every=1", "checkpoint.keep=6"]));
    let whole = left(&folder, "whole");
    let mismatch = |step: &serde_json::Value| number(step, "rollout/logprob_mismatch_max");
    assert!(folder.metrics("whole").iter().all(|step| mismatch(step) == 0.0));
    let ways: [(&str, &[&str]); 4] = [
        ("ranks-2", &["--ranks=2"]),
        ("ranks-3", &["--ranks=3", "run.zero_stage=2"]),
        ("preempted", &["rollout.on_full=preempt", "rollout.sequences_max=16", "rollout.kv_blocks=6"]),
        ("again", &["train.recompute=layer", "train.micro_batch_tokens=128", "run.threads=1"]),
    ];
    for (dir, more) in in_turn(turn(), &ways) {
        folder.train(dir, &sets(more));
        assert_eq!(left(&folder, dir), whole, "{dir}");
    }
    let again = as_after(&folder, "whole", 2);
    folder.train(&again, &[&sets(&[])[..], &["--resume"]].concat());
    assert_eq!(left(&folder, &again), whole);
    folder.train("full", &long(&["train.cut_multiple=4"]));
    assert_ne!(left(&folder, "full"), whole, "the rounding takes part");
}

#[test]
fn a_reference_is_the_policy_at_first_and_the_files_name_what_it_is() {
    let folder = Run::new(SMALL);
    folder.train("a", &[FP8, "train.steps=2", "loss.kl_coef=0.01"]);
    let metrics = folder.metrics("a");
    assert_eq!(number(&metrics[0], "kl"), 0.0, "both are rounded");
    let checkpoint = folder.path("a/checkpoints/latest");
    let at = checkpoint.to_str().expect("UTF-8");
    let config = std::fs::read_to_string(checkpoint.join("config.json")).expect("a file");
    assert!(config.contains("\"compute\": \"fp8\""), "{config}");
    let eval = |more: &[&str]| {
        let common = ["eval", "--model", at, "--data", "builtin:addition", "--prompts-max", "20"];
        let output = plimsoll(&[&common[..], &["--set", "rollout.temperature=0"], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let words = eval(&[]);
    assert!(!words.contains("another policy"), "{words}");
    let words = eval(&["--set", "model_options.compute=full"]);
    assert!(
        words.contains("computed with \"full\", and trained with \"fp8\": this is another policy"),
        "{words}"
    );
    // Training from its weights needs a word on what they are.
    let model: &'static str = format!("model={at}").leak();
    folder.plan_refused(&[model], 2, &["error[compute-differs]", "model_options.compute = \"fp8\""]);
    folder.plan(&[model, FP8]);
    folder.plan(&[model, "model_options.compute=full"]);
}

#[test]
fn adapters_learn_on_it_and_their_files_name_it() {
    let folder = Run::new(SMALL);
    let sets = [FP8, "train.steps=3", "lora.rank=4", "loss.kl_coef=0.01", "train.learning_rate=1e-3"];
    folder.train("a", &sets);
    let metrics = folder.metrics("a");
    assert!(metrics.iter().all(|step| number(step, "rollout/logprob_mismatch_max") == 0.0));
    assert_eq!(number(&metrics[0], "kl"), 0.0, "the reference is the policy without its adapter");
    assert!(number(&metrics[2], "kl") != 0.0, "it learns");
    folder.train("ranks", &[&sets[..], &["--ranks=2"]].concat());
    assert_eq!(left(&folder, "ranks"), left(&folder, "a"));
    let at = folder.path("a/checkpoints/latest");
    let config = std::fs::read_to_string(at.join("adapter_config.json")).expect("a file");
    assert!(config.contains("\"base_compute\": \"fp8\""), "{config}");
    let at = at.to_str().expect("UTF-8");
    let eval = ["eval", "--model", at, "--data", "builtin:addition", "--prompts-max", "5", "--json"];
    let found = json(&eval);
    assert_eq!((&found["compute"], &found["trained_with"]), (&"fp8".into(), &"fp8".into()));
    let model: &'static str = format!("model={at}").leak();
    let keys = ["lora.rank=4", "lora.alpha=16"];
    folder.plan_refused(&[&[model][..], &keys].concat(), 2, &["error[compute-differs]"]);
}

#[test]
fn its_memory_is_planned_and_what_it_cannot_is_named() {
    let folder = Run::new(SMALL);
    let plan = folder.plan(&[FP8]);
    for row in ["actor.fp8", "rollout.fp8.rows", "update.fp8.rows"] {
        assert!(number(region(&plan, row).expect(row), "bytes") > 0.0, "{row}");
    }
    assert!(region(&folder.plan(&[]), "actor.fp8").is_none());
    for (sets, slug, words) in [
        (&["model_options.compute=fp4"][..], "bad-value", "\"full\" or \"fp8\""),
        (&[FP8, "lora.rank=4", "lora.merge=true"], "not-built", "rounded anew"),
        (&[FP8, "lora.rank=4", "lora.quantize=nf4"], "contradictory-keys", "other numbers"),
        (&[FP8, "run.zero_stage=3"], "not-built", "whole on every rank"),
        (&[FP8, "memory.offload=[\"reference\"]"], "not-built", "stay on the device"),
    ] {
        folder.plan_refused(sets, 2, &[&format!("error[{slug}]"), words]);
    }
}

#[test]
fn bench_exactness_compares_rollout_and_trainer_with_it() {
    let common = ["bench", "exactness", "--model", "builtin:nano", "--device", "cpu", "--tokens", "2000"];
    let found = json(&[&common[..], &["--compute", "fp8", "--json"]].concat());
    assert_eq!(found["mismatches"], 0);
}
