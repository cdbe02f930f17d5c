//! KTO: a loss over single answers that are desirable or not, against the KL of the batch (arXiv 2402.01306).
//!
//! B answers. Log-probs are summed over an answer's tokens, so its slope goes to each of them.

use plimsoll_base::math::exp;

/// The constants of KTO.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kto {
    /// b.
    pub beta: f64,
    /// The weight of a desirable answer.
    pub desirable: f64,
    /// The weight of an undesirable one.
    pub undesirable: f64,
}

/// Sums of the loss over micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LabelSums {
    /// Contribution to the loss of the step.
    pub loss: f64,
    /// Undesirable and desirable answers.
    pub counts: [f64; 2],
    /// Sums of their rewards b r.
    pub rewards: [f64; 2],
    /// Sums of their log-probs.
    pub logps: [f64; 2],
    /// Answers whose r is on their label's side of the KL.
    pub correct: f64,
}

impl LabelSums {
    /// Adds another micro-batch.
    pub fn merge(&mut self, other: LabelSums) {
        self.loss += other.loss;
        self.correct += other.correct;
        for side in 0..2 {
            self.counts[side] += other.counts[side];
            self.rewards[side] += other.rewards[side];
            self.logps[side] += other.logps[side];
        }
    }

    /// Returns the number of answers.
    pub fn answers(&self) -> f64 {
        self.counts[0] + self.counts[1]
    }

    /// Returns means over the undesirable and over the desirable answers; 0 without any.
    pub fn means(&self, sums: [f64; 2]) -> [f64; 2] {
        [sums[0] / self.counts[0].max(1.0), sums[1] / self.counts[1].max(1.0)]
    }
}

/// Returns z, the KL that answers are compared with: the mean of l - lref over answers to other prompts, at least 0.
///
/// `policy`, `reference`: [B], of prompts with the answers of other rows. It has no gradient.
pub fn batch_kl(policy: &[f32], reference: &[f32]) -> f64 {
    let gaps = policy.iter().zip(reference).map(|(l, r)| f64::from(*l) - f64::from(*r));
    (gaps.sum::<f64>() / policy.len().max(1) as f64).max(0.0)
}

/// Computes the loss, the mean over the step's `answers`: 1 - s(b (r - z)) of a desirable answer, 1 - s(b (z - r)) of
/// another, each times its weight, with r = l - lref.
///
/// `labels`: true for desirable answers. Writes d loss / d l into `slopes`, [B].
/// Source: arXiv 2402.01306, equation 7; TRL 1.16 `KTOTrainer`.
pub fn kto_loss(
    kto: Kto,
    [policy, reference]: [&[f32]; 2],
    labels: &[bool],
    (kl, answers): (f64, f64),
    slopes: &mut [f32],
) -> LabelSums {
    assert_eq!((reference.len(), labels.len(), slopes.len()), (policy.len(), policy.len(), policy.len()));
    let mut sums = LabelSums::default();
    for (i, &is_desirable) in labels.iter().enumerate() {
        let ahead = f64::from(policy[i]) - f64::from(reference[i]);
        let (sign, weight) = if is_desirable { (1.0, kto.desirable) } else { (-1.0, kto.undesirable) };
        let held = 1.0 / (1.0 + exp(-kto.beta * sign * (ahead - kl)));
        sums.loss += weight * (1.0 - held) / answers;
        slopes[i] = (-weight * kto.beta * sign * held * (1.0 - held) / answers) as f32;
        let side = usize::from(is_desirable);
        sums.counts[side] += 1.0;
        sums.rewards[side] += kto.beta * ahead;
        sums.logps[side] += f64::from(policy[i]);
        sums.correct += if (ahead > kl) == is_desirable { 1.0 } else { 0.0 };
    }
    sums
}
