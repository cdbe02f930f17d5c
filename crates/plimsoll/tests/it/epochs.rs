//! `train.epochs`: passes over the data instead of steps.

use crate::common::{check_refused, text};
use crate::run::{Run, SMALL, check_done, check_train_fails, number};

/// Ten rows, two a step.
fn folder(lines: &str) -> Run {
    let folder = Run::new("");
    let rows = folder.write("rows.jsonl", lines);
    folder.write("x.toml", &SMALL.replace("builtin:addition", &rows).replace("steps = 3", "epochs = 1"));
    folder
}

fn rows() -> String {
    (0..10)
        .map(|i| format!("{{\"prompt\": \"1+{i}=\", \"ground_truth\": \"{}\", \"rate\": 0.{i}}}\n", i + 1))
        .collect()
}

#[test]
fn passes_over_the_data_are_steps() {
    let folder = folder(&rows());
    assert_eq!(folder.plan(&[])["steps"], 5);
    assert_eq!(folder.plan(&["train.epochs=2.5"])["steps"], 13, "begun steps count");
    let filtered = ["data.pass_rate_column=rate", "data.pass_rate_min=0.6"];
    assert_eq!(folder.plan(&filtered)["steps"], 2, "four rows are left");
    assert_eq!(folder.plan(&["train.warmup_steps=5"])["steps"], 5);
    let long = folder.output("out", &["train.warmup_steps=6"]);
    check_train_fails(
        &long,
        &["train.warmup_steps = 6 is more than the 5 steps that train.epochs = 1 makes"],
    );
    let said = check_done(&folder.output("out", &[]));
    assert!(said.contains("train.epochs = 1: 10 rows, 2 a step, so 5 steps"), "{said}");
    assert_eq!(folder.metrics("out").len(), 5);
    // The run goes on by the same key, and its own file has the steps.
    check_done(&folder.output("out", &["--resume", "train.epochs=1.4"]));
    assert_eq!(folder.metrics("out").len(), 7);
    assert!(text(&folder.read("out/run.toml")).contains("steps = 7"));
}

#[test]
fn data_of_completions_and_pairs_has_passes_too() {
    let folder = folder(
        "{\"prompt\": \"1+1=\", \"completion\": \"2\", \"chosen\": \"2\", \"rejected\": \"3\"}\n"
            .repeat(6)
            .as_str(),
    );
    for method in ["sft", "dpo"] {
        let run =
            text(&folder.read("x.toml")).replace("grpo", method).replace("[[reward]]\nkind = \"hash\"\n", "");
        folder.write("x.toml", &run.replace("group_size = 4\n", "").replace("max_new_tokens = 4\n", ""));
        assert_eq!(folder.plan(&["train.epochs=2"])["steps"], 6, "{method}");
        folder.write("x.toml", &run.replace(method, "grpo"));
    }
}

#[test]
fn losses_are_means_over_the_updates_of_a_step() {
    let folder = Run::new(&SMALL.replace("1e-6", "0.0"));
    let how = ["method=reinforce", "loss.entropy_coef=0.1", "loss.kl_coef=0.1", "train.steps=1"];
    let loss = |dir: &str, sets: &[&str]| {
        folder.train(dir, &[&how[..], sets].concat());
        number(&folder.metrics(dir)[0], "loss/policy")
    };
    // At learning rate 0 every pass over a step's samples has the same loss.
    let one = loss("one", &[]);
    assert!(one.abs() > 1e-3, "{one}");
    let three = loss("three", &["train.epochs_per_rollout=3"]);
    // A third of three equal sums rounds once.
    assert!((three - one).abs() < 1e-12 * one.abs(), "{three} {one}");
    let halves = loss("halves", &["train.mini_batch=4", "loss.aggregation=seq_mean_token_mean"]);
    let whole = loss("whole", &["loss.aggregation=seq_mean_token_mean"]);
    assert!((halves - whole).abs() < 1e-6 * whole.abs(), "{halves} {whole}");
}

#[test]
fn what_has_no_end_or_two_lengths_is_refused() {
    let folder = folder(&rows());
    for (sets, words) in [
        (&["train.steps=3"][..], "with train.steps = 3, which says how long the run is too"),
        (&["data.prompts=builtin:addition"], "with data.prompts = \"builtin:addition\", which has no end"),
        (&["train.epochs=0"], "train.epochs"),
        (&["train.epochs=nan"], "train.epochs"),
        (
            &["data.prompts=[\"a.jsonl\", \"b.jsonl\"]"],
            "with several data sets in data.prompts, which are mixed by weights",
        ),
    ] {
        folder.plan_refused(sets, 2, &["error[bad-value]: ", words]);
    }
    let policy = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/cartpole-ppo.toml");
    check_refused(
        &["plan", policy, "--set", "train.epochs=2"],
        2,
        &["error[bad-value]: ", "with [environment], which has no end"],
    );
    folder.plan_refused(
        &["data.template_args.effort=low"],
        2,
        &["data.template_args.effort has no template to go to"],
    );
    folder.plan_refused(&["data.prompts=absent.jsonl"], 1, &["absent.jsonl"]);
    // A plan with bounded prompts needs no data.
    for absent in ["absent.jsonl", "hf:absent/nothing/main/train"] {
        let absent = format!("data.prompts={absent}");
        let plan = folder.plan(&[&absent, "data.prompt_tokens_max=8"]);
        assert_eq!(plan["steps"], 1, "{plan}");
    }
}
