//! Training of a reward model: a decoder's body and one linear map, whose value at a text's last token is its score.

use crate::arrays::TokenArrays;
use crate::data::pairs::sequences;
use crate::methods::pairs::{PairReport, pair_score};
use crate::roles::{InOrder, Trainer};
use plimsoll_algo::preference::{PairSums, reward_model_loss};
use plimsoll_base::Result;
use plimsoll_config::RunSpec;
use plimsoll_infer::responder::Responder;
use plimsoll_infer::text::Item;
use plimsoll_plan::RoleName;
use plimsoll_run::{ending::finite_loss, scores::PairScore};
use std::ops::Range;

/// Makes one step over pairs: a single update. `step` counts from 1.
///
/// Errors: `loss-not-finite`, `gradient-not-finite`; those of the device.
pub(crate) fn reward_model_step(
    trainer: &mut Trainer<'_>,
    run: &RunSpec,
    items: &[Item],
    step: u32,
) -> Result<PairReport> {
    let sequences = sequences(items);
    let pairs = items.len() as f64;
    let how = run.train().update_options(step, run.seed);
    let mut sums = PairSums::default();
    let mut order = InOrder::from(0, |micro| sums.merge(micro));
    let mut of_micro_batch = |buffers: &mut TokenArrays, entries: Range<usize>| -> Result<()> {
        let items = &items[entries.start / 2..entries.end / 2];
        let critic = buffers.values_mut();
        let (values, d_values) = (&critic.values[entries.clone()], &mut critic.d_values[entries.clone()]);
        let micro = pair_loss(items, values, pairs, d_values);
        finite_loss(step, micro.loss)?;
        order.add(entries, micro);
        Ok(())
    };
    trainer.arrays.begin(sequences.iter().map(|_| 1));
    let all = 0..sequences.len();
    let update = trainer.update(RoleName::Reward(0), &sequences, all, 1.0, how, &mut of_micro_batch)?;
    Ok(PairReport { sums, logps: None, kl: None, update, learning_rate: f64::from(how.lr) })
}

/// Returns accuracy, margin and loss over held-out pairs, without an update.
pub(crate) fn score_pairs(trainer: &mut Trainer<'_>, run: &RunSpec, items: &[Item]) -> Result<PairScore> {
    let mut sums = PairSums::default();
    for items in items.chunks(run.rollout.prompts_per_step as usize) {
        let scores = trainer.reward_scores(RoleName::Reward(0), &sequences(items))?;
        sums.merge(pair_loss(items, &scores, 1.0, &mut vec![0.0; scores.len()]));
    }
    sums.loss /= sums.pairs.max(1.0);
    Ok(pair_score(&sums))
}

/// Computes the loss of pairs whose scores are adjacent, chosen first; writes its derivatives, [2 P].
fn pair_loss(items: &[Item], scores: &[f32], total_pairs: f64, d_scores: &mut [f32]) -> PairSums {
    assert_eq!(scores.len(), 2 * items.len(), "a pair's halves are in one micro-batch");
    let half = |which: usize| -> Vec<f32> { scores.iter().skip(which).step_by(2).copied().collect() };
    let margins: Vec<f32> = items.iter().map(|item| item.margin).collect();
    let mut d = [vec![0f32; items.len()], vec![0f32; items.len()]];
    let [d_chosen, d_rejected] = &mut d;
    let sums = reward_model_loss(&half(0), &half(1), Some(&margins), total_pairs, d_chosen, d_rejected);
    for (i, d_score) in d_scores.iter_mut().enumerate() {
        *d_score = d[i % 2][i / 2];
    }
    sums
}

#[cfg(test)]
#[path = "reward_model_tests.rs"]
mod tests;
