//! `async.staleness`, from outside: a step trains on what the weights of that many steps earlier drew.

use crate::carry::as_after;
use crate::common::{every_nth, in_turn};
use crate::ranks::left;
use crate::run::{Run, SMALL, number, region};
use serde_json::Value;

const AHEAD: [&str; 4] =
    ["async.staleness=1", "train.steps=6", "train.cut_multiple=4", "train.learning_rate=1e-3"];

fn with<'w>(more: &[&'w str]) -> Vec<&'w str> {
    [&AHEAD[..], more].concat()
}

/// A field of each step's first sample.
fn first_samples(folder: &Run, dir: &str, steps: u64) -> Vec<Value> {
    let of = |step| folder.read_lines(&format!("{dir}/samples/step-{step:06}.jsonl")).swap_remove(0);
    (1..=steps).map(of).collect()
}

#[test]
fn a_step_trains_on_what_the_weights_of_earlier_steps_drew() {
    let folder = Run::new(SMALL);
    for (ahead, versions) in [("1", [0, 0, 1, 2, 3, 4]), ("2", [0, 0, 0, 1, 2, 3]), ("9", [0; 6])] {
        let ahead_is = format!("async.staleness={ahead}");
        folder.train(ahead, &with(&[&ahead_is]));
        let first = first_samples(&folder, ahead, 6);
        let of =
            |name: &str| first.iter().map(|line| line[name].as_u64().expect("a number")).collect::<Vec<_>>();
        assert_eq!(of("policy_version"), versions, "{ahead} ahead");
        assert_eq!(of("prompt_index"), [0, 2, 4, 6, 8, 10], "{ahead} ahead");
        let metrics = folder.metrics(ahead);
        let of = |name: &str| metrics.iter().map(|step| number(step, name)).collect::<Vec<f64>>();
        let ages: Vec<f64> = (0..6).zip(versions).map(|(now, version)| (now - version) as f64).collect();
        assert_eq!(of("rollout/staleness"), ages, "{ahead} ahead");
        assert_eq!(of("rollout/policy_lag"), ages, "an update a step");
        assert_eq!(of("rollout/logprob_mismatch_max"), [0.0; 6]);
        assert_eq!(of("rollout/waiting").last(), Some(&0.0), "nothing is drawn that is not trained");
    }
    // One rollout that serves three steps is drawn with the same weights as three that are drawn ahead.
    folder.train("lag", &["async.reuse=2", "train.steps=3"]);
    let drawn = |dir: &str| {
        let keep = |line: Value| [line["response"].clone(), line["logprobs"].clone()];
        first_samples(&folder, dir, 3).into_iter().map(keep).collect::<Vec<_>>()
    };
    assert_eq!(drawn("2"), drawn("lag"));
    assert!(drawn("1") != drawn("lag"), "with fewer steps ahead the third has newer weights");
    assert!(folder.weights("1") != folder.weights("2"));
}

#[test]
fn bits_do_not_depend_on_threads_or_ranks() {
    let folder = Run::new(SMALL);
    for (index, (name, sets)) in every_nth(
        3,
        [
            ("plain", &["async.staleness=2"][..]),
            ("critic", &["method=ppo"]),
            ("adapters", &["lora.rank=4"]),
            ("kl", &["loss.kl_coef=0.01", "train.mini_batch=4", "train.epochs_per_rollout=2"]),
            ("corrected", &["loss.correction=tis"]),
            ("filtered", &["loss.dynamic_sampling=true"]),
            ("greedy", &["method=remax"]),
        ],
    ) {
        let mut one = None;
        for (way, more) in in_turn(index, &[("1", "run.threads=1"), ("2", "--ranks=2"), ("3", "--ranks=3")]) {
            let dir = format!("{name}-{way}");
            folder.train(&dir, &[&with(&[])[..], sets, &[more]].concat());
            let left = left(&folder, &dir);
            assert_eq!(one.get_or_insert_with(|| left.clone()), &left, "{dir}");
        }
        let metrics = folder.metrics(&format!("{name}-1"));
        let stale: Vec<f64> = metrics.iter().map(|step| number(step, "rollout/stale_share")).collect();
        assert_eq!(stale, [0.0, 1.0, 1.0, 1.0, 1.0, 1.0], "{name}");
    }
}

#[test]
fn a_run_goes_on_with_what_was_drawn_ahead_on_any_number_of_ranks() {
    let folder = Run::new(SMALL);
    for (name, more) in [("plain", "async.staleness=2"), ("filtered", "loss.dynamic_sampling=true")] {
        let sets = with(&[more, "checkpoint.every=1", "checkpoint.keep=6"]);
        folder.train(name, &sets);
        let goes_on = [(1, "--ranks=1"), (2, "--ranks=3"), (4, "--ranks=2"), (5, "--ranks=1")];
        for (_, (step, ranks)) in every_nth(4, goes_on) {
            let dir = as_after(&folder, name, step);
            assert!(folder.path(&dir).join("checkpoints/latest/state/ahead-0.jsonl").exists(), "{step}");
            folder.train(&dir, &[&sets[..], &["--resume", ranks]].concat());
            assert_eq!(left(&folder, &dir), left(&folder, name), "{name} from step {step} on {ranks}");
        }
    }
    let sets = with(&["async.staleness=2", "checkpoint.every=1", "checkpoint.keep=6"]);
    let dir = as_after(&folder, "plain", 3);
    let file = folder.path(&dir).join("checkpoints/latest/state/ahead-1.jsonl");
    let text = std::fs::read_to_string(&file).expect("lines");
    std::fs::write(&file, &text[..text.len() / 2]).expect("written");
    folder.train_fails(
        &dir,
        &[&sets[..], &["--resume"]].concat(),
        1,
        &["checkpoint-damaged", "ahead-1.jsonl"],
    );
}

#[test]
fn what_waits_is_in_the_plan() {
    let folder = Run::new(SMALL);
    let bytes = |sets: &[&str]| region(&folder.plan(sets), "rl.ahead").map(|row| number(row, "bytes"));
    assert_eq!(bytes(&[]), None);
    assert!(bytes(&["async.staleness=3"]) > bytes(&["async.staleness=1"]));
    assert!(bytes(&["async.staleness=1"]).is_some());
}

#[test]
fn what_cannot_be_drawn_ahead_is_refused() {
    let folder = Run::new(SMALL);
    for (sets, what) in [
        (&["async.reuse=1"][..], "async.reuse"),
        (&["async.partial_rollouts=2"], "async.partial_rollouts"),
        (&["method=optimal_token"], "optimal_token"),
        (&["method=clip_cov"], "loss.covariance"),
        (&["async.staleness=4000000000"], "at most"),
    ] {
        folder.plan_refused(&with(sets), 2, &[what]);
    }
}
