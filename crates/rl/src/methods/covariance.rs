//! Tokens of a step that learn less because of their covariance. Legend: N response tokens of the step.

use crate::arrays::{TokenArrays, zero};
use plimsoll_algo::covariance::{Covariance, CovarianceSums, choose};
use plimsoll_algo::packed::Packed;
use plimsoll_plan::{StepArrays, StepPart};

/// How tokens are chosen by their covariance, with the arrays for it.
#[derive(Debug)]
pub(crate) struct TokenChoice {
    how: Covariance,
    /// [N]: factors of |l - l_old| in the loss; 0 for tokens that are not held.
    pub(crate) penalties: Vec<f32>,
    /// Trained tokens with their covariances.
    of_tokens: Vec<(usize, f64)>,
}

impl TokenChoice {
    pub(crate) fn bind(how: Covariance, planned: &StepArrays) -> TokenChoice {
        let penalties = planned.array_of(StepPart::Covariance);
        TokenChoice { how, penalties, of_tokens: Vec::with_capacity(planned.tokens()) }
    }

    /// Chooses tokens that learn less. `draw`: the run's seed and the step.
    pub(crate) fn choose(&mut self, tokens: &mut TokenArrays, draw: (u64, u64)) -> CovarianceSums {
        zero(&mut self.penalties, tokens.num_tokens());
        let TokenArrays { mask, offsets, old_logprobs, advantages, .. } = tokens;
        let packed = Packed { mask, seq_offsets: offsets };
        choose(self.how, packed, old_logprobs, advantages, &mut self.penalties, draw, &mut self.of_tokens)
    }

    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        4 * self.penalties.capacity() + size_of::<(usize, f64)>() * self.of_tokens.capacity()
    }
}
