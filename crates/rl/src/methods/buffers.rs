//! Per-token host arrays that the losses of a step read and write, allocated once.

use crate::methods::divergence::DivergenceArrays;
use crate::methods::spans::SpanArrays;
use plimsoll_algo::correction::{Correction, CorrectionSums, correction_weights};
use plimsoll_algo::covariance::{Covariance, CovarianceSums, choose};
use plimsoll_algo::optimal_token::subtract_optimal;
use plimsoll_algo::packed::Packed;
use plimsoll_algo::value_loss::ValueBatch;
use plimsoll_plan::StepArrays;
use plimsoll_rollout::Turn;
use std::ops::Range;

/// Arrays over the response tokens of a step, sequence after sequence.
#[derive(Debug, Default)]
pub struct StepBuffers {
    /// Sequence i is `offsets[i]..offsets[i + 1]`.
    pub offsets: Vec<usize>,
    /// How many of each sequence's first tokens older weights drew, with the log-probabilities of those weights; empty
    /// where none did.
    pub(crate) stale: Vec<usize>,
    /// 1 on trained tokens.
    pub mask: Vec<f32>,
    /// Log-probabilities before the step's first update: the rollout's, or scored if another policy version sampled.
    pub old_logprobs: Vec<f32>,
    /// Log-probabilities under the reference model; empty without one.
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
    /// The critic's arrays, or those of a trained reward model, which have one entry per sequence; empty without one.
    pub critic: CriticArrays,
    /// The correction's arrays; empty without one.
    pub correction: CorrectionArrays,
    /// What the teacher lists or keeps of each token, and the student's divergences; empty if none are learned.
    pub divergence: DivergenceArrays,
    /// The responses in the tokens of a teacher that may have others; empty without one.
    pub aligned: SpanArrays,
    /// Log-probabilities of the teacher, of its own tokens where they are aligned; empty without one.
    pub teacher_logprobs: Vec<f32>,
    has_teacher: bool,
    /// Log-probabilities at half the temperature; empty without a baseline of each token.
    pub sharp_logprobs: Vec<f32>,
    has_sharp: bool,
    /// The arrays of tokens that are chosen by their covariance; empty without a choice.
    pub covariance: CovarianceArrays,
    /// Offsets of the current micro-batch, from 0.
    micro_offsets: Vec<usize>,
}

/// Per-token arrays of a step that has a critic.
#[derive(Debug, Default)]
pub struct CriticArrays {
    is_there: bool,
    /// Values of the state before each token, when the responses were sampled.
    pub old_values: Vec<f32>,
    /// Targets of the values.
    pub returns: Vec<f32>,
    /// Values by the trained critic.
    pub values: Vec<f32>,
    /// Derivative of the loss with respect to `values`.
    pub d_values: Vec<f32>,
}

/// Per-token arrays of a step whose loss is corrected.
#[derive(Debug, Default)]
pub struct CorrectionArrays {
    is_there: bool,
    /// Log-probabilities as the rollout recorded them.
    pub rollout_logprobs: Vec<f32>,
    pub weights: Vec<f32>,
}

/// Per-token arrays of a step in which some tokens learn less.
#[derive(Debug, Default)]
pub struct CovarianceArrays {
    is_there: bool,
    /// Factors of |l - l_old| in the loss; 0 for tokens that are not held.
    pub penalties: Vec<f32>,
    /// Trained tokens with their covariances.
    of_tokens: Vec<(usize, f64)>,
}

