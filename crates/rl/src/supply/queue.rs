//! The rollouts that wait for their steps, as they are between two steps and in a checkpoint. There are at most L, and
//! one more while a step is made.
//!
//! Legend: L steps ahead.

use super::restored::Restored;
use super::rollout::{Ages, Rollout, StepSamples};
use plimsoll_base::Result;
use plimsoll_files::FileRecord;
use plimsoll_rollout::Samples;
use plimsoll_run::checkpoint::{BufferState, ahead_file};
use plimsoll_run::metrics::Metrics;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

/// The rollouts that wait, in the order of their steps.
#[derive(Debug, Default)]
pub(super) struct RolloutQueue {
    waiting: VecDeque<Arc<Rollout>>,
    /// Those that the step that is being made has drawn.
    drawn: Vec<Arc<Rollout>>,
}

impl RolloutQueue {
    /// Returns how many steps have their samples, from the next one on.
    pub(super) fn num_waiting(&self) -> u32 {
        self.waiting.len() as u32
    }

    /// Returns how many steps have their samples, with those that the step being made has drawn.
    pub(super) fn num_there(&self) -> u32 {
        self.num_waiting() + self.drawn.len() as u32
    }

    /// Forgets what a failed step drew.
    pub(super) fn begin(&mut self) {
        self.drawn.clear();
    }

    pub(super) fn push(&mut self, rollout: Rollout) {
        self.drawn.push(Arc::new(rollout));
    }

    /// Returns the samples of the step that is being made, which weights that have seen `version` updates train, and
    /// the ages of their tokens as metrics.
    pub(super) fn first(&self, version: u64) -> (StepSamples, Metrics) {
        let first = self.waiting.front().or(self.drawn.first()).expect("a step has drawn what it trains on");
        let (samples, ages) = Rollout::whole(Arc::clone(first), version);
        (samples, metrics_of(&ages))
    }

    /// Removes the samples of the step that was made, and keeps what it drew.
    pub(super) fn keep(&mut self) {
        self.waiting.extend(self.drawn.drain(..));
        self.waiting.pop_front();
    }

    /// Returns what a checkpoint says of each rollout.
    pub(super) fn states(&self) -> Vec<BufferState> {
        let of = |rollout: &Arc<Rollout>| BufferState { groups: rollout.groups.len() as u64, ..rollout.of };
        self.waiting.iter().map(of).collect()
    }

    /// Writes a checkpoint's files. Returns their names and records.
    ///
    /// Errors: those of writing.
    pub(super) fn write(&self, folder: &Path) -> Result<Vec<(String, FileRecord)>> {
        let one = |(index, rollout): (usize, &Arc<Rollout>)| {
            let name = ahead_file(index);
            let record = rollout.write(0..rollout.groups.len(), &folder.join(&name))?;
            Ok((name, record))
        };
        self.waiting.iter().enumerate().map(one).collect()
    }

    /// Reads a checkpoint's files.
    ///
    /// Errors: `checkpoint-damaged`; those of `from.item`.
    pub(super) fn read(from: &mut Restored<'_>) -> Result<RolloutQueue> {
        let (sequences, tokens) = (from.run.sequences_per_step(), from.run.rollout.max_new_tokens);
        let states = from.state.ahead.iter().enumerate();
        let one = |(index, of): (usize, &BufferState)| {
            let mut room = Arc::new(Samples::with_capacity(sequences as usize, tokens as usize));
            Rollout::read(&ahead_file(index), *of, &mut room, from).map(Arc::new)
        };
        Ok(RolloutQueue { waiting: states.map(one).collect::<Result<_>>()?, drawn: Vec::new() })
    }
}

/// Returns the metrics of the ages of tokens.
fn metrics_of(ages: &Ages) -> Metrics {
    let rows = [("rollout/staleness", ages.mean()), ("rollout/stale_share", ages.stale_share())];
    rows.map(|(name, value)| (name.to_string(), value)).into()
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
