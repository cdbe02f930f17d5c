//! What single head rows have of their own: tokens without probability, and numbers on top of logits. Legend: R rows,
//! V vocabulary, D masks, B biases of a row.

use plimsoll_memory::Buf;

/// The mask of a row that has none.
pub const NO_MASK: u32 = u32::MAX;

/// Which tokens each head row may have: of tokens that its mask leaves out the logits count as `NO_MASS`, whatever they
/// are, and have no gradient. A row without a mask has the bits that it has without any of this.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowMasks<'a> {
    /// [D, V / 32 rounded up] u32: distinct masks, each with a token at least; bit v % 32 of word v / 32 is 1 if the
    /// mask has token v.
    pub words: Buf<'a>,
    /// [R] u32: the mask of each row, or `NO_MASK`.
    pub rows: Buf<'a>,
}

impl<'a> RowMasks<'a> {
    /// Returns the words of a mask.
    pub const fn words_of(vocab: usize) -> usize {
        vocab.div_ceil(32)
    }

    /// Returns the masks of rows `first..first + count`.
    pub fn of_rows(self, first: usize, count: usize) -> RowMasks<'a> {
        RowMasks { rows: self.rows.slice(first, count), ..self }
    }
}

/// Numbers that are added to the logits of some tokens of each head row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowBiases<'a> {
    /// [R, B] u32: tokens of each row, ascending; what a row has less than B is `u32::MAX`.
    pub ids: Buf<'a>,
    /// [R, B] f32: what is added.
    pub values: Buf<'a>,
}

impl<'a> RowBiases<'a> {
    /// Returns B, the same for both buffers.
    pub fn per_row(&self, rows: usize) -> usize {
        assert_eq!(self.ids.len(), self.values.len(), "a number for each token");
        let most = self.ids.len() / rows.max(1);
        assert_eq!(self.ids.len(), rows * most, "as many tokens for each of {rows} rows");
        most
    }

    /// Returns those of rows `first..first + count`, of `rows`.
    pub fn of_rows(self, rows: usize, first: usize, count: usize) -> RowBiases<'a> {
        let most = self.per_row(rows);
        let of = |buf: Buf<'a>| buf.slice(first * most, count * most);
        RowBiases { ids: of(self.ids), values: of(self.values) }
    }
}
