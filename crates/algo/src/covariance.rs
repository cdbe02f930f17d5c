//! Tokens whose probability and advantage move together most, which is where a policy's entropy goes: learning less
//! from a few of them keeps it (arXiv 2505.22617, "The Entropy Mechanism of Reinforcement Learning").
//!
//! A trained token's covariance is (l_old - mean of l_old)(A - mean of A), with means over the trained tokens of the
//! step. Before the first update of a step l_old is l, so this is what verl 0.9 computes there; verl computes it again
//! in each micro-batch, over the tokens of that alone. Here it is of the whole step, so no cut of it moves a bit.

use crate::aggregation::Aggregation;
use crate::packed::Packed;
use plimsoll_base::rng::{Stream, philox};

plimsoll_base::names! {
    /// Kinds of restraint on tokens of high covariance; with its numbers one is a `Covariance`.
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    CovarianceKind {
        /// Some of them, drawn at random, do not learn.
        Clip = "clip",
        /// The highest are held to where they were.
        Kl = "kl",
    }
}

/// Restrains tokens of high covariance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Covariance {
    /// Clip-Cov: tokens with a covariance inside a band, drawn at random, do not learn.
    Clip {
        /// The most tokens drawn, as a share of those trained; at least one.
        share: f64,
        /// The band, both ends outside.
        band: [f64; 2],
    },
    /// KL-Cov: the tokens of the highest covariance have coef |l - l_old| added to their loss.
    Kl {
        /// Tokens that are held, as a share of those trained; at least one.
        share: f64,
        /// The coefficient.
        coef: f64,
    },
}

/// Holds what was found in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CovarianceSums {
    /// Trained tokens.
    pub tokens: f64,
    /// Sum of their covariances.
    pub covariance: f64,
    /// Tokens that do not learn or are held.
    pub chosen: f64,
}

impl CovarianceSums {
    /// Returns the covariance of l_old and A over trained tokens, the metric `covariance/mean`.
    pub fn mean(&self) -> f64 {
        self.covariance / self.tokens.max(1.0)
    }

    /// Returns the share of trained tokens that were chosen, the metric `covariance/chosen_share`.
    pub fn chosen_share(&self) -> f64 {
        self.chosen / self.tokens.max(1.0)
    }
}

/// Chooses tokens by their covariance: `Clip` sets their `advantages`, [N], to 0, `Kl` their `penalties`, [N], to the
/// coefficient; all other penalties stay. `draw`: the run's seed and the step, which the choice of `Clip` follows from.
/// `of_tokens`: scratch with room for N.
pub fn choose(
    how: Covariance,
    batch: Packed<'_>,
    old_logp: &[f32],
    advantages: &mut [f32],
    penalties: &mut [f32],
    draw: (u64, u64),
    of_tokens: &mut Vec<(usize, f64)>,
) -> CovarianceSums {
    batch.assert_lengths([old_logp.len(), advantages.len(), penalties.len()]);
    covariances(batch, old_logp, advantages, of_tokens);
    let mut sums = CovarianceSums {
        tokens: of_tokens.len() as f64,
        covariance: of_tokens.iter().map(|(_, covariance)| covariance).sum(),
        chosen: 0.0,
    };
    let count = |share: f64| ((sums.tokens * share) as usize).max(1);
    match how {
        Covariance::Clip { share, band: [low, high] } => {
            of_tokens.retain(|(_, covariance)| low < *covariance && *covariance < high);
            let number = |token: usize| philox(draw.0, Stream::Covariance, token as u64, draw.1);
            of_tokens.sort_unstable_by_key(|(token, _)| (number(*token), *token));
            of_tokens.truncate(count(share));
            of_tokens.iter().for_each(|(token, _)| advantages[*token] = 0.0);
        }
        Covariance::Kl { share, coef } => {
            // The first of equals, so that nothing depends on how they are sorted.
            of_tokens.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            of_tokens.truncate(count(share));
            of_tokens.iter().for_each(|(token, _)| penalties[*token] = coef as f32);
        }
    }
    sums.chosen = of_tokens.len() as f64;
    sums
}

/// Writes each trained token with its covariance.
fn covariances(batch: Packed<'_>, old_logp: &[f32], advantages: &[f32], out: &mut Vec<(usize, f64)>) {
    let trained = || (0..batch.mask.len()).filter(|&t| batch.mask[t] != 0.0);
    let count = trained().count().max(1) as f64;
    let mean = |of: &[f32]| trained().map(|t| f64::from(of[t])).sum::<f64>() / count;
    let (logp, advantage) = (mean(old_logp), mean(advantages));
    let of = |t: usize| (t, (f64::from(old_logp[t]) - logp) * (f64::from(advantages[t]) - advantage));
    out.clear();
    out.extend(trained().map(of));
}

