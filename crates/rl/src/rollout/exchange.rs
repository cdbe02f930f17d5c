//! Deals prompts to ranks, and exchanges their results: each rank sends a message, or the error that ended its part.

use crate::rollout::message::{Kind, pack, unpack};
use plimsoll_base::{Error, Exit, Result};
use plimsoll_ranks::Group;
use plimsoll_rollout::{Lengths, Samples, Turn, deal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

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
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ResponseParts")]
pub(crate) struct SentResponse {
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    turns: Vec<Turn>,
}

/// A response as a rank sent it, before it is checked.
#[derive(Deserialize)]
struct ResponseParts {
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    turns: Vec<Turn>,
}

impl TryFrom<ResponseParts> for SentResponse {
    type Error = &'static str;

    fn try_from(of: ResponseParts) -> std::result::Result<SentResponse, &'static str> {
        let ResponseParts { ids, logprobs, turns } = of;
        let is_inside = |turn: &Turn| turn.start <= turn.end && turn.end as usize <= ids.len();
        if ids.len() == logprobs.len() && !turns.is_empty() && turns.iter().all(is_inside) {
            return Ok(SentResponse { ids, logprobs, turns });
        }
        Err("no response")
    }
}

impl SentResponse {
    pub(crate) fn of(samples: &Samples, sample: usize) -> SentResponse {
        SentResponse {
            ids: samples.ids(sample).to_vec(),
            logprobs: samples.logprobs(sample).to_vec(),
            turns: samples.turns(sample).to_vec(),
        }
    }

    pub(crate) fn turns(&self) -> &[Turn] {
        &self.turns
    }

    pub(crate) fn push_to(&self, samples: &mut Samples) {
        samples.push_turns(&self.ids, &self.logprobs, &self.turns);
    }
}

/// Sends this rank's value to all ranks. Returns all values, by rank.
///
/// Errors: this rank's own; `rank-lost`, naming the first rank that has one; `ranks-exchange` if bytes cannot be read.
pub(crate) fn exchange<T: Serialize + DeserializeOwned>(
    group: &Group,
    kind: Kind,
    own: Result<T>,
) -> Result<Vec<T>> {
    if group.is_alone() {
        return own.map(|own| vec![own]);
    }
    let words = |error: &Error| format!("{}: {}", error.slug, error.message);
    let sent = pack(kind, own.as_ref().map_err(words));
    let failed = own.err();
    let all = group.all_gather(&sent);
    drop(sent);
    let all = failed.map_or(all, Err)?;
    all.into_iter().enumerate().map(|(rank, bytes)| read(kind, rank, &bytes)).collect()
}

fn read<T: DeserializeOwned>(kind: Kind, rank: usize, bytes: &[u8]) -> Result<T> {
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
    use plimsoll_rollout::Finish;

    fn sent() -> SentResponse {
        let turns = vec![
            Turn { start: 0, end: 2, finish: Finish::Stop },
            Turn { start: 3, end: 4, finish: Finish::Length },
        ];
        SentResponse { ids: vec![7, 8, 9, 151_643], logprobs: vec![-0.5, -1e-7, f32::NAN, 0.0], turns }
    }

    #[test]
    fn a_response_arrives_bit_for_bit() {
        let bytes = pack(Kind::Samples, Ok(&vec![sent()]));
        let back: Vec<SentResponse> = read(Kind::Samples, 1, &bytes).expect("it is whole");
        let bits = |sent: &SentResponse| sent.logprobs.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!((&back[0].ids, &back[0].turns), (&sent().ids, &sent().turns));
        assert_eq!(bits(&back[0]), bits(&sent()));
    }

    #[test]
    fn the_error_names_the_rank_that_failed_or_sent_what_cannot_be() {
        let failed = pack::<Vec<SentResponse>>(Kind::Samples, Err("reward-failing: no scores".into()));
        let error = read::<Vec<SentResponse>>(Kind::Samples, 2, &failed).expect_err("it failed");
        assert_eq!((error.slug, error.message.as_str()), ("rank-lost", "rank 2: reward-failing: no scores"));
        assert_eq!(error.exit, Exit::OtherRank);
        let outside = Turn { start: 0, end: 5, finish: Finish::Eos };
        for bad in [
            SentResponse { turns: vec![outside], ..sent() },
            SentResponse { turns: vec![], ..sent() },
            SentResponse { ids: vec![7], ..sent() },
        ] {
            let bytes = pack(Kind::Samples, Ok(&vec![bad]));
            let error = read::<Vec<SentResponse>>(Kind::Samples, 3, &bytes).expect_err("it cannot be");
            assert_eq!(error.slug, "ranks-exchange");
            let why = "a value in it cannot be one of its kind";
            assert_eq!(
                error.message,
                format!("rank 3 sent {} bytes that cannot be read: {why}", bytes.len())
            );
        }
    }
}
