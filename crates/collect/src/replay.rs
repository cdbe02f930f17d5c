//! A ring of the last frames of each environment, for off-policy learners: sampled by key, with n-step returns.
//!
//! E environments, C frames each. The ring is allocated at start and has one writer, which copies batches into it.
//! Frames of an environment are in order, so the next entry is the next frame; the observation after an episode's last
//! frame is stored separately.

use crate::{Batch, RowLayout};
use plimsoll_base::rng::{Stream, below, philox};
use plimsoll_base::{Bytes, Result};
use plimsoll_env::flags;
use plimsoll_memory::MappedRow;

/// The return of n steps from one frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NStep {
    /// Sum of discounted rewards over the available steps.
    pub n_step_return: f64,
    /// The factor of the value after them: the discount to the power of `steps`, 0 after a termination.
    pub bootstrap_discount: f64,
    /// Number of available steps.
    pub num_steps: usize,
}

/// One sampled frame.
#[derive(Clone, Copy, Debug)]
pub struct Transition<'a> {
    /// The environment.
    pub env_index: u32,
    /// Observation.
    pub observation: &'a [u8],
    /// Action.
    pub action: &'a [u8],
    /// Observation after the last of the steps.
    pub next_observation: &'a [u8],
    /// Rewards of the steps.
    pub steps: NStep,
}

