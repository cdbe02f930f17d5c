//! Per-token host arrays that every step has.

use super::divergence::DivergenceArrays;
use super::values::{ValueArrays, zero};
use plimsoll_algo::packed::Packed;
use plimsoll_algo::value_loss::ValueBatch;
use plimsoll_plan::{StepArrays, StepPart};
use plimsoll_rollout::Turn;
use std::ops::Range;

/// Arrays over the response tokens of a step, sequence after sequence.
#[derive(Debug)]
pub struct TokenArrays {
    /// Sequence i is `offsets[i]..offsets[i + 1]`.
    pub offsets: Vec<usize>,
    /// How many of each sequence's first tokens older weights drew, with the log-probabilities of those weights; empty
    /// where none did.
    pub(crate) stale: Vec<usize>,
    /// 1 on trained tokens.
    pub mask: Vec<f32>,
    /// Log-probabilities before the step's first update: the rollout's, or scored if another policy version sampled.
    pub old_logprobs: Vec<f32>,
    /// Log-probabilities under the reference model; 0 without one.
    pub ref_logprobs: Vec<f32>,
    pub advantages: Vec<f32>,
    pub token_rewards: Vec<f32>,
    /// Log-probabilities under the trained policy.
    pub logprobs: Vec<f32>,
    /// Entropies of the distributions that the tokens were sampled from.
    pub entropy: Vec<f32>,
    /// Derivative of the loss with respect to `logprobs`.
    pub d_logprobs: Vec<f32>,
    /// Derivative of the loss with respect to `entropy`.
    pub d_entropy: Vec<f32>,
    /// The arrays of a role whose head outputs values.
    pub values: Option<ValueArrays>,
    /// The tokens or rows that a teacher keeps of each token, and the student's divergences, if it learns any.
    pub divergence: Option<DivergenceArrays>,
    /// Offsets of the current micro-batch, from 0.
    micro_offsets: Vec<usize>,
}

impl TokenArrays {
    /// Allocates the planned room.
    pub fn bind(planned: &StepArrays) -> TokenArrays {
        let (sequences, tokens) = (planned.sequences, || Vec::with_capacity(planned.tokens()));
        TokenArrays {
            offsets: Vec::with_capacity(sequences + 1),
            stale: Vec::new(),
            mask: tokens(),
            old_logprobs: tokens(),
            ref_logprobs: tokens(),
            advantages: tokens(),
            token_rewards: tokens(),
            logprobs: tokens(),
            entropy: tokens(),
            d_logprobs: tokens(),
            d_entropy: tokens(),
            values: planned.has(StepPart::Values).then(|| ValueArrays::bind(planned)),
            divergence: DivergenceArrays::bind(planned),
            micro_offsets: Vec::with_capacity(sequences + 1),
        }
    }

    /// Begins a step with responses of these lengths; all arrays are zero, the mask is 1.
    pub fn begin(&mut self, lengths: impl Iterator<Item = usize>) {
        self.stale.clear();
        self.offsets.clear();
        self.offsets.push(0);
        let mut total = 0;
        for length in lengths {
            total += length;
            self.offsets.push(total);
        }
        for array in [
            &mut self.old_logprobs,
            &mut self.ref_logprobs,
            &mut self.advantages,
            &mut self.token_rewards,
            &mut self.logprobs,
            &mut self.entropy,
            &mut self.d_logprobs,
            &mut self.d_entropy,
        ] {
            zero(array, total);
        }
        self.values.iter_mut().for_each(|values| values.begin(total));
        self.divergence.iter_mut().for_each(|divergence| divergence.begin(total));
        self.mask.clear();
        self.mask.resize(total, 1.0);
    }

    /// Copies the log-probabilities that the rollout recorded for a sequence.
    pub(crate) fn set_rollout_logprobs(&mut self, sequence: usize, logprobs: &[f32]) {
        let tokens = self.tokens(&(sequence..sequence + 1));
        self.old_logprobs[tokens].copy_from_slice(logprobs);
    }

