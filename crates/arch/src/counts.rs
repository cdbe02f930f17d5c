//! Parameter and FLOP counts of a model, as folds over its table.

use crate::table::each_row;
use crate::{ExpertsSpec, ModelSpec};

impl ModelSpec {
    /// Returns the number of parameters; a tied head is counted once.
    ///
    /// P = V h (1 if tied else 2) + h + L (h a d + 2 h k d + a d h + F + n h + [bias: a d + 2 k d, h, 2 f + h] + N),
    /// with n norms per layer, qk-norms N = 2 d (heads) or (a + k) d (rows), F = 3 h f, or E h + 3 E h f' with experts.
    pub fn parameters(&self) -> u64 {
        self.parameters_with(|experts| experts.count)
    }

    /// Returns the number of parameters that compute one token: only the chosen experts count.
    pub fn active_parameters(&self) -> u64 {
        self.parameters_with(|experts| experts.chosen)
    }

    /// Returns the number of parameters of all experts that routers choose among.
    pub fn expert_parameters(&self) -> u64 {
        self.parameters() - self.parameters_with(|_| 0)
    }

    /// Returns the number of parameters, with `of_layer` experts in each layer that has experts.
    fn parameters_with(&self, of_layer: impl Fn(&ExpertsSpec) -> u32) -> u64 {
        let (v, h) = (u64::from(self.vocab), u64::from(self.hidden));
        let mut parameters = v * h * if self.tied { 1 } else { 2 } + h;
        if let Some(width) = self.inputs {
            let (width, all) = (u64::from(width), u64::from(self.layers.len() * width));
            parameters += v * all + all * h + width;
        }
        for layer in 0..self.layers.len() {
            let times = self.layer(layer).experts().map_or(1, |experts| of_layer(&experts).into());
            each_row(self, layer, |row| {
                if row.kind.is_fixed() {
                    return; // A number that files keep, and no parameter.
                }
                parameters += row.elements() * if row.experts.is_some() { times } else { 1 };
            });
        }
        parameters
    }

    /// Returns the FLOPs of one token's forward pass through the layers with `context` keys, excluding the head.
    pub fn layer_flops(&self, context: u64) -> u64 {
        let mut flops = 0;
        for layer in 0..self.layers.len() {
            let chosen = self.layer(layer).experts().map_or(1, |experts| experts.chosen.into());
            each_row(self, layer, |row| {
                if row.kind.is_product() {
                    flops += 2 * row.elements() * if row.experts.is_some() { chosen } else { 1 };
                }
            });
            flops += self.layer(layer).mixer.flops(context);
        }
        flops
    }

    /// Returns the FLOPs of one row through the head.
    pub fn head_flops(&self) -> u64 {
        2 * u64::from(self.vocab) * u64::from(self.hidden)
    }
}
