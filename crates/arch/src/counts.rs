//! How many parameters a model has and how much arithmetic a token takes, as folds over its table.

use crate::table::each_row;
use crate::{ExpertsSpec, ModelSpec};

impl ModelSpec {
    /// Number of parameters; a tied head is counted once.
    ///
    /// P = V h (1 if tied else 2) + h + L (h a d + 2 h k d + a d h + F + n h + [bias: a d + 2 k d, h, 2 f + h] + [qk-norm]), with n
    /// norms a layer and 2 d weights of norms of heads, or (a + k) d of rows; F = 3 h f, or E h + 3 E h f' where there are experts.
    pub fn parameters(&self) -> u64 {
        self.parameters_with(|experts| experts.count)
    }

    /// Number of parameters that compute a token: those of its experts, and all others.
    pub fn active_parameters(&self) -> u64 {
        self.parameters_with(|experts| experts.chosen)
    }

    /// Returns the parameters, of the experts of a layer those that `of_layer` counts.
    fn parameters_with(&self, of_layer: impl Fn(&ExpertsSpec) -> u32) -> u64 {
        let (v, h) = (u64::from(self.vocab), u64::from(self.hidden));
        let mut parameters = v * h * if self.tied { 1 } else { 2 } + h;
        for layer in 0..self.layers {
            let times = self.layer(layer).experts().map_or(1, |experts| of_layer(&experts).into());
            each_row(self, layer, |row| {
                parameters += row.elements() * if row.experts.is_some() { times } else { 1 };
            });
        }
        parameters
    }

    /// Floating-point operations of one token's forward pass through the layers with `context` keys, head excluded.
    pub fn layer_flops(&self, context: u64) -> u64 {
        let mut flops = 0;
        for layer in 0..self.layers {
            let chosen = self.layer(layer).experts().map_or(1, |experts| experts.chosen.into());
            each_row(self, layer, |row| {
                if row.kind.is_product() {
                    flops += 2 * row.elements() * if row.experts.is_some() { chosen } else { 1 };
                }
            });
            flops += self.mixer_flops(layer, context);
        }
        flops
    }

    /// Floating-point operations of one row through the head.
    pub fn head_flops(&self) -> u64 {
        2 * u64::from(self.vocab) * u64::from(self.hidden)
    }
}
