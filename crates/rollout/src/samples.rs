//! What a rollout gives back: tokens and their log-probabilities, in arrays made once.

use serde::{Deserialize, Serialize};

/// Why a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// An end-of-text token, which is part of the response.
    Eos,
    /// A stop condition.
    Stop,
    /// `max_new_tokens`.
    Length,
}

/// Responses of one request. Sample s belongs to prompt s / group_size.
#[derive(Clone, Debug)]
pub struct Samples {
    new_tokens: usize,
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    lens: Vec<u32>,
    finish: Vec<Finish>,
}

impl Samples {
    /// Room for `samples` responses of up to `new_tokens` tokens.
    pub fn with_capacity(samples: usize, new_tokens: usize) -> Samples {
        Samples {
            new_tokens,
            ids: vec![0; samples * new_tokens],
            logprobs: vec![0.0; samples * new_tokens],
            lens: Vec::with_capacity(samples),
            finish: Vec::with_capacity(samples),
        }
    }

    /// Heap bytes of that room.
    pub fn bytes(samples: usize, new_tokens: usize) -> u64 {
        samples as u64 * (new_tokens as u64 * 8 + 5)
    }

    /// Begins a request of `samples` responses.
    pub(crate) fn reset(&mut self, samples: usize) {
        assert!(
            samples * self.new_tokens <= self.ids.len(),
            "{samples} samples of {} tokens",
            self.new_tokens
        );
        self.lens.clear();
        self.lens.resize(samples, 0);
        self.finish.clear();
        self.finish.resize(samples, Finish::Length);
    }

    pub(crate) fn push(&mut self, sample: usize, token: u32, logprob: f32) {
        let at = sample * self.new_tokens + self.lens[sample] as usize;
        debug_assert!((self.lens[sample] as usize) < self.new_tokens, "a response beyond its limit");
        self.ids[at] = token;
        self.logprobs[at] = logprob;
        self.lens[sample] += 1;
    }

    pub(crate) fn end(&mut self, sample: usize, finish: Finish) {
        self.finish[sample] = finish;
    }

    /// Number of responses.
    pub fn len(&self) -> usize {
        self.lens.len()
    }

    /// True if no request was made.
    pub fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    /// Tokens of a response.
    pub fn ids(&self, sample: usize) -> &[u32] {
        &self.ids[sample * self.new_tokens..][..self.lens[sample] as usize]
    }

    /// Log-probabilities of its tokens: of the untruncated policy at the sampling temperature.
    pub fn logprobs(&self, sample: usize) -> &[f32] {
        &self.logprobs[sample * self.new_tokens..][..self.lens[sample] as usize]
    }

    /// Why it ended.
    pub fn finish(&self, sample: usize) -> Finish {
        self.finish[sample]
    }

    /// Tokens of all responses.
    pub fn total_tokens(&self) -> usize {
        self.lens.iter().map(|&n| n as usize).sum()
    }
}
