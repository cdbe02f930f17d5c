//! Deals prompts to ranks, and exchanges their results: each rank sends a message, or the error that ended its part.

use crate::rollout::packed::{Kind, Packed, Read, Reader, Writer, pack, packed, unpack};
use plimsoll_base::{Error, Exit, Result};
use plimsoll_ranks::Group;
use plimsoll_rollout::{Finish, Lengths, RolloutStats, Samples, Turn, deal};

/// Assigns prompts to ranks. All ranks have the same samples, so all make the same deal.
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

    /// Returns the ranks' `parts`, `size` items for each prompt, in the order of the prompts.
    pub(crate) fn in_order<T>(&self, parts: Vec<Vec<T>>, size: usize) -> impl Iterator<Item = T> {
        let mut parts: Vec<_> = parts.into_iter().map(Vec::into_iter).collect();
        let ranks = self.ranks.iter().flat_map(move |rank| std::iter::repeat_n(*rank, size));
        ranks.map(move |rank| parts[rank].next().expect("a rank sends what it was dealt"))
    }

    /// Adds the lengths of all responses, `size` for each prompt, to `lengths`.
    pub(crate) fn learn(&self, lengths: &mut Lengths, samples: &Samples, size: usize) {
        for (prompt, (key, set)) in self.keys.iter().enumerate() {
            let tokens: usize = (prompt * size..(prompt + 1) * size).map(|s| samples.ids(s).len()).sum();
            lengths.add(*key, *set, tokens as u64, size as u64);
        }
    }
}

/// A sampled response, as sent between ranks.
#[derive(Debug, PartialEq)]
pub(crate) struct Sent {
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    turns: Vec<Turn>,
}

impl Sent {
    pub(crate) fn of(samples: &Samples, sample: usize) -> Sent {
        Sent {
            ids: samples.ids(sample).to_vec(),
            logprobs: samples.logprobs(sample).to_vec(),
            turns: samples.turns(sample).to_vec(),
        }
    }

    pub(crate) fn push_to(&self, samples: &mut Samples) {
        samples.push_turns(&self.ids, &self.logprobs, &self.turns);
    }
}

impl Packed for Sent {
    const LEAST: usize = 3 * <Vec<u32>>::LEAST;

    fn put(&self, to: &mut Writer) {
        self.ids.put(to);
        self.logprobs.put(to);
        self.turns.put(to);
    }
    fn take(from: &mut Reader<'_>) -> Read<Sent> {
        let (ids, logprobs) = (<Vec<u32>>::take(from)?, <Vec<f32>>::take(from)?);
        let turns = <Vec<Turn>>::take(from)?;
        let tokens = ids.len();
        let is_inside = |turn: &Turn| turn.start <= turn.end && turn.end as usize <= tokens;
        match tokens == logprobs.len() && !turns.is_empty() && turns.iter().all(is_inside) {
            true => Ok(Sent { ids, logprobs, turns }),
            false => from.refuse(&format!(
                "a response of {tokens} tokens with {} log-probabilities and the turns {turns:?}",
                logprobs.len()
            )),
        }
    }
}

packed!(Turn { start: u32, end: u32, finish: Finish });

const FINISHES: [Finish; 3] = [Finish::Eos, Finish::Stop, Finish::Length];

/// Packed as its index in `FINISHES`.
impl Packed for Finish {
    const LEAST: usize = u32::LEAST;

    fn put(&self, to: &mut Writer) {
        let place = FINISHES.iter().position(|finish| finish == self).expect("the list is whole");
        (place as u32).put(to);
    }
    fn take(from: &mut Reader<'_>) -> Read<Finish> {
        let place = u32::take(from)?;
        match FINISHES.get(place as usize) {
            Some(finish) => Ok(*finish),
            None => from.refuse(&format!("no response ends in way {place}")),
        }
    }
}

/// Pass counters of a rollout.
pub(crate) struct SentStats {
    passes: u64,
    rows: u64,
    preemptions: u64,
}
packed!(SentStats { passes: u64, rows: u64, preemptions: u64 });

