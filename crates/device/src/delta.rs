//! Linear attention by the gated delta rule (Gated DeltaNet): rows read one state matrix per value head, not keys.
//!
//! Row t of a sequence, in each value head, with g <= 0, 0 < beta < 1, and k of length 1:
//!
//! ```text
//! S' = e^g S[t-1]     p = S'^T k     r = v - p     S[t] = S' + k (beta r)^T     o = S[t]^T q
//! ```
//!
//! Exactness: forward passes compute this row by row. A state stays f32, so cutting a sequence into passes changes no
//! bit, and decoding gives what the update computes. The backward pass goes by chunks.
//!
//! Legend: M rows, S segments, P places of states, H value heads, of which each H / G neighbours share one of G heads
//! of q and k, dk elements of a head of q and k, dv of v; C = 2 G dk + H dv.

use plimsoll_memory::Buf;

/// Inputs that the convolution before q, k and v reads: those of a row and of the rows before it.
pub const CONV_TAPS: usize = plimsoll_arch::CONV_TAPS as usize;
/// Rows of a segment between states that are kept for its backward pass.
pub const STATE_CHUNK: usize = 64;
/// "No state": a segment begins with zeros, or what it leaves is not read.
pub const NO_STATE: u32 = u32::MAX;
/// Maximum elements of a head, a multiple of `DELTA_HEAD_STEP`.
pub const DELTA_HEAD_MAX: usize = plimsoll_arch::DELTA_HEAD_MAX as usize;
/// Elements of a head are a multiple of it.
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
    /// Returns G dk, the width of q and of k.
    pub const fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Returns H dv, the width of v and of the output.
    pub const fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Returns C, the width of q, k and v together.
    pub const fn conv_width(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Returns C + H dv + 2 H, the width of the products of a row.
    pub const fn input_width(&self) -> usize {
        self.conv_width() + self.value_width() + 2 * self.value_heads
    }

    /// Returns H dk dv, the elements of a state.
    pub const fn state(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }

    /// Returns the elements of a tail, the last inputs of the convolution.
    pub const fn tail(&self) -> usize {
        (CONV_TAPS - 1) * self.conv_width()
    }
}

/// Returns the states that a segment of a pass with gradients has: one at the start of each chunk, and the last.
pub const fn edges(rows: usize) -> usize {
    rows.div_ceil(STATE_CHUNK) + 1
}

/// Places of the states that segments of a pass begin with and write.
///
/// A segment with a parent in the pass begins with the state the parent leaves. Two segments may begin with one place
/// but not write one; only children read what a segment writes. It may write the place it begins with.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// [S, 2] u32: the place of a segment's initial state, or `NO_STATE` for zeros, and the first place that it writes,
    /// or `NO_STATE`. A child begins with the place of its parent's state after the parent's last row.
    pub places: Buf<'a>,
    /// [S, 5] u32, as `Batch::segments`.
    pub segments: Buf<'a>,
    /// True if segments may have parents in the pass.
    pub has_parents: bool,
}

/// The weights between a row's products and its q, k, v, g and beta; or their gradients.
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
/// q, k, v: silu of the convolution of their inputs over rows t - 3 to t; heads of q and k are then divided by
/// sqrt(sum of squares + 1e-6), q by sqrt(dk). g = -exp(A) softplus(a + bias), beta = 1 / (1 + e^-b).
#[derive(Clone, Copy, Debug)]
pub struct DeltaInputs<'a> {
    pub heads: DeltaHeads,
    /// [M, C + H dv + 2 H] e: inputs of q, k and v, then z, b and a.
    pub x: Buf<'a>,
    pub weights: DeltaWeights<'a>,
    pub places: Places<'a>,
    /// [P, 3, C] e: a sequence's last inputs, oldest first, at the places of its states; zeros at `NO_STATE`. Written
    /// at a segment's first place. None in a pass of whole sequences, where a child reads its parent's rows.
    pub tails: Option<Buf<'a>>,
    /// [M, C] e, written: q, k, v.
    pub qkv: Buf<'a>,
    /// [M, 2, H] f32, written: g, then beta.
    pub gates: Buf<'a>,
}

