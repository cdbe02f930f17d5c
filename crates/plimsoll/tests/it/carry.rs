//! `async.partial_rollouts`, from outside: groups that have not ended go on in the next step, and what a step trains
//! depends on nothing but the tokens.

use crate::common::{every_nth, in_turn, turn};
use crate::ranks::left;
use crate::run::{Run, SMALL, number, region};

/// Responses of many lengths: at this temperature a model of 15 tokens ends one time in fifteen.
pub const LONG: [&str; 5] = [
    "async.partial_rollouts=3",
    "rollout.max_new_tokens=80",
    "rollout.temperature=20",
    "model_options.positions=extend",
    "train.steps=6",
];

pub fn long(more: &[&'static str]) -> Vec<&'static str> {
    [&LONG[..], more].concat()
}

/// The prompts of each step's samples.
fn trained(folder: &Run, dir: &str, steps: u64) -> Vec<u64> {
    let of = |step| folder.read_lines(&format!("{dir}/samples/step-{step:06}.jsonl"));
    let mut prompts: Vec<u64> =
        (1..=steps).flat_map(of).map(|line| line["prompt_index"].as_u64().expect("a number")).collect();
    prompts.dedup();
    prompts
}

#[test]
fn every_prompt_is_trained_once_and_tokens_keep_the_weights_that_drew_them() {
    let folder = Run::new(SMALL);
    folder.train("a", &LONG);
    let metrics = folder.metrics("a");
    let of = |name: &str| -> Vec<f64> { metrics.iter().map(|step| number(step, name)).collect() };
    assert_eq!(of("rollout/carried"), [3.0, 3.0, 3.0, 3.0, 2.0, 0.0], "what is left is brought to its end");
    assert_eq!(of("rollout/logprob_mismatch_max"), [0.0; 6]);
    assert_eq!((of("rollout/staleness")[0], of("rollout/stale_share")[0]), (0.0, 0.0));
    assert!(of("rollout/staleness")[1..].iter().any(|age| *age > 0.0), "{:?}", of("rollout/staleness"));
    let mut prompts = trained(&folder, "a", 6);
    prompts.sort_unstable();
    assert_eq!(prompts, (0..12).collect::<Vec<u64>>());
}

#[test]
fn bits_do_not_depend_on_threads_caches_or_ranks() {
    let folder = Run::new(SMALL);
    let mut one = None;
    let ways = [
        ("threads-1", &["run.threads=1"][..]),
        ("threads-4", &["run.threads=4"]),
        ("few", &["rollout.sequences_max=3"]),
        ("full", &["rollout.on_full=preempt", "rollout.sequences_max=16", "rollout.kv_blocks=6"]),
        ("fuller", &["rollout.on_full=preempt", "rollout.sequences_max=16", "rollout.kv_blocks=10"]),
        ("ranks-2", &["--ranks=2"]),
        ("ranks-3", &["--ranks=3", "run.zero_stage=3"]),
    ];
    for (dir, sets) in in_turn(turn(), &ways) {
        folder.train(dir, &[&long(&["train.cut_multiple=4"])[..], sets].concat());
        let left = left(&folder, dir);
        assert_eq!(one.get_or_insert_with(|| left.clone()), &left, "{dir}");
        let preempted = folder.metrics(dir).iter().any(|step| number(step, "rollout/preemptions") > 0.0);
        assert!(preempted || *dir != "full", "{dir}");
    }
}

/// Copies a run as it was after `step`, as if it had been killed then.
pub fn as_after(folder: &Run, from: &str, step: u32) -> String {
    let dir = format!("{from}-{step}");
    let copied =
        std::process::Command::new("cp").arg("-r").arg(folder.path(from)).arg(folder.path(&dir)).status();
    assert!(copied.expect("cp runs").success());
    let checkpoints = folder.path(&dir).join("checkpoints");
    for later in step + 1..=6 {
        std::fs::remove_dir_all(checkpoints.join(format!("step-{later:06}"))).expect("a checkpoint");
    }
    for link in ["latest", "best"] {
        _ = std::fs::remove_file(checkpoints.join(link));
    }
    std::os::unix::fs::symlink(format!("step-{step:06}"), checkpoints.join("latest")).expect("a link");
    dir
}

#[test]
fn a_run_goes_on_with_what_was_under_way_on_any_number_of_ranks() {
    let folder = Run::new(SMALL);
    let sets = long(&["train.cut_multiple=4", "checkpoint.every=1", "checkpoint.keep=6"]);
    folder.train("whole", &sets);
    let goes_on = [(1, "--ranks=1"), (2, "--ranks=3"), (3, "--ranks=2"), (4, "--ranks=1"), (5, "--ranks=2")];
    for (_, (step, ranks)) in every_nth(3, goes_on) {
        let dir = as_after(&folder, "whole", step);
        assert!(folder.path(&dir).join("checkpoints/latest/state/carried.jsonl").exists(), "{step}");
        folder.train(&dir, &[&sets[..], &["--resume", ranks]].concat());
        assert_eq!(left(&folder, &dir), left(&folder, "whole"), "from step {step} on {ranks}");
    }
    let dir = as_after(&folder, "whole", 3);
    let file = folder.path(&dir).join("checkpoints/latest/state/carried.jsonl");
    let text = std::fs::read_to_string(&file).expect("lines");
    std::fs::write(&file, &text[..text.len() / 2]).expect("written");
    folder.train_fails(
        &dir,
        &[&sets[..], &["--resume"]].concat(),
        1,
        &["checkpoint-damaged", "carried.jsonl"],
    );
}

/// Shows that what reads recorded log-probabilities, values or adapters meets tokens of several versions.
#[test]
fn other_parts_of_a_step_take_tokens_of_several_versions() {
    let folder = Run::new(SMALL);
    let plain = long(&["train.cut_multiple=4"]);
    for (_, (name, sets)) in every_nth(
        2,
        [
            ("plain", &[][..]),
            ("critic", &["method=ppo"]),
            ("adapters", &["lora.rank=4"]),
            ("kl", &["loss.kl_coef=0.01", "train.mini_batch=4", "train.epochs_per_rollout=2"]),
            ("corrected", &["loss.correction=tis", "train.learning_rate=1e-3"]),
        ],
    ) {
        let two = format!("{name}-2");
        folder.train(name, &[&plain[..], sets].concat());
        folder.train(&two, &[&plain[..], sets, &["--ranks=2"]].concat());
        assert_eq!(left(&folder, name), left(&folder, &two), "{name}");
        let stale =
            folder.metrics(name).iter().map(|step| number(step, "rollout/stale_share")).fold(0.0, f64::max);
        assert!(stale > 0.0, "{name}");
    }
}

#[test]
fn a_response_that_is_old_is_waited_for() {
    let folder = Run::new(SMALL);
    folder.train("free", &LONG);
    folder.train("bound", &long(&["async.stale_tokens_max=4"]));
    let of = |dir: &str, name: &str| -> f64 {
        folder.metrics(dir).iter().map(|step| number(step, name)).fold(0.0, f64::max)
    };
    assert!(of("bound", "rollout/ticks") >= of("free", "rollout/ticks"));
    assert!(folder.weights("bound") != folder.weights("free"));
}

#[test]
fn what_is_under_way_is_in_the_plan() {
    let folder = Run::new(SMALL);
    let plan = folder.plan(&LONG);
    assert!(region(&plan, "rl.carried").is_some(), "{plan}");
    let plan = folder.plan(&["rollout.max_new_tokens=80", "model_options.positions=extend"]);
    assert!(region(&plan, "rl.carried").is_none(), "{plan}");
}

#[test]
fn what_cannot_wait_is_refused() {
    let folder = Run::new(SMALL);
    for (sets, what) in [
        (&["async.reuse=1"][..], "async.reuse"),
        (&["loss.dynamic_sampling=true"], "loss.dynamic_sampling"),
        (&["method=remax"], "greedy"),
        (&["method=optimal_token"], "optimal_token"),
        (&["method=clip_cov"], "loss.covariance"),
        (&["async.partial_rollouts=4000000000"], "at most"),
        (&["async.stale_tokens_max=80"], "below rollout.max_new_tokens = 80"),
        (&["async.partial_rollouts=0", "async.stale_tokens_max=8"], "async.partial_rollouts = 0"),
    ] {
        folder.plan_refused(&[&LONG[..], sets].concat(), 2, &[what]);
    }
}
