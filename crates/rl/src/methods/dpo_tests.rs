//! The loss of pairs against its formula, and how a step is cut into micro-batches.

use super::*;
use plimsoll_plan::StepArrays;

const BETA: f64 = 0.3;
const LOSS: PreferenceLoss = PreferenceLoss::Dpo { beta: BETA, label_smoothing: 0.0 };

/// Three pairs: answers of these lengths, chosen before rejected.
const LENGTHS: [usize; 6] = [3, 1, 2, 2, 1, 4];

fn buffers() -> TokenArrays {
    let mut buffers = TokenArrays::bind(&StepArrays { sequences: 6, response_tokens: 4, parts: Vec::new() });
    buffers.begin(LENGTHS.into_iter());
    for t in 0..buffers.logprobs.len() {
        buffers.logprobs[t] = -0.3 - 0.17 * (t * 5 % 7) as f32;
        buffers.ref_logprobs[t] = -0.4 - 0.11 * (t * 3 % 5) as f32;
    }
    buffers
}

/// The loss of some pairs of a step of three, and what it adds to the log-probabilities of both halves.
fn of_pairs(buffers: &mut TokenArrays, pairs: Range<usize>) -> (PairSums, [f64; 2]) {
    let which = 2 * pairs.start..2 * pairs.end;
    buffers.set_micro(&which);
    let (tokens, mut logps) = (buffers.tokens(&which), [0.0; 2]);
    let sums =
        pair_loss(LOSS, buffers.micro_batch(tokens), Totals { pairs: 3.0, chosen_tokens: 1.0 }, &mut logps);
    (sums, logps)
}

#[test]
fn the_loss_is_that_of_the_formula_and_each_token_has_the_slope_of_its_answer() {
    let mut buffers = buffers();
    let sum = |of: &[f32], i: usize| {
        let first: usize = LENGTHS[..i].iter().sum();
        of[first..first + LENGTHS[i]].iter().map(|&l| f64::from(l)).sum::<f64>()
    };
    let further = |i: usize| sum(&buffers.logprobs, i) - sum(&buffers.ref_logprobs, i);
    let h: Vec<f64> = (0..3).map(|pair| BETA * (further(2 * pair) - further(2 * pair + 1))).collect();
    let expect = h.iter().map(|h| (1.0 + (-h).exp()).ln()).sum::<f64>() / 3.0;
    let slopes: Vec<f64> = h.iter().map(|h| -BETA / (1.0 + h.exp()) / 3.0).collect();
    let (sums, logps) = of_pairs(&mut buffers, 0..3);
    assert!((sums.loss - expect).abs() < 1e-6, "{} for {expect}", sums.loss);
    let right = h.iter().filter(|h| **h > 0.0).count() as f64 / 3.0;
    assert!((sums.accuracy() - right).abs() < 1e-9, "{h:?}");
    let chosen: f64 = [0, 2, 4].map(|i| sum(&buffers.logprobs, i)).iter().sum();
    assert!((logps[0] - chosen).abs() < 1e-5);
    for (i, tokens) in buffers.offsets.windows(2).enumerate() {
        let sign = if i % 2 == 0 { 1.0 } else { -1.0 };
        for t in tokens[0]..tokens[1] {
            let found = f64::from(buffers.d_logprobs[t]);
            assert!((found - sign * slopes[i / 2]).abs() < 1e-6, "token {t}: {found}");
        }
    }
}

#[test]
fn micro_batches_add_up_to_the_step() {
    let (mut whole, mut parts) = (buffers(), buffers());
    let (all, logps) = of_pairs(&mut whole, 0..3);
    let (mut sums, mut added) = (PairSums::default(), [0.0; 2]);
    for pairs in [0..1, 1..3] {
        let (micro, more) = of_pairs(&mut parts, pairs);
        sums.merge(micro);
        added.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    }
    assert!((sums.loss - all.loss).abs() < 1e-12 && (added[1] - logps[1]).abs() < 1e-9);
    assert_eq!((sums.pairs, sums.accuracy()), (3.0, all.accuracy()));
    assert_eq!(parts.d_logprobs, whole.d_logprobs);
}