    /// Returns the number of tokens of the step.
    pub fn num_tokens(&self) -> usize {
        self.mask.len()
    }

    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        let TokenArrays { mask, old_logprobs, ref_logprobs, advantages, token_rewards, .. } = self;
        let TokenArrays { logprobs, entropy, d_logprobs, d_entropy, values, divergence, .. } = self;
        let own = [mask, old_logprobs, ref_logprobs, advantages, token_rewards, logprobs, entropy];
        let of_values = values.iter().flat_map(|of| [&of.old_values, &of.returns, &of.values, &of.d_values]);
        let of_divergence = divergence
            .iter()
            .flat_map(|of| [&of.teacher, &of.values, &of.d_values, &of.student, &of.slopes, &of.rest]);
        let numbers = own.into_iter().chain([d_logprobs, d_entropy]).chain(of_values).chain(of_divergence);
        let lists: usize = divergence.iter().map(|of| 4 * of.ids.capacity() + of.rows.capacity()).sum();
        let offsets = 8 * (self.offsets.capacity() + self.micro_offsets.capacity());
        numbers.map(|array| 4 * array.capacity()).sum::<usize>() + lists + offsets
    }

    /// Returns the mask with the sequences that it is cut into.
    pub fn packed(&self) -> Packed<'_> {
        Packed { mask: &self.mask, seq_offsets: &self.offsets }
    }

    /// Returns the arrays of a role whose head outputs values.
    ///
    /// # Panics
    /// If no role of the run does.
    pub fn values(&self) -> &ValueArrays {
        self.values.as_ref().expect("a role with values has arrays of them")
    }

    pub fn values_mut(&mut self) -> &mut ValueArrays {
        self.values.as_mut().expect("a role with values has arrays of them")
    }

    /// True if older weights drew a token of the step.
    pub(crate) fn is_stale(&self, token: usize) -> bool {
        let sequence = self.offsets.partition_point(|first| *first <= token) - 1;
        self.stale.get(sequence).is_some_and(|tokens| token - self.offsets[sequence] < *tokens)
    }

    /// Sets a sequence's mask to 0: it is not trained.
    pub(crate) fn leave_out(&mut self, sequence: usize) {
        let tokens = self.offsets[sequence]..self.offsets[sequence + 1];
        self.mask[tokens].fill(0.0);
    }

    /// Sets a sequence's mask to 0 outside its turns: the environment's words are not trained.
    pub(crate) fn train_only(&mut self, sequence: usize, turns: &[Turn]) {
        let mask = &mut self.mask[self.offsets[sequence]..self.offsets[sequence + 1]];
        let mut end = 0;
        for turn in turns {
            mask[end..turn.start as usize].fill(0.0);
            end = turn.end as usize;
        }
        mask[end..].fill(0.0);
    }

    /// Sets a sequence's mask to 0 between the `learnt` ranges: the other turns of a supervised row are not trained.
    pub(crate) fn learn_only(&mut self, sequence: usize, learnt: &[Range<u32>]) {
        let mask = &mut self.mask[self.offsets[sequence]..self.offsets[sequence + 1]];
        for gap in learnt.windows(2) {
            mask[gap[0].end as usize..gap[1].start as usize].fill(0.0);
        }
    }

    pub fn tokens(&self, sequences: &Range<usize>) -> Range<usize> {
        self.offsets[sequences.start]..self.offsets[sequences.end]
    }

    /// Returns the number of trained tokens of some sequences, and of sequences with any; `None` if there are none.
    pub fn trained(&self, sequences: &Range<usize>) -> Option<(f64, f64)> {
        let tokens = |s: usize| -> f64 {
            self.mask[self.offsets[s]..self.offsets[s + 1]].iter().map(|&m| f64::from(m)).sum()
        };
        let sums = sequences.clone().map(tokens).filter(|&tokens| tokens > 0.0);
        let (total, count) = sums.fold((0.0, 0.0), |(total, n), tokens| (total + tokens, n + 1.0));
        (total > 0.0).then_some((total, count))
    }

    /// Rebases the offsets of some sequences to 0, for `micro_batch`.
    pub(crate) fn set_micro(&mut self, sequences: &Range<usize>) {
        let first = self.offsets[sequences.start];
        self.micro_offsets.clear();
        self.micro_offsets.extend(self.offsets[sequences.start..=sequences.end].iter().map(|o| o - first));
    }

    /// Returns the sequences of `set_micro`, split so that derivatives can be written while the rest is read.
    pub fn micro_batch(&mut self, tokens: Range<usize>) -> MicroArrays<'_> {
        let (divergence, d_divergence): (&[f32], &mut [f32]) = match &mut self.divergence {
            Some(of) => (&of.values[tokens.clone()], &mut of.d_values[tokens.clone()]),
            None => Default::default(),
        };
        MicroArrays {
            packed: Packed { mask: &self.mask[tokens.clone()], seq_offsets: &self.micro_offsets },
            logprobs: &self.logprobs[tokens.clone()],
            old_logprobs: &self.old_logprobs[tokens.clone()],
            ref_logprobs: &self.ref_logprobs[tokens.clone()],
            advantages: &self.advantages[tokens.clone()],
            entropy: &self.entropy[tokens.clone()],
            d_logprobs: &mut self.d_logprobs[tokens.clone()],
            d_entropy: &mut self.d_entropy[tokens],
            divergence,
            d_divergence,
        }
    }

    /// Returns the sequences of `set_micro` for the critic's loss, and the slice for its derivatives.
    pub(crate) fn critic_batch(&mut self, tokens: Range<usize>) -> (ValueBatch<'_>, &mut [f32]) {
        let TokenArrays { values, mask, micro_offsets, .. } = self;
        let critic = values.as_mut().expect("a critic has arrays of values");
        let batch = ValueBatch {
            packed: Packed { mask: &mask[tokens.clone()], seq_offsets: micro_offsets },
            values: &critic.values[tokens.clone()],
            old_values: &critic.old_values[tokens.clone()],
            returns: &critic.returns[tokens.clone()],
        };
        (batch, &mut critic.d_values[tokens])
    }
}

