//! The table of a tower's tensors, in the order of the flat buffer, with their names in files.

use super::spec::{PIXEL_CHANNELS, TowerMlp, TowerNorm, TowerSpec};

/// The prefix of a tower's tensors.
pub const TOWER_PREFIX: &str = "model.visual.";

/// A parameter of a tower: of all of it, of a layer, or of a merger. The first merger gives the output, the others the
/// further features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TowerParam {
    /// [h, 3 frames p^2]: patches to rows
    Patch,
    /// [h]
    PatchBias,
    /// [side^2, h]
    Positions,
    /// [h], before attention
    AttnNorm,
    /// [h]
    AttnNormBias,
    /// [3h, h]
    Qkv,
    /// [3h]
    QkvBias,
    /// [h, h]
    Output,
    /// [h]
    OutputBias,
    /// [h], before the feed-forward part
    FfnNorm,
    /// [h]
    FfnNormBias,
    /// [f, h], or [2f, h]: gates, then ups
    Up,
    /// [f] or [2f]
    UpBias,
    /// [h, f]
    Down,
    /// [h]
    DownBias,
    /// [h], or [s^2 h] where it is after the join
    MergeNorm,
    /// As the weight
    MergeNormBias,
    /// [s^2 h, s^2 h]
    MergeUp,
    /// [s^2 h]
    MergeUpBias,
    /// [out, s^2 h]
    MergeDown,
    /// [out]
    MergeDownBias,
}

impl TowerParam {
    /// True if it is of a merger.
    pub const fn is_merger(self) -> bool {
        use TowerParam::{MergeDown, MergeDownBias, MergeNorm, MergeNormBias, MergeUp, MergeUpBias};
        matches!(self, MergeNorm | MergeNormBias | MergeUp | MergeUpBias | MergeDown | MergeDownBias)
    }

    /// True if adapters extend it: a product of rows, that of patches apart, which is a convolution.
    pub const fn has_adapter(self) -> bool {
        use TowerParam::{Down, MergeDown, MergeUp, Output, Qkv, Up};
        matches!(self, Qkv | Output | Up | Down | MergeUp | MergeDown)
    }

    /// True if it is the weight of a norm.
    pub const fn is_norm(self) -> bool {
        matches!(self, TowerParam::AttnNorm | TowerParam::FfnNorm | TowerParam::MergeNorm)
    }

    /// True if it is added to rows.
    pub const fn is_bias(self) -> bool {
        use TowerParam::{AttnNormBias, DownBias, FfnNormBias, MergeDownBias, MergeNormBias, MergeUpBias};
        use TowerParam::{OutputBias, PatchBias, QkvBias, UpBias};
        matches!(self, PatchBias | AttnNormBias | QkvBias | OutputBias | FfnNormBias | UpBias | DownBias)
            || matches!(self, MergeNormBias | MergeUpBias | MergeDownBias)
    }
}

/// A tensor of a tower in files: rows of a parameter, of which neighbours may have some too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TowerTensor {
    /// The parameter.
    pub param: TowerParam,
    /// The layer or the merger; 0 of what there is once.
    pub index: u32,
    /// Name in files.
    pub name: String,
    /// Rows, or elements of a vector.
    pub rows: u32,
    /// Columns; 0 for a vector.
    pub cols: u32,
    /// Shape in files.
    pub shape: Vec<u64>,
}

impl TowerTensor {
    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.cols.max(1))
    }
}

/// Collects tensors under names that begin alike.
struct Tensors {
    list: Vec<TowerTensor>,
    prefix: String,
    index: u32,
}

impl Tensors {
    fn at(&mut self, prefix: String, index: u32) {
        (self.prefix, self.index) = (format!("{TOWER_PREFIX}{prefix}"), index);
    }

    fn matrix(&mut self, param: TowerParam, name: &str, rows: u32, cols: u32) {
        let shape = if cols == 0 { vec![rows.into()] } else { vec![rows.into(), cols.into()] };
        let name = format!("{}{name}", self.prefix);
        self.list.push(TowerTensor { param, index: self.index, name, rows, cols, shape });
    }

