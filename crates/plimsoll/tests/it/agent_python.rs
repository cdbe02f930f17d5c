//! PPO in Python environments, by the binary: needs an interpreter with numpy.

use crate::common::{command, python_with, text};
use crate::run::{Run, json, refs, region};
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Shows one of two signs and pays for the action that is its number; an episode is 16 signs. `fault` kills the worker
/// once, at step 300 of an environment; `wild` ends episodes after 5 steps once there is a file `again`.
const SIGNS: &str = r#"
import os

import numpy as np


class Box:
    def __init__(self):
        self.shape, self.dtype = (2,), np.dtype(np.float32)
        self.low, self.high = np.zeros(2, np.float32), np.ones(2, np.float32)


class Discrete:
    n, start = 2, 0


class Signs:
    observation_space, action_space = Box(), Discrete()

    def __init__(self, folder="", fault="", length=16):
        self.folder, self.fault, self.length, self.calls = folder, fault, length, 0

    def show(self):
        self.sign = int(self.random.integers(2))
        return np.eye(2, dtype=np.float32)[self.sign]

    def reset(self, seed=None):
        self.random, self.steps = np.random.default_rng(seed), 0
        return self.show(), {}

    def step(self, action):
        self.steps, self.calls = self.steps + 1, self.calls + 1
        if self.fault == "kill" and self.calls == 300 and self.first():
            os.kill(os.getpid(), 9)
        if self.fault == "raise" and self.calls == 300 and self.first():
            raise RuntimeError("the sign fell down")
        paid = float(action == self.sign)
        wild = self.fault == "wild" and os.path.exists(os.path.join(self.folder, "again"))
        return self.show(), paid, self.steps == (5 if wild else self.length), False, {}

    def first(self):
        try:
            os.close(os.open(os.path.join(self.folder, "struck"), os.O_CREAT | os.O_EXCL))
            return True
        except FileExistsError:
            return False

    def close(self):
        pass
"#;

/// A folder with the environment and a run in it.
fn prepared(python: &str) -> Run {
    let folder = Run::new("");
    folder.write("signs.py", SIGNS);
    let env = folder.text_path("signs.py");
    let run = format!(
        "method = \"ppo\"\nmodel = \"mlp:16\"\nseed = 1\n[environment]\nenv = \"python:{env}:Signs\"\n\
         python = \"{python}\"\nnum_envs = 8\nnum_workers = 2\nframes_per_batch = 512\ntotal_frames = 8192\n\
         max_frames_per_traj = 16\n[train]\nmini_batch = 128\nepochs_per_rollout = 4\nlearning_rate = 1e-2\n"
    );
    folder.write("x.toml", &run);
    folder
}

#[test]
fn signs_in_python_are_learnt_within_the_planned_workers() {
    let Some(python) = python_with("numpy") else { return };
    let folder = prepared(&python);
    let words = folder.args("plan", &["eval.every=4", "eval.prompts_max=4", "--json"]);
    let plan = json(&refs(&words));
    for row in ["env.slots", "env.buffers", "env.workers", "env.worker_files", "eval.workers", "eval.arenas"]
    {
        let region = region(&plan, row);
        assert!(region.is_some_and(|region| region["bytes"].as_u64() > Some(0)), "{row}: {region:?}");
    }
    let summary = folder.summary("run", &["eval.every=4", "eval.prompts_max=4"]);
    let number = |key: &str| summary[key].as_f64().unwrap_or_else(|| panic!("{key}: {summary}"));
    // Chance pays 8 of 16. An untrained policy may prefer either action, so its likeliest pays anything about 8.
    assert!(number("reward_last") > 14.0 && number("eval_after") == 16.0, "{summary}");
    assert!(number("eval_before") < 14.0, "{summary}");
    assert_eq!((number("frames"), number("logprob_mismatch_max")), (8192.0, 0.0));
    assert!(number("rss_peak_bytes") <= number("rss_planned_bytes"), "{summary}");
    let steps = folder.metrics("run");
    let evaluated = steps.iter().filter(|metrics| metrics["eval/return"].is_number()).count();
    assert_eq!((steps.len(), evaluated), (16, 4));
    assert!(steps.iter().all(|metrics| metrics["collect/restarts"] == 0.0));
    assert!(folder.path("run/checkpoints/best/model.safetensors").exists());
}

