//! The critic's part of a step: advantages from its values, its updates, and measures of their quality.
//! Legend: N response tokens of the step.

use crate::arrays::TokenArrays;
use crate::context::StepContext;
use crate::methods::batch::Batch;
use crate::roles::{InOrder, Trainer, UpdateStats};
use plimsoll_algo::advantage::{Gae, gae};
use plimsoll_algo::aggregation::Aggregation;
use plimsoll_algo::packed::Packed;
use plimsoll_algo::value_loss::{ValueBatch, ValueSums, value_loss};
use plimsoll_base::Result;
use plimsoll_config::RunSpec;
use plimsoll_plan::RoleName;
use plimsoll_run::ending::finite_loss;
use plimsoll_train::UpdateOptions;
use std::ops::Range;

#[derive(Clone, Copy, Debug, Default)]
pub struct CriticReport {
    pub sums: ValueSums,
    /// Mean value of trained tokens, before the updates.
    pub mean_value: f64,
    /// 1 - Var(R - V) / Var(R) of the values that the advantages were computed from.
    pub explained_variance: f64,
    /// Counters of the last update.
    pub update: UpdateStats,
    pub updates: u32,
    pub learning_rate: f64,
}

/// Turns token rewards and the critic's values into advantages and into the targets of the values.
///
/// A response that the limit cut counts as ended, as in OpenRLHF, verl and Open-Reasoner-Zero: nothing follows it.
pub(crate) fn gae_advantages(how: &Gae, buffers: &mut TokenArrays) {
    let TokenArrays { mask, offsets, token_rewards, advantages, values, .. } = buffers;
    let packed = Packed { mask, seq_offsets: offsets };
    let critic = values.as_mut().expect("a critic has arrays of values");
    gae(how, packed, token_rewards, &critic.old_values, &[], advantages, &mut critic.returns);
}

/// Returns how the sequences of a rollout are cut into the critic's updates: epochs, and sequences per update.
fn cut(run: &RunSpec, sequences: usize) -> (u32, usize) {
    match run.critic().and_then(|critic| critic.updates_per_rollout) {
        // Equal parts; the last is smaller where dynamic sampling found too few groups.
        Some(updates) => (1, sequences.div_ceil(updates as usize)),
        None => (run.train().epochs_per_rollout, run.train().mini_batch.map_or(sequences, |n| n as usize)),
    }
}

/// Makes all updates of the critic from one rollout, towards `returns`. Does nothing without a critic.
///
/// Errors: `loss-not-finite`, `gradient-not-finite`; those of the device.
pub fn critic_updates(
    trainer: &mut Trainer<'_>,
    cx: &StepContext<'_>,
    batch: &Batch<'_>,
) -> Result<Option<CriticReport>> {
    let Some(critic) = cx.run.critic() else { return Ok(None) };
    let (train, sequences, step) = (cx.run.train(), &batch.sequences, batch.step);
    let learning_rate = critic.learning_rate.unwrap_or(train.learning_rate) * train.lr_factor(step);
    let how = UpdateOptions { lr: learning_rate as f32, ..train.update_options(step, cx.run.seed) };
    // 0 never clips.
    let clip = critic.value_clip.filter(|&clip| clip > 0.0);
    let mut report = CriticReport { learning_rate, ..CriticReport::default() };
    measure(&mut trainer.arrays, &mut report);
    let (passes, size) = cut(cx.run, sequences.len());
    for _ in 0..passes {
        for first in (0..sequences.len()).step_by(size) {
            let which = first..(first + size).min(sequences.len());
            let Some((tokens, trained)) = trainer.arrays.trained(&which) else { continue };
            let aggregation = cx.objective.aggregation_of(tokens, trained);
            let sums = &mut report.sums;
            let mut order = InOrder::from(trainer.arrays.tokens(&which).start, |micro| sums.merge(micro));
            let mut loss = |buffers: &mut TokenArrays, tokens: Range<usize>| -> Result<()> {
                let (values, d_values) = buffers.critic_batch(tokens.clone());
                let micro = value_loss(clip, &values, &aggregation, d_values);
                finite_loss(step, micro.loss).map_err(|error| error.fact("it is the critic's"))?;
                order.add(tokens, micro);
                Ok(())
            };
            report.update = trainer.update(RoleName::Critic, sequences, which, 1.0, how, &mut loss)?;
            report.updates += 1;
        }
    }
    Ok(Some(report))
}

