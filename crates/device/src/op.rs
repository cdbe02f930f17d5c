//! The operations of the decoder family: one table yields their names, their operands and the methods of `Device`.

use crate::claims::{Access, Claim, Each, Operand, Uses};
use crate::nf4;
use crate::pieces::portions;
use crate::{
    Activation, AdamW, AdamWBufs, AdaptBackward, AdaptExpertsBackward, Adapted, Adapter, AdapterSlots,
    Arrange, AttentionBackward, Backend, Batch, Blocks, Checked, Coded, Codes, DeltaInputs,
    DeltaInputsBackward, DeltaRule, DeltaRuleBackward, Descent, ExpertBiasBackward, Experts, ExpertsAdapter,
    ExpertsBackward, Fp8, GateHeadsBackward, GluExpertsBackward, GluSharedBackward, HeadBackward,
    HeadDivergence, HeadOut, HeadProducts, HeadSide, Heads, Kv, LayerNorm, LayerNormGrads, ListedTokens,
    Logits, Matrix, MatrixLayout, Momentum, MoveColumns, Norm, NormGated, NormGatedBackward, NormGrads,
    OwnedRun, QkNorm, RopeBackward, Rotation, Rounded, RouteBackward, Routes, Routing, RowsOf, Run, Sample,
    Scores, SinkBackward, Slots, Transfer,
};
use plimsoll_arch::{Gate, Gelu};
use plimsoll_base::Encoding;
use plimsoll_memory::Buf;

