//! The `Device` trait: the operations of the decoder family over one arena, and the devices that implement them.
//!
//! A device owns an arena's memory; callers hold `Buf` handles, which are offsets, so a host slice where a device
//! buffer belongs does not compile. Shapes are checked by every operation; a mismatch is an error of ours and panics.
//!
//! Legend: M rows (tokens), N outputs, K inputs, h hidden, a query heads, k key-value heads, d head dim,
//! f feed-forward, V vocab, R head rows, S segments, e the storage dtype of activations (that of the weights).
//!
//! Exactness: in every forward operation an output row is a function of that row's own inputs. The order in which
//! one element is accumulated depends on K (or on the row length, or on absolute key positions) alone, never on M,
//! on neighbours, on threads or on how rows were cut into calls. Backward operations are deterministic: their bits
//! do not depend on the number of threads.

pub mod codes;
mod layout;
pub mod sizes;
mod update;

pub use codes::{CODE_BLOCK, Coded};
pub use layout::{DeviceKind, Kv, Matrix, MatrixLayout, PANEL, matrix_elements};
pub use update::Update;

use plimsoll_base::{Phase, Result};
use plimsoll_memory::{Buf, CardMemory};

/// Slots of the arena through which offloaded buffers pass.
pub const OFFLOAD_SLOTS: usize = 3;
/// Keys in a block of the KV cache: one 512-bit vector of f32.
pub const KV_BLOCK: usize = 16;
/// Keys in a chunk of attention; chunks start at absolute position 0 and are merged in ascending order.
pub const ATTENTION_CHUNK: usize = 512;
/// Vocabulary columns of a head tile; a constant of the build, because the merge order depends on it.
pub const HEAD_TILE: usize = 512;
/// Fields of a segment record; see `Batch`.
pub const SEGMENT_FIELDS: usize = 5;
/// "No parent" in a segment record.
pub const NO_PARENT: u32 = u32::MAX;

/// Where the rows of a forward pass stand, as index arrays in the arena.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// [M] u32: absolute position of each row in its sequence.
    pub positions: Buf<'a>,
    /// [M] u32: block * KV_BLOCK + slot where the row's key and value are written.
    pub slots: Buf<'a>,
    /// [S, 5] u32: first row, number of rows, position of the first row, offset into `tables`, and the first row of
    /// the parent segment or `NO_PARENT`. A row at position p attends to keys 0..=p of its segment's block table.
    /// A parent starts at position 0, stands before its children, and owns the rows of positions below the child's
    /// first position. Only the backward pass reads the parent.
    pub segments: Buf<'a>,
    /// [..] u32: block tables, one after the other; entry i of a table holds keys 16i..16i+16.
    pub tables: Buf<'a>,
    /// No row of the pass stands at this position or behind it: a bound known to the host.
    pub keys_max: usize,
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

/// One AdamW update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step.
    pub lr: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// Decoupled weight decay.
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
    /// tanh x.
    Tanh,
    /// max(x, 0).
    Relu,
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

/// The operations of the decoder family.
///
/// Sizes are taken from the buffers: `x` of `[M, K]` with `K` known gives M. Buffers must have exactly the
/// stated lengths. Outputs may not overlap inputs unless an operation says so.
///
/// Numbers of the host come in by `write_f32` and its kin alone. A slice of the host's memory is no buffer:
///
/// ```
/// # fn norm(dev: &impl plimsoll_device::Device, x: plimsoll_memory::Buf<'_>, w: plimsoll_memory::Buf<'_>) {
/// dev.rms_norm(x, w, 1e-6, x);
/// # }
/// ```
///
/// ```compile_fail,E0308
/// # fn norm(dev: &impl plimsoll_device::Device, x: plimsoll_memory::Buf<'_>, w: plimsoll_memory::Buf<'_>) {
/// let w: &[f32] = &[1.0; 64];
/// dev.rms_norm(x, w, 1e-6, x); // error: expected `Buf<'_>`, found `&[f32]`
/// # }
/// ```
pub trait Device: Sync {
    /// Which kind of device; it decides the layout of matrices.
    fn kind(&self) -> DeviceKind;

