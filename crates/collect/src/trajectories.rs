//! Collects whole episodes from the frames of batches.
//!
//! Partial episodes wait in memory allocated at start, F frames per environment; whole ones are handed out
//! several at a time. An episode with missing frames, because its beginning or middle was not delivered, is counted
//! instead.

use crate::{Batch, RowLayout};
use plimsoll_base::{Bytes, Result};
use plimsoll_env::flags;
use plimsoll_memory::MappedRow;
use std::sync::Arc;

/// A whole episode of T frames.
#[derive(Debug)]
pub struct Episode {
    /// The environment.
    pub env_index: u32,
    /// Number of the episode in its environment.
    pub episode_index: u32,
    /// Number of frames, T.
    pub num_frames: usize,
    /// Observation slots, [T + 1]; the last is the final one.
    pub observations: Vec<u8>,
    /// Action slots, [T].
    pub actions: Vec<u8>,
    /// Rewards, [T].
    pub rewards: Vec<f32>,
    /// Flags of the last frame: how the episode ended.
    pub ended: u8,
    /// Versions of the policy, [T].
    pub policy_versions: Vec<u64>,
}

/// Assembles episodes from frames.
#[derive(Debug)]
pub struct Trajectories {
    layout: Arc<RowLayout>,
    episodes_per_batch: usize,
    frames_max: usize,
    partial: Vec<Partial>,
    whole: Vec<Episode>,
    incomplete: u64,
}

/// The current episode of an environment.
#[derive(Debug)]
struct Partial {
    piece: MappedRow,
    episode_index: u32,
    num_frames: usize,
    /// No frame is missing so far.
    is_whole: bool,
}

impl Trajectories {
    /// Allocates for `num_envs` environments whose episodes have at most `frames_max` frames.
    ///
    /// Errors: `size-overflow`, `host-allocation-failed`.
    pub fn new(
        layout: &Arc<RowLayout>,
        num_envs: usize,
        episodes_per_batch: usize,
        frames_max: usize,
    ) -> Result<Trajectories> {
        let pieces = MappedRow::rows(num_envs, frames_max * frame_bytes(layout))?;
        let empty = |piece| Partial { piece, episode_index: u32::MAX, num_frames: 0, is_whole: false };
        Ok(Trajectories {
            layout: layout.clone(),
            episodes_per_batch,
            frames_max,
            partial: pieces.into_iter().map(empty).collect(),
            whole: Vec::with_capacity(episodes_per_batch),
            incomplete: 0,
        })
    }

    /// Returns the bytes of partial episodes and of waiting whole ones: fewer than are handed out at a time, and those
    /// that end within one batch.
    pub fn bytes(num_envs: u64, episodes_per_batch: u64, frames_max: u64, layout: &RowLayout) -> Bytes {
        let waiting = episodes_per_batch.saturating_mul(frames_max);
        let of_batch = num_envs.saturating_mul(frames_max.saturating_add(layout.frames as u64));
        let frames = num_envs.saturating_mul(frames_max).saturating_add(waiting).saturating_add(of_batch);
        let episodes = num_envs.saturating_mul(layout.finals as u64).saturating_add(episodes_per_batch);
        // Each also has its last observation and the lists' own bytes.
        let each = (size_of::<Episode>() + layout.observation.bytes + 64) as u64;
        let frame = frame_bytes(layout) as u64;
        Bytes(frames.saturating_mul(frame).saturating_add(episodes.saturating_mul(each)))
    }

    /// Returns the number of episodes left out because of missing frames.
    pub fn incomplete(&self) -> u64 {
        self.incomplete
    }

    /// Takes the next set of whole episodes, once there are enough.
    pub fn take(&mut self) -> Option<Vec<Episode>> {
        (self.whole.len() >= self.episodes_per_batch).then(|| {
            let rest = self.whole.split_off(self.episodes_per_batch);
            std::mem::replace(&mut self.whole, rest)
        })
    }

    /// Adds the frames of a batch. Call `take` until it returns `None` before the next batch.
    pub fn push(&mut self, batch: &Batch) {
        let layout = self.layout.clone();
        for row in batch.rows() {
            let rewards: &[f32] = row.column(&layout.rewards);
            let episodes: &[u32] = row.column(&layout.episode_indices);
            let steps: &[u32] = row.column(&layout.steps);
            let versions: &[u64] = row.column(&layout.policy_versions);
            for (t, &flag) in row.flags(&layout).iter().enumerate() {
                if flag & (flags::RESET_ROW | flags::INVALID) != 0 {
                    continue;
                }
                let partial = &mut self.partial[row.env_index as usize];
                if partial.episode_index != episodes[t] {
                    self.incomplete += u64::from(partial.num_frames > 0);
                    (partial.episode_index, partial.num_frames) = (episodes[t], 0);
                    partial.is_whole = true;
                }
                partial.is_whole &=
                    steps[t] as usize == partial.num_frames && partial.num_frames < self.frames_max;
                if partial.is_whole {
                    let (observation, action) = (row.observation(&layout, t), row.action(&layout, t));
                    partial.put(&layout, observation, action, rewards[t], versions[t]);
                }
                if flag & flags::DONE != 0 {
                    if partial.is_whole {
                        let last = row.next_observation(&layout, t);
                        self.whole.push(partial.finish(&layout, row.env_index, last, flag));
                    } else {
                        self.incomplete += 1
                    }
                    partial.num_frames = 0;
                }
            }
        }
    }
}

/// Returns the bytes of a frame's observation, action, reward and version.
fn frame_bytes(layout: &RowLayout) -> usize {
    layout.observation.bytes + layout.action.bytes + 4 + 8
}

impl Partial {
    fn put(&mut self, layout: &RowLayout, observation: &[u8], action: &[u8], reward: f32, version: u64) {
        let start = self.num_frames * frame_bytes(layout);
        let (a, b) = (layout.observation.bytes, layout.observation.bytes + layout.action.bytes);
        let frame = &mut self.piece[start..start + frame_bytes(layout)];
        frame[..a].copy_from_slice(observation);
        frame[a..b].copy_from_slice(action);
        frame[b..b + 4].copy_from_slice(&reward.to_ne_bytes());
        frame[b + 4..].copy_from_slice(&version.to_ne_bytes());
        self.num_frames += 1;
    }

    fn finish(&self, layout: &RowLayout, env_index: u32, last: &[u8], ended: u8) -> Episode {
        let count = self.num_frames;
        let (a, b) = (layout.observation.bytes, layout.observation.bytes + layout.action.bytes);
        let mut episode = Episode {
            env_index,
            episode_index: self.episode_index,
            num_frames: count,
            observations: Vec::with_capacity((count + 1) * a),
            actions: Vec::with_capacity(count * (b - a)),
            rewards: Vec::with_capacity(count),
            ended,
            policy_versions: Vec::with_capacity(count),
        };
        for frame in self.piece[..count * frame_bytes(layout)].chunks_exact(frame_bytes(layout)) {
            episode.observations.extend_from_slice(&frame[..a]);
            episode.actions.extend_from_slice(&frame[a..b]);
            let reward = frame[b..].first_chunk().expect("a reward has 4 bytes");
            episode.rewards.push(f32::from_ne_bytes(*reward));
            let version = frame[b + 4..].first_chunk().expect("a version has 8 bytes");
            episode.policy_versions.push(u64::from_ne_bytes(*version));
        }
        episode.observations.extend_from_slice(last);
        episode
    }
}
