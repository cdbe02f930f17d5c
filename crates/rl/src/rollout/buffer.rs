//! The samples that a rollout kept: groups with their scores, in the order of their prompts. A step trains on the next
//! ones. A checkpoint between two steps of one rollout stores the rest, because the weights that sampled them are gone.
//!
//! Tokens and log-probs are not here: they are the responses of a `Samples`, group by group.

use crate::rollout::ahead::Ahead;
use crate::rollout::carry::Carried;
use crate::rollout::group::{SampleGroup, lines, read_lines};
use plimsoll_base::Result;
use plimsoll_infer::text::Item;
use plimsoll_rollout::{Finish, Samples};
use plimsoll_run::checkpoint::BufferState;
use std::ops::Range;
use std::path::Path;

#[derive(Debug, Default)]
pub struct RolloutBuffer {
    groups: Vec<SampleGroup>,
    /// Number of groups that have been trained on.
    used: usize,
    last: Range<usize>,
    of: BufferState,
    stale: Vec<usize>,
    versions: Vec<Vec<(u64, u32)>>,
    /// The groups that have not ended.
    pub(crate) carried: Carried,
    /// The rollouts of later steps.
    pub(crate) ahead: Ahead,
}

impl RolloutBuffer {
    /// Clears the groups of the last rollout for that of `step`, whose weights have seen `policy_version` updates.
    pub fn begin(&mut self, step: u32, policy_version: u64) {
        let of = BufferState { step, policy_version, groups: 0 };
        let RolloutBuffer { carried, ahead, .. } = std::mem::take(self);
        *self = RolloutBuffer { of, carried, ahead, ..RolloutBuffer::default() };
    }

    /// Moves the groups of a rollout out.
    pub(crate) fn take_groups(&mut self) -> Vec<SampleGroup> {
        std::mem::take(&mut self.groups)
    }

    pub fn push(&mut self, group: SampleGroup) {
        self.groups.push(group);
    }

    pub fn groups(&self) -> &[SampleGroup] {
        &self.groups
    }

    /// Returns the rollout that the groups are from.
    pub fn of(&self) -> BufferState {
        self.of
    }

    /// Marks the rollout as another policy's, so that steps compute the log-probs of their own.
    pub fn set_other_policy(&mut self) {
        self.of.policy_version = u64::MAX;
    }

    /// Sets how many of each sequence's first tokens older weights drew.
    pub(crate) fn set_stale(&mut self, stale: Vec<usize>) {
        self.stale = if stale.iter().all(|tokens| *tokens == 0) { Vec::new() } else { stale };
    }

    /// Returns how many of each sequence's first tokens older weights drew; empty where none did.
    pub(crate) fn stale(&self) -> &[usize] {
        &self.stale
    }

    /// Sets which weights drew the first sequences, as (updates, tokens) in order.
    pub(crate) fn set_versions(&mut self, versions: Vec<Vec<(u64, u32)>>) {
        self.versions = versions;
    }

    /// Returns which weights drew each of the first sequences; empty where one version drew all.
    pub(crate) fn versions(&self) -> &[Vec<(u64, u32)>] {
        &self.versions
    }

    /// Returns the groups that the next step of `prompts` prompts trains on; empty where none are left.
    pub fn next(&self, prompts: usize) -> Range<usize> {
        self.used..(self.used + prompts).min(self.groups.len())
    }

    /// Marks groups as trained on.
    pub fn done(&mut self, groups: Range<usize>) {
        self.used = groups.end;
        self.last = groups;
    }

    /// Returns the sequences of some groups, as indices into the samples.
    pub fn sequences(&self, groups: Range<usize>) -> Range<usize> {
        let count =
            |groups: Range<usize>| self.groups[groups].iter().map(SampleGroup::num_sequences).sum::<usize>();
        let first = count(0..groups.start);
        first..first + count(groups)
    }

    /// Returns the groups of the last step.
    pub fn last(&self) -> Range<usize> {
        self.last.clone()
    }

    /// Returns the groups still to train on; none before the first step, since that rollout is then sampled again.
    fn waiting(&self) -> Range<usize> {
        if self.used == 0 { 0..0 } else { self.used..self.groups.len() }
    }

