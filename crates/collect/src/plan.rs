//! The rows that a collector adds to the plan: batches, groups, environments, and buffers that keep frames longer.

use crate::{LANE_STACK_BYTES, NativeGroup, Replay, RowLayout, Trajectories, group::Group};
use plimsoll_base::{Bytes, Result};
use plimsoll_env::{Environment, native};
use plimsoll_memory::{Layout, MappedRow, Place, Pool};

/// The counts that determine the bytes of a collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Number of environments, E.
    pub num_envs: u64,
    /// Batches in memory: filling, held by the learner, or waiting to be written.
    pub batches: u64,
    /// Threads that step environments.
    pub threads: u64,
    /// Bytes of the environments and their slots, in this process.
    pub environment_bytes: u64,
    /// Episodes handed out at a time and the frames of the longest; `None` hands out frames.
    pub trajectories: Option<(u64, u64)>,
    /// Frames of each environment in the replay ring.
    pub replay_frames: Option<u64>,
}

/// Touched stack of a thread: loops over slices, and the backtrace of a panic.
const STACK_TOUCHED: u64 = 128 << 10;

/// Lays out a collector with rows of `row`.
pub fn layout(limits: &Limits, row: &RowLayout) -> Layout {
    let mut layout = Layout::new();
    let mut add = |name: &str, place: Place, bytes: u64| {
        if bytes > 0 {
            layout.outside(name, "collect", Pool::Host, place, Bytes(bytes));
        }
    };
    let rows = limits.num_envs.saturating_mul(limits.batches);
    add("collect.batches", Place::Heap, rows.saturating_mul(MappedRow::stride(row.bytes) as u64));
    // The records of the rows, both queued and filling.
    let records = rows.saturating_mul(2 * size_of::<crate::Row>() as u64);
    add("collect.groups", Place::Heap, Group::bytes(limits.num_envs as usize, row).saturating_add(records));
    add("collect.environments", Place::Heap, limits.environment_bytes);
    if let Some((episodes, frames)) = limits.trajectories {
        let bytes = Trajectories::bytes(limits.num_envs, episodes, frames, row);
        add("collect.trajectories", Place::Heap, bytes.0);
    }
    if let Some(frames) = limits.replay_frames {
        add("collect.replay", Place::Heap, Replay::bytes(limits.num_envs, frames, row).0);
    }
    let stack = STACK_TOUCHED.min(LANE_STACK_BYTES as u64);
    add("collect.stacks", Place::Process, limits.threads.saturating_mul(stack));
    layout
}

/// Returns the bytes of `num_envs` native environments called `id`, including their slots.
///
/// Errors: `unknown-environment`, `env-bad-option`.
pub fn native_bytes(
    id: &str,
    options: &native::Options,
    num_envs: u64,
    observation_bytes: usize,
) -> Result<u64> {
    native::visit(id, options, Sized { num_envs, observation_bytes })
}

struct Sized {
    num_envs: u64,
    observation_bytes: usize,
}

impl native::Visitor for Sized {
    type Output = u64;

    fn visit<E: Environment + 'static>(self, _: impl Fn() -> E + Send + 'static) -> u64 {
        NativeGroup::<E, fn() -> E>::bytes(1, self.observation_bytes).saturating_mul(self.num_envs)
    }
}
