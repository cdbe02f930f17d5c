//! A token's part of a divergence from a teacher over the whole vocabulary, and a head row's gradient by all logits.
//!
//! x: the student's and y the teacher's finished logits; p and q: the probabilities of a token. With u by the measure,
//! the derivative of the divergence by a logit is p (u - the mean of u under p).

use super::listed_gradient::RowInputs;
use super::view::Real;
use plimsoll_base::math::{exp, ln};
use plimsoll_device::{Logits, Measure};

/// One token of a row: its log-probabilities and probabilities.
pub(super) struct Terms {
    lp: f64,
    lq: f64,
    p: f64,
    q: f64,
}

impl Terms {
    pub(super) fn new([x, lse]: [f32; 2], [y, teacher_lse]: [f32; 2]) -> Terms {
        let (lp, lq) = (f64::from(x) - f64::from(lse), f64::from(y) - f64::from(teacher_lse));
        Terms { lp, lq, p: exp(lp), q: exp(lq) }
    }

    /// Returns the token's part of the divergence, and p u; both are 0 where p is q, and finite where either is 0.
    pub(super) fn parts(&self, how: Measure) -> [f64; 2] {
        let Terms { lp, lq, p, q } = *self;
        let d = lq - lp;
        match how {
            Measure::Reverse => [-p * d; 2],
            Measure::Forward => [q * d, p - q],
            Measure::Jsd { beta } => {
                let beta = f64::from(beta);
                // ln(m / p), by the larger of p and q.
                let m = if d > 0.0 {
                    d + ln(1.0 + (1.0 - beta) * (exp(-d) - 1.0))
                } else {
                    ln(1.0 + beta * (exp(d) - 1.0))
                };
                let pull = -(1.0 - beta) * p * m;
                [beta * q * (d - m) + pull, pull]
            }
        }
    }
}

/// A row's numbers of `DivergenceBackward`.
pub(super) struct WholeRow {
    pub(super) how: Measure,
    pub(super) teacher_lse: f32,
    pub(super) mean: f32,
    pub(super) d: f32,
}

impl WholeRow {
    /// Writes the gradients of the logits of a tile, whose columns begin at `first`, from its finished logits.
    pub(super) fn put<E: Real>(
        &self,
        of: &RowInputs,
        how: Logits<'_>,
        first: usize,
        student: &[f32],
        teacher: &[f32],
        to: &mut [E],
    ) {
        let [d, mean, factor] = [self.d, self.mean, how.factor].map(f64::from);
        let [by_logprob, by_entropy, entropy] = [of.dlogprob, of.dentropy, of.entropy].map(f64::from);
        let bend = how.cap.map(|cap| f64::from(cap) * factor);
        for (column, ((to, &x), &y)) in to.iter_mut().zip(student).zip(teacher).enumerate() {
            let terms = Terms::new([x, of.lse], [y, self.teacher_lse]);
            let (p, [_, pull]) = (terms.p, terms.parts(self.how));
            let delta = f64::from(u8::from(first + column == of.target as usize));
            let policy = by_logprob * (delta - p) - by_entropy * p * (terms.lp + entropy);
            let slope = bend.map_or(1.0, |most| 1.0 - (f64::from(x) / most) * (f64::from(x) / most));
            *to = E::from_f32((factor * (d * (pull - p * mean) + policy) * slope) as f32);
        }
    }
}
