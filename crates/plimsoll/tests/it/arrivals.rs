//! `async.weight_sync`, from outside: weights that arrive in the middle of responses, and runs that follow when.

use crate::carry::as_after;
use crate::common::{every_nth, in_turn};
use crate::hosts::{as_host, by_flags, end_well};
use crate::ranks::left;
use crate::run::{Run, SMALL, number, region};
use serde_json::Value;

/// Responses of many lengths.
const LONG: [&str; 7] = [
    "rollout.max_new_tokens=80",
    "rollout.temperature=20",
    "model_options.positions=extend",
    "train.steps=6",
    "train.cut_multiple=4",
    "train.learning_rate=1e-3",
    "async.staleness=2",
];
/// Weights arrive by the clock, while responses are drawn one at a time.
const LIVE: [&str; 4] =
    ["--ranks=2", "async.rollout_ranks=1", "async.weight_sync=tick", "rollout.sequences_max=1"];
/// A schedule in which they arrive in the middle of rollouts, between two, and in one rollout twice.
const MADE: &str = r#"{"step":1,"rollout":2,"tick":3}
{"step":2,"rollout":4,"tick":5}
{"step":3,"rollout":4,"tick":9}
{"step":4,"rollout":6,"tick":0}
{"step":5,"rollout":6,"tick":2}
{"step":6,"rollout":7,"tick":0}
"#;

fn long<'w>(more: &[&'w str]) -> Vec<&'w str> {
    [&LONG[..], more].concat()
}

fn follows(folder: &Run, file: &str) -> String {
    format!("async.weight_sync={}", folder.text_path(file))
}

#[test]
fn a_schedule_gives_one_run_on_any_ranks() {
    let folder = Run::new(SMALL);
    folder.write("made.jsonl", MADE);
    let follow = follows(&folder, "made.jsonl");
    for (index, (name, sets)) in every_nth(
        2,
        [
            ("plain", &[][..]),
            ("corrected", &["loss.correction=tis"]),
            ("critic", &["method=ppo", "train.mini_batch=4", "loss.kl_coef=0.05"]),
        ],
    ) {
        let sets = long(&[&[&*follow], sets].concat());
        let mut one = None;
        for (way, more) in in_turn(
            2 * index + 1,
            &[
                ("1", &["run.threads=1"][..]),
                ("few", &["rollout.on_full=preempt", "rollout.sequences_max=16", "rollout.kv_blocks=10"]),
                ("2", &["--ranks=2"]),
                ("3", &["--ranks=3"]),
                ("1-1", &["--ranks=2", "async.rollout_ranks=1"]),
                ("1-2", &["--ranks=3", "async.rollout_ranks=2"]),
                ("2-1", &["--ranks=3", "async.rollout_ranks=1"]),
            ],
        ) {
            let dir = format!("{name}-{way}");
            folder.train(&dir, &[&sets[..], more].concat());
            let left = left(&folder, &dir);
            assert_eq!(one.get_or_insert_with(|| left.clone()), &left, "{dir}");
            assert_eq!(folder.read(&format!("{dir}/schedule.jsonl")), MADE.as_bytes(), "{dir}");
        }
        let metrics = folder.metrics(&format!("{name}-1"));
        let shares: Vec<f64> = metrics.iter().map(|step| number(step, "rollout/stale_share")).collect();
        let is_mixed = |step: usize| shares[step - 1] > 0.0 && shares[step - 1] < 1.0;
        // What step 2 trains on began with the initial weights and went on with those that it begins with.
        assert!(shares[0] == 0.0 && is_mixed(2) && shares[4] == 1.0 && is_mixed(6), "{name}: {shares:?}");
        assert!(metrics.iter().all(|step| number(step, "rollout/logprob_mismatch_max") == 0.0), "{name}");
    }
}

/// Tokens before an arrival are those that the older weights would have drawn without it.
#[test]
fn tokens_before_an_arrival_are_of_the_older_weights() {
    let folder = Run::new(SMALL);
    folder.write("made.jsonl", MADE);
    folder.train("midway", &long(&[&*follows(&folder, "made.jsonl")]));
    folder.train("whole", &LONG);
    let logprobs = |dir: &str| -> Vec<Vec<Value>> {
        let lines = folder.read_lines(&format!("{dir}/samples/step-000002.jsonl"));
        lines.iter().map(|line| line["logprobs"].as_array().expect("a list").clone()).collect()
    };
    let (midway, whole) = (logprobs("midway"), logprobs("whole"));
    let first = |of: &[Value], count: usize| of[..count.min(of.len())].to_vec();
    let same = |count: usize| midway.iter().zip(&whole).all(|(a, b)| first(a, count) == first(b, count));
    assert!(same(3) && !same(4), "{midway:?}\n{whole:?}");
}

