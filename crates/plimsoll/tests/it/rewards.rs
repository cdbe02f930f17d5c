//! Rewards from outside: user code in a run, how its failures are handled, and `grade`.

use crate::common::{command, plimsoll, text};
use crate::run::{Run, check_done, has_python, number};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;

const FUNCTIONS: &str = r#"
import os, signal, time

def right(completions, ground_truth, **kwargs):
    return [1.0 if c == str(t) else 0.0 for c, t in zip(completions, ground_truth)]

def as_trl_shows(prompts, completions, completion_ids, trainer_state, ground_truth, log_metric=None, **kwargs):
    rewards = right(completions, ground_truth)
    if log_metric:
        log_metric("step", trainer_state.global_step)
    return rewards

def killed_once(completions, ground_truth, folder, trainer_state, **kwargs):
    mark = os.path.join(folder[0], "killed")
    if trainer_state.global_step == 2 and not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return right(completions, ground_truth)

def eats(completions, ground_truth, trainer_state, **kwargs):
    if trainer_state.global_step == 2:
        held = [bytearray(64 << 20) for _ in range(64)]
    return right(completions, ground_truth)

def wants(completions, difficulty):
    return [0.0] * len(completions)

def raises(completions, **kwargs):
    raise ValueError("no such thing")

def wrong_length(completions, **kwargs):
    return [0.0]

def nan(completions, **kwargs):
    return [float("nan")] * len(completions)

def strings(completions, **kwargs):
    return ["high"] * len(completions)

def late(completions, **kwargs):
    time.sleep(60)

def no_network(completions, **kwargs):
    import socket
    socket.create_connection(("127.0.0.1", 9))

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == str(ground_truth))}
"#;

/// A folder with reward functions and data.
fn folder() -> Run {
    let folder = Run::new("");
    folder.write("rewards.py", FUNCTIONS);
    let here = folder.text_path(".");
    let row = |(a, b): (u32, u32)| {
        serde_json::json!({"prompt": format!("{a}+{b}="), "ground_truth": a + b, "folder": here}).to_string()
    };
    let rows: Vec<String> = (100..116).map(|a| row((a, a + 7))).collect();
    folder.write("data.jsonl", &rows.join("\n"));
    folder
}

/// Three steps on the small model with one reward.
fn train(folder: &Run, reward: &str) -> Output {
    let run = format!(
        "method = \"grpo\"\nmodel = \"builtin:nano\"\n[data]\nprompts = {:?}\n[rollout]\nprompts_per_step = 8\n\
         group_size = 4\nmax_new_tokens = 5\n[[reward]]\n{reward}\n[train]\nsteps = 3\nlearning_rate = 1e-5\n",
        folder.path("data.jsonl"),
    );
    folder.write("x.toml", &run);
    let _ = std::fs::remove_dir_all(folder.path("out"));
    folder.output("out", &[])
}

fn python(folder: &Run, function: &str, more: &str) -> Output {
    let kind = format!("python:{}:{function}", folder.text_path("rewards.py"));
    train(folder, &format!("kind = {kind:?}\n{more}"))
}

/// A metric in each step.
fn metric(folder: &Run, name: &str) -> Vec<f64> {
    folder.metrics("out").iter().map(|metrics| number(metrics, name)).collect()
}

#[test]
fn a_function_as_trl_shows_it_trains_and_is_the_verifiers_twin() {
    if !has_python() {
        return;
    }
    let folder = folder();
    check_done(&python(&folder, "as_trl_shows", ""));
    let rewards = metric(&folder, "reward");
    assert_eq!(metric(&folder, "rewards/as_trl_shows/mean"), rewards);
    assert_eq!(metric(&folder, "rewards/as_trl_shows/step"), [1.0, 2.0, 3.0]);
    assert_eq!(metric(&folder, "rewards/as_trl_shows/retries"), [0.0; 3]);
    let samples = || std::fs::read_to_string(last_samples(&folder.path("out/samples"))).unwrap();
    let by_function = samples();
    // The bits do not depend on which workers grade, or how many; the samples name the worker.
    check_done(&train(&folder, "kind = \"exact\"\n"));
    assert_eq!(metric(&folder, "reward"), rewards);
    assert!(samples() == by_function.replace("\"as_trl_shows\":", "\"exact\":"), "samples differ");
    check_done(&python(&folder, "as_trl_shows", "workers = 3\n"));
    assert_eq!(metric(&folder, "reward"), rewards);
    check_done(&python(&folder, "compute_score", "signature = \"verl\"\n"));
    assert_eq!(metric(&folder, "reward"), rewards);
}

fn last_samples(folder: &Path) -> PathBuf {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("a run keeps samples")
        .map(|entry| entry.expect("a file").path())
        .collect();
    files.retain(|path| !path.to_string_lossy().contains("eval"));
    files.sort();
    files.pop().expect("the last step's samples are kept")
}

