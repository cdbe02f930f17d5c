//! Distillation in a step: a teacher scores its samples, and their advantages follow.

use super::teacher::{ServerReport, Teacher};
use crate::arrays::{TokenArrays, zero};
use crate::methods::batch::Batch;
use crate::roles::Trainer;
use plimsoll_algo::kl::KlSums;
use plimsoll_base::Result;
use plimsoll_config::Distill;
use plimsoll_plan::{StepArrays, StepPart};
use plimsoll_run::metrics::Metrics;

/// The teacher of a run, with what it says of a step.
pub struct Teaching {
    who: Box<dyn Teacher>,
    /// [N]: its log-probabilities.
    logprobs: Vec<f32>,
}

impl Teaching {
    /// Allocates its arrays.
    pub(crate) fn bind(mut who: Box<dyn Teacher>, planned: &StepArrays) -> Teaching {
        who.bind(planned);
        Teaching { who, logprobs: planned.array_of(StepPart::Teacher) }
    }

    /// Scores the samples of a step, as `Teacher::score`.
    pub(crate) fn score(
        &mut self,
        trainer: &mut Trainer<'_>,
        batch: &Batch<'_>,
    ) -> Result<Option<ServerReport>> {
        zero(&mut self.logprobs, trainer.arrays.num_tokens());
        self.who.score(trainer, batch, &mut self.logprobs)
    }

    /// Weighs the advantages that rewards gave, and adds the teacher's unless its divergence is a loss of its own.
    /// Returns the sums of the reverse KL.
    ///
    /// A sample without a score has no reward of its own to learn from, and is taught all the same.
    pub(crate) fn weigh(&mut self, how: &Distill, tokens: &mut TokenArrays) -> KlSums {
        let reward_coef = how.reward_coef;
        tokens.advantages.iter_mut().for_each(|advantage| {
            *advantage = if reward_coef == 0.0 { 0.0 } else { (f64::from(*advantage) * reward_coef) as f32 };
        });
        // What is differentiated through the logits is no advantage too; its sums are the metric.
        let coef = if how.divergence().is_some() { 0.0 } else { how.coef };
        tokens.divergence.iter_mut().for_each(|of| of.how = how.divergence());
        self.who.advise(coef, &self.logprobs, tokens)
    }

    /// Returns the metrics that only this kind of teacher has.
    pub(crate) fn metrics(&self, tokens: &TokenArrays) -> Metrics {
        self.who.metrics(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    /// Has its log-probabilities already.
    struct Fixed;

    impl Teacher for Fixed {
        fn score(
            &mut self,
            _: &mut Trainer<'_>,
            _: &Batch<'_>,
            _: &mut Vec<f32>,
        ) -> Result<Option<ServerReport>> {
            Ok(None)
        }
    }

    #[test]
    fn rewards_count_by_their_coefficient_and_the_teacher_by_its_own() {
        let mut tokens =
            TokenArrays::bind(&StepArrays { sequences: 2, response_tokens: 2, parts: Vec::new() });
        let mut of = |reward_coef: f64| {
            tokens.begin([2, 1].into_iter());
            tokens.mask[1] = 0.0;
            tokens.old_logprobs.copy_from_slice(&[-1.0, f32::NAN, -2.0]);
            tokens.advantages.copy_from_slice(&[4.0, 0.0, f32::INFINITY]);
            if reward_coef > 0.0 {
                tokens.advantages[2] = -4.0;
            }
            let how = Distill { teacher: "t".into(), coef: 2.0, reward_coef, ..Distill::default() };
            let mut teaching = Teaching { who: Box::new(Fixed), logprobs: vec![-2.0, f32::NAN, -1.5] };
            let sums = teaching.weigh(&how, &mut tokens);
            assert_eq!((sums.mean_kl(), sums.tokens), (0.25, 2.0));
            tokens.advantages.clone()
        };
        // Advantages of rewards that do not count are not read: 0 times infinity is no number.
        assert_eq!(of(0.0), [-2.0, 0.0, 1.0]);
        assert_eq!(of(0.5), [0.0, 0.0, -1.0]);
    }
}
