//! The step of `dpo` and its kin: log-probs of both answers under the policy and, for `dpo`, under the weights that the
//! run began with, and a loss of how far apart the policy holds them.

use crate::arrays::{MicroArrays, TokenArrays};
use crate::data::pairs::sequences;
use crate::methods::pairs::{PairReport, pair_score};
use crate::roles::{InOrder, Trainer};
use plimsoll_algo::preference::{PairBatch, PairSums, PreferenceLoss, preference_loss};
use plimsoll_base::Result;
use plimsoll_config::RunSpec;
use plimsoll_infer::text::Item;
use plimsoll_plan::RoleName;
use plimsoll_run::{ending::finite_loss, scores::PairScore};
use std::ops::Range;

/// Log-probs are those of the model itself.
const INV_TEMPERATURE: f32 = 1.0;

/// Makes one step over pairs: a single update. `step` counts from 1.
///
/// Errors: `loss-not-finite`, `gradient-not-finite`; those of the device.
pub(crate) fn dpo_step(
    trainer: &mut Trainer<'_>,
    run: &RunSpec,
    items: &[Item],
    step: u32,
) -> Result<PairReport> {
    let sequences = sequences(items);
    trainer.arrays.begin(sequences.iter().map(|s| s.response.len()));
    trainer.score_into(RoleName::Reference, &sequences, INV_TEMPERATURE, |b| &mut b.ref_logprobs)?;
    let (loss, pairs) = (run.preference(), items.len() as f64);
    let totals = Totals { pairs, chosen_tokens: chosen_tokens(&trainer.arrays.offsets) };
    let how = run.train().update_options(step, run.seed);
    let (mut sums, mut logps) = (PairSums::default(), [0.0; 2]);
    let mut order = InOrder::from(0, |(micro, [chosen, rejected]): (PairSums, [f64; 2])| {
        sums.merge(micro);
        logps[0] += chosen;
        logps[1] += rejected;
    });
    let mut of_micro_batch = |buffers: &mut TokenArrays, tokens: Range<usize>| -> Result<()> {
        let mut logps = [0.0; 2];
        let micro = pair_loss(loss, buffers.micro_batch(tokens.clone()), totals, &mut logps);
        finite_loss(step, micro.loss)?;
        order.add(tokens, (micro, logps));
        Ok(())
    };
    let update = trainer.update(
        RoleName::Actor,
        &sequences,
        0..sequences.len(),
        INV_TEMPERATURE,
        how,
        &mut of_micro_batch,
    )?;
    let logps = Some(logps.map(|sum| sum / pairs));
    Ok(PairReport { sums, logps, kl: None, update, learning_rate: f64::from(how.lr) })
}

/// Returns accuracy, margin and loss over held-out pairs, without an update.
pub(crate) fn score_pairs(trainer: &mut Trainer<'_>, run: &RunSpec, items: &[Item]) -> Result<PairScore> {
    let (loss, mut sums) = (run.preference(), PairSums::default());
    // This is the capacity of the step's arrays.
    for items in items.chunks(run.rollout.prompts_per_step as usize) {
        let sequences = sequences(items);
        trainer.arrays.begin(sequences.iter().map(|s| s.response.len()));
        trainer.score_into(RoleName::Reference, &sequences, INV_TEMPERATURE, |b| &mut b.ref_logprobs)?;
        trainer.score_into(RoleName::Actor, &sequences, INV_TEMPERATURE, |b| &mut b.old_logprobs)?;
        let buffers = &mut trainer.arrays;
        // The sum over pairs is divided at the end.
        let tokens = chosen_tokens(&buffers.offsets) / items.len() as f64;
        let totals = Totals { pairs: 1.0, chosen_tokens: tokens };
        let all = 0..sequences.len();
        buffers.set_micro(&all);
        let tokens = buffers.tokens(&all);
        let micro = buffers.micro_batch(tokens);
        // The current actor.
        let micro = MicroArrays { logprobs: micro.old_logprobs, ..micro };
        sums.merge(pair_loss(loss, micro, totals, &mut [0.0; 2]));
    }
    sums.loss /= sums.pairs.max(1.0);
    Ok(pair_score(&sums))
}

/// The counts that the means of a step's loss are over.
#[derive(Clone, Copy)]
struct Totals {
    pairs: f64,
    chosen_tokens: f64,
}

/// Returns the tokens of the chosen answers, which are the first of each pair.
fn chosen_tokens(offsets: &[usize]) -> f64 {
    let lengths = offsets.windows(2).map(|ends| ends[1] - ends[0]);
    lengths.step_by(2).sum::<usize>() as f64
}

/// Computes the loss of whole pairs and its derivative at each token. Adds both halves' log-probabilities to `logps`.
fn pair_loss(loss: PreferenceLoss, micro: MicroArrays<'_>, totals: Totals, logps: &mut [f64; 2]) -> PairSums {
    let halves: Vec<Range<usize>> = micro.packed.sequences().collect();
    assert!(halves.len().is_multiple_of(2), "a pair's halves are in one micro-batch");
    let sum = |of: &[f32], half: usize| -> Vec<f32> {
        let halves = halves.iter().skip(half).step_by(2);
        halves.map(|tokens| of[tokens.clone()].iter().map(|&l| f64::from(l)).sum::<f64>() as f32).collect()
    };
    let (chosen, rejected) = (sum(micro.logprobs, 0), sum(micro.logprobs, 1));
    let tokens = [0, 1].map(|half| {
        halves.iter().skip(half).step_by(2).map(|tokens| tokens.len() as f32).collect::<Vec<f32>>()
    });
    let (ref_chosen, ref_rejected) = (sum(micro.ref_logprobs, 0), sum(micro.ref_logprobs, 1));
    for (total, half) in logps.iter_mut().zip([&chosen, &rejected]) {
        *total += half.iter().map(|&l| f64::from(l)).sum::<f64>();
    }
    let batch = PairBatch {
        chosen: &chosen,
        rejected: &rejected,
        ref_chosen: &ref_chosen,
        ref_rejected: &ref_rejected,
        tokens: [&tokens[0], &tokens[1]],
        chosen_tokens: totals.chosen_tokens,
    };
    let mut d = [vec![0f32; chosen.len()], vec![0f32; chosen.len()]];
    let [d_chosen, d_rejected] = &mut d;
    let sums = preference_loss(loss, &batch, totals.pairs, d_chosen, d_rejected);
    for (i, tokens) in halves.into_iter().enumerate() {
        micro.d_logprobs[tokens].fill(d[i % 2][i / 2]);
    }
    sums
}

#[cfg(test)]
#[path = "dpo_tests.rs"]
mod tests;
