//! Episode seeds and action noise: pure functions of (run seed, environment, episode, step), so nothing depends on how
//! environments are distributed over threads and workers.

use plimsoll_base::rng::{Stream, philox};

/// Returns the seed with which environment `env_index` (counted over the whole run) begins episode `episode_index`.
pub fn reset_seed(run_seed: u64, env_index: u32, episode_index: u32) -> u64 {
    let [low, high, ..] = philox(run_seed, Stream::EnvReset, env_index.into(), episode_index.into());
    u64::from(high) << 32 | u64::from(low)
}

/// Returns a seed for Python environments: 31 bits, which every library accepts.
pub fn to_31_bits(seed: u64) -> u32 {
    (seed >> 33) as u32
}

/// Returns four random numbers for the action of a step; `block` counts further fours of the same action.
pub fn action_noise(run_seed: u64, env_index: u32, episode_index: u32, step: u32, block: u32) -> [u32; 4] {
    let who = u64::from(env_index) << 32 | u64::from(episode_index);
    let when = u64::from(block) << 32 | u64::from(step);
    philox(run_seed, Stream::EnvAct, who, when)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_part_of_the_key_gives_another_seed() {
        let seeds: BTreeSet<u64> = (0..4)
            .flat_map(|run| {
                (0..4).flat_map(move |env| (0..4).map(move |episode| reset_seed(run, env, episode)))
            })
            .collect();
        assert_eq!(seeds.len(), 64);
        assert!(seeds.iter().all(|&seed| to_31_bits(seed) < 1 << 31));
    }

    #[test]
    fn every_part_of_the_key_gives_other_noise() {
        let base = action_noise(0, 0, 0, 0, 0);
        let others = [
            action_noise(1, 0, 0, 0, 0),
            action_noise(0, 1, 0, 0, 0),
            action_noise(0, 0, 1, 0, 0),
            action_noise(0, 0, 0, 1, 0),
            action_noise(0, 0, 0, 0, 1),
        ];
        assert!(others.iter().all(|other| *other != base));
    }
}
