//! Vector environments of Python in a collector: they step and reset as one, whatever some of them are asked.

use crate::common::{Driver, envs, python};
use plimsoll_collect::{
    Collector, Extras, Mode, OnAbort, PythonEnvs, PythonStepper, Random, RowLayout, Settings, Stepper,
};
use plimsoll_env::{Slot, flags};
use plimsoll_worker::Stop;
use serde_json::json;

/// Two counters at once, of three and four steps; four in two workers.
fn vectors(python: &str, mode: &str) -> PythonEnvs {
    envs(python, "Vector", json!({ "n": 2, "mode": mode }), 4, 2)
}

fn collector(envs: PythonEnvs, mode: Mode, frames: usize, finals: usize, anew: bool) -> Collector {
    let stepper = PythonStepper::start(envs, &Stop::default()).unwrap();
    let spec = stepper.spec();
    let (observation, action) = (Slot::of(&spec.observation).unwrap(), Slot::of(&spec.action).unwrap());
    let layout = RowLayout::new(&observation, &action, frames, finals, Extras::default()).unwrap();
    let settings = Settings {
        run_seed: 3,
        mode,
        batches_in_flight: 1,
        on_abort: OnAbort::Keep,
        random_steps: 0,
        reset_each_batch: anew,
    };
    Collector::start(&settings, layout, vec![Box::new(stepper)], &mut || Box::new(Random { run_seed: 3 }))
        .unwrap()
}

#[test]
fn a_limit_truncates_single_environments() {
    let Some(python) = python() else { return };
    let mut one = envs(&python, "Count", json!({}), 3, 2);
    one.episode_steps_max = Some(5);
    let mut driver = Driver::start(one).unwrap();
    driver.steps(11).unwrap();
    assert!(driver.faults.is_empty(), "{:?}", driver.faults);
    for frames in &driver.frames {
        let ends: Vec<u8> = frames.iter().map(|frame| frame.flags).collect();
        assert_eq!(ends, [0, 0, 0, 0, 0, flags::TRUNCATED, 0, 0, 0, 0, flags::TRUNCATED, 0]);
        assert_eq!(f32::from_ne_bytes(*frames[5].last[4..].first_chunk().unwrap()), 5.0);
        assert_eq!(frames[5].values()[1], 0.0, "the next episode's first observation");
    }
}

#[test]
fn a_limit_truncates_some_of_a_vector_whose_caller_resets() {
    let Some(python) = python() else { return };
    let mut one = vectors(&python, "Disabled");
    one.episode_steps_max = Some(3);
    let mut driver = Driver::start(one).unwrap();
    driver.steps(7).unwrap();
    assert!(driver.faults.is_empty(), "{:?}", driver.faults);
    let flags_of = |env: usize| driver.frames[env].iter().map(|frame| frame.flags).collect::<Vec<_>>();
    // The first ends at its third step by itself too: both are kept. The second would end at its fourth.
    let both = flags::TERMINATED | flags::TRUNCATED;
    assert_eq!(flags_of(0), [0, 0, 0, both, 0, 0, both, 0]);
    assert_eq!(flags_of(1), [0, 0, 0, flags::TRUNCATED, 0, 0, flags::TRUNCATED, 0]);
    assert_eq!(driver.frames[1][4].values()[1], 1.0);
}

#[test]
fn a_vector_that_takes_one_seed_gets_its_first() {
    let Some(python) = python() else { return };
    for mode in ["SameStep", "NextStep", "Disabled"] {
        let class = json!({ "n": 2, "mode": mode });
        let mut driver = Driver::start(envs(&python, "OneSeed", class, 4, 2)).unwrap();
        driver.steps(9).unwrap();
        assert!(driver.faults.is_empty(), "{mode}: {:?}", driver.faults);
        let seed = |env: usize| driver.frames[env][0].values()[0];
        assert_eq!([seed(1), seed(3)], [(seed(0) + 1.0) % 1000.0, (seed(2) + 1.0) % 1000.0], "{mode}");
    }
}

/// More workers than vector environments: those that are left over are ended, whatever they would have come to.
#[test]
fn workers_without_an_environment_are_nobodys_fault() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let class = json!({ "folder": folder.path(), "n": 2 });
    let mut driver = Driver::start(envs(&python, "LateVector", class, 2, 2)).unwrap();
    driver.steps(1).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    driver.steps(9).unwrap();
    assert_eq!((driver.stepper.workers(), driver.faults.len()), (1, 0));
}

#[test]
fn a_limit_on_a_vector_that_resets_itself_is_refused_before_the_run() {
    let Some(python) = python() else { return };
    for mode in ["SameStep", "NextStep"] {
        let mut one = vectors(&python, mode);
        one.episode_steps_max = Some(3);
        let error = PythonStepper::start(one, &Stop::default()).err().expect("it is refused");
        assert_eq!(error.slug, "env-vector-autoreset", "{error}");
        assert!(
            error.message.contains(&format!("mode `{mode}`")) && error.message.contains("after 3 frames")
        );
    }
}

#[test]
fn a_row_that_ends_early_ends_its_vector_early() {
    let Some(python) = python() else { return };
    for mode in ["SameStep", "NextStep", "Disabled"] {
        // Room for one end of an episode: the counter of three steps ends its row, that of four stops with it.
        let mut collector = collector(vectors(&python, mode), Mode::Sync, 10, 1, false);
        for batch in 0..4 {
            let batch_of = collector.next().unwrap().unwrap();
            let counts: Vec<u64> =
                batch_of.rows().iter().map(|row| row.count_frames(&batch_of.layout)).collect();
            // A row that has but the reset of the last end (NextStep) has no frame.
            let least = u64::from(mode != "NextStep");
            assert!(
                counts.iter().all(|count| (least..=4).contains(count)),
                "{mode}, batch {batch}: {counts:?}"
            );
            assert!(batch_of.num_frames > 0);
        }
        assert!(collector.take_faults().is_empty() && collector.stats().short_rows > 0, "{mode}");
        assert_eq!(collector.stats().counters.restarts, 0);
    }
}

#[test]
fn batches_of_every_mode_are_filled_by_vectors() {
    let Some(python) = python() else { return };
    for autoreset in ["SameStep", "NextStep", "Disabled"] {
        for mode in
            [Mode::SemiSync { preemptive_threshold: 0.5 }, Mode::Async { policy_lag_max: None }, Mode::Sync]
        {
            let mut collector = collector(vectors(&python, autoreset), mode, 6, 2, false);
            for _ in 0..5 {
                let batch = collector.next().unwrap().unwrap();
                assert!(batch.num_frames > 0 && batch.rows().len() == 4);
            }
            let faults = collector.take_faults();
            assert!(faults.is_empty(), "{autoreset}, {mode:?}: {faults:?}");
        }
    }
}

#[test]
fn batches_that_begin_anew_reset_whole_vectors() {
    let Some(python) = python() else { return };
    for autoreset in ["SameStep", "NextStep", "Disabled"] {
        // After three frames one counter has just begun anew and the other is within its episode.
        let mut collector = collector(vectors(&python, autoreset), Mode::Sync, 3, 3, true);
        for _ in 0..3 {
            let batch = collector.next().unwrap().unwrap();
            for row in batch.rows() {
                assert_eq!(row.column::<u32>(&batch.layout.steps), [0, 1, 2], "{autoreset}");
            }
        }
        assert!(collector.take_faults().is_empty(), "{autoreset}");
    }
}
