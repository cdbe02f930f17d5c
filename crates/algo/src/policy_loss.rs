//! Policy losses with their gradients with respect to the log-probs of the sampled tokens.
//!
//! With rho = exp(clip(l - l_old, +-20)), advantage A, loss mask m. Each loss overwrites `d_logp` with d loss / d l; KL
//! and supervised terms are added afterwards. `Aggregation` averages with totals over the whole optimizer step, so
//! neither gradient nor sum depends on the cut into micro-batches.

use plimsoll_base::math::{exp, ln};

use crate::aggregation::Aggregation;
use crate::packed::{self, Packed};

/// Log-ratios are clipped to this, as in OpenRLHF and verl; beyond it there is no gradient.
pub const LOG_RATIO_MAX: f64 = 20.0;
/// The largest factor of DPPO's losses, as in verl.
const TRUSTED_RATIO_MAX: f64 = 20.0;
/// Added to the probability of all other tokens, as in verl.
const REST_MIN: f64 = 1e-8;
/// The smallest log-ratio of a sequence in VESPO: log 1e-8, as in TRL.
const SEQUENCE_LOG_MIN: f64 = -18.420_680_743_952_367;

plimsoll_base::names! {
    /// The kind of policy loss; with its clips it is a `PolicyLoss`.
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    PolicyLossKind {
        /// The clipped ratio times the advantage.
        Ppo = "ppo",
        /// The clipped ratio of a whole sequence times the advantage.
        Gspo = "gspo",
        /// A clipped and detached ratio times the log-probability.
        Cispo = "cispo",
        /// A soft gate on the ratio.
        Sapo = "sapo",
        /// The geometric mean of a sequence's ratios, each clipped by itself, times the advantage.
        Gmpo = "gmpo",
        /// A detached ratio times the log-probability, where the token's probability has not moved too far.
        DppoTv = "dppo_tv",
        /// The same, where the binary divergence of the token's probability is not too large.
        DppoKl = "dppo_kl",
        /// The log-probability times a smooth, detached function of the whole sequence's ratio.
        Vespo = "vespo",
        /// The log-probability alone.
        Reinforce = "reinforce",
    }
}

impl PolicyLossKind {
    /// True if its ratio is clipped.
    pub const fn clips(self) -> bool {
        self.loss().clips().is_some()
    }
}

/// The loss of one token as a function of its log-prob.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PolicyLoss {
    /// -min(rho A, clip(rho, 1 - low, 1 + high) A) (arXiv 1707.06347; clip-higher: DAPO).
    Ppo {
        /// e_lo, relative to 1.
        clip_low: f64,
        /// e_hi, relative to 1.
        clip_high: f64,
        /// c > 1: for A < 0 the loss is at most -c A (arXiv 1912.09729).
        dual_clip: Option<f64>,
    },
    /// PPO with the geometric mean of a sequence's ratios instead of each (arXiv 2507.18071).
    Gspo {
        /// e_lo, relative to 1.
        clip_low: f64,
        /// e_hi, relative to 1.
        clip_high: f64,
    },
    /// -sg(clip(rho, low, high)) A l (arXiv 2506.13585).
    Cispo {
        /// Absolute lower bound of rho.
        clip_low: f64,
        /// Absolute upper bound of rho.
        clip_high: f64,
    },
    /// -sigmoid(tau (rho - 1)) 4 / tau A (arXiv 2511.20347).
    Sapo {
        /// tau where A > 0.
        tau_positive: f64,
        /// tau elsewhere.
        tau_negative: f64,
    },
    /// -A exp(mean of c), c = l - l_old held to [-low, high] where A pushes it out (arXiv 2507.20673).
    Gmpo {
        /// Lower bound of a log-ratio, as a positive number.
        clip_low: f64,
        /// Upper bound of a log-ratio.
        clip_high: f64,
    },
    /// -sg(min(rho, 20)) A l, and 0 where A pushes p = exp(l) on that is more than the bound away from p_old (arXiv
    /// 2602.04879, binary total variation).
    DppoTv {
        /// How far p may be below p_old.
        clip_low: f64,
        /// How far p may be above p_old.
        clip_high: f64,
    },
    /// The same with the binary divergence p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p)).
    DppoKl {
        /// The largest divergence of a token with A <= 0.
        clip_low: f64,
        /// The largest divergence of a token with A > 0.
        clip_high: f64,
    },
    /// -sg(phi(W)) A l, W the product of a sequence's ratios, phi(W) = W^k exp(lambda (1 - W)) (TRL 1.16's `vespo`).
    Vespo {
        /// k and lambda where A >= 0.
        positive: [f64; 2],
        /// k and lambda elsewhere.
        negative: [f64; 2],
    },
    /// -A l.
    Reinforce,
}

