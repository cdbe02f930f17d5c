//! A row of a batch: T frames of one environment in one piece of memory, owned by one thread at a time.
//!
//! E environments, T frames each, F final observations. A row is a sequence of columns, so a batch is an array
//! of rows, and a column `[E, T]` of it is strided along E and dense along T.

use crate::{Extras, Results};
use plimsoll_base::PolicyVersion;
use plimsoll_env::{Slot, flags};
use plimsoll_memory::{MappedRow, Plain};
use std::ops::Range;

/// The byte ranges of the columns in a row.
#[derive(Clone, Debug, PartialEq)]
pub struct RowLayout {
    /// Number of frames, T.
    pub frames: usize,
    /// F: episodes that may end within a row.
    pub finals: usize,
    /// Leaves of an observation.
    pub observation: Slot,
    /// Leaves of an action.
    pub action: Slot,
    /// Numbers that the policy gives in addition to actions.
    pub extras: Extras,
    /// Observation slots, [T + 1]: before each frame, and after the last.
    pub observations: Range<usize>,
    /// Observation slots, [F]: the last of each episode that ended.
    pub final_observations: Range<usize>,
    /// Action slots, [T].
    pub actions: Range<usize>,
    /// Versions of the policy that chose each action, [T] u64.
    pub policy_versions: Range<usize>,
    /// Sums of rewards of the episodes that ended, [F] f64, including frames of earlier batches.
    pub final_returns: Range<usize>,
    /// Rewards, [T] f32.
    pub rewards: Range<usize>,
    /// Numbers of the episodes, [T] u32.
    pub episode_indices: Range<usize>,
    /// Steps of the episode before each frame, [T] u32.
    pub steps: Range<usize>,
    /// Log-probabilities of the actions, [T] f32, or empty.
    pub logprobs: Range<usize>,
    /// Values of the observations, [T] f32, or empty.
    pub values: Range<usize>,
    /// The frame to which each final observation belongs, [F] u32, ascending.
    pub final_frames: Range<usize>,
    /// Bits of `plimsoll_env::flags`, [T] u8.
    pub flags: Range<usize>,
    /// Bytes of a row.
    pub bytes: usize,
}

impl RowLayout {
    /// Lays out `frames` frames with at most `finals` ends of episodes; `None` on overflow.
    pub fn new(
        observation: &Slot,
        action: &Slot,
        frames: usize,
        finals: usize,
        extras: Extras,
    ) -> Option<RowLayout> {
        let mut end = 0usize;
        let mut column = |count: usize, bytes: usize| {
            let start = end.checked_next_multiple_of(COLUMN_ALIGN)?;
            end = count.checked_mul(bytes)?.checked_add(start)?;
            Some(start..end)
        };
        let optional = |wanted: bool| if wanted { frames } else { 0 };
        let mut layout = RowLayout {
            frames,
            finals,
            observations: column(frames.checked_add(1)?, observation.bytes)?,
            final_observations: column(finals, observation.bytes)?,
            actions: column(frames, action.bytes)?,
            policy_versions: column(frames, 8)?,
            final_returns: column(finals, 8)?,
            rewards: column(frames, 4)?,
            episode_indices: column(frames, 4)?,
            steps: column(frames, 4)?,
            logprobs: column(optional(extras.logprobs), 4)?,
            values: column(optional(extras.values), 4)?,
            final_frames: column(finals, 4)?,
            flags: column(frames, 1)?,
            observation: observation.clone(),
            action: action.clone(),
            extras,
            bytes: 0,
        };
        layout.bytes = end;
        (end <= i64::MAX as usize).then_some(layout)
    }
}

/// Columns start on multiples of this, so that every element is aligned.
const COLUMN_ALIGN: usize = 16;

/// The frames of one environment.
#[derive(Debug)]
pub struct Row {
    piece: MappedRow,
    /// Number of the environment over the whole run.
    pub env_index: u32,
    /// Frames written so far.
    pub num_frames: usize,
    /// Final observations written so far.
    pub num_finals: usize,
}

/// The stored values of one frame, without its observation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub action: &'a [u8],
    pub reward: f32,
    pub flags: u8,
    pub version: PolicyVersion,
    pub episode: u32,
    pub step: u32,
    pub logprob: Option<f32>,
    pub value: Option<f32>,
}

impl Row {
    /// Makes an empty row in a piece of `RowLayout::bytes`.
    pub fn new(piece: MappedRow) -> Row {
        Row { piece, env_index: 0, num_frames: 0, num_finals: 0 }
    }

    /// Returns all bytes of the row.
    pub fn bytes(&self) -> &[u8] {
        &self.piece
    }

