//! Isolation of workers: memory cgroups, limits checked before the start, forbidden devices, and that nothing outlives
//! their parent.

use crate::common::{Driver, envs, faulty, is_gone, python};
use plimsoll_base::Bytes;
use plimsoll_collect::{FaultKind, PythonEnvs, PythonStepper, Stepper};
use plimsoll_memory::host::Host;
use plimsoll_worker::{GroupHome, Stop};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Set in this program when it is started again, to be the parent of workers.
const ROLE: &str = "PLIMSOLL_TEST_ROLE";

/// A command that runs this test again in another process.
fn again(test: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("python_isolation::{test}"), "--nocapture"]).env(ROLE, role);
    command
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "{what} within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Groups of workers of process `pid`.
fn groups_of(pid: u32) -> Vec<PathBuf> {
    let groups = Host::this().memory_groups();
    let folders = groups.iter().filter_map(|group| std::fs::read_dir(&group.dir).ok());
    let is_theirs = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("plimsoll-env-") && name.split('-').nth(3) == Some(&pid.to_string())
    };
    folders
        .flat_map(|folder| folder.flatten())
        .map(|entry| entry.path())
        .filter(|path| is_theirs(path))
        .collect()
}

fn has_groups() -> bool {
    let has = GroupHome::find(&Host::this()).is_some();
    if !has {
        eprintln!("skipped: memory groups cannot be made here");
    }
    has
}

#[test]
fn the_kernel_holds_workers_to_their_memory_where_groups_can_be_made() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    for (groups, says) in [(true, "killed by the kernel"), (false, "holds ")] {
        if groups && !has_groups() {
            continue;
        }
        let _ = std::fs::remove_file(folder.path().join("failed"));
        // Each of four children is within the limit of a process; together they are not.
        let mut one = envs(&python, "Faulty", faulty(folder.path(), "leak_in_children", "step"), 4, 2);
        (one.worker_memory, one.memory_groups) = (Bytes::mib(300), groups);
        let mut driver = Driver::start(one).unwrap();
        let held_by = driver.stepper.memory_held_by().to_string();
        assert_eq!(held_by.starts_with("memory group"), groups, "{held_by}");
        driver.steps(16).unwrap();
        let error = driver.faults[0].error.to_string();
        assert_eq!((driver.faults.len(), driver.faults[0].kind), (1, FaultKind::OverBudget), "{error}");
        assert_eq!(driver.faults[0].error.slug, "env-worker-over-budget", "{error}");
        assert!(error.contains(says), "{error}");
        assert!(!groups || error.contains("300.0 MiB, peak "), "the group's own numbers: {error}");
    }
}

/// The kernel kills a worker within its own limit because the container is full, and the error says so.
#[test]
fn a_full_container_is_told_from_a_worker_beyond_its_limit() {
    let Some(python) = python() else { return };
    if let Ok(dir) = std::env::var(ROLE) {
        std::fs::write(format!("{dir}/memory.limit_in_bytes"), (300 << 20).to_string()).unwrap();
        std::fs::write(format!("{dir}/cgroup.procs"), "0").unwrap();
        let folder = tempfile::tempdir().unwrap();
        for groups in [true, false] {
            let _ = std::fs::remove_file(folder.path().join("failed"));
            let mut one = envs(&python, "Faulty", faulty(folder.path(), "leak", "step"), 2, 1);
            one.memory_groups = groups;
            let mut driver = Driver::start(one).unwrap();
            driver.steps(8).unwrap();
            let error = driver.faults[0].error.to_string();
            assert_eq!(driver.faults[0].error.slug, "env-worker-oom-killed", "{error}");
            assert!(error.contains("the container's limit of 300.0 MiB was reached"), "{error}");
            // Killed by another hand, after all that the counters have seen: no memory in that.
            plimsoll_worker::procs::kill_all(driver.stepper.pids());
            driver.steps(2).unwrap();
            let error = driver.faults[1].error.to_string();
            assert_eq!(driver.faults[1].error.slug, "env-worker-crashed", "{error}");
        }
        return;
    }
    let Some(dir) = group_below("memory") else {
        eprintln!("skipped: no memory group can be made here, which takes root and cgroup v1");
        return;
    };
    let test = "a_full_container_is_told_from_a_worker_beyond_its_limit";
    let outcome = again(test, &dir.display().to_string()).status();
    wait_for("the group is empty", || std::fs::remove_dir(&dir).is_ok());
    assert!(outcome.unwrap().success());
}

#[test]
fn groups_end_with_their_workers() {
    let Some(python) = python() else { return };
    if !has_groups() {
        return;
    }
    // In another process, because other tests make groups in this one.
    if std::env::var(ROLE).is_ok() {
        let own = || groups_of(std::process::id()).len();
        let mut driver = Driver::start(envs(&python, "Count", json!({}), 4, 2)).unwrap();
        assert_eq!(own(), 2);
        for pid in driver.stepper.pids() {
            plimsoll_worker::procs::kill_all([pid]);
        }
        driver.steps(2).unwrap();
        assert_eq!((own(), driver.faults.len()), (2, 2));
        drop(driver);
        assert_eq!(own(), 0);
        return;
    }
    assert!(again("groups_end_with_their_workers", "parent").status().unwrap().success());
}

/// Returns what an environment with grandchildren wrote down: their process ids.
fn grandchildren(folder: &Path) -> Option<Vec<u32>> {
    let text = std::fs::read_to_string(folder.join("grandchildren")).ok()?;
    text.split(' ').map(|pid| pid.parse().ok()).collect()
}

