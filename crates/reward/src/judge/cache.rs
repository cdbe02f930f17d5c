//! Keeps what a judge has said, by request. A bounded queue: the oldest entry goes first. Nothing of it is saved.

use crate::hash::simple_hash;
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};

/// Most requests that a connection remembers.
const ENTRIES_MAX: usize = 16 << 10;
/// Most bytes of those: 32,768 places of 33 bytes each in the map, and 16 bytes an entry in the queue.
pub(crate) const CACHE_BYTES: u64 = 2 << 20;

/// Holds what names a request: two hashes of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestKey([u64; 2]);

/// A score with the wording of the request that got it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Judged {
    pub(crate) score: f64,
    pub(crate) wording: u32,
}

pub(crate) struct Cache {
    judged: HashMap<RequestKey, Judged>,
    order: VecDeque<RequestKey>,
    entries_max: usize,
}

impl RequestKey {
    pub(crate) fn of(body: &str) -> RequestKey {
        let mut other = DefaultHasher::new();
        other.write(body.as_bytes());
        RequestKey([simple_hash(body.as_bytes()), other.finish()])
    }

    /// Returns a number from 0 to 1, the same in every process and release.
    pub(crate) fn share(self) -> f64 {
        (self.0[0] >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Cache {
    pub(crate) fn new() -> Cache {
        Cache::of(ENTRIES_MAX)
    }

    fn of(entries_max: usize) -> Cache {
        let (judged, order) = (HashMap::with_capacity(entries_max), VecDeque::with_capacity(entries_max));
        Cache { judged, order, entries_max }
    }

    pub(crate) fn get(&self, key: RequestKey) -> Option<Judged> {
        self.judged.get(&key).copied()
    }

    pub(crate) fn put(&mut self, key: RequestKey, judged: Judged) {
        if self.judged.contains_key(&key) {
            return;
        }
        if self.order.len() == self.entries_max
            && let Some(oldest) = self.order.pop_front()
        {
            self.judged.remove(&oldest);
        }
        self.judged.insert(key, judged);
        self.order.push_back(key);
        debug_assert!(self.judged.len() == self.order.len() && self.order.len() <= self.entries_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_request_is_forgotten_first() {
        let mut cache = Cache::of(2);
        let key = |n: u32| RequestKey::of(&format!("request {n}"));
        let judged = |n: u32| Judged { score: f64::from(n), wording: 0 };
        // One that is known takes no place.
        [0, 1, 1, 2, 2].into_iter().for_each(|n| cache.put(key(n), judged(n)));
        assert_eq!([0, 1, 2].map(|n| cache.get(key(n))), [None, Some(judged(1)), Some(judged(2))]);
        // The planned bytes are those of a full map: it has a power of two of places, at most seven of eight in use.
        let places = (ENTRIES_MAX * 8 / 7).next_power_of_two() as u64;
        let bytes = places * (size_of::<(RequestKey, Judged)>() as u64 + 1) + (ENTRIES_MAX * 16) as u64;
        assert!(bytes <= CACHE_BYTES, "{bytes}");
    }

    #[test]
    fn shares_of_requests_are_even() {
        let drawn = (0..4000).filter(|n| RequestKey::of(&format!("request {n}, sent")).share() < 0.1).count();
        assert!((300..500).contains(&drawn), "{drawn}");
    }
}
