//! From shaped rewards to one advantage per token: token rewards with the KL, discounted returns, GAE, whitening.
//!
//! N response tokens, B sequences. Rewards and values at masked positions are never read; outputs there are exactly 0.

use crate::kl::{KlEstimator, KlSums, kl_value};
use crate::packed::{self, Packed};
use crate::shaping::GroupShaping;

plimsoll_base::names! {
    /// The baseline of a sample's reward.
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    Advantage {
        /// (R - mean of the group) / (std + eps).
        GroupNorm = "group_norm",
        /// R - mean of the group.
        MeanBaseline = "mean_baseline",
        /// R - mean of the others.
        Rloo = "rloo",
        /// R - mean of the group, in which a sample counts by its tokens.
        LengthWeighted = "length_weighted",
        /// R - mean of the group, times the number of samples for each that has a reward other than 0.
        Gpg = "gpg",
        /// R - the reward of the greedy answer.
        Greedy = "greedy",
        /// R - mean of the group at a token, in which a sample counts by how much its gradients vary.
        OptimalToken = "optimal_token",
        /// (R - the second best of the group) / (std + eps) of the best; 0 of the others.
        Lead = "lead",
        /// The group norm of each reward by itself, summed by weights and normalised over the step.
        Decoupled = "decoupled",
        /// R.
        None = "none",
        /// GAE over a critic's values.
        Gae = "gae",
    }
}

impl Advantage {
    /// Returns the advantage whose group baseline this is; none of a critic.
    pub const fn of_shaping(shaping: GroupShaping) -> Advantage {
        match shaping {
            GroupShaping::None => Advantage::None,
            GroupShaping::Rloo => Advantage::Rloo,
            GroupShaping::MeanBaseline => Advantage::MeanBaseline,
            GroupShaping::GroupNorm { .. } => Advantage::GroupNorm,
            GroupShaping::LengthWeighted => Advantage::LengthWeighted,
            GroupShaping::Gpg => Advantage::Gpg,
            GroupShaping::Greedy => Advantage::Greedy,
            GroupShaping::OptimalToken => Advantage::OptimalToken,
            GroupShaping::Lead { .. } => Advantage::Lead,
            GroupShaping::Decoupled { .. } => Advantage::Decoupled,
        }
    }

    /// Returns the group baseline; GAE has none.
    pub const fn shaping(self, eps: f64) -> GroupShaping {
        match self {
            Advantage::GroupNorm => GroupShaping::GroupNorm { eps },
            Advantage::MeanBaseline => GroupShaping::MeanBaseline,
            Advantage::Rloo => GroupShaping::Rloo,
            Advantage::LengthWeighted => GroupShaping::LengthWeighted,
            Advantage::Gpg => GroupShaping::Gpg,
            Advantage::Greedy => GroupShaping::Greedy,
            Advantage::OptimalToken => GroupShaping::OptimalToken,
            Advantage::Lead => GroupShaping::Lead { eps },
            Advantage::Decoupled => GroupShaping::Decoupled { eps },
            Advantage::None | Advantage::Gae => GroupShaping::None,
        }
    }

    /// True if it compares the samples of one prompt.
    pub const fn compares_group(self) -> bool {
        !matches!(self, Advantage::None | Advantage::Gae | Advantage::Greedy)
    }
}

/// The KL that is subtracted from the token rewards.
#[derive(Clone, Copy, Debug)]
pub struct KlReward<'a> {
    /// The estimator; k1 elsewhere.
    pub estimator: KlEstimator,
    /// The coefficient beta.
    pub coef: f64,
    /// [N], of the policy that made the rollout.
    pub old_logp: &'a [f32],
    /// [N], of the reference.
    pub ref_logp: &'a [f32],
}

