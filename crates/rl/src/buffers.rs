//! Per-token arrays of one step, made once: what the losses read and write on the host.

use plimsoll_algo::packed::Packed;
use plimsoll_algo::value_loss::ValueBatch;
use std::ops::Range;

/// Arrays over the response tokens of a step, sequence after sequence.
#[derive(Debug, Default)]
pub struct StepBuffers {
    /// Sequence i is `offsets[i]..offsets[i + 1]`.
    pub offsets: Vec<usize>,
    /// 1 on trained tokens.
    pub mask: Vec<f32>,
    /// Log-probabilities when the responses were made.
    pub old_logprobs: Vec<f32>,
    /// Of the reference model; empty without one.
    pub ref_logprobs: Vec<f32>,
    /// Advantages.
    pub advantages: Vec<f32>,
    /// Token rewards, before they become advantages.
    pub token_rewards: Vec<f32>,
    /// Of the policy that is trained.
    pub logprobs: Vec<f32>,
    /// Entropies of the distributions that the tokens were drawn from.
    pub entropy: Vec<f32>,
    /// Derivative of the loss by `logprobs`.
    pub d_logprobs: Vec<f32>,
    /// Derivative of the loss by `entropy`.
    pub d_entropy: Vec<f32>,
    /// The critic's arrays; empty without one.
    pub critic: CriticArrays,
    /// Offsets of the micro-batch under way, from 0.
    micro_offsets: Vec<usize>,
}

/// Per-token arrays of a step that has a critic.
#[derive(Debug, Default)]
pub struct CriticArrays {
    is_there: bool,
    /// Values when the responses were made: of the state before each token.
    pub old_values: Vec<f32>,
    /// What the values are to become.
    pub returns: Vec<f32>,
    /// Of the critic that is trained.
    pub values: Vec<f32>,
    /// Derivative of the loss by `values`.
    pub d_values: Vec<f32>,
}

const TOKEN_ARRAYS: u64 = 9;
const CRITIC_ARRAYS: u64 = 4;

impl StepBuffers {
    /// Room for `sequences` responses of up to `response_tokens` tokens.
    pub fn with_capacity(sequences: usize, response_tokens: usize, has_critic: bool) -> StepBuffers {
        let tokens = || Vec::with_capacity(sequences * response_tokens);
        let critic_tokens = || if has_critic { tokens() } else { Vec::new() };
        StepBuffers {
            offsets: Vec::with_capacity(sequences + 1),
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
                is_there: has_critic,
                old_values: critic_tokens(),
                returns: critic_tokens(),
                values: critic_tokens(),
                d_values: critic_tokens(),
            },
            micro_offsets: Vec::with_capacity(sequences + 1),
        }
    }

    /// Heap bytes of that room.
    pub fn bytes(sequences: usize, response_tokens: usize, has_critic: bool) -> u64 {
        let tokens = sequences as u64 * response_tokens as u64;
        let arrays = TOKEN_ARRAYS + if has_critic { CRITIC_ARRAYS } else { 0 };
        arrays * 4 * tokens + 16 * (sequences as u64 + 1)
    }

    /// Begins a step with responses of these lengths; all arrays are zero, the mask is 1.
    pub fn begin(&mut self, lengths: impl Iterator<Item = usize>) {
        self.offsets.clear();
        self.offsets.push(0);
        let mut total = 0;
        for length in lengths {
            total += length;
            self.offsets.push(total);
        }
        let CriticArrays { is_there, old_values, returns, values, d_values } = &mut self.critic;
        let critics = [old_values, returns, values, d_values].into_iter().filter(|_| *is_there);
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
        {
            array.clear();
            array.resize(total, 0.0);
        }
        self.mask.clear();
        self.mask.resize(total, 1.0);
    }

    /// Sets a sequence's mask to 0: it is not trained.
    pub fn leave_out(&mut self, sequence: usize) {
        let tokens = self.offsets[sequence]..self.offsets[sequence + 1];
        self.mask[tokens].fill(0.0);
    }

    /// Tokens of some sequences.
    pub fn tokens(&self, sequences: &Range<usize>) -> Range<usize> {
        self.offsets[sequences.start]..self.offsets[sequences.end]
    }

    /// Makes the offsets of some sequences begin at 0, for `micro_batch`.
    pub fn set_micro(&mut self, sequences: &Range<usize>) {
        let first = self.offsets[sequences.start];
        self.micro_offsets.clear();
        self.micro_offsets.extend(self.offsets[sequences.start..=sequences.end].iter().map(|o| o - first));
    }

    /// The sequences of `set_micro`, split so that derivatives can be written beside what is read.
    pub fn micro_batch(&mut self, tokens: Range<usize>) -> MicroArrays<'_> {
        MicroArrays {
            packed: Packed { mask: &self.mask[tokens.clone()], seq_offsets: &self.micro_offsets },
            logprobs: &self.logprobs[tokens.clone()],
            old_logprobs: &self.old_logprobs[tokens.clone()],
            ref_logprobs: &self.ref_logprobs[tokens.clone()],
            advantages: &self.advantages[tokens.clone()],
            entropy: &self.entropy[tokens.clone()],
            d_logprobs: &mut self.d_logprobs[tokens.clone()],
            d_entropy: &mut self.d_entropy[tokens],
        }
    }
}

impl StepBuffers {
    /// The sequences of `set_micro` for the critic's loss, and where its derivatives go.
    pub fn critic_batch(&mut self, tokens: Range<usize>) -> (ValueBatch<'_>, &mut [f32]) {
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

/// One micro-batch's part of the arrays.
#[derive(Debug)]
pub struct MicroArrays<'a> {
    /// Mask and offsets.
    pub packed: Packed<'a>,
    /// As in `StepBuffers`.
    pub logprobs: &'a [f32],
    /// As in `StepBuffers`.
    pub old_logprobs: &'a [f32],
    /// As in `StepBuffers`.
    pub ref_logprobs: &'a [f32],
    /// As in `StepBuffers`.
    pub advantages: &'a [f32],
    /// As in `StepBuffers`.
    pub entropy: &'a [f32],
    /// As in `StepBuffers`.
    pub d_logprobs: &'a mut [f32],
    /// As in `StepBuffers`.
    pub d_entropy: &'a mut [f32],
}