/// The gated delta rule, from q, k, v, g and beta to o.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRule<'a> {
    pub heads: DeltaHeads,
    /// [M, C] e.
    pub qkv: Buf<'a>,
    /// [M, 2, H] f32.
    pub gates: Buf<'a>,
    pub places: Places<'a>,
    /// [P, H, dk, dv] f32. Written: the state after a segment's last row, at the first place that it writes. With
    /// `rest`, from that place on, the states that its chunks begin with, then the last one: `edges` places.
    pub states: Buf<'a>,
    /// [M, H dv] e, written: o.
    pub out: Buf<'a>,
    /// [M, H dv] f32, written: r, for the backward pass.
    pub rest: Option<Buf<'a>>,
}

/// The gated norm after the rule: y = w o / sqrt(mean(o^2) + eps) silu(z), over each head of a row.
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
    /// [M, H dv] e: from the forward pass.
    pub o: Buf<'a>,
    /// [M, C + H dv + 2 H] e: from the forward pass.
    pub x: Buf<'a>,
    /// [dv].
    pub w: Buf<'a>,
    pub eps: f32,
    /// [M, H dv] e: gradient of y; overwritten by that of o.
    pub d: Buf<'a>,
    /// [M, C + H dv + 2 H] e: gets the gradient of z and nothing else.
    pub dx: Buf<'a>,
    /// [dv]: gradient of w; none if it is frozen.
    pub dw: Option<Buf<'a>>,
    /// True if `dw` is added to, false if overwritten.
    pub add: bool,
}

/// The gradient of the rule, after a forward pass with `rest`.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRuleBackward<'a> {
    pub heads: DeltaHeads,
    /// [M, C] e: from the forward pass.
    pub qkv: Buf<'a>,
    /// [M, 2, H] f32: from the forward pass.
    pub gates: Buf<'a>,
    pub places: Places<'a>,
    /// [P, H, dk, dv] f32: as the forward pass left them.
    pub states: Buf<'a>,
    /// [M, H dv] f32: from the forward pass.
    pub rest: Buf<'a>,
    /// [M, H dv] e: gradient of o.
    pub dout: Buf<'a>,
    /// [M, H dv] f32, written: gradient of beta r, of which v's is a multiple.
    pub d_rest: Buf<'a>,
    /// [P, H, dk, dv] f32, written: gradient of each state. Children add theirs to their parent's last in order.
    pub d_states: Buf<'a>,
    /// [M, C] f32, written: gradients of q, k and v.
    pub d_qkv: Buf<'a>,
    /// [M, 2, H] f32, written: gradients of g, then of beta.
    pub d_gates: Buf<'a>,
}

/// The gradient of `delta_inputs`, of a pass of whole sequences.
#[derive(Clone, Copy, Debug)]
pub struct DeltaInputsBackward<'a> {
    pub heads: DeltaHeads,
    /// [M, C + H dv + 2 H] e: from the forward pass.
    pub x: Buf<'a>,
    pub weights: DeltaWeights<'a>,
    /// [S, 5] u32, as `Batch::segments`.
    pub segments: Buf<'a>,
    /// [M, C] f32: gradients of q, k and v; overwritten by those of the inputs of silu.
    pub d_qkv: Buf<'a>,
    /// [M, 2, H] f32: gradients of g, then of beta.
    pub d_gates: Buf<'a>,
    /// [M, C + H dv + 2 H] e, written except for z. Rows, and then children in order, add to the inputs they read.
    pub dx: Buf<'a>,
    /// Gradients of the weights; none if they are frozen.
    pub grads: Option<DeltaWeights<'a>>,
    /// True if `grads` are added to, false if overwritten.
    pub add: bool,
}
