//! Grading of carried groups, from outside: a response that has ended is graded while an update runs, and its grade is
//! that of any other time.

use crate::carry::{LONG, as_after};
use crate::common::every_nth;
use crate::ranks::left;
use crate::run::{Run, SMALL, has_python};

/// Each function adds a line to `calls`: the step, and how many responses it got.
const FUNCTIONS: &str = r#"
import os, signal, time

FOLDER = "HERE"

def count(state, completions):
    with open(f"{FOLDER}/calls", "a") as file:
        file.write(f"{state.global_step} {len(completions)}\n")

def score(text):
    return (sum(map(ord, text)) % 7) / 7

def noted(completions, trainer_state, log_metric=None, **kwargs):
    count(trainer_state, completions)
    if log_metric:
        for c in completions:
            log_metric("length", len(c))
    return [score(c) for c in completions]

def by_step(completions, trainer_state, **kwargs):
    count(trainer_state, completions)
    return [score(c) + trainer_state.global_step for c in completions]

def slow(completions, **kwargs):
    time.sleep(0.05)
    return [score(c) for c in completions]

def killed_once(completions, trainer_state, **kwargs):
    mark = f"{FOLDER}/killed"
    if len(completions) == 1 and not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return [score(c) for c in completions]

def raises_alone(completions, **kwargs):
    if len(completions) == 1:
        raise ValueError("no such thing")
    return [score(c) for c in completions]

def late_alone(completions, **kwargs):
    if len(completions) == 1:
        time.sleep(60)
    return [score(c) for c in completions]
"#;

/// A folder with the small run, graded by a function.
fn graded(function: &str, more: &str) -> Run {
    let folder = Run::new("");
    let here = folder.text_path(".");
    folder.write("rewards.py", &FUNCTIONS.replace("HERE", &here));
    let kind = format!("python:{}:{function}", folder.text_path("rewards.py"));
    folder.write("x.toml", &SMALL.replace("kind = \"hash\"", &format!("kind = {kind:?}\n{more}")));
    folder
}

fn sets<'s>(more: &[&'s str]) -> Vec<&'s str> {
    [&LONG[..], &["train.cut_multiple=4"], more].concat()
}

const ALONE: &str = "per_response = true\n";
const ALONE_SET: &str = "reward.0.per_response=true";

/// The steps of the calls with one response.
fn alone(folder: &Run) -> Vec<u32> {
    let calls = String::from_utf8(folder.read("calls")).expect("text");
    std::fs::remove_file(folder.path("calls")).expect("there were calls");
    let step = |line: &str| line.strip_suffix(" 1").map(|step| step.parse().expect("a number"));
    calls.lines().filter_map(step).collect()
}

#[test]
fn grades_are_the_same_whenever_they_are_made() {
    if !has_python() {
        return;
    }
    let folder = graded("noted", "");
    folder.train("groups", &sets(&[]));
    assert_eq!(alone(&folder), [0; 0], "a function sees whole groups, unless it says that it needs none");
    let one = left(&folder, "groups");
    assert!(one.iter().any(|line| line.contains("rewards/noted/length")), "{one:?}");
    for (_, (dir, more)) in every_nth(
        3,
        [
            ("alone", &[][..]),
            ("workers", &["reward.0.workers=3"]),
            ("threads-1", &["run.threads=1"]),
            ("threads-4", &["run.threads=4"]),
            ("ranks-2", &["--ranks=2"]),
            ("ranks-3", &["--ranks=3", "run.zero_stage=3"]),
        ],
    ) {
        folder.train(dir, &sets(&[&[ALONE_SET], more].concat()));
        assert!(alone(&folder).len() > 4, "{dir}: responses are graded ahead");
        assert_eq!(left(&folder, dir), one, "{dir}");
    }
}

