//! Collectors over native environments: the contents of batches for any number of threads, and faults.

use plimsoll_base::{PolicyVersion, Result};
use plimsoll_collect::*;
use plimsoll_env::{Environment, Slot, Space, Spec, Step, flags, native, seed};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const SETTINGS: Settings = Settings {
    run_seed: 7,
    mode: Mode::Sync,
    batches_in_flight: 2,
    on_abort: OnAbort::Keep,
    random_steps: 0,
    reset_each_batch: false,
};

const OPTIONS: GroupOptions =
    GroupOptions { autoreset: Autoreset::SameStep, episode_steps_max: None, restarts_max: 5 };

fn layout(spec: &Spec, frames: usize, finals: usize) -> RowLayout {
    let slot = |space: &Space| Slot::of(space).unwrap();
    RowLayout::new(&slot(&spec.observation), &slot(&spec.action), frames, finals, Extras::default()).unwrap()
}

fn start(settings: &Settings, frames: usize, finals: usize, steppers: Vec<Box<dyn Stepper>>) -> Collector {
    let layout = layout(steppers[0].spec(), frames, finals);
    Collector::start(settings, layout, steppers, &mut || Box::new(Random { run_seed: 7 })).unwrap()
}

fn native_of(id: &str, envs: u32, threads: usize, options: GroupOptions) -> Vec<Box<dyn Stepper>> {
    native_steppers(id, &native::Options::new(), envs, threads, options).unwrap()
}

/// Bytes of all rows of three batches.
fn bytes_of(id: &str, threads: usize, settings: &Settings) -> Vec<Vec<u8>> {
    let mut collector = start(settings, 50, 50, native_of(id, 10, threads, OPTIONS));
    let batches = (0..3).map(|_| collector.next().unwrap().unwrap());
    batches.map(|batch| batch.rows().iter().flat_map(|row| row.bytes().to_vec()).collect()).collect()
}

#[test]
fn the_same_bytes_for_one_two_and_eight_threads() {
    for &id in native::IDS {
        let once = bytes_of(id, 1, &SETTINGS);
        assert_ne!(once[0], once[1], "{id}");
        for threads in [2, 8] {
            assert!(once == bytes_of(id, threads, &SETTINGS), "{id} with {threads} threads");
        }
        let other_seed = Settings { run_seed: 8, ..SETTINGS };
        assert!(id == "CliffWalking-v1" || once[0] != bytes_of(id, 1, &other_seed)[0], "{id}: another seed");
    }
    let drawn = Settings { random_steps: 20, reset_each_batch: true, ..SETTINGS };
    assert!(bytes_of("CartPole-v1", 1, &drawn) == bytes_of("CartPole-v1", 3, &drawn));
}

