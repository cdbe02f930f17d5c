//! `async.rollout_ranks`, from outside: ranks that only sample and ranks that only train make the run of ranks that
//! take turns.

use crate::carry::as_after;
use crate::common::{command, every_nth, one_in_turn, turn};
use crate::hosts::{as_host, by_flags, end_well};
use crate::ranks::{ended, left};
use crate::run::{FIRST, Run, SMALL, has_python, kill, refs, region};
use std::process::Stdio;
use std::time::{Duration, Instant};

const AHEAD: [&str; 4] =
    ["async.staleness=1", "train.steps=6", "train.cut_multiple=4", "train.learning_rate=1e-3"];
/// Flags and settings of one rank that samples and one that trains, and of one with two.
const WAYS: [(&str, [&str; 2]); 3] = [
    ("1-1", ["--ranks=2", "async.rollout_ranks=1"]),
    ("1-2", ["--ranks=3", "async.rollout_ranks=2"]),
    ("2-1", ["--ranks=3", "async.rollout_ranks=1"]),
];

#[test]
fn ranks_apart_make_the_run_of_ranks_that_take_turns() {
    let folder = Run::new(SMALL);
    for (index, (name, sets)) in every_nth(
        3,
        [
            ("plain", &[][..]),
            ("far", &["async.staleness=3"]),
            ("all", &["async.staleness=9"]),
            ("critic", &["method=ppo", "loss.kl_coef=0.05"]),
            ("adapters", &["lora.rank=4", "lora.merge=true"]),
            ("mini", &["loss.kl_coef=0.01", "train.mini_batch=4", "train.epochs_per_rollout=2"]),
            ("corrected", &["loss.correction=tis", "train.optimizer_dtype=int8"]),
            ("filtered", &["loss.dynamic_sampling=true", "async.staleness=2"]),
            ("greedy", &["method=remax"]),
            ("muon", &["train.optimizer=muon", "train.grad_dtype=bf16"]),
            (
                "eval",
                &["data.eval=builtin:addition", "eval.prompts_max=7", "eval.every=1", "checkpoint.every=2"],
            ),
        ],
    ) {
        let sets = [&AHEAD[..], sets].concat();
        folder.train(name, &sets);
        let whole = left(&folder, name);
        for (way, flags) in one_in_turn(index, &WAYS) {
            let dir = format!("{name}-{way}");
            let (code, said) = ended(folder.output(&dir, &[&sets[..], flags].concat()));
            assert_eq!(code, Some(0), "{dir}: {said}");
            assert!(!said.contains("over-the-line"), "{dir}: {said}");
            assert_eq!(left(&folder, &dir), whole, "{dir}");
        }
    }
}

#[test]
fn the_first_run_on_one_rank_of_each_kind_is_the_sequential_one() {
    let folder = Run::new(&std::fs::read_to_string(FIRST).expect("the first run"));
    let sets = ["async.staleness=1", "train.steps=4", "train.cut_multiple=2", "eval.prompts_max=32"];
    folder.train("turns", &sets);
    folder.train("apart", &[&sets[..], &WAYS[0].1].concat());
    assert_eq!(left(&folder, "apart"), left(&folder, "turns"));
}

#[test]
fn a_run_goes_on_apart_and_together() {
    let folder = Run::new(SMALL);
    let sets = [&AHEAD[..], &["async.staleness=2", "checkpoint.every=1", "checkpoint.keep=6"]].concat();
    let apart = [&sets[..], &WAYS[2].1].concat();
    folder.train("whole", &apart);
    let goes_on = [(1, WAYS[1].1), (2, ["--ranks=1", "async.rollout_ranks=0"]), (4, WAYS[0].1)];
    for (_, (step, more)) in every_nth(2, goes_on) {
        let dir = as_after(&folder, "whole", step);
        folder.train(&dir, &[&sets[..], &more, &["--resume"]].concat());
        assert_eq!(left(&folder, &dir), left(&folder, "whole"), "from step {step}: {more:?}");
    }
}

/// Ranks that only train on one host or on two, and ranks that only sample next to them or on a host of their own.
#[test]
fn ranks_apart_on_several_hosts_make_the_run_of_one_rank() {
    let Some(host) = as_host() else { return };
    let folder = Run::new(SMALL);
    let spread = [((2, 2), 1), ((4, 2), 2), ((4, 2), 1), ((3, 3), 2)];
    for (index, (name, sets)) in every_nth(
        2,
        [
            ("plain", &["data.eval=builtin:addition", "eval.prompts_max=7", "checkpoint.every=2"][..]),
            ("critic", &["method=ppo", "loss.kl_coef=0.05", "async.staleness=2"]),
            ("adapters", &["lora.rank=4", "lora.merge=true"]),
            ("fold", &["train.fold=2", "train.gradient_wire=bf16"]),
        ],
    ) {
        let sets = [&AHEAD[..], sets].concat();
        folder.train(name, &sets);
        let whole = left(&folder, name);
        for &(ranks, apart) in one_in_turn(index, &spread) {
            let (dir, apart) = (format!("{name}-{ranks:?}-{apart}"), format!("async.rollout_ranks={apart}"));
            end_well(by_flags(&host, &folder, &dir, ranks, &[&sets[..], &[&*apart]].concat()), &dir);
            assert_eq!(left(&folder, &dir), whole, "{dir}");
        }
    }
}

