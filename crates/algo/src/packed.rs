//! The packed batch: which tokens train, and where sequences begin and end.

use std::ops::Range;

/// N response positions of B sequences, concatenated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Packed<'a> {
    /// [N]: 1 for trained tokens, 0 for all others, which are never read.
    pub mask: &'a [f32],
    /// [B + 1]: sequence i is `seq_offsets[i]..seq_offsets[i + 1]`; the first is 0, the last N.
    pub seq_offsets: &'a [usize],
}

impl<'a> Packed<'a> {
    /// Returns N_tok of this batch: the sum of its mask.
    pub fn count_tokens(&self) -> f64 {
        sum(self.mask)
    }

    /// Returns N_seq of this batch: its sequences with at least one trained token.
    pub fn count_sequences(&self) -> f64 {
        self.sequences().filter(|seq| self.mask[seq.clone()].iter().any(|&m| m != 0.0)).count() as f64
    }

    /// Returns the ranges of the sequences. Panics unless the offsets cover the mask exactly.
    pub fn sequences(&self) -> impl ExactSizeIterator<Item = Range<usize>> + Clone + use<'a> {
        assert_eq!(self.seq_offsets.first(), Some(&0), "seq_offsets begin with 0");
        assert_eq!(
            self.seq_offsets.last(),
            Some(&self.mask.len()),
            "seq_offsets end with the number of tokens"
        );
        self.seq_offsets.windows(2).map(|pair| pair[0]..pair[1])
    }

    /// Asserts that per-token slices are as long as the mask.
    pub(crate) fn assert_lengths<const K: usize>(&self, lengths: [usize; K]) {
        for length in lengths {
            assert_eq!(length, self.mask.len(), "a per-token slice is as long as the mask");
        }
    }
}

pub(crate) fn sum(mask: &[f32]) -> f64 {
    mask.iter().map(|&m| f64::from(m)).sum()
}
