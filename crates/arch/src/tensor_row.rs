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
    /// True if this tensor of a file holds the rows of all experts.
    pub is_of_all_experts: bool,
    /// True if files hold its matrices with inputs as rows.
    pub is_transposed: bool,
    /// The order of its rows in files, if they are not in the model's.
    pub groups: Option<KeyGroups>,
}

/// The order of rows in a tensor that has them by key heads: those of one head after the other, kind by kind. A model
/// has them kind by kind: those of one kind after the other, head by head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyGroups {
    /// Number of key heads.
    pub heads: u32,
    /// Rows of a head of each kind; 0 after the last kind.
    pub kinds: [u32; 4],
}

impl KeyGroups {
    /// Returns where a file has row `row` of the model, and how many rows from there on are neighbours in both.
    pub fn run(self, row: u32) -> (u32, u32) {
        let (each, mut of_model, mut of_head) = (self.kinds.iter().sum::<u32>(), 0, 0);
        for kind in self.kinds {
            let rows = kind * self.heads;
            if row < of_model + rows {
                let (head, within) = ((row - of_model) / kind, (row - of_model) % kind);
                return (head * each + of_head + within, kind - within);
            }
            (of_model, of_head) = (of_model + rows, of_head + kind);
        }
        panic!("row {row} of {of_model}")
    }

    /// Returns which row of the model a file has at `stored`, and how many rows from there on are neighbours in both.
    pub fn stored_run(self, stored: u32) -> (u32, u32) {
        let each = self.kinds.iter().sum::<u32>();
        let (head, mut within, mut of_model) = (stored / each, stored % each, 0);
        for kind in self.kinds {
            if within < kind {
                return (of_model + head * kind + within, kind - within);
            }
            (within, of_model) = (within - kind, of_model + kind * self.heads);
        }
        panic!("a row of {each} is of some kind")
    }
}

/// Returns whether files have a tensor in f32, whatever the dtype of the model.
pub fn is_kept_in_f32(name: &str) -> bool {
    name.ends_with(".mlp.gate.e_score_correction_bias")
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
            (_, 0) if self.is_of_all_experts => vec![self.experts.unwrap_or(1).into(), rows],
            _ if self.is_transposed => vec![self.experts.unwrap_or(1).into(), cols, rows],
            _ if self.is_of_all_experts => vec![self.experts.unwrap_or(1).into(), rows, cols],
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
    TensorRow {
        kind,
        target: None,
        module,
        gguf,
        leaf,
        rows,
        cols: 0,
        experts: None,
        is_fused: false,
        is_of_all_experts: false,
        is_transposed: false,
        groups: None,
    }
}

/// Returns the row of a matrix of weights.
pub(crate) fn matrix(
    kind: Kind,
    (module, gguf): (&'static str, &'static str),
    [rows, cols]: [u32; 2],
) -> TensorRow {
    TensorRow { cols, ..vector(kind, (module, gguf, "weight"), rows) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_by_key_heads_are_those_of_each_kind() {
        // Two heads: q and k of 2 rows, v and z of 3.
        let groups = KeyGroups { heads: 2, kinds: [2, 2, 3, 3] };
        let stored: Vec<u32> = (0..20).map(|row| groups.run(row).0).collect();
        assert_eq!(stored, [0, 1, 10, 11, 2, 3, 12, 13, 4, 5, 6, 14, 15, 16, 7, 8, 9, 17, 18, 19]);
        for (row, &at) in (0..20).zip(&stored) {
            assert_eq!(groups.stored_run(at), (row, groups.run(row).1), "{row}");
            // A run ends where neighbours here are none there.
            let next = stored.get(row as usize + 1);
            assert_eq!(
                groups.run(row).1 > 1,
                next == Some(&(at + 1)) && groups.run(row + 1).1 + 1 == groups.run(row).1
            );
        }
        let pairs = KeyGroups { heads: 3, kinds: [1, 1, 0, 0] };
        assert_eq!((0..6).map(|row| pairs.run(row).0).collect::<Vec<_>>(), [0, 2, 4, 1, 3, 5]);
    }
}
