//! KL estimators with their gradients, the KL term of the loss, and the controllers of its coefficient.
//!
//! With d = l - l_ref in f32: k1 = d, k2 = d^2/2, k3 = exp(-d) - 1 + d; values are clipped to [-10, 10].
//! Values are computed in f32, operation by operation, because the reference implementations do: k3 of a small d
//! cancels, and the golden values hold that rounding. Gradients are f64.
//! Sources: joschu.net/blog/kl-approx.html; OpenRLHF 0.11.2 `compute_approx_kl`.

use plimsoll_base::math::{exp, exp_f32};

use crate::aggregation::Aggregation;
use crate::packed::Packed;

/// Values and log-ratios beyond this are clipped.
pub const KL_VALUE_MAX: f32 = 10.0;

/// Bound of the importance weight of the unbiased gradient.
pub const KL_RATIO_MAX: f64 = 10.0;

plimsoll_base::names! {
    /// The estimator of KL(policy || reference) from one sampled token.
    #[derive(Default)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    KlEstimator {
        /// d: unbiased, of either sign.
        K1 = "k1",
        /// d^2/2: biased, low variance.
        K2 = "k2",
        /// exp(-d) - 1 + d: unbiased, never negative.
        #[default]
        K3 = "k3",
    }
}

/// The KL term of the loss: coef * agg(k(l, l_ref)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KlLoss {
    /// The estimator.
    pub estimator: KlEstimator,
    /// Its coefficient, beta.
    pub coef: f64,
    /// Keeps the value, but replaces the gradient by min(rho, 10) d, which is unbiased for each estimator.
    pub unbiased: bool,
}

/// Sums of the KL over micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KlSums {
    /// Contribution to the loss, coefficient included.
    pub loss: f64,
    /// Sum of the estimator over trained tokens, without coefficient.
    pub kl: f64,
    /// Trained tokens.
    pub tokens: f64,
}

impl KlSums {
    /// Adds another micro-batch.
    pub fn merge(&mut self, other: KlSums) {
        self.loss += other.loss;
        self.kl += other.kl;
        self.tokens += other.tokens;
    }

    /// Returns the mean KL of trained tokens, the metric `kl`.
    pub fn mean_kl(&self) -> f64 {
        self.kl / self.tokens.max(1.0)
    }
}

/// Returns the value of an estimator.
pub fn kl_value(estimator: KlEstimator, logp: f32, ref_logp: f32) -> f32 {
    raw_value(estimator, logp - ref_logp).clamp(-KL_VALUE_MAX, KL_VALUE_MAX)
}

/// Returns d k / d logp; 0 where the value is clipped.
pub fn kl_gradient(estimator: KlEstimator, logp: f32, ref_logp: f32) -> f64 {
    let d = logp - ref_logp;
    if raw_value(estimator, d).abs() > KL_VALUE_MAX || (estimator == KlEstimator::K3 && d < -KL_VALUE_MAX) {
        return 0.0;
    }
    match estimator {
        KlEstimator::K1 => 1.0,
        KlEstimator::K2 => f64::from(d),
        KlEstimator::K3 => 1.0 - exp(-f64::from(d)),
    }
}

/// Returns the unbiased gradient, min(rho, 10) d with rho = exp(l - l_old); never clipped.
pub fn kl_unbiased_gradient(logp: f32, old_logp: f32, ref_logp: f32) -> f64 {
    let rho = exp(f64::from(logp) - f64::from(old_logp)).min(KL_RATIO_MAX);
    rho * f64::from(logp - ref_logp)
}

/// Adds the KL term's gradient to `d_logp`, [N], and returns its sums.
///
/// `old_logp` is read only for the unbiased gradient.
pub fn add_kl_loss(
    options: &KlLoss,
    batch: Packed<'_>,
    logp: &[f32],
    old_logp: &[f32],
    ref_logp: &[f32],
    aggregation: &Aggregation,
    d_logp: &mut [f32],
) -> KlSums {
    batch.assert_lengths([logp.len(), old_logp.len(), ref_logp.len(), d_logp.len()]);
    let mask = batch.mask;
    let mut sums = KlSums::default();
    for seq in batch.sequences() {
        let weight = options.coef * aggregation.token_weight(&mask[seq.clone()]);
        for t in seq {
            if mask[t] == 0.0 {
                continue;
            }
            let m = f64::from(mask[t]);
            let value = m * f64::from(kl_value(options.estimator, logp[t], ref_logp[t]));
            let gradient = if options.unbiased {
                kl_unbiased_gradient(logp[t], old_logp[t], ref_logp[t])
            } else {
                kl_gradient(options.estimator, logp[t], ref_logp[t])
            };
            sums.loss += weight * value;
            sums.kl += value;
            sums.tokens += m;
            d_logp[t] += (weight * m * gradient) as f32;
        }
    }
    sums
}

fn raw_value(estimator: KlEstimator, d: f32) -> f32 {
    match estimator {
        KlEstimator::K1 => d,
        KlEstimator::K2 => d * d / 2.0,
        KlEstimator::K3 => {
            // Bounded first: below -10 the value is beyond its clip anyway, and exp would overflow.
            let d = d.max(-KL_VALUE_MAX);
            exp_f32(-d) - 1.0 + d
        }
    }
}

/// The KL coefficient over a run.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlController {
    /// Constant.
    Fixed {
        /// beta.
        coef: f64,
    },
    /// Moves the coefficient so that the KL approaches `target` (arXiv 1909.08593, section 2.2).
    Adaptive {
        /// The current beta, which `update` changes.
        coef: f64,
        /// The KL to hold.
        target: f64,
        /// Samples over which a persistent error of 20 % changes the coefficient e^0.2-fold; 10000 elsewhere.
        horizon: f64,
    },
}

impl KlController {
    /// Returns the current coefficient.
    pub fn coef(&self) -> f64 {
        match *self {
            KlController::Fixed { coef } | KlController::Adaptive { coef, .. } => coef,
        }
    }

    /// Updates from the KL over `num_samples` samples: beta <- beta (1 + clip(KL/target - 1, +-0.2) N / horizon).
    pub fn update(&mut self, kl: f64, num_samples: usize) {
        if let KlController::Adaptive { coef, target, horizon } = self {
            let error = (kl / *target - 1.0).clamp(-0.2, 0.2);
            *coef *= 1.0 + error * num_samples as f64 / *horizon;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_clipped_and_have_no_gradient_there() {
        for estimator in [KlEstimator::K1, KlEstimator::K2, KlEstimator::K3] {
            assert_eq!(kl_value(estimator, -40.0, 0.0).abs(), 10.0, "{estimator:?}");
            assert_eq!(kl_value(estimator, 0.0, -40.0), 10.0, "{estimator:?}");
            assert_eq!(kl_gradient(estimator, -40.0, 0.0), 0.0, "{estimator:?}");
            assert_eq!(kl_gradient(estimator, 0.0, -40.0), 0.0, "{estimator:?}");
        }
    }

    #[test]
    fn unbiased_ratio_is_bounded() {
        assert_eq!(kl_unbiased_gradient(0.0, -30.0, -2.0), 20.0);
    }

    #[test]
    fn fixed_controller_does_not_move() {
        let mut fixed = KlController::Fixed { coef: 0.01 };
        fixed.update(100.0, 1000);
        assert_eq!(fixed.coef(), 0.01);
    }
}
