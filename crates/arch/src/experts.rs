//! Mixture of experts: how many experts there are, how many a row goes to, and which layers have them.

use crate::LayerSet;

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

/// Experts as files describe them: the same in each layer that has some.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertLayers {
    /// E: experts per layer.
    pub count: u32,
    /// k: experts per row.
    pub chosen: u32,
    /// Feed-forward width of an expert.
    pub ffn: u32,
    /// True if the weights of a row's experts are divided by their sum.
    pub normalizes: bool,
    /// The layers that have experts. The others have one dense feed-forward part.
    pub layers: LayerSet,
    /// Coefficient of the load balancing loss.
    pub balance: f32,
}

impl ExpertLayers {
    /// Returns the experts of each of the layers.
    pub const fn each(&self) -> ExpertsSpec {
        let ExpertLayers { count, chosen, ffn, normalizes, balance, .. } = *self;
        ExpertsSpec { count, chosen, ffn, normalizes, balance }
    }

    /// Returns experts with the layers that have them.
    pub const fn of(each: ExpertsSpec, layers: LayerSet) -> ExpertLayers {
        let ExpertsSpec { count, chosen, ffn, normalizes, balance } = each;
        ExpertLayers { count, chosen, ffn, normalizes, layers, balance }
    }
}

impl ExpertsSpec {
    /// Returns k times the inputs of an expert's down projection.
    pub fn product_width(&self) -> u32 {
        self.chosen * self.ffn
    }
}