#[test]
fn a_worker_that_is_killed_costs_a_retry_and_a_counter() {
    if !has_python() {
        return;
    }
    let folder = folder();
    check_done(&python(&folder, "right", ""));
    let rewards = metric(&folder, "reward");
    check_done(&python(&folder, "killed_once", ""));
    assert!(folder.path("killed").exists(), "the worker was not killed");
    for (counter, expect) in [("crashes", [0.0, 1.0, 0.0]), ("retries", [0.0, 1.0, 0.0]), ("none", [0.0; 3])]
    {
        assert_eq!(metric(&folder, &format!("rewards/killed_once/{counter}")), expect, "{counter}");
    }
    assert_eq!(metric(&folder, "reward"), rewards);
}

#[test]
fn a_function_that_eats_memory_is_stopped_and_the_run_goes_on() {
    if !has_python() {
        return;
    }
    let folder = folder();
    let limit = "worker_memory = \"512MiB\"\nretries = 0\n";
    check_done(&python(&folder, "eats", &format!("{limit}on_error = \"none\"\n")));
    let over = metric(&folder, "rewards/eats/over_budget");
    // 32 samples in batches of two groups.
    assert_eq!(over, [0.0, 4.0, 0.0]);
    assert_eq!(metric(&folder, "rewards/eats/none"), [0.0, 32.0, 0.0]);
    let output = python(&folder, "eats", limit);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("error[reward-worker-over-budget]: ") && stderr.contains("512.0 MiB"),
        "{stderr}"
    );
    assert!(stderr.contains("hint: raise `worker_memory`"), "{stderr}");
}

#[test]
fn each_bad_function_ends_the_run_with_its_name() {
    if !has_python() {
        return;
    }
    let folder = folder();
    for (function, more, code, slug, words) in [
        ("no_such", "", 2, "reward-function-missing", "it has: "),
        ("wants", "", 2, "reward-function-signature", "'difficulty'"),
        ("raises", "", 1, "reward-function-raised", "ValueError: no such thing"),
        ("wrong_length", "", 1, "reward-bad-reply", "1 scores for 8"),
        ("nan", "", 1, "reward-not-finite", "NaN"),
        ("strings", "", 1, "reward-bad-reply", "a str: 'high'"),
        ("late", "timeout_ms = 300\n", 1, "reward-worker-timeout", "300 ms"),
        ("no_network", "", 1, "reward-function-raised", "PermissionError"),
        ("no_network", "network = \"allow\"\n", 1, "reward-function-raised", "ConnectionRefusedError"),
    ] {
        let output = python(&folder, function, &format!("retries = 0\n{more}"));
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{function}: {stderr}");
        assert!(stderr.contains(&format!("error[{slug}]: ")), "{function}: {stderr}");
        assert!(stderr.contains(words) && stderr.contains("hint: "), "{function}: {stderr}");
    }
    let output = train(&folder, "kind = \"http://127.0.0.1:9/reward\"\nretries = 1\n");
    let stderr = text(&output.stderr);
    assert!(stderr.contains("error[reward-http-failed]: ") && stderr.contains("tried 2 times"), "{stderr}");
}

#[test]
fn the_plan_has_the_rewards_rows() {
    let folder = folder();
    let rows = |reward: &str| -> Vec<(String, u64)> {
        let run = format!(
            "method = \"grpo\"\nmodel = \"builtin:nano\"\n[data]\nprompts = \"builtin:addition\"\n[rollout]\n\
             prompts_per_step = 8\ngroup_size = 4\nmax_new_tokens = 5\n[[reward]]\n{reward}\n[train]\nsteps = 3\n\
             learning_rate = 1e-5\n"
        );
        std::fs::write(folder.path("p.toml"), run).expect("a file in it");
        let output = plimsoll(&["plan", folder.path("p.toml").to_str().expect("UTF-8"), "--json"]);
        check_done(&output);
        let plan: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let regions = plan["regions"].as_array().expect("regions").iter();
        let named =
            regions.map(|r| (r["name"].as_str().unwrap_or("").to_string(), r["bytes"].as_u64().unwrap_or(0)));
        named.filter(|(name, _)| name.starts_with("reward.")).collect()
    };
    let row = |name: &str, mib: u64| (format!("reward.{name}"), mib << 20);
    assert_eq!(rows("kind = \"exact\""), [row("buffers", 1)]);
    if !has_python() {
        return;
    }
    let function = folder.text_path("f.py");
    std::fs::write(&function, "def f(completions, **columns):\n    return [0.0] * len(completions)\n")
        .expect("a file");
    let python = format!("kind = \"python:{function}:f\"\nworkers = 4\nworker_memory = \"100MiB\"");
    assert_eq!(rows(&python), [row("buffers", 12), row("workers", 400)]);
    assert_eq!(rows("kind = \"http://localhost/\"\nworkers = 2"), [row("buffers", 18)]);
}

