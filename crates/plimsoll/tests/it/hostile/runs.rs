//! Data, rewards and numbers that go wrong in `train`, and runs that do not fit.

use super::folder::{check_whole, folder};
use crate::common::{check_error, check_refused, plimsoll, text};
use crate::run::{FIRST, refs};
use serde_json::Value;
use std::process::Command;

const ROW: &str = "{\"prompt\": \"12+34=\", \"ground_truth\": \"46\"}\n";

#[test]
fn data_that_is_empty_bent_or_too_long() {
    let folder = folder();
    let long = "{\"prompt\": \"123456+123456=\", \"ground_truth\": \"1\"}\n";
    let both = [ROW, long].concat();
    let deep = format!("{{\"prompt\": {}", "[".repeat(100_000));
    let exact = "reward.0.kind=exact";
    for (data, sets, code, slug, contains) in [
        ("", &[][..], 1, "data-empty", "d.jsonl"),
        ("\n \n", &[], 1, "data-empty", "d.jsonl"),
        (&[ROW, "{\"prompt\": \"1+2=\", }\n"].concat(), &[], 1, "data-bad-json", "d.jsonl:2: "),
        (&ROW[..20], &[], 1, "data-bad-json", "d.jsonl:1: "),
        ("[1, 2]\n", &[], 1, "data-bad-json", "d.jsonl:1: "),
        ("\u{0}\u{1}\u{2}", &[], 1, "data-bad-json", "d.jsonl:1: "),
        (&deep, &[], 1, "data-bad-json", "d.jsonl:1: "),
        ("{\"prompt\": 7}\n", &[], 1, "data-bad-prompt", "d.jsonl:1: "),
        ("{\"prompt\": \"\"}\n", &[], 1, "prompt-empty", "row 1"),
        ("{\"question\": \"1\"}\n", &[], 1, "data-column-missing", "question"),
        (ROW, &[exact, "reward.0.answer_column=label"], 2, "data-column-missing", "`label`"),
        (ROW, &["data.prompt_column=text"], 1, "data-column-missing", "text"),
        ("{\"prompt\": \"what?\"}\n", &[], 1, "tokenizer-unknown-character", "w"),
        (&both, &["data.prompt_tokens_max=6"], 1, "prompt-too-long", "row 2 has 14 tokens"),
        (long, &["data.prompt_tokens_max=6", "data.overlong=drop"], 1, "data-empty", "prompt_tokens_max"),
    ] {
        let prompts = format!("data.prompts={}", folder.write("d.jsonl", data));
        let sets = [&[prompts.as_str()], sets].concat();
        folder.check_train(&sets, code, &[&format!("error[{slug}]: "), contains]);
    }
    std::fs::write(folder.path("d.jsonl"), b"{\"prompt\": \"\xff\"}\n").expect("a file");
    let prompts = format!("data.prompts={}", folder.text_path("d.jsonl"));
    folder.check_train(&[&prompts], 1, &["error[data-bad-json]: ", "d.jsonl:1: "]);
    folder.check_train(
        &[&format!("data.prompts={}", folder.text_path(""))],
        1,
        &["error[data-missing]: ", "not a regular file"],
    );
    folder.check_train(&["data.prompts=no-such.jsonl"], 1, &["error[data-missing]: ", "no-such.jsonl"]);
    folder.check_train(&["data.prompts=builtin:nothing"], 2, &["error[unknown-task]: ", "nothing"]);
}

