//! Tests what keeps frames beyond their batch: whole episodes, the replay ring, and files.

use plimsoll_collect::*;
use plimsoll_env::{Slot, flags, native};
use std::collections::BTreeMap;

fn start(id: &str, envs: u32, frames: usize) -> Collector {
    let options = GroupOptions { episode_steps_max: Some(30), restarts_max: 0, ..GroupOptions::default() };
    let steppers = native_steppers(id, &native::Options::new(), envs, 2, options).unwrap();
    let spec = steppers[0].spec();
    let (observation, action) = (Slot::of(&spec.observation).unwrap(), Slot::of(&spec.action).unwrap());
    let layout = RowLayout::new(&observation, &action, frames, frames, Extras::default()).unwrap();
    let settings = Settings {
        run_seed: 3,
        mode: Mode::Sync,
        batches_in_flight: 4,
        on_abort: OnAbort::Keep,
        random_steps: 0,
        reset_each_batch: false,
    };
    Collector::start(&settings, layout, steppers, &mut || Box::new(Random { run_seed: 3 })).unwrap()
}

/// Observations, next observations, actions and rewards of all frames by environment, as plain lists.
type Frames = BTreeMap<u32, Vec<(Vec<u8>, Vec<u8>, Vec<u8>, f32, u8)>>;

fn add(frames: &mut Frames, batch: &Batch) {
    let layout = &*batch.layout;
    for row in batch.rows() {
        for t in 0..layout.frames {
            frames.entry(row.env_index).or_default().push((
                row.observation(layout, t).to_vec(),
                row.next_observation(layout, t).to_vec(),
                row.action(layout, t).to_vec(),
                row.column::<f32>(&layout.rewards)[t],
                row.flags(layout)[t],
            ));
        }
    }
}

#[test]
fn episodes_are_whole_across_batches_and_handed_out_together() {
    let mut collector = start("CartPole-v1", 5, 7);
    let mut trajectories = Trajectories::new(collector.layout(), 5, 4, 30).unwrap();
    let (mut frames, mut episodes) = (Frames::new(), Vec::new());
    for _ in 0..30 {
        let batch = collector.next().unwrap().unwrap();
        add(&mut frames, &batch);
        trajectories.push(&batch);
        while let Some(some) = trajectories.take() {
            assert_eq!(some.len(), 4);
            episodes.extend(some);
        }
    }
    assert!(episodes.len() > 20 && trajectories.incomplete() == 0);
    let mut begins: BTreeMap<u32, (usize, u32)> = BTreeMap::new();
    for episode in &episodes {
        let (begin, index) = begins.entry(episode.env_index).or_default();
        assert_eq!(episode.episode_index, *index);
        let whole = &frames[&episode.env_index][*begin..*begin + episode.num_frames];
        let observations: Vec<u8> = whole.iter().flat_map(|frame| frame.0.clone()).collect();
        let last = &whole[episode.num_frames - 1];
        assert_eq!(episode.observations, [observations, last.1.clone()].concat());
        assert_eq!(episode.actions, whole.iter().flat_map(|frame| frame.2.clone()).collect::<Vec<u8>>());
        assert!(episode.rewards.iter().copied().eq(whole.iter().map(|frame| frame.3)));
        assert_eq!((episode.ended, last.4), (last.4, episode.ended));
        assert!(episode.ended & flags::DONE != 0 && episode.num_frames <= 30);
        (*begin, *index) = (*begin + episode.num_frames, *index + 1);
    }
}