    /// Returns the counters for a checkpoint; `None` where nothing waits.
    pub fn state(&self) -> Option<BufferState> {
        let groups = self.waiting().len() as u64;
        (groups > 0).then_some(BufferState { groups, ..self.of })
    }

    /// Returns the lines of a checkpoint's file, one per waiting group.
    pub fn lines<'h>(&'h self, samples: &'h Samples) -> impl Iterator<Item = String> + 'h {
        lines(&self.groups, self.waiting(), (samples, &[]))
    }

    /// Reads them back into `samples`, in groups of `size`. `item` returns the prompt at a position of the data, `text`
    /// the text of a response.
    ///
    /// Errors: `checkpoint-damaged`; those of `item`.
    pub fn read(
        path: &Path,
        state: BufferState,
        size: usize,
        samples: &mut Samples,
        item: &mut dyn FnMut(u64) -> Result<Item>,
        text: &dyn Fn(&[u32], Finish) -> String,
    ) -> Result<RolloutBuffer> {
        let (groups, _) = read_lines(path, (state.groups, size), samples, item, text)?;
        Ok(RolloutBuffer { groups, of: state, ..RolloutBuffer::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_reward::{RewardStep, Scored};

    fn group(position: u64, total: Option<f32>) -> SampleGroup {
        let steps = vec![RewardStep { end: 3, reward: -0.1 }, RewardStep { end: 7, reward: 1.0 / 3.0 }];
        let scored =
            vec![Scored { total, parts: vec![Some(0.1), None], failed: false, steps }, Scored::default()];
        SampleGroup {
            position,
            item: Item::default(),
            scored,
            texts: vec![String::new(); 2],
            branches: None,
            greedy: total,
        }
    }

    #[test]
    fn what_waits_comes_back_with_its_bits() {
        let (mut buffer, mut samples) = (RolloutBuffer::default(), Samples::with_capacity(6, 3));
        samples.clear();
        buffer.begin(7, 41);
        for (position, total) in [(30, Some(1.0)), (31, None), (34, Some(-0.3))] {
            buffer.push(group(position, total));
            samples.push_response(&[position as u32, 5], &[-0.1, -2.5e-7], Finish::Eos);
            samples.push_response(&[9], &[-1.0 / 3.0], Finish::Length);
        }
        assert_eq!(buffer.state(), None, "no step is done: the rollout is made again");
        buffer.done(buffer.next(1));
        assert_eq!((buffer.last(), buffer.next(4)), (0..1, 1..3));
        let state = buffer.state().expect("two groups wait");
        assert_eq!(state, BufferState { step: 7, policy_version: 41, groups: 2 });

        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("samples.jsonl");
        plimsoll_files::write_new_lines(&path, buffer.lines(&samples)).expect("written");
        let read = |state, size, room: &mut Samples| {
            let mut item = |position: u64| Ok(Item { text: position.to_string(), ..Item::default() });
            RolloutBuffer::read(&path, state, size, room, &mut item, &|ids, _| ids.len().to_string())
        };
        let mut room = Samples::with_capacity(4, 3);
        let back = read(state, 2, &mut room).expect("whole");
        assert_eq!(back.state(), None);
        assert_eq!((back.of(), back.next(9)), (BufferState { groups: 2, ..state }, 0..2));
        assert_eq!(back.groups()[1].item.text, "34");
        assert_eq!(back.groups()[1].texts, ["2", "1"]);
        for (g, before) in back.groups().iter().zip(&buffer.groups()[1..]) {
            assert_eq!((g.position, &g.scored), (before.position, &before.scored));
        }
        for s in 0..4 {
            assert_eq!(room.ids(s), samples.ids(s + 2));
            assert_eq!(room.logprobs(s), samples.logprobs(s + 2));
            assert_eq!(room.finish(s), samples.finish(s + 2));
        }
        for (state, size, tokens, what) in [
            (BufferState { groups: 3, ..state }, 2, 3, "state.json says 3"),
            (state, 3, 3, "a group of 2 samples"),
            (state, 2, 1, "a response of 2 tokens"),
        ] {
            let error = read(state, size, &mut Samples::with_capacity(4, tokens)).expect_err(what);
            assert!(error.slug == "checkpoint-damaged" && error.message.contains(what), "{error}");
        }
    }
}

#[cfg(test)]
#[path = "buffer_tests.rs"]
mod more_tests;
