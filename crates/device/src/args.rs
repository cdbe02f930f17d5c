//! Arguments of operations. Legend as in the crate's documentation.

use crate::{Axes, Codes, Kv, LISTED_MAX, Matrix, Rounded, RowBiases, RowMasks};
use plimsoll_arch::{QkNorms, TokenRun};
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

/// A batch's slots and block tables in another cache. Offsets into the tables are the same.
#[derive(Clone, Copy, Debug)]
pub struct Slots<'a> {
    /// [M] u32: block * KV_BLOCK + slot of each row in the other cache.
    pub slots: Buf<'a>,
    /// [..] u32: block tables of the other cache, as long as `Batch::tables`.
    pub tables: Buf<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divisor of logits; 0 takes the largest logit (ties: the lowest token id).
    pub temperature: f32,
    /// Keeps the `top_k` largest logits; 0 keeps all.
    pub top_k: u32,
    /// Keeps the smallest set whose probability reaches `top_p` (after top_k, renormalised); 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens of at least `min_p` times the largest probability; 0 keeps all.
    pub min_p: f32,
    /// Seed of the counter-based random numbers; a row's key has it.
    pub seed: u64,
}

/// Words of a draw's key: the sample's id (low, high), the position, and the seed (low, high).
pub const KEY_WORDS: usize = 5;

/// Returns the key of the draw at a position of a sample.
pub fn draw_key(seed: u64, sample_id: u64, position: usize) -> [u32; KEY_WORDS] {
    [sample_id as u32, (sample_id >> 32) as u32, position as u32, seed as u32, (seed >> 32) as u32]
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
    /// Gradients are multiplied by it first (clipping).
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
    /// Second moment: of `m`'s dtype, but e5m3 if `m` is e4m3.
    pub v: Buf<'a>,
    /// Block scales of both moments if they are codes; the parameter then starts at a block's first element.
    pub scales: Option<[Buf<'a>; 2]>,
    /// f32 copy that the update is computed in; `None` updates `weights` itself, bf16 by stochastic rounding.
    pub master: Option<Buf<'a>>,
}

/// Activation function of a small network's layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Tanh,
    /// max(x, 0).
    Relu,
}

/// The gradient of the output gates of attention, which multiply each head of a row by the sigmoid of its own gate.
///
/// A row of `x` has each head's query followed by its gate, then keys and values.
#[derive(Clone, Copy, Debug)]
pub struct GateHeadsBackward<'a> {
    pub heads: Heads,
    /// [M, 2 (a + k) d] e: from the forward pass.
    pub x: Buf<'a>,
    /// [M, a d] e: output of attention.
    pub attn: Buf<'a>,
    /// [M, a d] e: gradient of the gated heads; overwritten by that of `attn`.
    pub d: Buf<'a>,
    /// [M, 2 (a + k) d] e: gets the gradients of the gates and nothing else.
    pub dx: Buf<'a>,
    /// [M, a d] e: if given, gets the bits that `gate_heads` gave.
    pub out: Option<Buf<'a>>,
}

/// Outputs of the head for each row.
#[derive(Clone, Copy, Debug)]
pub struct HeadOut<'a> {
    /// [R] f32: log-probability of the target (or of the sampled token), of the untruncated policy at temperature.
    pub logprobs: Buf<'a>,
    /// [R] f32: log-sum-exp of the scaled logits.
    pub lse: Buf<'a>,
    /// [R] f32: entropy in nats.
    pub entropy: Buf<'a>,
}

/// K tokens of each head row, none twice.
#[derive(Clone, Copy, Debug)]
pub struct ListedTokens<'a> {
    /// [R, K] u32.
    pub ids: Buf<'a>,
    /// [R, K] f32: their log-probabilities, as in `HeadOut`.
    pub logprobs: Buf<'a>,
}

impl ListedTokens<'_> {
    /// Returns K, the same for both buffers and at most `LISTED_MAX`.
    pub fn per_row(&self, rows: usize) -> usize {
        assert_eq!(self.ids.len(), self.logprobs.len(), "a log-probability for each id");
        let k = self.ids.len() / rows.max(1);
        assert_eq!(self.ids.len(), rows * k, "as many tokens for each of {rows} rows");
        assert!(k <= LISTED_MAX, "{k} tokens a row");
        k
    }
}