/// Writes r_t = -beta kl_t + [t is the last trained token] R into `token_rewards`, [N].
///
/// `rewards`: [B], shaped. The returned sums hold the mean KL; their `loss` is 0, since the KL is in the reward.
/// Source: OpenRLHF 0.11.2 `compute_reward`.
pub fn token_rewards(
    batch: Packed<'_>,
    rewards: &[f32],
    kl: Option<KlReward<'_>>,
    token_rewards: &mut [f32],
) -> KlSums {
    batch.assert_lengths([token_rewards.len()]);
    let (mask, seqs) = (batch.mask, batch.sequences());
    assert_eq!(rewards.len(), seqs.len(), "one reward for each sequence");
    let mut sums = KlSums::default();
    for (reward, seq) in rewards.iter().zip(seqs) {
        let last = seq.clone().rev().find(|&t| mask[t] != 0.0);
        for t in seq {
            token_rewards[t] = 0.0;
            if mask[t] == 0.0 {
                continue;
            }
            sums.tokens += 1.0;
            if let Some(kl) = &kl {
                let value = kl_value(kl.estimator, kl.old_logp[t], kl.ref_logp[t]);
                sums.kl += f64::from(value);
                token_rewards[t] = (-kl.coef * f64::from(value)) as f32;
            }
            if last == Some(t) {
                token_rewards[t] += *reward;
            }
        }
    }
    sums
}

/// Writes A_t = sum over k >= t of gamma^(k-t) m_k r_k into `returns`, [N].
///
/// A masked position is a step of time, as in OpenRLHF `get_cumulative_returns`; with gamma = 1 this changes nothing.
pub fn discounted_returns(gamma: f64, batch: Packed<'_>, token_rewards: &[f32], returns: &mut [f32]) {
    batch.assert_lengths([token_rewards.len(), returns.len()]);
    for seq in batch.sequences() {
        let mut carry = 0.0;
        for t in seq.rev() {
            carry *= gamma;
            returns[t] = 0.0;
            if batch.mask[t] != 0.0 {
                carry += f64::from(token_rewards[t]);
                returns[t] = carry as f32;
            }
        }
    }
}

plimsoll_base::names! {
    /// How GAE treats masked positions inside a response (tool output, environment turns).
    #[derive(Default)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    MaskHole {
        /// The recurrence skips them, as in verl: the next value is that of the next trained token.
        #[default]
        Skip = "skip",
        /// They are steps with value 0 and reward 0, as in OpenRLHF.
        ZeroValue = "zero_value",
    }
}

/// Options of generalised advantage estimation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gae {
    /// Discount; 1 by default.
    pub gamma: f64,
    /// lambda; 1 by default.
    pub lambda: f64,
    /// How masked positions are treated.
    pub mask_hole: MaskHole,
}

impl Default for Gae {
    fn default() -> Gae {
        Gae { gamma: 1.0, lambda: 1.0, mask_hole: MaskHole::Skip }
    }
}

/// Computes GAE: A_t = delta_t + gamma lambda A_{t+1}, delta_t = r_t + gamma V_{t+1} - V_t.
///
/// `token_rewards`, `values`: [N]. Writes `advantages` and `returns` = A + V, [N].
/// `bootstrap`: [B], the value after the last token of each sequence: 0 where it ended, V where it was cut; empty
/// means 0 everywhere. Source: arXiv 1506.02438; OpenRLHF 0.11.2 `get_advantages_and_returns`.
pub fn gae(
    options: &Gae,
    batch: Packed<'_>,
    token_rewards: &[f32],
    values: &[f32],
    bootstrap: &[f32],
    advantages: &mut [f32],
    returns: &mut [f32],
) {
    batch.assert_lengths([token_rewards.len(), values.len(), advantages.len(), returns.len()]);
    let (mask, seqs) = (batch.mask, batch.sequences());
    assert!(bootstrap.is_empty() || bootstrap.len() == seqs.len(), "one bootstrap value for each sequence");
    for (i, seq) in seqs.enumerate() {
        let mut next_value = bootstrap.get(i).map_or(0.0, |&v| f64::from(v));
        let mut carry = 0.0;
        for t in seq.rev() {
            let trained = mask[t] != 0.0;
            advantages[t] = 0.0;
            returns[t] = 0.0;
            if !trained && options.mask_hole == MaskHole::Skip {
                continue;
            }
            let (reward, value) =
                if trained { (f64::from(token_rewards[t]), f64::from(values[t])) } else { (0.0, 0.0) };
            carry = reward + options.gamma * next_value - value + options.gamma * options.lambda * carry;
            next_value = value;
            if trained {
                advantages[t] = carry as f32;
                returns[t] = (carry + value) as f32;
            }
        }
    }
}

