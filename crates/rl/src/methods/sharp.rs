//! A baseline of each token of a step, which needs the sum of squared probabilities: log-probabilities at half the
//! temperature next to those at the whole of it. Legend: N response tokens of the step.

use crate::arrays::{TokenArrays, zero};
use crate::methods::batch::Batch;
use crate::roles::Trainer;
use plimsoll_algo::optimal_token::subtract_optimal;
use plimsoll_algo::packed::Packed;
use plimsoll_base::Result;
use plimsoll_plan::{RoleName, StepArrays, StepPart};

/// The array of a baseline of each token.
#[derive(Debug)]
pub(crate) struct SharpBaseline {
    /// [N]: log-probabilities at half the temperature.
    logprobs: Vec<f32>,
}

impl SharpBaseline {
    pub(crate) fn bind(planned: &StepArrays) -> SharpBaseline {
        SharpBaseline { logprobs: planned.array_of(StepPart::Sharp) }
    }

    /// Scores the samples of a step.
    ///
    /// Errors: those of scoring.
    pub(crate) fn score(&mut self, trainer: &mut Trainer<'_>, batch: &Batch<'_>) -> Result<()> {
        zero(&mut self.logprobs, trainer.arrays.num_tokens());
        let inv_temperature = 2.0 * batch.inv_temperature;
        trainer.score_tokens(RoleName::Actor, &batch.sequences, inv_temperature, &mut self.logprobs)
    }

    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        4 * self.logprobs.capacity()
    }

    /// Subtracts the baseline of each token from the advantages, which are returns. `group`: samples of a prompt.
    pub(crate) fn subtract(&mut self, batch: &Batch<'_>, group: usize, tokens: &mut TokenArrays) {
        let prompts: Vec<usize> = batch.owners.iter().map(|owner| owner / group).collect();
        let TokenArrays { mask, offsets, old_logprobs, advantages, .. } = tokens;
        let packed = Packed { mask, seq_offsets: offsets };
        subtract_optimal(packed, &prompts, old_logprobs, &mut self.logprobs, advantages);
    }
}