/// Adds each token's penalty |l - l_old| to the loss: its derivative to `d_logp`, [N]. Returns what the loss gains.
///
/// The derivative of a token that has not moved is 0, so that the first update of a step knows no penalty.
pub fn add_penalties(
    penalties: &[f32],
    batch: Packed<'_>,
    logp: &[f32],
    old_logp: &[f32],
    aggregation: &Aggregation,
    d_logp: &mut [f32],
) -> f64 {
    batch.assert_lengths([penalties.len(), logp.len(), old_logp.len(), d_logp.len()]);
    let mut loss = 0.0;
    for seq in batch.sequences() {
        let weight = aggregation.token_weight(&batch.mask[seq.clone()]);
        for t in seq.filter(|&t| batch.mask[t] != 0.0 && penalties[t] != 0.0) {
            let moved = f64::from(logp[t]) - f64::from(old_logp[t]);
            let factor = weight * f64::from(batch.mask[t]) * f64::from(penalties[t]);
            loss += factor * moved.abs();
            if moved != 0.0 {
                d_logp[t] = (f64::from(d_logp[t]) + factor * moved.signum()) as f32;
            }
        }
    }
    loss
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregation::AggregationKind;

    const OLD: [f32; 6] = [-0.1, -4.0, f32::NAN, -0.2, -3.0, -2.0];
    const ADVANTAGES: [f32; 6] = [2.0, -2.0, f32::NAN, 1.0, 0.5, -1.5];
    const MASK: [f32; 6] = [1.0, 1.0, 0.0, 1.0, 1.0, 1.0];

    fn chosen(how: Covariance, draw: (u64, u64)) -> (Vec<usize>, CovarianceSums) {
        let packed = Packed { mask: &MASK, seq_offsets: &[0, 3, 6] };
        let (mut advantages, mut penalties) = (ADVANTAGES, [0.0; 6]);
        let sums = choose(how, packed, &OLD, &mut advantages, &mut penalties, draw, &mut Vec::new());
        let changed =
            |t: &usize| advantages[*t].to_bits() != ADVANTAGES[*t].to_bits() || penalties[*t] != 0.0;
        ((0..6).filter(changed).collect(), sums)
    }

    #[test]
    fn tokens_inside_the_band_are_drawn_and_those_outside_never() {
        // Means -1.86 and 0: covariances 3.52, 4.28, masked, 1.66, -0.57, 0.21.
        let all = |share, band| chosen(Covariance::Clip { share, band }, (7, 1));
        assert_eq!(all(1.0, [1.0, 5.0]).0, [0, 1, 3]);
        assert_eq!(all(1.0, [1.0, 4.0]).0, [0, 3]);
        assert!(all(1.0, [5.0, 9.0]).0.is_empty());
        // A share of less than a token is one, which differs from step to step and not from call to call.
        let one = |step| chosen(Covariance::Clip { share: 1e-4, band: [1.0, 5.0] }, (7, step)).0;
        assert!((0..20).all(|step| one(step).len() == 1 && one(step) == one(step)));
        assert!((0..20).any(|step| one(step) != one(0)));
        let sums = all(1.0, [1.0, 5.0]).1;
        assert_eq!((sums.tokens, sums.chosen_share()), (5.0, 0.6));
        assert!(
            (sums.mean() - (1.76 * 2.0 + 2.14 * 2.0 + 1.66 - 1.14 * 0.5 + 0.14 * 1.5) / 5.0).abs() < 1e-6
        );
    }

    #[test]
    fn the_highest_are_held_and_the_first_of_equals() {
        assert_eq!(chosen(Covariance::Kl { share: 0.4, coef: 1.0 }, (0, 0)).0, [0, 1]);
        assert_eq!(chosen(Covariance::Kl { share: 0.01, coef: 1.0 }, (0, 0)).0, [1]);
        let packed = Packed { mask: &[1.0; 4], seq_offsets: &[0, 4] };
        let mut penalties = [0.0; 4];
        let how = Covariance::Kl { share: 0.5, coef: 0.5 };
        choose(how, packed, &[-1.0; 4], &mut [1.0; 4], &mut penalties, (0, 0), &mut Vec::new());
        assert_eq!(penalties, [0.5, 0.5, 0.0, 0.0]);
    }

    #[test]
    fn a_penalty_pulls_a_token_back_to_where_it_was() {
        let packed = Packed { mask: &MASK, seq_offsets: &[0, 3, 6] };
        let aggregation = Aggregation::of_batch(AggregationKind::TokenMean, packed, 1.0);
        let logp = [-0.1, -3.5, f32::NAN, -0.7, -3.0, -2.0];
        let mut d_logp = [0.25; 6];
        let penalties = [1.0, 1.0, 1.0, 2.0, 0.0, 1.0];
        let loss = add_penalties(&penalties, packed, &logp, &OLD, &aggregation, &mut d_logp);
        assert!((loss - (0.5 + 2.0 * 0.5) / 5.0).abs() < 1e-7, "{loss}");
        assert_eq!(d_logp, [0.25, 0.25 + 0.2, 0.25, 0.25 - 0.4, 0.25, 0.25]);
    }
}
