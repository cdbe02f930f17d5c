//! `loss.advantage = "python:FILE.py:FUNCTION"` from outside: equal to built-in estimators on any number of ranks, and
//! every way to fail by name.

use crate::common::python_with;
use crate::run::{Run, number, region};

const RUN: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
eval = "none"
[rollout]
prompts_per_step = 4
group_size = 4
max_new_tokens = 5
[[reward]]
kind = "hash"
[train]
steps = 3
learning_rate = 1e-4
cut_multiple = 4
"#;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/estimators.py");

const BROKEN: &str = r#"
import os
import time

import numpy as np


def raises(rewards):
    return rewards[99999]


def short(rewards):
    return rewards


def not_finite(rewards, lengths):
    return np.repeat(rewards / 0.0, lengths)


def words(logprobs):
    return ["a"] * len(logprobs)


def sleeps(logprobs):
    time.sleep(60)


def dies(logprobs):
    os._exit(3)


def eats(logprobs):
    return np.ones((1 << 40,))


def asks(rewards, values):
    return rewards


def draws(logprobs):
    """Other numbers on every call, on every rank."""
    return np.random.default_rng().normal(size=len(logprobs))


def looks(rewards, token_rewards, mask, offsets, lengths, samples, groups, turns, logprobs, ref_logprobs, columns, step, seed):
    tokens, sequences = len(logprobs), len(rewards)
    assert (sequences, tokens) == (16, offsets[-1]) and (np.diff(offsets) == lengths).all()
    assert mask.dtype == bool and mask.all() and (turns == 0).all() and (logprobs < 0).all()
    assert list(groups) == [g for g in range(4) for _ in range(4)] and list(samples) == list(range(16))
    assert (token_rewards[offsets[1:] - 1] == rewards).all() and token_rewards.sum() == rewards.sum()
    assert ref_logprobs is None and (1 <= step <= 3) and seed == 7
    assert all("ground_truth" in row for row in columns) and columns[0] == columns[3]
    logprobs[:] = 0.0  # An array of its own.
    return np.repeat(rewards, lengths)
"#;

fn sets(python: &str, file: &str, function: &str) -> [String; 2] {
    [format!("loss.advantage=python:{file}:{function}"), format!("loss.advantage_python={python}")]
}

#[test]
fn functions_equal_the_estimators_by_name_on_any_number_of_ranks() {
    let Some(python) = python_with("numpy") else { return };
    let folder = Run::new(RUN);
    for (function, more) in [
        ("group_norm", &["loss.overlong_buffer=4"][..]),
        ("length_weighted", &["loss.whiten=full", "async.reuse=1"]),
    ] {
        let named = format!("loss.advantage={function}");
        let name = |kind: &str| format!("{function}-{kind}");
        folder.train(&name("named"), &[&[&*named], more].concat());
        let [own, interpreter] = sets(&python, EXAMPLES, function);
        for ranks in ["--ranks=1", "--ranks=2"] {
            folder.train(&name(ranks), &[&[&*own, &interpreter, ranks], more].concat());
            assert_eq!(folder.result(&name(ranks)), folder.result(&name("named")), "{function} {ranks}");
        }
    }
}

#[test]
fn a_function_gets_the_step_and_its_memory_is_planned() {
    let Some(python) = python_with("numpy") else { return };
    let folder = Run::new(RUN);
    folder.write("own.py", BROKEN);
    let [own, interpreter] = sets(&python, &folder.text_path("own.py"), "looks");
    let words = [&*own, &interpreter, "seed=7", "loss.advantage_memory=1GiB"];
    let plan = folder.plan(&words);
    let bytes = |row: &str| region(&plan, row).expect("a row of the plan")["bytes"].as_u64();
    assert_eq!(bytes("advantage.worker"), Some(1 << 30));
    assert!(bytes("advantage.arrays") >= Some(16 * 5 * 100));
    folder.train("looks", &words);
    assert!(folder.metrics("looks").iter().all(|step| number(step, "grad_norm") > 0.0));
}

/// Ranks that draw for themselves would part, and be found out.
#[test]
fn a_function_that_is_not_deterministic_parts_no_ranks() {
    let Some(python) = python_with("numpy") else { return };
    let folder = Run::new(RUN);
    folder.write("own.py", BROKEN);
    let [own, interpreter] = sets(&python, &folder.text_path("own.py"), "draws");
    folder.train("draws", &[&own, &interpreter, "--ranks=2"]);
    assert_eq!(folder.metrics("draws").len(), 3);
}

#[test]
fn each_way_to_fail_has_a_name_and_changes_no_weight() {
    let Some(python) = python_with("numpy") else { return };
    let folder = Run::new(RUN);
    folder.write("own.py", BROKEN);
    let file = folder.text_path("own.py");
    for (function, contains) in [
        ("raises", &["error[advantage-function-raised]", "`raises` raised IndexError", "own.py"][..]),
        ("short", &["error[advantage-bad-reply]", "shape (16,), not ("]),
        ("not_finite", &["error[advantage-bad-reply]", "inf for token 0 of sequence 0"]),
        ("words", &["error[advantage-bad-reply]", "not of numbers"]),
        ("sleeps", &["error[advantage-worker-failed]", "took for one step", "loss.advantage_timeout_ms"]),
        ("dies", &["error[advantage-worker-failed]", "loss.advantage_memory"]),
        ("eats", &["error[advantage-worker-failed]", "loss.advantage_memory"]),
        ("asks", &["error[advantage-function-missing]", "'values'", "rewards, token_rewards"]),
        ("nowhere", &["error[advantage-function-missing]", "no function `nowhere`"]),
    ] {
        let [own, interpreter] = sets(&python, &file, function);
        let words = [&*own, &interpreter, "loss.advantage_timeout_ms=5000"];
        let code = if contains[0].contains("missing") { 2 } else { 1 };
        folder.train_fails(function, &words, code, contains);
    }
    folder.plan_refused(&["loss.advantage=python:none.py:f"], 2, &["advantage-function-missing", "none.py"]);
    folder.plan_refused(&["loss.advantage=python:own"], 2, &["python:FILE.py:FUNCTION"]);
    folder.plan_refused(&["loss.advantage=group_nrm"], 2, &["loss.advantage", "group_norm"]);
    folder.plan_refused(&["loss.advantage_timeout_ms=5"], 2, &["contradictory-keys", "loss.advantage"]);
}
