//! The groups of a rollout that a step trains on, in the form that the passes take.

use crate::roles::sampling;
use crate::rollout::held::{Held, HeldGroup};
use plimsoll_config::RunSpec;
use plimsoll_rollout::{Finish, Samples};
use plimsoll_train::Sequence;
use std::ops::Range;

pub struct Batch<'b> {
    /// All their samples, in the form that the passes take.
    pub sequences: Vec<Sequence<'b>>,
    pub inv_temperature: f32,
    /// The step, from 1.
    pub step: u32,
    pub(crate) groups: &'b [HeldGroup],
    pub(crate) samples: &'b Samples,
    /// Indices into `samples`.
    pub(crate) which: Range<usize>,
    /// Number of optimizer updates of the weights that sampled them.
    pub(crate) policy_version: u64,
    /// Steps since the samples were made.
    pub(crate) lag: u32,
}

impl<'b> Batch<'b> {
    /// Takes `groups` of a rollout for `step`.
    pub(crate) fn new(
        run: &RunSpec,
        held: &'b Held,
        samples: &'b Samples,
        groups: Range<usize>,
        step: u32,
    ) -> Batch<'b> {
        let size = run.rollout.group_size as usize;
        let which = groups.start * size..groups.end * size;
        let sequence = |s: usize| Sequence {
            group: s / size,
            prompt: held.groups()[s / size].item.ids.as_slice(),
            response: samples.ids(s),
        };
        Batch {
            sequences: which.clone().map(sequence).collect(),
            inv_temperature: sampling(&run.rollout, 0).inv_temperature(),
            step,
            groups: &held.groups()[groups],
            samples,
            which,
            policy_version: held.of().policy_version,
            lag: step - held.of().step,
        }
    }

    /// Returns the indices, from 0, of samples that the length limit cut.
    pub(crate) fn cut(&self) -> impl Iterator<Item = usize> {
        let finishes = self.which.clone().map(|s| self.samples.finish(s)).enumerate();
        finishes.filter(|&(_, finish)| finish == Finish::Length).map(|(i, _)| i)
    }
}