impl PolicyLoss {
    /// Returns the kind of loss.
    pub const fn kind(&self) -> PolicyLossKind {
        match self {
            PolicyLoss::Ppo { .. } => PolicyLossKind::Ppo,
            PolicyLoss::Gspo { .. } => PolicyLossKind::Gspo,
            PolicyLoss::Cispo { .. } => PolicyLossKind::Cispo,
            PolicyLoss::Sapo { .. } => PolicyLossKind::Sapo,
            PolicyLoss::Gmpo { .. } => PolicyLossKind::Gmpo,
            PolicyLoss::DppoTv { .. } => PolicyLossKind::DppoTv,
            PolicyLoss::DppoKl { .. } => PolicyLossKind::DppoKl,
            PolicyLoss::Vespo { .. } => PolicyLossKind::Vespo,
            PolicyLoss::Reinforce => PolicyLossKind::Reinforce,
        }
    }
}

/// One packed batch of a policy loss; all slices [N].
#[derive(Clone, Copy, Debug)]
pub struct PolicyBatch<'a> {
    /// Mask and sequences.
    pub packed: Packed<'a>,
    /// l, under the current policy.
    pub logp: &'a [f32],
    /// l_old, under the policy that made the experience.
    pub old_logp: &'a [f32],
    /// A.
    pub advantages: &'a [f32],
    /// Factors of `correction::correction_weights`; `None` if the current policy made the rollout.
    pub weights: Option<&'a [f32]>,
}

/// Sums of a policy loss over micro-batches, and the metrics they give.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicySums {
    /// Contribution to the loss of the step.
    pub loss: f64,
    /// Trained tokens.
    pub tokens: f64,
    /// Tokens clipped below: A < 0 and rho below the range (CISPO: rho below its bound).
    pub clipped_low: f64,
    /// Tokens clipped above: A > 0 and rho above the range (CISPO: rho above its bound).
    pub clipped_high: f64,
    /// Tokens held by the dual clip.
    pub clipped_dual: f64,
    /// Sum of l_old - l.
    pub kl_to_old: f64,
    /// Sum of rho.
    pub ratios: f64,
    /// Smallest ratio; infinity without tokens.
    pub ratio_min: f64,
    /// Largest ratio; minus infinity without tokens.
    pub ratio_max: f64,
}

impl Default for PolicySums {
    fn default() -> PolicySums {
        PolicySums {
            loss: 0.0,
            tokens: 0.0,
            clipped_low: 0.0,
            clipped_high: 0.0,
            clipped_dual: 0.0,
            kl_to_old: 0.0,
            ratios: 0.0,
            ratio_min: f64::INFINITY,
            ratio_max: f64::NEG_INFINITY,
        }
    }
}

impl PolicySums {
    /// Adds another micro-batch.
    pub fn merge(&mut self, other: PolicySums) {
        self.loss += other.loss;
        self.tokens += other.tokens;
        self.clipped_low += other.clipped_low;
        self.clipped_high += other.clipped_high;
        self.clipped_dual += other.clipped_dual;
        self.kl_to_old += other.kl_to_old;
        self.ratios += other.ratios;
        self.ratio_min = self.ratio_min.min(other.ratio_min);
        self.ratio_max = self.ratio_max.max(other.ratio_max);
    }

    /// Returns the metric `clip_ratio/low_mean`.
    pub fn clip_ratio_low(&self) -> f64 {
        self.clipped_low / self.tokens.max(1.0)
    }

    /// Returns the metric `clip_ratio/high_mean`.
    pub fn clip_ratio_high(&self) -> f64 {
        self.clipped_high / self.tokens.max(1.0)
    }

    /// Returns the metric `clip_ratio/region_mean`: tokens clipped on either side.
    pub fn clip_ratio(&self) -> f64 {
        (self.clipped_low + self.clipped_high) / self.tokens.max(1.0)
    }

    /// Returns the mean of l_old - l over trained tokens, the k1 estimate of how far the policy has moved.
    pub fn mean_kl_to_old(&self) -> f64 {
        self.kl_to_old / self.tokens.max(1.0)
    }

