//! One rollout as the learner reads it: flat arrays over N frames, environment after environment, with the advantages
//! and returns computed from them. Every array is allocated at start at its largest.

use super::normalise::RewardScale;
use plimsoll_algo::advantage::{Gae, MaskHole, gae};
use plimsoll_algo::packed::Packed;

/// N frames, each with n observed numbers and a action numbers.
#[derive(Debug, Default)]
pub struct Experience {
    /// [N, n]: observations as the policy saw them.
    pub inputs: Vec<f32>,
    /// [N, n]: observations before normalisation; empty where they are not normalised.
    pub raw_inputs: Vec<f32>,
    /// [N, a]
    pub actions: Vec<f32>,
    /// [N]: log-probs that the rollout recorded.
    pub logprobs: Vec<f32>,
    /// [N]: values that the rollout recorded.
    pub values: Vec<f32>,
    /// [N]
    pub rewards: Vec<f32>,
    /// [N]
    pub advantages: Vec<f32>,
    /// [N]
    pub returns: Vec<f32>,
    /// [N]: all ones.
    mask: Vec<f32>,
    /// [S + 1]: bounds of the slices, each a run of frames of one episode.
    pub slices: Vec<usize>,
    /// [S]: value after the last frame of each slice.
    pub bootstrap: Vec<f32>,
    /// [B, n]: observations whose values must still be computed.
    pub tails: Vec<f32>,
    /// [B]: the slice of each tail.
    pub tail_slices: Vec<usize>,
    /// [N]: discounted returns, from which the scale of rewards is updated.
    seen: Vec<f32>,
}

impl Experience {
    /// Allocates room for `frames` frames of `width` observed and `dims` action numbers.
    pub fn with_capacity(frames: usize, width: usize, dims: usize, is_normalised: bool) -> Experience {
        // Written once, so that the pages are resident before the first step.
        let room = |n: usize| {
            let mut array = vec![1.0f32; n];
            array.clear();
            array
        };
        Experience {
            inputs: room(frames * width),
            raw_inputs: room(if is_normalised { frames * width } else { 0 }),
            actions: room(frames * dims),
            logprobs: room(frames),
            values: room(frames),
            rewards: room(frames),
            advantages: room(frames),
            returns: room(frames),
            mask: room(frames),
            slices: Vec::with_capacity(frames + 1),
            bootstrap: room(frames),
            tails: room(frames * width),
            tail_slices: Vec::with_capacity(frames),
            seen: room(frames),
        }
    }

    pub fn bytes(frames: usize, width: usize, dims: usize, is_normalised: bool) -> u64 {
        let (frames, width, dims) = (frames as u64, width as u64, dims as u64);
        let rows = if is_normalised { 3 } else { 2 };
        frames * 4 * (rows * width + dims + 8) + frames * 2 * 8 + 8
    }

    pub fn num_frames(&self) -> usize {
        self.rewards.len()
    }

    pub fn clear(&mut self) {
        let floats = [
            &mut self.inputs,
            &mut self.raw_inputs,
            &mut self.actions,
            &mut self.logprobs,
            &mut self.values,
            &mut self.rewards,
            &mut self.bootstrap,
            &mut self.tails,
            &mut self.seen,
        ];
        floats.into_iter().for_each(Vec::clear);
        self.slices.clear();
        self.slices.push(0);
        self.tail_slices.clear();
    }

    /// Ends a slice after the frames so far: with value 0 where the task ended, otherwise with the value of the
    /// observation that `tail` writes.
    pub fn end_slice(&mut self, terminated: bool, width: usize, tail: impl FnOnce(&mut [f32])) {
        if !terminated {
            self.tail_slices.push(self.bootstrap.len());
            let start = self.tails.len();
            self.tails.resize(start + width, 0.0);
            tail(&mut self.tails[start..]);
        }
        self.bootstrap.push(0.0);
        self.slices.push(self.num_frames());
    }

    /// Divides rewards by the standard deviation of discounted returns. `spans`: each environment's frames and ends.
    pub fn scale_rewards(&mut self, scale: &mut RewardScale, gamma: f64, spans: &[EnvFrames]) {
        self.seen.clear();
        for EnvFrames { env, frames, ends } in spans {
            let rewards = &self.rewards[frames.clone()];
            let is_end = |t: usize| ends.binary_search(&(frames.start + t)).is_ok();
            scale.follow(*env, gamma, rewards, is_end, &mut self.seen);
        }
        scale.apply(&self.seen, &mut self.rewards);
    }

    pub fn estimate(&mut self, gamma: f64, lambda: f64) {
        let n = self.num_frames();
        for array in [&mut self.mask, &mut self.advantages, &mut self.returns] {
            array.resize(n, 0.0);
        }
        self.mask.fill(1.0);
        let packed = Packed { mask: &self.mask, seq_offsets: &self.slices };
        let how = Gae { gamma, lambda, mask_hole: MaskHole::Skip };
        let Experience { rewards, values, bootstrap, advantages, returns, .. } = self;
        gae(&how, packed, rewards, values, bootstrap, advantages, returns);
    }
}

/// Frames of one environment in an `Experience`, and the frames that ended an episode, ascending.
#[derive(Clone, Debug)]
pub struct EnvFrames {
    pub env: usize,
    pub frames: std::ops::Range<usize>,
    pub ends: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_truncated_is_followed_by_a_value_and_what_ended_by_zero() {
        let mut experience = Experience::with_capacity(3, 1, 1, false);
        experience.clear();
        for (t, terminated) in [(0, true), (1, false), (2, false)] {
            experience.rewards.push(1.0);
            experience.values.push(0.25);
            experience.end_slice(terminated, 1, |tail| tail[0] = t as f32);
        }
        // The values of the observations after frames 1 and 2, which a network computes.
        assert_eq!((&experience.tails[..], &experience.tail_slices[..]), (&[1.0, 2.0][..], &[1, 2][..]));
        experience.bootstrap[1] = 4.0;
        experience.bootstrap[2] = 8.0;
        experience.estimate(0.5, 1.0);
        assert_eq!(experience.returns, [1.0, 3.0, 5.0]);
        assert_eq!(experience.advantages, [0.75, 2.75, 4.75]);
    }
}