#[test]
fn a_run_by_the_clock_can_be_followed() {
    let folder = Run::new(SMALL);
    let runs = [("near", &["async.staleness=1"][..]), ("far", &["rollout.prompts_per_step=16"])];
    for (_, (name, sets)) in every_nth(2, runs) {
        folder.train(name, &[&long(sets)[..], &LIVE].concat());
        let file = format!("{name}/schedule.jsonl");
        let follow = follows(&folder, &file);
        for (way, more) in [("1", &["--ranks=1"][..]), ("1-1", &["--ranks=2", "async.rollout_ranks=1"])] {
            let dir = format!("{name}-{way}");
            folder.train(&dir, &[&long(sets)[..], &[&follow], more].concat());
            assert_eq!(left(&folder, &dir), left(&folder, name), "{dir}");
            assert_eq!(folder.read(&format!("{dir}/schedule.jsonl")), folder.read(&file), "{dir}");
        }
    }
}

/// The rank that samples is on a host of its own, and hears over the network that an update is done.
#[test]
fn a_run_by_the_clock_on_two_hosts_can_be_followed() {
    let Some(host) = as_host() else { return };
    let folder = Run::new(SMALL);
    let sets = long(&["train.steps=12"]);
    let mut has_heard = false;
    for (dir, ranks) in [("one", (2, 2)), ("two", (2, 2)), ("three", (2, 2)), ("four", (4, 2))] {
        if has_heard && ranks.0 == 2 {
            continue;
        }
        let words = [&sets[..], &LIVE[1..]].concat();
        end_well(by_flags(&host, &folder, dir, ranks, &words), dir);
        // Not in the middle of a response where updates take longer than all that may be drawn meanwhile.
        let lines = folder.read_lines(&format!("{dir}/schedule.jsonl"));
        has_heard |= lines.iter().any(|line| number(line, "tick") > 0.0);
        let follow = follows(&folder, &format!("{dir}/schedule.jsonl"));
        let again = format!("{dir}-again");
        folder.train(&again, &[&sets[..], &[&follow]].concat());
        assert_eq!(left(&folder, &again), left(&folder, dir), "{dir}");
    }
    assert!(has_heard);
}

#[test]
fn what_was_under_way_goes_on_and_its_schedule_too() {
    let folder = Run::new(SMALL);
    let sets = long(&["checkpoint.every=1", "checkpoint.keep=6"]);
    folder.train("live", &[&sets[..], &LIVE].concat());
    // It goes on by the clock, and the whole can be followed all the same.
    let dir = as_after(&folder, "live", 3);
    folder.train(&dir, &[&sets[..], &LIVE, &["--resume"]].concat());
    let lines = |dir: &str| folder.read_lines(&format!("{dir}/schedule.jsonl"));
    let (before, after) = (lines("live"), lines(&dir));
    assert_eq!((after.len(), &after[..3]), (6, &before[..3]));
    let follow = follows(&folder, &format!("{dir}/schedule.jsonl"));
    folder.train("again", &[&sets[..], &[&follow]].concat());
    assert_eq!(left(&folder, "again"), left(&folder, &dir));
    folder.write("made.jsonl", MADE);
    let follow = follows(&folder, "made.jsonl");
    folder.train("made", &[&sets[..], &[&follow]].concat());
    for (_, (step, more)) in every_nth(
        3,
        [
            (1, &["--ranks=2"][..]),
            (2, &["--ranks=2", "async.rollout_ranks=1"]),
            (4, &["--ranks=3", "async.rollout_ranks=2"]),
            (5, &["--ranks=1"]),
            (3, &["--ranks=3", "async.rollout_ranks=1"]),
        ],
    ) {
        let part = as_after(&folder, "made", step);
        folder.train(&part, &[&sets[..], &[&follow], more, &["--resume"]].concat());
        assert_eq!(left(&folder, &part), left(&folder, "made"), "from step {step}: {more:?}");
    }
}

#[test]
fn what_weights_cannot_arrive_in_is_refused() {
    let folder = Run::new(SMALL);
    folder.write("short.jsonl", "{\"step\":1,\"rollout\":2,\"tick\":3}\n");
    folder.write("other.jsonl", "{\"step\":1,\"rollout\":9,\"tick\":3}\n");
    let [short, other] =
        ["short.jsonl", "other.jsonl"].map(|name| format!("async.weight_sync={}", folder.text_path(name)));
    for (sets, what) in [
        (&["async.weight_sync=tick"][..], "async.rollout_ranks = 0"),
        (&["async.weight_sync=tick", "async.staleness=0"], "async.staleness = 0"),
        (&["async.weight_sync="], "\"step\", \"tick\""),
        (&["async.weight_sync=x.jsonl", "loss.dynamic_sampling=true"], "loss.dynamic_sampling"),
        (&["async.weight_sync=x.jsonl", "method=remax"], "greedy"),
    ] {
        folder.plan_refused(&long(sets), 2, &[what]);
    }
    for (sets, what) in [
        ("async.weight_sync=nowhere.jsonl", "nowhere.jsonl"),
        (&*short, "it has 1 steps, and the run has 6"),
        (&*other, "line 1: "),
    ] {
        folder.train_fails("out", &long(&[sets]), 2, &["bad-value", what]);
    }
    let plan = folder.plan(&long(&["async.weight_sync=x.jsonl"]));
    assert!(region(&plan, "rl.carried").is_some(), "{plan}");
}