    /// Returns the metric `ratio/mean`; 1 without tokens.
    pub fn mean_ratio(&self) -> f64 {
        if self.tokens > 0.0 { self.ratios / self.tokens } else { 1.0 }
    }

    fn count(&mut self, term: &Term, m: f64, log_ratio: f64) {
        self.tokens += m;
        self.kl_to_old -= m * log_ratio;
        self.ratios += m * term.ratio;
        self.ratio_min = self.ratio_min.min(term.ratio);
        self.ratio_max = self.ratio_max.max(term.ratio);
        match term.clip {
            Clip::Inside => {}
            Clip::Low => self.clipped_low += m,
            Clip::High => self.clipped_high += m,
        }
        self.clipped_dual += if term.dual { m } else { 0.0 };
    }
}

/// Computes a policy loss: writes d loss / d l into `d_logp`, [N], exactly 0 where masked, and returns its sums.
pub fn policy_loss(
    loss: &PolicyLoss,
    batch: &PolicyBatch<'_>,
    aggregation: &Aggregation,
    d_logp: &mut [f32],
) -> PolicySums {
    let PolicyBatch { packed, logp, old_logp, advantages, weights } = *batch;
    packed.assert_lengths([logp.len(), old_logp.len(), advantages.len(), d_logp.len()]);
    packed.assert_lengths([weights.map_or(packed.mask.len(), <[f32]>::len)]);
    let mut sums = PolicySums::default();
    for seq in packed.sequences() {
        let weight = aggregation.token_weight(&packed.mask[seq.clone()]);
        match *loss {
            PolicyLoss::Gspo { clip_low, clip_high } => {
                let range = (1.0 - clip_low, 1.0 + clip_high);
                sequence_loss(range, batch, seq, weight, d_logp, &mut sums);
            }
            PolicyLoss::Gmpo { clip_low, clip_high } => {
                geometric_loss((-clip_low, clip_high), batch, seq, weight, d_logp, &mut sums);
            }
            PolicyLoss::Vespo { positive, negative } => {
                weighted_loss([positive, negative], batch, seq, weight, d_logp, &mut sums);
            }
            _ => {
                for t in seq {
                    d_logp[t] = token_loss(loss, batch, t, weight, &mut sums);
                }
            }
        }
    }
    sums
}

/// The bound that held a token's ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clip {
    Inside,
    Low,
    High,
}

/// One token's loss before aggregation.
struct Term {
    loss: f64,
    /// d loss / d l.
    gradient: f64,
    ratio: f64,
    clip: Clip,
    dual: bool,
}

/// Adds token `t` to the sums and returns its gradient.
fn token_loss(
    loss: &PolicyLoss,
    batch: &PolicyBatch<'_>,
    t: usize,
    weight: f64,
    sums: &mut PolicySums,
) -> f32 {
    if batch.packed.mask[t] == 0.0 {
        return 0.0;
    }
    let m = f64::from(batch.packed.mask[t]);
    let (l, a) = (f64::from(batch.logp[t]), f64::from(batch.advantages[t]));
    let log_ratio = l - f64::from(batch.old_logp[t]);
    let term = token_term(loss, l, log_ratio, a);
    sums.count(&term, m, log_ratio);
    let factor = weight * m * correction(batch, t);
    sums.loss += factor * term.loss;
    (factor * term.gradient) as f32
}