/// A batch against a loop that steps the environments one by one.
#[test]
fn a_batch_holds_what_a_plain_loop_sees() {
    let (frames, batches) = (40, 3);
    let mut collector = start(&SETTINGS, frames, frames, native_of("CartPole-v1", 3, 2, OPTIONS));
    let layout = collector.layout().clone();
    let mut envs: Vec<(native::CartPole, u32, u32, f64)> = Vec::new();
    let mut observations = vec![vec![0; 16]; 3];
    for (env, observation) in observations.iter_mut().enumerate() {
        let mut cart = native::CartPole::default();
        cart.reset(seed::reset_seed(7, env as u32, 0), observation);
        envs.push((cart, 0, 0, 0.0));
    }
    let mut episodes_seen = 0;
    for _ in 0..batches {
        let batch = collector.next().unwrap().unwrap();
        assert_eq!((batch.num_frames, batch.versions), (3 * frames as u64, Some((0, 0))));
        for (env, row) in batch.rows().iter().enumerate() {
            let (cart, episode, step, sum) = &mut envs[env];
            let observation = &mut observations[env];
            let mut finals = row.finals(&layout);
            for t in 0..frames {
                assert_eq!(row.observation(&layout, t), *observation);
                let bits = seed::action_noise(7, env as u32, *episode, *step, 0);
                let action = plimsoll_base::rng::below(bits[0], bits[1], 2) as i64;
                assert_eq!(row.action(&layout, t), action.to_ne_bytes());
                assert_eq!(row.column::<u32>(&layout.episode_indices)[t], *episode);
                assert_eq!(row.column::<u32>(&layout.steps)[t], *step);
                let result = cart.step(&action.to_ne_bytes(), observation);
                *step += 1;
                *sum += result.reward;
                assert_eq!(row.column::<f32>(&layout.rewards)[t], result.reward as f32);
                assert_eq!(row.next_observation(&layout, t), *observation);
                let cut = if t + 1 == frames && !result.terminated { flags::CUT } else { 0 };
                assert_eq!(row.flags(&layout)[t], (u8::from(result.terminated) * flags::TERMINATED) | cut);
                if result.terminated {
                    let last = finals.next().expect("a final observation for each end");
                    assert_eq!(
                        (last.frame, last.observation, last.episode_return),
                        (t, &observation[..], *sum)
                    );
                    (*episode, *step, *sum) = (*episode + 1, 0, 0.0);
                    cart.reset(seed::reset_seed(7, env as u32, *episode), observation);
                    episodes_seen += 1;
                }
            }
            assert!(finals.next().is_none());
            assert_eq!(row.observation(&layout, frames), *observation);
        }
    }
    assert_eq!(collector.stats().counters.episodes, episodes_seen);
    assert!(episodes_seen > 5);
}

#[test]
fn a_row_without_room_for_a_further_end_is_short_and_loses_nothing() {
    let mut collector = start(&SETTINGS, 60, 1, native_of("CartPole-v1", 4, 1, OPTIONS));
    let layout = collector.layout().clone();
    let mut next_episode = [0; 4];
    for _ in 0..4 {
        let batch = collector.next().unwrap().unwrap();
        for (env, row) in batch.rows().iter().enumerate() {
            let marks = row.flags(&layout);
            let frames = row.count_frames(&layout) as usize;
            assert!(marks[frames..].iter().all(|&flag| flag == flags::INVALID));
            assert_eq!(row.num_finals == 1, marks[frames - 1] & flags::DONE != 0);
            // Episodes follow on each other without a gap.
            assert_eq!(row.column::<u32>(&layout.episode_indices)[0], next_episode[env]);
            next_episode[env] += row.num_finals as u32;
        }
    }
    assert!(collector.stats().short_rows > 0);
}

#[test]
fn limits_truncate_and_batches_may_begin_anew() {
    let options = GroupOptions { episode_steps_max: Some(5), ..OPTIONS };
    let mut collector = start(&SETTINGS, 10, 10, native_of("Pendulum-v1", 2, 2, options));
    let layout = collector.layout().clone();
    let batch = collector.next().unwrap().unwrap();
    for row in batch.rows() {
        let ends: Vec<usize> = row.finals(&layout).map(|last| last.frame).collect();
        assert_eq!(ends, [4, 9]);
        assert_eq!(row.flags(&layout)[4], flags::TRUNCATED);
    }
    let anew = Settings { reset_each_batch: true, ..SETTINGS };
    let mut collector = start(&anew, 10, 11, native_of("Pendulum-v1", 2, 2, OPTIONS));
    for episode in 0..3 {
        let batch = collector.next().unwrap().unwrap();
        for row in batch.rows() {
            assert_eq!(row.flags(&batch.layout)[9], flags::TRUNCATED);
            assert_eq!(row.column::<u32>(&batch.layout.episode_indices), [episode; 10]);
            assert_eq!(row.column::<u32>(&batch.layout.steps)[0], 0);
        }
    }
}

/// Says which version is the newest, where a learner stores it, and counts its calls in the second number.
struct Versioned(Arc<[AtomicU64; 2]>);

impl Policy for Versioned {
    fn check(&self, _: &Spec) -> Result<()> {
        Ok(())
    }

    fn extras(&self) -> Extras {
        Extras { logprobs: true, values: true }
    }