    /// Returns a column as numbers; for leaves of observations and actions see `Slot`.
    pub fn column<T: Plain>(&self, column: &Range<usize>) -> &[T] {
        self.piece.numbers(column.clone())
    }

    /// Returns the flags of each frame.
    pub fn flags(&self, layout: &RowLayout) -> &[u8] {
        &self.piece[layout.flags.clone()]
    }

    /// Counts frames that are neither invalid nor resets.
    pub fn count_frames(&self, layout: &RowLayout) -> u64 {
        let none = flags::INVALID | flags::RESET_ROW;
        self.flags(layout).iter().filter(|&&flag| flag & none == 0).count() as u64
    }

    /// Returns the least and the largest version of its frames; `None` without frames.
    pub(crate) fn version_range(&self, layout: &RowLayout) -> Option<(u64, u64)> {
        let none = flags::INVALID | flags::RESET_ROW;
        let versions = self.column::<u64>(&layout.policy_versions).iter().zip(self.flags(layout));
        let versions = versions.filter(|(_, flag)| **flag & none == 0).map(|(&version, _)| version);
        versions.map(|version| (version, version)).reduce(|(low, high), (a, b)| (low.min(a), high.max(b)))
    }

    /// Counts the frames of a row that is being written.
    pub(crate) fn count_written(&self, layout: &RowLayout) -> u64 {
        let marks = &self.flags(layout)[..self.num_frames];
        marks.iter().filter(|&&flag| flag & flags::RESET_ROW == 0).count() as u64
    }

    /// Returns the observation before frame `t`; for `t` = T the one after the last frame.
    pub fn observation(&self, layout: &RowLayout, t: usize) -> &[u8] {
        self.slot(&layout.observations, &layout.observation, t)
    }

    /// Returns the action of frame `t`.
    pub fn action(&self, layout: &RowLayout, t: usize) -> &[u8] {
        self.slot(&layout.actions, &layout.action, t)
    }

    fn slot(&self, column: &Range<usize>, slot: &Slot, index: usize) -> &[u8] {
        let at = column.start + index * slot.bytes;
        &self.piece[at..at + slot.bytes]
    }

    /// Returns the ends of episodes, in ascending order of frames.
    pub fn finals<'a>(&'a self, layout: &'a RowLayout) -> impl Iterator<Item = Final<'a>> {
        let frames: &[u32] = self.column(&layout.final_frames);
        let returns: &[f64] = self.column(&layout.final_returns);
        (0..self.num_finals).map(move |index| Final {
            frame: frames[index] as usize,
            observation: self.slot(&layout.final_observations, &layout.observation, index),
            episode_return: returns[index],
        })
    }

