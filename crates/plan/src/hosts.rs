//! The hosts of a run's ranks, as far as memory and time depend on them.

use plimsoll_base::{Bytes, Error, Result};
use plimsoll_train::Share;

/// 10 Gbit/s, the network of ordinary hosts.
const NETWORK: f64 = 1.25e9;
/// Seconds of a barrier between hosts.
const BARRIER_S: f64 = 1e-4;
/// Ranks that a plan counts for memory: the most that own something.
const OWNERS_MAX: usize = 64;
/// Kernel memory for data from and to ranks of other hosts: `ranks::Reach` has no more in flight, but at least one
/// request per rank.
const UNDER_WAY: u64 = 32 << 20;
const REQUEST: u64 = 1 << 20;

/// The hosts of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hosts {
    /// Ranks of all hosts.
    pub ranks: usize,
    pub count: usize,
    /// Maximum ranks of one host.
    pub near: usize,
    /// True if all hosts have as many ranks, numbered consecutively.
    pub are_even: bool,
    /// Bytes per second that each host sends and receives.
    pub network: f64,
}

impl Hosts {
    /// Returns a single host.
    pub fn one(ranks: usize) -> Hosts {
        Hosts { ranks, count: 1, near: ranks, are_even: true, network: NETWORK }
    }

    /// Returns hosts with `near` ranks each. `network`: such as `45GB/s`, if known.
    ///
    /// Errors: `bad-limit`.
    pub fn even(count: usize, near: usize, network: Option<&str>) -> Result<Hosts> {
        let network = network.map_or(Ok(NETWORK), |text| {
            let bytes = Bytes::parse(text.strip_suffix("/s").unwrap_or(text))?;
            match bytes.0 {
                0 => Err(Error::usage("bad-limit", format!("--network {text}: nothing passes"))
                    .hint("write what a host sends in a second: --network 45GB/s")),
                bytes => Ok(bytes as f64),
            }
        })?;
        Ok(Hosts { ranks: count * near, count, near, are_even: true, network })
    }

    /// Returns the hosts of the first `ranks` ranks, if hosts have as many each, numbered consecutively.
    pub fn of_first(&self, ranks: usize) -> Hosts {
        let (near, count) = (self.near.min(ranks), ranks.div_ceil(self.near));
        Hosts { ranks, count, near, are_even: self.are_even && ranks.is_multiple_of(near), ..*self }
    }

    /// Returns the share of a model that the first rank owns.
    pub fn share(&self) -> Share {
        Share { rank: 0, ranks: self.ranks.clamp(1, OWNERS_MAX) }
    }

    /// Returns the ranks per host, if the ranks of a host sum `fold` micro-batches on their own. If one host has all
    /// owners, there is none on another host to sum for.
    pub(crate) fn folds(&self, fold: usize) -> Option<usize> {
        let has_far_owners = self.count > 1 && self.near < self.share().ranks;
        let folds = fold > 1 && has_far_owners && self.are_even && self.near.is_multiple_of(fold);
        folds.then_some(self.near)
    }

    /// Returns the number of ranks on other hosts.
    fn far(&self) -> usize {
        self.ranks - self.near
    }

    /// Returns the bytes of a rank's sockets to other hosts.
    pub(crate) fn socket_bytes(&self) -> Bytes {
        let far = self.far() as u64;
        Bytes(if far == 0 { 0 } else { 2 * UNDER_WAY.max(far * REQUEST) })
    }

    /// Returns the seconds for every rank to receive its share of `of_near` bytes of the ranks of its host, over a
    /// link, and of `of_far` bytes of those of other hosts, which share the network.
    pub(crate) fn receive_s(&self, [of_near, of_far]: [f64; 2], link: f64) -> f64 {
        let (ranks, near) = (self.ranks as f64, self.near as f64);
        let far = self.far() as f64;
        of_near * (near - 1.0) / ranks / link + of_far * far / ranks * near / self.network
    }

    /// Returns the seconds of barriers between hosts.
    pub(crate) fn barriers_s(&self, barriers: f64) -> f64 {
        if self.count > 1 { barriers * BARRIER_S } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_shared_by_the_ranks_of_a_host() {
        let of = |count, near| Hosts::even(count, near, Some("10GB/s")).expect("a rate");
        assert_eq!(Hosts::one(1).receive_s([1e9; 2], 1e9), 0.0);
        assert_eq!(of(1, 4).receive_s([1e9; 2], 1e9), 0.75);
        // Two ranks of each host receive half of all from the other.
        let seconds = of(2, 2).receive_s([1e9; 2], 1e9);
        assert!((seconds - (0.25 + 0.5 * 2.0 / 10.0)).abs() < 1e-12, "{seconds}");
        assert_eq!((of(1, 4).barriers_s(9.0), of(2, 2).barriers_s(10.0)), (0.0, 1e-3));
        assert_eq!((of(1, 4).socket_bytes(), of(2, 2).socket_bytes()), (Bytes(0), Bytes::mib(64)));
        assert_eq!(of(128, 8).share().ranks, 64);
        assert_eq!((of(2, 8).folds(8), of(2, 8).folds(4), of(128, 8).folds(8)), (Some(8), Some(8), Some(8)));
        assert_eq!((of(2, 6).folds(4), of(1, 8).folds(8), of(2, 8).folds(1)), (None, None, None));
        assert_eq!((of(2, 64).folds(8), of(2, 128).folds(8)), (None, None));
        assert_eq!(Hosts { are_even: false, ..of(2, 8) }.folds(8), None);
        for text in ["0", "fast"] {
            assert!(Hosts::even(2, 1, Some(text)).is_err(), "{text}");
        }
    }
}
