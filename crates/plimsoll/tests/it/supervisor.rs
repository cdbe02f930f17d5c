//! Tests what the supervisor of a run says when the trainer is killed: real signals, and a real memory cgroup where
//! there is one to write to.

use crate::common::cgroup::Group;
use crate::common::{command, text};
use crate::run::{Run, SMALL, Started, check_done, kill, refs};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ENDLESS: &str = "train.steps=1000000";

/// A run under way and where it writes.
struct Live {
    run: Started,
    folder: Run,
}

impl Live {
    /// Starts an endless run, in a group if there is one, and waits for its first step.
    fn start(group: Option<&Group>) -> Live {
        Live::start_in(Run::new(SMALL), group, &[])
    }

    /// Works as `start`, in a folder that holds what `sets` name.
    fn start_in(folder: Run, group: Option<&Group>, sets: &[&str]) -> Live {
        let args = folder.train_args("out", &[&[ENDLESS], sets].concat());
        let args = refs(&args);
        let command = group.map_or_else(|| command(&args), |group| group.plimsoll(&args));
        Live { run: Started::new(command), folder }
    }

    fn supervisor(&self) -> u32 {
        self.run.child.id()
    }

    fn trainer(&self) -> u32 {
        let id = self.supervisor();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("/proc");
        children.trim().parse().expect("one child")
    }

    /// Exit code, stderr, `crash.json` and the folder.
    fn end(self) -> (Option<i32>, String, Option<Value>, Run) {
        let output = self.run.end();
        let crash =
            self.folder.path("out/crash.json").exists().then(|| self.folder.read_json("out/crash.json"));
        (output.status.code(), text(&output.stderr), crash, self.folder)
    }
}

