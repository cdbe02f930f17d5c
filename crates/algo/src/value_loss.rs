//! The critic's loss, with PPO's value clip: v_c = v_old + clip(v - v_old, +-e), 0.5 agg(max((v_c - R)^2, (v - R)^2)).
//!
//! e is 0.5 in verl and OpenRLHF, 0.2 in TRL and Open-Reasoner-Zero.

use crate::aggregation::Aggregation;
use crate::packed::Packed;

/// One packed batch of the critic; all slices [N].
#[derive(Clone, Copy, Debug)]
pub struct ValueBatch<'a> {
    /// Mask and sequences.
    pub packed: Packed<'a>,
    /// v, of the current critic.
    pub values: &'a [f32],
    /// v_old, when the experience was made; read only with a clip.
    pub old_values: &'a [f32],
    /// R, the targets.
    pub returns: &'a [f32],
}

/// Sums of the value loss over micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ValueSums {
    /// Contribution to the loss of the step.
    pub loss: f64,
    /// Trained tokens.
    pub tokens: f64,
    /// Tokens whose clipped error was the larger.
    pub clipped: f64,
    returns: f64,
    returns_squared: f64,
    errors: f64,
    errors_squared: f64,
}

impl ValueSums {
    /// Adds another micro-batch.
    pub fn merge(&mut self, other: ValueSums) {
        self.loss += other.loss;
        self.tokens += other.tokens;
        self.clipped += other.clipped;
        self.returns += other.returns;
        self.returns_squared += other.returns_squared;
        self.errors += other.errors;
        self.errors_squared += other.errors_squared;
    }

    /// Returns the share of tokens whose clipped error was the larger.
    pub fn clip_ratio(&self) -> f64 {
        self.clipped / self.tokens.max(1.0)
    }

    /// Returns 1 - Var(R - v) / Var(R), the metric `value/explained_variance`; 0 if the returns do not vary.
    pub fn explained_variance(&self) -> f64 {
        let n = self.tokens.max(1.0);
        let variance = |sum: f64, squares: f64| squares / n - (sum / n) * (sum / n);
        let of_returns = variance(self.returns, self.returns_squared);
        // Rounding leaves about 1e-12 of the squares when all returns are equal.
        if of_returns <= 1e-12 * self.returns_squared / n {
            return 0.0;
        }
        1.0 - variance(self.errors, self.errors_squared) / of_returns
    }
}

/// Computes the value loss: writes d loss / d v into `d_values`, [N], exactly 0 where masked, and returns its sums.
pub fn value_loss(
    clip: Option<f64>,
    batch: &ValueBatch<'_>,
    aggregation: &Aggregation,
    d_values: &mut [f32],
) -> ValueSums {
    let ValueBatch { packed, values, old_values, returns } = *batch;
    packed.assert_lengths([values.len(), old_values.len(), returns.len(), d_values.len()]);
    let mut sums = ValueSums::default();
    for seq in packed.sequences() {
        let weight = aggregation.token_weight(&packed.mask[seq.clone()]);
        for t in seq {
            d_values[t] = 0.0;
            if packed.mask[t] == 0.0 {
                continue;
            }
            let m = f64::from(packed.mask[t]);
            let (v, ret) = (f64::from(values[t]), f64::from(returns[t]));
            let free = v - ret;
            let held = clip.map_or(free, |bound| held_value(v, f64::from(old_values[t]), bound) - ret);
            let clipped = held * held > free * free;
            let error = if clipped { held } else { free };
            sums.loss += 0.5 * weight * m * error * error;
            sums.count(m, clipped, ret, free);
            if !clipped {
                d_values[t] = (weight * m * free) as f32;
            }
        }
    }
    sums
}

impl ValueSums {
    fn count(&mut self, m: f64, clipped: bool, ret: f64, error: f64) {
        self.tokens += m;
        self.clipped += if clipped { m } else { 0.0 };
        self.returns += m * ret;
        self.returns_squared += m * ret * ret;
        self.errors += m * error;
        self.errors_squared += m * error * error;
    }
}

/// Returns v clipped to within `bound` of `old`; exactly v inside, which v_old + (v - v_old) need not be.
fn held_value(v: f64, old: f64, bound: f64) -> f64 {
    if (v - old).abs() <= bound { v } else { old + (v - old).clamp(-bound, bound) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregation::AggregationKind;

    #[test]
    fn explained_variance_of_perfect_constant_and_flat() {
        let check = |values: [f32; 4], returns: [f32; 4], expect: f64| {
            let packed = Packed { mask: &[1.0; 4], seq_offsets: &[0, 4] };
            let batch = ValueBatch { packed, values: &values, old_values: &values, returns: &returns };
            let agg = Aggregation::of_batch(AggregationKind::TokenMean, packed, 1.0);
            let got = value_loss(None, &batch, &agg, &mut [0.0; 4]).explained_variance();
            assert!((got - expect).abs() < 1e-12, "{values:?} {returns:?}: {got}");
        };
        check([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0], 1.0);
        check([2.5; 4], [1.0, 2.0, 3.0, 4.0], 0.0);
        check([0.3; 4], [0.1; 4], 0.0);
    }
}