impl SentStats {
    pub(crate) fn of(stats: &RolloutStats) -> SentStats {
        let RolloutStats { passes, rows, preemptions, .. } = *stats;
        SentStats { passes, rows, preemptions }
    }

    pub(crate) fn add_to(&self, stats: &mut RolloutStats) {
        let SentStats { passes, rows, preemptions } = *self;
        stats.add_counts(&RolloutStats { passes, rows, preemptions });
    }
}

/// Sends this rank's value to all ranks. Returns all values, by rank.
///
/// Errors: this rank's own; `rank-lost`, naming the first rank that has one; `ranks-exchange` if bytes cannot be read.
pub(crate) fn exchange<T: Packed>(group: &Group, kind: Kind, own: Result<T>) -> Result<Vec<T>> {
    let words = |error: &Error| format!("{}: {}", error.slug, error.message);
    let sent = pack(kind, own.as_ref().map_err(words));
    let failed = own.err();
    let all = group.all_gather(&sent);
    drop(sent);
    let all = failed.map_or(all, Err)?;
    all.into_iter().enumerate().map(|(rank, bytes)| read(kind, rank, &bytes)).collect()
}

fn read<T: Packed>(kind: Kind, rank: usize, bytes: &[u8]) -> Result<T> {
    match unpack(kind, bytes) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(words)) => {
            let error = Error::new("rank-lost", format!("rank {rank}: {words}"));
            Err(Error { exit: Exit::OtherRank, ..error })
        }
        Err(why) => {
            let message = format!("rank {rank} sent {} bytes that cannot be read: {why}", bytes.len());
            Err(Error::new("ranks-exchange", message)
                .hint("start the same command with --resume to continue from the last checkpoint"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent() -> Sent {
        let turns = vec![
            Turn { start: 0, end: 2, finish: Finish::Stop },
            Turn { start: 3, end: 4, finish: Finish::Length },
        ];
        Sent { ids: vec![7, 8, 9, 151_643], logprobs: vec![-0.5, -1e-7, f32::NAN, 0.0], turns }
    }

    #[test]
    fn a_response_arrives_bit_for_bit() {
        let bytes = pack(Kind::Samples, Ok(&vec![sent()]));
        let back: Vec<Sent> = read(Kind::Samples, 1, &bytes).expect("it is whole");
        let bits = |sent: &Sent| sent.logprobs.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!((&back[0].ids, &back[0].turns), (&sent().ids, &sent().turns));
        assert_eq!(bits(&back[0]), bits(&sent()));
    }

    #[test]
    fn the_error_names_the_rank_that_failed_or_sent_what_cannot_be() {
        let failed = pack::<Vec<Sent>>(Kind::Samples, Err("reward-failing: no scores".into()));
        let error = read::<Vec<Sent>>(Kind::Samples, 2, &failed).expect_err("it failed");
        assert_eq!((error.slug, error.message.as_str()), ("rank-lost", "rank 2: reward-failing: no scores"));
        assert_eq!(error.exit, Exit::OtherRank);
        let outside = Turn { start: 0, end: 5, finish: Finish::Eos };
        for (bad, expect) in [
            (
                Sent { turns: vec![outside], ..sent() },
                "4 tokens with 4 log-probabilities and the turns [Turn",
            ),
            (Sent { turns: vec![], ..sent() }, "4 tokens with 4 log-probabilities and the turns []"),
            (Sent { ids: vec![7], ..sent() }, "1 tokens with 4 log-probabilities"),
        ] {
            let bytes = pack(Kind::Samples, Ok(&vec![bad]));
            let error = read::<Vec<Sent>>(Kind::Samples, 3, &bytes).expect_err("it cannot be");
            assert_eq!(error.slug, "ranks-exchange");
            let begin = format!("rank 3 sent {} bytes that cannot be read: before byte ", bytes.len());
            assert!(error.message.starts_with(&begin) && error.message.contains(expect), "{}", error.message);
        }
    }
}
