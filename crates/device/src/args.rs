//! Arguments of operations. Legend as in the crate's documentation.

use crate::{Codes, Kv, Matrix};
use plimsoll_arch::QkNorms;
use plimsoll_memory::Buf;

/// Positions and cache slots of the rows of a forward pass, as index arrays in the arena.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// [M] u32: absolute position of each row in its sequence.
    pub positions: Buf<'a>,
    /// [M] u32: block * KV_BLOCK + slot where the row's key and value are written.
    pub slots: Buf<'a>,
    /// [S, 5] u32: first row, number of rows, position of the first row, offset into `tables`, and the first row of
    /// the parent segment or `NO_PARENT`. A row at position p attends to keys 0..=p of its segment's block table.
    /// A parent starts at position 0, comes before its children, and owns the rows of positions below the child's
    /// first position. Only the backward pass reads the parent.
    pub segments: Buf<'a>,
    /// [..] u32: block tables, one after the other; entry i of a table holds keys 16i..16i+16.
    pub tables: Buf<'a>,
    /// All positions of the pass are below it: a bound known to the host.
    pub keys_max: usize,
}

/// Where a batch's rows are in another cache, whose tables begin where the batch's do.
#[derive(Clone, Copy, Debug)]
pub struct Slots<'a> {
    /// As `Batch::slots`.
    pub slots: Buf<'a>,
    /// As `Batch::tables`, and of their length.
    pub tables: Buf<'a>,
}

/// How tokens are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it; 0 takes the largest logit (ties: the lowest token id).
    pub temperature: f32,
    /// Only the `top_k` largest logits; 0 for all.
    pub top_k: u32,
    /// Only the smallest set whose probability reaches `top_p` (after top_k, renormalised); 1 for all.
    pub top_p: f32,
    /// Only tokens of at least `min_p` times the largest probability; 0 for all.
    pub min_p: f32,
    /// Seed of the counter-based numbers.
    pub seed: u64,
}

impl Sampling {
    /// True if part of the vocabulary may be cut off.
    pub fn truncates(&self) -> bool {
        self.temperature > 0.0 && (self.top_k > 0 || self.top_p < 1.0 || self.min_p > 0.0)
    }

    /// Factor on logits: 1/T, or 1 for greedy.
    pub fn inv_temperature(&self) -> f32 {
        if self.temperature > 0.0 { 1.0 / self.temperature } else { 1.0 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    pub lr: f32,
    pub beta1: f32,
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    pub weight_decay: f32,
    /// 1 for the first update; bias correction uses it.
    pub step: u64,
    /// Gradients are multiplied by it first: clipping.
    pub grad_scale: f32,
    /// Key of stochastic rounding.
    pub seed: u64,
    /// Index of the buffer's first element among all parameters; with `step` the counter of stochastic rounding.
    pub first_element: u64,
}

/// Weights, gradient and states of one parameter; all of one length and one element order.
#[derive(Clone, Copy, Debug)]
pub struct AdamWBufs<'a> {
    /// f32 or bf16.
    pub weights: Buf<'a>,
    /// f32 or bf16.
    pub grad: Buf<'a>,
    /// First moment: f32, or with stochastic rounding bf16 or e4m3.
    pub m: Buf<'a>,
    /// Second moment: as `m`; e5m3 where that is e4m3.
    pub v: Buf<'a>,
    /// Scales of both moments where they are codes; the parameter then starts at a block's first element.
    pub scales: Option<[Buf<'a>; 2]>,
    /// f32 copy that the update is computed in; `None` updates `weights` itself, bf16 by stochastic rounding.
    pub master: Option<Buf<'a>>,
}

/// What bends the output of a small network's layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Tanh,
    /// max(x, 0).
    Relu,
}

/// The output gates of attention: each head of a row is multiplied by the sigmoid of a gate of its own.
///
/// A row of `x` is that of a query of each head and its gate, one head after the other, then keys and values.
#[derive(Clone, Copy, Debug)]
pub struct GateHeadsBackward<'a> {
    pub heads: Heads,
    /// [M, 2 (a + k) d] e: the forward's.
    pub x: Buf<'a>,
    /// [M, a d] e: what attention gave.
    pub attn: Buf<'a>,
    /// [M, a d] e: gradient of the gated heads; written: of `attn`.
    pub d: Buf<'a>,
    /// [M, 2 (a + k) d] e: those of gates are written, and nothing else.
    pub dx: Buf<'a>,
    /// [M, a d] e, if given, gets what `gate_heads` gave, to the bit.
    pub out: Option<Buf<'a>>,
}

