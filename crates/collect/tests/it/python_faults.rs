//! Every way in which a worker of Python environments may fail, with real processes: the run goes on, nothing but the
//! step in flight is given up, and the failure has its name.

use crate::common::{Driver, Frame, envs, faulty, is_gone, python};
use plimsoll_collect::{Ask, FaultKind, PythonStepper};
use plimsoll_env::flags;
use plimsoll_worker::Stop;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const STEPS: u32 = 16;

/// Returns what a run without failures gives.
fn undisturbed(python: &str) -> &'static [Vec<Frame>] {
    static FRAMES: OnceLock<Vec<Vec<Frame>>> = OnceLock::new();
    FRAMES.get_or_init(|| {
        let mut driver = Driver::start(envs(python, "Count", json!({}), 4, 2)).unwrap();
        driver.steps(STEPS).unwrap();
        driver.frames
    })
}

/// One failure among four environments in two workers. `aborted`: steps that may be given up.
fn check(class: Value, kind: FaultKind, slug: &str, aborted: usize) -> Option<Driver> {
    let python = python()?;
    let mut one = envs(&python, "Faulty", class, 4, 2);
    one.worker_memory = plimsoll_base::Bytes::mib(300);
    if kind == FaultKind::Timeout {
        one.step_timeout = Duration::from_millis(1000);
    }
    let mut driver = Driver::start(one).unwrap();
    driver.steps(STEPS).unwrap();
    let said: Vec<_> = driver.faults.iter().map(|fault| (fault.kind, fault.error.slug)).collect();
    assert_eq!(said, [(kind, slug)], "{:#?}", driver.faults);
    assert_eq!(driver.aborted(), aborted, "{:#?}", driver.faults[0].error);
    // Every environment answered every request, and those that did not fail have not noticed.
    let calm = undisturbed(&python);
    let mut same = 0;
    for (frames, expect) in driver.frames.iter().zip(calm) {
        assert_eq!(frames.len(), STEPS as usize + 1);
        same += usize::from(frames == expect);
        if let Some(at) = frames.iter().position(|frame| frame.flags & flags::ABORTED != 0) {
            // Up to the failure the frames are the same, and the answer to it is the first of a new episode.
            assert_eq!(frames[..at], expect[..at]);
            assert_eq!(frames[at].values()[1..], [0.0, -1.0]);
            assert!(frames[at + 1..].iter().all(|frame| frame.flags & flags::ABORTED == 0));
        }
    }
    assert!(same >= 4 - aborted.max(2), "{same} environments of 4 are as they were");
    Some(driver)
}

fn once(fault: &str, place: &str, kind: FaultKind, slug: &str, aborted: usize) -> Option<Driver> {
    let folder = tempfile::tempdir().unwrap();
    check(faulty(folder.path(), fault, place), kind, slug, aborted)
}

#[test]
fn killed_in_a_step() {
    once("kill", "step", FaultKind::Death, "env-worker-crashed", 2);
}

#[test]
fn killed_in_a_reset() {
    once("kill", "reset", FaultKind::Death, "env-worker-crashed", 2);
}

#[test]
fn exit_0_is_a_death_too() {
    let Some(driver) = once("exit", "step", FaultKind::Death, "env-worker-crashed", 2) else { return };
    assert!(driver.faults[0].error.message.ends_with("ended with exit code 0"));
    once("os_exit", "step", FaultKind::Death, "env-worker-crashed", 2);
}

#[test]
fn an_exception_costs_its_environment_alone() {
    for place in ["step", "reset"] {
        let Some(driver) = once("raise", place, FaultKind::Exception, "env-exception", 1) else { return };
        let error = driver.faults[0].error.to_string();
        assert!(
            error.contains(&format!("raised in {place}: RuntimeError: the speed is negative")),
            "{error}"
        );
        assert!(
            error.contains("envs.py") && !error.contains("/proc/self/fd"),
            "their traceback alone: {error}"
        );
    }
}

