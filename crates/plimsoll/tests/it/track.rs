//! `[track]` from outside: with stand-in clients that report, fail, die and hang, and PLIMSOLL_TEST_PYTHON's real ones.

use crate::common::{Folder, check_error, command, python_with, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

/// A `wandb` that appends to seen.jsonl what it is asked. `{log}` is what it does with numbers.
const WANDB: &str = r#"
import json, os, time

def say(**line):
    with open(os.environ["SEEN"], "a") as file:
        file.write(json.dumps(line) + "\n")

class Settings:
    def __init__(self, **options):
        self.options = options

class Run:
    summary = {}
    def log(self, named, step):
        {log}
        say(step=step, named=named)
    def finish(self, exit_code):
        say(finish=exit_code, summary=sorted(self.summary))

def teardown(exit_code):
    say(teardown=exit_code)

def init(settings, **options):
    {init}
    print("a client prints where replies go")
    say(init=options, settings=settings.options)
    return Run()
"#;

/// The run file, without `[track]`.
const RUN: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 4
group_size = 4
max_new_tokens = 5
[[reward]]
kind = "exact"
[train]
steps = 6
learning_rate = 1e-4
[eval]
every = 3
prompts_max = 8
[run]
dir = "out"
"#;

/// A folder with the run file and a stand-in for W&B.
fn folder(init: &str, log: &str) -> Folder {
    let folder = Folder::with("run.toml", RUN);
    folder.write("wandb.py", &WANDB.replace("{init}", init).replace("{log}", log));
    folder
}

fn train(folder: &Folder, args: &[&str]) -> Output {
    let mut command = command(&[&["train", "run.toml"], args].concat());
    command.current_dir(folder.path(".")).env("PYTHONPATH", folder.path("."));
    // The interpreter that was looked for; a run file or --set may name another.
    command.envs(python_with("json").map(|python| ("PLIMSOLL__TRACK__PYTHON", python)));
    command.env("SEEN", folder.path("seen.jsonl")).output().expect("the binary runs")
}

const TO_WANDB: [&str; 2] = ["--set", "track.to=[\"wandb\"]"];

fn lines(folder: &Folder, name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.path(name)).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect()
}

/// The rewards of all steps by step, as the log and as the tracker have them; each step once.
fn rewards(lines: &[Value], of: fn(&Value) -> Option<&Value>) -> BTreeMap<u64, f64> {
    let mut found = BTreeMap::new();
    for (line, reward) in lines.iter().filter_map(|line| Some((line, of(line)?))) {
        let step = line["step"].as_u64().expect("a number");
        assert_eq!(found.insert(step, reward.as_f64().expect("a number")), None, "step {step} came twice");
    }
    found
}

fn logged(lines: &[Value]) -> BTreeMap<u64, f64> {
    rewards(lines, |line| line.get("reward").filter(|_| line["event"] == "step"))
}

fn seen(lines: &[Value]) -> BTreeMap<u64, f64> {
    rewards(lines, |line| line["named"].get("reward"))
}

fn slugs(lines: &[Value]) -> Vec<&str> {
    lines.iter().filter(|line| line["event"] == "warning").filter_map(|line| line["slug"].as_str()).collect()
}

