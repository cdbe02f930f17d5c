//! The entropy bonus, -coef agg(H). The head computes the exact entropy of a position over the vocabulary, and its
//! gradient with respect to the logits; here is only its place in the loss.

use crate::aggregation::Aggregation;
use crate::packed::Packed;

/// Sums of the entropy over micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EntropySums {
    /// Contribution to the loss, coefficient included.
    pub loss: f64,
    /// Sum of the entropy over trained tokens.
    pub entropy: f64,
    /// Trained tokens.
    pub tokens: f64,
}

impl EntropySums {
    /// Adds another micro-batch.
    pub fn merge(&mut self, other: EntropySums) {
        self.loss += other.loss;
        self.entropy += other.entropy;
        self.tokens += other.tokens;
    }

    /// Returns the mean over trained tokens, the metric `entropy`.
    pub fn mean_entropy(&self) -> f64 {
        self.entropy / self.tokens.max(1.0)
    }
}

/// Writes d loss / d H into `d_entropy`, [N], and returns the sums; with `coef` = 0 it is a metric and the row is 0.
pub fn entropy_bonus(
    coef: f64,
    batch: Packed<'_>,
    entropy: &[f32],
    aggregation: &Aggregation,
    d_entropy: &mut [f32],
) -> EntropySums {
    batch.assert_lengths([entropy.len(), d_entropy.len()]);
    let mut sums = EntropySums::default();
    for seq in batch.sequences() {
        let weight = coef * aggregation.token_weight(&batch.mask[seq.clone()]);
        for t in seq {
            d_entropy[t] = 0.0;
            if batch.mask[t] == 0.0 {
                continue;
            }
            let m = f64::from(batch.mask[t]);
            sums.loss -= weight * m * f64::from(entropy[t]);
            sums.entropy += m * f64::from(entropy[t]);
            sums.tokens += m;
            if coef != 0.0 {
                d_entropy[t] = (-weight * m) as f32; // not -0.0 where there is no bonus
            }
        }
    }
    sums
}