impl StepBuffers {
    /// Allocates room for `sequences` responses of up to `response_tokens` tokens.
    pub fn with_capacity(sequences: usize, response_tokens: usize, has: StepArrays) -> StepBuffers {
        let tokens = || Vec::with_capacity(sequences * response_tokens);
        let critic_tokens = || if has.critic { tokens() } else { Vec::new() };
        let correction_tokens = || if has.correction { tokens() } else { Vec::new() };
        StepBuffers {
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
            critic: CriticArrays {
                is_there: has.critic,
                old_values: critic_tokens(),
                returns: critic_tokens(),
                values: critic_tokens(),
                d_values: critic_tokens(),
            },
            correction: CorrectionArrays {
                is_there: has.correction,
                rollout_logprobs: correction_tokens(),
                weights: correction_tokens(),
            },
            divergence: DivergenceArrays::with_capacity(sequences * response_tokens, has.lists, has.kept),
            aligned: SpanArrays::with_capacity(sequences, response_tokens, has.aligned),
            teacher_logprobs: if has.teacher { tokens() } else { Vec::new() },
            has_teacher: has.teacher,
            sharp_logprobs: if has.sharp { tokens() } else { Vec::new() },
            has_sharp: has.sharp,
            covariance: CovarianceArrays {
                is_there: has.covariance,
                penalties: if has.covariance { tokens() } else { Vec::new() },
                of_tokens: Vec::with_capacity(if has.covariance { sequences * response_tokens } else { 0 }),
            },
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
        let CriticArrays { is_there, old_values, returns, values, d_values } = &mut self.critic;
        let critics = [old_values, returns, values, d_values].into_iter().filter(|_| *is_there);
        let CorrectionArrays { is_there, rollout_logprobs, weights } = &mut self.correction;
        let corrections = [rollout_logprobs, weights].into_iter().filter(|_| *is_there);
        let teachers = [&mut self.teacher_logprobs].into_iter().filter(|_| self.has_teacher);
        let CovarianceArrays { is_there: is_chosen, penalties, .. } = &mut self.covariance;
        let penalties = [penalties].into_iter().filter(|_| *is_chosen);
        let sharp = [&mut self.sharp_logprobs].into_iter().filter(|_| self.has_sharp);
        for array in [
            &mut self.old_logprobs,
            &mut self.ref_logprobs,
            &mut self.advantages,
            &mut self.token_rewards,
            &mut self.logprobs,
            &mut self.entropy,
            &mut self.d_logprobs,
            &mut self.d_entropy,
        ]
        .into_iter()
        .chain(critics)
        .chain(corrections)
        .chain(teachers)
        .chain(penalties)
        .chain(sharp)
        {
            array.clear();
            array.resize(total, 0.0);
        }
        self.divergence.begin(total);
        self.mask.clear();
        self.mask.resize(total, 1.0);
    }

    /// Copies the log-probabilities that the rollout recorded for a sequence.
    pub(crate) fn set_rollout_logprobs(&mut self, sequence: usize, logprobs: &[f32]) {
        let tokens = self.offsets[sequence]..self.offsets[sequence + 1];
        if self.correction.is_there {
            self.correction.rollout_logprobs[tokens.clone()].copy_from_slice(logprobs);
        }
        self.old_logprobs[tokens].copy_from_slice(logprobs);
    }

    /// Computes the factor of each token's loss, from the log-probabilities before the first update and the rollout's.
    pub fn correct(&mut self, how: Correction) -> CorrectionSums {
        let packed = Packed { mask: &self.mask, seq_offsets: &self.offsets };
        let CorrectionArrays { rollout_logprobs, weights, .. } = &mut self.correction;
        correction_weights(how, packed, &self.old_logprobs, rollout_logprobs, weights)
    }

    /// Chooses tokens that learn less, by their covariance. `draw`: the run's seed and the step.
    pub fn choose(&mut self, how: Covariance, draw: (u64, u64)) -> CovarianceSums {
        let packed = Packed { mask: &self.mask, seq_offsets: &self.offsets };
        let CovarianceArrays { penalties, of_tokens, .. } = &mut self.covariance;
        choose(how, packed, &self.old_logprobs, &mut self.advantages, penalties, draw, of_tokens)
    }

    /// Subtracts the baseline of each token from the advantages, which are returns. `prompts`: of each sequence.
    pub(crate) fn subtract_optimal(&mut self, prompts: &[usize]) {
        let packed = Packed { mask: &self.mask, seq_offsets: &self.offsets };
        subtract_optimal(packed, prompts, &self.old_logprobs, &mut self.sharp_logprobs, &mut self.advantages);
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
        let listed = self.divergence.of(tokens.clone());
        MicroArrays {
            packed: Packed { mask: &self.mask[tokens.clone()], seq_offsets: &self.micro_offsets },
            logprobs: &self.logprobs[tokens.clone()],
            old_logprobs: &self.old_logprobs[tokens.clone()],
            ref_logprobs: &self.ref_logprobs[tokens.clone()],
            advantages: &self.advantages[tokens.clone()],
            entropy: &self.entropy[tokens.clone()],
            weights: self.correction.is_there.then(|| &self.correction.weights[tokens.clone()]),
            penalties: self.covariance.is_there.then(|| &self.covariance.penalties[tokens.clone()]),
            d_logprobs: &mut self.d_logprobs[tokens.clone()],
            d_entropy: &mut self.d_entropy[tokens],
            divergence: &self.divergence.values[listed.clone()],
            d_divergence: &mut self.divergence.d_values[listed],
        }
    }

    /// Returns the sequences of `set_micro` for the critic's loss, and the slice for its derivatives.
    pub(crate) fn critic_batch(&mut self, tokens: Range<usize>) -> (ValueBatch<'_>, &mut [f32]) {
        let critic = &mut self.critic;
        let batch = ValueBatch {
            packed: Packed { mask: &self.mask[tokens.clone()], seq_offsets: &self.micro_offsets },
            values: &critic.values[tokens.clone()],
            old_values: &critic.old_values[tokens.clone()],
            returns: &critic.returns[tokens.clone()],
        };
        (batch, &mut critic.d_values[tokens])
    }
}

/// One micro-batch's part of the arrays in `StepBuffers`.
#[derive(Debug)]
pub struct MicroArrays<'a> {
    pub packed: Packed<'a>,
    pub logprobs: &'a [f32],
    pub old_logprobs: &'a [f32],
    pub ref_logprobs: &'a [f32],
    pub advantages: &'a [f32],
    pub entropy: &'a [f32],
    /// Factors of the token losses, where they are corrected.
    pub weights: Option<&'a [f32]>,
    /// Factors of |l - l_old| in the loss, where tokens are held.
    pub penalties: Option<&'a [f32]>,
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
    use plimsoll_plan::{KeptRows, Lists};

