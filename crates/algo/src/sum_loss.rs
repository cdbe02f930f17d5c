//! Losses that are sums over tokens, as clients of Tinker's API ask for: the client scales its weights and advantages,
//! so nothing here is a mean, and there is no mask but a weight or an advantage of 0.
//!
//! With p the trainer's log-prob of a target, q the sampler's, r = exp(p - q), A the advantage, w the weight.
//! Thresholds are bounds of r itself, not distances from 1. Source: Tinker's documentation of losses; GSPO: arXiv
//! 2507.18071.

use plimsoll_base::math::exp;
use std::ops::Range;

/// A loss with its options.
#[derive(Clone, Copy, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
pub enum SumLoss {
    /// -sum w p. The weight can have any sign.
    CrossEntropy,
    /// -sum r A.
    ImportanceSampling,
    /// -sum min(r A, clip(r) A).
    Ppo {
        /// Bounds of r.
        clip: [f64; 2],
    },
    /// -sum sg(clip(r)) p A.
    Cispo {
        /// Bounds of r.
        clip: [f64; 2],
    },
    /// -sum (p A - beta / 2 (p - q)^2).
    Dro {
        /// The weight of the squared log-ratio.
        beta: f64,
    },
    /// PPO with one ratio for a sequence: exp of the mean of p - q over the mask.
    Gspo {
        /// Bounds of the ratio.
        clip: [f64; 2],
    },
}

/// Sequences one after another. Slices that a loss does not read can be empty.
#[derive(Clone, Copy, Debug)]
pub struct SumBatch<'a> {
    /// [N]: p.
    pub logp: &'a [f32],
    /// [N]: w, of `CrossEntropy`.
    pub weights: &'a [f32],
    /// [N]: q, of the others.
    pub old_logp: &'a [f32],
    /// [N]: A, of the others.
    pub advantages: &'a [f32],
    /// [N]: 1 for the tokens of which `Gspo` takes the mean; others 0.
    pub ratio_mask: &'a [f32],
    /// [B + 1]: sequence i is `seq_offsets[i]..seq_offsets[i + 1]`.
    pub seq_offsets: &'a [usize],
}

/// What a loss was over a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossTotals {
    /// The loss.
    pub loss: f64,
    /// Tokens whose weight or advantage is not 0.
    pub tokens: f64,
    /// Tokens of these that a bound held.
    pub clipped: f64,
    /// The sum of q - p over these tokens; 0 for `CrossEntropy`.
    pub kl_to_old: f64,
    /// The smallest and the largest r of these tokens; infinity and minus infinity without any.
    pub ratios: [f64; 2],
}

impl Default for LossTotals {
    fn default() -> LossTotals {
        let ratios = [f64::INFINITY, f64::NEG_INFINITY];
        LossTotals { loss: 0.0, tokens: 0.0, clipped: 0.0, kl_to_old: 0.0, ratios }
    }
}

/// Computes a loss: writes d loss / d p into `d_logp`, [N], and returns the totals. Panics if a slice that the loss
/// reads has another length than `logp`.
pub fn sum_loss(loss: &SumLoss, batch: &SumBatch<'_>, d_logp: &mut [f32]) -> LossTotals {
    assert_eq!(batch.logp.len(), d_logp.len(), "a gradient for each log-prob");
    let mut totals = LossTotals::default();
    for seq in batch.seq_offsets.windows(2).map(|pair| pair[0]..pair[1]) {
        match loss {
            SumLoss::CrossEntropy => cross_entropy(batch, seq, d_logp, &mut totals),
            SumLoss::Gspo { clip } => sequence_ratio(*clip, batch, seq, d_logp, &mut totals),
            _ => seq.for_each(|t| d_logp[t] = of_token(loss, batch, t, &mut totals) as f32),
        }
    }
    totals
}

fn cross_entropy(batch: &SumBatch<'_>, seq: Range<usize>, d_logp: &mut [f32], totals: &mut LossTotals) {
    for t in seq {
        let w = batch.weights[t];
        // A log-prob of minus infinity without a weight adds nothing.
        if w != 0.0 {
            totals.loss -= f64::from(w) * f64::from(batch.logp[t]);
            totals.tokens += 1.0;
        }
        d_logp[t] = -w;
    }
}

/// Adds token `t` to the totals and returns its gradient.
fn of_token(loss: &SumLoss, batch: &SumBatch<'_>, t: usize, totals: &mut LossTotals) -> f64 {
    let [p, q, a] = [batch.logp[t], batch.old_logp[t], batch.advantages[t]].map(f64::from);
    let r = exp(p - q);
    let (value, gradient, is_clipped) = match *loss {
        SumLoss::Ppo { clip } => clipped(r, a, clip),
        SumLoss::Cispo { clip: [low, high] } => {
            let factor = r.max(low).min(high);
            (-factor * p * a, -factor * a, factor != r)
        }
        SumLoss::Dro { beta } => (-(p * a - beta / 2.0 * (p - q) * (p - q)), beta * (p - q) - a, false),
        _ => (-r * a, -r * a, false),
    };
    // Without an advantage a ratio that is not finite would add no number; the squares of DRO are added everywhere.
    if a == 0.0 && !matches!(loss, SumLoss::Dro { .. }) {
        return 0.0;
    }
    totals.loss += value;
    totals.count(r, q - p, a, is_clipped);
    gradient
}

/// Returns -min(r A, clip(r) A), its derivative with respect to ln r, and whether the bound held it.
fn clipped(r: f64, a: f64, [low, high]: [f64; 2]) -> (f64, f64, bool) {
    let held = r.max(low).min(high) * a;
    if r * a <= held { (-r * a, -r * a, false) } else { (-held, 0.0, true) }
}

fn sequence_ratio(
    clip: [f64; 2],
    batch: &SumBatch<'_>,
    seq: Range<usize>,
    d_logp: &mut [f32],
    totals: &mut LossTotals,
) {
    let (mut sum, mut count) = (0.0, 0.0);
    for t in seq.clone() {
        let m = f64::from(batch.ratio_mask[t]);
        if m != 0.0 {
            sum += m * (f64::from(batch.logp[t]) - f64::from(batch.old_logp[t]));
            count += m;
        }
    }
    let r = if count > 0.0 { exp(sum / count) } else { 1.0 };
    let mut gradient = 0.0;
    for t in seq.clone() {
        let a = f64::from(batch.advantages[t]);
        if a != 0.0 {
            let (value, d, is_clipped) = clipped(r, a, clip);
            totals.loss += value;
            gradient += d;
            totals.count(r, f64::from(batch.old_logp[t]) - f64::from(batch.logp[t]), a, is_clipped);
        }
    }
    for t in seq {
        let m = f64::from(batch.ratio_mask[t]);
        d_logp[t] = if m == 0.0 { 0.0 } else { (gradient * m / count) as f32 };
    }
}

impl LossTotals {
    fn count(&mut self, r: f64, kl_to_old: f64, a: f64, is_clipped: bool) {
        if a == 0.0 {
            return;
        }
        self.tokens += 1.0;
        self.clipped += f64::from(u8::from(is_clipped));
        self.kl_to_old += kl_to_old;
        self.ratios = [self.ratios[0].min(r), self.ratios[1].max(r)];
    }
}