#[test]
fn nothing_outlives_a_parent_that_is_killed() {
    let Some(python) = python() else { return };
    if let Ok(folder) = std::env::var(ROLE) {
        let mut driver = Driver::start(envs(&python, "Family", json!({ "folder": folder }), 2, 2)).unwrap();
        let pids: Vec<String> = driver.stepper.pids().iter().map(u32::to_string).collect();
        std::fs::write(format!("{folder}/new"), pids.join(" ")).unwrap();
        std::fs::rename(format!("{folder}/new"), format!("{folder}/workers")).unwrap();
        driver.steps(u32::MAX).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let role = folder.path().display().to_string();
    let mut parent = again("nothing_outlives_a_parent_that_is_killed", &role).spawn().unwrap();
    let file = folder.path().join("workers");
    wait_for("workers are there", || file.exists());
    let workers: Vec<u32> =
        std::fs::read_to_string(&file).unwrap().split(' ').map(|pid| pid.parse().unwrap()).collect();
    let family = grandchildren(folder.path()).expect("each is written before its environment is made");
    assert_eq!((workers.len(), family.len()), (2, 2));
    let all: Vec<u32> = [workers, family].concat();
    assert!(!all.iter().any(|&pid| is_gone(pid)), "{all:?} live while their parent does");
    let groups = groups_of(parent.id());
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_for("everything ends, in other sessions too,", || all.iter().all(|&pid| is_gone(pid)));
    wait_for("their memory groups end", || groups.iter().all(|group| !group.exists()));
}

#[test]
fn a_grandchild_in_another_session_ends_with_its_worker() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut driver =
        Driver::start(envs(&python, "Family", json!({ "folder": folder.path() }), 1, 1)).unwrap();
    let first = grandchildren(folder.path()).unwrap();
    plimsoll_worker::procs::kill_all(driver.stepper.pids());
    driver.steps(2).unwrap();
    assert_eq!(driver.faults.len(), 1);
    assert!(driver.faults[0].error.message.contains("was killed by signal 9"), "{}", driver.faults[0].error);
    assert!(is_gone(first[0]), "the grandchild of the worker that was killed lives");
    let second = grandchildren(folder.path()).unwrap();
    assert!(!is_gone(second[1]));
    drop(driver);
    assert!(is_gone(second[1]), "the grandchild of a worker that was closed lives");
}

#[test]
fn an_open_device_ends_the_worker() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let device = folder.path().join("nvidia0");
    std::fs::write(&device, "").unwrap();
    // A file instead of a device: the test shows that an open one is found and reported, not what a driver does.
    let mut one = envs(&python, "Opens", json!({ "path": device, "folder": folder.path() }), 2, 2);
    one.gpu_devices = vec![folder.path().join("nvidia").display().to_string()];
    let mut driver = Driver::start(one).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while driver.faults.is_empty() {
        assert!(Instant::now() < until, "a worker with an open device goes on");
        driver.steps(1).unwrap();
    }
    let error = &driver.faults[0].error;
    assert_eq!(error.slug, "env-worker-touched-gpu", "{error}");
    assert!(error.message.contains(&format!("has opened {}", device.display())), "{error}");
    driver.steps(2).unwrap();
    assert_eq!(driver.stepper.workers_alive(), 2);
}

#[test]
fn a_warning_is_told_once_a_worker() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut driver =
        Driver::start(envs(&python, "MapsCuda", json!({ "folder": folder.path() }), 2, 2)).unwrap();
    let mut warnings = Vec::new();
    let until = Instant::now() + Duration::from_secs(60);
    while warnings.len() < 2 {
        assert!(Instant::now() < until, "{warnings:?}");
        driver.steps(1).unwrap();
        warnings.extend(driver.stepper.take_warnings());
    }
    for pid in driver.stepper.pids() {
        plimsoll_worker::procs::kill_all([pid]);
    }
    driver.steps(10).unwrap();
    assert!(driver.stepper.take_warnings().is_empty(), "once a worker, whatever becomes of it");
    assert!(warnings.iter().all(|warning| warning.slug == "env-worker-maps-cuda"), "{warnings:?}");
}

/// A group of this process's own for `controller`, if it may make one: root, or a delegated group.
fn group_below(controller: &str) -> Option<PathBuf> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.split_once(&format!(":{controller}:")))?.1;
    let dir = Path::new("/sys/fs/cgroup").join(controller).join(own.trim_start_matches('/'));
    let dir = dir.join(format!("plimsoll-test-{}", std::process::id()));
    std::fs::create_dir(&dir).ok()?;
    Some(dir)
}

#[test]
fn a_limit_on_processes_is_seen_before_workers_start() {
    if let Ok(dir) = std::env::var(ROLE) {
        std::fs::write(format!("{dir}/cgroup.procs"), "0").unwrap();
        let check = |workers: u32| PythonEnvs::new("gym:CartPole-v1", 64, workers).check();
        // This process and its threads, two for each worker, sixteen for the run.
        std::fs::write(format!("{dir}/pids.max"), "60").unwrap();
        assert!(check(8).is_ok());
        let error = check(64).unwrap_err();
        assert_eq!(error.slug, "env-ulimit-too-low", "{error}");
        assert!(error.message.contains(&format!("the limit is 60 ({dir}/pids.max)")), "{error}");
        assert!(PythonStepper::start(PythonEnvs::new("gym:CartPole-v1", 64, 64), &Stop::default()).is_err());
        std::fs::write(format!("{dir}/pids.max"), "max").unwrap();
        assert!(check(64).is_ok());
        return;
    }
    let Some(dir) = group_below("pids") else {
        eprintln!("skipped: no pids group can be made here, which takes root and cgroup v1");
        return;
    };
    let outcome =
        again("a_limit_on_processes_is_seen_before_workers_start", &dir.display().to_string()).status();
    wait_for("the group is empty", || std::fs::remove_dir(&dir).is_ok());
    assert!(outcome.unwrap().success());
}
