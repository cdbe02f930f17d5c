//! Corrects rollouts that another policy version or another engine made: w = exp(l_old - l_roll), detached.
//!
//! Off when the policy versions agree: here the rollout's log-probs are those of the trainer, bit for bit, and w is
//! exactly 1. Sources: fengyao.notion.site/off-policy-rl (TIS); IcePop (Ring-1T report); OpenRLHF 0.11.2 `PolicyLoss`.

use plimsoll_base::math::exp;

use crate::packed::{self, Packed};
use crate::policy_loss::LOG_RATIO_MAX;

plimsoll_base::names! {
    /// How samples of another policy version are corrected; with a band it is a `Correction`.
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    CorrectionKind {
        /// A token's weight is cut to the band.
        Tis = "tis",
        /// Tokens whose weight leaves the band are dropped.
        IcePop = "icepop",
        /// Sequences whose mean weight leaves the band are dropped.
        SequenceMask = "sequence_mask",
        /// Sequences whose product of weights leaves the band are dropped.
        SequenceMaskSum = "sequence_mask_sum",
    }
}

impl CorrectionKind {
    /// Returns the correction with a band.
    pub const fn within(self, [low, high]: [f64; 2]) -> Correction {
        let statistic = match self {
            CorrectionKind::Tis => return Correction::Truncate { low, high },
            CorrectionKind::IcePop => return Correction::Drop { low, high },
            CorrectionKind::SequenceMask => SequenceRatio::GeometricMean,
            CorrectionKind::SequenceMaskSum => SequenceRatio::Product,
        };
        Correction::DropSequence { statistic, low, high }
    }
}

/// Says what happens to ratios outside the band.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Correction {
    /// TIS: w <- clip(w, low, high).
    Truncate {
        /// Lower bound.
        low: f64,
        /// Upper bound.
        high: f64,
    },
    /// IcePop: w <- w [low <= w <= high].
    Drop {
        /// Lower bound.
        low: f64,
        /// Upper bound.
        high: f64,
    },
    /// Drops whole sequences whose statistic leaves the band; tokens of the others keep their own w.
    DropSequence {
        /// The statistic.
        statistic: SequenceRatio,
        /// Lower bound.
        low: f64,
        /// Upper bound.
        high: f64,
    },
}

/// How a sequence's ratios become one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceRatio {
    /// exp(mean of log w).
    GeometricMean,
    /// exp(sum of log w), the ratio of the whole sequence.
    Product,
}

/// Sums of a correction over micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CorrectionSums {
    /// Tokens, or sequences for `DropSequence`, outside the band.
    pub outside: f64,
    /// Tokens, or sequences, tested.
    pub units: f64,
    /// Sum of l_roll - l_old over trained tokens.
    pub kl_to_rollout: f64,
    /// Largest |l_old - l_roll|; the metric `rollout/logprob_mismatch_max`.
    pub mismatch_max: f64,
    /// Trained tokens.
    pub tokens: f64,
    /// Sum of the applied factors.
    pub weights: f64,
    /// Trained tokens whose factor is 0.
    pub masked: f64,
}

impl CorrectionSums {
    /// Adds another micro-batch.
    pub fn merge(&mut self, other: CorrectionSums) {
        self.outside += other.outside;
        self.units += other.units;
        self.kl_to_rollout += other.kl_to_rollout;
        self.mismatch_max = self.mismatch_max.max(other.mismatch_max);
        self.tokens += other.tokens;
        self.weights += other.weights;
        self.masked += other.masked;
    }

    /// Returns the mean factor of trained tokens, the metric `correction/mean`; 1 without tokens.
    pub fn mean_weight(&self) -> f64 {
        if self.tokens > 0.0 { self.weights / self.tokens } else { 1.0 }
    }

    /// Returns the share of trained tokens that are dropped, the metric `correction/masked_share`.
    pub fn masked_share(&self) -> f64 {
        self.masked / self.tokens.max(1.0)
    }

    /// Returns the share of units outside the band, the metric `correction/outside_share`.
    pub fn outside_ratio(&self) -> f64 {
        self.outside / self.units.max(1.0)
    }
}

