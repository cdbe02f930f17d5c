//! The layout of the memory shared with a worker.
//!
//! Every part is aligned to a cache line, so that parts written by different sides never share one.

use super::PythonEnvs;
use plimsoll_env::{Leaf, Slot};
use serde_json::{Value, json};
use std::ops::Range;

const LINE: usize = 64;

/// Offsets of the parts, for `envs` environments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotMap {
    pub envs: usize,
    /// Two i32: the environment under way and its activity.
    pub cursor: usize,
    /// u8 each.
    pub asks: usize,
    /// u8 each.
    pub flags: usize,
    /// f64 each.
    pub rewards: usize,
    /// u64 each, of which Python environments take 31 bits.
    pub seeds: usize,
    pub actions: usize,
    pub observations: usize,
    pub finals: usize,
    pub action_bytes: usize,
    pub observation_bytes: usize,
    pub bytes: usize,
}

impl SlotMap {
    pub fn new(envs: usize, action_bytes: usize, observation_bytes: usize) -> SlotMap {
        let mut end = 0;
        let mut take = |bytes: usize| {
            let offset = end;
            end += bytes.next_multiple_of(LINE);
            offset
        };
        let [cursor, asks, flags] = [take(8), take(envs), take(envs)];
        let [rewards, seeds, actions] = [take(8 * envs), take(8 * envs), take(action_bytes * envs)];
        let [observations, finals] = [take(observation_bytes * envs), take(observation_bytes * envs)];
        let bytes = end;
        SlotMap {
            envs,
            cursor,
            asks,
            flags,
            rewards,
            seeds,
            actions,
            observations,
            finals,
            action_bytes,
            observation_bytes,
            bytes,
        }
    }

    /// Returns the word `attach`. `groups`: environments of each group, counted within the worker.
    pub fn attach(
        &self,
        observation: &Slot,
        action: &Slot,
        groups: &[Range<usize>],
        envs: &PythonEnvs,
    ) -> Value {
        let groups: Vec<[usize; 2]> = groups.iter().map(|group| [group.start, group.end]).collect();
        json!({ "attach": {
            "bytes": self.bytes, "envs": self.envs, "groups": groups, "reseed": envs.reseed,
            "episode_steps_max": envs.episode_steps_max.unwrap_or(0),
            "cursor": self.cursor, "asks": self.asks, "flags": self.flags, "rewards": self.rewards,
            "seeds": self.seeds, "actions": self.actions, "observations": self.observations, "finals": self.finals,
            "action_bytes": self.action_bytes, "observation_bytes": self.observation_bytes,
            "observation_leaves": leaves(observation), "action_leaves": leaves(action),
        } })
    }
}

fn leaves(slot: &Slot) -> Vec<Value> {
    let of = |leaf: &Leaf| json!({ "offset": leaf.offset, "dtype": leaf.element.name() });
    slot.leaves.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_and_do_not_overlap() {
        let map = SlotMap::new(3, 8, 20);
        let parts = [
            (map.cursor, 8),
            (map.asks, 3),
            (map.flags, 3),
            (map.rewards, 24),
            (map.seeds, 24),
            (map.actions, 24),
            (map.observations, 60),
            (map.finals, 60),
            (map.bytes, 0),
        ];
        for pair in parts.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0 && pair[1].0 % LINE == 0, "{parts:?}");
        }
    }
}
