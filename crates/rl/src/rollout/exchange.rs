//! What ranks give one another after a rollout: each a message, or the error that ended its part.

use plimsoll_base::{Error, Exit, Result};
use plimsoll_ranks::Group;
use plimsoll_rollout::{RolloutStats, Samples, Turn};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

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