/// A ring of frames for each environment.
#[derive(Debug)]
pub struct Replay {
    capacity: usize,
    observation_bytes: usize,
    action_bytes: usize,
    /// The byte ranges of the columns in an environment's row.
    columns: Columns,
    /// One row per environment.
    rows: Vec<MappedRow>,
    /// Frames added by each environment since the start.
    written: Vec<u64>,
    /// Frames in the ring.
    held: usize,
    /// The episode and step that would continue each environment's last frame.
    expected: Vec<(u32, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Columns {
    observations: usize,
    next: usize,
    actions: usize,
    rewards: usize,
    flags: usize,
    bytes: usize,
}

impl Columns {
    fn new(capacity: usize, layout: &RowLayout) -> Columns {
        let (observation, action) = (layout.observation.bytes, layout.action.bytes);
        let align = |bytes: usize| bytes.next_multiple_of(16);
        let next = align(capacity * observation);
        let actions = next + align(capacity * observation);
        let rewards = actions + align(capacity * action);
        let flags = rewards + align(capacity * 4);
        Columns { observations: 0, next, actions, rewards, flags, bytes: flags + capacity }
    }
}

impl Replay {
    /// Allocates a ring for `num_envs` environments and the last `capacity` frames of each.
    ///
    /// Errors: `size-overflow`, `host-allocation-failed`.
    pub fn new(num_envs: usize, capacity: usize, layout: &RowLayout) -> Result<Replay> {
        assert!(capacity > 0, "a ring holds at least one frame of each environment");
        let columns = Columns::new(capacity, layout);
        Ok(Replay {
            capacity,
            observation_bytes: layout.observation.bytes,
            action_bytes: layout.action.bytes,
            columns,
            rows: MappedRow::rows(num_envs, columns.bytes)?,
            written: vec![0; num_envs],
            held: 0,
            expected: vec![(0, 0); num_envs],
        })
    }

    /// Returns the bytes of such a ring.
    pub fn bytes(num_envs: u64, capacity: u64, layout: &RowLayout) -> Bytes {
        let frame = (2 * layout.observation.bytes + layout.action.bytes + 4 + 1) as u64;
        let row = capacity.saturating_mul(frame).saturating_add(5 * 64);
        Bytes(num_envs.saturating_mul(row.saturating_add(16)))
    }

    /// Frames in the ring.
    pub fn len(&self) -> usize {
        self.held
    }

    /// Returns true if the ring has no frame yet.
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Copies the frames of a batch over the oldest of their environments.
    pub fn push(&mut self, batch: &Batch) {
        let layout = &*batch.layout;
        for row in batch.rows() {
            let env = row.env_index as usize;
            let rewards: &[f32] = row.column(&layout.rewards);
            let (episodes, steps) =
                (row.column::<u32>(&layout.episode_indices), row.column::<u32>(&layout.steps));
            let frames = row.flags(layout).iter().enumerate();
            for (t, &flag) in frames.filter(|(_, flag)| **flag & (flags::INVALID | flags::RESET_ROW) == 0) {
                if self.expected[env] != (episodes[t], steps[t]) {
                    self.cut_last(env);
                }
                let next = match flag & (flags::DONE | flags::ABORTED) {
                    0 => (episodes[t], steps[t].wrapping_add(1)),
                    _ => (episodes[t].wrapping_add(1), 0),
                };
                self.expected[env] = next;
                let at = (self.written[env] % self.capacity as u64) as usize;
                let piece = &mut self.rows[env];
                let mut put = |column: usize, bytes: &[u8]| {
                    let start = column + at * bytes.len();
                    piece[start..start + bytes.len()].copy_from_slice(bytes);
                };
                put(self.columns.observations, row.observation(layout, t));
                put(self.columns.next, row.next_observation(layout, t));
                put(self.columns.actions, row.action(layout, t));
                put(self.columns.rewards, &rewards[t].to_ne_bytes());
                // A cut at the end of a batch is not a boundary here: the next batch continues the episode.
                let kept = if flag & flags::ABORTED != 0 { flag } else { flag & !flags::CUT };
                put(self.columns.flags, &[kept]);
                self.held += usize::from(self.written[env] < self.capacity as u64);
                self.written[env] += 1;
            }
        }
    }

    /// Marks a gap after the last frame of an environment: no sum of rewards continues past it.
    fn cut_last(&mut self, env: usize) {
        if let Some(last) = self.written[env].checked_sub(1) {
            let at = (last % self.capacity as u64) as usize;
            self.rows[env][self.columns.flags + at] |= flags::CUT;
        }
    }

    /// Samples frame number `index` of draw `draw`: uniform over the ring, with the sum of up to `n` rewards from
    /// there. `None` if the ring is empty.
    pub fn sample(
        &self,
        run_seed: u64,
        draw: u64,
        index: u64,
        n: usize,
        discount: f64,
    ) -> Option<Transition<'_>> {
        let count = self.held as u64;
        let bits = philox(run_seed, Stream::Replay, draw, index);
        let mut pick = (count > 0).then(|| below(bits[0], bits[1], count))?;
        if self.held == self.rows.len() * self.capacity {
            let (env, nth) = ((pick / self.capacity as u64) as usize, pick % self.capacity as u64);
            let first = self.written[env] - self.capacity as u64;
            return Some(self.transition(env, first + nth, n, discount));
        }
        for (env, &written) in self.written.iter().enumerate() {
            let held = written.min(self.capacity as u64);
            if pick < held {
                return Some(self.transition(env, written - held + pick, n, discount));
            }
            pick -= held;
        }
        None
    }

    /// Returns the transition from frame `frame` of an environment, counted since the start.
    fn transition(&self, env: usize, frame: u64, n: usize, discount: f64) -> Transition<'_> {
        let row = &self.rows[env];
        let at = |frame: u64| (frame % self.capacity as u64) as usize;
        let slot = |column: usize, bytes: usize, frame: u64| {
            let start = column + at(frame) * bytes;
            &row[start..start + bytes]
        };
        let (mut sum, mut weight, mut last, mut ended) = (0.0, 1.0, frame, 0);
        for step in frame..self.written[env].min(frame + n.max(1) as u64) {
            let reward = slot(self.columns.rewards, 4, step);
            let reward = f32::from_ne_bytes(*reward.first_chunk().expect("a reward has 4 bytes"));
            sum += weight * f64::from(reward);
            weight *= discount;
            last = step;
            ended = row[self.columns.flags + at(step)];
            if ended & (flags::DONE | flags::ABORTED | flags::CUT) != 0 {
                break;
            }
        }
        let bootstrap_discount = if ended & flags::TERMINATED != 0 { 0.0 } else { weight };
        let num_steps = (last - frame + 1) as usize;
        Transition {
            env_index: env as u32,
            observation: slot(self.columns.observations, self.observation_bytes, frame),
            action: slot(self.columns.actions, self.action_bytes, frame),
            next_observation: slot(self.columns.next, self.observation_bytes, last),
            steps: NStep { n_step_return: sum, bootstrap_discount, num_steps },
        }
    }
}
