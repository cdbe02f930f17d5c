//! Samples that were drawn together, and those of them that a step trains on.

use super::group::{Runs, SampleGroup, lines, read_lines};
use super::restored::Restored;
use plimsoll_base::Result;
use plimsoll_files::{FileRecord, write_new_lines};
use plimsoll_plan::RunShape;
use plimsoll_rollout::{Finish, Samples};
use plimsoll_run::checkpoint::BufferState;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Groups with their scores, in the order of their prompts, and their tokens. Never changed once it is drawn.
#[derive(Debug)]
pub struct Rollout {
    /// The step that drew it, and the updates of the weights that did.
    pub of: BufferState,
    pub groups: Vec<SampleGroup>,
    /// The sequences of all groups, one after the other.
    pub samples: Arc<Samples>,
    /// For each sequence the versions that drew its tokens, and how many each drew; empty if one version drew all.
    pub versions: Vec<Runs>,
}

/// The samples that a step trains on: some groups of a rollout.
#[derive(Clone, Debug)]
pub struct StepSamples {
    pub rollout: Arc<Rollout>,
    /// Its groups, as indices.
    pub groups: Range<usize>,
    /// How many of each sequence's first tokens older weights drew; empty where none did.
    pub stale: Vec<usize>,
    /// True if the log-probs that the rollout recorded are those that ratios are taken to; otherwise the step computes
    /// those of the weights that it begins with.
    pub is_recorded: bool,
}

/// How old tokens are when they are trained: in updates between the weights that drew them and those that they train.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Ages {
    pub tokens: u64,
    /// Tokens that older weights drew.
    pub stale: u64,
    /// Sum of all ages.
    pub sum: u64,
}

/// Returns room for the samples of a rollout that outlive the engine's next request, if those of a run do.
pub(super) fn held_room(shape: &RunShape) -> Option<Arc<Samples>> {
    let training = shape.training.as_ref().filter(|training| training.holds_samples)?;
    Some(Arc::new(Samples::with_capacity(training.held_sequences(), training.response_tokens)))
}

impl Rollout {
    /// Returns the samples of a step that trains on all groups with weights that have seen `version` updates, and the
    /// ages of their tokens. Ratios are to what drew each token.
    pub(super) fn whole(rollout: Arc<Rollout>, version: u64) -> (StepSamples, Ages) {
        let stale: Vec<usize> = (0..rollout.samples.len()).map(|s| rollout.stale(s, version)).collect();
        let ages = Ages {
            tokens: rollout.samples.sampled_tokens() as u64,
            stale: stale.iter().sum::<usize>() as u64,
            sum: (0..rollout.samples.len()).map(|s| rollout.age(s, version)).sum(),
        };
        let stale = if ages.stale == 0 { Vec::new() } else { stale };
        (StepSamples { groups: 0..rollout.groups.len(), rollout, stale, is_recorded: true }, ages)
    }

    /// Returns how many of a sequence's first tokens weights before `version` drew.
    pub(super) fn stale(&self, sequence: usize, version: u64) -> usize {
        let older = |runs: &Runs| {
            runs.iter().filter(|(drew, _)| *drew < version).map(|(_, count)| *count as usize).sum()
        };
        match self.versions.get(sequence) {
            Some(runs) => older(runs),
            None if self.of.policy_version < version => self.samples.ids(sequence).len(),
            None => 0,
        }
    }

    /// Returns the sum of the ages of a sequence's tokens, in updates.
    fn age(&self, sequence: usize, version: u64) -> u64 {
        match self.versions.get(sequence) {
            Some(runs) => runs.iter().map(|(drew, count)| (version - drew) * u64::from(*count)).sum(),
            None => (version - self.of.policy_version) * self.samples.ids(sequence).len() as u64,
        }
    }

    /// Returns the sequences of some groups, as indices into the samples.
    pub(crate) fn sequences(&self, groups: Range<usize>) -> Range<usize> {
        let count =
            |groups: Range<usize>| self.groups[groups].iter().map(SampleGroup::num_sequences).sum::<usize>();
        let first = count(0..groups.start);
        first..first + count(groups)
    }

    /// Writes some groups as a checkpoint's file.
    ///
    /// Errors: those of writing.
    pub(super) fn write(&self, groups: Range<usize>, path: &Path) -> Result<FileRecord> {
        write_new_lines(path, lines(&self.groups, groups, &self.samples, &self.versions))
    }

    /// Reads a checkpoint's file, of which `of` says what it has, into `room`.
    ///
    /// Errors: `checkpoint-damaged`; those of `from.item`.
    pub(super) fn read(
        name: &str,
        of: BufferState,
        room: &mut Arc<Samples>,
        from: &mut Restored<'_>,
    ) -> Result<Rollout> {
        let (path, size) = (from.folder.join(name), from.run.rollout.group_size as usize);
        let samples = Samples::to_write(room);
        let (groups, versions) = read_lines(&path, of.groups, size, samples, from.item, from.text)?;
        Ok(Rollout { of, groups, samples: Arc::clone(room), versions })
    }
}

impl StepSamples {
    /// Returns the groups that the step trains on.
    pub fn groups(&self) -> &[SampleGroup] {
        &self.rollout.groups[self.groups.clone()]
    }

    /// Returns their sequences, as indices into the rollout's samples.
    pub fn sequences(&self) -> Range<usize> {
        self.rollout.sequences(self.groups.clone())
    }

    /// Returns the responses that the length limit cut.
    pub fn num_cut(&self) -> usize {
        self.sequences().filter(|s| self.rollout.samples.finish(*s) == Finish::Length).count()
    }
}

impl Ages {
    /// Returns the mean age.
    pub(crate) fn mean(&self) -> f64 {
        self.sum as f64 / self.tokens.max(1) as f64
    }

    /// Returns the share of tokens that older weights drew.
    pub(crate) fn stale_share(&self) -> f64 {
        self.stale as f64 / self.tokens.max(1) as f64
    }
}