    fn act(&mut self, seen: &ObservationBatch<'_>, actions: &mut ActionBatch<'_>) -> PolicyVersion {
        Random { run_seed: 7 }.act(seen, actions);
        actions.logprobs.fill(-0.5);
        actions.values.copy_from_slice(&seen.steps.iter().map(|&step| step as f32).collect::<Vec<_>>());
        // Counted when the version is known: who waits for a count may store another one then.
        let version = self.0[0].load(Ordering::SeqCst);
        self.0[1].fetch_add(1, Ordering::SeqCst);
        PolicyVersion(version)
    }
}

fn start_versioned(
    settings: &Settings,
    version: &Arc<[AtomicU64; 2]>,
    steppers: Vec<Box<dyn Stepper>>,
) -> Collector {
    let spec = steppers[0].spec();
    let (observation, action) = (Slot::of(&spec.observation).unwrap(), Slot::of(&spec.action).unwrap());
    let layout = RowLayout::new(&observation, &action, 20, 20, Versioned(version.clone()).extras()).unwrap();
    Collector::start(settings, layout, steppers, &mut || Box::new(Versioned(version.clone()))).unwrap()
}

#[test]
fn a_synchronous_batch_has_one_version_and_what_the_policy_gives() {
    let version = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let mut collector = start_versioned(&SETTINGS, &version, native_of("CartPole-v1", 4, 2, OPTIONS));
    for expect in [0, 1, 5] {
        version[0].store(expect, Ordering::Relaxed);
        let batch = collector.next().unwrap().unwrap();
        assert_eq!(batch.versions, Some((expect, expect)));
        for row in batch.rows() {
            assert_eq!(row.column::<f32>(&batch.layout.logprobs), [-0.5; 20]);
            let steps = row.column::<u32>(&batch.layout.steps).iter().map(|&step| step as f32);
            assert!(row.column::<f32>(&batch.layout.values).iter().copied().eq(steps));
        }
    }
}

#[test]
fn a_semi_synchronous_batch_ends_with_its_share_and_goes_on() {
    let settings = Settings { mode: Mode::SemiSync { preemptive_threshold: 0.5 }, ..SETTINGS };
    let mut collector = start(&settings, 20, 20, native_of("Pendulum-v1", 8, 2, OPTIONS));
    let mut frames_of = [0u32; 8];
    for _ in 0..5 {
        let batch = collector.next().unwrap().unwrap();
        assert!((80..=160).contains(&batch.num_frames), "{}", batch.num_frames);
        for (env, row) in batch.rows().iter().enumerate() {
            let frames = row.count_frames(&batch.layout) as u32;
            let steps = row.column::<u32>(&batch.layout.steps);
            let expect = (frames_of[env]..frames_of[env] + frames).map(|frame| frame % 200);
            assert!(
                steps[..frames as usize].iter().copied().eq(expect),
                "an environment goes on where it was"
            );
            frames_of[env] += frames;
        }
    }
}

#[test]
fn asynchronous_batches_come_as_rows_are_full_and_old_frames_are_counted() {
    let version = Arc::new([AtomicU64::new(10), AtomicU64::new(0)]);
    let settings =
        Settings { mode: Mode::Async { policy_lag_max: Some(2) }, batches_in_flight: 3, ..SETTINGS };
    let mut collector = start_versioned(&settings, &version, native_of("CartPole-v1", 6, 3, OPTIONS));
    let batch = collector.next().unwrap().unwrap();
    assert_eq!((batch.rows().len(), batch.num_frames), (6, 120));
    // Two more batches are in memory, each full after 20 calls a thread. Version 10 is too old for a learner at 20.
    while version[1].load(Ordering::SeqCst) < 3 * 3 * 20 {
        std::thread::yield_now();
    }
    version[0].store(20, Ordering::Relaxed);
    collector.published(PolicyVersion(20));
    drop(batch);
    // A thread may be late with its full rows: then newer ones come first.
    let mut batches = 1;
    while collector.stats().lagged < 240 {
        let batch = collector.next().unwrap().unwrap();
        assert!(batch.versions.is_none_or(|versions| versions == (20, 20)), "{:?}", batch.versions);
        batches += 1;
    }
    let after = collector.next().unwrap().unwrap();
    assert_eq!((after.versions, after.num_frames), (Some((20, 20)), 120));
    let stats = collector.stats();
    assert_eq!((stats.lagged, stats.delivered), (240, (batches - 1) * 120));
}

