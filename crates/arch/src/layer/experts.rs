//! Mixture of experts: how many experts there are, how many a row goes to, and which layers have them.

use crate::param::ParamKind as Kind;
use crate::tensor_row::{TensorRow, matrix};
use crate::{LoraTarget, Site};

/// Maximum experts per layer, the most in published models.
pub const EXPERTS_MAX: usize = 512;
/// Maximum experts per row: the router's gradient on GPUs has one lane for each.
pub const EXPERTS_CHOSEN_MAX: usize = 32;

/// The experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsSpec {
    /// E: experts per layer.
    pub count: u32,
    /// k: experts per row.
    pub chosen: u32,
    /// Feed-forward width of an expert.
    pub ffn: u32,
    /// True if the weights of a row's experts are divided by their sum.
    pub normalizes: bool,
    /// Coefficient of the load balancing loss, as the file has it; runs use it only if asked to.
    pub balance: f32,
}

impl ExpertsSpec {
    /// Returns k times the inputs of an expert's down projection.
    pub fn product_width(&self) -> u32 {
        self.chosen * self.ffn
    }

    /// Calls `add` with each tensor: a router's, and those of its experts.
    pub(super) fn rows(&self, h: u32, add: &mut impl FnMut(TensorRow)) {
        let f = self.ffn;
        let each = |row: TensorRow| TensorRow { experts: Some(self.count), ..row };
        add(matrix(Kind::Router, ("mlp.gate", "ffn_gate_inp"), [self.count, h]));
        add(each(
            matrix(Kind::Weight(Site::GateUp), ("gate_proj", "ffn_gate_exps"), [f, h]).of(LoraTarget::Gate),
        ));
        add(each(matrix(Kind::Weight(Site::GateUp), ("up_proj", "ffn_up_exps"), [f, h]).of(LoraTarget::Up)));
        add(each(
            matrix(Kind::Weight(Site::Down), ("down_proj", "ffn_down_exps"), [h, f]).of(LoraTarget::Down),
        ));
    }
}