    /// Returns the observation after frame `t`: the final one if an episode ended with it, else the next one.
    pub fn next_observation<'a>(&'a self, layout: &RowLayout, t: usize) -> &'a [u8] {
        let frames: &[u32] = self.column(&layout.final_frames);
        match frames[..self.num_finals].binary_search(&(t as u32)) {
            Ok(index) => self.slot(&layout.final_observations, &layout.observation, index),
            Err(_) => self.observation(layout, t + 1),
        }
    }

    pub(crate) fn begin(&mut self, layout: &RowLayout, env_index: u32, observation: &[u8]) {
        (self.env_index, self.num_frames, self.num_finals) = (env_index, 0, 0);
        self.write_observation(layout, 0, observation);
    }

    /// Returns true if no further frame fits: all are written, or there is no room for another end of an episode.
    pub(crate) fn is_full(&self, layout: &RowLayout) -> bool {
        self.num_frames == layout.frames || self.num_finals == layout.finals
    }

    /// Appends a frame and the observation after it.
    #[inline]
    pub(crate) fn push(&mut self, layout: &RowLayout, frame: Frame<'_>, observation: &[u8]) {
        let t = self.num_frames;
        let piece = &mut self.piece[..];
        let at = layout.actions.start + t * layout.action.bytes;
        copy_small(&mut piece[at..at + layout.action.bytes], frame.action);
        put(piece, &layout.policy_versions, t, frame.version.0.to_ne_bytes());
        put(piece, &layout.rewards, t, frame.reward.to_ne_bytes());
        put(piece, &layout.episode_indices, t, frame.episode.to_ne_bytes());
        put(piece, &layout.steps, t, frame.step.to_ne_bytes());
        put(piece, &layout.flags, t, [frame.flags]);
        if let Some(logprob) = frame.logprob {
            put(piece, &layout.logprobs, t, logprob.to_ne_bytes());
        }
        if let Some(value) = frame.value {
            put(piece, &layout.values, t, value.to_ne_bytes());
        }
        self.write_observation(layout, t + 1, observation);
        self.num_frames = t + 1;
    }

    /// Keeps the last observation of the episode that ended with the last frame.
    pub(crate) fn push_final(&mut self, layout: &RowLayout, observation: &[u8], episode_return: f64) {
        let bytes = layout.observation.bytes;
        let at = layout.final_observations.start + self.num_finals * bytes;
        self.piece[at..at + bytes].copy_from_slice(observation);
        self.note_final(layout, episode_return);
    }

    /// Notes that an episode ended with the last frame; its last observation is there already.
    fn note_final(&mut self, layout: &RowLayout, episode_return: f64) {
        let (index, frame) = (self.num_finals, self.num_frames as u32 - 1);
        put(&mut self.piece, &layout.final_frames, index, frame.to_ne_bytes());
        put(&mut self.piece, &layout.final_returns, index, episode_return.to_ne_bytes());
        self.num_finals += 1;
    }

    /// Marks the last frame as the last of its slice, with further flags, and keeps the observation after it as final,
    /// because another one will replace it.
    pub(crate) fn end_slice(&mut self, layout: &RowLayout, bits: u8, episode_return: f64) {
        let t = self.num_frames;
        self.piece[layout.flags.start + t - 1] |= bits;
        let bytes = layout.observation.bytes;
        let (from, to) = (layout.observations.start + t * bytes, layout.final_observations.start);
        let to = to + self.num_finals * bytes;
        self.piece.copy_within(from..from + bytes, to);
        self.note_final(layout, episode_return);
    }

    pub(crate) fn take_back(&mut self, count: usize) {
        self.num_frames -= count;
    }

    pub(crate) fn set_last_observation(&mut self, layout: &RowLayout, observation: &[u8]) {
        self.write_observation(layout, self.num_frames, observation);
    }

    /// Ends the row: an episode that continues is cut at its last frame, and missing frames are invalid.
    pub(crate) fn close(&mut self, layout: &RowLayout) {
        let frames = self.num_frames;
        let marks = &mut self.piece[layout.flags.clone()];
        marks[frames..].fill(flags::INVALID);
        // A reset at the beginning of the next row belongs to that row.
        if let Some(last) = marks[..frames].iter_mut().rev().find(|flag| **flag & flags::RESET_ROW == 0)
            && *last & (flags::DONE | flags::CUT) == 0
        {
            *last |= flags::CUT;
        }
    }

    /// Flags frames that are not delivered. Returns their number.
    pub(crate) fn invalidate(&mut self, layout: &RowLayout, is_old: impl Fn(u64) -> bool) -> u64 {
        let versions: Vec<bool> =
            self.column::<u64>(&layout.policy_versions).iter().map(|&version| is_old(version)).collect();
        let marks = &mut self.piece[layout.flags.clone()];
        let none = flags::INVALID | flags::RESET_ROW;
        let mut count = 0;
        for (flag, _) in marks.iter_mut().zip(versions).filter(|(flag, old)| *old && **flag & none == 0) {
            *flag |= flags::INVALID;
            count += 1;
        }
        count
    }

    fn write_observation(&mut self, layout: &RowLayout, t: usize, observation: &[u8]) {
        let bytes = layout.observation.bytes;
        let at = layout.observations.start + t * bytes;
        copy_small(&mut self.piece[at..at + bytes], observation);
    }
}

/// The end of an episode within a row.
#[derive(Clone, Copy, Debug)]
pub struct Final<'a> {
    /// The frame that ended it.
    pub frame: usize,
    /// Its last observation.
    pub observation: &'a [u8],
    /// The sum of its rewards.
    pub episode_return: f64,
}

/// Returns the observation of environment `index` in the results of a group.
pub(crate) fn observation_of<'a>(results: &Results<'a>, index: usize, bytes: usize) -> &'a [u8] {
    &results.observations[index * bytes..(index + 1) * bytes]
}

fn put<const N: usize>(piece: &mut [u8], column: &Range<usize>, index: usize, value: [u8; N]) {
    let at = column.start + index * N;
    debug_assert!(at + N <= column.end, "element {index} of a column of {} bytes", column.len());
    piece[at..at + N].copy_from_slice(&value);
}

/// Copies bytes, with the common lengths known at compile time.
#[inline]
fn copy_small(to: &mut [u8], from: &[u8]) {
    match to.len() {
        8 => to[..8].copy_from_slice(&from[..8]),
        16 => to[..16].copy_from_slice(&from[..16]),
        4 => to[..4].copy_from_slice(&from[..4]),
        _ => to.copy_from_slice(from),
    }
}
