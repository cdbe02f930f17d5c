//! Tests what Python environments may be: all spaces, vector environments in each of Gymnasium's ways, values of a near
//! type, and Gymnasium's own where it is installed.

use crate::common::{Driver, Frame, envs, python};
use plimsoll_collect::{Ask, Measured, PythonEnvs, PythonStepper, Request, Stepper};
use plimsoll_env::{Environment, Slot, Space, flags, native, seed};
use plimsoll_worker::{Network, Stop};
use serde_json::json;

/// True if the interpreter has Gymnasium; otherwise says that it is missing.
fn has_gymnasium(python: &str) -> bool {
    let out = std::process::Command::new(python).args(["-c", "import gymnasium"]).output();
    let has = out.is_ok_and(|out| out.status.success());
    if !has {
        eprintln!("skipped: `{python}` has no gymnasium");
    }
    has
}

#[test]
fn every_space_passes_both_ways() {
    let Some(python) = python() else { return };
    let mut stepper =
        PythonStepper::start(envs(&python, "Spaces", json!({}), 2, 1), &Stop::default()).unwrap();
    let spec = stepper.spec().clone();
    let (observation, action) = (Slot::of(&spec.observation).unwrap(), Slot::of(&spec.action).unwrap());
    let paths = |slot: &Slot| slot.leaves.iter().map(|leaf| leaf.path.clone()).collect::<Vec<_>>().join(" ");
    assert_eq!(paths(&action), "a.0 a.1 b c");
    assert_eq!(paths(&observation), "flag heard.a.0 heard.a.1 heard.b heard.c image");
    let mut actions = vec![0u8; 2 * action.bytes];
    for (env, slot) in actions.chunks_exact_mut(action.bytes).enumerate() {
        let values: [&[f64]; 4] =
            [&[1.0, 3.0], &[1.0, 0.0, 1.0], &[env as f64 - 1.0], &[0.25, -0.5, 0.75, 1.0]];
        for (leaf, values) in action.leaves.iter().zip(values) {
            let bytes = leaf.element.bytes();
            for (element, value) in slot[leaf.offset..].chunks_exact_mut(bytes).zip(values) {
                leaf.element.write(*value, element);
            }
        }
        action.check(slot).unwrap();
    }
    for ask in [Ask::Reset, Ask::Step] {
        stepper
            .submit(0, Request { asks: &[ask; 2], actions: &actions, seeds: &[1 << 40, 2 << 40] })
            .unwrap();
        stepper.wait(&Stop::default()).unwrap();
    }
    let results = stepper.results(0);
    assert_eq!(results.flags, [0, 0]);
    for (index, seen) in results.observations.chunks_exact(observation.bytes).enumerate() {
        observation.check(seen).unwrap();
        let leaf = |at: usize| observation.leaves[at].of(seen);
        assert_eq!((leaf(0), leaf(5)), (&[1u8][..], &[1u8; 6][..]), "flag and image");
        let sent = &actions[index * action.bytes..][..action.bytes];
        for (heard, given) in observation.leaves[1..5].iter().zip(&action.leaves) {
            assert_eq!(heard.of(seen), given.of(sent), "{}", given.path);
        }
    }
}

#[test]
fn values_of_a_near_type_are_cast() {
    let Some(python) = python() else { return };
    let run = |class: &str| {
        let mut driver = Driver::start(envs(&python, class, json!({}), 2, 1)).unwrap();
        driver.steps(10).unwrap();
        assert!(driver.faults.is_empty(), "{:?}", driver.faults);
        driver.frames
    };
    assert!(run("Wide") == run("Count"));
}

#[test]
fn a_worker_is_kept_off_network_and_card() {
    let Some(python) = python() else { return };
    let probe = |network: Network| {
        let mut one = envs(&python, "Probe", json!({}), 1, 1);
        one.network = network;
        Driver::start(one).unwrap().frames[0][0].values()
    };
    // EACCES for the socket, EPERM for the driver's call; it leads a session.
    assert_eq!(probe(Network::Deny), [13.0, 1.0, 1.0]);
    assert_eq!(probe(Network::Allow), [0.0, 1.0, 1.0]);
}

/// Frames of two counters in one vector environment, of three and four steps.
fn vector(python: &str, mode: &str) -> Vec<Vec<Frame>> {
    let mut driver = Driver::start(envs(python, "Vector", json!({ "n": 2, "mode": mode }), 4, 2)).unwrap();
    driver.steps(6).unwrap();
    assert!(driver.faults.is_empty(), "{:?}", driver.faults);
    driver.frames
}

#[test]
fn vector_environments_begin_episodes_in_each_of_three_ways() {
    let Some(python) = python() else { return };
    let steps = |frames: &[Frame]| frames.iter().map(|frame| frame.values()[1] as i32).collect::<Vec<_>>();
    let flags_of = |frames: &[Frame]| frames.iter().map(|frame| frame.flags).collect::<Vec<_>>();
    let done = flags::TERMINATED;
    for mode in ["SameStep", "Disabled"] {
        let frames = vector(&python, mode);
        assert_eq!(steps(&frames[0]), [0, 1, 2, 0, 1, 2, 0], "{mode}");
        assert_eq!(flags_of(&frames[0]), [0, 0, 0, done, 0, 0, done]);
        assert_eq!(steps(&frames[3]), [0, 1, 2, 3, 0, 1, 2]);
        assert_eq!(f32::from_ne_bytes(*frames[3][4].last[4..].first_chunk().unwrap()), 4.0);
    }
    let frames = vector(&python, "NextStep");
    assert_eq!(steps(&frames[0]), [0, 1, 2, 3, 0, 1, 2]);
    assert_eq!(flags_of(&frames[0]), [0, 0, 0, done, flags::RESET_ROW, 0, 0]);
    assert_eq!((frames[0][3].reward, frames[0][4].reward), (1.5, 0.0));
}

