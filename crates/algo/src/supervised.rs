//! The supervised loss: -l on the completion's tokens.

use crate::aggregation::Aggregation;
use crate::packed::Packed;

/// Sums of the supervised loss over micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SftSums {
    /// Contribution to the loss of the step.
    pub loss: f64,
    /// Sum of -l over trained tokens.
    pub nll: f64,
    /// Trained tokens.
    pub tokens: f64,
}

impl SftSums {
    /// Adds another micro-batch.
    pub fn merge(&mut self, other: SftSums) {
        self.loss += other.loss;
        self.nll += other.nll;
        self.tokens += other.tokens;
    }

    /// Returns the mean of -l over trained tokens, for any aggregation.
    pub fn mean_nll(&self) -> f64 {
        self.nll / self.tokens.max(1.0)
    }
}

/// Writes d loss / d l = -m w into `d_logp`, [N], and returns the sums; the token mean is `AggregationKind::TokenMean`.
pub fn sft_loss(batch: Packed<'_>, logp: &[f32], aggregation: &Aggregation, d_logp: &mut [f32]) -> SftSums {
    batch.assert_lengths([logp.len(), d_logp.len()]);
    let mut sums = SftSums::default();
    for seq in batch.sequences() {
        let weight = aggregation.token_weight(&batch.mask[seq.clone()]);
        for t in seq {
            d_logp[t] = 0.0;
            if batch.mask[t] == 0.0 {
                continue;
            }
            let m = f64::from(batch.mask[t]);
            let nll = -m * f64::from(logp[t]);
            sums.loss += weight * nll;
            sums.nll += nll;
            sums.tokens += m;
            d_logp[t] = (-weight * m) as f32;
        }
    }
    sums
}
