//! Tests what a run carries from step to step, and from one process to the next.

use crate::rig::{bits, case};
use plimsoll_agent::normalise::{Moments, RewardScale};
use plimsoll_agent::state::AgentState;
use std::path::Path;

const SETS: [&str; 4] = [
    "environment.env=Pendulum-v1",
    "environment.normalise_observations=true",
    "environment.normalise_rewards=true",
    "environment.max_frames_per_traj=50",
];

fn write(folder: &Path, text: &str) {
    std::fs::create_dir_all(folder.join("state")).expect("a folder");
    std::fs::write(folder.join("state/agent.json"), text).expect("a file");
}

#[test]
fn a_state_reads_back_to_the_last_bit() {
    let (case, folder) = (case(&SETS), tempfile::tempdir().expect("a folder"));
    let state = case.world(|world| {
        for step in 1..=3 {
            world.rollout();
            world.learn(step).expect("finite losses");
        }
        world.state.clone()
    });
    assert!(state.num_episodes > 0 && state.episodes.iter().all(|episode| !episode.actions.is_empty()));
    write(folder.path(), &state.to_text());
    let back = AgentState::read(folder.path(), &case.settings).expect("it was just written");
    assert_eq!(back, state);
    assert_eq!(back.to_text(), state.to_text());
    let (mut a, mut b) = ([0.1, -0.7, 3.0], [0.1, -0.7, 3.0]);
    state.scales().apply(&mut a);
    back.scales().apply(&mut b);
    assert_eq!(bits(&a), bits(&b));
}

#[test]
fn a_state_of_other_environments_is_no_state_of_this_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let own = case(&SETS);
    let state = AgentState::new(&own.settings);
    write(folder.path(), &state.to_text());
    for (more, words) in [
        ("environment.num_envs=8", "4 environments, the run has 8"),
        ("environment.normalise_rewards=false", "environments, the run has"),
        ("environment.normalise_observations=false", "environments, the run has"),
    ] {
        let other = case(&[&SETS[..], &[more]].concat());
        let error = AgentState::read(folder.path(), &other.settings).expect_err(more);
        assert!(error.slug == "checkpoint-damaged" && error.message.contains(words), "{more}: {error}");
    }
    let text = state.to_text();
    for damaged in [&text[..text.len() / 2], &text.replace("num_frames", "frames"), "", "[]"] {
        write(folder.path(), damaged);
        let error = AgentState::read(folder.path(), &own.settings).expect_err("it is damaged");
        assert!(error.slug == "checkpoint-damaged" && error.message.contains("agent.json"), "{error}");
    }
    let nowhere = AgentState::read(&folder.path().join("none"), &own.settings).expect_err("no file");
    assert_eq!(nowhere.slug, "checkpoint-damaged");
}

/// A generator of numbers of very different sizes.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    (0..count as u64)
        .map(|i| {
            let bits = plimsoll_base::rng::philox(seed, plimsoll_base::rng::Stream::Request, i, 0);
            let unit = f64::from(bits[0]) / f64::from(u32::MAX) - 0.5;
            (unit * 10f64.powi((bits[1] % 7) as i32 - 3)) as f32
        })
        .collect()
}

#[test]
fn moments_do_not_depend_on_how_rows_come() {
    for seed in 0..20 {
        let rows = numbers(seed, 3 * 500);
        let mut whole = Moments::new(3);
        whole.update(&rows);
        let mut parts = Moments::new(3);
        let (mut rest, mut size) = (&rows[..], 1 + seed as usize);
        while !rest.is_empty() {
            let (part, after) = rest.split_at((3 * size).min(rest.len()));
            parts.update(part);
            (rest, size) = (after, size * 2);
        }
        parts.update(&[]);
        let (mut a, mut b) = (rows[..300].to_vec(), rows[..300].to_vec());
        a.chunks_mut(3).for_each(|row| whole.scales().apply(row));
        b.chunks_mut(3).for_each(|row| parts.scales().apply(row));
        for (a, b) in a.iter().zip(&b) {
            assert!((a - b).abs() < 1e-4 && a.abs() <= 10.0, "seed {seed}: {a} {b}");
        }
    }
}

#[test]
fn normalised_rows_have_mean_0_and_deviation_1() {
    let rows: Vec<f32> = numbers(3, 4000).iter().map(|x| 0.01 * x.clamp(-100.0, 100.0) + 5.0).collect();
    let mut moments = Moments::new(1);
    moments.update(&rows);
    let mut normalised = rows.clone();
    normalised.chunks_mut(1).for_each(|row| moments.scales().apply(row));
    let mean = normalised.iter().map(|&x| f64::from(x)).sum::<f64>() / 4000.0;
    let deviation = (normalised.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / 4000.0).sqrt();
    assert!(mean.abs() < 1e-3 && (deviation - 1.0).abs() < 1e-2, "{mean} {deviation}");
}

#[test]
fn a_scale_of_rewards_is_the_same_for_environments_in_any_batches() {
    // Two environments whose frames come in batches of different lengths.
    let rewards = [numbers(1, 200), numbers(2, 200)];
    let follow = |lengths: &[usize]| {
        let (mut scale, mut at) = (RewardScale::new(2), 0);
        for &length in lengths {
            let mut seen = Vec::new();
            for (env, rewards) in rewards.iter().enumerate() {
                let is_end = |t: usize| (at + t) % 30 == 29;
                scale.follow(env, 0.9, &rewards[at..at + length], is_end, &mut seen);
            }
            scale.apply(&seen, &mut []);
            at += length;
        }
        let mut one = [1.0];
        scale.apply(&[], &mut one);
        one[0]
    };
    let (whole, parts) = (follow(&[200]), follow(&[1, 28, 2, 69, 100]));
    assert!((whole / parts - 1.0).abs() < 1e-5, "{whole} {parts}");
}