/// What the head computes for each row.
#[derive(Clone, Copy, Debug)]
pub struct HeadOut<'a> {
    /// [R] f32: log-probability of the target (or of the sampled token), of the untruncated policy at temperature.
    pub logprobs: Buf<'a>,
    /// [R] f32: log-sum-exp of the scaled logits.
    pub lse: Buf<'a>,
    /// [R] f32: entropy in nats.
    pub entropy: Buf<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// a: query heads.
    pub heads: usize,
    /// k: key-value heads.
    pub kv_heads: usize,
    /// d: elements of a head.
    pub head_dim: usize,
}

/// The weight of an RMS norm.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// [h]
    pub w: Buf<'a>,
    pub eps: f32,
    /// Added to the weights: some models store their distance from 1.
    pub offset: f32,
}

impl<'a> Norm<'a> {
    /// With weights as they are.
    pub fn new(w: Buf<'a>, eps: f32) -> Norm<'a> {
        Norm { w, eps, offset: 0.0 }
    }
}

/// Weights of the norms of q and k.
#[derive(Clone, Copy, Debug)]
pub struct QkNorm<'a> {
    /// For q: [d], or [a d] of norms over rows.
    pub q: Buf<'a>,
    /// For k: [d], or [k d] of norms over rows.
    pub k: Buf<'a>,
    /// Epsilon of both.
    pub eps: f32,
    /// Added to the weights.
    pub offset: f32,
    /// What is normalised by itself: each head, or the heads of a row together.
    pub of: QkNorms,
}

/// How heads are rotated by their positions.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// [positions, r/2, 2] f32: cosine and sine, rotating element i with i + r/2. None where heads are not rotated.
    pub angles: Option<Buf<'a>>,
    /// r: elements of a head that are rotated, the first ones; all d if none.
    pub width: Option<usize>,
    /// Factor on q after its rotation.
    pub q_scale: f32,
}

impl<'a> Rotation<'a> {
    /// By a table, and nothing else.
    pub fn new(angles: Buf<'a>) -> Rotation<'a> {
        Rotation { angles: Some(angles), width: None, q_scale: 1.0 }
    }

    /// r, of heads of `d` elements: all of them where there are no angles.
    pub fn width_of(&self, d: usize) -> usize {
        let width = self.width.filter(|_| self.angles.is_some()).unwrap_or(d);
        assert!(width > 0 && width <= d && width.is_multiple_of(2), "{width} of {d} elements are rotated");
        width
    }
}

/// The window of a layer in which a row sees all keys that come before it.
pub const ALL_KEYS: usize = usize::MAX;

/// Which scores of a row become weights, and what bends them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores {
    /// Keys that a row sees, at most.
    pub window: usize,
    /// c: a score x, which has its scale, becomes c tanh(x / c).
    pub cap: Option<f32>,
}

impl Scores {
    /// Of the last keys, as they are.
    pub const fn of(window: usize) -> Scores {
        Scores { window, cap: None }
    }
}

/// What logits become before they are the logarithms of probabilities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logits {
    /// On logits, after they are bent.
    pub factor: f32,
    /// c: a logit x becomes c tanh(x / c).
    pub cap: Option<f32>,
}

impl Logits {
    /// Multiplied, and nothing else.
    pub const fn times(factor: f32) -> Logits {
        Logits { factor, cap: None }
    }

