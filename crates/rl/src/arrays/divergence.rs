//! Per-token host arrays of a step whose student learns a divergence from its teacher at each position.
//!
//! Legend: N response tokens of the step, K tokens that the teacher lists of each, M head rows of a micro-batch, t the
//! hidden elements of a teacher whose whole vocabulary is compared. The numbers [N] are known to all ranks; what a
//! micro-batch needs by token of a list stays on the rank that computes it.

use super::values::zero;
use plimsoll_algo::divergence::{Divergence, RowDivergence};
use plimsoll_plan::{KeptRows, Lists, StepArrays};
use std::ops::Range;

/// The teacher's lists, or what its head read, and the student's divergences.
#[derive(Debug)]
pub struct DivergenceArrays {
    /// The sizes of lists; 0 where rows are kept.
    lists: Lists,
    /// The sizes of rows; 0 where tokens are listed.
    kept: KeptRows,
    /// The divergence that is computed; `None` leaves all numbers 0.
    pub how: Option<Divergence>,
    /// [N, K]: the teacher's most likely tokens.
    pub ids: Vec<u32>,
    /// [N, K]: the teacher's log-probabilities of them.
    pub teacher: Vec<f32>,
    /// [N, t] e: the rows that the teacher's head read, as they are stored.
    pub rows: Vec<u8>,
    /// [N]: divergences of the student from the teacher.
    pub values: Vec<f32>,
    /// [N]: derivatives of the loss with respect to `values`.
    pub d_values: Vec<f32>,
    /// [M, K]: the student's log-probabilities of the listed tokens.
    pub(crate) student: Vec<f32>,
    /// [M, K]: derivatives of divergences by the logits of the listed tokens.
    pub(crate) slopes: Vec<f32>,
    /// [M]: those by any other logit, divided by the student's probability.
    pub(crate) rest: Vec<f32>,
}

impl DivergenceArrays {
    /// Allocates the planned room; `None` if the student learns no divergence.
    pub(crate) fn bind(planned: &StepArrays) -> Option<DivergenceArrays> {
        if planned.lists().is_none() && planned.rows().is_none() {
            return None;
        }
        let (lists, kept) = (planned.lists().unwrap_or_default(), planned.rows().unwrap_or_default());
        let (tokens, k, rows) = (planned.tokens(), lists.tokens, lists.rows);
        Some(DivergenceArrays {
            lists,
            kept,
            rows: Vec::with_capacity(tokens * kept.bytes),
            how: None,
            ids: Vec::with_capacity(tokens * k),
            teacher: Vec::with_capacity(tokens * k),
            values: Vec::with_capacity(tokens),
            d_values: Vec::with_capacity(tokens),
            student: vec![0.0; rows * k],
            slopes: vec![0.0; rows * k],
            rest: vec![0.0; rows],
        })
    }

    /// Returns K; 0 without lists.
    pub fn per_token(&self) -> usize {
        self.lists.tokens
    }

    /// Returns the bytes of a row that the teacher's head read; 0 if none are kept.
    pub fn row_bytes(&self) -> usize {
        self.kept.bytes
    }

    /// Begins a step of `tokens` response tokens; all arrays are zero.
    pub(crate) fn begin(&mut self, tokens: usize) {
        let k = self.lists.tokens;
        self.rows.clear();
        self.rows.resize(tokens * self.kept.bytes, 0);
        self.ids.clear();
        self.ids.resize(tokens * k, 0);
        zero(&mut self.teacher, tokens * k);
        [&mut self.values, &mut self.d_values].into_iter().for_each(|array| zero(array, tokens));
    }

    /// Returns the bytes of some tokens' rows in `rows`.
    pub(crate) fn rows_of(&self, tokens: &Range<usize>) -> Range<usize> {
        tokens.start * self.kept.bytes..tokens.end * self.kept.bytes
    }

    /// Sets the divergences of masked tokens to 0, as those of lists are.
    pub(crate) fn leave_out(&mut self, mask: &[f32], tokens: Range<usize>) {
        tokens.filter(|&token| mask[token] == 0.0).for_each(|token| self.values[token] = 0.0);
    }

    /// Returns the entries of some tokens in arrays of [N, K].
    pub(crate) fn lists_of(&self, tokens: &Range<usize>) -> Range<usize> {
        tokens.start * self.lists.tokens..tokens.end * self.lists.tokens
    }

    /// Computes the divergences of a micro-batch and how they follow from the student's logits, from `student`.
    ///
    /// `mask`: [N]; masked tokens get 0. `vocab`: the tokens that there are.
    pub(crate) fn compute(&mut self, mask: &[f32], tokens: Range<usize>, vocab: usize) {
        let k = self.lists.tokens;
        self.slopes[..tokens.len() * k].fill(0.0);
        for (row, token) in tokens.enumerate() {
            let (list, own) = (token * k..(token + 1) * k, row * k..(row + 1) * k);
            let of = match self.how.filter(|_| mask[token] != 0.0) {
                None => RowDivergence::default(),
                Some(how) => how.of_row(
                    &self.teacher[list],
                    &self.student[own.clone()],
                    k < vocab,
                    &mut self.slopes[own],
                ),
            };
            (self.values[token], self.rest[row]) = (of.value, of.rest);
        }
    }
}
