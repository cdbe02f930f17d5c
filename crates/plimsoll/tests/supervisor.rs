//! What the supervisor of a run says when the trainer is killed: real signals, and a real memory cgroup where there is
//! one to write to.

mod common;

use common::cgroup::Group;
use common::{command, plimsoll, text};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const RUN: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
eval = "none"
[rollout]
prompts_per_step = 2
group_size = 4
max_new_tokens = 4
[[reward]]
kind = "hash"
[train]
steps = 1000000
learning_rate = 1e-6
"#;

/// A run under way, its words, and where it writes.
struct Live {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
    folder: tempfile::TempDir,
}

impl Live {
    /// Starts an endless run, in a group if there is one, and waits for its first step.
    fn start(group: Option<&Group>) -> Live {
        Live::start_in(tempfile::tempdir().expect("a temporary folder"), group, &[])
    }

    /// The same in a folder that holds what `sets` name.
    fn start_in(folder: tempfile::TempDir, group: Option<&Group>, sets: &[&str]) -> Live {
        let run = folder.path().join("x.toml");
        fs::write(&run, RUN).expect("a run file");
        let dir = format!("run.dir={}", folder.path().join("out").display());
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let args: Vec<&str> =
            ["train", run.to_str().expect("UTF-8"), "--set", &dir].into_iter().chain(sets).collect();
        let mut command = match group {
            Some(group) => group.plimsoll(&args),
            None => command(&args),
        };
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        while !line.starts_with("step 1/") {
            line.clear();
            assert!(stderr.read_line(&mut line).expect("readable") > 0, "it ended before its first step");
        }
        Live { child, stderr, folder }
    }

    fn supervisor(&self) -> u32 {
        self.child.id()
    }

    fn trainer(&self) -> u32 {
        let id = self.supervisor();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("/proc");
        children.trim().parse().expect("one child")
    }

    /// Exit code, words and `crash.json`.
    fn end(&mut self) -> (Option<i32>, String, Option<Value>) {
        let mut words = String::new();
        self.stderr.read_to_string(&mut words).expect("UTF-8");
        let code = self.child.wait().expect("it ends").code();
        let crash = fs::read(self.folder.path().join("out/crash.json")).ok();
        (code, words, crash.map(|bytes| serde_json::from_slice(&bytes).expect("JSON")))
    }
}

fn kill(signal: &str, pid: u32) {
    let status = Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill is everywhere");
    assert!(status.success(), "kill {signal} {pid}");
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
        let mut run = Live::start(None);
        let trainer = run.trainer();
        kill(signal, trainer);
        let (code, words, crash) = run.end();
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

#[test]
fn nothing_outlives_the_supervisor_and_it_is_small() {
    let mut run = Live::start(None);
    let (supervisor, trainer) = (run.supervisor(), run.trainer());
    let status = fs::read_to_string(format!("/proc/{supervisor}/status")).expect("/proc");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let kib: u64 = peak.trim().trim_end_matches("kB").trim().parse().expect("a number");
    assert!(kib < 10 << 10, "the supervisor holds {kib} KiB");
    kill("-KILL", supervisor);
    run.child.wait().expect("it ends");
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
        let latest = run.folder.path().join("out/checkpoints/latest/model.safetensors");
        let (mut child, mut stderr, mut words) = (run.child, run.stderr, String::new());
        stderr.read_to_string(&mut words).expect("UTF-8");
        assert_eq!(child.wait().expect("it ends").code(), Some(code), "{words}");
        assert!(words.contains(&format!("error[interrupted]: {word} after step ")), "{words}");
        assert!(latest.is_file(), "{words}");
    }
}