#[test]
fn environments_wait_while_the_learner_holds_all_batches() {
    let settings = Settings { mode: Mode::Async { policy_lag_max: None }, ..SETTINGS };
    let mut collector = start(&settings, 20, 20, native_of("CartPole-v1", 4, 2, OPTIONS));
    let held = [collector.next().unwrap().unwrap(), collector.next().unwrap().unwrap()];
    // Nothing can be produced now: the memory of all rows is held.
    let before = collector.stats().produced;
    drop(held);
    let mut later = 0;
    for _ in 0..50 {
        later = collector.next().unwrap().unwrap().index;
    }
    let stats = collector.stats();
    assert_eq!((later, stats.delivered), (51, 52 * 80));
    assert!(stats.produced > before && stats.in_flight <= 160, "{stats:?}");
    let mut collector = start(&SETTINGS, 20, 20, native_of("CartPole-v1", 4, 2, OPTIONS));
    let _held = [collector.next().unwrap().unwrap(), collector.next().unwrap().unwrap()];
    assert_eq!(collector.next().unwrap_err().slug, "batches-held");
}

#[test]
fn a_collector_that_is_stopped_hands_out_what_it_has() {
    for mode in [Mode::Sync, Mode::Async { policy_lag_max: None }] {
        let mut collector =
            start(&Settings { mode, ..SETTINGS }, 50, 50, native_of("CartPole-v1", 4, 2, OPTIONS));
        collector.next().unwrap().unwrap();
        collector.stop().set();
        let mut batches = 0;
        while let Some(batch) = collector.next().unwrap() {
            assert!(batch.num_frames <= 200);
            batches += 1;
        }
        assert!(batches <= 3, "{mode:?}: {batches}");
    }
}

/// Counts its steps; fails as configured.
struct Faulty {
    steps: u32,
    fails: Fails,
    made: u32,
}

#[derive(Clone, Copy, PartialEq)]
enum Fails {
    /// The first one made panics at its fifth step.
    Once,
    /// The first one made gives NaN at its fifth step.
    NotANumber,
    Always,
}

impl Environment for Faulty {
    fn spec(&self) -> Spec {
        Spec {
            id: "faulty".into(),
            observation: Space::box_f32(&[], 0.0, f32::INFINITY),
            action: Space::discrete(2),
            episode_steps_max: None,
        }
    }

    fn reset(&mut self, _: u64, observation: &mut [u8]) {
        self.steps = 0;
        observation.copy_from_slice(&0f32.to_ne_bytes());
    }

    fn step(&mut self, _: &[u8], observation: &mut [u8]) -> Step {
        self.steps += 1;
        observation.copy_from_slice(&(self.steps as f32).to_ne_bytes());
        let fails = self.steps == 5 && (self.made == 0 || self.fails == Fails::Always);
        assert!(!fails || self.fails == Fails::NotANumber, "negative speed");
        Step { reward: if fails { f64::NAN } else { 1.0 }, terminated: self.steps == 50, truncated: false }
    }
}

/// Two environments, of which the second one made fails.
fn faulty(fails: Fails) -> Vec<Box<dyn Stepper>> {
    let made = AtomicU32::new(1);
    let make = move || {
        let count = made.fetch_add(1, Ordering::Relaxed);
        // The second is number 0 of its kind; the others never fail, unless all do.
        Faulty { steps: 0, fails, made: if count == 2 { 0 } else { count } }
    };
    vec![Box::new(NativeGroup::new(0..2, make, OPTIONS).unwrap())]
}

