//! Expected lengths of responses, and which rank samples which prompts by them. No bit of a sample depends on either.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};

/// Prompts whose lengths are remembered one by one; later ones count only for their data set.
const PROMPTS_MAX: usize = 7 << 11;
/// Buckets of a hash table with that many entries, each with a key, a mean and a control byte.
const BUCKETS: u64 = 1 << 14;

/// Mean lengths of the responses sampled so far. Processes that add the same samples have the same means.
#[derive(Debug, Default)]
pub struct Lengths {
    all: Mean,
    sets: Vec<Mean>,
    prompts: HashMap<u64, Mean>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    tokens: u64,
    samples: u64,
}

impl Mean {
    fn add(&mut self, tokens: u64, samples: u64) {
        self.tokens += tokens;
        self.samples += samples;
    }

    /// Returns the mean in sixteenths of a token.
    fn value(&self) -> Option<u64> {
        (16 * self.tokens).checked_div(self.samples)
    }
}

impl Lengths {
    /// Returns the key of a prompt. Prompts with the same key share their mean.
    pub fn key(prompt: &(impl Hash + ?Sized)) -> u64 {
        BuildHasherDefault::<DefaultHasher>::default().hash_one(prompt)
    }

    /// Returns the maximum bytes of the table, reached while it grows to its last size.
    pub fn bytes() -> u64 {
        (BUCKETS + BUCKETS / 2) * (8 + size_of::<Mean>() as u64 + 1)
    }

    /// Adds `samples` responses to a prompt of data set `set`, with `tokens` tokens in total.
    pub fn add(&mut self, key: u64, set: usize, tokens: u64, samples: u64) {
        self.all.add(tokens, samples);
        if self.sets.len() <= set {
            self.sets.resize(set + 1, Mean::default());
        }
        self.sets[set].add(tokens, samples);
        let has_room = self.prompts.len() < PROMPTS_MAX;
        match self.prompts.get_mut(&key) {
            Some(mean) => mean.add(tokens, samples),
            None if has_room => drop(self.prompts.insert(key, Mean { tokens, samples })),
            None => {}
        }
    }

    /// Returns the expected length of a response in sixteenths of a token: the mean of its prompt so far, else of its
    /// data set, else of all; 0 if nothing was sampled.
    pub fn expected(&self, key: u64, set: usize) -> u64 {
        let known = self.prompts.get(&key).and_then(Mean::value);
        known.or_else(|| self.sets.get(set)?.value()).or_else(|| self.all.value()).unwrap_or(0)
    }
}

/// Returns the rank of each prompt, given the prompts' expected lengths: the longest first, each to the rank with the
/// fewest tokens so far, then the fewest prompts.
pub fn deal(expected: &[u64], ranks: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..expected.len()).collect();
    order.sort_by_key(|prompt| (std::cmp::Reverse(expected[*prompt]), *prompt));
    let (mut load, mut of) = (vec![(0u64, 0usize); ranks], vec![0; expected.len()]);
    for prompt in order {
        let rank = (0..ranks).min_by_key(|rank| (load[*rank], *rank)).expect("a run has a rank");
        load[rank] = (load[rank].0 + expected[prompt], load[rank].1 + 1);
        of[prompt] = rank;
    }
    of
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_prompts_are_dealt_first_and_equal_ones_in_turn() {
        for (expected, ranks, of) in [
            (&[][..], 2, &[][..]),
            (&[0, 0, 0, 0, 0], 2, &[0, 1, 0, 1, 0]),
            (&[16, 16, 16], 4, &[0, 1, 2]),
            (&[1, 9, 1, 1, 5, 1], 2, &[1, 0, 1, 1, 1, 1]),
            (&[10, 10, 80, 10, 10, 10, 10], 3, &[1, 2, 0, 1, 2, 1, 2]),
        ] {
            assert_eq!(deal(expected, ranks), of, "{expected:?} on {ranks}");
        }
    }

    #[test]
    fn a_prompt_is_expected_as_long_as_it_was_else_as_its_set() {
        let mut lengths = Lengths::default();
        let [a, b, c] = [&[1u32, 2][..], &[1, 3], &[2]].map(Lengths::key);
        assert_eq!(lengths.expected(a, 0), 0);
        lengths.add(a, 0, 12, 4);
        lengths.add(b, 1, 400, 4);
        assert_eq!([lengths.expected(a, 0), lengths.expected(b, 1)], [48, 1600]);
        assert_eq!([lengths.expected(c, 0), lengths.expected(c, 1), lengths.expected(c, 7)], [48, 1600, 824]);
        lengths.add(a, 0, 4, 4);
        assert_eq!(lengths.expected(a, 0), 32);
    }

    #[test]
    fn the_table_of_prompts_is_bounded() {
        let mut lengths = Lengths::default();
        (0..2 * PROMPTS_MAX as u64).for_each(|key| lengths.add(key, 0, key, 1));
        assert_eq!(lengths.prompts.len(), PROMPTS_MAX);
        assert!(lengths.prompts.capacity() as u64 <= BUCKETS, "{}", lengths.prompts.capacity());
        assert_eq!(lengths.expected(5, 0), 80);
    }
}
