//! What single rows of the head have of their own: tokens without probability, and numbers on top of logits.

use super::CpuDevice;
use plimsoll_device::{Logits, NO_MASK, NO_MASS, RowMasks};

/// `Logits`, with what single rows have of their own for reading.
#[derive(Clone, Copy)]
pub(super) struct Finish<'a> {
    pub(super) how: Logits<'a>,
    masks: Option<Masks<'a>>,
    biases: Option<Biases<'a>>,
}

#[derive(Clone, Copy)]
struct Masks<'a> {
    /// [D, words].
    all: &'a [u32],
    words: usize,
    /// [R].
    rows: &'a [u32],
}

#[derive(Clone, Copy)]
struct Biases<'a> {
    /// [R, B] each.
    ids: &'a [u32],
    values: &'a [f32],
    per_row: usize,
}

impl<'a> Finish<'a> {
    /// Reads what `rows` rows over `vocab` tokens have.
    pub(super) fn new(dev: &'a CpuDevice, how: Logits<'a>, rows: usize, vocab: usize) -> Finish<'a> {
        let masks = how.masks.map(|of| {
            assert_eq!(of.rows.len(), rows, "a mask for each of {rows} rows");
            Masks { all: dev.read(of.words), words: RowMasks::words_of(vocab), rows: dev.read(of.rows) }
        });
        let biases = how.biases.map(|of| {
            let per_row = of.per_row(rows);
            Biases { ids: dev.read(of.ids), values: dev.read(of.values), per_row }
        });
        Finish { how, masks, biases }
    }

    /// Bends the finished logits of tokens from `first` on, as many as `logits` has, by what a row has of its own.
    pub(super) fn apply(&self, row: usize, first: usize, logits: &mut [f32]) {
        if let Some(biases) = &self.biases {
            biases.add(row, first, self.how.factor, logits);
        }
        self.fill_masked(row, first, logits, NO_MASS);
    }

    /// Gives the elements of tokens that a row's mask leaves out a value; the first element is token `first`'s.
    pub(super) fn fill_masked<T: Copy>(&self, row: usize, first: usize, of: &mut [T], to: T) {
        let Some(words) = self.masks.as_ref().and_then(|masks| masks.of(row)) else { return };
        // Elements before the first whole word.
        let (before, rest) = of.split_at_mut((first.next_multiple_of(32) - first).min(of.len()));
        let fill = |word: u32, part: &mut [T]| {
            if word != u32::MAX {
                let left_out = part.iter_mut().enumerate().filter(|(bit, _)| word >> bit & 1 == 0);
                left_out.for_each(|(_, x)| *x = to);
            }
        };
        fill(words[first / 32] >> (first % 32), before);
        for (&word, part) in words[first.div_ceil(32)..].iter().zip(rest.chunks_mut(32)) {
            fill(word, part);
        }
    }
}

impl<'a> Masks<'a> {
    fn of(&self, row: usize) -> Option<&'a [u32]> {
        let mask = self.rows[row];
        (mask != NO_MASK).then(|| &self.all[mask as usize * self.words..][..self.words])
    }
}

impl Biases<'_> {
    fn add(&self, row: usize, first: usize, factor: f32, logits: &mut [f32]) {
        let start = row * self.per_row;
        let ids = &self.ids[start..start + self.per_row];
        let from = ids.partition_point(|id| (*id as usize) < first);
        for (id, value) in ids[from..].iter().zip(&self.values[start + from..]) {
            let Some(x) = logits.get_mut(*id as usize - first) else { return };
            *x += factor * value;
        }
    }
}