/// The end of a text longer than a message is shown, and invalid characters are replaced.
#[test]
fn any_text_of_an_exception_costs_its_environment_alone() {
    for (fault, says) in [("raise_long", " is the last word"), ("raise_surrogate", "no file caf?")] {
        let Some(driver) = once(fault, "step", FaultKind::Exception, "env-exception", 1) else { return };
        assert!(driver.faults[0].error.to_string().contains(says), "{fault}");
    }
}

#[test]
fn a_reward_that_is_none_costs_its_environment_alone() {
    once("reward_inf", "step", FaultKind::BadOutput, "env-bad-output", 1);
    once("reward_raises", "step", FaultKind::Exception, "env-exception", 1);
}

#[test]
fn a_sleep_without_end_shows_its_stack() {
    for fault in ["sleep", "hold_gil"] {
        let Some(driver) = once(fault, "step", FaultKind::Timeout, "env-worker-timeout", 2) else { return };
        let error = driver.faults[0].error.to_string();
        assert!(error.contains("was in step longer than 1000 ms") && error.contains("in do"), "{error}");
    }
}

#[test]
fn a_stopped_worker_is_a_late_one() {
    once("stop", "step", FaultKind::Timeout, "env-worker-timeout", 2);
}

#[test]
fn a_leak_ends_at_the_budget() {
    for fault in ["leak", "leak_in_children"] {
        once(fault, "step", FaultKind::OverBudget, "env-worker-over-budget", 2);
    }
}

#[test]
fn what_no_space_holds_is_bad_output() {
    for fault in ["shape", "dtype", "nan", "infinite", "reward_nan", "reward_none", "old_step"] {
        let Some(driver) = once(fault, "step", FaultKind::BadOutput, "env-bad-output", 1) else { return };
        assert!(driver.faults[0].error.message.starts_with("environment "), "{}", driver.faults[0].error);
    }
}

#[test]
fn nonsense_on_the_socket_ends_the_worker() {
    once("say_nonsense", "step", FaultKind::BadOutput, "env-bad-output", 2);
}

#[test]
fn a_closed_socket_ends_the_worker() {
    once("close_socket", "step", FaultKind::BadOutput, "env-bad-output", 2);
}

#[test]
fn prints_are_no_failure() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut driver =
        Driver::start(envs(&python, "Faulty", faulty(folder.path(), "print", "step"), 4, 2)).unwrap();
    driver.steps(STEPS).unwrap();
    assert!(driver.faults.is_empty() && driver.frames == *undisturbed(&python));
}

#[test]
fn a_grandchild_ends_with_its_session() {
    let folder = tempfile::tempdir().unwrap();
    let class = faulty(folder.path(), "grandchild", "step");
    if check(class, FaultKind::Death, "env-worker-crashed", 2).is_none() {
        return;
    }
    let pid = std::fs::read_to_string(folder.path().join("grandchild")).unwrap();
    assert!(is_gone(pid.parse().unwrap()), "the grandchild lives");
}

#[test]
fn one_that_cannot_be_made_again_stops_the_run_with_its_name() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let class = json!({ "folder": folder.path(), "fault": "kill", "always": true });
    let mut one = envs(&python, "Faulty", class, 4, 2);
    one.restarts_max = 2;
    let mut driver = Driver::start(one).unwrap();
    let error = driver.steps(100).unwrap_err();
    assert_eq!(error.slug, "env-failing-repeatedly", "{error}");
    assert!(error.facts[0].contains("env-worker-crashed"), "{error}");
}

#[test]
fn workers_that_do_nothing_but_end_stop_the_run() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let class = json!({ "folder": folder.path(), "fault": "kill", "always": true, "at": 1 });
    let mut one = envs(&python, "Faulty", class, 2, 2);
    one.restarts_max = 1000;
    let error = Driver::start(one).unwrap().steps(100).unwrap_err();
    assert_eq!(error.slug, "env-failing-repeatedly", "{error}");
    assert!(error.message.contains("end before they made a step"), "{error}");
}