/// One micro-batch's part of the arrays in `TokenArrays`.
#[derive(Debug)]
pub struct MicroArrays<'a> {
    pub packed: Packed<'a>,
    pub logprobs: &'a [f32],
    pub old_logprobs: &'a [f32],
    pub ref_logprobs: &'a [f32],
    pub advantages: &'a [f32],
    pub entropy: &'a [f32],
    pub d_logprobs: &'a mut [f32],
    pub d_entropy: &'a mut [f32],
    /// Divergences of the student from its teacher; empty if none are learned.
    pub divergence: &'a [f32],
    pub d_divergence: &'a mut [f32],
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_algo::aggregation::{Aggregation, AggregationKind};
    use plimsoll_algo::policy_loss::{PolicyBatch, PolicyLoss, policy_loss};

    /// Three responses of 2, 4 and 1 tokens; the step's loss and its gradient.
    fn loss(masks: impl Fn(&mut TokenArrays)) -> (f64, Vec<f32>) {
        let mut buffers =
            TokenArrays::bind(&StepArrays { sequences: 3, response_tokens: 4, parts: Vec::new() });
        buffers.begin([2, 4, 1].into_iter());
        for t in 0..7 {
            buffers.logprobs[t] = -0.1 * (t + 1) as f32;
            buffers.old_logprobs[t] = buffers.logprobs[t];
            buffers.advantages[t] = 1.0 + t as f32;
        }
        masks(&mut buffers);
        buffers.set_micro(&(0..3));
        let micro = buffers.micro_batch(0..7);
        let aggregation = Aggregation::of_batch(AggregationKind::TokenMean, micro.packed, 1.0);
        let batch = PolicyBatch {
            packed: micro.packed,
            logp: micro.logprobs,
            old_logp: micro.old_logprobs,
            advantages: micro.advantages,
            weights: None,
        };
        let sums = policy_loss(&PolicyLoss::Reinforce, &batch, &aggregation, micro.d_logprobs);
        (sums.loss, micro.d_logprobs.to_vec())
    }

    /// Prompts and padding have no entries in the arrays; environment tokens and responses that were cut have some.
    #[test]
    fn each_mask_has_a_case_that_is_another_without_it() {
        // Seven response tokens, whatever their prompts and whatever the longest response: the mean is over seven.
        let (whole, gradient) = loss(|_| ());
        let expect: f64 = (1..=7).map(|t| 0.1 * f64::from(t) * f64::from(t) / 7.0).sum();
        assert!((whole - expect).abs() < 1e-6, "{whole}");
        assert_eq!(gradient[6], -7.0 / 7.0);
        // Two tokens of an environment inside the second response.
        let (environment, gradient) = loss(|buffers| buffers.mask[3..5].fill(0.0));
        assert_eq!((gradient[3], gradient[4], gradient[5]), (0.0, 0.0, -6.0 / 5.0));
        // The second response was cut.
        let (truncated, gradient) = loss(|buffers| buffers.leave_out(1));
        assert_eq!((&gradient[2..6], gradient[6]), (&[0.0; 4][..], -7.0 / 3.0));
        assert!(environment != whole && truncated != whole && environment != truncated);
        // Values at masked tokens are never read.
        let (poisoned, _) = loss(|buffers| {
            buffers.mask[3..5].fill(0.0);
            buffers.logprobs[3..5].fill(f32::NAN);
            buffers.advantages[3..5].fill(f32::NAN);
        });
        assert_eq!(poisoned.to_bits(), environment.to_bits());
    }
}

#[cfg(test)]
#[path = "tokens_tests.rs"]
mod more_tests;
