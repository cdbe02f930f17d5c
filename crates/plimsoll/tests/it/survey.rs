//! `doctor --ranks`: the ranks of two hosts, each a process namespace, measure what lies between them before a run.

use crate::common::{command, text};
use crate::hosts::as_host;
use crate::ranks::free_port;
use crate::run::{Run, SMALL};
use serde_json::Value;
use std::process::{Child, Command, Output, Stdio};

/// Starts two hosts with the same words except their numbers and prefixes. Returns what they left, by host.
fn survey(words: &[&str], before: [&[&str]; 2]) -> Option<[Output; 2]> {
    let host = as_host()?;
    let join = format!("--join=127.0.0.1:{}", free_port());
    let start = |rank: &str, before: &[&str]| -> Child {
        let binary = command(&[]);
        Command::new(host[0])
            .args(&host[1..])
            .args(before)
            .arg(binary.get_program())
            .args(["doctor"])
            .args(words)
            .args(["--hosts=2", rank, &join, "--join-seconds=20"])
            .env("RUST_BACKTRACE", "0")
            .env("PLIMSOLL_TOKEN", "a secret of a test")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("unshare runs")
    };
    let all = [start("--host-rank=0", before[0]), start("--host-rank=1", before[1])];
    Some(all.map(|child| child.wait_with_output().expect("it ends")))
}

fn check<'v>(found: &'v Value, slug: &str) -> &'v Value {
    let checks = found["checks"].as_array().expect("a list");
    checks.iter().find(|check| check["slug"] == slug).unwrap_or_else(|| panic!("{slug}: {found}"))
}

#[test]
fn two_hosts_are_measured_before_a_run() {
    let folder = Run::new(SMALL);
    let run = folder.text_path("x.toml");
    let out = format!("PLIMSOLL__RUN__DIR={}", folder.text_path("out"));
    let env = ["env", &*out];
    let Some([first, other]) = survey(&[&run, "--ranks=4", "--json"], [&env, &env]) else {
        return;
    };
    assert_eq!(first.status.code(), Some(0), "{}\n{}", text(&first.stdout), text(&first.stderr));
    assert_eq!(
        (other.status.code(), text(&other.stdout)),
        (Some(0), String::new()),
        "{}",
        text(&other.stderr)
    );
    let found: Value = serde_json::from_slice(&first.stdout).expect("JSON");
    let hosts: Vec<u64> = (0..4).filter_map(|rank| found["ranks"][rank]["host"].as_u64()).collect();
    assert_eq!(hosts, [0, 0, 1, 1]);
    for (rank, from) in [(0, 1), (2, 0)] {
        let network = &found["ranks"][rank]["network"];
        assert_eq!(network["reads"][0]["from_host"], from);
        for key in ["bytes_per_second", "round_trip_seconds"] {
            assert!(network["reads"][0][key].as_f64().is_some_and(|value| value > 0.0), "{key}: {network}");
        }
        assert!(network["at_once_bytes_per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{network}");
        assert_eq!(found["ranks"][rank]["interface"]["name"], "lo");
    }
    for slug in ["ranks-differ", "ranks-clocks", "ranks-mtu", "machine-shared-memory", "ranks-directory"] {
        assert_eq!(check(&found, slug)["state"], "fine", "{found}");
    }
    let left: Vec<_> = std::fs::read_dir(folder.path(".")).expect("a folder").flatten().collect();
    assert!(left.iter().all(|entry| !entry.file_name().to_string_lossy().contains("doctor")), "{left:?}");
}

#[test]
fn what_is_wrong_between_hosts_is_named_in_words() {
    let folder = Run::new(SMALL);
    std::fs::create_dir(folder.path("disk")).expect("a folder");
    // Host 0 has a disk of its own there, and few descriptors.
    let script = format!(
        "unset PLIMSOLL_ISA; mount -t tmpfs none {} && ulimit -n 200 && exec \"$@\"",
        folder.text_path("disk")
    );
    let disk = folder.text_path("disk");
    let Some([first, other]) =
        survey(&["--ranks=2", "--dir", &disk], [&["sh", "-c", &script, "sh"], &["env", "PLIMSOLL_ISA=avx2"]])
    else {
        return;
    };
    let said = text(&first.stdout);
    assert_eq!(
        (first.status.code(), other.status.code()),
        (Some(1), Some(1)),
        "{said}{}",
        text(&first.stderr)
    );
    for part in [
        "host  name",
        "reads   of host 0",
        "problem  ranks-differ                 PLIMSOLL_ISA is nothing on rank 0 and avx2 on rank 1\n",
        "problem  machine-open-files           host 0 (",
        "ulimit -n 200, and the run may need 1024",
        "note     ranks-directory              ",
        "of rank 0's host, which writes it, is not seen by host 1",
        "\nfine     ranks-clocks ",
    ] {
        assert!(said.contains(part), "{part:?}: {said}");
    }
}

#[test]
fn one_rank_has_nothing_to_measure() {
    let output = command(&["doctor", "--ranks"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("error[bad-usage]: --ranks: one rank"), "{}", text(&output.stderr));
    let output = command(&["doctor", "--ranks=2", "--join-seconds=20"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("all ranks are on one host"), "{}", text(&output.stdout));
}