#[test]
fn a_slow_consumer_loses_nothing() {
    let Some(python) = python() else { return };
    let mut driver = Driver::start(envs(&python, "Count", json!({}), 4, 2)).unwrap();
    for _ in 0..STEPS {
        driver.steps(1).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(driver.faults.is_empty() && driver.frames == *undisturbed(&python));
}

#[test]
fn the_number_of_workers_changes_no_byte() {
    let Some(python) = python() else { return };
    let mut all: Vec<Vec<Vec<Frame>>> = Vec::new();
    for workers in [1, 2, 8] {
        let mut driver = Driver::start(envs(&python, "Count", json!({}), 16, workers)).unwrap();
        driver.steps(STEPS).unwrap();
        assert_eq!(driver.stepper.workers(), workers as usize);
        all.push(std::mem::take(&mut driver.frames));
    }
    assert!(all[0] == all[1] && all[0] == all[2]);
    // Episodes end after seven steps: with the last observation kept, and the next one's first in its place.
    let end = &all[0][3][7];
    assert_eq!((end.flags, end.reward, end.values()[1]), (flags::TERMINATED, 3.5, 0.0));
    assert_eq!(f32::from_ne_bytes(*end.last[4..].first_chunk().unwrap()), 7.0);
}

#[test]
fn workers_do_not_outlive_a_parent_that_is_killed() {
    let Some(python) = python() else { return };
    // This test again, in another process that starts workers and writes their pids.
    if let Ok(path) = std::env::var("PLIMSOLL_TEST_PARENT") {
        let mut driver = Driver::start(envs(&python, "Slow", json!({ "seconds": 0.01 }), 4, 2)).unwrap();
        let pids: Vec<String> = driver.stepper.pids().iter().map(u32::to_string).collect();
        std::fs::write(format!("{path}.new"), pids.join(" ")).unwrap();
        std::fs::rename(format!("{path}.new"), path).unwrap();
        driver.steps(u32::MAX).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pids");
    let mut parent = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "python_faults::workers_do_not_outlive_a_parent_that_is_killed"])
        .env("PLIMSOLL_TEST_PARENT", &path)
        .spawn()
        .unwrap();
    let pids = read_when_there(&path);
    assert_eq!(pids.len(), 2);
    parent.kill().unwrap();
    parent.wait().unwrap();
    // It takes milliseconds; on a machine that is busy elsewhere, as long as it does.
    let until = Instant::now() + Duration::from_secs(30);
    while !pids.iter().all(|&pid| is_gone(pid)) {
        assert!(Instant::now() < until, "of {pids:?} some live long after their parent");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn read_when_there(path: &Path) -> Vec<u32> {
    for _ in 0..3000 {
        if let Ok(text) = std::fs::read_to_string(path) {
            return text.split(' ').map(|pid| pid.parse().unwrap()).collect();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{} was not written within 30 s", path.display());
}

#[test]
fn a_stop_ends_the_wait() {
    let Some(python) = python() else { return };
    let mut driver = Driver::start(envs(&python, "Slow", json!({ "seconds": 0.3 }), 1, 1)).unwrap();
    let request = plimsoll_collect::Request { asks: &[Ask::Step], actions: &[0; 8], seeds: &[1] };
    use plimsoll_collect::Stepper;
    driver.stepper.submit(0, request).unwrap();
    let stop = Stop::default();
    stop.set();
    assert_eq!(driver.stepper.wait(&stop).unwrap(), None);
    assert_eq!(driver.stepper.wait(&Stop::default()).unwrap(), Some(0));
}

#[test]
fn a_signal_ends_the_wait_for_environments_that_are_made() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let class = json!({ "folder": folder.path(), "fault": "sleep", "where": "make", "always": true });
    let signal = std::sync::Arc::new(std::sync::atomic::AtomicI32::new(2));
    let error = PythonStepper::start(envs(&python, "Faulty", class, 2, 1), &Stop::on(&signal)).err();
    assert_eq!(error.map(|error| error.slug), Some("interrupted"));
}

/// The error of environments that do not start.
fn refused(class: &str, kwargs: Value, num_envs: u32) -> Option<plimsoll_base::Error> {
    let python = python()?;
    Some(
        PythonStepper::start(envs(&python, class, kwargs, num_envs, 1), &Stop::default())
            .err()
            .expect("it is refused"),
    )
}

#[test]
fn what_cannot_start_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let always =
        |fault: &str| json!({ "folder": folder.path(), "fault": fault, "where": "make", "always": true });
    for (class, kwargs, num_envs, slug, says) in [
        ("Faulty", always("raise"), 2, "env-not-made", "the speed is negative"),
        ("Faulty", always("kill"), 2, "env-worker-crashed", "signal 9"),
        ("Faulty", always("exit"), 2, "env-worker-crashed", "exit code 0"),
        ("Unsupported", json!({}), 2, "env-space-unsupported", "words"),
        ("Space", json!({ "what": "half" }), 2, "env-space-unsupported", "float16"),
        ("Space", json!({ "what": "keys" }), 2, "env-space-unsupported", "the key 1 is no string"),
        ("Space", json!({ "what": "many" }), 2, "env-space-unsupported", "whose description takes"),
        ("Space", json!({ "what": "names" }), 2, "env-space-unsupported", "two of its parts have this name"),
        ("Different", json!({}), 2, "env-spaces-changed", "action was"),
        ("Huge", json!({}), 512, "env-shared-memory-full", "256"),
        ("Vector", json!({ "n": 4 }), 6, "env-vector-size", "steps 4 at once"),
        ("NotThere", json!({}), 2, "env-import-failed", "has no attribute 'NotThere'"),
        ("Count", json!({ "wrong": 1 }), 2, "env-not-made", "wrong"),
    ] {
        let Some(error) = refused(class, kwargs, num_envs) else { return };
        assert_eq!(error.slug, slug, "{class}: {error}");
        assert!(error.to_string().contains(says), "{class}: {error}");
    }
}

#[test]
fn spaces_that_change_after_a_reset_are_named() {
    let Some(python) = python() else { return };
    let mut one = envs(&python, "Changing", json!({}), 1, 1);
    one.restarts_max = 0;
    let error = Driver::start(one).unwrap().steps(STEPS).unwrap_err();
    assert_eq!(error.slug, "env-failing-repeatedly", "{error}");
    assert!(error.facts[0].contains("env-spaces-changed"), "{error}");
}

#[test]
fn a_file_that_does_not_load_shows_its_traceback() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.py");
    std::fs::write(&file, "import a_module_that_is_not_there\n\ndef make():\n    pass\n").unwrap();
    let mut one = envs(&python, "Count", json!({}), 1, 1);
    one.env = format!("python:{}:make", file.display());
    let error = PythonStepper::start(one, &Stop::default()).err().expect("it is refused").to_string();
    assert!(error.starts_with("error[env-import-failed]"), "{error}");
    assert!(error.contains("mine.py\", line 1") && error.contains("a_module_that_is_not_there"), "{error}");
}

#[test]
fn an_interpreter_that_is_missing_or_bare_is_named() {
    let Some(python) = python() else { return };
    let start = |interpreter: &str, env: &str| {
        let mut one = envs(&python, "Count", json!({}), 1, 1);
        one.python = Some(interpreter.into());
        one.env = env.into();
        PythonStepper::start(one, &Stop::default()).err().map(|error| error.slug)
    };
    assert_eq!(start("python-of-no-version", "gym:CartPole-v1"), Some("env-python-missing"));
    // The same interpreter, told to leave out what was installed for it.
    let folder = tempfile::tempdir().unwrap();
    let bare = folder.path().join("python");
    std::fs::write(&bare, format!("#!/bin/sh\nexec {python} -S \"$@\"\n")).unwrap();
    std::fs::set_permissions(&bare, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(start(&bare.display().to_string(), "gym:CartPole-v1"), Some("env-numpy-missing"));
    let hides = "import sys; sys.modules['gymnasium'] = None";
    std::fs::write(folder.path().join("sitecustomize.py"), hides).unwrap();
    let script = format!("#!/bin/sh\nPYTHONPATH={} exec {python} \"$@\"\n", folder.path().display());
    std::fs::write(&bare, script).unwrap();
    assert_eq!(start(&bare.display().to_string(), "gym:CartPole-v1"), Some("env-gymnasium-missing"));
}
