//! From sample rewards to shaped rewards: length penalty, group baseline, clip; and the metrics of a step's rewards.
//!
//! P prompts, G samples each; `rewards` is [P * G], the samples of a group next to each other. A `None` reward leaves
//! its sample out of its group's statistics; its shaped reward is 0, and the caller masks its tokens. Order: length
//! penalty, group shaping, clip. The KL is subtracted later, per token (`advantage::token_rewards`).

use plimsoll_base::{Error, Result};

/// The baseline of a group's rewards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GroupShaping {
    /// The reward itself (GAE, REINFORCE++).
    None,
    /// Less the mean of the others (arXiv 2402.14740).
    Rloo,
    /// Less the mean of the group (REINFORCE++-baseline, Dr.GRPO).
    MeanBaseline,
    /// Less the mean, divided by (unbiased standard deviation + eps) (GRPO, arXiv 2402.03300).
    GroupNorm {
        /// 1e-4 in TRL and here, 1e-6 in verl, 1e-9 in OpenRLHF.
        eps: f64,
    },
    /// Less the mean of the group in which a sample counts by its tokens (OPO, arXiv 2505.23585).
    LengthWeighted,
    /// Less the mean, times samples for each whose reward is not 0, over the whole step (GPG, arXiv 2504.02546).
    Gpg,
    /// Less the reward of the greedy answer to the prompt, see `subtract_greedy` (ReMax, arXiv 2310.10505).
    Greedy,
    /// Less a mean of each token, see `optimal_token::subtract_optimal` (verl's `optimal_token_baseline`).
    OptimalToken,
    /// The best sample's lead over the second, divided by (std + eps); 0 for the others (verl's `grpo_passk`).
    Lead {
        /// Added to the deviation, as in `GroupNorm`.
        eps: f64,
    },
    /// The group norm of each reward by itself, see `decoupled`; of a single reward the group norm (GDPO).
    Decoupled {
        /// Added to the deviation, as in `GroupNorm`.
        eps: f64,
    },
}

/// The penalty of responses that come near the length limit (DAPO, arXiv 2503.14476, equation 13).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlong {
    /// L, the longest response.
    pub max_new_tokens: usize,
    /// b, the tokens before the limit over which the penalty grows.
    pub buffer: usize,
    /// The penalty at the limit.
    pub factor: f64,
}

/// Options of reward shaping, before rewards become token rewards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shaping {
    /// Length penalty, if any.
    pub overlong: Option<Overlong>,
    /// Group baseline.
    pub group: GroupShaping,
    /// Bounds of the shaped reward; [-10, 10] elsewhere.
    pub clip: [f32; 2],
}

/// Statistics of the given rewards of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupStats {
    /// Samples with a reward.
    pub count: usize,
    /// Their mean; 0 without any.
    pub mean: f64,
    /// Their unbiased standard deviation (ddof 1); 0 below two.
    pub std: f64,
}

/// Metrics of a step's rewards, after the length penalty and before the baseline.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RewardMetrics {
    /// Mean over samples with a reward; the metric `reward`.
    pub reward: f64,
    /// Mean over groups of the unbiased standard deviation; the metric `reward_std`.
    pub reward_std: f64,
    /// Share of groups without variance, which train nothing; the metric `frac_reward_zero_std`.
    pub frac_reward_zero_std: f64,
    /// Samples whose reward was `None`.
    pub num_left_out: usize,
}

/// A standard deviation below this counts as 0 (`torch.isclose` against 0).
const ZERO_STD: f64 = 1e-8;