#[test]
fn the_ring_holds_the_last_frames_and_sums_rewards_to_the_end_of_the_episode() {
    let (envs, capacity, n, discount) = (3, 40, 4, 0.9);
    let mut collector = start("CartPole-v1", envs, 16);
    let mut replay = Replay::new(envs as usize, capacity, collector.layout()).unwrap();
    assert!(replay.sample(1, 0, 0, n, discount).is_none());
    let mut frames = Frames::new();
    for _ in 0..6 {
        let batch = collector.next().unwrap().unwrap();
        add(&mut frames, &batch);
        replay.push(&batch);
    }
    assert_eq!(replay.len(), envs as usize * capacity);
    let mut seen = std::collections::BTreeSet::new();
    for index in 0..2000 {
        let got = replay.sample(1, 5, index, n, discount).unwrap();
        let all = &frames[&got.env_index];
        let held = &all[all.len() - capacity..];
        let at = held.iter().position(|frame| frame.0 == got.observation).expect("a frame of the last ones");
        seen.insert((got.env_index, at));
        let mut expect = NStep { n_step_return: 0.0, bootstrap_discount: 1.0, num_steps: 0 };
        for frame in &held[at..held.len().min(at + n)] {
            expect.n_step_return += expect.bootstrap_discount * f64::from(frame.3);
            expect.bootstrap_discount *= discount;
            expect.num_steps += 1;
            if frame.4 & flags::DONE != 0 {
                expect.bootstrap_discount *= f64::from(u8::from(frame.4 & flags::TERMINATED == 0));
                break;
            }
        }
        assert_eq!(got.steps, expect, "sample {index}");
        assert_eq!(got.next_observation, held[at + expect.num_steps - 1].1);
        assert_eq!(got.action, held[at].2);
    }
    // Uniform over 120 frames: 2,000 draws miss one with a probability of 6e-6 in all.
    assert_eq!(seen.len(), envs as usize * capacity);
    let again = replay.sample(1, 5, 17, n, discount).unwrap();
    assert_eq!(again.observation, replay.sample(1, 5, 17, n, discount).unwrap().observation);
}

#[test]
fn sums_of_rewards_end_where_frames_are_missing() {
    let mut collector = start("Pendulum-v1", 2, 10);
    let mut replay = Replay::new(2, 20, collector.layout()).unwrap();
    let batches: Vec<Batch> = (0..3).map(|_| collector.next().unwrap().unwrap()).collect();
    // The second is never seen, as if it had been too old.
    for batch in [&batches[0], &batches[2]] {
        replay.push(batch);
    }
    let first = &batches[0].rows()[1];
    let last = first.observation(&batches[0].layout, 9);
    let samples = (0..500).filter_map(|index| replay.sample(2, 0, index, 5, 0.5));
    let at_gap: Vec<Transition<'_>> = samples.filter(|got| got.observation == last).collect();
    assert!(!at_gap.is_empty());
    for got in at_gap {
        assert_eq!((got.steps.num_steps, got.steps.bootstrap_discount), (1, 0.5));
        assert_eq!(got.next_observation, first.observation(&batches[0].layout, 10));
    }
}

#[test]
fn files_hold_every_column_as_safetensors() {
    let mut collector = start("CartPole-v1", 3, 20);
    let batches: Vec<Batch> = (0..2).map(|_| collector.next().unwrap().unwrap()).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("frames.safetensors");
    write_batches(&path, &batches, &[("env".into(), "CartPole-v1".into())]).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let shape = |name: &str| file.tensor(name).unwrap().shape().to_vec();
    let ends: usize = batches.iter().flat_map(Batch::rows).map(|row| row.num_finals).sum();
    for (name, expect) in [
        ("observation", vec![6, 21, 4]),
        ("action", vec![6, 20]),
        ("reward", vec![6, 20]),
        ("flags", vec![6, 20]),
        ("policy_version", vec![6, 20]),
        ("episode_index", vec![6, 20]),
        ("step", vec![6, 20]),
        ("env_index", vec![6]),
        ("final_observation", vec![ends, 4]),
        ("final_row", vec![ends]),
        ("final_frame", vec![ends]),
        ("final_return", vec![ends]),
    ] {
        assert_eq!(shape(name), expect, "{name}");
    }
    assert_eq!(file.len(), 12);
    let layout = collector.layout().clone();
    let rows = batches.iter().flat_map(Batch::rows);
    let observations: Vec<u8> =
        rows.clone().flat_map(|row| row.bytes()[layout.observations.clone()].to_vec()).collect();
    assert_eq!(file.tensor("observation").unwrap().data(), observations);
    let returns: Vec<u8> = rows
        .flat_map(|row| {
            row.finals(&layout).flat_map(|last| last.episode_return.to_le_bytes()).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(file.tensor("final_return").unwrap().data(), returns);
}