    /// Instruction path or compute capability: part of the run's fingerprint.
    fn machine_type(&self) -> String;

    /// Threads of the host that operations run on: 1 where they run elsewhere.
    fn threads(&self) -> usize {
        1
    }

    /// FLOP/s of bf16 products that the device reaches: on the CPU measured for about `seconds`, on a card by its kind.
    fn peak_flops(&self, seconds: f64) -> f64;

    /// Who holds the device's own memory; `None` where that is the host's.
    fn card_memory(&self) -> Option<CardMemory> {
        None
    }

    /// Where a device was opened to be profiled: (kernel, launches, seconds) since the last call, the longest first.
    fn take_profile(&self) -> Vec<(String, u64, f64)> {
        Vec::new()
    }

    /// Makes RMS norms sum in another order, so that a test of exactness can show that it notices.
    fn perturb_norms(&self, on: bool);

    // ---- data in and out -----------------------------------------------------------------------------------

    /// Copies token ids, positions or tables into a u32 buffer of at least that length, from element `start`.
    fn write_u32(&self, dst: Buf<'_>, start: usize, src: &[u32]);
    /// Copies out of a u32 buffer, from element `start`.
    fn read_u32(&self, src: Buf<'_>, start: usize, dst: &mut [u32]);
    /// Converts f32 into the buffer's dtype (round to nearest even), from element `start`.
    fn write_f32(&self, dst: Buf<'_>, start: usize, src: &[f32]);
    /// Widens elements to f32, from element `start`.
    fn read_f32(&self, src: Buf<'_>, start: usize, dst: &mut [f32]);
    /// Writes whole rows (`[rows, K]` row-major) of a matrix from row `first_row`.
    fn write_rows(&self, dst: Matrix<'_>, first_row: usize, src: &[f32]);
    /// Reads whole rows of a matrix into row-major f32.
    fn read_rows(&self, src: Matrix<'_>, first_row: usize, dst: &mut [f32]);
    /// Widens whole rows (`[rows, k]`) of a matrix of codes from row `first_row`; a vector is `MatrixLayout::Rows`, k = 1.
    fn read_codes(&self, src: Coded<'_>, k: usize, layout: MatrixLayout, first_row: usize, dst: &mut [f32]);
    /// dst = src, element by element: exact for what `read_codes` gave of blocks of the same elements, else to the
    /// nearest. `src`: f32 or bf16.
    fn write_codes(&self, src: Buf<'_>, dst: Coded<'_>);
    /// Sets all bytes to zero.
    fn zero(&self, dst: Buf<'_>);
    /// Waits until all operations have ended.
    fn sync(&self);
    /// A phase begins: what the last one left in `shared`, the bytes that phases share, is gone.
    ///
    /// A checked device overwrites them with values that are no numbers, so that whoever still reads them is found,
    /// and from then on names handles of other phases. Others do nothing.
    fn begin_phase(&self, _phase: Phase, _shared: Buf<'_>) {}
    /// The first failure of an operation since the last check. Operations behind it did nothing.
    ///
    /// Errors: those of the device; the CPU has none.
    fn check(&self) -> Result<()> {
        Ok(())
    }
    /// Runs two sequences of operations that share no buffer which either writes, side by side where the device can.
    fn both(&self, a: &(dyn Fn() + Sync), b: &(dyn Fn() + Sync)) {
        a();
        b();
    }
    /// How results come back while later operations run; `None` where operations have ended when they return.
    fn pipeline(&self) -> Option<&dyn Pipeline> {
        None
    }

    // ---- host memory beside the arena ------------------------------------------------------------------------

    /// Slots that copies come into are free: copies into them come behind the operations so far.
    fn offload_begin(&self);
    /// Starts copying each offloaded buffer into a buffer of the arena, which belongs to `slot`, once that is free.
    fn offload_in<'b>(&self, slot: usize, copies: &mut dyn Iterator<Item = (Buf<'b>, Buf<'b>)>);
    /// The operations from here on come behind the arrival of what `offload_in` last started for the slot.
    fn offload_wait(&self, slot: usize);
    /// Starts copying buffers of the slot into offloaded ones behind the operations so far; then the slot is free.
    /// `sync` waits for what is under way.
    fn offload_out<'b>(&self, slot: usize, copies: &mut dyn Iterator<Item = (Buf<'b>, Buf<'b>)>);

    // ---- forward -------------------------------------------------------------------------------------------

    /// out[m] = table row ids[m]. `ids`: [M] u32; `out`: [M, h] f32.
    fn embed(&self, table: Matrix<'_>, ids: Buf<'_>, out: Buf<'_>);
    /// out = x / sqrt(mean(x^2) + eps) * w over each row. `x`: [M, h] f32; `w`: [h]; `out`: [M, h] e.
    fn rms_norm(&self, x: Buf<'_>, w: Buf<'_>, eps: f32, out: Buf<'_>);
    /// out = x W^T + bias, or out += when `add` (f32 only). `x`: [M, K] e; `bias`: [N]; `out`: [M, N] e or f32.
    fn matmul(&self, x: Buf<'_>, w: Matrix<'_>, bias: Option<Buf<'_>>, out: Buf<'_>, add: bool);
    /// out = resid + x W^T, in f32; `out` may be `resid` itself. `x`: [M, K] e; `resid`, `out`: [M, N] f32.
    fn matmul_add(&self, x: Buf<'_>, w: Matrix<'_>, resid: Buf<'_>, out: Buf<'_>) {
        if out != resid {
            self.cast(resid, out);
        }
        self.matmul(x, w, None, out, true);
    }
    /// Splits qkv, normalises heads of q and k (if `norms`), rotates q and k, writes q to `q_out` and k, v to the cache.
    ///
    /// `qkv`: [M, (a + 2k) d] e; `norms`: ([d], [d]) of q and k with eps; `rope`: [positions, d/2, 2] f32, cosine
    /// and sine, rotating element i with i + d/2; `q_out`: [M, a d] e.
    fn rope(
        &self,
        qkv: Buf<'_>,
        norms: Option<QkNorm<'_>>,
        rope: Buf<'_>,
        batch: Batch<'_>,
        kv: Kv<'_>,
        q_out: Buf<'_>,
    );
    /// Copies the first `n` slots of block `src` to block `dst`, for each record. `copies`: [C, 3] u32: src, dst, n.
    fn copy_kv(&self, kv: Kv<'_>, copies: Buf<'_>);
    /// Causal attention with scale 1/sqrt(d). `q`, `out`: [M, a d] e; `lse`: [M, a] f32, log-sum-exp of the scores.
    fn attention(&self, q: Buf<'_>, kv: Kv<'_>, batch: Batch<'_>, out: Buf<'_>, lse: Option<Buf<'_>>);
    /// out = silu(gate) * up. `gate_up`: [M, 2f] e, gate first; `out`: [M, f] e.
    fn swiglu(&self, gate_up: Buf<'_>, f: usize, out: Buf<'_>);
    /// out = f(x), element by element; `out` may be `x` itself. `x`, `out`: e.
    fn activate(&self, how: Activation, x: Buf<'_>, out: Buf<'_>);
    /// out[r] = x[rows[r]]. `x`: [M, h] f32; `rows`: [R] u32; `out`: [R, h] f32.
    fn gather_rows(&self, x: Buf<'_>, rows: Buf<'_>, out: Buf<'_>);
    /// Log-probability of `targets` ([R] u32), log-sum-exp and entropy through the head tile. `x`: [R, h] e;
    /// `tile`: as `head_tile_elements` says.
    fn head(
        &self,
        x: Buf<'_>,
        w: Matrix<'_>,
        targets: Buf<'_>,
        inv_temperature: f32,
        tile: Buf<'_>,
        out: HeadOut<'_>,
    );
    /// Draws a token for each row. `keys`: [R, 3] u32: sample id (low, high) and position; `tokens`: [R] u32, written.
    /// The log-probability written equals, to the bit, what `head` gives for that token.
    #[allow(clippy::too_many_arguments)] // The head's arguments, and what is drawn by.
    fn sample(
        &self,
        x: Buf<'_>,
        w: Matrix<'_>,
        keys: Buf<'_>,
        how: Sampling,
        tile: Buf<'_>,
        tokens: Buf<'_>,
        out: HeadOut<'_>,
    );

    /// After `sample` in a pass of one row a sequence: the next pass's `ids`, positions, slots, segments and `keys`.
    ///
    /// Row i is segment i and head row i; `ids` and `tokens`: [M] u32, `keys`: [M, 3]. Tables must reach the new position.
    fn advance(&self, batch: Batch<'_>, ids: Buf<'_>, tokens: Buf<'_>, keys: Buf<'_>);

    // ---- backward ------------------------------------------------------------------------------------------

    /// dst = src in dst's dtype. `src`: f32.
    fn cast(&self, src: Buf<'_>, dst: Buf<'_>);
    /// out = dy W, or out += when `add` (f32 only). `dy`: [M, N] e; `out`: [M, K] e or f32.
    fn matmul_dx(&self, dy: Buf<'_>, w: Matrix<'_>, out: Buf<'_>, add: bool);
    /// grad = dy^T x, or grad += when `add`. `dy`: [M, N] e; `x`: [M, K] e; `grad`: f32 or bf16; `pack`: as
    /// `pack_elements` says.
    fn matmul_dw(&self, dy: Buf<'_>, x: Buf<'_>, grad: Matrix<'_>, add: bool, pack: Buf<'_>);
    /// grad[n] = sum over rows of dy, or grad[n] += when `add`. `dy`: [M, N] e; `grad`: [N].
    fn bias_backward(&self, dy: Buf<'_>, grad: Buf<'_>, add: bool);
    /// Gradients through the norm. `x`: [M, h] f32; `w`: [h]; `dy`: [M, h] f32 or e.
    fn rms_norm_backward(&self, x: Buf<'_>, w: Buf<'_>, eps: f32, dy: Buf<'_>, to: NormGrads<'_>);
    /// Gradient of attention. `dq`: [M, a d] f32, written; `dkv`: [M, 2 k d] f32, written: keys' gradients, then values'.
    /// `q`, `out`, `dout`: [M, a d] e; `lse`: [M, a]. Children of a segment are added in their order.
    #[allow(clippy::too_many_arguments)] // The inputs of the forward pass and its outputs.
    fn attention_backward(
        &self,
        q: Buf<'_>,
        kv: Kv<'_>,
        batch: Batch<'_>,
        out: Buf<'_>,
        lse: Buf<'_>,
        dout: Buf<'_>,
        dq: Buf<'_>,
        dkv: Buf<'_>,
    );
    /// dqkv = gradient through rotation and head norms. `dq`: [M, a d] f32; `dkv`: [M, 2 k d] f32; `dqkv`:
    /// [M, (a + 2k) d] e; with `norms`: the raw `qkv` of the forward pass and the weights' gradients ([d], [d]).
    #[allow(clippy::too_many_arguments)] // The inputs of the forward pass and its gradients.
    fn rope_backward(
        &self,
        dq: Buf<'_>,
        dkv: Buf<'_>,
        rope: Buf<'_>,
        positions: Buf<'_>,
        heads: Heads,
        norms: Option<QkNormBackward<'_>>,
        dqkv: Buf<'_>,
    );
    /// `gate_up`: [M, 2f] e of the forward pass; `dout`: [M, f] e; `d_gate_up`: [M, 2f] e, written; it may be `gate_up` itself.
    /// `out`: [M, f] e, if given, gets what `swiglu` gave, to the bit; it may be `dout` itself.
    fn swiglu_backward(
        &self,
        gate_up: Buf<'_>,
        f: usize,
        dout: Buf<'_>,
        d_gate_up: Buf<'_>,
        out: Option<Buf<'_>>,
    );
    /// dx = dy f'(x), where `y` = f(x) is the forward's output; `dx` may be `dy` itself. All e.
    fn activate_backward(&self, how: Activation, y: Buf<'_>, dy: Buf<'_>, dx: Buf<'_>);
    /// dst[rows[r]] += src[r], r ascending. `src`: [R, h] f32; `dst`: [M, h] f32.
    fn scatter_add_rows(&self, src: Buf<'_>, rows: Buf<'_>, dst: Buf<'_>);
    /// Gradient of the head: dx (f32 [R, h]) is written, and `grad`, or grad += when `add`. `head_out.lse` and `.entropy` are the forward's;
    /// `dlogprobs`, `dentropy`: [R] f32; `dtile`: [R, HEAD_TILE] e; `pack`: as `pack_elements` says.
    #[allow(clippy::too_many_arguments)] // The inputs of the forward pass and its gradients.
    fn head_backward(
        &self,
        x: Buf<'_>,
        w: Matrix<'_>,
        targets: Buf<'_>,
        inv_temperature: f32,
        head_out: HeadOut<'_>,
        dlogprobs: Buf<'_>,
        dentropy: Buf<'_>,
        tile: Buf<'_>,
        dtile: Buf<'_>,
        pack: Buf<'_>,
        dx: Buf<'_>,
        grad: Matrix<'_>,
        add: bool,
    );
    /// grad row ids[m] += d[m], m ascending. `d`: [M, h] f32.
    fn embed_backward(&self, d: Buf<'_>, ids: Buf<'_>, grad: Matrix<'_>);

    // ---- optimizer -----------------------------------------------------------------------------------------

    /// Sum of squares of all elements, in fixed blocks, f64 between blocks; NaN if any element is.
    fn sum_squares(&self, x: Buf<'_>) -> f64;
    /// w <- w (1 - lr decay) - lr m^ / (sqrt(v^) + eps), bias-corrected.
    fn adamw(&self, how: AdamW, bufs: AdamWBufs<'_>);
}

/// Running ahead of the host: operations recorded once and replayed, results fetched while the next pass runs.
pub trait Pipeline {
    /// Runs `ops`, or replays what they did at the first call with this key. Everything that their launches depend on
    /// on the host's side (buffers, lengths, options) must be the same for a key.
    fn replay(&self, key: u64, ops: &mut dyn FnMut());
    /// Starts copying 4-byte elements of some buffers to the host, behind what is under way. `slot` is 0 or 1.
    fn fetch(&self, slot: usize, bufs: &[Buf<'_>]);
    /// Waits for a fetch and hands out its words, buffer after buffer.
    fn fetched(&self, slot: usize, take: &mut dyn FnMut(&[u32]));
}

/// Head counts of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// a: query heads.
    pub heads: usize,
    /// k: key-value heads.
    pub kv_heads: usize,
    /// d: elements of a head.
    pub head_dim: usize,
}

/// Weights of the head norms of q and k.
#[derive(Clone, Copy, Debug)]
pub struct QkNorm<'a> {
    /// [d], for q.
    pub q: Buf<'a>,
    /// [d], for k.
    pub k: Buf<'a>,
    /// Epsilon of both.
    pub eps: f32,
}

/// Where the gradients of a norm go.
#[derive(Clone, Copy, Debug)]
pub struct NormGrads<'a> {
    /// [M, h] f32, added to.
    pub dx: Buf<'a>,
    /// [M, h] e: the new `dx`, rounded, as the next products read it.
    pub rounded: Option<Buf<'a>>,
    /// [h]: the weight's.
    pub dw: Buf<'a>,
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
    /// [d]: gradient of q's weight, added to.
    pub dq_weight: Buf<'a>,
    /// [d]: gradient of k's weight, added to.
    pub dk_weight: Buf<'a>,
}
