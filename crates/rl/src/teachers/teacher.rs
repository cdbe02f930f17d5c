//! What a step asks of each kind of teacher.

use crate::arrays::TokenArrays;
use crate::methods::batch::Batch;
use crate::roles::Trainer;
use plimsoll_algo::distill::add_teacher_advantages;
use plimsoll_algo::kl::KlSums;
use plimsoll_algo::packed::Packed;
use plimsoll_base::Result;
use plimsoll_plan::StepArrays;
use plimsoll_reward::Tally;
use plimsoll_run::metrics::Metrics;

/// A teacher of the student that a run trains. Legend: N response tokens of the step.
pub trait Teacher {
    /// Allocates what the plan has for it besides its log-probabilities.
    fn bind(&mut self, _planned: &StepArrays) {}

    /// Scores the samples of a step: its log-probabilities of their tokens, [N], which are 0 before. Returns what a
    /// server did, if one was asked; samples that it did not score are left out of the step.
    ///
    /// Errors: those of scoring; `rank-lost`.
    fn score(
        &mut self,
        trainer: &mut Trainer<'_>,
        batch: &Batch<'_>,
        logprobs: &mut Vec<f32>,
    ) -> Result<Option<ServerReport>>;

    /// Adds what its log-probabilities say of the sampled tokens to their advantages, times `coef`. Returns the sums of
    /// the reverse KL.
    fn advise(&mut self, coef: f64, logprobs: &[f32], tokens: &mut TokenArrays) -> KlSums {
        let TokenArrays { mask, offsets, old_logprobs, advantages, .. } = tokens;
        add_teacher_advantages(
            coef,
            Packed { mask, seq_offsets: offsets },
            old_logprobs,
            logprobs,
            advantages,
        )
    }

    /// Returns the metrics of the step that only this kind of teacher has.
    fn metrics(&self, _tokens: &TokenArrays) -> Metrics {
        Metrics::default()
    }
}

/// The failures of a teacher's server in a step.
#[derive(Debug, Default)]
pub struct ServerReport {
    /// Share of samples that were left out, because a reward, the environment or the teacher failed.
    pub fault_share: f64,
    /// Failures by cause; of rank 0 alone, as is `fault`.
    pub tally: Tally,
    /// The first failure, in one line.
    pub fault: Option<String>,
}
