//! A tower's parameters: the table of the flat buffer, handles to it, and loading.

use crate::load::load_flat;
use crate::params::{ParamTable, Part};
use plimsoll_arch::{ParamKind, TowerParam, TowerSpec, tower_tensors};
use plimsoll_base::{Bytes, DType, Result};
use plimsoll_device::{Adapted, Adapter, Device, LayerNorm, Layouts, Matrix, MatrixLayout, Norm};
use plimsoll_files::OpenModel;
use plimsoll_memory::Buf;

/// Returns the table of a tower's parameters on a kind of device.
pub fn tower_table(spec: &TowerSpec, kind: &'static Layouts, weights: DType) -> ParamTable {
    let mut table = ParamTable::empty(kind);
    for tensors in tower_tensors(spec).chunk_by(|a, b| (a.param, a.index) == (b.param, b.index)) {
        let (param, index, k) = (tensors[0].param, tensors[0].index, tensors[0].cols);
        let parts = tensors.iter().map(|tensor| Part {
            shape: tensor.shape.clone(),
            ..Part::new(tensor.name.clone(), tensor.rows, k)
        });
        table.add_parts(kind, weights, ParamKind::Tower(param), index, k, parts.collect());
    }
    table
}

/// Fills the flat buffer of a tower's weights from the model's files.
///
/// Errors: those of reading; `model-weight-not-finite` names the tensor.
pub fn load_tower(
    dev: &dyn Device,
    model: &OpenModel,
    table: &ParamTable,
    params: &TowerParams<'_>,
    seed: u64,
    staging: Bytes,
) -> Result<()> {
    load_flat(dev, model, table, (params.all, params.patch.layout), seed, staging)
}

/// A product with a bias, y = x W^T + b, and with adapters, if it has some.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linear<'a> {
    pub(super) w: Matrix<'a>,
    pub(super) b: Buf<'a>,
    pub(super) adapter: Option<Adapter<'a>>,
}

impl<'a> Linear<'a> {
    /// Returns its weights with its adapters, and a bias or none.
    pub(super) fn adapted(&self, bias: Option<Buf<'a>>) -> Option<Adapted<'a>> {
        self.adapter.map(|adapter| Adapted { w: self.w, codes: None, fp8: None, bias, adapter })
    }
}

/// Weight of a norm, and its bias if it takes the mean away.
#[derive(Clone, Copy, Debug)]
pub(super) struct NormParams<'a> {
    pub(super) w: Buf<'a>,
    pub(super) b: Option<Buf<'a>>,
}

impl<'a> NormParams<'a> {
    /// Computes the norm of rows; x: [M, h] f32, out: [M, h] e.
    pub(super) fn forward(&self, dev: &dyn Device, eps: f32, x: Buf<'_>, out: Buf<'_>) {
        match self.b {
            Some(b) => dev.layer_norm(x, LayerNorm { w: self.w, b, eps }, out),
            None => dev.rms_norm(x, Norm::new(self.w, eps), out),
        }
    }
}

/// Parameters of a layer; also the shape of its gradients.
#[derive(Clone, Copy, Debug)]
pub(super) struct TowerLayer<'a> {
    pub(super) attn_norm: NormParams<'a>,
    pub(super) qkv: Linear<'a>,
    pub(super) output: Linear<'a>,
    pub(super) ffn_norm: NormParams<'a>,
    pub(super) up: Linear<'a>,
    pub(super) down: Linear<'a>,
}

/// Parameters of a merger.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merger<'a> {
    pub(super) norm: NormParams<'a>,
    pub(super) up: Linear<'a>,
    pub(super) down: Linear<'a>,
}

/// All parameters of a tower over one flat buffer; also the shape of its gradients.
#[derive(Clone, Debug)]
pub struct TowerParams<'a> {
    pub all: Buf<'a>,
    pub(super) patch: Matrix<'a>,
    pub(super) patch_bias: Option<Buf<'a>>,
    pub(super) positions: Option<Matrix<'a>>,
    pub(super) layers: Vec<TowerLayer<'a>>,
    /// That of the output, then those of the further features.
    pub(super) mergers: Vec<Merger<'a>>,
}

impl<'a> TowerParams<'a> {
    /// Resolves the handles. `all` holds `table.elements` elements; `weights` is the dtype of the weights, which
    /// decides the element order of gradients too.
    pub fn bind(spec: &TowerSpec, table: &ParamTable, weights: DType, all: Buf<'a>) -> TowerParams<'a> {
        use TowerParam as P;
        assert_eq!(all.len() as u64, table.elements, "the flat buffer of a tower");
        let layout = MatrixLayout::of_weights(table.device, weights);
        let find = |param, index| {
            let param = table.find(ParamKind::Tower(param), index)?;
            Some((
                all.slice(param.offset as usize, param.elements as usize),
                param.n as usize,
                param.k as usize,
            ))
        };
        let matrix = |param, index| find(param, index).map(|(buf, n, k)| Matrix::new(buf, n, k, layout));
        let vector = |param, index| find(param, index).map(|(buf, ..)| buf);
        let linear = |[w, b]: [P; 2], index| Linear {
            w: matrix(w, index).expect("a product of the table"),
            b: vector(b, index).expect("products have biases"),
            adapter: None,
        };
        let norm = |[w, b]: [P; 2], index| NormParams {
            w: vector(w, index).expect("a norm of the table"),
            b: vector(b, index),
        };
        let layers = (0..spec.depth).map(|layer| TowerLayer {
            attn_norm: norm([P::AttnNorm, P::AttnNormBias], layer),
            qkv: linear([P::Qkv, P::QkvBias], layer),
            output: linear([P::Output, P::OutputBias], layer),
            ffn_norm: norm([P::FfnNorm, P::FfnNormBias], layer),
            up: linear([P::Up, P::UpBias], layer),
            down: linear([P::Down, P::DownBias], layer),
        });
        let mergers = (0..=spec.deep.as_slice().len() as u32).map(|merger| Merger {
            norm: norm([P::MergeNorm, P::MergeNormBias], merger),
            up: linear([P::MergeUp, P::MergeUpBias], merger),
            down: linear([P::MergeDown, P::MergeDownBias], merger),
        });
        TowerParams {
            all,
            patch: matrix(P::Patch, 0).expect("a tower has patches"),
            patch_bias: vector(P::PatchBias, 0),
            positions: matrix(P::Positions, 0),
            layers: layers.collect(),
            mergers: mergers.collect(),
        }
    }
}