/// How a further number D of each head row, a divergence, follows from its logits: by those of listed tokens each for
/// itself, by any other in proportion to its probability.
#[derive(Clone, Copy, Debug)]
pub struct ListedBackward<'a> {
    pub listed: ListedTokens<'a>,
    /// [R, K] f32: derivatives of D by the scaled logits of the listed tokens.
    pub slopes: Buf<'a>,
    /// [R] f32: derivative of D by the scaled logit of any other token, divided by the token's probability.
    pub rest: Buf<'a>,
    /// [R] f32: derivatives of the loss by D; where 0 the others are not read.
    pub d: Buf<'a>,
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
    /// Returns a norm whose weights have no offset.
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
    pub eps: f32,
    /// Added to the weights.
    pub offset: f32,
    /// Extent of a norm: one head, or all heads of a row.
    pub of: QkNorms,
}

/// Rotary position embedding of q and k.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// [positions, r/2, 2] f32: cosine and sine, rotating element i with i + r/2. None where heads are not rotated.
    pub angles: Option<Buf<'a>>,
    /// r: number of rotated elements, a head's first ones; all d if none.
    pub width: Option<usize>,
    /// Factor on q after its rotation.
    pub q_scale: f32,
    /// [positions] f32: a further factor on q by its position, for heads that are rotated.
    pub q_factors: Option<Buf<'a>>,
    /// Places whose numbers choose the angles of pairs, if rows have three; else a row's position chooses them.
    pub axes: Option<Axes<'a>>,
}

impl<'a> Rotation<'a> {
    /// Returns a rotation of whole heads by `angles`, with q unscaled.
    pub fn new(angles: Buf<'a>) -> Rotation<'a> {
        Rotation { angles: Some(angles), width: None, q_scale: 1.0, q_factors: None, axes: None }
    }

    /// Returns r for heads of `d` elements; d if there are no angles.
    pub fn width_of(&self, d: usize) -> usize {
        let width = self.width.filter(|_| self.angles.is_some()).unwrap_or(d);
        assert!(width > 0 && width <= d && width.is_multiple_of(2), "{width} of {d} elements are rotated");
        width
    }
}

/// The window of a layer in which a row sees all keys that come before it.
pub const ALL_KEYS: usize = usize::MAX;

/// Which keys a row attends to, the soft cap on their scores, the sinks of heads, and whether keys are values too.
#[derive(Clone, Copy, Debug)]
pub struct Scores<'a> {
    /// Maximum keys that a row sees.
    pub window: usize,
    /// c: soft cap; a scaled score x becomes c tanh(x / c).
    pub cap: Option<f32>,
    /// [a] e: a score of each query head that takes part in the softmax of its rows, and has no value. A softmax begins
    /// with it: its largest score is the sink, its sum 1, and its output 0.
    pub sinks: Option<Buf<'a>>,
    /// R: each key is stored as its value too, and nothing reads the first R columns of outputs, whose gradients are
    /// zeros; a device may leave these columns, and those of the values' gradients, zeros. None if values are their
    /// own.
    pub latent: Option<usize>,
    /// True if a row sees all keys of its segment, those after it too; the window is then `ALL_KEYS`. A segment of such
    /// a pass has no parent.
    pub is_whole: bool,
}

impl Scores<'_> {
    /// Returns uncapped scores of the last `window` keys, with values of their own.
    pub const fn of(window: usize) -> Scores<'static> {
        Scores { window, cap: None, sinks: None, latent: None, is_whole: false }
    }

    /// Returns uncapped scores of all keys of a row's segment.
    pub const fn of_whole() -> Scores<'static> {
        Scores { is_whole: true, ..Scores::of(ALL_KEYS) }
    }
}

/// The gradient of sinks: minus the sum over rows of a sink's share of the softmax times the product of output and
/// gradient.
#[derive(Clone, Copy, Debug)]
pub struct SinkBackward<'a> {
    /// [a] e.
    pub sinks: Buf<'a>,
    /// [M, a d] e: from the forward pass.
    pub out: Buf<'a>,
    /// [M, a] f32: from the forward pass, with the sinks in their sums.
    pub lse: Buf<'a>,
    /// [M, a d] e: gradient of `out`.
    pub dout: Buf<'a>,
    /// [a], written, or added to when `add`; f32 or bf16.
    pub grad: Buf<'a>,
    pub add: bool,
}

