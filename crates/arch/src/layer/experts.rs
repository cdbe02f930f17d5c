//! Mixture of experts: how many experts there are, how many a row goes to, and the shared expert next to them.

use crate::param::ParamKind as Kind;
use crate::tensor_row::{TensorRow, matrix, vector};
use crate::{LoraTarget, Site};

/// Maximum experts per layer, the most in published models.
pub const EXPERTS_MAX: usize = 512;
/// Maximum experts per row: the router's gradient on GPUs has one lane for each.
pub const EXPERTS_CHOSEN_MAX: usize = 32;
/// Maximum groups of experts: the router on GPUs has one lane for each.
pub const EXPERT_GROUPS_MAX: usize = 32;

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
    /// How experts are scored, if by sigmoids and not by a softmax.
    pub sigmoid: Option<SigmoidSpec>,
    /// Coefficient of the load balancing loss, as the file has it; runs use it only if asked to.
    pub balance: f32,
    /// Feed-forward width of the shared expert, or of the dense part next to the experts, if there is one: it computes
    /// every row.
    pub shared: Option<u32>,
    /// True if what the shared expert gives is multiplied by the sigmoid of a product of the row.
    pub gates_shared: bool,
    /// True if one tensor of a file holds the gates and ups of all experts of a layer, and another their downs.
    pub is_fused: bool,
    /// True if the router and the experts have biases, gates and ups alternate, and files hold matrices transposed.
    pub biased: bool,
}

/// A router that scores each expert by a sigmoid of its own, and chooses by scores with corrections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SigmoidSpec {
    /// Groups of neighbouring experts.
    pub groups: u32,
    /// Groups that a row chooses its experts in.
    pub groups_chosen: u32,
    /// Factor on the weights of a row's experts.
    pub factor: f32,
}

impl ExpertsSpec {
    /// Returns k times the inputs of an expert's down projection.
    pub fn product_width(&self) -> u32 {
        self.chosen * self.ffn
    }

    /// Calls `add` with each tensor: a router's, and those of its experts.
    pub(super) fn rows(&self, h: u32, add: &mut impl FnMut(TensorRow)) {
        if self.biased {
            return self.biased_rows(h, add);
        }
        let f = self.ffn;
        let each = |row: TensorRow| TensorRow { experts: Some(self.count), ..row };
        add(matrix(Kind::Router, ("mlp.gate", "ffn_gate_inp"), [self.count, h]));
        if self.sigmoid.is_some() {
            let correction = ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias", "");
            add(vector(Kind::RouterCorrection, correction, self.count));
        }
        add(each(
            matrix(Kind::Weight(Site::GateUp), ("gate_proj", "ffn_gate_exps"), [f, h]).of(LoraTarget::Gate),
        ));
        add(each(matrix(Kind::Weight(Site::GateUp), ("up_proj", "ffn_up_exps"), [f, h]).of(LoraTarget::Up)));
        add(each(
            matrix(Kind::Weight(Site::Down), ("down_proj", "ffn_down_exps"), [h, f]).of(LoraTarget::Down),
        ));
        let Some(f) = self.shared else { return };
        // Files of families without a gate have the plural, for several experts side by side.
        let [gate, up, down] = if self.gates_shared {
            [LoraTarget::SharedGate, LoraTarget::SharedUp, LoraTarget::SharedDown]
        } else {
            [LoraTarget::SharedGates, LoraTarget::SharedUps, LoraTarget::SharedDowns]
        };
        for (target, gguf, site, shape) in [
            (gate, "ffn_gate_shexp", Site::SharedGateUp, [f, h]),
            (up, "ffn_up_shexp", Site::SharedGateUp, [f, h]),
            (down, "ffn_down_shexp", Site::SharedDown, [h, f]),
        ] {
            add(matrix(Kind::Weight(site), (target.module(), gguf), shape).of(target));
        }
        if self.gates_shared {
            add(matrix(Kind::SharedGate, ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"), [1, h]));
        }
    }

    /// Calls `add` with each tensor of a router, of experts, and of the dense part next to them.
    pub(super) fn joined_rows(&self, h: u32, add: &mut impl FnMut(TensorRow)) {
        let (f, width) = (self.ffn, self.shared.unwrap_or(0));
        let norm = |kind, module, gguf| vector(kind, (module, gguf, "weight"), h);
        add(vector(Kind::RouterScale, ("router.scale", "ffn_gate_inp.scale", ""), h));
        add(matrix(Kind::Router, ("router.proj", "ffn_gate_inp"), [self.count, h]));
        add(vector(Kind::ExpertScale, ("router.per_expert_scale", "ffn_down_exps.scale", ""), self.count));
        add(norm(Kind::ExpertsNorm, "pre_feedforward_layernorm_2", "pre_ffw_norm_2"));
        for (target, site, gguf, shape) in [
            (LoraTarget::ExpertsGateUp, Site::GateUp, "ffn_gate_up_exps", [2 * f, h]),
            (LoraTarget::ExpertsDown, Site::Down, "ffn_down_exps", [h, f]),
        ] {
            let row = matrix(Kind::Weight(site), (target.name(), gguf), shape).of(target);
            add(TensorRow { experts: Some(self.count), is_of_all_experts: true, leaf: "", ..row });
        }
        add(norm(Kind::ExpertsPostNorm, "post_feedforward_layernorm_2", "post_ffw_norm_2"));
        for (target, site, gguf, shape) in [
            (LoraTarget::Gate, Site::SharedGateUp, "ffn_gate", [width, h]),
            (LoraTarget::Up, Site::SharedGateUp, "ffn_up", [width, h]),
            (LoraTarget::Down, Site::SharedDown, "ffn_down", [h, width]),
        ] {
            add(matrix(Kind::Weight(site), (target.module(), gguf), shape).of(target));
        }
        add(norm(Kind::DensePostNorm, "post_feedforward_layernorm_1", "post_ffw_norm_1"));
    }

    /// Calls `add` with each tensor of a router and of experts that have biases.
    fn biased_rows(&self, h: u32, add: &mut impl FnMut(TensorRow)) {
        let f = self.ffn;
        add(matrix(Kind::Router, ("mlp.router", "ffn_gate_inp"), [self.count, h]));
        add(vector(Kind::RouterBias, ("mlp.router", "ffn_gate_inp", "bias"), self.count));
        for (site, target, gguf, of_bias, [rows, cols]) in [
            (
                Site::GateUp,
                LoraTarget::ExpertsGateUp,
                "ffn_gate_up_exps",
                "mlp.experts.gate_up_proj_bias",
                [2 * f, h],
            ),
            (Site::Down, LoraTarget::ExpertsDown, "ffn_down_exps", "mlp.experts.down_proj_bias", [h, f]),
        ] {
            let each =
                |row: TensorRow| TensorRow { experts: Some(self.count), is_of_all_experts: true, ..row };
            let weights = matrix(Kind::Weight(site), (target.module(), gguf), [rows, cols]).of(target);
            add(each(TensorRow { is_transposed: true, leaf: "", ..weights }));
            add(each(vector(Kind::Bias(site), (of_bias, gguf, ""), rows)));
        }
    }
}
