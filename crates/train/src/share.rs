//! A rank's share of a model's flat buffer: whose gradients it sums, optimizer states it holds, and weights it updates.
//!
//! Piece p of each bucket belongs to rank p N div `PIECES`. A rank's pieces of a bucket are neighbours, in its shard
//! too.

use crate::buckets::buckets;
use plimsoll_arch::ParamKind;
use plimsoll_device::{CODE_BLOCK, OwnedRun, PIECES, Run};
use plimsoll_model::ParamTable;

/// A rank among the ranks of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub rank: usize,
    /// Number of ranks, at most `PIECES`.
    pub ranks: usize,
}

impl Share {
    /// The share of a run's only rank.
    pub const WHOLE: Share = Share { rank: 0, ranks: 1 };

    /// Returns the other ranks in the order in which this one copies from them, from the next one round, so that no
    /// rank is read by all others at once.
    pub fn others(self) -> impl Iterator<Item = usize> {
        let Share { rank, ranks } = self;
        (1..ranks).map(move |step| (rank + step) % ranks)
    }

    /// Returns how many places `other` comes after this rank in the order of `others`.
    pub(crate) fn steps_to(self, other: usize) -> usize {
        (other + self.ranks - self.rank) % self.ranks
    }

    pub(crate) fn has(self, piece: usize) -> bool {
        piece * self.ranks / PIECES == self.rank
    }

    /// Returns the elements of a shard: the most that one of the ranks owns, so that all have one layout.
    pub fn elements(self, table: &ParamTable) -> u64 {
        shard_elements(table, self.ranks)
    }

    /// Returns the elements that the rank owns, in the order of the buffer.
    pub fn owned(self, table: &ParamTable) -> Vec<OwnedRun> {
        let mut out: Vec<OwnedRun> = Vec::new();
        let mut at = 0;
        for bucket in buckets(table) {
            for (_, run) in bucket.pieces().enumerate().filter(|(piece, _)| self.has(*piece)) {
                match out.last_mut() {
                    Some(last) if last.run.end() == run.start => last.run.elements += run.elements,
                    _ => out.push(OwnedRun { run, at }),
                }
                at += run.elements;
            }
        }
        out.retain(|owned| owned.run.elements > 0);
        out
    }
}

/// Returns the elements of a shard: the most that one of `ranks` ranks owns, so that all have one layout.
pub(crate) fn shard_elements(table: &ParamTable, ranks: usize) -> u64 {
    // Buckets cover the whole buffer; a planner asks this thousands of times, of tables of 100,000 tensors.
    if ranks == 1 {
        return table.elements;
    }
    let of = |rank| Share { rank, ranks }.owned(table).iter().map(|owned| owned.run.elements).sum::<u64>();
    (0..ranks).map(of).max().unwrap_or(0).next_multiple_of(CODE_BLOCK as u64)
}

/// Returns the elements of the largest run that a rank owns, and the most that one owns of the embedding.
pub(crate) fn landing_elements(table: &ParamTable, ranks: usize) -> (u64, u64) {
    let embed =
        table.find(ParamKind::Embed, 0).map(|param| Run { start: param.offset, elements: param.elements });
    let of = |rank: usize| {
        let owned = Share { rank, ranks }.owned(table);
        let largest = owned.iter().map(|owned| owned.run.elements).max().unwrap_or(0);
        let inside = owned.iter().filter_map(|owned| owned.inside(embed?));
        (largest, inside.map(|owned| owned.run.elements).sum::<u64>())
    };
    (0..ranks).map(of).fold((0, 0), |most, of| (most.0.max(of.0), most.1.max(of.1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_arch::ModelSpec;
    use plimsoll_base::DType;

    #[test]
    fn at_every_turn_each_rank_is_read_by_one() {
        for ranks in [1, 2, 3, 4, 7, 64] {
            let orders: Vec<Vec<usize>> =
                (0..ranks).map(|rank| Share { rank, ranks }.others().collect()).collect();
            for turn in 0..ranks - 1 {
                let mut read: Vec<usize> = orders.iter().map(|order| order[turn]).collect();
                read.sort_unstable();
                assert!(read.into_iter().eq(0..ranks), "turn {turn} of {ranks} ranks");
            }
            for (rank, order) in orders.iter().enumerate() {
                assert!(order.len() + 1 == ranks && !order.contains(&rank), "{rank} of {ranks}: {order:?}");
            }
        }
    }

    #[test]
    fn every_element_belongs_to_one_rank_and_shards_are_even() {
        for name in ["nano", "smollm2-135m", "qwen2.5-0.5b"] {
            let spec = ModelSpec::preset(name).unwrap();
            let table = ParamTable::new(&spec, &plimsoll_cpu::LAYOUTS, DType::Bf16);
            for ranks in [1, 2, 3, 4, 7, 8, 64] {
                let mut all: Vec<Run> = Vec::new();
                for rank in 0..ranks {
                    let mut at = 0;
                    for owned in (Share { rank, ranks }).owned(&table) {
                        assert_eq!(owned.at, at, "{name} {ranks}");
                        assert!(
                            (owned.at | owned.run.start).is_multiple_of(CODE_BLOCK as u64),
                            "{name} {ranks}"
                        );
                        at += owned.run.elements;
                        all.push(owned.run);
                    }
                    assert!(at <= shard_elements(&table, ranks), "{name} {ranks}");
                }
                all.sort_unstable_by_key(|run| run.start);
                let end = all.iter().fold(0, |next, run| {
                    assert_eq!(run.start, next, "{name} {ranks}");
                    run.end()
                });
                assert_eq!(end, table.elements);
                // Pieces are whole blocks, so shares of a bucket differ by a block a piece.
                let even = table.elements as f64 / ranks as f64;
                assert!(shard_elements(&table, ranks) as f64 <= even * 1.6 + 65.0 * 256.0, "{name} {ranks}");
            }
            let whole = Share::WHOLE.owned(&table);
            assert_eq!(whole, [OwnedRun { run: Run { start: 0, elements: table.elements }, at: 0 }]);
        }
    }
}
