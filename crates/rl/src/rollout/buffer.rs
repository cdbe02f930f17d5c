//! The samples that a rollout kept: groups with their scores, in the order of their prompts. A step trains on the next
//! ones. A checkpoint between two steps of one rollout stores the rest, because the weights that sampled them are gone.
//!
//! Tokens and log-probs are not here: they are the responses of a `Samples`, group by group.

use crate::rollout::ahead::Ahead;
use crate::rollout::carry::Carried;
use plimsoll_base::{Error, Result};
use plimsoll_infer::text::Item;
use plimsoll_reward::{RewardStep, Scored};
use plimsoll_rollout::{Finish, Samples};
use plimsoll_run::checkpoint::BufferState;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader};
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
    /// The groups that have not ended.
    pub(crate) carried: Carried,
    /// The rollouts of later steps.
    pub(crate) ahead: Ahead,
}

/// One prompt with its samples.
#[derive(Clone, Debug)]
pub struct SampleGroup {
    /// Position of the prompt in the data.
    pub position: u64,
    pub item: Item,
    /// One entry per sample.
    pub scored: Vec<Scored>,
    /// The responses as text, one entry per sample; empty for episodes.
    pub texts: Vec<String>,
    /// The samples' sequences, if a sample may have any number; otherwise each has one, after the item's prompt.
    pub branches: Option<Vec<Branch>>,
    /// The reward of the greedy answer, where samples are compared with it.
    pub greedy: Option<f32>,
}

/// A sequence of a sample, with a prompt of its own.
#[derive(Clone, Debug)]
pub struct Branch {
    /// Index of the sample in the group.
    pub sample: usize,
    pub prompt: Vec<u32>,
}

impl SampleGroup {
    pub fn num_sequences(&self) -> usize {
        self.branches.as_ref().map_or(self.scored.len(), Vec::len)
    }

    /// Returns the sample and the prompt of sequence `index`.
    pub fn sequence(&self, index: usize) -> (usize, &[u32]) {
        match &self.branches {
            Some(branches) => (branches[index].sample, &branches[index].prompt),
            None => (index, &self.item.ids),
        }
    }
}

/// A group as a line of the checkpoint's file. Floating-point numbers are stored as their bits.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    position: u64,
    samples: Vec<LineSample>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    greedy: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LineSample {
    ids: Vec<u32>,
    logprobs: Vec<u32>,
    finish: Finish,
    total: Option<u32>,
    parts: Vec<Option<u32>>,
    /// End and reward of each step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    steps: Vec<(u32, u64)>,
}

impl RolloutBuffer {
    /// Clears the groups of the last rollout for that of `step`, whose weights have seen `policy_version` updates.
    pub fn begin(&mut self, step: u32, policy_version: u64) {
        let of = BufferState { step, policy_version, groups: 0 };
        let RolloutBuffer { carried, ahead, .. } = std::mem::take(self);
        *self = RolloutBuffer { of, carried, ahead, ..RolloutBuffer::default() };
    }

    /// Moves the groups of a rollout out.
    pub(crate) fn take_groups(&mut self) -> RolloutBuffer {
        RolloutBuffer { groups: std::mem::take(&mut self.groups), of: self.of, ..RolloutBuffer::default() }
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
        self.lines_of(self.waiting(), samples)
    }

    /// Returns the lines of all groups, whether or not they were trained on.
    pub(crate) fn all_lines<'h>(&'h self, samples: &'h Samples) -> impl Iterator<Item = String> + 'h {
        self.lines_of(0..self.groups.len(), samples)
    }

    fn lines_of<'h>(
        &'h self,
        groups: Range<usize>,
        samples: &'h Samples,
    ) -> impl Iterator<Item = String> + 'h {
        let bits = |score: Option<f32>| score.map(f32::to_bits);
        groups.map(move |g| {
            let group = &self.groups[g];
            let size = group.scored.len();
            let sample = |(s, scored): (usize, &Scored)| LineSample {
                ids: samples.ids(s).to_vec(),
                logprobs: samples.logprobs(s).iter().map(|logprob| logprob.to_bits()).collect(),
                finish: samples.finish(s),
                total: bits(scored.total),
                parts: scored.parts.iter().map(|&part| bits(part)).collect(),
                steps: scored.steps.iter().map(|step| (step.end, step.reward.to_bits())).collect(),
            };
            let samples = (g * size..).zip(&group.scored).map(sample).collect();
            let greedy = bits(group.greedy);
            serde_json::to_string(&Line { position: group.position, samples, greedy })
                .expect("a line is plain data")
        })
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
        let bad = |what: String| {
            Error::new("checkpoint-damaged", format!("{}: {what}", path.display()))
                .hint("--resume=previous-good resumes from the previous checkpoint")
        };
        let number = |bits: Option<u32>| bits.map(f32::from_bits);
        let mut buffer = RolloutBuffer { of: state, ..RolloutBuffer::default() };
        samples.clear();
        let file = File::open(path).map_err(|err| bad(err.to_string()))?;
        for line in BufReader::new(file).lines() {
            let line = line.map_err(|err| bad(err.to_string()))?;
            let line: Line = serde_json::from_str(&line).map_err(|err| bad(err.to_string()))?;
            if line.samples.len() != size {
                return Err(bad(format!("a group of {} samples, the run has {size}", line.samples.len())));
            }
            let (mut scored, mut texts) = (Vec::with_capacity(size), Vec::with_capacity(size));
            for sample in line.samples {
                let logprobs: Vec<f32> = sample.logprobs.into_iter().map(f32::from_bits).collect();
                if sample.ids.len() != logprobs.len() || !samples.has_room(sample.ids.len()) {
                    let found = (sample.ids.len(), logprobs.len());
                    return Err(bad(format!("a response of {} tokens and {} log-probs", found.0, found.1)));
                }
                samples.push_response(&sample.ids, &logprobs, sample.finish);
                texts.push(text(&sample.ids, sample.finish));
                let parts = sample.parts.into_iter().map(number).collect();
                let step = |(end, bits)| RewardStep { end, reward: f64::from_bits(bits) };
                let steps = sample.steps.into_iter().map(step).collect();
                scored.push(Scored { total: number(sample.total), parts, failed: false, steps });
            }
            let (item, greedy) = (item(line.position)?, number(line.greedy));
            buffer.push(SampleGroup { position: line.position, item, scored, texts, branches: None, greedy });
        }
        if buffer.groups.len() as u64 != state.groups {
            return Err(bad(format!("{} groups, state.json says {}", buffer.groups.len(), state.groups)));
        }
        Ok(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
