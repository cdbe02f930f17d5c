//! Linear attention by the gated delta rule (Gated DeltaNet): rows read a state, a matrix for each head of values, instead of keys.
//!
//! Row t of a sequence, in each head of values, with its g <= 0, its 0 < beta < 1, and k of length 1:
//!
//! ```text
//! S' = e^g S[t-1]     p = S'^T k     r = v - p     S[t] = S' + k (beta r)^T     o = S[t]^T q
//! ```
//!
//! Exactness: forward passes compute this row by row, whatever a pass has of a sequence. A state is f32 and is kept as it is, so that where a
//! sequence is cut into passes moves no bit, and a decode pass gives what the update computes. The backward pass goes by chunks.
//!
//! Legend: M rows, S segments, P places of states, H heads of values, of which H / G that follow each other share one of G heads of q and k,
//! dk elements of a head of q and k, dv of v; C = 2 G dk + H dv.

use plimsoll_memory::Buf;

/// Inputs that the convolution before q, k and v reads: a row's own and those of the rows before it.
pub const CONV_TAPS: usize = plimsoll_arch::CONV_TAPS as usize;
/// Rows of a segment between states that are kept for its backward pass.
pub const STATE_CHUNK: usize = 64;
/// "No state": a segment begins with zeros, or what it leaves is not read.
pub const NO_STATE: u32 = u32::MAX;
/// Elements of a head, at most; a multiple of `HEAD_STEP`.
pub const DELTA_HEAD_MAX: usize = plimsoll_arch::DELTA_HEAD_MAX as usize;
/// What elements of a head are a multiple of.
pub const DELTA_HEAD_STEP: usize = plimsoll_arch::DELTA_HEAD_STEP as usize;

/// The heads of a layer with linear attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaHeads {
    /// G.
    pub key_heads: usize,
    /// H, a multiple of G.
    pub value_heads: usize,
    /// dk.
    pub key_dim: usize,
    /// dv.
    pub value_dim: usize,
}

impl DeltaHeads {
    /// G dk: q of a row, and k.
    pub const fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// H dv: v of a row, and its output.
    pub const fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// C: q, k and v.
    pub const fn conv_width(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// C + H dv + 2 H: what the products of a row give.
    pub const fn input_width(&self) -> usize {
        self.conv_width() + self.value_width() + 2 * self.value_heads
    }

    /// H dk dv: elements of a state.
    pub const fn state(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }

    /// Elements of a tail: the last inputs of the convolution.
    pub const fn tail(&self) -> usize {
        (CONV_TAPS - 1) * self.conv_width()
    }
}

/// Places of states that a segment of a pass with gradients has: those that its chunks begin with, and what it leaves.
pub const fn edges(rows: usize) -> usize {
    rows.div_ceil(STATE_CHUNK) + 1
}

/// Where the segments of a pass find the states that they go on from, and leave theirs.
///
/// A segment with a parent in the pass begins with what the parent leaves there, in the same pass. Two segments may begin with one place; no two
/// write one, and what one writes no other segment but its children reads. A segment may write the place that it begins with.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// [S, 2] u32: the place of the state that a segment begins with, or `NO_STATE` for zeros, and the first place that it writes, or
    /// `NO_STATE`. A child begins with the place of its parent's state after the parent's last row.
    pub places: Buf<'a>,
    /// [S, 5] u32, as `Batch::segments`.
    pub segments: Buf<'a>,
    /// True if segments may have parents in the pass.
    pub has_parents: bool,
}

/// The weights between the products of a row and its q, k, v, g and beta; or their gradients.
#[derive(Clone, Copy, Debug)]
pub struct DeltaWeights<'a> {
    /// [C, 4]: of the rows t - 3 to t.
    pub conv: Buf<'a>,
    /// [H]: the logarithm of A.
    pub decay: Buf<'a>,
    /// [H].
    pub bias: Buf<'a>,
}

/// q, k, v, g and beta of each row.
///
/// q, k and v: silu of the convolution of their inputs over rows t - 3 to t of the sequence; then each head of q and k is divided by
/// sqrt(sum of squares + 1e-6), and q by sqrt(dk). g = -exp(A) softplus(a + bias), beta = 1 / (1 + e^-b).
#[derive(Clone, Copy, Debug)]
pub struct DeltaInputs<'a> {
    pub heads: DeltaHeads,
    /// [M, C + H dv + 2 H] e: inputs of q, k and v, then z, b and a.
    pub x: Buf<'a>,
    pub weights: DeltaWeights<'a>,
    pub places: Places<'a>,
    /// [P, 3, C] e: the inputs of the last rows of a sequence, oldest first, at the places of its states; `NO_STATE` is zeros. Written at the first
    /// place that a segment writes. None in a pass of whole sequences, where a child reads the rows of its parent.
    pub tails: Option<Buf<'a>>,
    /// [M, C] e, written: q, k, v.
    pub qkv: Buf<'a>,
    /// [M, 2, H] f32, written: g, then beta.
    pub gates: Buf<'a>,
}

