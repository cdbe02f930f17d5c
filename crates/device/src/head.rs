//! Operands of the head's backward pass, and of a divergence between the distributions of two heads, a student's and a
//! teacher's, over the whole vocabulary.
//!
//! Legend: R rows, V vocabulary, h the student's and t the teacher's hidden elements, p the student's and q the
//! teacher's probability of a token.

use crate::{HeadOut, ListedBackward, Logits, Matrix};
use plimsoll_memory::Buf;

/// How far apart the two distributions of a row are, in nats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// sum p ln(p / q).
    Reverse,
    /// sum q ln(q / p).
    Forward,
    /// With m = beta q + (1 - beta) p: beta sum q ln(q / m) + (1 - beta) sum p ln(p / m); 0 < beta < 1.
    Jsd {
        /// The teacher's part of m.
        beta: f32,
    },
}

/// One of the two heads: what its logits are computed from, and their sum.
#[derive(Clone, Copy, Debug)]
pub struct HeadSide<'a> {
    /// [R, h] e; of the teacher [R, t].
    pub x: Buf<'a>,
    /// [V, h], or [V, t].
    pub w: Matrix<'a>,
    /// [R] f32: log-sum-exp of its scaled logits, as `HeadOut` has it.
    pub lse: Buf<'a>,
    pub logits: Logits<'a>,
    /// f32 scratch sized by `Layouts::head_tile`; written.
    pub tile: Buf<'a>,
}

/// The divergence of each row, after the `head` of both sides.
#[derive(Clone, Copy, Debug)]
pub struct HeadDivergence<'a> {
    pub student: HeadSide<'a>,
    pub teacher: HeadSide<'a>,
    pub how: Measure,
    /// [R] f32, written: the divergences.
    pub values: Buf<'a>,
    /// [R] f32, written: the means of u under p, where p (u - mean) is the divergence's derivative by a logit.
    pub means: Buf<'a>,
}

/// How the divergence of each row follows from the student's logits.
#[derive(Clone, Copy, Debug)]
pub struct DivergenceBackward<'a> {
    pub teacher: HeadSide<'a>,
    pub how: Measure,
    /// [R] f32: those of `HeadDivergence`.
    pub means: Buf<'a>,
    /// [R] f32: derivatives of the loss by the divergences; where 0 the others are not read.
    pub d: Buf<'a>,
}

/// The gradient of the head.
#[derive(Clone, Copy, Debug)]
pub struct HeadBackward<'a> {
    /// [R, K] e.
    pub x: Buf<'a>,
    /// [V, K].
    pub w: Matrix<'a>,
    /// [R] u32.
    pub targets: Buf<'a>,
    pub logits: Logits<'a>,
    /// Outputs of the forward pass; `logprobs` is not read.
    pub head_out: HeadOut<'a>,
    /// [R] f32: derivatives of the loss by log-probabilities.
    pub dlogprobs: Buf<'a>,
    /// [R] f32: derivatives of the loss by entropies.
    pub dentropy: Buf<'a>,
    /// A further number of each row that the loss depends on.
    pub listed: Option<ListedBackward<'a>>,
    /// Another one, not both: a divergence over the whole vocabulary.
    pub whole: Option<DivergenceBackward<'a>>,
    /// f32 scratch sized by `Layouts::head_tile`; written.
    pub tile: Buf<'a>,
    /// Scratch (e) sized by `Layouts::head_gradient_tile`; written.
    pub dtile: Buf<'a>,
    /// Scratch (e) sized by `Layouts::pack`; written.
    pub pack: Buf<'a>,
    /// [R, K] f32, written.
    pub dx: Buf<'a>,
    /// [V, K], written, or added to when `add`; none if the head is frozen.
    pub grad: Option<Matrix<'a>>,
    pub add: bool,
}
