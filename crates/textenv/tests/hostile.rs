//! Hostile lines of an environment, whose code shares its worker's process: they end in a turn or in a named error,
//! within what the plan has for an episode and its thread. Peaks are of the process's resident memory, which the kernel
//! counts, so the cases run one after another in a process without other tests.

use plimsoll_base::Bytes;
use plimsoll_textenv::{ContainerTasks, EpisodeMemory, Hosts, Job, Kind, ReplyLimits, Settings, Start};
use plimsoll_worker::Network;
use std::time::Duration;

/// Forges the lines that its response names.
const FORGED: &str = r#"
import json
honest = json.dumps
forged = None
def dumps(message):
    if forged is None or "id" not in message:
        return honest(message)
    return forged.replace("ID", honest(message["id"]))
json.dumps = dumps
TURN = '"messages":[["user","a"]],"reward":0,"done":false'
class Forged:
    def reset(self, seed):
        return "hi"
    def step(self, response):
        global forged
        numbers = "0," * 500_000
        forged = {
            "ignored": '{"id":ID,"x":[' + numbers + '0],' + TURN + "}",
            "objects": '{"id":ID,"x":[' + '{"a":0},' * 120_000 + '0],' + TURN + "}",
            "messages": '{"id":ID,"messages":[' + '["",""],' * 120_000 + '["",""]],"reward":0,"done":false}',
            "parts": '{"id":ID,"messages":[["user","a",' + numbers + '0]],"reward":0,"done":false}',
            "reward": '{"id":ID,"messages":[],"reward":[' + numbers + '0],"done":false}',
        }[response]
        return "a", 0.0, False
"#;

/// A line of `/proc/self/status`, in bytes.
fn status_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the process can read its status");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the line is there");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of kB") << 10
}

/// Runs this test again in a process whose allocator gives memory back at once, so that no earlier case hides a peak.
/// Returns true in that process.
fn gives_memory_back() -> bool {
    if std::env::var_os("MALLOC_TRIM_THRESHOLD_").is_some() {
        return true;
    }
    let mut again = std::process::Command::new(std::env::current_exe().expect("this test"));
    again.args(std::env::args_os().skip(1));
    let allocator =
        [("MALLOC_MMAP_THRESHOLD_", "16384"), ("MALLOC_TRIM_THRESHOLD_", "0"), ("MALLOC_TOP_PAD_", "0")];
    assert!(again.envs(allocator).status().expect("this test runs").success());
    false
}

fn settings() -> Settings {
    plimsoll_worker::keep_with(env!("CARGO_BIN_EXE_plimsoll-textenv-keeper").into());
    let timeout = Duration::from_secs(60);
    Settings {
        tools: Vec::new(),
        servers: Vec::new(),
        rows: None,
        eval_rows: None,
        tasks: ContainerTasks::default(),
        prompt_column: "prompt".to_string(),
        drops_answers: false,
        ignored: Vec::new(),
        action: "message".to_string(),
        observation: None,
        reply: ReplyLimits::of(128),
        images: None,
        python: None,
        num_workers: 1,
        worker_memory: Bytes::mib(1024),
        network: Network::Deny,
        step_timeout: timeout,
        reset_timeout: timeout,
    }
}

#[test]
fn a_hostile_line_of_an_environment_takes_no_more_than_its_thread_has_in_the_plan() {
    if !gives_memory_back() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("forged.py");
    std::fs::write(&file, FORGED).expect("a file");
    let kind = Kind::parse(&format!("python:{}:Forged", file.display())).expect("a kind");
    let (settings, reply) = (settings(), ReplyLimits::of(128));
    let memory = EpisodeMemory {
        threads: 1,
        reply: reply.host_bytes(),
        has_environment: true,
        ..EpisodeMemory::default()
    };
    let planned = memory.host_bytes(1, 128);
    for (response, words) in [
        ("ignored", ""),
        ("objects", ""),
        ("messages", "120001 messages, and 32 is the most"),
        ("parts", ""),
        ("reward", "a line that is no answer to `step`"),
    ] {
        let mut hosts = Hosts::start(&kind, &settings).expect("an environment");
        let mut ask = |job| {
            hosts.ask(0, job);
            hosts.take(true).expect("there is a reply to each job").outcome
        };
        ask(Job::Reset(Start::train(1, 0))).expect("it begins");
        std::fs::write("/proc/self/clear_refs", "5").expect("the process may reset its peak");
        let before = status_bytes("VmRSS:");
        let got = ask(Job::Step(response.to_string(), Vec::new()));
        let peak = status_bytes("VmHWM:").saturating_sub(before);
        println!("{:>6} KiB of {}  {response}", peak >> 10, planned >> 10);
        match got {
            Ok(_) => assert!(words.is_empty(), "{response}: no error"),
            Err(error) => {
                assert_eq!(error.slug, "text-environment-bad-reply", "{response}: {error}");
                assert!(!words.is_empty() && error.to_string().contains(words), "{response}: {error}");
            }
        }
        assert!(peak <= planned, "{response}: {} KiB of {}", peak >> 10, planned >> 10);
    }
}