/// Soft cap and factor on logits before their log-softmax, and the tokens that it leaves out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logits<'a> {
    /// Factor on logits, after the cap.
    pub factor: f32,
    /// c: soft cap; a logit x becomes c tanh(x / c).
    pub cap: Option<f32>,
    /// Tokens without probability: their logits count as `NO_MASS`, whatever they are, and have no gradient. Logits
    /// with a cap suppress none.
    pub suppressed: TokenRun,
    /// Numbers added to logits of single rows, after the cap and before the factor. They have no gradient: the
    /// backward pass takes none.
    pub biases: Option<RowBiases<'a>>,
    /// Tokens without probability in single rows, as `suppressed` are in all.
    pub masks: Option<RowMasks<'a>>,
}

/// The logit of a token without probability: no mass, and finite, so that 0 times it is 0.
pub const NO_MASS: f32 = -1e30;

impl<'a> Logits<'a> {
    /// Returns a factor without a cap.
    pub const fn times(factor: f32) -> Logits<'a> {
        let suppressed = TokenRun { first: 0, count: 0 };
        Logits { factor, cap: None, suppressed, biases: None, masks: None }
    }

    /// Multiplies the factor by another.
    pub fn and_times(self, factor: f32) -> Logits<'a> {
        Logits { factor: factor * self.factor, ..self }
    }
}

/// Gradients of an RMS norm.
#[derive(Clone, Copy, Debug)]
pub struct NormGrads<'a> {
    /// [M, h] f32, added to.
    pub dx: Buf<'a>,
    /// [M, h] e: the new `dx`, rounded for the products that follow.
    pub rounded: Option<Buf<'a>>,
    /// [h]: gradient of the weight; none if it is frozen.
    pub dw: Option<Buf<'a>>,
    /// True if `dw` is added to, false if overwritten.
    pub add: bool,
    /// [M] f32: scratch.
    pub rstd: Buf<'a>,
}

/// Inputs and weight gradients of the backward pass of the head norms.
#[derive(Clone, Copy, Debug)]
pub struct QkNormBackward<'a> {
    pub norm: QkNorm<'a>,
    /// [M, (a + 2k) d] e: input of the norms.
    pub qkv: Buf<'a>,
    /// Gradient of q's weight, added to; none if it is frozen.
    pub dq_weight: Option<Buf<'a>>,
    /// Gradient of k's weight, added to; given if q's is.
    pub dk_weight: Option<Buf<'a>>,
}

/// Maximum blocks of an adapter: the inputs of linear attention are four linear layers in one, q, k and v three.
pub const ADAPTER_BLOCKS_MAX: usize = 4;

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
    /// S blocks in order of their outputs, then `None`.
    pub blocks: [Option<AdapterBlock<'a>>; ADAPTER_BLOCKS_MAX],
    pub scale: f32,
}

impl<'a> Adapter<'a> {
    /// Returns the blocks, each with its number.
    pub fn blocks(&self) -> impl Iterator<Item = (usize, AdapterBlock<'a>)> {
        self.blocks.into_iter().flatten().enumerate()
    }

    /// Returns r.
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

/// Maximum slots of adapters that rows choose from: kernels have a bit for each.
pub const ADAPTER_SLOTS_MAX: usize = 64;

/// Adapters of one shape, of which each row has one or none: those of slot s are `stride` elements after slot 0's times
/// s. Slots without an adapter hold zeros; every value is finite.
#[derive(Clone, Copy, Debug)]
pub struct AdapterSlots<'a> {
    /// [C, stride] e: all slots, which hold every A and B of slot 0 that operations name.
    pub all: Buf<'a>,
    pub stride: usize,
    /// [M] u32: the slot of each row; C or above: none.
    pub of_row: Buf<'a>,
    /// [C] f32: factor of a slot's B (A x), instead of the adapter's own.
    pub scales: Buf<'a>,
    /// At least the slots among the 64 rows from any multiple of 64 on; the fewer, the faster. While passes run,
    /// nothing writes `of_row`, but before a pass that is replayed.
    pub most: usize,
}

