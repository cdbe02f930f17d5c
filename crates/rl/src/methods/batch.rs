//! The groups of a rollout that a step trains on, in the form that the passes take.

use crate::supply::group::SampleGroup;
use crate::supply::rollout::StepSamples;
use plimsoll_config::RunSpec;
use plimsoll_infer::sampler::sampling;
use plimsoll_infer::text::Item;
use plimsoll_rollout::{Finish, Samples};
use plimsoll_train::Sequence;
use std::ops::Range;

pub struct Batch<'b> {
    /// All their samples, in the form that the passes take.
    pub sequences: Vec<Sequence<'b>>,
    pub inv_temperature: f32,
    /// The step, from 1.
    pub step: u32,
    /// The sample of each sequence: an index into the scores of all groups.
    pub(crate) owners: Vec<usize>,
    pub(crate) groups: &'b [SampleGroup],
    pub(crate) samples: &'b Samples,
    /// Indices into `samples`.
    pub(crate) which: Range<usize>,
    /// Steps since the samples were made.
    pub(crate) lag: u32,
    /// How many of each sequence's first tokens older weights drew; empty where none did.
    pub(crate) stale: &'b [usize],
    /// True if ratios are to the log-probs that the rollout recorded.
    pub(crate) is_recorded: bool,
}

impl<'b> Batch<'b> {
    /// Takes the samples of `step`.
    pub(crate) fn new(run: &RunSpec, of: &'b StepSamples, step: u32) -> Batch<'b> {
        let (which, groups, samples) = (of.sequences(), of.groups(), &*of.rollout.samples);
        let (mut sequences, mut owners) = (Vec::with_capacity(which.len()), Vec::with_capacity(which.len()));
        let (mut s, mut samples_before, mut number) = (which.start, 0, 0);
        for group in groups {
            for index in 0..group.num_sequences() {
                let (sample, prompt) = group.sequence(index);
                // Neighbours with one prompt share its rows.
                number += usize::from(index == 0 || prompt != group.sequence(index - 1).1);
                sequences.push(Sequence { group: number, prompt, response: samples.ids(s) });
                owners.push(samples_before + sample);
                s += 1;
            }
            samples_before += group.scored.len();
        }
        Batch {
            sequences,
            owners,
            inv_temperature: sampling(&run.rollout, 0).inv_temperature(),
            step,
            groups,
            samples,
            which,
            lag: step - of.rollout.of.step,
            stale: &of.stale,
            is_recorded: of.is_recorded,
        }
    }

    /// True if older weights drew some of the tokens.
    pub(crate) fn has_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Returns the sequences with the prompts that a teacher reads.
    pub(crate) fn taught(&self) -> Vec<Sequence<'b>> {
        let items = self.groups.iter().flat_map(|group| vec![&group.item; group.num_sequences()]);
        let one = |(sequence, item): (&Sequence<'b>, &'b Item)| {
            if item.teacher.is_empty() { *sequence } else { Sequence { prompt: &item.teacher, ..*sequence } }
        };
        self.sequences.iter().zip(items).map(one).collect()
    }

    /// Returns the indices, from 0, of samples that the length limit cut.
    pub(crate) fn cut(&self) -> impl Iterator<Item = usize> {
        let finishes = self.which.clone().map(|s| self.samples.finish(s)).enumerate();
        finishes.filter(|&(_, finish)| finish == Finish::Length).map(|(i, _)| i)
    }
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
