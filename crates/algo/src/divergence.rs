//! Divergences of a student from a teacher at one position, of which K tokens are listed: those that the teacher finds
//! most likely. All other tokens are one bucket with the mass that is left, so that the distributions compared are
//! whole: a divergence is never negative, and 0 only where student and teacher agree on every bucket.
//!
//! Legend: N tokens, K listed tokens, p the student's and q the teacher's probability of a bucket.
//! Sources: GKD (arXiv 2306.13649), eq. 1, with `beta` as in TRL 1.16 `GKDTrainer.generalized_jsd_loss`; the bucket of
//! the rest as in TRL's `ServerDistillationTrainer` (`loss_add_tail`). verl sums over the K tokens alone, without a
//! bucket: that sum is no divergence, and a student that moves mass off the list can make it negative.

use plimsoll_base::math::{exp, ln};

use crate::aggregation::Aggregation;
use crate::kl::KlSums;
use crate::packed::Packed;

plimsoll_base::names! {
    /// The distance from its teacher that a student reduces.
    #[derive(Default)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    DivergenceKind {
        /// The reverse KL by the sampled token alone: the teacher's log-probability is an advantage.
        #[default]
        Sampled = "sampled",
        /// KL(student || teacher) at each position: the student keeps to what the teacher finds likely.
        Reverse = "reverse",
        /// KL(teacher || student) at each position: the student covers all that the teacher finds likely.
        Forward = "forward",
        /// The generalised Jensen-Shannon divergence, between the two.
        Jsd = "jsd",
    }
}

/// A divergence that is differentiated through the student's logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Divergence {
    /// sum p ln(p / q).
    Reverse,
    /// sum q ln(q / p).
    Forward,
    /// With m = beta q + (1 - beta) p: beta sum q ln(q / m) + (1 - beta) sum p ln(p / m).
    Jsd {
        /// The teacher's part of m.
        beta: f64,
    },
}

/// A position's divergence.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowDivergence {
    /// In nats.
    pub value: f32,
    /// Its derivative by the logit of a token that is not listed, divided by the student's probability of that token.
    pub rest: f32,
}

/// The least mass of the bucket of unlisted tokens: the rounding of K log-probs in f32 leaves about as much. Where the
/// student's counts as this, both sides are divided by their sums, so that they stay distributions: D is then
/// differentiated as it is, and a student that is its teacher still has no gradient, however small.
pub const REST_MIN: f64 = 1e-6;

/// A bucket's log-probs and probabilities.
struct Bucket {
    lp: f64,
    lq: f64,
    p: f64,
    q: f64,
}

impl Bucket {
    /// Returns its part of the divergence.
    fn value(&self, how: Divergence) -> f64 {
        let Bucket { lp, lq, p, q } = *self;
        match how {
            Divergence::Reverse => p * (lp - lq),
            Divergence::Forward => q * (lq - lp),
            Divergence::Jsd { beta } => {
                let lm = ln(beta * q + (1.0 - beta) * p);
                beta * q * (lq - lm) + (1.0 - beta) * p * (lp - lm)
            }
        }
    }

    /// Returns u, with which the derivative by the bucket's logit is p (u - the mean of u under p); 0 where p is q, so
    /// that a student that is its teacher has no gradient at all.
    fn pull(&self, how: Divergence) -> f64 {
        let Bucket { lp, lq, p, q } = *self;
        match how {
            Divergence::Reverse => lp - lq,
            Divergence::Forward => 1.0 - q / p,
            Divergence::Jsd { beta } => (1.0 - beta) * (lp - ln(beta * q + (1.0 - beta) * p)),
        }
    }
}

