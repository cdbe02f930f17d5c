//! Counts and logs of the rewards of each rank, summed over ranks.

use plimsoll_base::ExactSum;
use plimsoll_reward::{Rewards, Tally};
use serde::{Deserialize, Serialize};

/// Counts and logs of one rank's rewards in a round.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Counted {
    tallies: Vec<(String, Tally)>,
    logged: Vec<Logged>,
}

/// Numbers that rewards logged under a name.
#[derive(Serialize, Deserialize)]
struct Logged {
    name: String,
    /// The bits of their exact sum.
    sum: Vec<u64>,
    count: u64,
}

/// Counts and logs of all ranks' rewards in a round.
#[derive(Default)]
pub(crate) struct CountedByAll {
    pub tallies: Vec<(String, Tally)>,
    /// Means by name.
    pub logged: Vec<(String, f64)>,
}

impl Counted {
    /// Reads the counts and logs of `rewards` in their last round.
    pub(crate) fn of(rewards: &Rewards) -> Counted {
        let logged = |(name, sum, count): (String, &ExactSum, u64)| Logged { name, sum: sum.bits(), count };
        Counted {
            tallies: rewards.tallies().map(|(name, tally)| (name.to_string(), tally)).collect(),
            logged: rewards.logged_sums().map(logged).collect(),
        }
    }

    /// Sums the counts and logs of all ranks.
    pub(crate) fn sum(all: impl IntoIterator<Item = Counted>) -> CountedByAll {
        let mut tallies: Vec<(String, Tally)> = Vec::new();
        let mut logged: Vec<(String, ExactSum, u64)> = Vec::new();
        for counted in all {
            for (name, tally) in counted.tallies {
                match tallies.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, sum)) => sum.add(&tally),
                    None => tallies.push((name, tally)),
                }
            }
            for Logged { name, sum, count } in counted.logged {
                let sum = ExactSum::of_bits(sum);
                match logged.iter_mut().find(|(known, ..)| *known == name) {
                    Some((_, all, counts)) => {
                        all.add_sum(&sum);
                        *counts += count;
                    }
                    None => logged.push((name, sum, count)),
                }
            }
        }
        let mean = |(name, sum, count): (String, ExactSum, u64)| (name, sum.value() / count.max(1) as f64);
        CountedByAll { tallies, logged: logged.into_iter().map(mean).collect() }
    }
}

#[cfg(test)]
#[path = "counted_tests.rs"]
mod tests;