#[test]
fn a_worker_or_an_environment_that_fails_costs_its_step_in_flight() {
    let Some(python) = python_with("numpy") else { return };
    // A worker has four environments; an environment that raises is one.
    for (fault, lost) in [("kill", 4.0), ("raise", 1.0)] {
        let folder = prepared(&python);
        let options = format!(
            "environment.env_options={{ folder = \"{}\", fault = \"{fault}\", length = 24 }}",
            folder.path("").display()
        );
        let sets = [options.as_str(), "environment.max_frames_per_traj=24"];
        folder.summary("run", &[&sets[..], &["environment.total_frames=4096"]].concat());
        let last = folder.metrics("run").pop().expect("steps");
        let counted = ["collect/restarts", "collect/frames_aborted"].map(|key| last[key].as_f64());
        assert_eq!(counted, [Some(1.0), Some(lost)], "{fault}");
        assert_eq!(last["num_frames"], 4096.0, "every batch is whole");
        // Episodes after the one that was given up are brought back as what they are.
        let summary =
            folder.summary("run", &[&sets[..], &["environment.total_frames=8192"], &["--resume"]].concat());
        assert_eq!(summary["frames"], 8192);
        assert!(summary["reward_last"].as_f64() > Some(18.0), "{summary}");
    }
}

#[test]
fn a_run_goes_on_bit_for_bit_where_the_environment_follows_from_its_seed() {
    let Some(python) = python_with("numpy") else { return };
    let folder = prepared(&python);
    // Episodes of 24 frames do not end with the batches of 64 each.
    let sets = ["environment.env_options={ length = 24 }", "environment.max_frames_per_traj=24"];
    folder.summary("whole", &[&sets[..], &["environment.total_frames=4096"]].concat());
    folder.summary("parts", &[&sets[..], &["environment.total_frames=2048"]].concat());
    assert_ne!(folder.weights("whole"), folder.weights("parts"));
    folder.summary("parts", &[&sets[..], &["environment.total_frames=4096"], &["--resume"]].concat());
    assert!(folder.weights("whole") == folder.weights("parts"), "other weights after a resume");
    // The collector truncates what the environment does not end.
    let sets = ["environment.env_options={ length = 1000 }", "environment.max_frames_per_traj=24"];
    folder.summary("cut", &[&sets[..], &["environment.total_frames=4096"]].concat());
    let ended: f64 = folder.metrics("cut").iter().filter_map(|step| step["episode/count"].as_f64()).sum();
    assert_eq!(ended, 8.0 * (512.0_f64 / 24.0).floor());
}

#[test]
fn an_environment_that_does_not_follow_from_its_seed_is_told_on_resume() {
    let Some(python) = python_with("numpy") else { return };
    let folder = prepared(&python);
    let options = format!(
        "environment.env_options={{ folder = \"{}\", fault = \"wild\", length = 48 }}",
        folder.path("").display()
    );
    let sets = [options.as_str(), "environment.max_frames_per_traj=48"];
    // 256 frames of each environment: 16 of its sixth episode.
    folder.summary("run", &[&sets[..], &["environment.total_frames=2048"]].concat());
    folder.write("again", "");
    let more = [&sets[..], &["environment.total_frames=4096"]].concat();
    let resumed = [&more[..], &["--resume", "--json"]].concat();
    folder.train_fails("run", &resumed, 1, &["error[resume-differs]", "--replan"]);
    let summary = folder.summary("run", &[&more[..], &["--resume", "--replan"]].concat());
    assert_eq!(summary["frames"], 4096);
}

#[test]
fn an_interrupt_saves_and_the_run_goes_on() {
    let Some(python) = python_with("numpy") else { return };
    let folder = prepared(&python);
    let words = folder.train_args("run", &["environment.total_frames=1048576", "--json"]);
    let child = command(&refs(&words))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let log = folder.path("run/events.jsonl");
    let since = Instant::now();
    while !fs::read_to_string(&log).is_ok_and(|log| log.contains("\"event\":\"step\"")) {
        assert!(since.elapsed() < Duration::from_secs(120), "no step within two minutes");
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = child.id().to_string();
    let sent = std::process::Command::new("kill").args(["-INT", &pid]).status().expect("kill runs");
    assert!(sent.success());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    let steps = folder.metrics("run").len();
    let more = format!("environment.total_frames={}", 512 * (steps + 4));
    let summary = folder.summary("run", &[&more, "--resume"]);
    assert_eq!(summary["frames"], 512 * (steps + 4));
}

#[test]
fn what_python_environments_cannot_have_is_refused_by_name() {
    let Some(python) = python_with("numpy") else { return };
    let folder = prepared(&python);
    for (sets, code, slug) in [
        (&["environment.turns_max=3"][..], 2, "contradictory-keys"),
        (&["environment.step_timeout_ms=0"], 2, "bad-value"),
        (&["environment.env=python:none.py:Signs"], 2, "unknown-environment"),
        (&["environment.python=python-of-no-version"], 2, "env-python-missing"),
        (&["environment.env=CartPole-v1"], 2, "contradictory-keys"),
        (&["environment.env=gym:"], 2, "unknown-environment"),
    ] {
        folder.plan_refused(sets, code, &[&format!("error[{slug}]")]);
    }
    let run = fs::read_to_string(folder.path("x.toml")).unwrap().replace("max_frames_per_traj = 16\n", "");
    folder.write("x.toml", &run);
    folder.plan_refused(&[], 2, &["error[missing-key]", "max_frames_per_traj"]);
}
