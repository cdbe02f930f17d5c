//! Steps of a response from outside: rewards that a function gives to parts of a response, next to its score. They
//! change what is learned and nothing else, and what is no step is named.

use crate::common::every_nth;
use crate::ranks::left;
use crate::run::{Run, SMALL, check_done, check_train_fails, has_python};

/// The reward of each right digit is a step's; the score is the whole answer's.
const STEPS: &str = r#"
def of(response, answer):
    answer = str(answer)
    steps = [[i + 1, float(answer[i : i + 1] == c)] for i, c in enumerate(response)]
    return {"score": len(response) / 8, "steps": steps}

def digits(completions, ground_truth, **kwargs):
    return [of(c, t) for c, t in zip(completions, ground_truth)]

def one(solution_str, ground_truth, **kwargs):
    return of(solution_str, ground_truth)

def queries(queries, prompts, labels):
    return {"rewards": [of(q[len(p):], t) for q, p, t in zip(queries, prompts, labels)]}

def plain(completions, **kwargs):
    return [len(c) / 8 for c in completions]

def beyond(completions, **kwargs):
    return [{"score": 1.0, "steps": [[len(c) + 1, 1.0]]} for c in completions]

def twice(completions, **kwargs):
    return [{"score": 1.0, "steps": [[1, 1.0], [1, 1.0]] if c else None} for c in completions]

def words(completions, **kwargs):
    return [{"score": 1.0, "steps": [["first", 1.0]]} for c in completions]

def no_pairs(completions, **kwargs):
    return [{"score": 1.0, "steps": ["1"]} for c in completions]

def many(completions, **kwargs):
    return [{"score": 1.0, "steps": [[i + 1, 1.0] for i in range(65)]} for c in completions]

def nan(completions, **kwargs):
    return [{"score": 1.0, "steps": [[1, float("nan")]] if c else []} for c in completions]

def no_score(completions, **kwargs):
    return [{"steps": []} for c in completions]
"#;

fn folder() -> Run {
    let folder = Run::new(SMALL);
    folder.write("steps.py", STEPS);
    folder
}

fn kind(folder: &Run, function: &str) -> String {
    format!("reward.0.kind=python:{}:{function}", folder.text_path("steps.py"))
}

fn train(folder: &Run, dir: &str, function: &str, sets: &[&str]) -> String {
    check_done(&folder.output(dir, &[&[&*kind(folder, function)], sets].concat()))
}

/// Returns what a run left of its weights and its optimizer.
fn weights(folder: &Run, dir: &str) -> Vec<String> {
    left(folder, dir).into_iter().filter(|line| line.contains(".safetensors")).collect()
}

#[test]
fn steps_change_what_is_learned_and_no_score() {
    if !has_python() {
        return;
    }
    let folder = folder();
    let [turn, process] = ["loss.step_credit=turn", "loss.step_credit=process"];
    let mut seen = Vec::new();
    for (name, function, sets) in [
        ("plain", "plain", &[][..]),
        ("turn", "digits", &[turn]),
        ("process", "digits", &[process]),
        ("rloo", "digits", &["method=rloo", turn]),
        ("half", "digits", &[turn, "reward.0.weight=0.5", "method=dr_grpo"]),
    ] {
        train(&folder, name, function, sets);
        assert_eq!(folder.metric(name, "rollout/logprob_mismatch_max"), 0.0, "{name}");
        let summary = folder.read_json(&format!("{name}/summary.json"));
        assert!(summary["rss_peak_bytes"].as_u64() <= summary["rss_planned_bytes"].as_u64(), "{summary}");
        let first = |name: &str| folder.read_lines(&format!("{name}/samples/step-000001.jsonl"));
        if name != "half" {
            assert_eq!(
                first(name).iter().map(|line| line["reward"].clone()).collect::<Vec<_>>(),
                first("plain").iter().map(|line| line["reward"].clone()).collect::<Vec<_>>(),
                "{name}: steps are no part of the score"
            );
        }
        let weights = weights(&folder, name);
        assert!(seen.iter().all(|(_, other)| *other != weights), "{name} is another's");
        seen.push((name, weights));
    }
    let same = |a: &str, b: &str| {
        assert_eq!(weights(&folder, a), weights(&folder, b), "{a} and {b}");
    };
    // Steps that are not asked for are not read, and one who returns none has one step: the response.
    train(&folder, "unread", "digits", &[]);
    same("unread", "plain");
    train(&folder, "none", "plain", &[turn]);
    same("none", "plain");
    // Functions of other stacks return them in the same form.
    train(&folder, "verl", "one", &[turn, "reward.0.signature=verl"]);
    same("verl", "turn");
    train(&folder, "openrlhf", "queries", &[turn, "reward.0.signature=openrlhf"]);
    same("openrlhf", "turn");
}

#[test]
fn neither_ranks_nor_a_stop_within_a_rollout_move_a_bit() {
    if !has_python() {
        return;
    }
    let folder = folder();
    let sets = [
        "loss.step_credit=process",
        "async.reuse=1",
        "train.steps=4",
        "train.cut_multiple=4",
        "checkpoint.every=1",
        "train.learning_rate=1e-4",
    ];
    let run = |dir: &str, more: &[&str]| train(&folder, dir, "digits", &[&sets[..], more].concat());
    run("one", &["--ranks=1"]);
    run("two", &["--ranks=2"]);
    assert_eq!(left(&folder, "two"), left(&folder, "one"));
    run("short", &["train.steps=3"]);
    run("short", &["--resume"]);
    assert_eq!(weights(&folder, "short"), weights(&folder, "one"));
}

#[test]
fn what_is_no_step_is_named() {
    if !has_python() {
        return;
    }
    let folder = folder();
    for (_, (function, contains)) in every_nth(
        2,
        [
            ("beyond", &["error[reward-bad-reply]: ", "characters", "tried 2 times"][..]),
            ("twice", &["error[reward-bad-reply]: ", "step 1 ends at 1, not after 1"]),
            ("words", &["error[reward-bad-reply]: ", "not [end, reward]"]),
            ("no_pairs", &["error[reward-bad-reply]: "]),
            ("many", &["error[reward-bad-reply]: ", "65 of them, and at most 64"]),
            ("nan", &["error[reward-not-finite]: ", "gave NaN"]),
            ("no_score", &["error[reward-bad-reply]: ", "a dict without `score`"]),
        ],
    ) {
        let sets = [&*kind(&folder, function), "loss.step_credit=turn"];
        check_train_fails(&folder.output("out", &sets), contains);
        std::fs::remove_dir_all(folder.path("out")).ok();
    }
    // A run may leave such samples out.
    let none = ["loss.step_credit=turn", "reward.0.on_error=none", "reward.0.retries=0"];
    train(&folder, "left-out", "twice", &none);
    assert!(folder.metric("left-out", "rewards/twice/bad_replies") >= 1.0);
}