#[test]
fn a_prompt_that_is_too_long_is_dropped_or_cut_where_the_run_file_says_so() {
    let folder = folder();
    let data = [ROW, "{\"prompt\": \"123456+123456=\", \"ground_truth\": \"1\"}\n"].concat();
    let prompts = format!("data.prompts={}", folder.write("d.jsonl", &data));
    for policy in ["drop", "truncate-left"] {
        let overlong = format!("data.overlong={policy}");
        let sets = [&prompts, "data.prompt_tokens_max=6", &overlong, "train.steps=1"];
        let args = folder.train_args(policy, &sets);
        let output = plimsoll(&refs(&args));
        assert_eq!(output.status.code(), Some(0), "{policy}: {}", text(&output.stderr));
    }
    // A task's prompts are made, not dropped.
    for (policy, code) in [("error", 1), ("drop", 1), ("truncate-left", 0)] {
        let overlong = format!("data.overlong={policy}");
        let sets = ["data.prompt_tokens_max=3", &overlong, "train.steps=1"];
        match code {
            0 => assert_eq!(plimsoll(&refs(&folder.train_args("out", &sets))).status.code(), Some(0)),
            _ => folder.check_train(&sets, code, &["error[prompt-too-long]: ", "row 1 has 8 tokens"]),
        }
    }
}

