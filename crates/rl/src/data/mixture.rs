//! The data set of each position of the data: a pure function of weights, seed and position.
//!
//! Item m of set j is due at (m + u_j) / w_j, where w_j is the set's share and u_j its offset in (0, 1), drawn from the
//! seed; items come in the order in which they are due. So after any number of positions each set has had its share of
//! them to within one item per set, and a resumed run needs only the position.

use plimsoll_base::rng::{Stream, philox, unit_f32};

/// The epoch of the random numbers that offsets are drawn with; no pass over the data reaches it.
const OFFSETS: u64 = u64::MAX;

#[derive(Clone, Debug)]
pub struct Mixture {
    /// Shares, which sum to 1.
    shares: Vec<f64>,
    offsets: Vec<f64>,
}

impl Mixture {
    /// Makes a mixture of sets with these weights, each finite and above 0.
    pub fn new(weights: &[f64], seed: u64) -> Mixture {
        let total: f64 = weights.iter().sum();
        let offset = |set: usize| f64::from(unit_f32(philox(seed, Stream::Data, OFFSETS, set as u64)[0]));
        Mixture {
            shares: weights.iter().map(|weight| weight / total).collect(),
            offsets: (0..weights.len()).map(offset).collect(),
        }
    }

    /// Returns the set of a position, and the position within that set.
    pub fn at(&self, position: u64) -> (usize, u64) {
        // Before time t at most t items are due, and one more per set: the sought item is not before `start`.
        let start = position as f64 - self.shares.len() as f64 - 1.0;
        let mut next: Vec<u64> = (0..self.shares.len()).map(|set| self.due_before(set, start)).collect();
        let mut passed: u64 = next.iter().sum();
        debug_assert!(passed <= position, "{passed} items are due before position {position}");
        loop {
            let due = |set: usize| self.due(set, next[set]);
            let first = (0..next.len()).min_by(|&a, &b| due(a).total_cmp(&due(b)));
            let first = first.expect("a mixture has a set");
            if passed == position {
                return (first, next[first]);
            }
            next[first] += 1;
            passed += 1;
        }
    }

    fn due(&self, set: usize, item: u64) -> f64 {
        (item as f64 + self.offsets[set]) / self.shares[set]
    }

    /// Returns the items of a set that are due before a time.
    fn due_before(&self, set: usize, time: f64) -> u64 {
        // Rounding may make this wrong by one.
        let mut items = (time * self.shares[set] - self.offsets[set]).max(0.0) as u64;
        while items > 0 && self.due(set, items - 1) >= time {
            items -= 1;
        }
        while self.due(set, items) < time {
            items += 1;
        }
        items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_set_has_every_position() {
        let mixture = Mixture::new(&[3.0], 7);
        for position in (0..100).chain([1 << 40, (1 << 40) + 1]) {
            assert_eq!(mixture.at(position), (0, position));
        }
    }

    #[test]
    fn every_set_has_its_share_at_every_position_and_its_items_in_order() {
        for (weights, seed) in [
            (vec![1.0, 1.0], 0),
            (vec![2.0, 1.0, 0.5], 3),
            (vec![1e-6, 1.0, 1e3], 9),
            ((1..=64).map(f64::from).collect(), 5),
        ] {
            let mixture = Mixture::new(&weights, seed);
            let total: f64 = weights.iter().sum();
            let mut had = vec![0u64; weights.len()];
            for position in 0..5000u64 {
                let (set, item) = mixture.at(position);
                assert_eq!(item, had[set], "set {set} at {position}");
                had[set] += 1;
                for (set, weight) in weights.iter().enumerate() {
                    let share = (position + 1) as f64 * weight / total;
                    let off = (had[set] as f64 - share).abs();
                    assert!(
                        off <= 1.0 + weights.len() as f64 * weight / total,
                        "set {set} at {position}: {off}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_position_is_the_same_whatever_was_asked_before_and_seeds_differ() {
        let mixture = Mixture::new(&[2.0, 1.0], 1);
        let far: Vec<(usize, u64)> = (1_000_000_000..1_000_000_300).map(|p| mixture.at(p)).collect();
        let had: Vec<u64> = (0..2).map(|set| far.iter().filter(|(s, _)| *s == set).count() as u64).collect();
        assert_eq!(had, [200, 100]);
        assert_eq!(far[0], Mixture::new(&[4.0, 2.0], 1).at(1_000_000_000));
        let order = |seed| (0..60).map(|p| Mixture::new(&[2.0, 1.0], seed).at(p).0).collect::<Vec<_>>();
        assert!((1..20).any(|seed| order(seed) != order(0)));
    }
}