fn token_term(loss: &PolicyLoss, l: f64, log_ratio: f64, a: f64) -> Term {
    let ratio = exp(log_ratio.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX));
    let d_ratio = if log_ratio.abs() <= LOG_RATIO_MAX { ratio } else { 0.0 };
    let plain = Term { loss: 0.0, gradient: 0.0, ratio, clip: Clip::Inside, dual: false };
    match *loss {
        PolicyLoss::Ppo { clip_low, clip_high, dual_clip } => {
            let mut term = clipped_surrogate(ratio, d_ratio, a, (1.0 - clip_low, 1.0 + clip_high));
            if let Some(c) = dual_clip
                && a < 0.0
                && term.loss > -c * a
            {
                (term.loss, term.gradient, term.dual) = (-c * a, 0.0, true);
            }
            term
        }
        PolicyLoss::Cispo { clip_low, clip_high } => {
            let clip = if ratio < clip_low {
                Clip::Low
            } else if ratio > clip_high {
                Clip::High
            } else {
                Clip::Inside
            };
            // The clipped ratio is detached: a factor, not a function of l.
            let held = ratio.max(clip_low).min(clip_high);
            Term { loss: -held * a * l, gradient: -held * a, clip, ..plain }
        }
        PolicyLoss::Sapo { tau_positive, tau_negative } => {
            let tau = if a > 0.0 { tau_positive } else { tau_negative };
            let gate = 1.0 / (1.0 + exp(-tau * (ratio - 1.0)));
            // d/d rho of 4 gate / tau is 4 gate (1 - gate), and d rho / d l is rho.
            Term { loss: -gate * 4.0 / tau * a, gradient: -4.0 * gate * (1.0 - gate) * d_ratio * a, ..plain }
        }
        PolicyLoss::DppoTv { clip_low, clip_high } => {
            let moved = exp(l) - exp(l - log_ratio);
            let is_far = if a > 0.0 { moved > clip_high } else { moved < -clip_low };
            trusted(ratio, a, l, is_far)
        }
        PolicyLoss::DppoKl { clip_low, clip_high } => {
            let (old, now) = (l - log_ratio, exp(l));
            let p = exp(old);
            // Where a probability is 1, its rest is 0 of both.
            let rest = ln((1.0 - p + REST_MIN) / (1.0 - now + REST_MIN));
            let divergence = p * -log_ratio + (1.0 - p) * rest;
            let is_far =
                if a > 0.0 { divergence > clip_high && now > p } else { divergence > clip_low && now < p };
            trusted(ratio, a, l, is_far)
        }
        PolicyLoss::Reinforce => Term { loss: -a * l, gradient: -a, ..plain },
        PolicyLoss::Gspo { .. } | PolicyLoss::Gmpo { .. } | PolicyLoss::Vespo { .. } => {
            unreachable!("a sequence loss has no token terms")
        }
    }
}

/// Returns -sg(min(rho, 20)) A l, or nothing for a token that `is_far`.
fn trusted(ratio: f64, a: f64, l: f64, is_far: bool) -> Term {
    let factor = if is_far { 0.0 } else { ratio.min(TRUSTED_RATIO_MAX) * a };
    let clip = if !is_far {
        Clip::Inside
    } else if a > 0.0 {
        Clip::High
    } else {
        Clip::Low
    };
    Term { loss: -factor * l, gradient: -factor, ratio, clip, dual: false }
}

/// Returns -min(rho A, clip(rho) A); the gradient flows where the unclipped side is the smaller, ties included.
fn clipped_surrogate(ratio: f64, d_ratio: f64, a: f64, (low, high): (f64, f64)) -> Term {
    let (free, held) = (ratio * a, ratio.max(low).min(high) * a);
    if free <= held {
        return Term { loss: -free, gradient: -d_ratio * a, ratio, clip: Clip::Inside, dual: false };
    }
    let clip = if a < 0.0 { Clip::Low } else { Clip::High };
    Term { loss: -held, gradient: 0.0, ratio, clip, dual: false }
}

/// Computes GSPO over one sequence: s = exp(mean of l - l_old); the gradient spreads evenly over its trained tokens.
fn sequence_loss(
    range: (f64, f64),
    batch: &PolicyBatch<'_>,
    seq: std::ops::Range<usize>,
    weight: f64,
    d_logp: &mut [f32],
    sums: &mut PolicySums,
) {
    let mask = batch.packed.mask;
    let log_ratio = |t: usize| f64::from(batch.logp[t]) - f64::from(batch.old_logp[t]);
    let trained = seq.clone().filter(|&t| mask[t] != 0.0);
    let length = packed::sum(&mask[seq.clone()]).max(1.0);
    let mean = trained.clone().map(|t| f64::from(mask[t]) * log_ratio(t)).sum::<f64>() / length;
    let ratio = exp(mean.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX));
    let d_ratio = if mean.abs() <= LOG_RATIO_MAX { ratio } else { 0.0 };
    let mut d_mean = 0.0; // d loss / d mean
    for t in trained {
        let m = f64::from(mask[t]);
        let term = clipped_surrogate(ratio, d_ratio, f64::from(batch.advantages[t]), range);
        sums.count(&term, m, log_ratio(t));
        let factor = weight * m * correction(batch, t);
        sums.loss += factor * term.loss;
        d_mean += factor * term.gradient;
    }
    for t in seq {
        d_logp[t] = if mask[t] == 0.0 { 0.0 } else { (d_mean * f64::from(mask[t]) / length) as f32 };
    }
}