/// Writes the factor of each token's loss into `weights`, [N]; exactly 0 where masked.
pub fn correction_weights(
    correction: Correction,
    batch: Packed<'_>,
    old_logp: &[f32],
    rollout_logp: &[f32],
    weights: &mut [f32],
) -> CorrectionSums {
    batch.assert_lengths([old_logp.len(), rollout_logp.len(), weights.len()]);
    let mut sums = CorrectionSums::default();
    let log_weight = |t: usize| f64::from(old_logp[t]) - f64::from(rollout_logp[t]);
    for seq in batch.sequences() {
        let trained = seq.clone().filter(|&t| batch.mask[t] != 0.0);
        let keep_sequence =
            keeps_sequence(correction, &batch.mask[seq.clone()], trained.clone().map(log_weight));
        if let (Correction::DropSequence { .. }, Some(_)) = (correction, trained.clone().next()) {
            sums.units += 1.0;
            sums.outside += if keep_sequence { 0.0 } else { 1.0 };
        }
        weights[seq].fill(0.0);
        for t in trained {
            let weight = exp(log_weight(t).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX));
            sums.tokens += 1.0;
            sums.kl_to_rollout -= log_weight(t);
            sums.mismatch_max = sums.mismatch_max.max(log_weight(t).abs());
            weights[t] = match correction {
                Correction::Truncate { low, high } => {
                    count_token(&mut sums, low <= weight && weight <= high);
                    weight.max(low).min(high) as f32
                }
                Correction::Drop { low, high } => {
                    let inside = low <= weight && weight <= high;
                    count_token(&mut sums, inside);
                    if inside { weight as f32 } else { 0.0 }
                }
                Correction::DropSequence { .. } if !keep_sequence => 0.0,
                Correction::DropSequence { .. } => weight as f32,
            };
            sums.weights += f64::from(weights[t]);
            sums.masked += if weights[t] == 0.0 { 1.0 } else { 0.0 };
        }
    }
    sums
}

fn count_token(sums: &mut CorrectionSums, inside: bool) {
    sums.units += 1.0;
    sums.outside += if inside { 0.0 } else { 1.0 };
}

fn keeps_sequence(correction: Correction, seq_mask: &[f32], log_weights: impl Iterator<Item = f64>) -> bool {
    let Correction::DropSequence { statistic, low, high } = correction else { return true };
    let sum: f64 = log_weights.sum();
    let log_ratio = match statistic {
        SequenceRatio::GeometricMean => sum / packed::sum(seq_mask).max(1.0),
        SequenceRatio::Product => sum,
    };
    let ratio = exp(log_ratio);
    low <= ratio && ratio <= high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_rollouts_have_weight_exactly_one() {
        let logp = [-0.1, -3.7, f32::NAN, -20.3];
        let batch = Packed { mask: &[1.0, 1.0, 0.0, 1.0], seq_offsets: &[0, 2, 4] };
        for correction in [
            Correction::Truncate { low: 0.5, high: 5.0 },
            Correction::Drop { low: 0.5, high: 5.0 },
            Correction::DropSequence { statistic: SequenceRatio::Product, low: 0.5, high: 2.0 },
        ] {
            let mut weights = [f32::NAN; 4];
            let sums = correction_weights(correction, batch, &logp, &logp, &mut weights);
            assert_eq!(weights, [1.0, 1.0, 0.0, 1.0], "{correction:?}");
            assert_eq!((sums.outside, sums.mismatch_max), (0.0, 0.0));
            assert_eq!((sums.mean_weight(), sums.masked_share()), (1.0, 0.0));
        }
    }

    #[test]
    fn product_grows_with_length_where_the_mean_does_not() {
        let (old, roll) = ([0.0f32; 8], [-0.2f32; 8]);
        let batch = Packed { mask: &[1.0; 8], seq_offsets: &[0, 8] };
        for (statistic, kept) in [(SequenceRatio::GeometricMean, true), (SequenceRatio::Product, false)] {
            let correction = Correction::DropSequence { statistic, low: 0.0, high: 3.0 };
            let mut weights = [f32::NAN; 8];
            let sums = correction_weights(correction, batch, &old, &roll, &mut weights);
            assert_eq!(sums.outside == 0.0, kept, "{statistic:?}");
            assert_eq!(weights[0] != 0.0, kept, "{statistic:?}");
            assert_eq!(sums.masked_share(), if kept { 0.0 } else { 1.0 }, "{statistic:?}");
        }
    }
}