#[test]
fn values_that_no_run_could_use_are_refused_before_it() {
    let folder = folder();
    for (sets, contains) in [
        (["train.micro_batch_tokens=8", "seed=1"], ["error[sequence-too-long]: ", "at least 12"]),
        (["rollout.temperature=1e-40", "seed=1"], ["error[bad-value]: ", "greedy"]),
        (["train.learning_rate=1e39", "seed=1"], ["error[bad-value]: ", "finite in f32"]),
        (["rollout.prompts_per_step=2000000", "rollout.group_size=1000"], ["error[bad-value]: ", "1048576"]),
    ] {
        let run = folder.text_path("x.toml");
        check_refused(&["plan", &run, "--set", sets[0], "--set", sets[1]], 2, &contains);
        folder.check_train(&sets, 2, &contains);
    }
    // More samples of a prompt than an engine usually holds.
    let args = ["eval", "--model", "builtin:nano", "--data", "builtin:addition", "--samples", "300"];
    let output = plimsoll(&[&args[..], &["--prompts-max", "2"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn a_reward_that_is_not_there_fails_or_gives_no_number() {
    let folder = folder();
    folder.check_train(&["reward.0.kind=exakt"], 2, &["error[unknown-reward]: ", "exact"]);
    folder.check_train(&["reward.0.kind=regex:("], 2, &["error[reward-bad-pattern]: "]);
    folder.check_train(
        &["reward.0.kind=command:/no/such/program"],
        1,
        &["error[reward-worker-not-started]: "],
    );
    if Command::new("python3").arg("-V").output().is_err() {
        return eprintln!("skipped: rewards in Python, there is no python3");
    }
    let file = folder.write("r.py", "def nan(completions, **columns):\n    return [float('nan')] * len(completions)\ndef boom(completions, **columns):\n    raise ValueError('no reward today')\ndef text(completions, **columns):\n    return 'many'\ndef exit(completions, **columns):\n    import os; os._exit(7)\n");
    let broken = folder.write("b.py", "def f(:\n");
    for (kind, code, slug, contains) in [
        (format!("{broken}:f"), 2, "reward-function-missing", "SyntaxError"),
        (format!("{file}:absent"), 2, "reward-function-missing", "absent"),
    ] {
        let kind = format!("reward.0.kind=python:{kind}");
        folder.check_train(&[&kind], code, &[&format!("error[{slug}]: "), contains]);
    }
    for (function, slug, contains) in [
        ("nan", "reward-not-finite", "gave NaN for sample 0"),
        ("boom", "reward-function-raised", "no reward today"),
        ("text", "reward-bad-reply", "return a list"),
        ("exit", "reward-worker-crashed", "exit code 7"),
    ] {
        let kind = format!("reward.0.kind=python:{file}:{function}");
        let args = folder.train_args(function, &[&kind]);
        let args = refs(&args);
        let contains = [&format!("error[{slug}]: "), contains, "in step 1 of 3"];
        check_error(&args, &plimsoll(&args), 1, &contains);
        let crash = folder.read_json(&format!("{function}/crash.json"));
        assert_eq!((&crash["slug"], &crash["step"]), (&slug.into(), &0.into()), "{crash}");
        check_whole(&folder, function);
    }
}

/// (learning rate, method, slug): each overflows elsewhere in the second step, or before the first save.
const DIVERGING: &[(&str, &str, &str)] = &[
    ("1e12", "sft", "loss-not-finite"),
    ("1e30", "sft", "gradient-not-finite"),
    ("1e30", "grpo", "not-finite"),
    ("1e38", "grpo", "not-finite"),
    ("1e38", "sft", "not-finite"),
];

#[test]
fn numbers_that_run_away_stop_the_run_and_leave_weights_that_work() {
    let folder = folder();
    for (i, (rate, method, slug)) in DIVERGING.iter().enumerate() {
        for steps in ["1", "3"] {
            let dir = format!("out{i}-{steps}");
            let [rate, method] = [format!("train.learning_rate={rate}"), format!("method={method}")];
            let steps = format!("train.steps={steps}");
            let mut sets = vec![rate.as_str(), &method, &steps, "train.grad_clip=0", "train.weight_decay=0"];
            if method == "method=sft" {
                sets.push("data.prompts=builtin:addition-forgetful");
            }
            let args = folder.train_args(&dir, &sets);
            let args = refs(&args);
            let output = plimsoll(&args);
            if output.status.code() == Some(0) {
                // One step may leave weights that still give numbers; then they are saved.
                assert_eq!(steps, "train.steps=1", "{args:?}: {}", text(&output.stderr));
            } else {
                let contains = [&format!("{slug}]: "), "largest weights: `model.", "last good weights: "];
                let contains = if steps == "train.steps=1" { &["not-finite]: "] } else { &contains[..] };
                check_error(&args, &output, 1, contains);
                assert!(text(&output.stderr).contains("step "), "{}", text(&output.stderr));
                let crash = folder.read_json(&format!("{dir}/crash.json"));
                assert!(crash["slug"].as_str().is_some_and(|slug| slug.ends_with("not-finite")), "{crash}");
            }
            let latest = folder.text_path(&format!("{dir}/checkpoints/latest"));
            let answer = ["generate", "--model", &latest, "--prompt", "1+2=", "--max-new-tokens", "2"];
            let answer = plimsoll(&answer);
            assert_eq!(answer.status.code(), Some(0), "{args:?}: {}", text(&answer.stderr));
            check_whole(&folder, &dir);
        }
    }
}

#[test]
fn a_run_in_too_little_memory_gets_hints_that_hold() {
    check_hints(&["plan", FIRST, "--json", "--set", "memory.host=48MiB", "--set", "train.recompute=none"]);
    let folder = folder();
    folder.check_train(&["memory.host=16MiB"], 3, &["error[host-pool-exceeded]: ", "hint: --set "]);
    let output = plimsoll(&["plan", FIRST, "--limit", "host=1"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.starts_with("error[host-pool-exceeded]: ") && stderr.contains("\nhint: "), "{stderr}");
}

#[test]
fn the_first_run_does_not_fit_in_48_mib() {
    check_hints(&["plan", FIRST, "--json", "--set", "memory.host=48MiB"]);
}

/// The plan must not fit in the host's memory, and each hint must make it fit.
fn check_hints(args: &[&str]) {
    check_hints_of("host", args);
}

/// The plan must not fit in that pool, and each hint must make it fit.
pub fn check_hints_of(pool: &str, args: &[&str]) {
    let output = plimsoll(args);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    let error = format!("error[{pool}-pool-exceeded]: ");
    assert!(stderr.starts_with(&error) && stderr.contains("\nhint: "), "{stderr}");
    let object: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(object["fits"], false);
    let hints = object["hints"].as_array().expect("a list");
    assert!(!hints.is_empty(), "{object}");
    for hint in hints {
        let set = hint["set"].as_str().expect("text");
        let sets = set.split(" --set ").flat_map(|set| ["--set", set]);
        let again: Vec<&str> = args.iter().copied().chain(sets).collect();
        assert_eq!(plimsoll(&again).status.code(), Some(0), "{set} does not help");
    }
}