    /// With a further factor.
    pub fn and_times(self, factor: f32) -> Logits {
        Logits { factor: factor * self.factor, ..self }
    }
}

/// Where the gradients of a norm go.
#[derive(Clone, Copy, Debug)]
pub struct NormGrads<'a> {
    /// [M, h] f32, added to.
    pub dx: Buf<'a>,
    /// [M, h] e: the new `dx`, rounded, as the next products read it.
    pub rounded: Option<Buf<'a>>,
    /// [h]: the weight's; none of a frozen one.
    pub dw: Option<Buf<'a>>,
    /// Whether `dw` is added to, or written.
    pub add: bool,
    /// [M] f32: scratch.
    pub rstd: Buf<'a>,
}

/// What the backward pass of the head norms needs.
#[derive(Clone, Copy, Debug)]
pub struct QkNormBackward<'a> {
    /// Weights and epsilon.
    pub norm: QkNorm<'a>,
    /// [M, (a + 2k) d] e: before the norms.
    pub qkv: Buf<'a>,
    /// Gradient of q's weight, added to; none of a frozen one.
    pub dq_weight: Option<Buf<'a>>,
    /// Gradient of k's weight, added to; there if q's is.
    pub dk_weight: Option<Buf<'a>>,
}

/// Blocks of an adapter, at most: q, k and v are one linear layer.
pub const ADAPTER_BLOCKS_MAX: usize = 3;

/// Outputs of a linear layer that a low-rank adapter adds to.
#[derive(Clone, Copy, Debug)]
pub struct AdapterBlock<'a> {
    /// [n, r].
    pub b: Matrix<'a>,
    /// The first of its n outputs.
    pub first: usize,
}

/// Low-rank adapters of a linear layer y = x W^T: each adds `scale` B (A x) to a run of its outputs.
#[derive(Clone, Copy, Debug)]
pub struct Adapter<'a> {
    /// [S r, K]: A of each block, one after the other.
    pub a: Matrix<'a>,
    /// S of them, the first ones, by their outputs.
    pub blocks: [Option<AdapterBlock<'a>>; ADAPTER_BLOCKS_MAX],
    pub scale: f32,
}

impl<'a> Adapter<'a> {
    /// Returns the blocks, each with its number.
    pub fn blocks(&self) -> impl Iterator<Item = (usize, AdapterBlock<'a>)> {
        self.blocks.into_iter().flatten().enumerate()
    }

    /// r.
    pub fn rank(&self) -> usize {
        self.a.n / self.blocks().count()
    }

    /// Checks that blocks fit each other and the layer's outputs, or their gradient, and returns N; 0 without rows.
    pub fn check(&self, rows: usize, out: Buf<'_>) -> usize {
        let width = out.len().checked_div(rows).unwrap_or_default();
        assert_eq!(out.len(), rows * width, "{} elements in {rows} rows", out.len());
        self.check_width(if rows > 0 { width } else { usize::MAX });
        width
    }

    /// Checks that blocks fit each other and `width` outputs.
    pub fn check_width(&self, width: usize) {
        let r = self.rank();
        assert_eq!(self.a.n, self.blocks().count() * r, "A of whole blocks");
        let mut end = 0;
        for (_, block) in self.blocks() {
            assert_eq!((block.b.k, block.b.layout), (r, self.a.layout), "B of rank {r}");
            assert!(
                end <= block.first,
                "blocks by their outputs: one begins at {}, one ends at {end}",
                block.first
            );
            end = block.first + block.b.n;
        }
        assert!(end <= width, "a block's outputs end at {end} of {width}");
    }
}

/// A linear layer y = x W^T + bias, and the adapters that add to it.
#[derive(Clone, Copy, Debug)]
pub struct Adapted<'a> {
    /// [N, K]. Nothing writes it while passes run, but for `codes`: a device may read it, or them, before the operations that precede this
    /// one have ended, however many.
    pub w: Matrix<'a>,
    /// What W is widened from first, if it is stored in codes. A device may also leave W as it was, and widen what its product reads.
    pub codes: Option<Codes<'a>>,
    /// [N].
    pub bias: Option<Buf<'a>>,
    pub adapter: Adapter<'a>,
}