/// Shapes a step's rewards, [P * G], into `shaped`, [P * G].
///
/// `lengths`: [P * G], response tokens; read only for the length penalty and `LengthWeighted`.
/// Errors: `group-too-small` if the baseline needs a group and `group_size` is below 2. A sample whose group is
/// otherwise `None` has no baseline and gets 0.
pub fn shape_rewards(
    options: &Shaping,
    rewards: &[Option<f32>],
    lengths: &[usize],
    group_size: usize,
    shaped: &mut [f32],
) -> Result<RewardMetrics> {
    check_group_size(options.group, group_size)?;
    assert_eq!(rewards.len() % group_size, 0, "rewards come in whole groups of {group_size}");
    assert_eq!(rewards.len(), shaped.len(), "one shaped reward for each reward");
    let penalised = |i: usize| rewards[i].map(|r| f64::from(r) - penalty(options, lengths, i));
    let scale = match options.group {
        GroupShaping::Gpg => {
            let given = || (0..rewards.len()).filter_map(penalised);
            given().count() as f64 / given().filter(|&reward| reward != 0.0).count().max(1) as f64
        }
        _ => 1.0,
    };
    let num_groups = rewards.len() / group_size;
    let mut metrics = RewardMetrics::default();
    let (mut num_given, mut num_flat) = (0usize, 0usize);
    for group in 0..num_groups {
        let samples = group * group_size..(group + 1) * group_size;
        let stats = stats_of(samples.clone().filter_map(penalised));
        num_given += stats.count;
        num_flat += usize::from(stats.std < ZERO_STD);
        metrics.reward += stats.mean * stats.count as f64;
        metrics.reward_std += stats.std;
        let base = match options.group {
            GroupShaping::LengthWeighted => {
                let weighed = samples.clone().filter_map(|i| Some((lengths[i] as f64, penalised(i)?)));
                let tokens: f64 = weighed.clone().map(|(length, _)| length).sum();
                weighed.map(|(length, reward)| length * reward).sum::<f64>() / tokens.max(1.0)
            }
            GroupShaping::Lead { .. } => second_best(samples.clone().filter_map(penalised)),
            _ => stats.mean,
        };
        let best = samples.clone().filter_map(penalised).fold(f64::MIN, f64::max);
        for i in samples {
            let value = penalised(i).map_or(0.0, |r| match options.group {
                GroupShaping::Lead { .. } if r < best => 0.0,
                group => scale * shape_one(group, r, base, &stats),
            });
            shaped[i] = (value as f32).clamp(options.clip[0], options.clip[1]);
            if rewards[i].is_none() {
                shaped[i] = 0.0;
            }
        }
    }
    metrics.num_left_out = rewards.len() - num_given;
    metrics.reward /= num_given.max(1) as f64;
    metrics.reward_std /= num_groups.max(1) as f64;
    metrics.frac_reward_zero_std = num_flat as f64 / num_groups.max(1) as f64;
    Ok(metrics)
}

/// Refuses a group too small for its baseline; the planner checks this before the run.
pub fn check_group_size(group: GroupShaping, group_size: usize) -> Result<()> {
    let at_least = if matches!(group, GroupShaping::None | GroupShaping::Greedy) { 1 } else { 2 };
    if group_size >= at_least {
        return Ok(());
    }
    Err(Error::usage(
        "group-too-small",
        format!("rollout.group_size is {group_size}, and the method compares a sample with its group"),
    )
    .fact("a group of one has no mean of the others and no variance, so every advantage would be 0")
    .hint("set rollout.group_size = 8, or method = \"reinforce\", which needs no group"))
}

/// Returns the statistics of a group's rewards.
pub fn group_stats(rewards: &[Option<f32>]) -> GroupStats {
    stats_of(rewards.iter().filter_map(|r| r.map(f64::from)))
}

/// Returns the overlong penalty of a response, at least 0: e = min(len - (L - b), b); if e > 0, (e / b) factor.
pub fn overlong_penalty(options: &Overlong, length: usize) -> f64 {
    let excess = (length + options.buffer).saturating_sub(options.max_new_tokens).min(options.buffer);
    if excess == 0 { 0.0 } else { excess as f64 / options.buffer as f64 * options.factor }
}

/// The groups that dynamic sampling keeps (DAPO, arXiv 2503.14476, equation 11).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GroupFilter {
    /// Groups whose rewards differ, in any range (verl's `filter_groups`).
    Mixed,
    /// Groups with low < mean < high (OpenRLHF's `dynamic_filtering`).
    Mean {
        /// Lower bound, not itself kept.
        low: f64,
        /// Upper bound, not itself kept.
        high: f64,
    },
}

impl GroupFilter {
    /// Returns true if the group with these rewards, before any shaping, is kept. A group without rewards is not.
    pub fn keeps(self, rewards: &[Option<f32>]) -> bool {
        let stats = group_stats(rewards);
        match self {
            GroupFilter::Mixed => stats.std >= ZERO_STD,
            GroupFilter::Mean { low, high } => stats.count > 0 && low < stats.mean && stats.mean < high,
        }
    }
}

