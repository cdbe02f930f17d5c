//! The numbers of one optimizer update.

/// The options of one AdamW update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateOptions {
    /// Learning rate of this step.
    pub lr: f32,
    /// Decay rates of the moments.
    pub betas: (f32, f32),
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Decoupled weight decay.
    pub weight_decay: f32,
    /// Largest gradient norm; larger gradients are scaled down to it; 0 for no limit.
    pub grad_clip: f32,
    /// Key of stochastic rounding.
    pub seed: u64,
}