/// The gradients of adapters' A and B.
#[derive(Clone, Copy, Debug)]
pub struct AdaptBackward<'a> {
    /// [M, K] e: the forward's.
    pub x: Buf<'a>,
    /// [M, S r] e: the forward's.
    pub u: Buf<'a>,
    /// [M, N] e: gradient of the layer's outputs.
    pub dy: Buf<'a>,
    /// [M, S r] e: what `adapt_backward_u` gave.
    pub du: Buf<'a>,
    /// As `Layouts::pack` says for each product, e; written.
    pub pack: Buf<'a>,
    /// Written, or added to when `add`; f32 or bf16. The scale is not read.
    pub grads: Adapter<'a>,
    pub add: bool,
}

/// Draws a token for each row. The log-probability written equals, to the bit, what `head` gives for that token.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// [R, K] e.
    pub x: Buf<'a>,
    /// [V, K].
    pub w: Matrix<'a>,
    /// [R, 3] u32: sample id (low, high) and position.
    pub keys: Buf<'a>,
    pub how: Sampling,
    /// How they are bent and multiplied, besides the factor of the temperature.
    pub logits: Logits,
    /// As `Layouts::head_tile` says; written.
    pub tile: Buf<'a>,
    /// [R] u32, written; `u32::MAX` where a row's logits are not finite.
    pub tokens: Buf<'a>,
    /// Written.
    pub out: HeadOut<'a>,
}

impl Sample<'_> {
    /// How logits are bent and multiplied, as `head` takes it.
    pub fn tempered(&self) -> Logits {
        self.logits.and_times(self.how.inv_temperature())
    }
}

/// The gradient of attention. Children of a segment are added in their order.
#[derive(Clone, Copy, Debug)]
pub struct AttentionBackward<'a> {
    /// [M, a d] e: the forward's.
    pub q: Buf<'a>,
    pub kv: Kv<'a>,
    pub batch: Batch<'a>,
    pub scores: Scores,
    /// [M, a d] e: the forward's.
    pub out: Buf<'a>,
    /// [M, a] f32: the forward's.
    pub lse: Buf<'a>,
    /// [M, a d] e: gradient of `out`.
    pub dout: Buf<'a>,
    /// [M, a d] f32, written.
    pub dq: Buf<'a>,
    /// [M, 2 k d] f32, written: the gradients of keys, then of values.
    pub dkv: Buf<'a>,
}

/// The gradient through rotation and head norms.
#[derive(Clone, Copy, Debug)]
pub struct RopeBackward<'a> {
    /// [M, a d] f32.
    pub dq: Buf<'a>,
    /// [M, 2 k d] f32.
    pub dkv: Buf<'a>,
    pub rotation: Rotation<'a>,
    /// [M] u32.
    pub positions: Buf<'a>,
    pub heads: Heads,
    pub norms: Option<QkNormBackward<'a>>,
    /// [M, (a + 2k) d] e, written.
    pub dqkv: Buf<'a>,
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
    pub logits: Logits,
    /// The forward's; `logprobs` is not read.
    pub head_out: HeadOut<'a>,
    /// [R] f32: derivatives of the loss by log-probabilities.
    pub dlogprobs: Buf<'a>,
    /// [R] f32: derivatives of the loss by entropies.
    pub dentropy: Buf<'a>,
    /// As `Layouts::head_tile` says; written.
    pub tile: Buf<'a>,
    /// As `Layouts::head_gradient_tile` says, e; written.
    pub dtile: Buf<'a>,
    /// As `Layouts::pack` says, e; written.
    pub pack: Buf<'a>,
    /// [R, K] f32, written.
    pub dx: Buf<'a>,
    /// [V, K], written, or added to when `add`; none of a frozen head.
    pub grad: Option<Matrix<'a>>,
    pub add: bool,
}
