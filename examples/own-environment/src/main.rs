//! A custom environment and policy: a runner on a line chases a target that does not move.
//!
//! `cargo run --release -p own-environment` prints the mean return of a policy that walks towards the target, and of
//! one that walks at random. The environment implements one trait; threads, episodes, seeds, batches and faults are the
//! collector's.

use plimsoll_base::{PolicyVersion, Result};
use plimsoll_collect::{
    ActionBatch, Collector, Extras, GroupOptions, Mode, NativeGroup, ObservationBatch, OnAbort, Policy,
    Random, RowLayout, Settings, Stepper,
};
use plimsoll_env::native::NumpyRandom;
use plimsoll_env::{Environment, Slot, Space, Spec, Step};

/// Places of the line.
const LENGTH: f32 = 20.0;

/// The environment: where the runner is, and where the target is.
#[derive(Default)]
struct Chase {
    runner: f32,
    target: f32,
}

impl Chase {
    fn observe(&self, observation: &mut [u8]) {
        observation[..4].copy_from_slice(&self.runner.to_ne_bytes());
        observation[4..].copy_from_slice(&self.target.to_ne_bytes());
    }
}

impl Environment for Chase {
    fn spec(&self) -> Spec {
        Spec {
            id: "chase".into(),
            observation: Space::box_f32(&[2], 0.0, LENGTH),
            action: Space::discrete(3),
            episode_steps_max: Some(50),
        }
    }

    fn reset(&mut self, seed: u64, observation: &mut [u8]) {
        let mut random = NumpyRandom::new(seed);
        self.runner = random.uniform(0.0, f64::from(LENGTH)).round() as f32;
        self.target = random.uniform(0.0, f64::from(LENGTH)).round() as f32;
        self.observe(observation);
    }

    /// Actions: left, stay, right. A step costs 1, and the target ends the episode.
    fn step(&mut self, action: &[u8], observation: &mut [u8]) -> Step {
        let choice = i64::from_ne_bytes(*action.first_chunk().expect("the slot of a Discrete has 8 bytes"));
        self.runner = (self.runner + (choice - 1) as f32).clamp(0.0, LENGTH);
        self.observe(observation);
        Step { reward: -1.0, terminated: self.runner == self.target, truncated: false }
    }
}

/// Walks towards the target.
struct Towards;

impl Policy for Towards {
    fn check(&self, _: &Spec) -> Result<()> {
        Ok(())
    }

    fn act(&mut self, seen: &ObservationBatch<'_>, actions: &mut ActionBatch<'_>) -> PolicyVersion {
        let (seen, _) = seen.observations.as_chunks::<4>();
        let choices =
            seen.chunks_exact(2).map(|pair| (f32::from_ne_bytes(pair[0]), f32::from_ne_bytes(pair[1])));
        for (action, (runner, target)) in actions.actions.as_chunks_mut::<8>().0.iter_mut().zip(choices) {
            let choice = 1 + i64::from(target > runner) - i64::from(target < runner);
            *action = choice.to_ne_bytes();
        }
        PolicyVersion::default()
    }
}

/// Mean return of the episodes of 100 batches of 32 environments on two threads.
fn mean_return(make_policy: &mut dyn FnMut() -> Box<dyn Policy>) -> Result<f64> {
    let options = GroupOptions { restarts_max: 5, ..GroupOptions::default() };
    let mut steppers: Vec<Box<dyn Stepper>> = Vec::new();
    for range in [0..16, 16..32] {
        steppers.push(Box::new(NativeGroup::new(range, Chase::default, options)?));
    }
    let spec = Chase::default().spec();
    let frames = 64;
    let layout = RowLayout::new(
        &Slot::of(&spec.observation)?,
        &Slot::of(&spec.action)?,
        frames,
        frames,
        Extras::default(),
    )
    .expect("a small row");
    let settings = Settings {
        run_seed: 0,
        mode: Mode::Sync,
        batches_in_flight: 1,
        on_abort: OnAbort::Keep,
        random_steps: 0,
        reset_each_batch: false,
    };
    let mut collector = Collector::start(&settings, layout, steppers, make_policy)?;
    let (mut sum, mut count) = (0.0, 0.0);
    for _ in 0..100 {
        let Some(batch) = collector.next()? else { break };
        for last in batch.rows().iter().flat_map(|row| row.finals(&batch.layout)) {
            sum += last.episode_return;
            count += 1.0;
        }
    }
    Ok(sum / count)
}

fn main() -> Result<()> {
    println!("towards the target  {:.2}", mean_return(&mut || Box::new(Towards))?);
    println!("at random           {:.2}", mean_return(&mut || Box::new(Random { run_seed: 0 }))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walking_towards_the_target_is_better() {
        let towards = mean_return(&mut || Box::new(Towards)).unwrap();
        let at_random = mean_return(&mut || Box::new(Random { run_seed: 0 })).unwrap();
        // The mean distance of two places is about a third of the line.
        assert!((-9.0..-5.0).contains(&towards) && at_random < -20.0, "{towards} {at_random}");
    }
}
