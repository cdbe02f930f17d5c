//! The buffers of operations' arguments, and how each is used.

use crate::claims::{Access, Each, Operand};
use crate::{
    Activation, AdamW, AdamWBufs, AdaptBackward, AdaptExpertsBackward, Adapted, Adapter, AdapterBlock,
    AdapterSlots, Arrange, AttentionBackward, Axes, Balance, Batch, Blocks, Coded, Codes, ColumnOrder,
    Columns, DeltaHeads, DeltaInputs, DeltaInputsBackward, DeltaRule, DeltaRuleBackward, DeltaWeights,
    Descent, DivergenceBackward, ExpertBiasBackward, Experts, ExpertsAdapter, ExpertsBackward, Fp8, Fp8Room,
    GateHeadsBackward, GluExpertsBackward, GluSharedBackward, HeadBackward, HeadDivergence, HeadOut,
    HeadPart, HeadProducts, HeadSide, Heads, Kv, LayerNorm, LayerNormGrads, ListedBackward, ListedTokens,
    Logits, Matrix, MatrixLayout, Measure, Momentum, MoveColumns, Norm, NormGated, NormGatedBackward,
    NormGrads, OwnedRun, Places, QkNorm, QkNormBackward, RopeBackward, Rotation, Rounded, RouteBackward,
    Routes, Routing, RowBiases, RowMasks, RowsOf, Sample, Sampling, Scores, Sigmoid, SinkBackward, Slots,
};
use plimsoll_arch::{Gate, Gelu, QkNorms, RopeAxes, TokenRun};
use plimsoll_base::Encoding;

/// Notes all fields of arguments, with the whole operand's access (`whole`) or their own; all must be named to compile.
macro_rules! operands {
    (@access $whole:ident whole) => { $whole };
    (@access $whole:ident $own:ident) => { Access::$own };
    ($($Ty:ident { $($field:ident: $access:ident),* })*) => {
        $(impl Operand for $Ty<'_> {
            fn note(&self, _access: Access, _: &'static str, each: &mut Each<'_>) {
                let $Ty { $($field),* } = self;
                $($field.note(operands!(@access _access $access), stringify!($field), each);)*
            }
        })*
    };
}

