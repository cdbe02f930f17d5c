//! Mixture-of-experts layers: which experts compute each row of a pass, and their products.
//!
//! A router gives each of M rows k of E experts, which makes P = M k pairs. Experts compute pairs, not rows: buffers of
//! P rows are in the order of `Routes::pairs`, expert by expert. A pair's result is a function of its own row alone: it
//! depends neither on the other rows nor on how many pairs an expert got.

use crate::{Matrix, MatrixLayout};
use plimsoll_arch::Gate;
use plimsoll_memory::Buf;

/// A router: chooses k of E <= `EXPERTS_MAX` experts by their logits, ties by the lower number, NaN first to keep it.
///
/// Scores and weights are f32, whatever the dtype of the model. A softmax over the E logits chooses the largest of
/// them; its weights are the probabilities.
#[derive(Clone, Copy, Debug)]
pub struct Routing<'a> {
    /// E.
    pub experts: usize,
    /// k.
    pub chosen: usize,
    /// True if a row's weights are divided by their sum.
    pub normalizes: bool,
    /// The scores, if they are sigmoids and no softmax.
    pub sigmoid: Option<Sigmoid<'a>>,
}

/// A router whose scores are the sigmoids of single logits: it chooses the largest sums of score and correction, and
/// the weights are the scores without it. Source: arXiv 2412.19437 (DeepSeek-V3), section 2.1.2.
///
/// Its probabilities, for the balance of experts, are the shares of scores in the sum of all E.
#[derive(Clone, Copy, Debug)]
pub struct Sigmoid<'a> {
    /// [3, E] e: three terms of each correction, whose sum is the number in f32.
    pub correction: Buf<'a>,
    /// Groups of neighbouring experts, of the same size: a row chooses in some of them alone.
    pub groups: usize,
    /// Groups that a row chooses in, those with the largest sums of their two best; `groups` if all count.
    pub groups_chosen: usize,
    /// Factor on weights, after they are divided.
    pub factor: f32,
}

/// Terms of a correction: three of bf16 hold any f32.
pub const CORRECTION_TERMS: usize = 3;

/// Added to a sum of sigmoids before weights are divided by it, as in the reference.
pub const SIGMOID_SUM_MIN: f32 = 1e-20;

impl Routing<'_> {
    /// Panics unless a sigmoid's numbers fit those of the router.
    pub fn check_sigmoid(&self) {
        let Some(Sigmoid { correction, groups, groups_chosen, .. }) = self.sigmoid else { return };
        let (experts, chosen) = (self.experts, self.chosen);
        assert_eq!(correction.len(), CORRECTION_TERMS * experts, "corrections of {experts} experts");
        assert!((1..=groups).contains(&groups_chosen), "{groups_chosen} of {groups} groups");
        assert!(experts.is_multiple_of(groups), "{experts} experts in {groups} groups");
        let size = experts / groups;
        assert!(groups == groups_chosen || size > 1, "groups of one expert have no two best");
        assert!(chosen <= groups_chosen * size, "{chosen} experts of {groups_chosen} groups of {size}");
    }
}

/// The experts that compute each row, and their order.
#[derive(Clone, Copy, Debug)]
pub struct Routes<'a> {
    /// [M, k] u32: the experts of a row, ascending.
    pub experts: Buf<'a>,
    /// [M, k] f32: their weights.
    pub weights: Buf<'a>,
    /// [P] u32: pairs m k + j by their experts, then by rows.
    pub pairs: Buf<'a>,
    /// [M, k] u32: the place of each pair in `pairs`.
    pub places: Buf<'a>,
    /// [E + 1] u32: the place of each expert's first pair, and P.
    pub starts: Buf<'a>,
}

impl Routes<'_> {
    /// Returns E.
    pub fn count(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns P.
    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }
}

/// Rows of an operand of an expert product: one for each row or for each pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsOf {
    /// M rows: a pair reads its own row.
    Rows,
    /// P rows: one for each pair, in the order of `Routes::pairs`.
    Pairs,
}

/// The matrices `[n, k]` of all experts, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Experts<'a> {
    /// `count` times `stride` elements.
    pub buf: Buf<'a>,
    /// E.
    pub count: usize,
    pub n: usize,
    pub k: usize,
    pub layout: MatrixLayout,
}

