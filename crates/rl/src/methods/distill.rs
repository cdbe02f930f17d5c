//! Distillation: the advantages of a step whose samples a teacher has scored.

use crate::methods::buffers::StepBuffers;
use plimsoll_algo::distill::add_teacher_advantages;
use plimsoll_algo::kl::KlSums;
use plimsoll_algo::packed::Packed;
use plimsoll_algo::spans::{add_span_advantages, leave_out_unaligned};
use plimsoll_config::Distill;

/// Weighs the advantages that rewards gave, and adds the teacher's unless its divergence is a loss of its own.
/// Returns the sums of the reverse KL. Tokens that a teacher with other tokens has no span for are not trained.
///
/// A sample without a score has no reward of its own to learn from, and is taught all the same.
pub(crate) fn weigh(how: &Distill, buffers: &mut StepBuffers) -> KlSums {
    let StepBuffers {
        mask, offsets, old_logprobs, teacher_logprobs, advantages, divergence, aligned, ..
    } = buffers;
    let reward_coef = how.reward_coef;
    advantages.iter_mut().for_each(|advantage| {
        *advantage = if reward_coef == 0.0 { 0.0 } else { (f64::from(*advantage) * reward_coef) as f32 };
    });
    divergence.how = how.divergence();
    if aligned.is_there() {
        aligned.sums = leave_out_unaligned(&aligned.spans, mask);
        let packed = Packed { mask, seq_offsets: offsets };
        return add_span_advantages(
            how.coef,
            packed,
            &aligned.spans,
            old_logprobs,
            teacher_logprobs,
            advantages,
        );
    }
    let packed = Packed { mask, seq_offsets: offsets };
    // What is differentiated through the logits is no advantage too; its sums are the metric.
    let coef = if divergence.how.is_some() { 0.0 } else { how.coef };
    add_teacher_advantages(coef, packed, old_logprobs, teacher_logprobs, advantages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_plan::StepArrays;

    #[test]
    fn rewards_count_by_their_coefficient_and_the_teacher_by_its_own() {
        let mut buffers =
            StepBuffers::with_capacity(2, 2, StepArrays { teacher: true, ..StepArrays::default() });
        let mut of = |reward_coef: f64| {
            buffers.begin([2, 1].into_iter());
            buffers.mask[1] = 0.0;
            buffers.old_logprobs.copy_from_slice(&[-1.0, f32::NAN, -2.0]);
            buffers.teacher_logprobs.copy_from_slice(&[-2.0, f32::NAN, -1.5]);
            buffers.advantages.copy_from_slice(&[4.0, 0.0, f32::INFINITY]);
            if reward_coef > 0.0 {
                buffers.advantages[2] = -4.0;
            }
            let how = Distill { teacher: "t".into(), coef: 2.0, reward_coef, ..Distill::default() };
            let sums = weigh(&how, &mut buffers);
            assert_eq!((sums.mean_kl(), sums.tokens), (0.25, 2.0));
            buffers.advantages.clone()
        };
        // Advantages of rewards that do not count are not read: 0 times infinity is no number.
        assert_eq!(of(0.0), [-2.0, 0.0, 1.0]);
        assert_eq!(of(0.5), [0.0, 0.0, -1.0]);
    }
}