#[test]
fn a_tracker_gets_every_number_once_and_nothing_that_was_not_named() {
    if python_with("json").is_none() {
        return;
    }
    let folder = folder("pass", "pass");
    let named = ["--set", "track.project=sums", "--set", "track.name=one", "--set", "track.mode=offline"];
    let output = train(&folder, &[&TO_WANDB[..], &named].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let (events, got) = (lines(&folder, "out/events.jsonl"), lines(&folder, "seen.jsonl"));
    assert_eq!(seen(&got), logged(&events));
    assert_eq!(seen(&got).len(), 6);
    assert_eq!(slugs(&events), [""; 0]);
    // What the process held is in the account of the run.
    assert!(events.iter().any(|line| line["workers_bytes"].as_u64() > Some(1 << 20)), "{events:?}");
    let init = &got[0]["init"];
    assert_eq!(
        (&init["project"], &init["name"], &init["mode"]),
        (&"sums".into(), &"one".into(), &"offline".into())
    );
    assert_eq!(init["config"]["rollout"]["group_size"], 4);
    assert!(init["config"].get("track").is_none());
    let settings = &got[0]["settings"];
    assert_eq!(
        (&settings["console"], &settings["disable_git"], &settings["x_disable_meta"]),
        (&"off".into(), &true.into(), &true.into())
    );
    let evals = got.iter().filter(|line| line["named"].get("eval/builtin:addition").is_some()).count();
    assert_eq!(evals, 3, "before, in between, after: {got:?}");
    let last = got.last().expect("a line");
    assert_eq!(last["finish"], 0);
    assert!(last["summary"].as_array().is_some_and(|names| names.contains(&"eval_after".into())), "{last}");

    // The run goes on, and so does its tracker.
    let more = train(&folder, &[&TO_WANDB[..], &named, &["--resume", "--set", "train.steps=9"]].concat());
    assert_eq!(more.status.code(), Some(0), "{}", text(&more.stderr));
    let (events, all) = (lines(&folder, "out/events.jsonl"), lines(&folder, "seen.jsonl"));
    assert_eq!(seen(&all), logged(&events));
    assert_eq!(seen(&all).len(), 9);
    let ids: Vec<&Value> = all.iter().filter_map(|line| line.get("init")).map(|init| &init["id"]).collect();
    assert_eq!((ids.len(), ids[0]), (2, ids[1]));
}

#[test]
fn a_client_that_breaks_is_opened_again_and_misses_nothing() {
    if python_with("json").is_none() {
        return;
    }
    // The client of this process is broken for good: only one that is opened after a reset works.
    let breaks = "\n        broken = any('teardown' in line for line in open(os.environ['SEEN']))\n        if step >= 3 and not broken: raise RuntimeError('gone')";
    let folder = folder("pass", breaks);
    let output = train(&folder, &TO_WANDB);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let (events, got) = (lines(&folder, "out/events.jsonl"), lines(&folder, "seen.jsonl"));
    assert_eq!(slugs(&events), [""; 0], "{}", text(&output.stderr));
    assert_eq!(seen(&got), logged(&events));
    let ids: Vec<&Value> = got.iter().filter_map(|line| line.get("init")).map(|init| &init["id"]).collect();
    assert_eq!((ids.len(), ids[0]), (2, ids[1]));
}

#[test]
fn a_tracker_that_fails_dies_or_hangs_costs_a_warning() {
    if python_with("json").is_none() {
        return;
    }
    let bare = folder("pass", "pass");
    assert_eq!(train(&bare, &[]).status.code(), Some(0));
    let expect = logged(&lines(&bare, "out/events.jsonl"));
    assert!(lines(&bare, "seen.jsonl").is_empty(), "no tracker was named");
    for (init, log, slug, words) in [
        ("raise RuntimeError('no API key')", "pass", "tracker-failed", "no API key"),
        ("pass", "os._exit(3)", "tracker-stopped", "exit code 3"),
        ("pass", "time.sleep(1000)", "tracker-stopped", "2000 ms"),
    ] {
        let folder = folder(init, log);
        let output = train(&folder, &[&TO_WANDB[..], &["--set", "track.timeout_ms=2000"]].concat());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{init} {log}: {stderr}");
        let events = lines(&folder, "out/events.jsonl");
        // Not one bit of the run is different.
        assert_eq!(logged(&events), expect, "{init} {log}");
        assert_eq!(slugs(&events), [slug], "{init} {log}: {stderr}");
        assert!(stderr.contains(slug) && stderr.contains(words), "{stderr}");
        assert!(folder.path("out/summary.json").exists());
    }
}

#[test]
fn a_client_that_is_missing_is_named_before_the_run() {
    let Some(python) = python_with("json") else { return };
    let folder = Folder::with("run.toml", RUN);
    // An interpreter without any package.
    let bare = folder.write("python", &format!("#!/bin/sh\nexec '{python}' -I -S \"$@\"\n"));
    std::fs::set_permissions(&bare, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let set = format!("track.python={bare}");
    let args = ["--set", "track.to=[\"wandb\",\"tensorboard\"]", "--set", &set];
    let output = train(&folder, &args);
    check_error(
        &args,
        &output,
        2,
        &["error[tracker-missing]", "wandb, tensorboard", "pip install wandb tensorboard"],
    );
    assert!(!folder.path("out").exists());
    let plan = command(&[&["plan", "run.toml"], &args[..]].concat()).current_dir(folder.path(".")).output();
    let plan = plan.expect("the binary runs");
    assert_eq!(plan.status.code(), Some(2), "{}", text(&plan.stderr));
    let output = train(&folder, &["--set", "track.to=[\"wandb\"]", "--set", "track.python=no-such-python"]);
    check_error(&args, &output, 1, &["error[tracker-not-started]", "no-such-python"]);
}

#[test]
fn the_real_clients_of_wandb_and_tensorboard_work_offline() {
    let Some(python) = python_with("wandb, tensorboard") else { return };
    let folder = Folder::with("run.toml", RUN);
    let set = format!("track.python={python}");
    let args =
        ["--set", "track.to=[\"wandb\",\"tensorboard\"]", "--set", "track.mode=offline", "--set", &set];
    let output = train(&folder, &args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let events = lines(&folder, "out/events.jsonl");
    assert_eq!(slugs(&events), [""; 0], "{}", text(&output.stderr));
    let runs = std::fs::read_dir(folder.path("out/track/wandb")).expect("W&B's folder").flatten();
    let offline: Vec<_> =
        runs.filter(|entry| entry.file_name().to_string_lossy().starts_with("offline-run-")).collect();
    // A worker that was too slow is started again, with a folder of its own: what W&B sees is one run, by its id.
    let id = |entry: &std::fs::DirEntry| {
        // `offline-run-TIME-ID`, and `-1` after it for a second one of the same second.
        entry.file_name().to_string_lossy().split('-').nth(3).unwrap_or_default().to_string()
    };
    let ids: std::collections::BTreeSet<String> = offline.iter().map(id).collect();
    assert_eq!(ids.len(), 1, "{offline:?}");
    for run in &offline {
        assert!(!run.path().join("files/requirements.txt").exists(), "the packages of this machine");
    }
    let script = "
import sys, json
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
log = EventAccumulator(sys.argv[1]); log.Reload()
print(json.dumps({e.step: e.value for e in log.Scalars('reward')}))
";
    let read =
        Command::new(&python).args(["-c", script, &folder.text_path("out/track/tensorboard/out")]).output();
    let read = read.expect("it runs");
    assert!(read.status.success(), "{}", text(&read.stderr));
    let found: BTreeMap<u64, f64> = serde_json::from_slice(&read.stdout).expect("an object");
    let near = |(a, b): (&(u64, f64), &(u64, f64))| a.0 == b.0 && (a.1 - b.1).abs() < 1e-6;
    let (found, expect): (Vec<_>, Vec<_>) =
        (found.into_iter().collect(), logged(&events).into_iter().collect());
    assert!(found.len() == expect.len() && found.iter().zip(&expect).all(near), "{found:?} {expect:?}");
}