    /// Three responses of 2, 4 and 1 tokens; the step's loss and its gradient.
    fn loss(masks: impl Fn(&mut StepBuffers)) -> (f64, Vec<f32>) {
        let mut buffers = StepBuffers::with_capacity(3, 4, StepArrays::default());
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
            weights: micro.weights,
        };
        let sums = policy_loss(&PolicyLoss::Reinforce, &batch, &aggregation, micro.d_logprobs);
        (sums.loss, micro.d_logprobs.to_vec())
    }

    #[test]
    fn the_plan_counts_every_array() {
        // A step has lists or rows, not both.
        for has in (0..128).filter(|has| has & (16 + 64) != 16 + 64) {
            let lists = if has & 16 > 0 { Lists { tokens: 3, rows: 4 } } else { Lists::default() };
            let kept = if has & 64 > 0 { KeptRows { bytes: 6 } } else { KeptRows::default() };
            let [critic, correction, teacher, covariance, sharp] = [1, 2, 4, 8, 32].map(|bit| has & bit > 0);
            let has =
                StepArrays { critic, correction, teacher, covariance, sharp, aligned: false, lists, kept };
            let mut buffers = StepBuffers::with_capacity(3, 5, has);
            buffers.begin([5, 5, 5].into_iter());
            let StepBuffers { critic, correction, covariance, divergence, .. } = &buffers;
            let arrays = [&buffers.mask, &buffers.old_logprobs, &buffers.ref_logprobs, &buffers.advantages]
                .into_iter()
                .chain([&buffers.token_rewards, &buffers.logprobs, &buffers.entropy])
                .chain([&buffers.d_logprobs, &buffers.d_entropy])
                .chain([&critic.old_values, &critic.returns, &critic.values, &critic.d_values])
                .chain([&correction.rollout_logprobs, &correction.weights, &buffers.teacher_logprobs])
                .chain([&covariance.penalties, &buffers.sharp_logprobs])
                .chain([&divergence.teacher, &divergence.values, &divergence.d_values])
                .chain([&divergence.student, &divergence.slopes, &divergence.rest]);
            let tokens: usize =
                4 * divergence.ids.capacity() + arrays.map(|array| 4 * array.capacity()).sum::<usize>();
            let offsets = 8 * (buffers.offsets.capacity() + buffers.micro_offsets.capacity());
            let chosen = 16 * covariance.of_tokens.capacity();
            let of_arrays = tokens + offsets + chosen + divergence.rows.capacity();
            assert_eq!(of_arrays as u64, plimsoll_plan::step_bytes(3, 5, has));
        }
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
#[path = "buffers_tests.rs"]
mod more_tests;
