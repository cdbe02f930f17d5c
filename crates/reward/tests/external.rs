//! Reward functions in worker processes: each way to score and each way to fail.

use plimsoll_base::{Bytes, Error};
use plimsoll_reward::{Case, OnError, RewardSpec, Rewards, Scored};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

const FUNCTIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/functions.py");

fn python_is_there() -> bool {
    let there =
        std::process::Command::new("python3").arg("-c").arg("").status().is_ok_and(|status| status.success());
    if !there {
        eprintln!("SKIPPED: python3 is not installed");
    }
    there
}

fn spec(function: &str) -> RewardSpec {
    RewardSpec {
        retries: 0,
        timeout_ms: 20_000,
        ..RewardSpec::of_kind(format!("python:{FUNCTIONS}:{function}"))
    }
}

fn row(value: Value) -> Map<String, Value> {
    value.as_object().expect("a test passes an object").clone()
}

fn score(spec: RewardSpec, responses: &[&str], columns: &Map<String, Value>) -> Result<Vec<Scored>, Error> {
    let cases: Vec<Case> = responses
        .iter()
        .map(|response| Case {
            prompt: "p",
            response,
            response_tokens: 1,
            max_new_tokens: 8,
            ended: true,
            columns,
        })
        .collect();
    Rewards::new(&[spec])?.score(&cases)
}

fn totals(scored: Vec<Scored>) -> Vec<Option<f32>> {
    scored.into_iter().map(|one| one.total).collect()
}

#[test]
fn functions_score_with_their_columns() {
    if !python_is_there() {
        return;
    }
    let columns = row(json!({"ground_truth": 7, "level": "easy"}));
    for (function, expect) in [
        ("length", vec![Some(1.0), Some(4.0), Some(3.0)]),
        ("matches", vec![Some(1.0), None, Some(0.0)]),
        ("exact_keywords", vec![Some(3.0); 3]),
        ("later", vec![Some(1.0); 3]),
        ("floods", vec![Some(1.0); 3]),
    ] {
        // `exact_keywords` names only what it takes, so further columns are not passed.
        let scored = score(spec(function), &["7", "skip", "no\n"], &columns)
            .unwrap_or_else(|e| panic!("{function}: {e}"));
        assert_eq!(totals(scored), expect, "{function}");
    }
}

#[test]
fn slices_go_to_workers_in_order() {
    if !python_is_there() {
        return;
    }
    let responses: Vec<String> = (0..23).map(|n| "x".repeat(n)).collect();
    let responses: Vec<&str> = responses.iter().map(String::as_str).collect();
    let expect: Vec<Option<f32>> = (0..23).map(|n| Some(n as f32)).collect();
    let three = RewardSpec { workers: 3, ..spec("length") };
    assert_eq!(totals(score(three, &responses, &Map::new()).unwrap()), expect);
    let three = RewardSpec { workers: 3, ..spec("process_id") };
    let ids = totals(score(three, &responses[..6], &Map::new()).unwrap());
    assert!(ids[0] == ids[1] && ids[2] == ids[3] && ids[4] == ids[5] && ids[0] != ids[2], "{ids:?}");
}

#[test]
fn each_failure_has_its_name() {
    if !python_is_there() {
        return;
    }
    for (function, slug, words) in [
        ("raises", "reward-function-raised", "KeyError: 'no such thing'"),
        ("wrong_length", "reward-bad-reply", "3 scores for 2"),
        ("gives_text", "reward-bad-reply", "a str: 'high'"),
        ("gives_nan", "reward-not-finite", "sample 1"),
        ("dies", "reward-worker-crashed", "last words"),
        ("eats", "reward-worker-over-budget", "worker_memory"),
        ("no_such_function", "reward-function-missing", "no_such_function"),
    ] {
        let error = score(spec(function), &["a", "bb"], &Map::new()).unwrap_err();
        assert_eq!(error.slug, slug, "{function}: {error}");
        assert!(error.to_string().contains(words), "{function}: {error}");
    }
}

#[test]
fn a_function_that_sleeps_is_killed_at_its_timeout() {
    if !python_is_there() {
        return;
    }
    let start = Instant::now();
    let error = score(RewardSpec { timeout_ms: 300, ..spec("sleeps") }, &["a"], &Map::new()).unwrap_err();
    assert_eq!(error.slug, "reward-worker-timeout", "{error}");
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn a_failure_can_be_none_instead() {
    if !python_is_there() {
        return;
    }
    for function in ["raises", "dies", "wrong_length"] {
        let spec = RewardSpec { on_error: OnError::None, ..spec(function) };
        assert_eq!(totals(score(spec, &["a", "b"], &Map::new()).unwrap()), [None, None], "{function}");
    }
}

#[test]
fn a_worker_that_died_is_started_again() {
    if !python_is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let columns = row(json!({"flag": folder.path().join("flag")}));
    let spec = RewardSpec { retries: 1, ..spec("dies_once") };
    assert_eq!(totals(score(spec, &["a"], &columns).unwrap()), [Some(2.0)]);
}

#[test]
fn workers_end_with_their_rewards() {
    if !python_is_there() {
        return;
    }
    let ids = totals(score(spec("process_id"), &["a"], &Map::new()).unwrap());
    let id = ids[0].expect("process_id gives a number") as u32;
    assert!(!std::path::Path::new(&format!("/proc/{id}")).exists(), "process {id} still there");
}

#[test]
fn a_command_answers_a_line_a_case() {
    let command = |kind: &str| RewardSpec { retries: 0, timeout_ms: 20_000, ..RewardSpec::of_kind(kind) };
    let run = |kind: &str| score(command(kind), &["a", "b"], &Map::new());
    let folder = tempfile::tempdir().unwrap();
    let script = |name: &str, body: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, body).unwrap();
        format!("command:sh {}", path.display())
    };
    let half = script("half.sh", "while read -r line; do echo '{\"score\": 0.5}'; done\n");
    assert_eq!(totals(run(&half).unwrap()), [Some(0.5), Some(0.5)]);
    let null = script("null.sh", "while read -r line; do echo null; done\n");
    assert_eq!(totals(run(&null).unwrap()), [None, None]);
    let words = script("words.sh", "while read -r line; do echo good; done\n");
    assert_eq!(run(&words).unwrap_err().slug, "reward-bad-reply");
    assert_eq!(run(&script("end.sh", "exit 0\n")).unwrap_err().slug, "reward-worker-crashed");
    assert_eq!(run("command:/no/such/program").unwrap_err().slug, "reward-worker-not-started");
    let missing = score(command("python:/no/such.py:f"), &["a"], &Map::new()).unwrap_err();
    assert_eq!(missing.slug, "reward-function-missing");
}

#[test]
fn a_tight_memory_limit_is_named() {
    if !python_is_there() {
        return;
    }
    let spec = RewardSpec { worker_memory: Bytes::mib(256), ..spec("eats") };
    assert_eq!(score(spec, &["a"], &Map::new()).unwrap_err().slug, "reward-worker-over-budget");
}
