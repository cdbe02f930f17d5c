//! What head rows may have of their own: masks over the vocabulary, and numbers added to logits. Legend: B biases of
//! a row.

use plimsoll_device::{RowBiases, RowMasks, Sampling};
use plimsoll_memory::Buf;

/// What the head rows of a pass may have of their own; its regions have room for all rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnLogits {
    /// True if a row may leave out tokens.
    pub masks: bool,
    /// B: tokens of a row at most to whose logits something is added.
    pub biases: usize,
}

impl OwnLogits {
    /// Nothing.
    pub const NONE: OwnLogits = OwnLogits { masks: false, biases: 0 };
    /// Masks alone.
    pub const MASKS: OwnLogits = OwnLogits { masks: true, biases: 0 };
}

/// The regions of what rows have of their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnBufs<'p> {
    pub(crate) masks: Option<RowMasks<'p>>,
    pub(crate) biases: Option<RowBiases<'p>>,
}

impl<'p> OwnBufs<'p> {
    pub(crate) fn bind(get: &impl Fn(&str) -> Option<Buf<'p>>) -> OwnBufs<'p> {
        let masks = get("head.masks").zip(get("head.mask_rows"));
        let biases = get("head.bias_ids").zip(get("head.biases"));
        OwnBufs {
            masks: masks.map(|(words, rows)| RowMasks { words, rows }),
            biases: biases.map(|(ids, values)| RowBiases { ids, values }),
        }
    }
}

/// Consecutive head rows that are drawn alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DrawRun {
    pub rows: usize,
    pub how: Sampling,
    /// True if rows of it may have masks.
    pub masks: bool,
    /// True if rows of it may have biases.
    pub biases: bool,
}

impl DrawRun {
    /// Rows with nothing of their own.
    pub const fn plain(rows: usize, how: Sampling) -> DrawRun {
        DrawRun { rows, how, masks: false, biases: false }
    }
}