#[test]
fn an_environment_that_fails_is_made_again_alone() {
    for (fails, kind) in [(Fails::Once, FaultKind::Exception), (Fails::NotANumber, FaultKind::BadOutput)] {
        let mut collector = start(&SETTINGS, 10, 4, faulty(fails));
        let layout = collector.layout().clone();
        let batch = collector.next().unwrap().unwrap();
        let (well, failed) = (&batch.rows()[0], &batch.rows()[1]);
        assert_eq!(well.column::<u32>(&layout.steps), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        // Four frames, then the fifth step is discarded and a new episode begins.
        assert_eq!(failed.column::<u32>(&layout.steps), [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]);
        assert_eq!(failed.column::<u32>(&layout.episode_indices)[3..5], [0, 1]);
        assert_eq!(failed.flags(&layout)[3], flags::CUT | flags::ABORTED);
        assert_eq!(failed.next_observation(&layout, 3), 4f32.to_ne_bytes());
        assert_eq!(failed.observation(&layout, 4), 0f32.to_ne_bytes());
        let stats = collector.stats();
        assert_eq!((stats.counters.frames_aborted, stats.counters.restarts, stats.produced), (1, 1, 21));
        let faults = collector.take_faults();
        assert_eq!((faults.len(), faults[0].env_index, faults[0].kind), (1, 1, kind));
    }
}

#[test]
fn an_aborted_episode_may_be_taken_back() {
    let settings = Settings { on_abort: OnAbort::Drop, ..SETTINGS };
    let mut collector = start(&settings, 10, 4, faulty(Fails::Once));
    let batch = collector.next().unwrap().unwrap();
    let failed = &batch.rows()[1];
    assert_eq!(failed.column::<u32>(&batch.layout.steps), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(failed.column::<u32>(&batch.layout.episode_indices), [1; 10]);
    assert_eq!(collector.stats().counters.frames_aborted, 5);
}

#[test]
fn an_environment_that_always_fails_ends_the_run_with_its_first_words() {
    let mut collector = start(&SETTINGS, 200, 40, faulty(Fails::Always));
    let error = collector.next().unwrap_err();
    assert_eq!(error.slug, "env-failing-repeatedly");
    assert!(error.facts[0].contains("env-exception") && error.facts[0].contains("negative speed"), "{error}");
}

/// Chooses 3 where there are two.
struct Outside;

impl Policy for Outside {
    fn check(&self, _: &Spec) -> Result<()> {
        Ok(())
    }

    fn act(&mut self, _: &ObservationBatch<'_>, actions: &mut ActionBatch<'_>) -> PolicyVersion {
        actions.actions.fill(3);
        PolicyVersion::default()
    }
}

#[test]
fn an_action_outside_its_space_ends_the_run() {
    let steppers = native_of("CartPole-v1", 2, 1, OPTIONS);
    let layout = layout(steppers[0].spec(), 5, 5);
    let mut collector = Collector::start(&SETTINGS, layout, steppers, &mut || Box::new(Outside)).unwrap();
    let error = collector.next().unwrap_err();
    assert_eq!(error.slug, "action-out-of-range");
    assert!(error.message.starts_with("the policy's action for environment 0: element 0 is 2170"), "{error}");
}

/// Pushes with 5, beyond Pendulum's bounds.
struct Strong;

impl Policy for Strong {
    fn check(&self, _: &Spec) -> Result<()> {
        Ok(())
    }

    fn beyond(&self) -> Beyond {
        Beyond::Clip
    }

    fn act(&mut self, _: &ObservationBatch<'_>, actions: &mut ActionBatch<'_>) -> PolicyVersion {
        actions.actions.as_chunks_mut().0.fill(5f32.to_ne_bytes());
        PolicyVersion::default()
    }
}

#[test]
fn a_policy_may_have_its_actions_clipped_and_stored_as_chosen() {
    let steppers = native_of("Pendulum-v1", 1, 1, OPTIONS);
    let layout = layout(steppers[0].spec(), 5, 5);
    let mut collector = Collector::start(&SETTINGS, layout, steppers, &mut || Box::new(Strong)).unwrap();
    let batch = collector.next().unwrap().unwrap();
    assert_eq!(batch.rows()[0].action(&batch.layout, 0), 5f32.to_ne_bytes());
}

/// The recorded steps of Gymnasium's vector environment in each of its ways to begin the next episode.
#[test]
fn every_autoreset_is_gymnasiums() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../env/tests/gymnasium.json");
    let golden: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let modes = [
        ("SameStep", Autoreset::SameStep),
        ("NextStep", Autoreset::NextStep),
        ("Disabled", Autoreset::Disabled),
    ];
    for (name, autoreset) in modes {
        check_autoreset(&golden["autoreset"][name], autoreset, name);
    }
}

fn check_autoreset(recorded: &serde_json::Value, autoreset: Autoreset, name: &str) {
    let slots = |value: &serde_json::Value| -> Vec<u8> {
        let numbers = value.as_array().unwrap().iter();
        numbers.flat_map(|number| (number.as_f64().unwrap() as f32).to_ne_bytes()).collect()
    };
    let options = GroupOptions { autoreset, episode_steps_max: Some(12), restarts_max: 0 };
    let mut group = NativeGroup::new(0..2, native::CartPole::default, options).unwrap();
    // Gymnasium seeds once and goes on drawing; a seed an episode is ours. So only the first episodes are compared,
    // and what flags say of all of them.
    let mut seeds = [7, 8];
    group.submit(0, Request { asks: &[Ask::Reset; 2], actions: &[0; 16], seeds: &seeds }).unwrap();
    for env in 0..2 {
        assert_eq!(
            group.results(0).observations[env * 16..][..16],
            slots(&recorded["initial_observations"][env])
        );
    }
    seeds = [1007, 1008];
    let mut is_first = [true; 2];
    for (t, step) in recorded["steps"].as_array().unwrap().iter().enumerate() {
        let actions: Vec<u8> = step["actions"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|a| a.as_i64().unwrap().to_ne_bytes())
            .collect();
        group.submit(0, Request { asks: &[Ask::Step; 2], actions: &actions, seeds: &seeds }).unwrap();
        let results = group.results(0);
        for env in 0..2 {
            if !is_first[env] {
                continue;
            }
            let seen = &results.observations[env * 16..][..16];
            let flag = |name: &str, bit: u8| u8::from(step[name][env] == true) * bit;
            let expect = flag("terminated", flags::TERMINATED) | flag("truncated", flags::TRUNCATED);
            assert_eq!(results.flags[env], expect, "{name} step {t} environment {env}");
            assert_eq!(results.rewards[env], step["rewards"][env].as_f64().unwrap(), "{name} step {t}");
            if expect == 0 {
                assert_eq!(seen, slots(&step["observations"][env]), "{name} step {t}");
                continue;
            }
            is_first[env] = false;
            let last = &results.final_observations[env * 16..][..16];
            let recorded_last = match autoreset {
                Autoreset::SameStep => &step["final_obs"][env],
                _ => &step["observations"][env],
            };
            assert_eq!(last, slots(recorded_last), "{name}: the last observation");
            assert_eq!(seen != last, autoreset == Autoreset::SameStep, "{name}: what is shown after the end");
        }
    }
    assert_eq!(is_first, [false; 2]);
    if autoreset == Autoreset::NextStep {
        check_reset_row(group);
    }
}

/// The step after the end ignores its action.
fn check_reset_row(mut group: impl Stepper) {
    for _ in 0..20 {
        group
            .submit(
                0,
                Request {
                    asks: &[Ask::Step; 2],
                    actions: &[1, 0, 0, 0, 0, 0, 0, 0].repeat(2),
                    seeds: &[3, 4],
                },
            )
            .unwrap();
        let results = group.results(0);
        if results.flags[0] == flags::RESET_ROW {
            let mut expect = [0; 16];
            native::CartPole::default().reset(3, &mut expect);
            assert_eq!((&results.observations[..16], results.rewards[0]), (&expect[..], 0.0));
            return;
        }
    }
    panic!("no episode ended within 20 steps of one action");
}
