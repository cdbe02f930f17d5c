//! The dense feed-forward part: one gated MLP.

use crate::param::ParamKind as Kind;
use crate::tensor_row::{TensorRow, matrix, vector};
use crate::{LoraTarget, Site};

/// The dense feed-forward part of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DenseSpec {
    /// f: outputs of the gate and of the up projection.
    pub width: u32,
    /// True if gate, up and down have a bias.
    pub bias: bool,
}

impl DenseSpec {
    /// Calls `add` with each tensor.
    pub(super) fn rows(&self, h: u32, is_fused: bool, add: &mut impl FnMut(TensorRow)) {
        let f = self.width;
        // llama.cpp splits `ffn_up` in halves if there is no `ffn_gate`.
        let fused = |row: TensorRow| row.fused(is_fused, "mlp.gate_up_proj", "ffn_up");
        let (gate, up) = (("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"));
        add(fused(matrix(Kind::Weight(Site::GateUp), gate, [f, h]).of(LoraTarget::Gate)));
        add(fused(matrix(Kind::Weight(Site::GateUp), up, [f, h]).of(LoraTarget::Up)));
        add(matrix(Kind::Weight(Site::Down), ("mlp.down_proj", "ffn_down"), [h, f]).of(LoraTarget::Down));
        if self.bias {
            for (module, gguf) in [gate, up] {
                add(fused(vector(Kind::Bias(Site::GateUp), (module, gguf, "bias"), f)));
            }
            add(vector(Kind::Bias(Site::Down), ("mlp.down_proj", "ffn_down", "bias"), h));
        }
    }
}
