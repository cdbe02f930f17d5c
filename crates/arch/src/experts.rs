//! Feed-forward parts that are made of experts: how many there are, how many a row goes to, and which layers have them.

use crate::LayerSet;
use serde::{Deserialize, Serialize};

/// Experts of a layer, at most: the most that published models have.
pub const EXPERTS_MAX: usize = 512;
/// Experts that a row goes to, at most: the gradient of a router on cards has a lane for each.
pub const EXPERTS_CHOSEN_MAX: usize = 32;

/// The experts of a decoder's layers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpertsSpec {
    /// E: experts of a layer.
    pub count: u32,
    /// k: those that a row goes to.
    pub chosen: u32,
    /// Feed-forward width of an expert.
    pub ffn: u32,
    /// Whether the weights of a row's experts are divided by their sum.
    pub normalizes: bool,
    /// The layers that have experts. The others have one feed-forward part, of the model's width.
    pub layers: LayerSet,
    /// Coefficient of the loss that keeps experts equally loaded, as the file has it. A run reads it where it is asked to.
    pub balance: f32,
}

impl ExpertsSpec {
    /// k times what an expert's down reads.
    pub fn product_width(&self) -> u32 {
        self.chosen * self.ffn
    }
}