operands! {
    Batch { positions: whole, slots: whole, segments: whole, tables: Read, keys_max: Read }
    Slots { slots: whole, tables: Read }
    Kv { keys: whole, values: whole, kv_heads: Read, head_dim: Read }
    Coded { codes: whole, scales: whole }
    Blocks { encoding: Read, words: whole, scales: whole, n: Read, k: Read }
    Codes { parts: whole }
    Fp8 { codes: whole, scales: whole, n: Read, k: Read }
    Fp8Room { rows: whole, scales: whole, turned: whole }
    Rounded { w: Read, room: WriteAny }
    HeadOut { logprobs: whole, lse: whole, entropy: whole }
    ListedTokens { ids: whole, logprobs: whole }
    ListedBackward { listed: Read, slopes: Read, rest: Read, d: Read }
    Logits { factor: Read, cap: Read, suppressed: Read, biases: Read, masks: Read }
    RowBiases { ids: Read, values: Read }
    RowMasks { words: Read, rows: Read }
    HeadSide { x: Read, w: Read, lse: Read, logits: Read, tile: WriteAny }
    HeadDivergence { student: Read, teacher: Read, how: Read, values: Write, means: Write }
    DivergenceBackward { teacher: Read, how: Read, means: Read, d: Read }
    Norm { w: whole, eps: Read, offset: Read }
    QkNorm { q: Read, k: Read, eps: Read, offset: Read, of: Read }
    Rotation { angles: Read, width: Read, q_scale: Read, q_factors: Read, axes: Read }
    Axes { places: Read, of: Read }
    LayerNorm { w: Read, b: Read, eps: Read }
    LayerNormGrads { dx: Write, rounded: Write, dw_db: Write, add: Read, stats: WriteAny }
    NormGrads { dx: Write, rounded: Write, dw: Write, add: Read, rstd: WriteAny }
    QkNormBackward { norm: Read, qkv: Read, dq_weight: Write, dk_weight: Write }
    AdamWBufs { weights: Write, grad: Read, m: Write, v: Write, scales: Write, master: Write }
    Sample { x: Read, w: Read, keys: Read, how: Read, logits: Read, tile: WriteAny, tokens: Write, out: WriteAny }
    AttentionBackward {
        q: Read, kv: Read, batch: Read, scores: Read, out: Read, lse: Read, dout: Read, dq: Write, dkv: Write
    }
    Scores { window: Read, cap: Read, sinks: Read, latent: Read, is_whole: Read }
    SinkBackward { sinks: Read, out: Read, lse: Read, dout: Read, grad: Write, add: Read }
    ExpertBiasBackward { dy: Read, dy_has: Read, routes: Read, weighs: Read, grad: Write, add: Read }
    RopeBackward { dq: Read, dkv: Read, rotation: Read, positions: Read, heads: Read, norms: Read, dqkv: Write }
    HeadBackward {
        x: Read, w: Read, targets: Read, logits: Read, head_out: Read, dlogprobs: Read, dentropy: Read,
        listed: Read, whole: Read, tile: WriteAny, dtile: WriteAny, pack: WriteAny, dx: Write, grad: Write, add: Read
    }
    AdapterBlock { b: whole, first: Read }
    Adapter { a: whole, blocks: whole, scale: Read }
    AdapterSlots { all: Read, stride: Read, of_row: Read, scales: Read, most: Read }
    AdaptBackward { x: Read, u: Read, dy: Read, du: Read, pack: WriteAny, grads: Write, add: Read }
    ExpertsAdapter { a: whole, blocks: whole, n: Read, scale: Read }
    AdaptExpertsBackward {
        x: Read, x_has: Read, u: Read, dy: Read, dy_has: Read, du: Read, routes: Read, grads: Write, add: Read, pack: WriteAny
    }
    Routes { experts: whole, weights: whole, pairs: whole, places: whole, starts: whole }
    Experts { buf: whole, count: Read, n: Read, k: Read, layout: Read }
    Routing { experts: Read, chosen: Read, normalizes: Read, sigmoid: whole }
    Sigmoid { correction: whole, groups: Read, groups_chosen: Read, factor: Read }
    Balance { segments: Read, factor: Read, rows: Write }
    RouteBackward { logits: Read, how: Read, routes: Read, d_weights: Read, balance: Write, d_logits: Write }
    GluExpertsBackward { how: Read, gate_up: Write, f: Read, routes: Read, dout: Write, d_weights: Write }
    GluSharedBackward { how: Read, gate_up: Write, f: Read, logits: Read, dout: Write, d_logits: Write }
    ExpertsBackward {
        dy: Read, dy_has: Read, x: Read, x_has: Read, routes: Read, grad: Write, add: Read, pack: WriteAny
    }
    GateHeadsBackward { heads: Read, x: Read, attn: Read, d: Write, dx: WriteAny, out: Write }
    Columns { buf: whole, first: Read, row: Read, head: Read }
    MoveColumns { from: Read, to: WriteAny, rows: Read, heads: Read, columns: Read, order: Read, add: Read }
    HeadProducts {
        x: Read, w: Read, part: Read, y: WriteAny, rows: Read, heads: Read, is_turned: Read, x_room: WriteAny,
        y_room: WriteAny
    }
    Places { places: whole, segments: whole, has_parents: Read }
    DeltaWeights { conv: whole, decay: whole, bias: whole }
    DeltaInputs { heads: Read, x: Read, weights: Read, places: Read, tails: WriteAny, qkv: Write, gates: Write }
    DeltaRule { heads: Read, qkv: Read, gates: Read, places: Read, states: WriteAny, out: Write, rest: Write }
    NormGated { heads: Read, o: Read, x: Read, w: Read, eps: Read, y: Write }
    NormGatedBackward {
        heads: Read, o: Read, x: Read, w: Read, eps: Read, d: Write, dx: WriteAny, dw: Write, add: Read
    }
    DeltaRuleBackward {
        heads: Read, qkv: Read, gates: Read, places: Read, states: Read, rest: Read, dout: Read, d_rest: WriteAny,
        d_states: WriteAny, d_qkv: Write, d_gates: Write
    }
    DeltaInputsBackward {
        heads: Read, x: Read, weights: Read, segments: Read, d_qkv: Write, d_gates: Read, dx: WriteAny, grads: Write, add: Read
    }
}

impl Operand for Adapted<'_> {
    fn note(&self, access: Access, _: &'static str, each: &mut Each<'_>) {
        let Adapted { w, codes, fp8, bias, adapter } = self;
        match fp8 {
            Some(rounded) => rounded.note(access, "fp8", each),
            None => w.note(if codes.is_some() { Access::WriteAny } else { access }, "w", each),
        }
        codes.note(access, "codes", each);
        bias.note(access, "bias", each);
        adapter.note(access, "adapter", each);
    }
}

impl Operand for Matrix<'_> {
    fn note(&self, access: Access, name: &'static str, each: &mut Each<'_>) {
        let Matrix { buf, n: _, k: _, layout: _ } = self;
        each(*buf, access, name);
    }
}

macro_rules! operands_without_buffers {
    ($($ty:ty),*) => {
        $(impl Operand for $ty {
            fn note(&self, _: Access, _: &'static str, _: &mut Each<'_>) {}
        })*
    };
}

operands_without_buffers!(
    f32,
    bool,
    usize,
    TokenRun,
    Measure,
    Activation,
    Gate,
    Gelu,
    RopeAxes,
    AdamW,
    Arrange,
    Momentum,
    Descent,
    MatrixLayout,
    &[OwnedRun],
    RowsOf,
    Heads,
    HeadPart,
    DeltaHeads,
    ColumnOrder,
    Sampling,
    QkNorms,
    Encoding
);
