//! Python environments on several threads of a collector: which thread steps which worker changes no result.

use crate::common::{envs, faulty, python};
use plimsoll_collect::{
    Collector, Extras, Mode, OnAbort, PythonEnvs, PythonStepper, Random, RowLayout, Settings, Stepper,
};
use plimsoll_env::Slot;
use plimsoll_worker::Stop;
use serde_json::json;
use std::time::{Duration, Instant};

const FRAMES: usize = 40;

/// A collector with at most `lanes` threads.
fn collector(envs: PythonEnvs, lanes: usize) -> Collector {
    let steppers = PythonStepper::start_lanes(envs, lanes, &Stop::default()).unwrap();
    let spec = steppers[0].spec();
    let (observation, action) = (Slot::of(&spec.observation).unwrap(), Slot::of(&spec.action).unwrap());
    let layout = RowLayout::new(&observation, &action, FRAMES, FRAMES, Extras::default()).unwrap();
    let settings = Settings {
        run_seed: 3,
        mode: Mode::Sync,
        batches_in_flight: 1,
        on_abort: OnAbort::Keep,
        random_steps: 0,
        reset_each_batch: false,
    };
    let steppers = steppers.into_iter().map(|stepper| Box::new(stepper) as Box<dyn Stepper>).collect();
    Collector::start(&settings, layout, steppers, &mut || Box::new(Random { run_seed: 3 })).unwrap()
}

/// Two batches, row by row.
fn bytes_of(mut collector: Collector) -> Vec<Vec<u8>> {
    let mut rows = Vec::new();
    for _ in 0..2 {
        let batch = collector.next().unwrap().unwrap();
        rows.extend(batch.rows().iter().map(|row| row.bytes().to_vec()));
    }
    assert!(collector.take_faults().is_empty());
    rows
}

#[test]
fn neither_workers_nor_threads_change_a_byte() {
    let Some(python) = python() else { return };
    let of = |workers, lanes| bytes_of(collector(envs(&python, "Count", json!({}), 11, workers), lanes));
    let once = of(1, 1);
    assert!(once[0] != once[1] && once[0] != once[11]);
    for (workers, lanes) in [(2, 2), (8, 1), (8, 2), (8, 3), (8, 8), (3, 8)] {
        assert!(once == of(workers, lanes), "{workers} workers asked by {lanes} threads");
    }
}

#[test]
fn vectors_stay_whole_in_uneven_shares() {
    let Some(python) = python() else { return };
    let of = |workers, lanes| {
        let vectors = envs(&python, "Vector", json!({ "n": 2, "mode": "SameStep" }), 10, workers);
        bytes_of(collector(vectors, lanes))
    };
    assert!(of(1, 1) == of(4, 3));
}

/// The end of a worker is reported to its thread, and the others continue.
#[test]
fn a_death_is_its_own_threads_alone() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut disturbed = collector(envs(&python, "Faulty", faulty(folder.path(), "kill", "step"), 4, 4), 4);
    let batch = disturbed.next().unwrap().unwrap();
    let faults = disturbed.take_faults();
    assert_eq!((faults.len(), disturbed.stats().counters.frames_aborted), (1, 1), "{faults:?}");
    assert_eq!(faults[0].error.slug, "env-worker-crashed");
    let mut undisturbed = collector(envs(&python, "Count", json!({}), 4, 4), 4);
    let both = undisturbed.next().unwrap().unwrap();
    let same = both.rows().iter().zip(batch.rows()).map(|(one, other)| one.bytes() == other.bytes());
    let differing: Vec<usize> = same.enumerate().filter(|(_, same)| !same).map(|(env, _)| env).collect();
    assert_eq!(differing, [faults[0].env_index as usize]);
}

/// `workers_alive_min` counts all workers of all threads.
#[test]
fn workers_in_a_loop_are_counted_over_all_threads() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let class = json!({ "folder": folder.path(), "fault": "kill", "always": true, "at": 1 });
    let mut one = envs(&python, "Faulty", class, 4, 4);
    one.restarts_max = 1000;
    let mut collector = collector(one, 4);
    let error = loop {
        match collector.next() {
            Ok(batch) => assert!(batch.is_some(), "it ends with an error"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.slug, "env-failing-repeatedly", "{error}");
    assert!(error.message.starts_with("3 of 4 workers end before they made a step"), "{error}");
}

/// Nothing stays bound to a processor: neither the worker's children, nor later workers.
#[test]
fn a_worker_that_starts_others_gives_them_all_processors() {
    let Some(python) = python() else { return };
    let allowed = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().find_map(|line| Some(line.strip_prefix("Cpus_allowed:")?.trim().to_string()))
    };
    let all = allowed(std::process::id());
    let folder = tempfile::tempdir().unwrap();
    let class = json!({ "folder": folder.path(), "at": 2000 });
    let mut collector = collector(envs(&python, "Parent", class, 1, 1), 1);
    let until = Instant::now() + Duration::from_secs(30);
    let child = loop {
        collector.next().unwrap().unwrap();
        let written = std::fs::read_to_string(folder.path().join("child")).ok();
        if let Some(pid) = written.and_then(|text| text.parse::<u32>().ok()) {
            break pid;
        }
        assert!(Instant::now() < until, "no child was started");
    };
    // It may share a processor until the pair is looked at again.
    while allowed(child) != all {
        collector.next().unwrap().unwrap();
        assert!(Instant::now() < until, "the child is still bound: {:?} of {all:?}", allowed(child));
    }
    assert_eq!(allowed(std::process::id()), all);
}