/// Compares the values that the advantages were computed from with their targets.
fn measure(buffers: &mut TokenArrays, report: &mut CriticReport) {
    let TokenArrays { mask, offsets, values, .. } = buffers;
    let packed = Packed { mask, seq_offsets: offsets };
    let critic = values.as_mut().expect("a critic has arrays of values");
    let old = &critic.old_values;
    let batch = ValueBatch { packed, values: old, old_values: old, returns: &critic.returns };
    let aggregation = Aggregation::of_batch(Default::default(), packed, 1.0);
    // `d_values` is free until the updates.
    report.explained_variance =
        value_loss(None, &batch, &aggregation, &mut critic.d_values).explained_variance();
    let trained = old.iter().zip(mask.iter()).filter(|(_, m)| **m != 0.0);
    let (sum, count) = trained.fold((0.0, 0.0), |(sum, n), (v, _)| (sum + f64::from(*v), n + 1.0));
    report.mean_value = sum / f64::max(count, 1.0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_algo::advantage::{MaskHole, Whiten, token_rewards, whiten};
    use plimsoll_algo::aggregation::AggregationKind;
    use plimsoll_plan::{StepArrays, StepPart};

    /// Three responses of 3, 2 and 4 tokens; rewards come at their ends, values grow along the step.
    fn buffers(left_out: Option<usize>) -> TokenArrays {
        let mut buffers = TokenArrays::bind(&StepArrays {
            sequences: 3,
            response_tokens: 4,
            parts: vec![StepPart::Values],
        });
        buffers.begin([3, 2, 4].into_iter());
        for (i, value) in buffers.values_mut().old_values.iter_mut().enumerate() {
            *value = 0.1 * i as f32;
        }
        if let Some(sequence) = left_out {
            buffers.leave_out(sequence);
            let tokens = buffers.offsets[sequence]..buffers.offsets[sequence + 1];
            buffers.values_mut().old_values[tokens].fill(f32::NAN);
        }
        let packed = Packed { mask: &buffers.mask, seq_offsets: &buffers.offsets };
        token_rewards(packed, &[1.0, 0.5, 0.0], None, &mut buffers.token_rewards);
        gae_advantages(&Gae { lambda: 0.9, ..Gae::default() }, &mut buffers);
        buffers
    }

    #[test]
    fn the_end_of_a_response_ends_its_return_whatever_follows_it() {
        let all = buffers(None);
        // The last target is the reward itself: no value of the next response, and none beyond a limit, is added.
        let ends = [2, 4, 8].map(|t| all.values().returns[t]);
        assert_eq!(ends, [1.0, 0.5, 0.0]);
        assert_eq!(all.advantages[2], 1.0 - 0.2);
    }

    /// A response of five tokens of which the middle three are an environment's.
    #[test]
    fn holes_are_skipped_or_are_steps_of_value_zero_as_the_option_says() {
        let run = |mask_hole, environment: f32| {
            let mut buffers = TokenArrays::bind(&StepArrays {
                sequences: 1,
                response_tokens: 5,
                parts: vec![StepPart::Values],
            });
            buffers.begin([5].into_iter());
            buffers.mask[1..4].fill(0.0);
            let old_values = [0.5, environment, environment, environment, 0.25];
            buffers.values_mut().old_values.copy_from_slice(&old_values);
            let packed = Packed { mask: &buffers.mask, seq_offsets: &buffers.offsets };
            token_rewards(packed, &[1.0], None, &mut buffers.token_rewards);
            gae_advantages(&Gae { gamma: 0.5, lambda: 0.5, mask_hole }, &mut buffers);
            (buffers.advantages, buffers.values.expect("a critic's").returns)
        };
        let (skipped, returns) = run(MaskHole::Skip, f32::NAN);
        // The last: 1 - 0.25. The first: 0.5 x 0.25 - 0.5, and a quarter of the last.
        assert_eq!(skipped, [0.125 - 0.5 + 0.25 * 0.75, 0.0, 0.0, 0.0, 0.75]);
        assert_eq!(returns, [0.125 + 0.25 * 0.75, 0.0, 0.0, 0.0, 1.0]);
        let (stepped, _) = run(MaskHole::ZeroValue, f32::NAN);
        // Three steps of value 0 in between: -0.5 and nothing, then 0.5 x 0.25 + 0.25 x 0.75 through three quarters.
        let at_hole = 0.125 + 0.25 * 0.75;
        assert_eq!(stepped, [-0.5 + 0.25 * 0.25 * 0.25 * at_hole, 0.0, 0.0, 0.0, 0.75]);
    }

    #[test]
    fn a_sample_that_is_left_out_moves_nothing() {
        let (all, without) = (buffers(None), buffers(Some(1)));
        let rest = |b: &TokenArrays| [&b.advantages[..3], &b.advantages[5..]].concat();
        assert_eq!(rest(&all), rest(&without));
        assert_eq!((without.advantages[3], without.values().returns[4]), (0.0, 0.0));
        // Nor is it part of the mean that whitening subtracts.
        let mut whitened = buffers(Some(1));
        whiten(Whiten::Full, &whitened.mask.clone(), &mut whitened.advantages);
        let sum: f32 = rest(&whitened).iter().sum();
        assert!(sum.abs() < 1e-5 && whitened.advantages[3] == 0.0, "{sum}");
    }

    #[test]
    fn the_critics_loss_and_its_measures_pass_over_it() {
        let mut without = buffers(Some(1));
        let mut report = CriticReport::default();
        measure(&mut without, &mut report);
        let mean = (0.0 + 0.1 + 0.2 + 0.5 + 0.6 + 0.7 + 0.8) / 7.0;
        assert!(
            (report.mean_value - mean).abs() < 1e-6 && report.explained_variance.is_finite(),
            "{report:?}"
        );
        let values = without.values_mut();
        values.values.copy_from_slice(&values.old_values);
        without.set_micro(&(0..3));
        let (tokens, sequences) = without.trained(&(0..3)).expect("two are trained");
        assert_eq!((tokens, sequences), (7.0, 2.0));
        assert_eq!(without.trained(&(1..2)), None);
        let packed = Packed { mask: &without.mask, seq_offsets: &without.offsets };
        let aggregation = Aggregation::of_batch(AggregationKind::TokenMean, packed, 1.0);
        let (batch, d_values) = without.critic_batch(0..9);
        let sums = value_loss(Some(0.2), &batch, &aggregation, d_values);
        assert!(sums.loss.is_finite() && sums.tokens == 7.0);
        assert!(d_values[3..5].iter().all(|&d| d == 0.0) && d_values[0] != 0.0, "{d_values:?}");
    }
}

#[cfg(test)]
#[path = "critic_tests.rs"]
mod more_tests;