/// A run of one step leaves nothing to the next.
#[test]
fn a_response_is_graded_while_others_draw() {
    if !has_python() {
        return;
    }
    let folder = graded("noted", ALONE);
    let one_step = sets(&["train.steps=1", "rollout.prompts_per_step=8"]);
    for (dir, more) in [("one", &[][..]), ("few", &["rollout.sequences_max=5"]), ("ranks-2", &["--ranks=2"])]
    {
        folder.train(dir, &[&one_step[..], more].concat());
        assert!(alone(&folder).len() > 4, "{dir}");
        assert_eq!(left(&folder, dir), left(&folder, "one"), "{dir}");
    }
}

/// A function that reads the step sees the one in which a response ended.
#[test]
fn a_resumed_run_grades_again_what_was_graded_ahead() {
    if !has_python() {
        return;
    }
    let folder = graded("by_step", ALONE);
    let all = sets(&["checkpoint.every=1", "checkpoint.keep=6"]);
    folder.train("whole", &all);
    let whole = alone(&folder);
    let goes_on = [(1, "--ranks=1"), (2, "--ranks=3"), (3, "--ranks=2"), (5, "--ranks=1")];
    for (_, (step, ranks)) in every_nth(3, goes_on) {
        let dir = as_after(&folder, "whole", step);
        folder.train(&dir, &[&all[..], &["--resume", ranks]].concat());
        assert_eq!(left(&folder, &dir), left(&folder, "whole"), "from step {step} on {ranks}");
        let again = alone(&folder);
        assert!(again.iter().any(|of| *of <= step), "{step}: {again:?} of {whole:?}");
    }
}

#[test]
fn seconds_of_grading_are_hidden() {
    if !has_python() {
        return;
    }
    let hidden = |more: &str| {
        let folder = graded("slow", more);
        folder.train("a", &LONG);
        folder.metric("a", "time/reward_hidden")
    };
    assert_eq!(hidden(""), 0.0);
    assert!(hidden(ALONE) > 0.05);
}

#[test]
fn a_grader_that_fails_ahead_fails_as_it_would_later() {
    if !has_python() {
        return;
    }
    let saved = sets(&["checkpoint.every=1", "checkpoint.keep=6"]);
    for (_, (function, more, slug)) in every_nth(
        2,
        [
            ("raises_alone", "", "reward-function-raised"),
            ("late_alone", "timeout_ms = 300\nretries = 0\n", "reward-worker-timeout"),
        ],
    ) {
        let folder = graded(function, &format!("{ALONE}{more}"));
        folder.train_fails("a", &saved, 1, &[slug]);
        // The step before is whole, and goes on once the function does.
        let fixed =
            FUNCTIONS.replace("HERE", &folder.text_path(".")).replace("len(completions) == 1", "False");
        folder.write("rewards.py", &fixed);
        folder.train("a", &[&saved[..], &["--resume"]].concat());
        folder.train("b", &saved);
        assert_eq!(folder.weights("a"), folder.weights("b"), "{function}");

        let folder = graded(function, &format!("{ALONE}{more}on_error = \"none\"\n"));
        folder.train("a", &LONG);
        assert!(folder.metric("a", &format!("rewards/{function}/none")) > 0.0);
        assert!(folder.metric("a", "reward/fault_share") > 0.0);
    }
    let folder = graded("killed_once", ALONE);
    folder.train("a", &LONG);
    let of = |name: &str| folder.metric("a", &format!("rewards/killed_once/{name}"));
    assert_eq!((of("crashes"), of("retries"), of("none")), (1.0, 1.0, 0.0));
    folder.train("b", &LONG);
    assert_eq!(folder.weights("a"), folder.weights("b"), "a worker that died loses nothing");
}

#[test]
fn per_response_is_refused_where_it_changes_nothing() {
    let folder = Run::new(SMALL);
    folder.plan_refused(&[&LONG[..], &[ALONE_SET]].concat(), 2, &["scores each response by itself anyway"]);
    let folder = graded("noted", ALONE);
    folder.plan_refused(
        &["async.partial_rollouts=0"],
        2,
        &["reward.0.per_response", "async.partial_rollouts = 0"],
    );
    folder.plan(&LONG);
}