    fn vector(&mut self, param: TowerParam, name: &str, rows: u32) {
        self.matrix(param, name, rows, 0);
    }

    /// Adds a product with a bias.
    fn product(&mut self, params: [TowerParam; 2], name: &str, rows: u32, cols: u32) {
        self.matrix(params[0], &format!("{name}.weight"), rows, cols);
        self.vector(params[1], &format!("{name}.bias"), rows);
    }

    fn norm(&mut self, of: TowerNorm, params: [TowerParam; 2], name: &str, width: u32) {
        self.vector(params[0], &format!("{name}.weight"), width);
        if of == TowerNorm::Layer {
            self.vector(params[1], &format!("{name}.bias"), width);
        }
    }
}

/// Returns the tensors of a tower. Tensors of one parameter are neighbours.
pub fn tower_tensors(spec: &TowerSpec) -> Vec<TowerTensor> {
    use TowerParam as P;
    let mut to = Tensors { list: Vec::new(), prefix: TOWER_PREFIX.into(), index: 0 };
    let (h, f, norm) = (spec.hidden, spec.ffn, spec.norm);
    to.matrix(P::Patch, "patch_embed.proj.weight", h, spec.patch_elements());
    let [patch, frames] = [spec.patch, spec.frames].map(u64::from);
    to.list[0].shape = vec![h.into(), PIXEL_CHANNELS.into(), frames, patch, patch];
    if spec.patch_bias {
        to.vector(P::PatchBias, "patch_embed.proj.bias", h);
    }
    if let Some(side) = spec.positions {
        to.matrix(P::Positions, "pos_embed.weight", side * side, h);
    }
    for layer in 0..spec.depth {
        to.at(format!("blocks.{layer}."), layer);
        to.norm(norm, [P::AttnNorm, P::AttnNormBias], "norm1", h);
        to.product([P::Qkv, P::QkvBias], "attn.qkv", 3 * h, h);
        to.product([P::Output, P::OutputBias], "attn.proj", h, h);
        to.norm(norm, [P::FfnNorm, P::FfnNormBias], "norm2", h);
        match spec.mlp {
            TowerMlp::Plain(_) => {
                to.product([P::Up, P::UpBias], "mlp.linear_fc1", f, h);
                to.product([P::Down, P::DownBias], "mlp.linear_fc2", h, f);
            }
            TowerMlp::Gated(_) => {
                for (param, leaf, cols) in [(P::Up, "weight", h), (P::UpBias, "bias", 0)] {
                    for of in ["gate", "up"] {
                        to.matrix(param, &format!("mlp.{of}_proj.{leaf}"), f, cols);
                    }
                }
                to.product([P::Down, P::DownBias], "mlp.down_proj", h, f);
            }
        }
    }
    // The names of a family go with its norms.
    let [name, up, down] = match norm {
        TowerNorm::Layer => ["norm", "linear_fc1", "linear_fc2"],
        TowerNorm::Rms => ["ln_q", "mlp.0", "mlp.2"],
    };
    let merged = spec.merged();
    for merger in 0..=spec.deep.as_slice().len() as u32 {
        // The norm of the output's merger is before the join, those of the others after it.
        let (prefix, width) = match merger.checked_sub(1) {
            None => ("merger.".to_string(), h),
            Some(deep) => (format!("deepstack_merger_list.{deep}."), merged),
        };
        to.at(prefix, merger);
        to.norm(norm, [P::MergeNorm, P::MergeNormBias], name, width);
        to.product([P::MergeUp, P::MergeUpBias], up, merged, merged);
        to.product([P::MergeDown, P::MergeDownBias], down, spec.out, merged);
    }
    to.list
}

/// Returns the linear layers of each product that adapters extend.
pub fn tower_adapted(spec: &TowerSpec) -> Vec<Vec<TowerTensor>> {
    let tensors = tower_tensors(spec);
    let products = tensors.chunk_by(|a, b| (a.param, a.index) == (b.param, b.index));
    products.filter(|of| of[0].param.has_adapter()).map(<[TowerTensor]>::to_vec).collect()
}