#[test]
fn grade_lists_disagreements_with_their_reasons() {
    let folder = folder();
    let lines = [
        r#"{"id": "a", "grader": "math", "response": "\\boxed{\\frac12}", "ground_truth": "0.5", "correct": true}"#,
        r#"{"id": "b", "grader": "math", "response": "\\boxed{3}", "ground_truth": "4", "correct": true}"#,
        r#"{"id": "c", "grader": "gsm8k", "response": "so 7", "ground_truth": "7", "correct": false}"#,
        r#"{"id": "d", "grader": "countdown", "response": "<answer>3+3</answer>", "ground_truth": 7, "nums": [3, 4], "correct": true}"#,
        r#"{"id": "e", "grader": "json-schema", "response": "[1]", "ground_truth": {"type": "array"}, "correct": true}"#,
        r#"{"grader": "exact", "response": "1", "ground_truth": "2", "correct": true, "disputed": "x"}"#,
    ];
    let file = folder.path("cases.jsonl");
    std::fs::write(&file, lines.join("\n")).expect("a file in it");
    let output = plimsoll(&["grade", "--reward", "math", file.to_str().expect("UTF-8")]);
    check_done(&output);
    let scores = text(&output.stdout);
    assert_eq!(scores.lines().count(), 6, "{scores}");
    assert!(scores.starts_with("{\"id\":\"a\",\"score\":1.0}\n{\"id\":\"b\",\"score\":0.0}\n"), "{scores}");
    let stderr = text(&output.stderr);
    for line in [
        "math: 1 of 2 agree",
        "json-schema: 1 of 1 agree (100.0 %)",
        "line 2 (b): math refuses a right answer: read `3` in the response and `4` in the ground truth: different values",
        "line 3 (c): gsm8k accepts a wrong answer: the response says 7, the ground truth 7",
        "line 4 (d): countdown refuses a right answer: it uses [3, 3] and is given [3, 4]",
    ] {
        assert!(stderr.contains(line), "lacks {line:?}: {stderr}");
    }
    assert!(!stderr.contains("exact refuses"), "{stderr}");
}

#[test]
fn a_reward_in_a_file_with_a_modules_name_works_from_its_own_folder() {
    if !has_python() {
        return;
    }
    let folder = folder();
    let body = "import asyncio, inspect\nfrom dis import opmap\nasync def f(completions, **columns):\n    \
                await asyncio.sleep(0)\n    return [float(len(opmap) > 10)] * len(completions)\n";
    folder.write("one.jsonl", "{\"response\": \"1\", \"ground_truth\": \"1\"}\n");
    for name in ["dis", "inspect", "asyncio"] {
        folder.write(&format!("{name}.py"), body);
        let mut grade = command(&["grade", "--reward", &format!("python:{name}.py:f"), "one.jsonl"]);
        let output = grade.current_dir(folder.path(".")).output().expect("the binary runs");
        assert_eq!(text(&output.stdout), "{\"score\":1.0}\n", "{name}: {}", text(&output.stderr));
        std::fs::remove_file(folder.path(&format!("{name}.py"))).expect("it was written");
    }
}

#[test]
fn what_a_reward_prints_is_kept_and_shown_in_the_first_step() {
    if !has_python() {
        return;
    }
    let folder = folder();
    let more = r#"
import logging, sys
print("loads")

def speaks(completions, ground_truth, trainer_state, **kwargs):
    step = trainer_state.global_step
    print("prints", step)
    print("complains", step, file=sys.stderr)
    logging.warning("logs %d", step)
    return right(completions, ground_truth)

def speaks_and_raises(completions, **kwargs):
    print("just before")
    raise ValueError("no")
"#;
    folder.write("rewards.py", &format!("{FUNCTIONS}\n{more}"));
    let stderr = check_done(&python(&folder, "speaks", ""));
    let log = text(&std::fs::read(folder.path("out/rewards.log")).expect("the run leaves it"));
    for step in 1..=3 {
        for words in ["prints", "complains", "WARNING:root:logs"] {
            let line = format!("step {step} speaks: {words} {step}\n");
            assert!(log.contains(&line), "{line:?} is not in {log}");
        }
    }
    assert!(log.starts_with("start speaks: loads\n"), "{log}");
    assert!(stderr.contains("\nspeaks: loads\n") && stderr.contains("\nspeaks: prints 1\n"), "{stderr}");
    assert!(!stderr.contains("prints 2"), "{stderr}");

    let output = python(&folder, "speaks_and_raises", "");
    let stderr = text(&output.stderr);
    assert!(
        output.status.code() == Some(1) && stderr.contains("\nspeaks_and_raises: just before\n"),
        "{stderr}"
    );

    // `grade` prints as it goes.
    let file = folder.write("one.jsonl", "{\"response\": \"1\", \"ground_truth\": \"1\"}\n");
    let kind = format!("python:{}:speaks", folder.text_path("rewards.py"));
    let output = plimsoll(&["grade", "--reward", &kind, &file]);
    assert_eq!(text(&output.stdout), "{\"score\":1.0}\n");
    assert!(text(&output.stderr).contains(": prints 0\n"), "{}", text(&output.stderr));

    // A verifier prints nothing, and leaves no log.
    check_done(&train(&folder, "kind = \"exact\"\n"));
    assert!(!folder.path("out/rewards.log").exists());
}
