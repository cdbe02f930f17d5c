//! What drawing took, in a step or in a part of one.

use crate::players::RoundReport;
use crate::rollout::counted::CountedByAll;
use plimsoll_reward::{Scored, Tally};
use plimsoll_rollout::RolloutStats;
use plimsoll_run::metrics::Metrics;
use serde::{Deserialize, Serialize};

/// The counts of a rollout. Ranks tell each other all of it but what is by episode or the supply's own.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Gathered {
    /// True if groups may be dropped.
    pub filters: bool,
    pub rounds: u32,
    pub sampled: usize,
    /// Number of groups that passed, including those that were not needed any more.
    pub passed: usize,
    /// Number of groups that the rollout is short of.
    pub missing: usize,
    pub rewards: f64,
    pub rewarded: usize,
    /// Number of samples for which a reward or the environment failed.
    pub failed: usize,
    pub tokens: usize,
    /// Operations of one forward pass over the sampled tokens.
    pub flops: f64,
    pub stats: RolloutStats,
    pub rollout_s: f64,
    /// Seconds of grading that was not finished when the rollout ended.
    pub reward_s: f64,
    /// Failures of rewards that run a user's code.
    pub tallies: Vec<(String, Tally)>,
    /// Means of the numbers that rewards logged with their scores, in the last round.
    pub logged: Vec<(String, f64)>,
    #[serde(skip)]
    pub episodes: Option<RoundReport>,
    /// The supply's report of the step, by the names of metrics.
    #[serde(skip)]
    pub(crate) of_supply: Metrics,
}

impl Gathered {
    /// Returns the share of sampled groups that passed; the metric `dynamic_sampling/kept_share`.
    pub fn kept_share(&self) -> f64 {
        self.passed as f64 / self.sampled.max(1) as f64
    }

    /// Returns the mean reward of all samples; the metric `dynamic_sampling/reward`.
    pub(crate) fn mean_reward(&self) -> f64 {
        self.rewards / self.rewarded.max(1) as f64
    }

    /// Returns the share of samples for which a reward or the environment failed; the metric `reward/fault_share`.
    pub(crate) fn fault_share(&self, group_size: usize) -> f64 {
        self.failed as f64 / (self.sampled * group_size).max(1) as f64
    }

    /// Counts a sampled group and its scores.
    pub(crate) fn count_group(&mut self, scored: &[Scored]) {
        let rewards = || scored.iter().filter_map(|scored| scored.total);
        self.sampled += 1;
        self.failed += scored.iter().filter(|scored| scored.failed).count();
        self.rewarded += rewards().count();
        self.rewards += rewards().map(f64::from).sum::<f64>();
    }

    /// Adds what the rewards counted in a round.
    pub(crate) fn add_counted(&mut self, counted: CountedByAll) {
        self.logged = counted.logged;
        self.add_tallies(counted.tallies);
    }

    /// Adds another rollout of the step.
    pub(crate) fn add(&mut self, other: Gathered) {
        self.filters |= other.filters;
        self.rounds += other.rounds;
        self.sampled += other.sampled;
        self.passed += other.passed;
        self.missing += other.missing;
        self.rewards += other.rewards;
        self.rewarded += other.rewarded;
        self.failed += other.failed;
        self.tokens += other.tokens;
        self.flops += other.flops;
        self.stats.add_counts(&other.stats);
        self.rollout_s += other.rollout_s;
        self.reward_s += other.reward_s;
        self.add_tallies(other.tallies);
        self.logged = other.logged;
    }

    fn add_tallies(&mut self, tallies: Vec<(String, Tally)>) {
        for (name, tally) in tallies {
            match self.tallies.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => sum.add(&tally),
                None => self.tallies.push((name, tally)),
            }
        }
    }

    /// Returns the number of prompts of the next round if `missing` groups are missing: as many as the share that
    /// passed so far makes likely to be enough, and never more than a rollout has.
    pub(super) fn next_round(&self, missing: usize, rollout: usize) -> usize {
        match self.passed {
            0 => rollout,
            passed => (missing * self.sampled).div_ceil(passed).min(rollout),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_as_large_as_what_passed_makes_likely_to_be_enough() {
        for (sampled, passed, missing, expect) in
            [(0, 0, 8, 8), (8, 0, 8, 8), (8, 4, 4, 8), (8, 6, 2, 3), (8, 1, 7, 8), (16, 7, 1, 3)]
        {
            let gathered = Gathered { sampled, passed, ..Gathered::default() };
            assert_eq!(gathered.next_round(missing, 8), expect, "{sampled} {passed} {missing}");
        }
    }
}
