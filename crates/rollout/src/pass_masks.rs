//! The masks of a pass's head rows: rows with equal masks share one, so that little is copied to the device.
//!
//! Legend: R head rows, D distinct masks, W words of a mask.

use plimsoll_device::{Device, NO_MASK, RowMasks};
use plimsoll_model::Pass;

/// The masks of a pass. Its vectors are allocated once and never grow.
#[derive(Debug, Default)]
pub(crate) struct PassMasks {
    /// W
    words: usize,
    /// [D + 1, W], of which the last one is written next.
    masks: Vec<u32>,
    /// [D]
    digests: Vec<u64>,
    /// [R]: a mask, or `NO_MASK`.
    of_row: Vec<u32>,
}

impl PassMasks {
    /// Returns the heap bytes for `rows` head rows of a vocabulary.
    pub(crate) fn bytes(rows: usize, vocab: u32) -> u64 {
        ((rows + 1) * RowMasks::words_of(vocab as usize) * 4 + rows * 12) as u64
    }

    /// Makes room for `rows` head rows of a vocabulary, and begins a pass.
    pub(crate) fn begin(&mut self, rows: usize, vocab: u32) {
        self.words = RowMasks::words_of(vocab as usize);
        self.masks.resize((rows + 1) * self.words, 0);
        self.digests.clear();
        self.digests.reserve_exact(rows);
        self.of_row.clear();
        self.of_row.reserve_exact(rows);
    }

    /// Adds a row. `write` fills the words of its mask, all zeros or those of another row before, and returns whether
    /// the row has one.
    ///
    /// Errors: those of `write`.
    pub(crate) fn push<E>(&mut self, write: impl FnOnce(&mut [u32]) -> Result<bool, E>) -> Result<(), E> {
        let (done, rest) = self.masks.split_at_mut(self.digests.len() * self.words);
        let mask = &mut rest[..self.words];
        if !write(mask)? {
            self.of_row.push(NO_MASK);
            return Ok(());
        }
        let digest = digest(mask);
        let same =
            |(at, found): (usize, &u64)| *found == digest && done[at * self.words..][..self.words] == *mask;
        let index = self.digests.iter().enumerate().position(same).unwrap_or(self.digests.len());
        if index == self.digests.len() {
            self.digests.push(digest);
        }
        self.of_row.push(index as u32);
        Ok(())
    }

    /// Adds a row without a mask.
    pub(crate) fn push_none(&mut self) {
        self.of_row.push(NO_MASK);
    }

    /// Uploads the masks, and those of each of the pass's head rows; rows that were not added have none.
    pub(crate) fn upload(&mut self, dev: &dyn Device, pass: &Pass<'_>, rows: usize) {
        self.of_row.resize(rows, NO_MASK);
        pass.put_masks(dev, &self.masks[..self.digests.len() * self.words], &self.of_row);
    }
}

/// Returns a number that differs between most masks that differ.
fn digest(mask: &[u32]) -> u64 {
    let mut sums = [0x9e37_79b9_7f4a_7c15u64; 4];
    let (eights, rest) = mask.as_chunks::<8>();
    for eight in eights {
        for (sum, two) in sums.iter_mut().zip(eight.as_chunks::<2>().0) {
            let word = u64::from(two[1]) << 32 | u64::from(two[0]);
            *sum = (*sum ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29);
        }
    }
    let sums = sums.into_iter().chain(rest.iter().map(|word| u64::from(*word)));
    sums.fold(0, |all, sum| (all ^ sum).wrapping_mul(0xc4ce_b9fe_1a85_ec53).rotate_left(31))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_with_equal_masks_share_one() {
        let vocab = 32 * 19 + 5;
        let mut masks = PassMasks::default();
        for _ in 0..2 {
            masks.begin(5, vocab);
            let mut push = |of: Option<u32>| {
                masks.push(|words| -> Result<bool, ()> {
                    of.inspect(|of| words.fill(*of));
                    Ok(of.is_some())
                })
            };
            for of in [Some(7), None, Some(9), Some(7)] {
                push(of).unwrap();
            }
            masks.push_none();
            assert_eq!(masks.of_row, [0, NO_MASK, 1, 0, NO_MASK]);
            assert_eq!(masks.masks[..40], [[7; 20], [9; 20]].concat());
        }
        // One word decides, wherever it is.
        for at in 0..20 {
            let mut other = [7; 20];
            other[at] = 6;
            assert_ne!(digest(&other), digest(&[7; 20]), "word {at}");
        }
    }
}
