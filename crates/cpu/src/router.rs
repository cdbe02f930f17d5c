//! Routers whose scores are sigmoids: the choice by corrected scores and groups, weights, and the gradient by logits.
//!
//! Legend: E experts, k chosen a row. A row depends on its own logits only.

use super::delta::shared::sigmoid;
use super::lanes::{LANES, Lanes, by_dtype, simd_fn};
use super::{CpuDevice, Real};
use plimsoll_arch::EXPERTS_MAX;
use plimsoll_device::{CORRECTION_TERMS, Routing, SIGMOID_SUM_MIN, Sigmoid};

/// A router of sigmoids with its corrections in f32.
pub(super) struct SigmoidRouter {
    correction: [f32; EXPERTS_MAX],
    groups: usize,
    groups_chosen: usize,
    factor: f32,
    normalizes: bool,
}

/// What a row's experts have to do with the balance of a segment.
pub(super) struct RowShares<'s> {
    /// [E]: the share of the segment's rows that chose each expert.
    pub(super) of: &'s [f32],
    /// Derivative of the loss by the probability of an expert that all rows chose.
    pub(super) factor: f32,
}

impl SigmoidRouter {
    /// Adds up the corrections of a router; none if its scores are a softmax.
    pub(super) fn of(dev: &CpuDevice, how: &Routing<'_>) -> Option<SigmoidRouter> {
        let Sigmoid { correction, groups, groups_chosen, factor } = how.sigmoid?;
        let mut sums = [0.0; EXPERTS_MAX];
        by_dtype!(correction, T => {
            let terms = dev.read::<T>(correction);
            for (expert, sum) in sums[..how.experts].iter_mut().enumerate() {
                let term = |index: usize| terms[index * how.experts + expert].to_f32();
                *sum = (0..CORRECTION_TERMS).fold(0.0, |sum, index| sum + term(index));
            }
        });
        Some(SigmoidRouter { correction: sums, groups, groups_chosen, factor, normalizes: how.normalizes })
    }

    /// Chooses the experts of a row, ascending, and their weights; `choose` chooses the largest of some numbers.
    pub(super) fn route(
        &self,
        dev: &CpuDevice,
        logits: &[f32],
        (experts, weights): (&mut [u32], &mut [f32]),
        choose: impl Fn(&[f32], &mut [u32]),
    ) {
        let (mut scores, mut sums) = ([0.0; EXPERTS_MAX], [0.0; EXPERTS_MAX]);
        let (scores, sums) = (&mut scores[..logits.len()], &mut sums[..logits.len()]);
        sigmoids(dev.isa(), logits, scores);
        for ((sum, score), correction) in sums.iter_mut().zip(&*scores).zip(&self.correction) {
            *sum = score + correction;
        }
        self.leave_groups_out(sums, &choose);
        choose(sums, experts);
        for (weight, &expert) in weights.iter_mut().zip(&*experts) {
            *weight = scores[expert as usize];
        }
        let sum = self.divisor(weights);
        weights.iter_mut().for_each(|weight| *weight = *weight / sum * self.factor);
    }

    /// Replaces the sums of all groups but those with the largest sums of their two best by -infinity.
    fn leave_groups_out(&self, sums: &mut [f32], choose: &impl Fn(&[f32], &mut [u32])) {
        if self.groups == self.groups_chosen {
            return;
        }
        let size = sums.len() / self.groups;
        let (mut of_groups, mut chosen) = ([0.0; EXPERTS_MAX], [0; EXPERTS_MAX]);
        let (of_groups, chosen) = (&mut of_groups[..self.groups], &mut chosen[..self.groups_chosen]);
        for (of_group, sums) in of_groups.iter_mut().zip(sums.chunks_exact(size)) {
            let mut best = [0; 2];
            choose(sums, &mut best);
            *of_group = sums[best[0] as usize] + sums[best[1] as usize];
        }
        choose(of_groups, chosen);
        for (group, sums) in sums.chunks_exact_mut(size).enumerate() {
            if !chosen.contains(&(group as u32)) {
                sums.fill(f32::NEG_INFINITY);
            }
        }
    }

    /// Returns what the scores of a row's experts are divided by.
    fn divisor(&self, scores: &[f32]) -> f32 {
        if self.normalizes { scores.iter().sum::<f32>() + SIGMOID_SUM_MIN } else { 1.0 }
    }

    /// Writes the derivatives of a row by its logits; returns the sum of its probabilities times shares, if any.
    pub(super) fn backward(
        &self,
        dev: &CpuDevice,
        logits: &[f32],
        experts: &[u32],
        d_weight: impl Fn(usize) -> f32,
        shares: Option<RowShares<'_>>,
        d: &mut [f32],
    ) -> f32 {
        let [mut scores, mut others, mut negated, mut own] = [[0.0; EXPERTS_MAX]; 4];
        let (scores, others) = (&mut scores[..logits.len()], &mut others[..logits.len()]);
        sigmoids(dev.isa(), logits, scores);
        // 1 - score without cancellation: the sigmoid of the other sign.
        negated.iter_mut().zip(logits).for_each(|(to, logit)| *to = -logit);
        sigmoids(dev.isa(), &negated[..logits.len()], others);
        own.iter_mut().zip(experts).for_each(|(own, &expert)| *own = scores[expert as usize]);
        let sum = self.divisor(&own[..experts.len()]);
        let by = self.factor / sum;
        // Divided weights: d by a score is (dw - mean) factor / sum, with the mean by the shares of scores.
        let mean: f32 = if self.normalizes {
            experts.iter().enumerate().map(|(j, _)| own[j] / sum * d_weight(j)).sum()
        } else {
            0.0
        };
        d.fill(0.0);
        for (j, &expert) in experts.iter().enumerate() {
            let expert = expert as usize;
            d[expert] = by * (d_weight(j) - mean) * scores[expert] * others[expert];
        }
        let Some(RowShares { of, factor }) = shares else { return 0.0 };
        let sum: f32 = scores.iter().sum::<f32>() + SIGMOID_SUM_MIN;
        scores.iter_mut().for_each(|score| *score /= sum);
        let mean: f32 = scores.iter().zip(of).map(|(p, share)| p * share).sum();
        for (((d, p), other), share) in d.iter_mut().zip(&*scores).zip(&*others).zip(of) {
            *d += factor * p * other * (share - mean);
        }
        mean
    }
}

simd_fn! {
    /// Writes 1 / (1 + e^-x), each element.
    fn sigmoids[](s: S, x: &[f32], out: &mut [f32]) {
        let ((x, x_rest), (out, out_rest)) = (x.as_chunks::<LANES>(), out.as_chunks_mut::<LANES>());
        for (x, out) in x.iter().zip(out) {
            f32::store(s, out, sigmoid(s, f32::load(s, x)));
        }
        f32::store_part(s, out_rest, sigmoid(s, f32::load_part(s, x_rest)));
    }
}
