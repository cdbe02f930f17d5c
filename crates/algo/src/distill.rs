//! On-policy distillation: a teacher's log-prob of each token that the student sampled becomes an advantage.
//!
//! With d = l_old - l_teacher of a sampled token, the mean of d over the student's samples at a position is the reverse
//! KL, KL(student || teacher), there. So A = -coef d, of this token alone: no baseline, and no later token's d. Since a
//! probability's gradient sums to 0, the mean of -A grad l is the gradient of coef times that KL.
//! Sources: Thinking Machines, On-Policy Distillation (2025), discount 0; MiniLLM, GKD (arXiv 2306.08543, 2306.13649).

use crate::kl::KlSums;
use crate::packed::Packed;

/// Adds -coef (l_old - l_teacher) to the advantage of each trained token, [N]; masked positions stay as they are.
///
/// `old_logp`, `teacher_logp`: [N], at one temperature. The returned sums hold the mean reverse KL; their `loss` is 0,
/// since the KL is in the advantages.
pub fn add_teacher_advantages(
    coef: f64,
    batch: Packed<'_>,
    old_logp: &[f32],
    teacher_logp: &[f32],
    advantages: &mut [f32],
) -> KlSums {
    batch.assert_lengths([old_logp.len(), teacher_logp.len(), advantages.len()]);
    let mut sums = KlSums::default();
    for t in (0..batch.mask.len()).filter(|&t| batch.mask[t] != 0.0) {
        let d = f64::from(old_logp[t]) - f64::from(teacher_logp[t]);
        sums.tokens += 1.0;
        sums.kl += d;
        advantages[t] = (f64::from(advantages[t]) - coef * d) as f32;
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advantage_is_of_its_own_token_and_masked_ones_are_never_read() {
        let packed = Packed { mask: &[1.0, 0.0, 1.0, 1.0], seq_offsets: &[0, 3, 4] };
        let mut advantages = [0.5, 0.0, 0.0, 0.0];
        let (old, teacher) = ([-1.0, f32::NAN, -0.25, -2.0], [-3.0, f32::NAN, -0.5, -1.0]);
        let sums = add_teacher_advantages(2.0, packed, &old, &teacher, &mut advantages);
        assert_eq!(advantages, [0.5 - 2.0 * 2.0, 0.0, -2.0 * 0.25, 2.0]);
        assert_eq!((sums.kl, sums.tokens, sums.loss), (2.0 + 0.25 - 1.0, 3.0, 0.0));
    }
}