fn is_alive(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

#[test]
fn a_killed_trainer_is_told_from_a_crashed_one() {
    for (signal, slug, contains) in
        [("-KILL", "trainer-killed", "SIGKILL from outside"), ("-ABRT", "trainer-crashed", "SIGABRT")]
    {
        let run = Live::start(None);
        let trainer = run.trainer();
        kill(signal, trainer);
        let (code, words, crash, _) = run.end();
        assert_eq!(code, Some(4), "{words}");
        let head = format!("error[{slug}]: ");
        assert!(words.contains(&head) && words.contains(contains) && words.contains("\nhint: "), "{words}");
        let crash = crash.expect("crash.json");
        assert_eq!((&crash["slug"], &crash["exit"]), (&slug.into(), &4.into()), "{crash}");
        assert_eq!(crash["pid"], trainer);
        assert!(crash["readings"]["rss"]["anon"].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{crash}");
        assert!(
            crash["step"].as_u64().is_some_and(|step| step >= 1) && crash["phase"].is_string(),
            "{crash}"
        );
        let last = crash["last_words"].as_array().expect("a list");
        assert!(
            last.iter().any(|line| line.as_str().is_some_and(|line| line.starts_with("step 1/"))),
            "{crash}"
        );
    }
}

/// A process's limits on the size of a core dump, soft and hard.
fn core_limits(pid: u32) -> [String; 2] {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("/proc");
    let line = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a line");
    let words: Vec<&str> = line.split_whitespace().collect();
    [words[4], words[5]].map(str::to_string)
}

/// A core dump held the keys of the environment.
#[test]
fn r_a_crash_left_a_core_dump_with_keys() {
    let own = core_limits(std::process::id());
    if own[1] == "0" {
        eprintln!("SKIPPED: this machine allows no core dumps");
        return;
    }
    for (value, expected) in [("", ["0".to_string(), "0".to_string()]), ("1", own)] {
        let folder = Run::new(SMALL);
        let args = folder.train_args("out", &[ENDLESS]);
        let mut train = command(&refs(&args));
        train.env("PLIMSOLL_CORE_DUMPS", value);
        let live = Live { run: Started::new(train), folder };
        for pid in [live.supervisor(), live.trainer()] {
            assert_eq!(core_limits(pid), expected, "PLIMSOLL_CORE_DUMPS={value}");
        }
        kill("-KILL", live.trainer());
        assert_eq!(live.end().0, Some(4));
    }
}

#[test]
fn a_stopped_trainer_is_reported_and_ends_when_it_is_asked_to() {
    let run = Live::start(None);
    let (supervisor, trainer) = (run.supervisor(), run.trainer());
    kill("-STOP", trainer);
    std::thread::sleep(Duration::from_secs(4));
    kill("-CONT", trainer);
    std::thread::sleep(Duration::from_secs(2));
    kill("-STOP", trainer);
    std::thread::sleep(Duration::from_millis(100));
    // Without being continued it would never see this.
    kill("-TERM", supervisor);
    let (code, words, crash, _) = run.end();
    assert_eq!((code, crash), (Some(143), None), "{words}");
    let stopped = format!("warning[trainer-stopped]: a signal stopped the trainer, pid {trainer}, in step ");
    assert_eq!(words.matches(&stopped).count(), 1, "{words}");
    assert!(words.contains(&format!("\nhint: kill -CONT {trainer} ")), "{words}");
    assert!(words.contains(&format!("\nthe trainer, pid {trainer}, goes on after ")), "{words}");
}

#[test]
fn nothing_outlives_the_supervisor_and_it_is_small() {
    let mut run = Live::start(None);
    let (supervisor, trainer) = (run.supervisor(), run.trainer());
    let status = fs::read_to_string(format!("/proc/{supervisor}/status")).expect("/proc");
    let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("its own memory");
    let kib: u64 = own.trim().trim_end_matches("kB").trim().parse().expect("a number");
    // As the plan has it, besides the pages of the binary, which are the trainer's too.
    assert!(kib < 5 << 10, "the supervisor holds {kib} KiB");
    kill("-KILL", supervisor);
    run.run.child.wait().expect("it ends");
    let until = Instant::now() + Duration::from_secs(30);
    while is_alive(trainer) {
        assert!(Instant::now() < until, "the trainer lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// True if this process, and so what it starts, ignores SIGHUP, the first of the signals.
fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 1 != 0))
}

#[test]
fn signals_go_through_and_end_the_run_in_its_own_way() {
    for (signal, code, word) in [("-INT", 130, "SIGINT"), ("-TERM", 143, "SIGTERM"), ("-HUP", 143, "SIGHUP")]
    {
        // What starts the tests may ignore SIGHUP, as nohup does; then a run does so too.
        if signal == "-HUP" && ignores_hangup() {
            eprintln!("skipped: SIGHUP is ignored here");
            continue;
        }
        let run = Live::start(None);
        // As a terminal does: the whole group gets it, and the supervisor passes its own on. It is one request.
        let (supervisor, trainer) = (run.supervisor(), run.trainer());
        kill(signal, trainer);
        kill(signal, supervisor);
        let (ended, words, _, folder) = run.end();
        assert_eq!(ended, Some(code), "{words}");
        assert!(words.contains(&format!("error[interrupted]: {word} after step ")), "{words}");
        assert!(folder.path("out/checkpoints/latest/model.safetensors").is_file(), "{words}");
    }
}

#[test]
fn exit_codes_and_words_of_the_trainer_pass_through() {
    let folder = Run::new(&SMALL.replace("steps = 3", "steps = 1000000"));
    let code = |words: &[&str]| folder.output("out", words).status.code();
    assert_eq!(folder.file("absent.toml").output("out", &[]).status.code(), Some(2));
    assert_eq!(code(&["memory.host=16MiB"]), Some(3));
    assert_eq!(code(&["model=no/such"]), Some(1));
    let summary = folder.summary("out", &["train.steps=2"]);
    assert!(summary["supervisor_rss_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{summary}");
    // A limit on a file's size, in blocks: the signal is the kernel's, and the hint says which limit.
    let args = ["-c", "ulimit -f \"$0\"; exec \"$@\"", "1000", env!("CARGO_BIN_EXE_plimsoll")];
    let train = folder.train_args("small", &["train.steps=2"]);
    let output = Command::new("sh").args(args).args(train).output().expect("sh is everywhere");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{stderr}");
    assert!(stderr.contains("error[trainer-killed]: SIGXFSZ, ") && stderr.contains("ulimit -f"), "{stderr}");
    // Without a supervisor it is one process, so nothing is left to report a kill.
    let summary = folder.summary("alone", &["--no-supervisor", "train.steps=1"]);
    assert_eq!(summary["supervisor_rss_bytes"], 0, "{summary}");
}

#[test]
fn a_container_made_too_small_is_named_and_with_more_memory_the_run_goes_on_bit_for_bit() {
    let Some(group) = Group::new("shrinks", 512 << 20) else {
        return;
    };
    let run = Live::start_in(Run::new(SMALL), Some(&group), &["checkpoint.every=1"]);
    let latest = run.folder.path("out/checkpoints/latest");
    let until = Instant::now() + Duration::from_secs(60);
    while !latest.exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    // Somebody else in the container takes what is left of a limit that was lowered to a little above what is used.
    let limit = (group.usage() + (12 << 20)) >> 12 << 12;
    assert!(group.set_limit(limit));
    let eats = "import time\nheld = []\nwhile True:\n    held.append(bytearray(b'x' * (1 << 20)))\n    time.sleep(0.002)";
    let mut eater = group.command("python3", &["-c", eats]);
    // The trainer is the largest in there, so it is its death that is to be explained.
    // While it dies, the kernel may look for another, and the eater is still small: not who is to report.
    let _ = fs::write(format!("/proc/{}/oom_score_adj", run.supervisor()), "-1000");
    let mut eater = eater.spawn().expect("python3");
    let trainer = run.trainer();
    let until = Instant::now() + Duration::from_secs(60);
    while is_alive(trainer) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = eater.kill();
    let _ = eater.wait();
    let (code, words, crash, folder) = run.end();
    assert_eq!(code, Some(4), "{words}");
    assert!(words.contains("error[container-oom-kill]: the container's limit of "), "{words}");
    assert!(words.contains("\nhint: give the container at least "), "{words}");
    let crash = crash.expect("crash.json");
    assert_eq!(
        (&crash["slug"], &crash["unproven"]),
        (&"container-oom-kill".into(), &false.into()),
        "{crash}"
    );
    let groups = crash["evidence"]["groups"].as_array().expect("a list");
    let own = groups
        .iter()
        .find(|g| g["dir"].as_str().is_some_and(|dir| Path::new(dir) == group.dir))
        .expect("ours");
    assert!(own["oom_kills"].as_u64().is_some_and(|n| n >= 1), "{crash}");
    assert_eq!(own["limit"], limit, "{crash}");

    // With more memory it goes on from the checkpoint before, to the weights of a run that was never killed.
    assert!(group.set_limit(512 << 20));
    check_goes_on(&folder, &group);
}

/// Resumes the run for three more steps, makes one of that length, and compares weights and states.
fn check_goes_on(folder: &Run, group: &Group) {
    // Not `latest`: a trainer killed after a checkpoint got its name and before the link moved leaves the old link.
    let names = fs::read_dir(folder.path("out/checkpoints"))
        .expect("a folder")
        .map(|entry| entry.expect("a name").file_name());
    let step = |name: std::ffi::OsString| name.to_str()?.strip_prefix("step-")?.parse().ok();
    let done: u32 = names.filter_map(step).max().expect("step-N");
    let steps = format!("train.steps={}", done + 3);
    let train = |dir: &str, flag: &[&str]| {
        let args = folder.train_args(dir, &[&[&*steps, "checkpoint.every=1"], flag].concat());
        let said = check_done(&group.plimsoll(&refs(&args)).output().expect("sh is everywhere"));
        let manifest = folder.read_json(&format!("{dir}/checkpoints/latest/manifest.json"));
        let sums = ["model.safetensors", "state/optimizer.safetensors"]
            .map(|file| manifest["files"][file]["sha256"].as_str().expect("a SHA-256").to_string());
        (said, sums)
    };
    let (said, resumed) = train("out", &["--resume"]);
    assert!(said.contains(&format!("resumes after step {done} from ")), "{said}");
    assert!(!folder.path("out/crash.json").exists(), "it is no crash any more");
    assert_eq!(resumed, train("whole", &[]).1);
}

#[test]
fn a_worker_that_the_kernel_kills_within_its_budget_is_not_to_blame() {
    let Some(group) = Group::new("worker", 512 << 20) else {
        return;
    };
    let folder = Run::new(SMALL);
    let flag = folder.path("now");
    let code = format!(
        "import os\ndef f(completions, **columns):\n    held = bytearray(b'x') * (370 << 20) if os.path.exists({flag:?}) else b''\n    return [float(len(c)) for c in completions]\n"
    );
    let kind = format!("reward.0.kind=python:{}:f", folder.write("r.py", &code));
    let sets = [kind.as_str(), "reward.0.worker_memory=420MiB", "reward.0.retries=0", "train.steps=2000"];
    let run = Live::start_in(folder, Some(&group), &sets);
    // After planning, another process takes part of the container; then the reward needs its share, the largest.
    let eats = "import sys\nheld = b'x' * (150 << 20)\nprint('ready', flush=True)\nsys.stdin.read()";
    let mut eater = group.command("python3", &["-c", eats]);
    let mut eater = eater.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
    // The pipe stays open, or its next word would end it.
    let mut words = BufReader::new(eater.stdout.take().expect("piped"));
    words.read_line(&mut String::new()).expect("it holds its part");
    fs::write(&flag, "").expect("a file");
    let (code, words, crash, _) = run.end();
    eater.kill().and_then(|()| eater.wait()).expect("it is ours");
    assert_eq!(code, Some(1), "{words}");
    assert!(
        words.contains("error[reward-worker-oom-killed]: reward `f`: the container's limit of 512.0 MiB"),
        "{words}"
    );
    assert!(words.contains("which was within its 420.0 MiB"), "{words}");
    assert_eq!(crash.expect("crash.json")["slug"], "reward-worker-oom-killed");
}