/// Computes GMPO over one sequence: log-ratios are held token by token, and their mean makes one ratio.
fn geometric_loss(
    (low, high): (f64, f64),
    batch: &PolicyBatch<'_>,
    seq: std::ops::Range<usize>,
    weight: f64,
    d_logp: &mut [f32],
    sums: &mut PolicySums,
) {
    let mask = batch.packed.mask;
    let log_ratio = |t: usize| f64::from(batch.logp[t]) - f64::from(batch.old_logp[t]);
    let clip = |t: usize| match f64::from(batch.advantages[t]) {
        a if a > 0.0 && log_ratio(t) > high => Clip::High,
        a if a < 0.0 && log_ratio(t) < low => Clip::Low,
        _ => Clip::Inside,
    };
    let held = |t: usize| match clip(t) {
        Clip::High => high,
        Clip::Low => low,
        // Without an advantage nothing is pushed, and verl's sign of 0 leaves the token out.
        Clip::Inside if batch.advantages[t] == 0.0 => 0.0,
        Clip::Inside => log_ratio(t),
    };
    let trained = seq.clone().filter(|&t| mask[t] != 0.0);
    let length = packed::sum(&mask[seq.clone()]).max(1.0);
    let mean = trained.clone().map(|t| f64::from(mask[t]) * held(t)).sum::<f64>() / length;
    let ratio = exp(mean.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX));
    let mut loss = 0.0;
    for t in trained {
        let (m, a) = (f64::from(mask[t]), f64::from(batch.advantages[t]));
        let own = exp(log_ratio(t).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX));
        let term = Term { loss: -a * ratio, gradient: 0.0, ratio: own, clip: clip(t), dual: false };
        sums.count(&term, m, log_ratio(t));
        loss += weight * m * correction(batch, t) * term.loss;
    }
    sums.loss += loss;
    // The loss is a factor of the ratio, whose slope in the mean is itself.
    let d_mean = if mean.abs() <= LOG_RATIO_MAX { loss } else { 0.0 };
    for t in seq {
        let is_free = mask[t] != 0.0 && clip(t) == Clip::Inside && batch.advantages[t] != 0.0;
        d_logp[t] = if is_free { (d_mean * f64::from(mask[t]) / length) as f32 } else { 0.0 };
    }
}

/// Computes VESPO over one sequence: each token's log-probability times phi of the product of all ratios.
fn weighted_loss(
    [positive, negative]: [[f64; 2]; 2],
    batch: &PolicyBatch<'_>,
    seq: std::ops::Range<usize>,
    weight: f64,
    d_logp: &mut [f32],
    sums: &mut PolicySums,
) {
    let mask = batch.packed.mask;
    let log_ratio = |t: usize| f64::from(batch.logp[t]) - f64::from(batch.old_logp[t]);
    let bounded = |t: usize| f64::from(mask[t]) * log_ratio(t).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX);
    let log_w = seq.clone().filter(|&t| mask[t] != 0.0).map(bounded).sum::<f64>();
    let log_w = log_w.clamp(SEQUENCE_LOG_MIN, LOG_RATIO_MAX);
    let phi = |[k, lambda]: [f64; 2]| exp(lambda + k * log_w - lambda * exp(log_w));
    let (of_positive, of_negative) = (phi(positive), phi(negative));
    for t in seq {
        d_logp[t] = 0.0;
        if mask[t] == 0.0 {
            continue;
        }
        let (m, a) = (f64::from(mask[t]), f64::from(batch.advantages[t]));
        let ratio = exp(log_ratio(t).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX));
        let slope = -a * if a >= 0.0 { of_positive } else { of_negative };
        let loss = slope * f64::from(batch.logp[t]);
        sums.count(&Term { loss, gradient: slope, ratio, clip: Clip::Inside, dual: false }, m, log_ratio(t));
        let factor = weight * m * correction(batch, t);
        sums.loss += factor * loss;
        d_logp[t] = (factor * slope) as f32;
    }
}

fn correction(batch: &PolicyBatch<'_>, t: usize) -> f64 {
    batch.weights.map_or(1.0, |weights| f64::from(weights[t]))
}
