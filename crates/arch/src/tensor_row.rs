//! A tensor of a layer, with its names in every file format: a row of the table.

use crate::LoraTarget;
use crate::param::ParamKind as Kind;

/// A tensor of a layer, or of each of its experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorRow {
    /// The parameter that holds these rows: rows of one kind are adjacent, grouped by expert.
    pub kind: Kind,
    /// The linear layer that an adapter may change here.
    pub target: Option<LoraTarget>,
    /// Hugging Face name of the module within a layer or an expert: `self_attn.q_proj`.
    pub module: &'static str,
    /// Name within a GGUF block: `attn_q`; one tensor holds all experts.
    pub gguf: &'static str,
    /// Suffix of the module's name: `weight`, `bias`, or empty.
    pub leaf: &'static str,
    /// Rows (of one expert), or elements of a vector.
    pub rows: u32,
    /// Columns; 0 for a vector.
    pub cols: u32,
    /// Number of experts that each have one.
    pub experts: Option<u32>,
    /// True if files hold it in one tensor with its neighbours of the same module.
    pub is_fused: bool,
}

impl TensorRow {
    /// Returns the tensor's name in a layer: `mlp.experts.7.gate_proj.weight`.
    pub fn name(&self, expert: Option<u32>) -> String {
        let expert = expert.map_or(String::new(), |expert| format!("mlp.experts.{expert}."));
        format!("{expert}{}", self.with_leaf(self.module))
    }

    /// Returns the tensor's name in a GGUF block; one tensor holds all experts.
    pub fn gguf_name(&self) -> String {
        self.with_leaf(self.gguf)
    }

    fn with_leaf(&self, module: &str) -> String {
        if self.leaf.is_empty() { module.to_string() } else { format!("{module}.{}", self.leaf) }
    }

    /// Returns the tensor's shape in files (of one expert), slowest axis first.
    pub fn shape(&self) -> Vec<u64> {
        let (rows, cols) = (self.rows.into(), self.cols.into());
        match (self.kind, self.cols) {
            // A depthwise convolution: one group per channel.
            (Kind::DeltaConv, _) => vec![rows, 1, cols],
            (_, 0) => vec![rows],
            _ => vec![rows, cols],
        }
    }

    /// Returns the number of elements (of one expert).
    pub fn elements(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.cols.max(1))
    }

    /// Returns the row as a linear layer that adapters may extend.
    pub(crate) fn of(self, target: LoraTarget) -> TensorRow {
        TensorRow { target: Some(target), ..self }
    }

    /// Returns the row as part of a fused tensor of the file, if `is_fused`.
    pub(crate) fn fused(self, is_fused: bool, module: &'static str, gguf: &'static str) -> TensorRow {
        if is_fused { TensorRow { module, gguf, is_fused, ..self } } else { self }
    }
}

/// Returns the row of a vector.
pub(crate) fn vector(
    kind: Kind,
    (module, gguf, leaf): (&'static str, &'static str, &'static str),
    rows: u32,
) -> TensorRow {
    TensorRow { kind, target: None, module, gguf, leaf, rows, cols: 0, experts: None, is_fused: false }
}

/// Returns the row of a matrix of weights.
pub(crate) fn matrix(
    kind: Kind,
    (module, gguf): (&'static str, &'static str),
    [rows, cols]: [u32; 2],
) -> TensorRow {
    TensorRow { cols, ..vector(kind, (module, gguf, "weight"), rows) }
}