/// Rows over which `AdapterSlots::most` counts.
pub const SLOT_ROWS: usize = 64;

/// Returns `AdapterSlots::most` of rows with these slots.
pub fn most_slots(of_row: &[u32]) -> usize {
    let among = |rows: &[u32]| {
        let slots = rows.iter().filter(|slot| **slot < ADAPTER_SLOTS_MAX as u32);
        slots.fold(0u64, |all, slot| all | 1 << slot).count_ones() as usize
    };
    of_row.chunks(SLOT_ROWS).map(among).max().unwrap_or(0)
}

impl<'a> AdapterSlots<'a> {
    /// Returns C.
    pub fn count(&self) -> usize {
        self.scales.len()
    }

    /// Returns the adapter of a slot, from that of slot 0; the factor is as it was.
    pub fn adapter(&self, first: Adapter<'a>, slot: usize) -> Adapter<'a> {
        let own = |matrix: Matrix<'a>| {
            let start = (matrix.buf.offset() - self.all.offset()) / self.all.dtype().bytes();
            let buf = self.all.slice(start as usize + slot * self.stride, matrix.buf.len());
            Matrix { buf, ..matrix }
        };
        let blocks = first.blocks.map(|of| of.map(|of| AdapterBlock { b: own(of.b), ..of }));
        Adapter { a: own(first.a), blocks, ..first }
    }

    /// Checks that it has whole slots, and rows as many as `m`.
    pub fn check(&self, m: usize) {
        let count = self.count();
        assert!((1..=ADAPTER_SLOTS_MAX).contains(&count), "{count} slots");
        assert_eq!(self.all.len(), count * self.stride, "{count} slots of {}", self.stride);
        assert_eq!(self.of_row.len(), m, "a slot a row");
    }
}

/// A linear layer y = x W^T + bias, and the adapters that add to it.
#[derive(Clone, Copy, Debug)]
pub struct Adapted<'a> {
    /// [N, K]. While passes run, only widening `codes` writes it: a device may read it or `codes` before any number of
    /// preceding operations have ended.
    pub w: Matrix<'a>,
    /// Codes that W is widened from first. A device may also leave W as it was and widen what its product reads.
    pub codes: Option<Codes<'a>>,
    /// What the layer's own product is computed with instead of W, if that is rounded to eight bits. It is stored, and
    /// then what the adapters give of x as it is is added.
    pub fp8: Option<Rounded<'a>>,
    /// [N].
    pub bias: Option<Buf<'a>>,
    pub adapter: Adapter<'a>,
}

/// The gradients of adapters' A and B.
#[derive(Clone, Copy, Debug)]
pub struct AdaptBackward<'a> {
    /// [M, K] e: from the forward pass.
    pub x: Buf<'a>,
    /// [M, S r] e: from the forward pass.
    pub u: Buf<'a>,
    /// [M, N] e: gradient of the layer's outputs.
    pub dy: Buf<'a>,
    /// [M, S r] e: result of `adapt_backward_u`.
    pub du: Buf<'a>,
    /// Scratch (e) sized by `Layouts::pack` for each product; written.
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
    /// Cap and factor of the logits; the factor of the temperature comes on top.
    pub logits: Logits<'a>,
    /// f32 scratch sized by `Layouts::head_tile`; written.
    pub tile: Buf<'a>,
    /// [R] u32, written; `u32::MAX` where a row's logits are not finite.
    pub tokens: Buf<'a>,
    pub out: HeadOut<'a>,
}

impl<'a> Sample<'a> {
    /// Returns the cap and the factor, temperature included, as `head` takes them.
    pub fn tempered(&self) -> Logits<'a> {
        self.logits.and_times(self.how.inv_temperature())
    }
}

/// The gradient of attention. Children of a segment are added in their order.
#[derive(Clone, Copy, Debug)]
pub struct AttentionBackward<'a> {
    /// [M, a d] e: from the forward pass.
    pub q: Buf<'a>,
    pub kv: Kv<'a>,
    pub batch: Batch<'a>,
    pub scores: Scores<'a>,
    /// [M, a d] e: from the forward pass.
    pub out: Buf<'a>,
    /// [M, a] f32: from the forward pass.
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
