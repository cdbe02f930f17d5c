//! The step of `kto`: log-probs of answers under the policy and under the weights that the run began with, compared
//! with the KL of the step, which is that of prompts with the answers of other rows. Only the answers themselves train.

use crate::arrays::{MicroArrays, TokenArrays};
use crate::data::labels::{is_desirable, sequences};
use crate::methods::pairs::PairReport;
use crate::roles::{InOrder, Trainer};
use plimsoll_algo::labelled::{Kto, LabelSums, batch_kl, kto_loss};
use plimsoll_algo::preference::PairSums;
use plimsoll_base::Result;
use plimsoll_config::RunSpec;
use plimsoll_infer::text::Item;
use plimsoll_plan::RoleName;
use plimsoll_run::{ending::finite_loss, scores::PairScore};
use std::ops::Range;

/// Log-probs are those of the model itself.
const INV_TEMPERATURE: f32 = 1.0;

/// Makes one step over labelled answers: a single update. `step` counts from 1.
///
/// Errors: `loss-not-finite`, `gradient-not-finite`; those of the device.
pub(crate) fn kto_step(
    trainer: &mut Trainer<'_>,
    run: &RunSpec,
    items: &[Item],
    step: u32,
) -> Result<PairReport> {
    let (kto, answers) = (run.kto(), items.len() as f64);
    let kl = score(trainer, items)?;
    let sequences = sequences(items);
    let how = run.train().update_options(step, run.seed);
    let mut sums = LabelSums::default();
    let mut order = InOrder::from(0, |micro| sums.merge(micro));
    let mut of_micro_batch = |buffers: &mut TokenArrays, tokens: Range<usize>| -> Result<()> {
        let first = buffers.offsets.partition_point(|&offset| offset < tokens.start);
        let micro = label_loss(kto, buffers.micro_batch(tokens.clone()), &items[first..], (kl, answers));
        finite_loss(step, micro.loss)?;
        order.add(tokens, micro);
        Ok(())
    };
    let own = 0..items.len();
    let update =
        trainer.update(RoleName::Actor, &sequences, own, INV_TEMPERATURE, how, &mut of_micro_batch)?;
    let [undesirable, desirable] = sums.means(sums.logps);
    Ok(PairReport {
        sums: as_pairs(&sums),
        logps: Some([desirable, undesirable]),
        kl: Some(kl),
        update,
        learning_rate: f64::from(how.lr),
    })
}

/// Returns the share of held-out answers on their label's side of the KL, margin and loss, without an update.
pub(crate) fn score_answers(trainer: &mut Trainer<'_>, run: &RunSpec, items: &[Item]) -> Result<PairScore> {
    let mut sums = LabelSums::default();
    // This is the capacity of the step's arrays.
    for items in items.chunks(run.rollout.prompts_per_step as usize) {
        let kl = score(trainer, items)?;
        let buffers = &mut trainer.arrays;
        let own = 0..items.len();
        buffers.set_micro(&own);
        let tokens = buffers.tokens(&own);
        let micro = buffers.micro_batch(tokens);
        // The current actor.
        let micro = MicroArrays { logprobs: micro.old_logprobs, ..micro };
        // The sum over answers is divided at the end.
        sums.merge(label_loss(run.kto(), micro, items, (kl, 1.0)));
    }
    sums.loss /= sums.answers().max(1.0);
    let pairs = as_pairs(&sums);
    let num_pairs = sums.answers() as usize;
    Ok(PairScore { accuracy: pairs.accuracy(), margin: pairs.mean_margin(), loss: sums.loss, num_pairs })
}

/// Computes the log-probs of all sequences of a step under the reference and the policy. Returns the step's KL.
fn score(trainer: &mut Trainer<'_>, items: &[Item]) -> Result<f64> {
    let sequences = sequences(items);
    trainer.arrays.begin(sequences.iter().map(|sequence| sequence.response.len()));
    trainer.score_into(RoleName::Reference, &sequences, INV_TEMPERATURE, |b| &mut b.ref_logprobs)?;
    trainer.score_into(RoleName::Actor, &sequences, INV_TEMPERATURE, |b| &mut b.old_logprobs)?;
    let buffers = &trainer.arrays;
    let others = items.len()..sequences.len();
    let sums = |of: &[f32]| -> Vec<f32> {
        others.clone().map(|s| sum(&of[buffers.offsets[s]..buffers.offsets[s + 1]])).collect()
    };
    Ok(batch_kl(&sums(&buffers.old_logprobs), &sums(&buffers.ref_logprobs)))
}

fn sum(logprobs: &[f32]) -> f32 {
    logprobs.iter().map(|&l| f64::from(l)).sum::<f64>() as f32
}

/// Computes the loss of a micro-batch, whose first answer is that of the first item, and its slope at each token.
fn label_loss(kto: Kto, micro: MicroArrays<'_>, items: &[Item], of: (f64, f64)) -> LabelSums {
    let answers: Vec<Range<usize>> = micro.packed.sequences().collect();
    let labels: Vec<bool> = items[..answers.len()].iter().map(is_desirable).collect();
    let sums = |of: &[f32]| -> Vec<f32> { answers.iter().map(|tokens| sum(&of[tokens.clone()])).collect() };
    let (policy, reference) = (sums(micro.logprobs), sums(micro.ref_logprobs));
    let mut slopes = vec![0f32; answers.len()];
    let found = kto_loss(kto, [&policy, &reference], &labels, of, &mut slopes);
    for (tokens, slope) in answers.into_iter().zip(slopes) {
        micro.d_logprobs[tokens].fill(slope);
    }
    found
}

/// Returns the sums in the form of pairs: as many as there are answers, with the mean rewards of either label.
fn as_pairs(sums: &LabelSums) -> PairSums {
    let [undesirable, desirable] = sums.means(sums.rewards).map(|mean| mean * sums.answers());
    PairSums {
        loss: sums.loss,
        pairs: sums.answers(),
        correct: sums.correct,
        reward_chosen: desirable,
        reward_rejected: undesirable,
    }
}