fn penalty(options: &Shaping, lengths: &[usize], sample: usize) -> f64 {
    options.overlong.map_or(0.0, |overlong| overlong_penalty(&overlong, lengths[sample]))
}

/// Returns the largest number but one; the smallest there is of fewer.
fn second_best(rewards: impl Iterator<Item = f64>) -> f64 {
    let [_, second] = rewards.fold([f64::MIN; 2], |[first, second], reward| {
        if reward > first { [reward, first] } else { [first, second.max(reward)] }
    });
    second
}

/// Computes GDPO's advantages: each reward normalised within its group, summed by weights, normalised over the step.
///
/// `parts`: [P * G], the rewards of a sample, at most as many as `weights`; one that is `None` adds nothing. A sample
/// without any is left out and gets 0. Writes `shaped`, [P * G].
/// Source: arXiv 2601.05242; TRL 1.16 `normalize_then_sum`.
pub fn decoupled(parts: &[&[Option<f32>]], weights: &[f64], group_size: usize, eps: f64, shaped: &mut [f32]) {
    assert_eq!(parts.len(), shaped.len(), "the rewards of each sample");
    let mut sums = vec![None; parts.len()];
    for (group, sums) in parts.chunks(group_size).zip(sums.chunks_mut(group_size)) {
        for (k, weight) in weights.iter().enumerate() {
            let of = |sample: &&[Option<f32>]| sample.get(k).copied().flatten().map(f64::from);
            let stats = stats_of(group.iter().filter_map(of));
            for (sample, sum) in group.iter().zip(&mut *sums) {
                if let Some(reward) = of(sample) {
                    *sum = Some(sum.unwrap_or(0.0) + over(weight * (reward - stats.mean), stats.std + eps));
                }
            }
        }
    }
    let step = stats_of(sums.iter().filter_map(|sum| *sum));
    for (shaped, sum) in shaped.iter_mut().zip(sums) {
        *shaped = sum.map_or(0.0, |sum| over(sum - step.mean, step.std + eps) as f32);
    }
}

/// Subtracts from each sample the reward of the greedy answer to its prompt, in place.
///
/// `greedy`: [P]; a prompt whose greedy answer has no reward gets 0. Source: verl 0.9.1
/// `compute_remax_outcome_advantage`.
pub fn subtract_greedy(greedy: &[Option<f32>], group_size: usize, shaped: &mut [f32]) {
    assert_eq!(shaped.len(), greedy.len() * group_size, "one greedy answer for each group");
    for (greedy, shaped) in greedy.iter().zip(shaped.chunks_mut(group_size)) {
        for one in shaped {
            *one = greedy.map_or(0.0, |greedy| (f64::from(*one) - f64::from(greedy)) as f32);
        }
    }
}

/// Shapes one reward; `base`: what it is compared with.
fn shape_one(group: GroupShaping, reward: f64, base: f64, stats: &GroupStats) -> f64 {
    match group {
        GroupShaping::None | GroupShaping::Greedy | GroupShaping::OptimalToken => reward,
        _ if stats.count < 2 => 0.0,
        // R - (sum - R)/(n - 1) = (R - mean) n/(n - 1).
        GroupShaping::Rloo => (reward - stats.mean) * stats.count as f64 / (stats.count - 1) as f64,
        GroupShaping::MeanBaseline | GroupShaping::LengthWeighted | GroupShaping::Gpg => reward - base,
        GroupShaping::GroupNorm { eps } | GroupShaping::Lead { eps } | GroupShaping::Decoupled { eps } => {
            over(reward - base, stats.std + eps)
        }
    }
}

/// Returns `difference / spread`, and 0 without spread: equal rewards differ by nothing, also where eps is 0.
fn over(difference: f64, spread: f64) -> f64 {
    if spread > 0.0 { difference / spread } else { 0.0 }
}