#[test]
fn a_disabled_vector_is_seeded_as_single_environments_are() {
    let Some(python) = python() else { return };
    // Same seeds by environment and episode, whichever worker has the environments.
    let frames = vector(&python, "Disabled");
    for (env, length) in [(0usize, 3), (1, 4)] {
        let mut driver = Driver::start(envs(&python, "Count", json!({ "length": length }), 4, 1)).unwrap();
        driver.steps(6).unwrap();
        assert_eq!(frames[env], driver.frames[env]);
    }
}

#[test]
fn gymnasiums_cart_pole_is_ours_to_the_bit() {
    let Some(python) = python().filter(|python| has_gymnasium(python)) else { return };
    let mut one = envs(&python, "Count", json!({}), 3, 2);
    one.env = "gym:CartPole-v1".into();
    let driver = Driver::start(one.clone()).unwrap();
    assert_eq!(driver.stepper.spec().action, Space::discrete(2));
    drop(driver);
    let mut stepper = PythonStepper::start(one, &Stop::default()).unwrap();
    let groups = stepper.groups().to_vec();
    for (group, range) in groups.iter().enumerate() {
        let k = range.len();
        let mut ours: Vec<native::CartPole> = (0..k).map(|_| native::CartPole::default()).collect();
        let mut expect = vec![0u8; 16 * k];
        for step in 0..60u64 {
            let seeds: Vec<u64> = range.clone().map(|env| seed::reset_seed(9, env, step as u32)).collect();
            let ask = if step == 0 { Ask::Reset } else { Ask::Step };
            let actions: Vec<u8> = (0..k as u64).flat_map(|i| ((step / 2 + i) % 2).to_ne_bytes()).collect();
            stepper.submit(group, Request { asks: &vec![ask; k], actions: &actions, seeds: &seeds }).unwrap();
            stepper.wait(&Stop::default()).unwrap();
            let results = stepper.results(group);
            for index in 0..k {
                let slot = &mut expect[16 * index..16 * (index + 1)];
                let mut done = ask == Ask::Reset;
                if ask == Ask::Step {
                    done = ours[index].step(&actions[8 * index..8 * (index + 1)], slot).terminated;
                    assert_eq!(results.flags[index] & flags::TERMINATED != 0, done);
                    assert_eq!(results.rewards[index], 1.0);
                }
                if done {
                    ours[index].reset(seed::to_31_bits(seeds[index]).into(), slot);
                }
            }
            assert_eq!(results.observations, expect, "step {step}");
        }
    }
}

#[test]
fn gymnasiums_wrappers_and_vector_environments_are_taken() {
    let Some(python) = python().filter(|python| has_gymnasium(python)) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.py");
    let text = "import gymnasium\nfrom gymnasium import wrappers\nfrom gymnasium.vector import AutoresetMode\n\n\
        def wrapped():\n    return wrappers.TimeLimit(wrappers.RescaleObservation(gymnasium.make('Pendulum-v1'), -1, 1), 5)\n\n\
        def vector(mode):\n    return gymnasium.make_vec('CartPole-v1', 2, 'sync', vector_kwargs={'autoreset_mode': AutoresetMode(mode)},\n\
        \x20       max_episode_steps=5)\n";
    std::fs::write(&file, text).unwrap();
    let start = |function: &str, options: serde_json::Value| -> PythonEnvs {
        let mut one = envs(&python, "Count", options, 4, 2);
        one.env = format!("python:{}:{function}", file.display());
        one
    };
    let mut driver = Driver::start(start("wrapped", json!({}))).unwrap();
    driver.steps(5).unwrap();
    assert!(driver.faults.is_empty(), "{:?}", driver.faults);
    assert_eq!(driver.frames[3][5].flags, flags::TRUNCATED);
    for (mode, last) in [("SameStep", 0), ("Disabled", 0), ("NextStep", flags::RESET_ROW)] {
        let mut one = Driver::start(start("vector", json!({ "mode": mode }))).unwrap();
        let ends = |frame: &Frame| frame.flags & flags::DONE != 0 && frame.last.len() == 16;
        one.still = true;
        one.steps(6).unwrap();
        assert!(one.faults.is_empty(), "{mode}: {:?}", one.faults);
        assert!(ends(&one.frames[0][5]), "{mode}: {:?}", one.frames[0]);
        assert_eq!(one.frames[0][6].flags, last, "{mode}");
    }
}

#[test]
fn a_worker_is_measured_before_the_run() {
    let Some(python) = python() else { return };
    let one = envs(&python, "Count", json!({}), 10, 3);
    let measured = Measured::of(&one, &Stop::default()).unwrap();
    assert_eq!((measured.workers, measured.worker_envs), (3, 3));
    assert_eq!(measured.spec.action, Space::discrete(4));
    // An interpreter with numpy, and nothing like a framework.
    let mib = |bytes: plimsoll_base::Bytes| bytes.0 >> 20;
    assert!((4..60).contains(&mib(measured.anonymous)), "{measured:?}");
    let layout = measured.layout("env", 10).unwrap();
    let bytes = |name: &str| layout.find(name).map(|row| row.bytes.0).unwrap();
    // Each of three workers has a mapping of whole pages.
    assert_eq!(bytes("env.slots"), 3 * 4096);
    assert!(
        bytes("env.workers") >= 3 * measured.anonymous.0 && bytes("env.worker_files") == measured.files.0
    );
}
