//! The correction of a step's loss for samples of an older policy version. Legend: N response tokens of the step.

use crate::arrays::{TokenArrays, zero};
use plimsoll_algo::correction::{Correction, CorrectionSums, correction_weights};
use plimsoll_plan::{StepArrays, StepPart};

/// How token losses are weighted by the age of their samples, with the arrays for it.
#[derive(Debug)]
pub(crate) struct LossCorrection {
    how: Correction,
    /// [N]: log-probabilities as the rollout recorded them.
    rollout_logprobs: Vec<f32>,
    /// [N]: factors of token losses.
    pub(crate) weights: Vec<f32>,
}

impl LossCorrection {
    pub(crate) fn bind(how: Correction, planned: &StepArrays) -> LossCorrection {
        let array = || planned.array_of(StepPart::Correction);
        LossCorrection { how, rollout_logprobs: array(), weights: array() }
    }

    /// Takes the log-probabilities that the rollout recorded, which `tokens` still has.
    pub(crate) fn begin(&mut self, tokens: &TokenArrays) {
        self.rollout_logprobs.clear();
        self.rollout_logprobs.extend_from_slice(&tokens.old_logprobs);
    }

    /// Computes the factor of each token's loss, from the log-probabilities before the first update and the rollout's.
    pub(crate) fn correct(&mut self, tokens: &TokenArrays) -> CorrectionSums {
        let LossCorrection { how, rollout_logprobs, weights } = self;
        zero(weights, tokens.num_tokens());
        correction_weights(*how, tokens.packed(), &tokens.old_logprobs, rollout_logprobs, weights)
    }

    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        4 * (self.rollout_logprobs.capacity() + self.weights.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_this_policy_are_corrected_by_1() {
        let parts = vec![StepPart::Correction];
        let planned = StepArrays { sequences: 2, response_tokens: 3, parts };
        let mut tokens = TokenArrays::bind(&planned);
        tokens.begin([2, 3].into_iter());
        tokens.set_rollout_logprobs(0, &[-0.5, -1.0]);
        tokens.set_rollout_logprobs(1, &[-0.25, -2.0, -4.0]);
        let mut of = LossCorrection::bind(Correction::Truncate { low: 0.0, high: 2.0 }, &planned);
        of.begin(&tokens);
        of.correct(&tokens);
        assert_eq!(of.weights, [1.0; 5]);
        // The policy that is trained has moved by ln 2 and by more than the bound.
        tokens.old_logprobs[1] += std::f32::consts::LN_2;
        tokens.old_logprobs[4] += 3.0;
        tokens.leave_out(0);
        let sums = of.correct(&tokens);
        let near = |t: usize, expect: f32| (of.weights[t] - expect).abs() < 1e-6;
        assert!(near(2, 1.0) && near(3, 1.0) && near(4, 2.0), "{:?}", of.weights);
        assert!((sums.mean_weight() - 4.0 / 3.0).abs() < 1e-6, "{}", sums.mean_weight());
    }
}