plimsoll_base::names! {
    /// Whitening of the advantages over the trained tokens of a step.
    #[derive(Default)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    Whiten {
        /// Advantages stay as they are.
        #[default]
        Off = "off",
        /// (A - mu) / sqrt(max(var, 1e-8)), biased variance.
        Full = "full",
        /// A - mu.
        NoStd = "no_std",
    }
}

/// Whitens `advantages`, [N], in place over all trained tokens of the rollout batch; masked positions become 0.
///
/// Returns the mean and the standard deviation before whitening.
/// Source: OpenRLHF 0.11.2 `compute_advantages_and_returns`; Open-Reasoner-Zero.
pub fn whiten(how: Whiten, mask: &[f32], advantages: &mut [f32]) -> (f64, f64) {
    assert_eq!(mask.len(), advantages.len(), "one advantage for each position");
    let count = packed::sum(mask).max(1.0);
    let trained = || mask.iter().zip(advantages.iter()).filter(|(m, _)| **m != 0.0);
    let mean = trained().map(|(m, a)| f64::from(*m) * f64::from(*a)).sum::<f64>() / count;
    let squares: f64 =
        trained().map(|(m, a)| f64::from(*m) * (f64::from(*a) - mean) * (f64::from(*a) - mean)).sum();
    let variance = squares / count;
    let (shift, scale) = match how {
        Whiten::Off => (0.0, 1.0),
        Whiten::NoStd => (mean, 1.0),
        Whiten::Full => (mean, 1.0 / variance.max(1e-8).sqrt()),
    };
    for (a, m) in advantages.iter_mut().zip(mask) {
        *a = if *m == 0.0 { 0.0 } else { ((f64::from(*a) - shift) * scale) as f32 };
    }
    (mean, variance.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(
        options: Gae,
        rewards: &[f32],
        values: &[f32],
        mask: &[f32],
        bootstrap: &[f32],
    ) -> (Vec<f32>, Vec<f32>) {
        let (mut a, mut r) = (vec![f32::NAN; mask.len()], vec![f32::NAN; mask.len()]);
        let batch = Packed { mask, seq_offsets: &[0, mask.len()] };
        gae(&options, batch, rewards, values, bootstrap, &mut a, &mut r);
        (a, r)
    }

    #[test]
    fn cut_sequence_bootstraps_from_value() {
        let options = Gae { gamma: 0.5, ..Gae::default() };
        let (a, r) = run(options, &[0.0, 1.0], &[0.25, 0.5], &[1.0, 1.0], &[4.0]);
        assert_eq!(r, [1.5, 3.0]); // 1 + 0.5 x 4, then half of it
        assert_eq!(a, [1.25, 2.5]);
    }

    #[test]
    fn skipped_hole_equals_the_sequence_without_it() {
        let options = Gae { gamma: 0.9, lambda: 0.8, mask_hole: MaskHole::Skip };
        let n = f32::NAN; // never read
        let (a, r) = run(options, &[0.1, n, n, 1.0], &[0.3, n, n, 0.2], &[1.0, 0.0, 0.0, 1.0], &[]);
        let (a2, r2) = run(options, &[0.1, 1.0], &[0.3, 0.2], &[1.0, 1.0], &[]);
        assert_eq!((a[0], a[3], r[0], r[3]), (a2[0], a2[1], r2[0], r2[1]));
        assert_eq!((a[1], a[2], r[1], r[2]), (0.0, 0.0, 0.0, 0.0));
    }

    #[test]
    fn whitening_of_equal_advantages_is_zero_not_infinite() {
        let mut a = [0.5, f32::NAN, 0.5];
        let (mean, std) = whiten(Whiten::Full, &[1.0, 0.0, 1.0], &mut a);
        assert_eq!((a, mean, std), ([0.0; 3], 0.5, 0.0));
        let mut nothing = [f32::NAN];
        whiten(Whiten::Full, &[0.0], &mut nothing);
        assert_eq!(nothing, [0.0]);
    }

    #[test]
    fn reward_falls_on_the_last_trained_token() {
        let mut out = [f32::NAN; 5];
        let batch = Packed { mask: &[1.0, 1.0, 0.0, 0.0, 0.0], seq_offsets: &[0, 3, 5] };
        token_rewards(batch, &[1.0, 2.0], None, &mut out);
        assert_eq!(out, [0.0, 1.0, 0.0, 0.0, 0.0]);
    }
}
