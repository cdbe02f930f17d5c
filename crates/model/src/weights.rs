//! Handles of one role's parameters (or gradients), resolved once at start.

use crate::params::{Param, ParamKind, ParamTable};
use plimsoll_base::{DType, ModelSpec};
use plimsoll_device::{Matrix, MatrixLayout};
use plimsoll_memory::Buf;

/// Parameters of one layer; also the shape of its gradients.
#[derive(Clone, Copy, Debug)]
pub struct LayerParams<'a> {
    /// [h]
    pub attn_norm: Buf<'a>,
    /// [(a + 2k) d, h]
    pub qkv: Matrix<'a>,
    /// [(a + 2k) d]
    pub qkv_bias: Option<Buf<'a>>,
    /// [d], [d]
    pub qk_norm: Option<(Buf<'a>, Buf<'a>)>,
    /// [h, a d]
    pub output: Matrix<'a>,
    /// [h]
    pub ffn_norm: Buf<'a>,
    /// [2f, h]
    pub gate_up: Matrix<'a>,
    /// [h, f]
    pub down: Matrix<'a>,
}

/// All parameters of a decoder over one flat buffer; also the shape of its gradients.
#[derive(Clone, Debug)]
pub struct Params<'a> {
    /// The flat buffer.
    pub all: Buf<'a>,
    /// [V, h]
    pub embed: Matrix<'a>,
    /// Each layer's.
    pub layers: Vec<LayerParams<'a>>,
    /// [h]
    pub final_norm: Buf<'a>,
    /// [V, h]; the embedding itself in a tied model.
    pub head: Matrix<'a>,
}

impl<'a> Params<'a> {
    /// Resolves the handles. `all` holds `table.elements` elements; `weights` is the dtype of the weights, which
    /// decides the element order of gradients too.
    pub fn bind(spec: &ModelSpec, table: &ParamTable, weights: DType, all: Buf<'a>) -> Params<'a> {
        assert_eq!(all.len() as u64, table.elements, "the flat parameter buffer");
        let layout = MatrixLayout::of_weights(table.device, weights);
        let slice = |p: &Param| all.slice(p.offset as usize, p.elements as usize);
        let find = |kind, layer| table.find(kind, layer).expect("the table has every parameter of its spec");
        let vector = |kind, layer| slice(find(kind, layer));
        let matrix = |kind, layer| {
            let p = find(kind, layer);
            Matrix::new(slice(p), p.n as usize, p.k as usize, layout)
        };
        let layer = |l| LayerParams {
            attn_norm: vector(ParamKind::AttnNorm, l),
            qkv: matrix(ParamKind::Qkv, l),
            qkv_bias: spec.qkv_bias.then(|| vector(ParamKind::QkvBias, l)),
            qk_norm: spec.qk_norm.then(|| (vector(ParamKind::QNorm, l), vector(ParamKind::KNorm, l))),
            output: matrix(ParamKind::Output, l),
            ffn_norm: vector(ParamKind::FfnNorm, l),
            gate_up: matrix(ParamKind::GateUp, l),
            down: matrix(ParamKind::Down, l),
        };
        let embed = matrix(ParamKind::Embed, 0);
        Params {
            all,
            embed,
            layers: (0..spec.layers).map(layer).collect(),
            final_norm: vector(ParamKind::FinalNorm, 0),
            head: if spec.tied { embed } else { matrix(ParamKind::Head, 0) },
        }
    }
}