#[test]
fn exit_codes_and_words_of_the_trainer_pass_through() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x.toml");
    let path = path.to_str().expect("UTF-8");
    let dir = format!("run.dir={}", folder.path().join("out").display());
    let run = |sets: &[&str]| {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        plimsoll(&[&["train", path, "--json", "--set", &dir][..], &sets].concat())
    };
    assert_eq!(run(&[]).status.code(), Some(2));
    fs::write(path, RUN).expect("a run file");
    assert_eq!(run(&["memory.host=16MiB"]).status.code(), Some(3));
    assert_eq!(run(&["model=no/such"]).status.code(), Some(1));
    let done = run(&["train.steps=2"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let summary: Value = serde_json::from_slice(&done.stdout).expect("one object");
    assert!(summary["supervisor_rss_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{summary}");
    // A limit on a file's size, in blocks: the signal is the kernel's, and the hint says which limit.
    let small = format!("{dir}-small");
    let args = ["-c", "ulimit -f \"$0\"; exec \"$@\"", "1000", env!("CARGO_BIN_EXE_plimsoll"), "train", path];
    let sets = ["--set", &small, "--set", "train.steps=2"];
    let output = Command::new("sh").args(args).args(sets).output().expect("sh is everywhere");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{stderr}");
    assert!(stderr.contains("error[trainer-killed]: SIGXFSZ, ") && stderr.contains("ulimit -f"), "{stderr}");
    // Without a supervisor it is one process, and a kill is nobody's to tell.
    let alone = plimsoll(&[
        "train",
        path,
        "--json",
        "--no-supervisor",
        "--set",
        "train.steps=1",
        "--set",
        &format!("{dir}-2"),
    ]);
    let summary: Value = serde_json::from_slice(&alone.stdout).expect("one object");
    assert_eq!(summary["supervisor_rss_bytes"], 0, "{summary}");
}

#[test]
fn a_container_made_too_small_is_named_and_with_more_memory_the_run_goes_on_bit_for_bit() {
    let Some(group) = Group::new("shrinks", 512 << 20) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut run = Live::start_in(folder, Some(&group), &["checkpoint.every=1"]);
    let latest = run.folder.path().join("out/checkpoints/latest");
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
    let mut eater = eater.spawn().expect("python3");
    let trainer = run.trainer();
    let until = Instant::now() + Duration::from_secs(60);
    while is_alive(trainer) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = eater.kill();
    let _ = eater.wait();
    let (code, words, crash) = run.end();
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
    check_goes_on(&run, &group);
}

/// Takes the run up for three more steps, makes one of that length beside it, and compares weights and states.
fn check_goes_on(run: &Live, group: &Group) {
    let at = |name: &str| run.folder.path().join(name);
    let newest = fs::read_link(at("out/checkpoints/latest")).expect("a link to the newest");
    let done: u32 = newest.to_str().and_then(|name| name.rsplit('-').next()?.parse().ok()).expect("step-N");
    let (steps, file) = (format!("train.steps={}", done + 3), at("x.toml"));
    let train = |name: &str, flag: &[&str]| {
        let dir = format!("run.dir={}", at(name).display());
        let sets = ["--set", &dir, "--set", &steps, "--set", "checkpoint.every=1"];
        let args = [&["train", file.to_str().expect("UTF-8")], &sets[..], flag].concat();
        let output = group.plimsoll(&args).output().expect("sh is everywhere");
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        let manifest = fs::read(at(name).join("checkpoints/latest/manifest.json")).expect("a file");
        let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
        let sums = ["model.safetensors", "state/optimizer.safetensors"]
            .map(|file| manifest["files"][file]["sha256"].as_str().expect("a SHA-256").to_string());
        (stderr, sums)
    };
    let (said, resumed) = train("out", &["--resume"]);
    assert!(said.contains(&format!("resumes after step {done} from ")), "{said}");
    assert!(!at("out/crash.json").exists(), "it is no crash any more");
    assert_eq!(resumed, train("whole", &[]).1);
}

#[test]
fn a_worker_that_the_kernel_kills_within_its_budget_is_not_to_blame() {
    let Some(group) = Group::new("worker", 512 << 20) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let flag = folder.path().join("now");
    let reward = folder.path().join("r.py");
    let code = format!(
        "import os\ndef f(completions, **columns):\n    held = bytearray(b'x') * (370 << 20) if os.path.exists({flag:?}) else b''\n    return [float(len(c)) for c in completions]\n"
    );
    fs::write(&reward, code).expect("a file");
    let kind = format!("reward.0.kind=python:{}:f", reward.display());
    let sets = [kind.as_str(), "reward.0.worker_memory=420MiB", "reward.0.retries=0", "train.steps=2000"];
    let mut run = Live::start_in(folder, Some(&group), &sets);
    // After the plan was made somebody else takes a part of the container; then the reward needs its share, the largest.
    let eats = "import sys\nheld = b'x' * (150 << 20)\nprint('ready', flush=True)\nsys.stdin.read()";
    let mut eater = group.command("python3", &["-c", eats]);
    let mut eater = eater.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
    // The pipe stays open, or its next word would end it.
    let mut words = BufReader::new(eater.stdout.take().expect("piped"));
    words.read_line(&mut String::new()).expect("it holds its part");
    fs::write(&flag, "").expect("a file");
    let (code, words, crash) = run.end();
    eater.kill().and_then(|()| eater.wait()).expect("it is ours");
    assert_eq!(code, Some(1), "{words}");
    assert!(
        words.contains("error[reward-worker-oom-killed]: reward `f`: the container's limit of 512.0 MiB"),
        "{words}"
    );
    assert!(words.contains("which was within its 420.0 MiB"), "{words}");
    assert_eq!(crash.expect("crash.json")["slug"], "reward-worker-oom-killed");
}