/// Declares operations. `Access` says how operands are used (`Write` includes reading); `in_place(a => b)` permits
/// output `b` to be exactly input `a`. The items in the last braces become further methods of `Device`.
macro_rules! operations {
    (
        $($(#[$doc:meta])* fn $f:ident($($arg:ident: $access:ident $ty:ty),*) = $Op:ident
            $(, in_place($($input:ident => $output:ident),*))?;)*
        trait $(#[$device:meta])*
        { $($method:tt)* }
    ) => {
        /// An operation with its operands; see `Device`.
        #[derive(Clone, Copy, Debug)]
        #[allow(clippy::large_enum_variant)] // An operation is copied once, to its function.
        pub enum Op<'a> {
            $($Op { $($arg: $ty),* },)*
        }

        impl Op<'_> {
            pub fn name(&self) -> &'static str {
                match self {
                    $(Op::$Op { .. } => stringify!($f),)*
                }
            }

            /// Calls `each` with each buffer of the operation, its access and its name.
            pub fn each_buffer(&self, each: &mut Each<'_>) {
                match *self {
                    $(Op::$Op { $($arg),* } => {
                        $($arg.note(Access::$access, stringify!($arg), each);)*
                    })*
                }
            }

            /// Permits outputs to be inputs where the table says so.
            fn in_place(&self, uses: &mut Uses<'_>) {
                match *self {
                    $($(Op::$Op { $($input, $output,)* .. } => {
                        $(uses.in_place($input.into(), $output.into(), stringify!($input));)*
                    })?)*
                    _ => {}
                }
            }
        }

        /// A device's function for each operation: of the device and the operands, in the table's order. All must be
        /// named to compile.
        #[derive(Debug)]
        pub struct Functions<D> {
            $(pub $f: for<'a> fn(&D, $($ty),*),)*
        }

        impl<D> Functions<D> {
            /// Calls the operation's function.
            pub fn run(&self, dev: &D, op: Op<'_>) {
                match op {
                    $(Op::$Op { $($arg),* } => (self.$f)(dev, $($arg),*),)*
                }
            }
        }

        $(#[$device])*
        pub trait Device: Backend {
            $($(#[$doc])*
            fn $f<'a>(&self, $($arg: $ty),*) {
                self.run(Op::$Op { $($arg),* });
            })*
            $($method)*
        }
    };
}

operations! {
    // The forward pass.

    /// out[m] = table row ids[m]. `ids`: [M] u32; `out`: [M, h] f32.
    fn embed(table: Read Matrix<'a>, ids: Read Buf<'a>, out: Write Buf<'a>) = Embed;
    /// x = by x. `x`: f32.
    fn scale(x: Write Buf<'a>, by: Read f32) = Scale;
    /// x = by x. `x`: f32; `by`: [1].
    fn scale_by(x: Write Buf<'a>, by: Read Buf<'a>) = ScaleBy;
    /// out = x / sqrt(mean(x^2) + eps) * w over each row. `x`: [M, h] f32; `w`: [h]; `out`: [M, h] e.
    fn rms_norm(x: Read Buf<'a>, norm: Read Norm<'a>, out: Write Buf<'a>) = RmsNorm;
    /// out = resid + `rms_norm` of x. `x`, `resid`, `out`: [M, h] f32; `out` may be `resid` itself.
    fn rms_norm_add(x: Read Buf<'a>, norm: Read Norm<'a>, resid: Read Buf<'a>, out: Write Buf<'a>) = RmsNormAdd,
        in_place(resid => out);
    /// out = x W^T + bias, or out += when `add` (f32 only). `x`: [M, K] e; `bias`: [N]; `out`: [M, N] e or f32.
    fn matmul(x: Read Buf<'a>, w: Read Matrix<'a>, bias: Read Option<Buf<'a>>, out: Write Buf<'a>, add: Read bool) = Matmul;
    /// out = resid + x W^T, in f32; `out` may be `resid` itself. `x`: [M, K] e; `resid`, `out`: [M, N] f32.
    fn matmul_add(x: Read Buf<'a>, w: Read Matrix<'a>, resid: Read Buf<'a>, out: Write Buf<'a>) = MatmulAdd,
        in_place(resid => out);
    /// x[m] += bias. `x`: [M, N] f32; `bias`: [N].
    fn add_bias(x: Write Buf<'a>, bias: Read Buf<'a>) = AddBias;
    /// A linear layer with adapters: u = scale x A^T, rounded, and out = x W^T + bias, or resid + x W^T, plus
    /// u_i B_i^T at the outputs of each block. `x`: [M, K] e; `u`: [M, S r] e; `out`: [M, N] e or f32; `resid`,
    /// for an f32 `out` without a bias, may be `out` itself.
    fn adapted(
        x: Read Buf<'a>, of: Read Adapted<'a>, resid: Read Option<Buf<'a>>, u: Write Buf<'a>, out: Write Buf<'a>
    ) = Adapted, in_place(resid => out);
    /// A linear layer as `adapted`, of which each row has the adapter of its slot, or none: then its u is not written.
    fn adapted_slots(
        x: Read Buf<'a>, of: Read Adapted<'a>, slots: Read AdapterSlots<'a>, resid: Read Option<Buf<'a>>,
        u: WriteAny Buf<'a>, out: Write Buf<'a>
    ) = AdaptedSlots, in_place(resid => out);
    /// Computes u of `adapted` alone.
    fn adapt_down(x: Read Buf<'a>, adapter: Read Adapter<'a>, u: Write Buf<'a>) = AdaptDown;
    /// out = w + scale B_i A_i in each block, w elsewhere: one f32 chain, rounded once. `w`, `out`: [N, K].
    fn merge(w: Read Matrix<'a>, adapter: Read Adapter<'a>, out: Write Matrix<'a>) = Merge;
    /// Splits qkv, normalises q and k (if `norms`), rotates them, writes q to `q_out` and k, v to the cache.
    ///
    /// `qkv`: [M, (a + 2k) d] e; `q_out`: [M, a d] e.
    fn rope(
        qkv: Read Buf<'a>, norms: Read Option<QkNorm<'a>>, rotation: Read Rotation<'a>, batch: Read Batch<'a>, kv: WriteAny Kv<'a>,
        q_out: Write Buf<'a>
    ) = Rope;
    /// Copies the first n slots of block src to block dst. `copies`: [C, 3] u32: src, dst, n.
    fn copy_kv(kv: WriteAny Kv<'a>, copies: Read Buf<'a>) = CopyKv;
    /// Causal attention with scale 1/sqrt(d) over the keys that `scores` allows. `q`, `out`: [M, a d] e; `lse`:
    /// [M, a] f32, log-sum-exp of the scores.
    fn attention(
        q: Read Buf<'a>, kv: Read Kv<'a>, batch: Read Batch<'a>, scores: Read Scores<'a>, out: Write Buf<'a>, lse: Write Option<Buf<'a>>
    ) = Attention;
    /// out = activation(gate) * up: SwiGLU or GeGLU. `gate_up`: [M, 2f] e, gate first; `out`: [M, f] e.
    fn glu(how: Read Gate, gate_up: Read Buf<'a>, f: Read usize, out: Write Buf<'a>) = Glu;
    /// out = `glu` of x W^T, as `matmul` and `glu` after it. `x`: [M, K] e; `w`: 2f outputs, gates first; `out`:
    /// [M, f] e; `gate_up`, [M, 2f] e, has the product in between, or anything.
    fn gated(x: Read Buf<'a>, w: Read Matrix<'a>, how: Read Gate, gate_up: WriteAny Buf<'a>, out: Write Buf<'a>) = Gated;
    /// out = f(x), element by element; `out` may be `x` itself. `x`, `out`: e.
    fn activate(how: Read Activation, x: Read Buf<'a>, out: Write Buf<'a>) = Activate, in_place(x => out);
    /// out[r] = x[rows[r]]. `x`: [M, h] f32; `rows`: [R] u32; `out`: [R, h] f32.
    fn gather_rows(x: Read Buf<'a>, rows: Read Buf<'a>, out: Write Buf<'a>) = GatherRows;
    /// Log-probability of `targets` ([R] u32), log-sum-exp and entropy through the head tile. `x`: [R, h] e;
    /// `tile`: sized by `Layouts::head_tile`.
    fn head(
        x: Read Buf<'a>, w: Read Matrix<'a>, targets: Read Buf<'a>, logits: Read Logits<'a>, tile: WriteAny Buf<'a>,
        out: Write HeadOut<'a>
    ) = Head;
    /// The K most likely tokens of each row, and what `head_listed` gives for them; of equal logits the lower ids,
    /// in that order.
    fn head_top(of: Read HeadSide<'a>, out: Write ListedTokens<'a>) = HeadTop;
    /// Log-probabilities of the tokens `ids` ([R, K] u32) of each row: [R, K] f32. `x`: [R, h] e; `lse`: [R] f32 of
    /// `head`.
    fn head_listed(
        x: Read Buf<'a>, w: Read Matrix<'a>, lse: Read Buf<'a>, logits: Read Logits<'a>, ids: Read Buf<'a>,
        logprobs: Write Buf<'a>
    ) = HeadListed;
    /// The divergence of each row's distribution from a teacher's, through the head tile: no buffer holds [R, V].
    fn head_divergence(args: Read HeadDivergence<'a>) = HeadDivergence;
    /// Draws a token for each row.
    fn sample(args: Read Sample<'a>) = Sample;
    /// Prepares the pass after `sample`, of one row per sequence: ids, positions, slots, segments and keys.
    ///
    /// Row i is segment i and head row i; `ids` and `tokens`: [M] u32, `keys`: [M, 3]. Tables must reach the new
    /// position. `window` is for layers with a cache of their own, which get their slots too.
    fn advance(
        batch: Write Batch<'a>, window: Write Option<Slots<'a>>, ids: Write Buf<'a>, tokens: Read Buf<'a>, keys: Write Buf<'a>
    ) = Advance;
    /// out = x W^T + bias, or resid + x W^T, as `matmul` and `matmul_add` after `dequantize`: `w` is then W, or
    /// has parts of it. `x`: [M, K] e; `bias`: [N]; `out`: [M, N] e or f32; `resid`, for an f32 `out` without a
    /// bias, may be `out` itself.
    fn matmul_codes(
        x: Read Buf<'a>, codes: Read Codes<'a>, w: WriteAny Matrix<'a>, bias: Read Option<Buf<'a>>,
        resid: Read Option<Buf<'a>>, out: Write Buf<'a>
    ) = MatmulCodes, in_place(resid => out);
    /// out = w, widened, then rounded to the dtype of `out`. `w`, `out`: [N, K].
    fn dequantize(w: Read Codes<'a>, out: Write Matrix<'a>) = Dequantize;
    /// to = w, rounded to numbers of eight bits. `w`: [N, K] e.
    fn round_fp8(w: Read Matrix<'a>, to: Write Fp8<'a>) = RoundFp8;
    /// out = Q(x) Q(W)^T + bias, or resid + Q(x) Q(W)^T. `x`: [M, K] e; `bias`: [N]; `out`: [M, N] e or f32; `resid`,
    /// for an f32 `out` without a bias, may be `out` itself.
    fn matmul_fp8(
        x: Read Buf<'a>, of: Read Rounded<'a>, bias: Read Option<Buf<'a>>, resid: Read Option<Buf<'a>>,
        out: Write Buf<'a>
    ) = MatmulFp8, in_place(resid => out);

    // Its gradients.

    /// dst = src in dst's dtype. `src`: f32.
    fn cast(src: Read Buf<'a>, dst: Write Buf<'a>) = Cast;
    /// The gradient of `adapted` by u: du_i = scale dy_i B_i of each block. `dy`: [M, N] e; `du`: [M, S r] e.
    fn adapt_backward_u(dy: Read Buf<'a>, adapter: Read Adapter<'a>, du: Write Buf<'a>) = AdaptBackwardU;
    /// The gradient of `adapted` by x: out = dy W + du A. `dy`: [M, N] e; `du`: [M, S r] e; `out`: [M, K] e or f32.
    fn adapted_dx(dy: Read Buf<'a>, of: Read Adapted<'a>, du: Read Buf<'a>, out: Write Buf<'a>) = AdaptedDx;
    /// The gradients of `adapted` by B and A: dy_i^T u_i of each block, and du^T x.
    fn adapt_backward_w(args: Read AdaptBackward<'a>) = AdaptBackwardW;
    /// out = dy W, or out += when `add`: one addition in f32, rounded once. `dy`: [M, N] e; `out`: [M, K] e or f32.
    fn matmul_dx(dy: Read Buf<'a>, w: Read Matrix<'a>, out: Write Buf<'a>, add: Read bool) = MatmulDx;
    /// out = Q(dy) Q(W). `dy`: [M, N] e; `out`: [M, K] e or f32.
    fn matmul_fp8_dx(dy: Read Buf<'a>, of: Read Rounded<'a>, out: Write Buf<'a>) = MatmulFp8Dx;
    /// grad = dy^T x, or grad += when `add`. `dy`: [M, N] e; `x`: [M, K] e; `grad`: f32, bf16; `pack`:
    /// `Layouts::pack`.
    fn matmul_dw(
        dy: Read Buf<'a>, x: Read Buf<'a>, grad: Write Matrix<'a>, add: Read bool, pack: WriteAny Buf<'a>
    ) = MatmulDw;
    /// grad[n] = sum over rows of dy, or grad[n] += when `add`. `dy`: [M, N] e; `grad`: [N].
    fn bias_backward(dy: Read Buf<'a>, grad: Write Buf<'a>, add: Read bool) = BiasBackward;
    /// The gradients of `rms_norm`. `x`: [M, h] f32; `w`: [h]; `dy`: [M, h] f32 or e.
    fn rms_norm_backward(
        x: Read Buf<'a>, norm: Read Norm<'a>, dy: Read Buf<'a>, to: Write NormGrads<'a>
    ) = RmsNormBackward;
    /// The gradient of attention.
    fn attention_backward(args: Read AttentionBackward<'a>) = AttentionBackward;
    /// The gradient of the sinks of attention.
    fn sink_backward(args: Read SinkBackward<'a>) = SinkBackward;
    /// The gradient through rotation and head norms.
    fn rope_backward(args: Read RopeBackward<'a>) = RopeBackward;
    /// The gradient of `glu`. `gate_up`: [M, 2f] e of the forward pass; `dout`: [M, f] e; `d_gate_up`: [M, 2f] e,
    /// written; it may be `gate_up`. `out`: [M, f] e, if given, gets the bits that `glu` gave; it may be `dout`.
    fn glu_backward(
        how: Read Gate, gate_up: Read Buf<'a>, f: Read usize, dout: Read Buf<'a>, d_gate_up: Write Buf<'a>, out: Write Option<Buf<'a>>
    ) = GluBackward, in_place(gate_up => d_gate_up, dout => out);
    /// dx = dy f'(x), where `y` = f(x) is the forward's output; `dx` may be `dy` itself. All e.
    fn activate_backward(
        how: Read Activation, y: Read Buf<'a>, dy: Read Buf<'a>, dx: Write Buf<'a>
    ) = ActivateBackward, in_place(dy => dx);
    /// dst[rows[r]] += src[r], r ascending. `src`: [R, h] f32; `dst`: [M, h] f32.
    fn scatter_add_rows(src: Read Buf<'a>, rows: Read Buf<'a>, dst: Write Buf<'a>) = ScatterAddRows;
    /// The gradient of the head.
    fn head_backward(args: Read HeadBackward<'a>) = HeadBackward;
    /// grad row t += (the sum of d[m] where ids[m] = t, m ascending): one addition to what is there, whatever the
    /// rows, as for any weight's gradient. `d`: [M, h] f32.
    fn embed_backward(d: Read Buf<'a>, ids: Read Buf<'a>, grad: Write Matrix<'a>) = EmbedBackward;

    // Sums of gradients, and changes of weights.

    /// dst = src, or dst += src when `add`: one addition in f32, rounded once to dst's dtype. f32 or bf16.
    fn accumulate(src: Read Buf<'a>, dst: WriteAny Buf<'a>, add: Read bool) = Accumulate;
    /// dst = sum of `parts` (one or more, of one dtype), or dst += each when `add`: in order, as by `accumulate`.
    fn fold(parts: Read &'a [Buf<'a>], dst: Write Buf<'a>, add: Read bool) = Fold;
    /// `embed_backward` of the elements that `shard` holds of a gradient [V, k]; `owned`: their places in it.
    fn embed_backward_part(
        d: Read Buf<'a>, ids: Read Buf<'a>, k: Read usize, layout: Read MatrixLayout, owned: Read &'a [OwnedRun],
        shard: WriteAny Buf<'a>
    ) = EmbedBackwardPart;
    /// w <- w (1 - lr decay) - lr m^ / (sqrt(v^) + eps), bias-corrected.
    fn adamw(how: Read AdamW, bufs: Write AdamWBufs<'a>) = AdamW;
    /// m = m + rest (grad scale - m), and grad becomes that momentum, or with `nesterov` m + rest (grad scale - m)
    /// of it. `m`: f32; `grad`: f32 or bf16.
    fn momentum(how: Read Momentum, grad: Write Buf<'a>, m: Write Buf<'a>) = Momentum;
    /// Copies elements of a matrix to places of another, in whatever order each has: see `Arrange`. `src`: f32 or
    /// bf16; `dst`: f32, its other elements stay.
    fn arrange(src: Read Matrix<'a>, dst: WriteAny Matrix<'a>, what: Read Arrange) = Arrange;
    /// w = w keep - rate direction. `direction`: f32; `weights`: f32, or bf16 with the f32 copy `master`.
    fn descend(
        how: Read Descent, direction: Read Buf<'a>, weights: Write Buf<'a>, master: Write Option<Buf<'a>>
    ) = Descend;
    /// dst = src, element by element: exact for what `read_codes` gave of the same blocks, else nearest. `src`: f32
    /// or bf16.
    fn write_codes(src: Read Buf<'a>, dst: Write Coded<'a>) = WriteCodes;
    /// Sets all bytes to zero.
    fn zero(dst: Write Buf<'a>) = Zero;

    // Gates of the heads of attention, and rows with gates taken apart.

    /// Takes q, k, v from `x` of `GateHeadsBackward`. `x`: [M, 2 (a + k) d] e; `out`: [M, (a + 2k) d] e.
    fn split_gates(x: Read Buf<'a>, heads: Read Heads, out: Write Buf<'a>) = SplitGates;
    /// out = attn * sigmoid(gate), element by element. `x`: [M, 2 (a + k) d] e; `attn`, `out`: [M, a d] e.
    fn gate_heads(x: Read Buf<'a>, heads: Read Heads, attn: Read Buf<'a>, out: Write Buf<'a>) = GateHeads;
    /// The gradient of `gate_heads`.
    fn gate_heads_backward(args: Read GateHeadsBackward<'a>) = GateHeadsBackward;
    /// The gradient of `split_gates`, into q, k, v of `dx`. `d_qkv`: [M, (a + 2k) d] e; `dx`: [M, 2 (a + k) d] e.
    fn join_gates(d_qkv: Read Buf<'a>, heads: Read Heads, dx: WriteAny Buf<'a>) = JoinGates;
    /// Copies blocks of columns of each head and row.
    fn move_columns(args: Read MoveColumns<'a>) = MoveColumns;
    /// Products of the columns of heads with their rows of a matrix.
    fn matmul_heads(args: Read HeadProducts<'a>) = MatmulHeads;

    // Linear attention, and its gradients.

    /// q, k, v, g and beta of linear attention.
    fn delta_inputs(args: Read DeltaInputs<'a>) = DeltaInputs;
    /// Linear attention by the gated delta rule.
    fn delta_rule(args: Read DeltaRule<'a>) = DeltaRule;
    /// The gated norm after `delta_rule`.
    fn norm_gated(args: Read NormGated<'a>) = NormGated;
    /// The gradient of `norm_gated`.
    fn norm_gated_backward(args: Read NormGatedBackward<'a>) = NormGatedBackward;
    /// The gradient of `delta_rule`.
    fn delta_rule_backward(args: Read DeltaRuleBackward<'a>) = DeltaRuleBackward;
    /// The gradient of `delta_inputs`.
    fn delta_inputs_backward(args: Read DeltaInputsBackward<'a>) = DeltaInputsBackward;

    // Layers made of experts, and their gradients.

    /// Chooses the experts of each row and orders their pairs. `logits`: [M, E] f32, finite or not: a row of NaN
    /// goes to the first experts, with weights of NaN.
    fn route(logits: Read Buf<'a>, how: Read Routing<'a>, to: Write Routes<'a>) = Route;
    /// out[p] = x W^T by the pair's expert. `x`: [M, K] or [P, K] e (`x_has`); `out`: [P, N] e or f32.
    fn matmul_experts(
        x: Read Buf<'a>, x_has: Read RowsOf, w: Read Experts<'a>, routes: Read Routes<'a>, out: Write Buf<'a>
    ) = MatmulExperts;
    /// out[p] = x W^T, as `matmul_experts` after `dequantize` of the matrices of all experts, one after the other: `w`
    /// is then W, or has parts of it.
    fn matmul_experts_codes(
        x: Read Buf<'a>, x_has: Read RowsOf, codes: Read Codes<'a>, w: WriteAny Matrix<'a>, routes: Read Routes<'a>,
        out: Write Buf<'a>
    ) = MatmulExpertsCodes;
    /// u[p] = scale x A^T with the A of the pair's expert, rounded; `out`, if given, += u_i B_i^T in each block, in
    /// f32, rounded once. `x`: [M, K] or [P, K] e; `u`: [P, S r] e; `out`: [P, N] e or f32, from `matmul_experts`.
    fn adapt_experts(
        x: Read Buf<'a>, x_has: Read RowsOf, adapter: Read ExpertsAdapter<'a>, routes: Read Routes<'a>, u: Write Buf<'a>,
        out: Write Option<Buf<'a>>
    ) = AdaptExperts;
    /// out[p] += bias of the pair's expert, times the pair's weight if `weighs`. `bias`: [E, N]; `out`: [P, N], e or
    /// f32.
    fn add_expert_bias(
        out: Write Buf<'a>, bias: Read Buf<'a>, routes: Read Routes<'a>, weighs: Read bool
    ) = AddExpertBias;
    /// out[p] = weight * activation(gate) * up, rounded once. `gate_up`: [P, 2f] e, gate first, or alternating where
    /// the activation says so; `out`: [P, f] e.
    fn glu_experts(
        how: Read Gate, gate_up: Read Buf<'a>, f: Read usize, routes: Read Routes<'a>, out: Write Buf<'a>
    ) = GluExperts;
    /// out[m] = sigmoid(logit) * activation(gate) * up, rounded once. `gate_up`: [M, 2f] e, gate first;
    /// `logits`: [M] f32; `out`: [M, f] e.
    fn glu_shared(
        how: Read Gate, gate_up: Read Buf<'a>, f: Read usize, logits: Read Buf<'a>, out: Write Buf<'a>
    ) = GluShared;
    /// out[m] = resid[m] + the sum of y over the row's pairs, in the order of their experts: in f32, rounded once.
    /// `y`: [P, h] f32; `resid`: [M, h] f32, zero if none; `out`: [M, h] f32 or e.
    fn combine(y: Read Buf<'a>, routes: Read Routes<'a>, resid: Read Option<Buf<'a>>, out: Write Buf<'a>) = Combine,
        in_place(resid => out);
    /// The gradient of `matmul_experts` by x: out[p] = dy W. `dy`: [M, N] or [P, N] e; `out`: [P, K] e or f32.
    fn matmul_experts_dx(
        dy: Read Buf<'a>, dy_has: Read RowsOf, w: Read Experts<'a>, routes: Read Routes<'a>, out: Write Buf<'a>
    ) = MatmulExpertsDx;
    /// The gradient of `matmul_experts` by the weights.
    fn matmul_experts_dw(args: Read ExpertsBackward<'a>) = MatmulExpertsDw;
    /// The gradients of `adapt_experts`: du_i = scale dy_i B_i per block, rounded; `out` (if given) += du A in f32,
    /// rounded once. `dy`: [M, N] or [P, N] e; `du`: [P, S r] e; `out`: [P, K] e or f32, from `matmul_experts_dx`.
    fn adapt_experts_dx(
        dy: Read Buf<'a>, dy_has: Read RowsOf, adapter: Read ExpertsAdapter<'a>, routes: Read Routes<'a>, du: Write Buf<'a>,
        out: Write Option<Buf<'a>>
    ) = AdaptExpertsDx;
    /// The gradients of `adapt_experts` by A and B.
    fn adapt_experts_dw(args: Read AdaptExpertsBackward<'a>) = AdaptExpertsDw;
    /// The gradient of `add_expert_bias` by the biases.
    fn expert_bias_backward(args: Read ExpertBiasBackward<'a>) = ExpertBiasBackward;
    /// The gradient of `add_expert_bias` by the weights of pairs: d_weights[p] += dy of the pair's row times the bias.
    /// `dy`: [M, N] e; `bias`: [E, N]; `d_weights`: [P] f32.
    fn bias_weights_backward(
        dy: Read Buf<'a>, bias: Read Buf<'a>, routes: Read Routes<'a>, d_weights: Write Buf<'a>
    ) = BiasWeightsBackward;
    /// The gradient of `glu_experts`.
    fn glu_experts_backward(args: Read GluExpertsBackward<'a>) = GluExpertsBackward;
    /// The gradient of `glu_shared`.
    fn glu_shared_backward(args: Read GluSharedBackward<'a>) = GluSharedBackward;
    /// The gradient of `route`.
    fn route_backward(args: Read RouteBackward<'a>) = RouteBackward;

    // Rows of images.

    /// out = (x - mean) / sqrt(variance + eps) * w + b over each row. `x`: [M, h] f32; `out`: [M, h] e.
    fn layer_norm(x: Read Buf<'a>, norm: Read LayerNorm<'a>, out: Write Buf<'a>) = LayerNorm;
    /// The gradients of `layer_norm`. `x`: [M, h] f32; `dy`: [M, h] f32 or e.
    fn layer_norm_backward(
        x: Read Buf<'a>, norm: Read LayerNorm<'a>, dy: Read Buf<'a>, to: Write LayerNormGrads<'a>
    ) = LayerNormBackward;
    /// out = gelu(x), element by element; `out` may be `x` itself. `x`, `out`: e.
    fn gelu(how: Read Gelu, x: Read Buf<'a>, out: Write Buf<'a>) = Gelu, in_place(x => out);
    /// dx = dy gelu'(x), where `x` is the forward's input; `dx` may be `dy` itself. All e.
    fn gelu_backward(how: Read Gelu, x: Read Buf<'a>, dy: Read Buf<'a>, dx: Write Buf<'a>) = GeluBackward,
        in_place(dy => dx);
    /// out[m] = by[m] x[m], or out += when `add`. `x`, `out`: [M, h] f32; `by`: [M] f32.
    fn weigh_rows(x: Read Buf<'a>, by: Read Buf<'a>, out: Write Buf<'a>, add: Read bool) = WeighRows;
    /// dst[rows[r]] = src[r], no two of `rows` alike. `src`: [R, h] f32; `rows`: [R] u32; `dst`: [M, h] f32.
    fn replace_rows(src: Read Buf<'a>, rows: Read Buf<'a>, dst: Write Buf<'a>) = ReplaceRows;
    /// Adds 1 to each number of `places`, u32: rows of text come to their next places.
    fn next_places(places: Write Buf<'a>) = NextPlaces;

    trait
    /// The operations of the decoder family.
    ///
    /// Sizes are taken from the buffers: `x` of `[M, K]` with `K` known gives M. Buffers must have exactly the
    /// stated lengths. An output may not overlap another operand unless the operation says so: every call asserts it
    /// (`Claims`).
    ///
    /// Any thread may call. What one thread's call writes may not overlap what a call under way on another uses, and a
    /// device with one scratch for all threads (a GPU) runs one operation at a time, but copies from and to the host
    /// meanwhile. That is asserted too.
    ///
    /// Host numbers enter only through `write_f32` and its kin: a slice of host memory is not a buffer.
    ///
    /// ```
    /// # use plimsoll_memory::Buf;
    /// # fn norm(dev: &dyn plimsoll_device::Device, x: Buf<'_>, w: plimsoll_device::Norm<'_>, out: Buf<'_>) {
    /// dev.rms_norm(x, w, out);
    /// # }
    /// ```
    ///
    /// ```compile_fail,E0308
    /// # use plimsoll_memory::Buf;
    /// # fn norm(dev: &dyn plimsoll_device::Device, w: plimsoll_device::Norm<'_>, out: Buf<'_>) {
    /// let x: &[f32] = &[1.0; 64];
    /// dev.rms_norm(x, w, out); // error: expected `Buf<'_>`, found `&[f32]`
    /// # }
    /// ```
    {
        /// Claims what the operation uses and runs it.
        fn run(&self, op: Op<'_>) {
            let claim = self.claims().claim(op.name(), true, |uses| {
                op.each_buffer(&mut |buf, access, name| uses.note(buf, access, name));
                op.in_place(uses);
            });
            self.launch(Checked::new(op, claim));
        }

        /// Brings at once all these buffers that are on ranks of other hosts; else operations bring theirs when they
        /// run.
        fn prefetch<'a>(&self, bufs: &mut dyn Iterator<Item = Buf<'a>>) {
            self.claims().prefetch(bufs);
        }

        /// Copies buffers of other ranks here. `given`: what each other rank, by its number, copies of this one, in the
        /// order of its call. All ranks make this call, even to copy nothing.
        fn exchange<'a>(&self, taken: &[(Buf<'a>, Buf<'a>)], given: &[(usize, Buf<'a>)]) {
            let trade = self.trade();
            let is_traded = |rank: usize| trade.is_some_and(|trade| trade.is_with(rank));
            let of = |(from, _): &(Buf<'a>, Buf<'a>)| is_traded(from.rank().expect("another rank's"));
            let near: Vec<_> = taken.iter().copied().filter(|copy| !of(copy)).collect();
            for portion in portions(&near, |(from, _)| from.bytes()) {
                self.prefetch(&mut portion.iter().map(|(from, _)| *from));
                portion.iter().for_each(|(from, to)| self.accumulate(*from, *to, false));
            }
            let Some(trade) = trade else { return };
            let taken: Vec<_> = taken.iter().copied().filter(of).collect();
            let given: Vec<_> = given.iter().copied().filter(|(rank, _)| is_traded(*rank)).collect();
            let claim = self.claims().claim("exchange", true, |uses| {
                taken.iter().for_each(|(_, to)| uses.note(*to, Access::Write, "what is taken"));
                given.iter().for_each(|(_, buf)| uses.note(*buf, Access::Read, "what is given"));
            });
            trade.trade(&claim, &taken, &given);
        }

        /// Copies token ids, positions or tables into a u32 buffer of at least that length, from element `start`.
        fn write_u32(&self, dst: Buf<'_>, start: usize, src: &[u32]) {
            let dst = dst.slice(start, src.len());
            self.put_u32(&transfer(self, "write_u32", &dst, Access::Write), dst, src);
        }
        /// Copies out of a u32 buffer, from element `start`.
        fn read_u32(&self, src: Buf<'_>, start: usize, dst: &mut [u32]) {
            let src = src.slice(start, dst.len());
            self.get_u32(&transfer(self, "read_u32", &src, Access::Read), src, dst);
        }
        /// Copies elements of a buffer of f32, bf16 or u32 as they are stored, little-endian, from element `start`.
        fn write_bytes(&self, dst: Buf<'_>, start: usize, src: &[u8]) {
            let size = dst.dtype().bytes() as usize;
            assert!(src.len().is_multiple_of(size), "{} bytes are no elements of {size}", src.len());
            let dst = dst.slice(start, src.len() / size);
            self.put_bytes(&transfer(self, "write_bytes", &dst, Access::Write), dst, src);
        }
        /// Converts f32 into the buffer's dtype (round to nearest even), from element `start`.
        fn write_f32(&self, dst: Buf<'_>, start: usize, src: &[f32]) {
            let dst = dst.slice(start, src.len());
            self.put_f32(&transfer(self, "write_f32", &dst, Access::Write), dst, src);
        }
        /// Widens elements to f32, from element `start`.
        fn read_f32(&self, src: Buf<'_>, start: usize, dst: &mut [f32]) {
            let src = src.slice(start, dst.len());
            self.get_f32(&transfer(self, "read_f32", &src, Access::Read), src, dst);
        }
        /// Writes whole rows (`[rows, K]` row-major) of a matrix from row `first_row`.
        fn write_rows(&self, dst: Matrix<'_>, first_row: usize, src: &[f32]) {
            self.put_rows(&transfer(self, "write_rows", &dst, Access::Write), dst, first_row, src);
        }
        /// Reads whole rows of a matrix into row-major f32.
        fn read_rows(&self, src: Matrix<'_>, first_row: usize, dst: &mut [f32]) {
            self.get_rows(&transfer(self, "read_rows", &src, Access::Read), src, first_row, dst);
        }
        /// Reads whole rows of a matrix, row-major, as their elements are stored, little-endian.
        fn read_stored(&self, src: Matrix<'_>, first_row: usize, dst: &mut [u8]) {
            let row = src.k * src.buf.dtype().bytes() as usize;
            assert!(dst.len().is_multiple_of(row), "whole rows of {row} bytes");
            self.get_stored(&transfer(self, "read_stored", &src, Access::Read), src, first_row, dst);
        }
        /// Rounds whole rows (`[rows, K]` row-major) to the nearest codes, from row `first_row`.
        fn write_rounded(&self, dst: Blocks<'_>, first_row: usize, src: &[f32]) {
            assert!(src.len().is_multiple_of(dst.k), "whole rows of {}", dst.k);
            assert_eq!(dst.encoding, Encoding::Nf4, "weights are rounded to no other codes");
            let all_scales = dst.scales.expect("NF4 has scales");
            nf4::encode_rows(src, dst.k, |first, words, scales| {
                let first = first_row * dst.k + first;
                self.write_u32(dst.words, first / nf4::CODES_OF_WORD, words);
                self.write_f32(all_scales, first / nf4::NF4_BLOCK, scales);
            });
        }
        /// Writes whole rows as they are stored, from row `first_row`, which begins a word.
        fn write_blocks(&self, dst: Blocks<'_>, first_row: usize, src: &[u8]) {
            let first = first_row * dst.row_bytes();
            assert!(src.len().is_multiple_of(dst.row_bytes()) && first.is_multiple_of(4), "whole rows and words");
            let (words, rest) = src.split_at(src.len() / 4 * 4);
            self.write_bytes(dst.words, first / 4, words);
            if !rest.is_empty() {
                let mut word = [0; 4];
                word[..rest.len()].copy_from_slice(rest);
                self.write_bytes(dst.words, (first + words.len()) / 4, &word);
            }
        }
        /// Widens whole rows (`[rows, k]`) of codes from row `first_row`; a vector has `MatrixLayout::Rows`, k = 1.
        fn read_codes(&self, src: Coded<'_>, k: usize, layout: MatrixLayout, first_row: usize, dst: &mut [f32]) {
            self.get_codes(&transfer(self, "read_codes", &src, Access::Read), src, (k, layout), first_row, dst);
        }
        /// Returns the sum of squares of all elements, in fixed blocks, f64 between blocks; NaN if any element is.
        fn sum_squares(&self, x: Buf<'_>) -> f64 {
            let note = |uses: &mut Uses<'_>| uses.note(x, Access::Read, "x");
            self.get_sum_squares(&self.claims().claim("sum_squares", true, note), x)
        }

        /// Gives the sum of squares of each run of elements of `x`, f64, in order; NaN if any element is. A run's order
        /// of summation depends on its length alone.
        fn squares_of(&self, x: Buf<'_>, runs: &mut dyn Iterator<Item = Run>, each: &mut dyn FnMut(f64)) {
            let note = |uses: &mut Uses<'_>| uses.note(x, Access::Read, "x");
            let runs = &mut runs.inspect(|run| assert!(run.end() <= x.len() as u64, "{run:?} of {}", x.len()));
            self.get_squares_of(&self.claims().claim("squares_of", true, note), x, runs, each);
        }

        /// Starts copying each buffer, offloaded or in a rank's arena, into an arena buffer of `slot` once it is free.
        fn offload_in<'a>(&self, slot: usize, copies: &mut dyn Iterator<Item = (Buf<'a>, Buf<'a>)>) {
            self.bring(slot, &mut copies.map(|(src, dst)| offload(self, src, dst)));
        }
        /// Starts copying buffers of the slot into offloaded ones after the operations so far; then the slot is free.
        /// `sync` waits for them.
        fn offload_out<'a>(&self, slot: usize, copies: &mut dyn Iterator<Item = (Buf<'a>, Buf<'a>)>) {
            self.send_back(slot, &mut copies.map(|(src, dst)| offload(self, src, dst)));
        }
    }
}

impl<T: Backend> Device for T {}

/// Claims an operand of a copy from or to the host.
fn transfer<'c, B: Backend + ?Sized>(
    dev: &'c B,
    name: &'static str,
    with: &dyn Operand,
    access: Access,
) -> Claim<'c> {
    dev.claims().claim(name, false, |uses| {
        with.note(access, "the buffer", &mut |buf, access, name| uses.note(buf, access, name));
    })
}

/// Claims both ends of a copy between the arena and offloaded memory, or inside arenas.
fn offload<'a, 'c, B: Backend + ?Sized>(dev: &'c B, src: Buf<'a>, dst: Buf<'a>) -> Transfer<'a, 'c> {
    assert_eq!((src.len(), src.dtype()), (dst.len(), dst.dtype()), "a copy keeps length and dtype");
    assert!(!(src.is_offloaded() && dst.is_offloaded()), "one end of a copy is in the arena");
    let _claim = dev.claims().claim("offload", false, |uses| {
        uses.note(src, Access::Read, "src");
        uses.note(dst, Access::Write, "dst");
    });
    Transfer { src, dst, _claim }
}
