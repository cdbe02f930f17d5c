//! Per-token host arrays of a step whose student learns a divergence from its teacher at each position.
//!
//! Legend: N response tokens of the step, K tokens that the teacher lists of each, M head rows of a micro-batch. The
//! numbers [N] are known to all ranks; what a micro-batch needs by token of a list stays on the rank that computes it.

use plimsoll_algo::divergence::{Divergence, RowDivergence};
use plimsoll_plan::Lists;
use std::ops::Range;

/// The teacher's lists and the student's divergences; empty without lists.
#[derive(Debug, Default)]
pub struct DivergenceArrays {
    has: Lists,
    /// What is computed; `None` leaves all numbers 0.
    pub how: Option<Divergence>,
    /// [N, K]: the teacher's most likely tokens.
    pub ids: Vec<u32>,
    /// [N, K]: the teacher's log-probabilities of them.
    pub teacher: Vec<f32>,
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
    /// Allocates room for `tokens` response tokens.
    pub(crate) fn with_capacity(tokens: usize, has: Lists) -> DivergenceArrays {
        if has.tokens == 0 {
            return DivergenceArrays::default();
        }
        let (k, rows) = (has.tokens, has.rows);
        DivergenceArrays {
            has,
            how: None,
            ids: Vec::with_capacity(tokens * k),
            teacher: Vec::with_capacity(tokens * k),
            values: Vec::with_capacity(tokens),
            d_values: Vec::with_capacity(tokens),
            student: vec![0.0; rows * k],
            slopes: vec![0.0; rows * k],
            rest: vec![0.0; rows],
        }
    }

    /// Returns K; 0 without lists.
    pub fn per_token(&self) -> usize {
        self.has.tokens
    }

    /// Begins a step of `tokens` response tokens; all arrays are zero.
    pub(crate) fn begin(&mut self, tokens: usize) {
        let k = self.has.tokens;
        let tokens = if k == 0 { 0 } else { tokens };
        self.ids.clear();
        self.ids.resize(tokens * k, 0);
        self.teacher.clear();
        self.teacher.resize(tokens * k, 0.0);
        for array in [&mut self.values, &mut self.d_values] {
            array.clear();
            array.resize(tokens, 0.0);
        }
    }

    /// Returns the entries of some tokens in arrays of [N]: none without lists.
    pub(crate) fn of(&self, tokens: Range<usize>) -> Range<usize> {
        if self.has.tokens == 0 { 0..0 } else { tokens }
    }

    /// Returns the entries of some tokens in arrays of [N, K].
    pub(crate) fn lists_of(&self, tokens: &Range<usize>) -> Range<usize> {
        tokens.start * self.has.tokens..tokens.end * self.has.tokens
    }

    /// Computes the divergences of a micro-batch and how they follow from the student's logits, from `student`.
    ///
    /// `mask`: [N]; masked tokens get 0. `vocab`: the tokens that there are.
    pub(crate) fn compute(&mut self, mask: &[f32], tokens: Range<usize>, vocab: usize) {
        let k = self.has.tokens;
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