impl Divergence {
    /// Computes the divergence of a position, and its derivatives by the logits of its listed tokens into `slopes`.
    ///
    /// `teacher`, `student`, `slopes`: [K]; log-probs over the whole vocabulary. `has_rest`: the vocabulary has more
    /// tokens than these.
    pub fn of_row(
        self,
        teacher: &[f32],
        student: &[f32],
        has_rest: bool,
        slopes: &mut [f32],
    ) -> RowDivergence {
        assert_eq!((teacher.len(), student.len()), (slopes.len(), slopes.len()), "K numbers each");
        let mass = |logprobs: &[f32]| logprobs.iter().map(|&l| exp(f64::from(l))).sum::<f64>();
        let (p_listed, q_listed) = (mass(student), mass(teacher));
        let is_raised = |listed: f64| has_rest && 1.0 - listed < REST_MIN;
        let is_constant = is_raised(p_listed);
        let [p_sum, q_sum] = [p_listed, q_listed]
            .map(|listed| if is_constant && is_raised(listed) { listed + REST_MIN } else { 1.0 });
        let [lp_sum, lq_sum] = [p_sum, q_sum].map(|sum| if sum == 1.0 { 0.0 } else { ln(sum) });
        let listed = |j: usize| {
            let (lp, lq) = (f64::from(student[j]), f64::from(teacher[j]));
            Bucket { lp: lp - lp_sum, lq: lq - lq_sum, p: exp(lp) / p_sum, q: exp(lq) / q_sum }
        };
        let (mut value, mut of_listed) = (0.0, 0.0);
        for bucket in (0..slopes.len()).map(listed) {
            value += bucket.value(self);
            of_listed += bucket.p * bucket.pull(self);
        }
        let (mut rest, mut mean) = (0.0, of_listed);
        if has_rest {
            let [p, q] = [(p_listed, p_sum), (q_listed, q_sum)]
                .map(|(listed, sum)| f64::max(1.0 - listed, REST_MIN) / sum);
            let bucket = Bucket { lp: ln(p), lq: ln(q), p, q };
            value += bucket.value(self);
            let of_rest = bucket.p * bucket.pull(self);
            mean += of_rest;
            rest = if is_constant {
                // Its mass stays, but not its share of the sum.
                (p_listed * of_rest - REST_MIN * of_listed) / p_sum
            } else {
                bucket.pull(self) - mean
            };
        }
        for (j, slope) in slopes.iter_mut().enumerate() {
            let bucket = listed(j);
            let by_share = bucket.p * (bucket.pull(self) - mean);
            let slope_of = if is_constant { by_share + bucket.p * p_sum * rest } else { by_share };
            *slope = slope_of as f32;
        }
        RowDivergence { value: value as f32, rest: rest as f32 }
    }
}

/// Writes d loss / d D of coef agg(D) into `d_divergence`, and returns the sums. `divergence`, `d_divergence`: [N].
///
/// Values at masked positions are never read.
pub fn divergence_loss(
    coef: f64,
    batch: Packed<'_>,
    divergence: &[f32],
    aggregation: &Aggregation,
    d_divergence: &mut [f32],
) -> KlSums {
    batch.assert_lengths([divergence.len(), d_divergence.len()]);
    let mut sums = KlSums::default();
    for seq in batch.sequences() {
        let weight = coef * aggregation.token_weight(&batch.mask[seq.clone()]);
        for t in seq {
            d_divergence[t] = 0.0;
            if batch.mask[t] == 0.0 {
                continue;
            }
            let m = f64::from(batch.mask[t]);
            sums.loss += weight * m * f64::from(divergence[t]);
            sums.kl += m * f64::from(divergence[t]);
            sums.tokens += m;
            d_divergence[t] = (weight * m) as f32;
        }
    }
    sums
}

/// Returns the mean probability that the listed tokens have together at trained positions. `logprobs`: [N, K].
pub fn listed_mass(batch: Packed<'_>, k: usize, logprobs: &[f32]) -> f64 {
    assert_eq!(logprobs.len(), batch.mask.len() * k, "K numbers a token");
    let (mut sum, mut tokens) = (0.0, 0.0);
    for (row, _) in logprobs.chunks_exact(k).zip(batch.mask).filter(|(_, mask)| **mask != 0.0) {
        sum += row.iter().map(|&logprob| exp(f64::from(logprob))).sum::<f64>();
        tokens += 1.0;
    }
    sum / f64::max(tokens, 1.0)
}