/// A host with ranks that only sample dies, and all start again, as a launcher does it.
#[test]
fn a_host_of_ranks_that_sample_is_lost_and_the_run_goes_on_with_its_bits() {
    let Some(host) = as_host() else { return };
    let folder = Run::new(SMALL);
    let sets = [&AHEAD[..], &["train.steps=20", "checkpoint.every=1", "checkpoint.keep=2"]].concat();
    folder.train("whole", &sets);
    let words = [&sets[..], &["async.rollout_ranks=1"]].concat();
    let mut all = by_flags(&host, &folder, "out", (2, 2), &words);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !folder.path("out/checkpoints/latest").exists() {
        assert!(Instant::now() < deadline, "no checkpoint");
        std::thread::sleep(Duration::from_millis(5));
    }
    all.pop().expect("two hosts").kill();
    let (code, said) = all.pop().expect("two hosts").end();
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("error[rank-lost]: rank 1 (host "), "{said}");
    let again = [&words[..], &["--resume"]].concat();
    end_well(by_flags(&host, &folder, "out", (2, 2), &again), "again");
    assert_eq!(left(&folder, "out"), left(&folder, "whole"));
}

/// Kills the trainer of `rank` once there is a checkpoint. Returns what the run said, if it was in time.
fn killed(folder: &Run, dir: &str, words: &[&str], rank: &str) -> Option<String> {
    let mut child = command(&refs(&folder.train_args(dir, words)))
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !folder.path(dir).join("checkpoints/latest").exists() {
        assert!(Instant::now() < deadline && child.try_wait().expect("a child").is_none(), "no checkpoint");
        std::thread::sleep(Duration::from_millis(2));
    }
    let pids = std::fs::read_dir("/proc").expect("proc").flatten();
    let of_rank = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let is = |word: &str| environment.split(|byte| *byte == 0).any(|it| it == word.as_bytes());
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        is(rank) && String::from_utf8_lossy(&command).contains(&folder.text_path(dir))
    };
    let trainer = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(of_rank);
    trainer.iter().for_each(|pid| kill("-KILL", *pid));
    let (code, said) = ended(child.wait_with_output().expect("it ends"));
    (trainer.is_some() && code != Some(0)).then_some(said)
}

#[test]
fn a_rank_of_either_kind_that_dies_is_named_and_the_run_goes_on() {
    let folder = Run::new(SMALL);
    let sets = [&AHEAD[..], &["train.steps=16", "checkpoint.every=1", "checkpoint.keep=2"]].concat();
    folder.train("whole", &sets);
    for &(dir, rank) in one_in_turn(turn(), &[("samples", 2), ("trains", 0), ("trains-too", 1)]) {
        let words = [&sets[..], &WAYS[2].1].concat();
        if let Some(said) = killed(&folder, dir, &words, &format!("PLIMSOLL_RANK={rank}/3")) {
            let named = format!("error[rank-lost]: rank {rank} (host ");
            assert!(said.contains(&named) && said.contains(" was killed: SIGKILL"), "{dir}: {said}");
        }
        folder.train(dir, &[&sets[..], &WAYS[0].1, &["--resume"]].concat());
        assert_eq!(left(&folder, dir), left(&folder, "whole"), "{dir}");
    }
}

/// Ranks that sample share an error of those that train.
#[test]
fn a_run_that_diverges_or_learns_nothing_ends_once() {
    let folder = Run::new(SMALL);
    let wild =
        [&AHEAD[..], &["train.learning_rate=1e30", "train.grad_clip=0", "train.weight_decay=0"]].concat();
    let (code, said) = ended(folder.output("wild", &[&wild[..], &WAYS[2].1].concat()));
    assert_eq!((code, said.matches("error[").count()), (Some(1), 1), "{said}");
    assert!(said.contains("not-finite]: "), "{said}");
    if !has_python() {
        return;
    }
    folder.write(
        "same.py",
        "def same(prompts, completions, **columns):\n    return [0.5] * len(completions)\n",
    );
    let reward = format!("reward.0.kind=python:{}:same", folder.text_path("same.py"));
    let dull = [&AHEAD[..], &[&*reward, "train.dead_steps_max=3"]].concat();
    let (code, said) = ended(folder.output("dull", &[&dull[..], &WAYS[1].1].concat()));
    assert_eq!((code, said.matches("error[no-advantage]: ").count()), (Some(1), 1), "{said}");
    assert!(said.contains("last good weights: "), "{said}");
}

#[test]
fn the_plan_has_what_is_copied_and_other_ways_are_refused() {
    let folder = Run::new(SMALL);
    let plan = folder.plan(&["async.staleness=1", "async.rollout_ranks=1", "--ranks=2"]);
    assert!(region(&plan, "ranks.others").is_some() && region(&plan, "actor.shard").is_none(), "{plan}");
    for (sets, what) in [
        (&["async.rollout_ranks=1", "--ranks=2"][..], "async.staleness = 0"),
        (&["async.rollout_ranks=2", "async.staleness=1", "--ranks=2"], "no rank is left to train"),
        (&["async.rollout_ranks=1", "async.staleness=1"], "start more ranks, such as --ranks 2"),
        (&["async.rollout_ranks=1", "async.staleness=1", "--ranks=3", "run.zero_stage=3"], "not-built"),
    ] {
        folder.plan_refused(sets, 2, &[what]);
    }
    folder.train_refused(
        "one",
        &["async.rollout_ranks=1", "async.staleness=1"],
        2,
        &["no rank is left to train"],
    );
}
