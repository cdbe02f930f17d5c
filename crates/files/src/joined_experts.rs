//! Experts of Qwen3-VL's files, where one tensor holds the gates and ups of all experts of a layer, and another their
//! downs: as published with inputs as rows, or with outputs as rows. The model has the tensors of each expert apart.

use crate::tensors::{RowOrder, TensorInfo};
use plimsoll_arch::{Family, ModelSpec};

const EXPERTS: &str = ".mlp.experts.";
const GATE_UP: &str = "gate_up_proj";
const DOWN: &str = "down_proj";

/// Returns the tensors of each expert apart, under the names that files of the text alone have. Tensors of other shapes
/// stay what they are, for the check of shapes to name them.
pub(crate) fn apart(tensors: Vec<TensorInfo>, spec: &ModelSpec) -> Vec<TensorInfo> {
    if !(spec.is_wrapped && spec.family == Family::Qwen3Moe) {
        return tensors;
    }
    let mut all = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        match Joined::of(&tensor, spec) {
            Some(joined) => joined.each(&tensor, &mut all),
            None => all.push(tensor),
        }
    }
    all
}

/// The matrices of all experts in a tensor: E of them, each [n, k], of which parts have names of their own.
struct Joined {
    parts: &'static [&'static str],
    experts: u64,
    /// Rows of a part.
    n: u64,
    /// Inputs.
    k: u64,
    /// True if the tensor has inputs as rows.
    is_transposed: bool,
}

impl Joined {
    fn of(tensor: &TensorInfo, spec: &ModelSpec) -> Option<Joined> {
        let (_, name) = tensor.name.split_once(EXPERTS).filter(|_| tensor.encoding.block_values() == 1)?;
        let experts = spec.file_shape().experts?.each;
        let (h, f) = (u64::from(spec.hidden), u64::from(experts.ffn));
        let (parts, n, k): (&[&str], _, _) = match name {
            GATE_UP => (&["gate_proj", "up_proj"], f, h),
            DOWN => (&["down_proj"], h, f),
            _ => return None,
        };
        let [count, rows, columns] = tensor.shape[..] else { return None };
        let outputs = n * parts.len() as u64;
        // Of square matrices nothing says which; published ones have inputs as rows.
        let is_transposed = (rows, columns) == (k, outputs);
        let fits = count == u64::from(experts.count) && (is_transposed || (rows, columns) == (outputs, k));
        fits.then_some(Joined { parts, experts: count, n, k, is_transposed })
    }

    fn each(&self, of: &TensorInfo, to: &mut Vec<TensorInfo>) {
        let &Joined { parts, experts, n, k, is_transposed } = self;
        let (outputs, bytes) = (n * parts.len() as u64, of.encoding.block_bytes());
        let layer = of.name.split_once(EXPERTS).map_or("", |(layer, _)| layer);
        for expert in 0..experts {
            for (part, first) in parts.iter().zip((0..).step_by(n as usize)) {
                // From the first value of the part to its last.
                let (begins, values, row_order) = if is_transposed {
                    (first, (k - 1) * outputs + n, RowOrder::Columns { stride: outputs })
                } else {
                    (first * k, n * k, RowOrder::Stored)
                };
                to.push(TensorInfo {
                    name: format!("{layer}{EXPERTS}{expert}.{part}.weight"),
                    shape: vec![n, k],
                    offset: of.offset + (expert * outputs * k + begins) * bytes,
                    bytes: values * bytes,
                    row_order,
                    ..of.clone()
                });
            }
        }
    }
}