fn stats_of(rewards: impl Iterator<Item = f64> + Clone) -> GroupStats {
    let count = rewards.clone().count();
    if count == 0 {
        return GroupStats::default();
    }
    let mean = rewards.clone().sum::<f64>() / count as f64;
    let squares: f64 = rewards.map(|r| (r - mean) * (r - mean)).sum();
    let std = if count < 2 { 0.0 } else { (squares / (count - 1) as f64).sqrt() };
    GroupStats { count, mean, std }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shaped(group: GroupShaping, rewards: &[Option<f32>], group_size: usize) -> (Vec<f32>, RewardMetrics) {
        let options = Shaping { overlong: None, group, clip: [-10.0, 10.0] };
        let mut out = vec![f32::NAN; rewards.len()];
        let metrics = shape_rewards(&options, rewards, &[], group_size, &mut out).expect("a valid group");
        (out, metrics)
    }

    #[test]
    fn equal_rewards_differ_by_nothing_without_eps_too() {
        let equal = [Some(0.5f32); 4];
        assert_eq!(shaped(GroupShaping::GroupNorm { eps: 0.0 }, &equal, 2).0, [0.0; 4]);
        let mut out = [f32::NAN; 4];
        decoupled(&[&equal[..1]; 4], &[1.0], 2, 0.0, &mut out);
        assert_eq!(out, [0.0; 4]);
    }

    #[test]
    fn none_leaves_its_sample_out() {
        let rewards = [Some(1.0), None, Some(0.0), Some(0.5), None, None];
        let (rloo, metrics) = shaped(GroupShaping::Rloo, &rewards, 3);
        assert_eq!(rloo, [1.0, 0.0, -1.0, 0.0, 0.0, 0.0]); // the second group has one survivor: no baseline
        assert_eq!(metrics.num_left_out, 3);
        assert_eq!(metrics.reward, 0.5);
        assert_eq!(metrics.frac_reward_zero_std, 0.5);
        let (mean, _) = shaped(GroupShaping::MeanBaseline, &rewards, 3);
        assert_eq!(mean, [0.5, 0.0, -0.5, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn a_left_out_sample_is_zero_even_outside_the_clip() {
        let options = Shaping { overlong: None, group: GroupShaping::None, clip: [1.0, 2.0] };
        let mut out = [f32::NAN; 2];
        shape_rewards(&options, &[None, Some(5.0)], &[], 1, &mut out).expect("no group needed");
        assert_eq!(out, [0.0, 2.0]);
    }

    #[test]
    fn equal_rewards_give_exactly_zero() {
        for reward in [0.1f32, 1.0, 1.0 / 3.0] {
            for group_size in 2..12 {
                let (out, metrics) = shaped(
                    GroupShaping::GroupNorm { eps: 1e-9 },
                    &vec![Some(reward); group_size],
                    group_size,
                );
                assert!(out.iter().all(|&r| r == 0.0), "{reward} x {group_size}: {out:?}");
                assert_eq!(metrics.frac_reward_zero_std, 1.0);
            }
        }
    }

    #[test]
    fn group_of_one_is_refused() {
        for group in [GroupShaping::Rloo, GroupShaping::MeanBaseline, GroupShaping::GroupNorm { eps: 1e-4 }] {
            let err = check_group_size(group, 1).expect_err("one sample has no group");
            assert_eq!((err.slug, err.exit), ("group-too-small", plimsoll_base::Exit::Usage));
        }
        assert!(check_group_size(GroupShaping::None, 1).is_ok());
        assert!(check_group_size(GroupShaping::None, 0).is_err());
    }

    #[test]
    fn overlong_grows_over_the_buffer() {
        let options = Overlong { max_new_tokens: 100, buffer: 20, factor: 0.5 };
        for (length, expect) in [(0, 0.0), (80, 0.0), (81, 0.025), (90, 0.25), (100, 0.5), (140, 0.5)] {
            assert_eq!(overlong_penalty(&options, length), expect, "length {length}");
        }
        let no_buffer = Overlong { buffer: 0, ..options };
        assert_eq!(overlong_penalty(&no_buffer, 100), 0.0);
    }

    #[test]
    fn dynamic_sampling_keeps_mixed_groups() {
        let unit = GroupFilter::Mean { low: 0.0, high: 1.0 };
        for (rewards, mixed, within) in [
            (vec![Some(1.0), Some(0.0)], true, true),
            (vec![Some(1.0), Some(1.0)], false, false),
            (vec![Some(0.0), None], false, false),
            (vec![None, None], false, false),
            // Rewards of another range: whether they differ does not depend on it.
            (vec![Some(1.0), Some(-1.0), Some(-1.0)], true, false),
            (vec![Some(0.5), Some(0.5)], false, true),
        ] {
            assert_eq!(GroupFilter::Mixed.keeps(&rewards), mixed, "{rewards:?}");
            assert_eq!(unit.keeps(&rewards), within, "{rewards:?}");
        }
    }
}
