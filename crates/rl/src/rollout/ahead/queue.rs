//! The rollouts that wait for their steps, as they are between two steps and in a checkpoint. There are at most L, and
//! one more while a step is made.

use crate::rollout::arrivals::WeightArrivals;
use crate::rollout::group::{Runs, SampleGroup, lines, read_lines};
use plimsoll_base::Result;
use plimsoll_files::{FileRecord, write_new_lines};
use plimsoll_infer::text::Item;
use plimsoll_rollout::{Finish, Samples};
use plimsoll_run::checkpoint::{BufferState, ahead_file};
use std::collections::VecDeque;
use std::path::Path;

/// The samples of a step that were drawn before it.
#[derive(Debug)]
pub(crate) struct Rollout {
    /// The step that drew them, and the updates of the weights that did.
    pub of: BufferState,
    pub groups: Vec<SampleGroup>,
    pub samples: Samples,
    /// For each sample the versions that drew its tokens, and how many each drew; empty if one version drew all.
    pub versions: Vec<Runs>,
}

impl Rollout {
    /// Returns how many of a sample's first tokens weights before `version` drew.
    pub(super) fn stale(&self, sample: usize, version: u64) -> usize {
        let older = |runs: &Runs| {
            runs.iter().filter(|(drew, _)| *drew < version).map(|(_, count)| *count as usize).sum()
        };
        match self.versions.get(sample) {
            Some(runs) => older(runs),
            None if self.of.policy_version < version => self.samples.ids(sample).len(),
            None => 0,
        }
    }

    /// Returns the sum of the ages of a sample's tokens, in updates.
    pub(super) fn age(&self, sample: usize, version: u64) -> u64 {
        match self.versions.get(sample) {
            Some(runs) => runs.iter().map(|(drew, count)| (version - drew) * u64::from(*count)).sum(),
            None => (version - self.of.policy_version) * self.samples.ids(sample).len() as u64,
        }
    }
}

/// The rollouts that wait, in the order of their steps.
#[derive(Debug, Default)]
pub struct Ahead {
    waiting: VecDeque<Rollout>,
    /// Those that the step that is being made has drawn.
    drawn: Vec<Rollout>,
    /// The arrivals that the run follows, if it follows any.
    pub(crate) schedule: Option<WeightArrivals>,
}

/// Reads the rollouts of a checkpoint.
pub(crate) struct RolloutReader<'r> {
    pub folder: &'r Path,
    pub group_size: usize,
    /// The most sequences of a step, and tokens of a response.
    pub room: (usize, usize),
    /// Returns the prompt at a position of the data.
    pub item: &'r mut dyn FnMut(u64) -> Result<Item>,
    /// Returns the text of a response.
    pub text: &'r dyn Fn(&[u32], Finish) -> String,
}

impl Ahead {
    /// Returns how many steps have their samples, from the next one on.
    pub(crate) fn num_waiting(&self) -> u32 {
        self.waiting.len() as u32
    }

    /// Returns how many steps have their samples, with those that the step being made has drawn.
    pub(crate) fn num_there(&self) -> u32 {
        self.num_waiting() + self.drawn.len() as u32
    }

    /// Forgets what a failed step drew.
    pub(crate) fn begin(&mut self) {
        self.drawn.clear();
    }

    pub(crate) fn push(&mut self, rollout: Rollout) {
        self.drawn.push(rollout);
    }

    /// Returns the samples of the step that is being made.
    pub(super) fn first(&self) -> &Rollout {
        self.waiting.front().or(self.drawn.first()).expect("a step has drawn what it trains on")
    }

    /// Removes the samples of the step that was made, and keeps what it drew. A step that fails leaves what it found.
    pub fn commit(&mut self) {
        self.waiting.extend(self.drawn.drain(..));
        self.waiting.pop_front();
    }

    /// Returns what a checkpoint says of each rollout.
    pub fn states(&self) -> Vec<BufferState> {
        let of = |rollout: &Rollout| BufferState { groups: rollout.groups.len() as u64, ..rollout.of };
        self.waiting.iter().map(of).collect()
    }

    /// Writes a checkpoint's files. Returns their names and records.
    ///
    /// Errors: those of writing.
    pub(crate) fn write(&self, folder: &Path) -> Result<Vec<(String, FileRecord)>> {
        let one = |(index, rollout): (usize, &Rollout)| {
            let name = ahead_file(index);
            let Rollout { groups, samples, versions, .. } = rollout;
            let lines = lines(groups, 0..groups.len(), (samples, versions));
            let record = write_new_lines(&folder.join(&name), lines)?;
            Ok((name, record))
        };
        self.waiting.iter().enumerate().map(one).collect()
    }

    /// Reads a checkpoint's files, of which `states` says what they have.
    ///
    /// Errors: `checkpoint-damaged`; those of `from.item`.
    pub(crate) fn read(states: &[BufferState], mut from: RolloutReader<'_>) -> Result<Ahead> {
        let one = |(index, of): (usize, &BufferState)| {
            let mut samples = Samples::with_capacity(from.room.0, from.room.1);
            let path = from.folder.join(ahead_file(index));
            let count = (of.groups, from.group_size);
            let (groups, versions) = read_lines(&path, count, &mut samples, &mut from.item, from.text)?;
            Ok(Rollout { of: *of, groups, samples, versions })
        };
        let waiting = states.iter().enumerate().map(one).collect::<Result<_>>()?;
        Ok(Ahead { waiting, ..Ahead::default() })
    }
}