/// The rule itself.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRule<'a> {
    pub heads: DeltaHeads,
    /// [M, C] e.
    pub qkv: Buf<'a>,
    /// [M, 2, H] f32.
    pub gates: Buf<'a>,
    pub places: Places<'a>,
    /// [P, H, dk, dv] f32. Written: the state after a segment's last row, at the first place that the segment writes. With `rest` the states that its
    /// chunks begin with, from there on, and then the last one: `edges` places.
    pub states: Buf<'a>,
    /// [M, H dv] e, written: o.
    pub out: Buf<'a>,
    /// [M, H dv] f32, written: r, for the backward pass.
    pub rest: Option<Buf<'a>>,
}

/// The norm after the rule: y = w o / sqrt(mean(o^2) + eps) silu(z), over each head of a row.
#[derive(Clone, Copy, Debug)]
pub struct NormGated<'a> {
    pub heads: DeltaHeads,
    /// [M, H dv] e.
    pub o: Buf<'a>,
    /// [M, C + H dv + 2 H] e: z is read.
    pub x: Buf<'a>,
    /// [dv].
    pub w: Buf<'a>,
    pub eps: f32,
    /// [M, H dv] e, written.
    pub y: Buf<'a>,
}

/// The gradient of `norm_gated`.
#[derive(Clone, Copy, Debug)]
pub struct NormGatedBackward<'a> {
    pub heads: DeltaHeads,
    /// [M, H dv] e: the forward's.
    pub o: Buf<'a>,
    /// [M, C + H dv + 2 H] e: the forward's.
    pub x: Buf<'a>,
    /// [dv].
    pub w: Buf<'a>,
    pub eps: f32,
    /// [M, H dv] e: the gradient of y; written: that of o.
    pub d: Buf<'a>,
    /// [M, C + H dv + 2 H] e: that of z is written, and nothing else.
    pub dx: Buf<'a>,
    /// [dv]: that of w; none of frozen weights.
    pub dw: Option<Buf<'a>>,
    /// Whether `dw` is added to, or written.
    pub add: bool,
}

/// The gradient of the rule, of a pass whose forward had `rest`.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRuleBackward<'a> {
    pub heads: DeltaHeads,
    /// [M, C] e: the forward's.
    pub qkv: Buf<'a>,
    /// [M, 2, H] f32: the forward's.
    pub gates: Buf<'a>,
    pub places: Places<'a>,
    /// [P, H, dk, dv] f32: as the forward left them.
    pub states: Buf<'a>,
    /// [M, H dv] f32: the forward's.
    pub rest: Buf<'a>,
    /// [M, H dv] e: gradient of o.
    pub dout: Buf<'a>,
    /// [M, H dv] f32, written: that of beta r, which v's is a multiple of.
    pub d_rest: Buf<'a>,
    /// [P, H, dk, dv] f32, written: the gradient of each state of `states`. Children are added to what their parent leaves in their order.
    pub d_states: Buf<'a>,
    /// [M, C] f32, written: gradients of q, k and v.
    pub d_qkv: Buf<'a>,
    /// [M, 2, H] f32, written: those of g, then of beta.
    pub d_gates: Buf<'a>,
}

/// The gradient of `delta_inputs`, of a pass of whole sequences.
#[derive(Clone, Copy, Debug)]
pub struct DeltaInputsBackward<'a> {
    pub heads: DeltaHeads,
    /// [M, C + H dv + 2 H] e: the forward's.
    pub x: Buf<'a>,
    pub weights: DeltaWeights<'a>,
    /// [S, 5] u32, as `Batch::segments`.
    pub segments: Buf<'a>,
    /// [M, C] f32: gradients of q, k and v; written: those of what silu reads.
    pub d_qkv: Buf<'a>,
    /// [M, 2, H] f32: of g and beta.
    pub d_gates: Buf<'a>,
    /// [M, C + H dv + 2 H] e, written but for z. A row's inputs are read by the rows after it, those of children in the order of these.
    pub dx: Buf<'a>,
    /// None of frozen weights.
    pub grads: Option<DeltaWeights<'a>>,
    /// Whether `grads` are added to, or written.
    pub add: bool,
}
