//! The optimal token baseline: the mean of a group's returns at a token, in which a sample counts by how much the
//! gradients of its tokens so far vary (verl 0.9's `optimal_token_baseline`).
//!
//! With p the distribution at a token and y the token drawn, the squared norm of the gradient of log p_y by the logits
//! is w = 1 - 2 p_y + sum of p^2. W_t is the sum of w over a sample's tokens up to t, and the baseline at t is
//! sum(W_t G_t) / sum(W_t) over the samples of the prompt that have a token there. The one sample that is longer than
//! all others has none beyond them.
//!
//! The sum of p^2 needs no other pass over the vocabulary. With q the policy at half the temperature,
//! log q_y = 2 x_y - lse(2 x) and log p_y = x_y - lse(x), so 2 log p_y - log q_y = lse(2 x) - 2 lse(x), which is
//! log(sum of p^2).

use crate::packed::Packed;
use plimsoll_base::math::exp;
use std::ops::Range;

/// Added to the sum of weights, as in verl.
const EPSILON: f64 = 1e-8;

/// Subtracts the baseline from `advantages`, [N], which are returns on entry. `prompts`: [B], the prompt of each
/// sequence, those of one next to each other. `logp`, `sharp_logp`: [N], of the drawn tokens at the temperature and at
/// half of it; `sharp_logp` is overwritten with W. A sample without another to compare it with learns nothing.
pub fn subtract_optimal(
    batch: Packed<'_>,
    prompts: &[usize],
    logp: &[f32],
    sharp_logp: &mut [f32],
    advantages: &mut [f32],
) {
    batch.assert_lengths([logp.len(), sharp_logp.len(), advantages.len()]);
    assert_eq!(prompts.len() + 1, batch.seq_offsets.len(), "a prompt for each sequence");
    batch.sequences().for_each(|seq| accumulate(batch.mask, logp, sharp_logp, seq));
    let mut first = 0;
    for group in prompts.chunk_by(|a, b| a == b) {
        let sequences: Vec<Range<usize>> = batch.sequences().skip(first).take(group.len()).collect();
        subtract_from_group(batch.mask, &sequences, sharp_logp, advantages);
        first += group.len();
    }
}

/// Overwrites the log-probs at half the temperature with W.
fn accumulate(mask: &[f32], logp: &[f32], sharp_logp: &mut [f32], seq: Range<usize>) {
    let mut sum = 0.0;
    for t in seq {
        if mask[t] != 0.0 {
            let (p, q) = (f64::from(logp[t]), f64::from(sharp_logp[t]));
            sum += 1.0 - 2.0 * exp(p) + exp(2.0 * p - q);
        }
        sharp_logp[t] = sum as f32;
    }
}

fn subtract_from_group(mask: &[f32], sequences: &[Range<usize>], weights: &[f32], advantages: &mut [f32]) {
    let trained = |seq: &Range<usize>| seq.clone().filter(|&t| mask[t] != 0.0).count();
    let (mut longest, mut second) = (0, 0);
    for length in sequences.iter().map(trained) {
        (longest, second) = (longest.max(length), second.max(length.min(longest)));
    }
    if second == 0 {
        sequences.iter().for_each(|seq| advantages[seq.clone()].fill(0.0));
        return;
    }
    for at in 0..longest {
        let here = || sequences.iter().map(|seq| seq.start + at).zip(sequences);
        let tokens = || here().filter(|(t, seq)| *t < seq.end && mask[*t] != 0.0).map(|(t, _)| t);
        let weight = |t: usize| f64::from(weights[t]);
        let baseline = if at < second {
            let sum: f64 = tokens().map(|t| weight(t) * f64::from(advantages[t])).sum();
            sum / (tokens().map(weight).sum::<f64>() + EPSILON)
        } else {
            0.0
        };
        for t in tokens().collect::<Vec<_>>() {
            advantages[t] = (f64::from(advantages[t]) - baseline) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_counts_by_its_gradients_so_far() {
        // Two prompts of two samples; the tail of the longer has no baseline, and a lone sample learns nothing.
        let mask = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0];
        let packed = Packed { mask: &mask, seq_offsets: &[0, 3, 5, 6, 7] };
        // Two tokens of equal probability: the sum of squares is 1/2, and so is w. One that is certain: w is 0.
        let (even, sure) = (0.5f32.ln(), 0.0);
        let logp = [even, even, even, even, sure, even, even];
        let mut sharp = logp; // At half the temperature a half stays a half, and what is certain is certain.
        let mut advantages = [1.0, 1.0, 1.0, 0.0, 0.0, 5.0, 5.0];
        subtract_optimal(packed, &[0, 0, 1, 1], &logp, &mut sharp, &mut advantages);
        let near = |i: usize, x: f32| assert!((advantages[i] - x).abs() < 1e-6, "{i}: {advantages:?}");
        near(0, 0.5);
        near(3, -0.5);
        near(1, 1.0 - 1.0 / 1.5); // W 1 and 1/2.
        near(4, -1.0 / 1.5);
        near(2, 1.0);
        near(5, 0.0);
    }
}
