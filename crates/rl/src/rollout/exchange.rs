//! Prompts dealt among ranks, and what ranks give one another after a rollout: each a message, or the error that ended its part.

use plimsoll_base::{Error, Exit, Result};
use plimsoll_ranks::Group;
use plimsoll_rollout::{Lengths, RolloutStats, Samples, Turn, deal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Who samples which prompts. All ranks have the same samples, so all make the same deal.
pub(crate) struct Deal {
    /// The key and the data set of each prompt.
    keys: Vec<(u64, usize)>,
    /// The rank of each prompt.
    ranks: Vec<usize>,
}

impl Deal {
    pub(crate) fn new(group: &Group, lengths: &Lengths, keys: impl Iterator<Item = (u64, usize)>) -> Deal {
        let keys: Vec<(u64, usize)> = keys.collect();
        let expected: Vec<u64> = keys.iter().map(|(key, set)| lengths.expected(*key, *set)).collect();
        Deal { ranks: deal(&expected, group.ranks()), keys }
    }

    /// Returns this rank's prompts, ascending.
    pub(crate) fn own(&self, group: &Group) -> Vec<usize> {
        (0..self.ranks.len()).filter(|prompt| self.ranks[*prompt] == group.rank()).collect()
    }

    /// Returns what the ranks have, `size` of each prompt, in the order of the prompts.
    pub(crate) fn in_order<T>(&self, parts: Vec<Vec<T>>, size: usize) -> impl Iterator<Item = T> {
        let mut parts: Vec<_> = parts.into_iter().map(Vec::into_iter).collect();
        let ranks = self.ranks.iter().flat_map(move |rank| std::iter::repeat_n(*rank, size));
        ranks.map(move |rank| parts[rank].next().expect("a rank sends what it was dealt"))
    }

    /// Adds the lengths of all ranks' responses, `size` of each prompt.
    pub(crate) fn learn(&self, lengths: &mut Lengths, samples: &Samples, size: usize) {
        for (prompt, (key, set)) in self.keys.iter().enumerate() {
            let tokens: usize = (prompt * size..(prompt + 1) * size).map(|s| samples.ids(s).len()).sum();
            lengths.add(*key, *set, tokens as u64, size as u64);
        }
    }
}

/// A sampled response on its way. Floating-point numbers are sent as their bits.
#[derive(Serialize, Deserialize)]
pub(crate) struct Sent {
    ids: Vec<u32>,
    logprobs: Vec<u32>,
    turns: Vec<Turn>,
}

impl Sent {
    pub(crate) fn of(samples: &Samples, sample: usize) -> Sent {
        Sent {
            ids: samples.ids(sample).to_vec(),
            logprobs: samples.logprobs(sample).iter().map(|x| x.to_bits()).collect(),
            turns: samples.turns(sample).to_vec(),
        }
    }

    /// Adds it to `samples`.
    pub(crate) fn push_to(&self, samples: &mut Samples) {
        let logprobs: Vec<f32> = self.logprobs.iter().map(|bits| f32::from_bits(*bits)).collect();
        samples.push_turns(&self.ids, &logprobs, &self.turns);
    }
}

/// Passes, rows and preemptions.
#[derive(Serialize, Deserialize)]
pub(crate) struct SentStats([u64; 3]);

impl SentStats {
    pub(crate) fn of(stats: &RolloutStats) -> SentStats {
        SentStats([stats.passes, stats.rows, stats.preemptions])
    }

    pub(crate) fn add_to(&self, stats: &mut RolloutStats) {
        let [passes, rows, preemptions] = self.0;
        stats.add_counts(&RolloutStats { passes, rows, preemptions, ..RolloutStats::default() });
    }
}

/// Gives what each rank has to all. Returns it by rank.
///
/// Errors: this rank's own; `rank-lost`, which names the first rank that has one.
pub(crate) fn exchange<T: Serialize + DeserializeOwned>(group: &Group, own: Result<T>) -> Result<Vec<T>> {
    let words = |error: &Error| format!("{}: {}", error.slug, error.message);
    let sent = serde_json::to_vec(&own.as_ref().map_err(words)).expect("plain data");
    let failed = own.err();
    let all = group.all_gather(&sent);
    drop(sent);
    let all = failed.map_or(all, Err)?;
    let read = |(rank, bytes): (usize, Vec<u8>)| {
        let read: std::result::Result<T, String> =
            serde_json::from_slice(&bytes).expect("the same program wrote it");
        read.map_err(|words| Error {
            exit: Exit::OtherRank,
            ..Error::new("rank-lost", format!("rank {rank}: {words}"))
        })
    };
    all.into_iter().enumerate().map(read).collect()
}