impl<'a> Experts<'a> {
    /// Returns the matrices over a buffer of exactly the right length.
    pub fn new(buf: Buf<'a>, count: usize, n: usize, k: usize, layout: MatrixLayout) -> Experts<'a> {
        let elements = count as u64 * layout.elements(n as u64, k as u64);
        assert_eq!(buf.len() as u64, elements, "{count} matrices [{n}, {k}] {layout:?}");
        Experts { buf, count, n, k, layout }
    }

    /// Returns the matrices of `count` experts, whose rows are those of one matrix.
    pub fn cut(whole: Matrix<'a>, count: usize) -> Experts<'a> {
        Experts::new(whole.buf, count, whole.n / count, whole.k, whole.layout)
    }

    /// Returns the matrices over a longer buffer, with the same gap after each.
    pub fn apart(buf: Buf<'a>, count: usize, n: usize, k: usize, layout: MatrixLayout) -> Experts<'a> {
        let experts = Experts { buf, count, n, k, layout };
        assert!(buf.len().is_multiple_of(count), "{} elements of {count} matrices", buf.len());
        assert!(experts.elements() <= experts.stride(), "[{n}, {k}] {layout:?} in {}", experts.stride());
        experts
    }

    /// Returns one expert's matrix.
    pub fn of(&self, expert: usize) -> Matrix<'a> {
        assert!(expert < self.count, "expert {expert} of {}", self.count);
        Matrix::new(self.buf.slice(expert * self.stride(), self.elements()), self.n, self.k, self.layout)
    }

    /// Returns the elements from one matrix to the next.
    pub fn stride(&self) -> usize {
        self.buf.len() / self.count
    }

    fn elements(&self) -> usize {
        self.layout.elements(self.n as u64, self.k as u64) as usize
    }
}

/// The load-balancing loss: over each segment of a pass, the sum over experts of the mean probability times the share
/// of rows that chose the expert. A parent's rows are in as many sequences as it has children and count as often, so it
/// makes no difference which children of a prompt are in one pass.
#[derive(Clone, Copy, Debug)]
pub struct Balance<'a> {
    /// [S, 5] u32, as `Batch::segments`: every row is in one of them.
    pub segments: Buf<'a>,
    /// Derivative of the loss by the probability of an expert that all rows of a segment of one sequence chose.
    pub factor: f32,
    /// [M] f32, written: each row's sum over experts of its probability times the share of its segment's rows there,
    /// times the sequences that the segment is in: the children of a parent, one at least.
    pub rows: Buf<'a>,
}

/// The gradient of routing by its logits.
#[derive(Clone, Copy, Debug)]
pub struct RouteBackward<'a> {
    /// [M, E] f32: from the forward pass.
    pub logits: Buf<'a>,
    pub how: Routing<'a>,
    pub routes: Routes<'a>,
    /// [P] f32, in the order of `Routes::pairs`: derivatives of the loss by weights.
    pub d_weights: Buf<'a>,
    pub balance: Option<Balance<'a>>,
    /// [M, E] e, written.
    pub d_logits: Buf<'a>,
}

/// The gradient of `glu_experts`.
#[derive(Clone, Copy, Debug)]
pub struct GluExpertsBackward<'a> {
    pub how: Gate,
    /// [P, 2f] e: from the forward pass; overwritten by its gradient.
    pub gate_up: Buf<'a>,
    pub f: usize,
    pub routes: Routes<'a>,
    /// [P, f] e: gradient of the output; overwritten by the bits that `glu_experts` gave.
    pub dout: Buf<'a>,
    /// [P] f32, written: derivatives by the weights of pairs, each a sum in an order that depends on f alone.
    pub d_weights: Buf<'a>,
}

/// The gradient of biases of experts: for each expert the sum of dy over its pairs, rows ascending.
#[derive(Clone, Copy, Debug)]
pub struct ExpertBiasBackward<'a> {
    /// [M, N] or [P, N] e.
    pub dy: Buf<'a>,
    pub dy_has: RowsOf,
    pub routes: Routes<'a>,
    /// True if each pair counts by its weight.
    pub weighs: bool,
    /// [E, N], written, or added to when `add`; f32 or bf16.
    pub grad: Buf<'a>,
    pub add: bool,
}

/// The gradient of `glu_shared`.
#[derive(Clone, Copy, Debug)]
pub struct GluSharedBackward<'a> {
    pub how: Gate,
    /// [M, 2f] e: from the forward pass; overwritten by its gradient.
    pub gate_up: Buf<'a>,
    pub f: usize,
    /// [M] f32: from the forward pass.
    pub logits: Buf<'a>,
    /// [M, f] e: gradient of the output; overwritten by the bits that `glu_shared` gave.
    pub dout: Buf<'a>,
    /// [M] e, written: derivatives by the logits, each a sum in an order that depends on f alone.
    pub d_logits: Buf<'a>,
}

/// The gradient of a product of experts by its weights: for each expert dy^T x over its pairs, rows ascending.
#[derive(Clone, Copy, Debug)]
pub struct ExpertsBackward<'a> {
    /// [M, n] or [P, n] e.
    pub dy: Buf<'a>,
    pub dy_has: RowsOf,
    /// [M, k] or [P, k] e.
    pub x: Buf<'a>,
    pub x_has: RowsOf,
    pub routes: Routes<'a>,
    /// Written, or added to when `add`; zero, or unchanged, for an expert without pairs. f32 or bf16.
    pub grad: Experts<'a>,
    pub add: bool,
    /// Scratch (e) sized by `Layouts::pack` for M rows, the most pairs that an expert gets; written.
    pub pack: Buf<'a>,
}
