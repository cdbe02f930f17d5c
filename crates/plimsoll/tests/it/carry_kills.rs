//! A run with responses under way that is killed again and again: what it leaves is what an undisturbed run leaves.
//! `bench/kills.py` kills one fifty times.

use crate::carry::long;
use crate::common::is_full;
use crate::ranks::left;
use crate::run::{Run, SMALL, refs};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Starts `train` in a process group of its own.
fn start(args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    let command = command.args(args).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command.spawn().expect("the binary runs")
}

/// Kills a process group, and waits until none of it is left.
fn kill_all(mut child: Child) {
    let group = format!("-{}", child.id());
    let signal = |signal: &str| {
        let sent = Command::new("kill").args([signal, "--", &group]).stderr(Stdio::null()).status();
        sent.expect("kill is everywhere").success()
    };
    signal("-KILL");
    child.wait().expect("it is ours");
    let until = Instant::now() + Duration::from_secs(20);
    while signal("-0") {
        assert!(Instant::now() < until, "processes of {group} are left");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn steps_done(events: &Path) -> u64 {
    let text = std::fs::read_to_string(events).unwrap_or_default();
    text.lines().filter(|line| line.starts_with("{\"event\":\"step\"")).count() as u64
}

#[test]
fn a_run_that_is_killed_again_and_again_ends_with_the_same_bits() {
    let (kills, steps) =
        if is_full("half of the kills") { (6, "train.steps=30") } else { (3, "train.steps=12") };
    let folder = Run::new(SMALL);
    let mut sets = long(&["train.cut_multiple=4", "checkpoint.every=1", "checkpoint.keep=2"]);
    sets.push(steps);
    folder.train("whole", &sets);
    let events = folder.path("killed").join("events.jsonl");
    let mut killed = 0;
    for n in 0..10 * kills {
        let args = folder.train_args("killed", &[&sets[..], &["--resume"]].concat());
        let before = steps_done(&events);
        let mut child = start(&refs(&args));
        // At another moment of a step each time, and in the one before the first checkpoint too.
        while killed < kills && child.try_wait().expect("it is ours").is_none() {
            if steps_done(&events) >= before + n % 3 {
                std::thread::sleep(Duration::from_millis(7 * n));
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        match child.try_wait().expect("it is ours") {
            None if killed < kills => {
                kill_all(child);
                killed += 1;
            }
            _ => {
                assert!(child.wait().expect("it is ours").success());
                break;
            }
        }
    }
    assert_eq!(killed, kills);
    assert_eq!(left(&folder, "killed"), left(&folder, "whole"));
    let carry = |dir: &str| folder.read_json(&format!("{dir}/summary.json"))["carry"]["ticks"].clone();
    assert_eq!(carry("killed"), carry("whole"), "sums of the summary go on");
}
