//! Random ids of requests. A reply repeats its request's id, so no line a worker wrote on its own passes for it.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// Generates ids that other processes cannot guess: keyed hashes of a counter, with keys from the kernel.
#[derive(Debug, Default)]
pub struct Ids {
    keys: [RandomState; 2],
    count: u64,
}

impl Ids {
    /// Returns a new id of 32 hexadecimal digits.
    pub fn next_id(&mut self) -> String {
        self.count += 1;
        let [high, low] = self.keys.each_ref().map(|key| key.hash_one(self.count));
        format!("{high:016x}{low:016x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_makers_make_different_names() {
        let (mut one, mut other) = (Ids::default(), Ids::default());
        let names: std::collections::BTreeSet<String> =
            (0..100).flat_map(|_| [one.next_id(), other.next_id()]).collect();
        assert_eq!(names.len(), 200);
        assert!(names.iter().all(|name| name.len() == 32), "{names:?}");
    }
}
