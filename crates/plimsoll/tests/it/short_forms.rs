//! The short forms of `cargo xtask soak` and `cargo xtask truth`. The long soak kills hundreds of times and also breaks
//! disks, directories and memory; the long truth draws many runs.

#[path = "../../../../xtask/src/soak/mod.rs"]
mod soak;
#[path = "../../../../xtask/src/truth/mod.rs"]
#[allow(dead_code, reason = "the long form prints tables, this one only asserts")]
mod truth;

use crate::common::{is_full, turn};
use std::path::{Path, PathBuf};

/// Faults of a rank that any user may cause, in three parts. That a trainer is killed at a random instant is the next
/// test's too.
const OF_RANKS: [&str; 3] = [
    "trainer stopped|phase start|phase update",
    "supervisor killed|phase rollout|phase eval",
    "connections silent|phase save",
];

#[test]
fn a_killed_run_that_is_taken_up_equals_one_that_was_left_alone() {
    let kills = if is_full("half of the kills of a run") { 4 } else { 2 };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = soak::Options {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_plimsoll")),
        folder: folder.path().join("soak"),
        kills,
        steps: 10,
        seed: 7,
        faults: true,
        short: true,
        runs: 0,
        ranks: 0,
        hosts: 1,
        rounds: 0,
        minutes: 0,
        only: String::new(),
        device: String::new(),
        hit: None,
    };
    let report =
        soak::soak(&options, &mut |line| eprintln!("{line}")).unwrap_or_else(|what| panic!("{what}"));
    assert!(report.kills >= kills && report.runs > 0, "{}", soak::table(&options, &report));
    assert!(report.rows.iter().all(|row| row.lost == "nothing" || row.seen.starts_with("skipped")));
    eprintln!("{}", soak::table(&options, &report));
}

#[test]
fn faults_of_a_rank_are_named_and_taken_up_from_on_another_number_of_ranks() {
    let (steps, only) = if is_full("two thirds of the faults of a rank, and two thirds of the steps") {
        (120, "")
    } else {
        (40, OF_RANKS[turn() % OF_RANKS.len()])
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = soak::Options {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_plimsoll")),
        folder: folder.path().join("soak"),
        kills: 0,
        steps,
        seed: 3,
        faults: false,
        short: true,
        runs: 0,
        ranks: 2,
        hosts: 1,
        rounds: 0,
        minutes: 0,
        only: only.into(),
        device: String::new(),
        hit: None,
    };
    let rows = soak::ranks::soak(&options, options.ranks, &mut |line| eprintln!("{line}"))
        .unwrap_or_else(|what| panic!("{what}"));
    eprintln!("{}", soak::ranks::table(&options, options.ranks, &rows));
}

#[test]
fn ranks_that_are_killed_at_random_instants_go_on_with_another_number() {
    let (rounds, steps) = if is_full("two of three rounds of kills of ranks, and half of the steps") {
        (3, 60)
    } else {
        (1, 30)
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = soak::Options {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_plimsoll")),
        folder: folder.path().join("soak"),
        kills: 0,
        steps,
        seed: 5,
        faults: false,
        short: true,
        runs: 0,
        ranks: 3,
        hosts: 1,
        rounds,
        minutes: 0,
        only: String::new(),
        device: String::new(),
        hit: None,
    };
    let report = soak::ranks::rounds::rounds(&options, &mut |line| eprintln!("{line}"))
        .unwrap_or_else(|what| panic!("{what}"));
    assert!(
        soak::ranks::rounds::table(&options, &report)
            .contains(&format!("**{} rounds, 0 differ.**", options.rounds))
    );
}

#[test]
fn hosts_that_are_killed_at_random_instants_go_on_with_the_same_bits() {
    if !is_full("hosts that are killed at random instants") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = soak::Options {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_plimsoll")),
        folder: folder.path().join("soak"),
        kills: 0,
        steps: 60,
        seed: 2,
        faults: false,
        short: true,
        runs: 0,
        ranks: 2,
        hosts: 2,
        rounds: 2,
        minutes: 0,
        only: String::new(),
        device: String::new(),
        hit: None,
    };
    if !soak::ranks::hosts::can_run() {
        eprintln!("skipped: this user may not make namespaces of processes");
        return;
    }
    let report = soak::ranks::hosts::rounds(&options, &mut |line| eprintln!("{line}"))
        .unwrap_or_else(|what| panic!("{what}"));
    assert!(soak::ranks::hosts::table(&options, &report).contains("**2 rounds in "));
}

#[test]
fn what_goes_wrong_between_hosts_is_named_or_changes_no_bit() {
    if !soak::ranks::hosts::can_run() {
        eprintln!("skipped: this user may not make namespaces of processes");
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let only = if is_full("faults of a network between hosts") { "" } else { "another|before it joins" };
    let options = soak::Options {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_plimsoll")),
        folder: folder.path().join("soak"),
        kills: 0,
        steps: 6,
        seed: 4,
        faults: false,
        short: true,
        runs: 0,
        ranks: 4,
        hosts: 2,
        rounds: 0,
        minutes: 0,
        only: only.into(),
        device: String::new(),
        hit: None,
    };
    let rows = soak::ranks::host_faults::soak(&options, &mut |line| eprintln!("{line}"))
        .unwrap_or_else(|what| panic!("{what}"));
    let table = soak::ranks::host_faults::table(&options, &rows);
    for part in ["| another model on one host | 1 of 1 | ", "| a rank killed before it joins | 1 of 1 | "] {
        assert!(table.contains(part), "{table}");
    }
}

#[test]
fn a_few_runs_take_what_their_plans_say() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plimsoll = Path::new(env!("CARGO_BIN_EXE_plimsoll"));
    let count = if is_full("three of five runs") { 5 } else { 2 };
    let runs = truth::measure(plimsoll, folder.path(), count, 7, |_, _| ())
        .unwrap_or_else(|words| panic!("{words}"));
    for run in &runs {
        assert!(run.faults().is_empty(), "{}: {:?}", run.what, run.faults());
    }
    assert!(truth::markdown(&runs, 7).contains(&format!("| runs | {count} |")));
    let object: serde_json::Value = serde_json::from_str(&truth::to_json(&runs, 7)).expect("one object");
    assert_eq!((object["arenas_equal"].as_u64(), object["faults"].as_u64()), (Some(count as u64), Some(0)));
}
